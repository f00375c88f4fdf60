"""Samples made into curves, and how far a curve is from what was held out of it.

    affine      fixed + size * slope, both >= 0, the relative error least
    straight    lines between the medians, which never go down
    bent        a monotone cubic between them (Fritsch and Carlson 1980), written as more points

Of the three the one with the least error at the held-out points is taken; a curve that still misses
its limit there says so. Surfaces are judged the same way by whoever reads them: the simulator. All
arithmetic is plain floats, nothing is drawn at random. Refuses to extrapolate: what lies beyond the
samples is the simulator's to warn about.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

from scenario.measurement import Fit, Sample, quantile
from sim.curves import Line, monotone

BETWEEN = 4  # pieces into which a bent curve is cut between two samples
AT_LEAST = 2

Points = tuple[tuple[int, int], ...]
Predict = Callable[[tuple[int, ...]], float]


class Errors(NamedTuple):
    """Of predictions at held-out points: median and 95th percentile of |error|, relative."""

    held_out: int
    median: float
    p95: float


class FittedCurve(NamedTuple):
    """A curve's points, how it was made, and its errors (None: nothing was held out)."""

    points: Points
    kind: str
    errors: Errors | None
    spread_permille: int


def fit_curve(samples: Sequence[Sample]) -> FittedCurve:
    """The curve through samples with one coordinate, at least one of them of role "fit"."""
    kept = sorted((each.at[0], each.median_ns) for each in samples if each.role == "fit")
    xs, raw = [float(x) for x, _ in kept], [y for _, y in kept]
    ys = monotone([(x,) for x, _ in kept], raw)
    candidates: list[tuple[str, Points]] = [("straight", _points(xs, ys))]
    if len(xs) >= AT_LEAST:
        candidates.insert(0, ("affine", _affine(xs, raw)))
    if len(xs) > AT_LEAST:
        candidates.append(("bent", _bent(xs, ys)))
    checks = [each for each in samples if each.role == "check"]
    if not checks:
        # What one point is off when the others say it: the ends cannot be left out.
        kind, points = _by_leaving_out(xs, ys, candidates)
        return FittedCurve(points, kind, None, spread_permille(samples, None))
    judged = [(errors_of(_reading(points), checks), kind, points) for kind, points in candidates]
    errors, kind, points = min(judged, key=lambda each: each[0].median + each[0].p95)
    return FittedCurve(points, kind, errors, spread_permille(samples, errors))


def errors_of(predict: Predict, checks: Iterable[Sample]) -> Errors:
    """How far `predict(at)` is from the medians of held-out samples, at least one."""
    off = sorted(abs(predict(each.at) - each.median_ns) / each.median_ns for each in checks)
    return Errors(len(off), quantile(off, 0.5), quantile(off, 0.95))


def spread_permille(samples: Iterable[Sample], errors: Errors | None) -> int:
    """One standard deviation of a curve around what was measured, in thousandths.

    What the medians do not know (a quarter of the 95 % interval) and what the curve misses between
    them (a median |error| is 0.67 standard deviations), added as independent errors are.
    """
    widths = sorted(each.width_permille for each in samples)
    noise = quantile([float(each) for each in widths], 0.5) / 2 if widths else 0.0
    shape = 1000 * errors.median / 0.6745 if errors is not None else 0.0
    return max(1, min(1000, round((noise**2 + shape**2) ** 0.5)))


def report(key: str, series: Sequence[str], kind: str, errors: Errors | None, limit: float) -> Fit:
    """The fit in words. `limit`: of the median error, from which on it does not fit."""
    if errors is None:
        return Fit(
            key=key, series=tuple(series), kind=kind, limit_permille=round(1000 * limit),
            verdict="nothing was held out: how far it is off between samples is not known",
        )  # fmt: skip
    verdict = "fits"
    if errors.median > limit:
        verdict = (
            f"does not fit: held-out points are {100 * errors.median:.1f} % off in the median, "
            f"{100 * limit:.0f} % are allowed"
        )
    return Fit(
        key=key,
        series=tuple(series),
        kind=kind,
        held_out=errors.held_out,
        median_error_permille=round(1000 * errors.median),
        p95_error_permille=round(1000 * errors.p95),
        limit_permille=round(1000 * limit),
        verdict=verdict,
    )


def slope_through(xs: Sequence[float], ys: Sequence[float]) -> tuple[float, float]:
    """(fixed, slope), both >= 0, of the line with the least squared relative error.

    `ys` are above 0. Where the free solution has a negative term that term is 0.
    """
    weights = [1 / y**2 for y in ys]
    total = sum(weights)
    mean_x = sum(w * x for w, x in zip(weights, xs, strict=True)) / total
    mean_y = sum(w * y for w, y in zip(weights, ys, strict=True)) / total
    over = sum(w * (x - mean_x) ** 2 for w, x in zip(weights, xs, strict=True))
    with_y = sum(w * (x - mean_x) * (y - mean_y) for w, x, y in zip(weights, xs, ys, strict=True))
    slope = with_y / over if over else 0.0
    if slope <= 0:
        return mean_y, 0.0
    fixed = mean_y - slope * mean_x
    if fixed >= 0:
        return fixed, slope
    squares = sum(w * x * x for w, x in zip(weights, xs, strict=True))
    return 0.0, sum(w * x * y for w, x, y in zip(weights, xs, ys, strict=True)) / squares


def _affine(xs: Sequence[float], ys: Sequence[float]) -> Points:
    fixed, slope = slope_through(xs, ys)
    return _points([xs[0], xs[-1]], [fixed + slope * xs[0], fixed + slope * xs[-1]])


def _bent(xs: Sequence[float], ys: Sequence[float]) -> Points:
    """Monotone cubic: slopes as Fritsch and Carlson limit them, so that nothing goes down."""
    widths = [b - a for a, b in zip(xs, xs[1:])]  # noqa: B905, RUF007
    secants = [(d - c) / w for c, d, w in zip(ys, ys[1:], widths)]  # noqa: B905
    slopes = [secants[0]]
    for left, right, before, after in zip(secants, secants[1:], widths, widths[1:]):  # noqa: B905
        if left <= 0 or right <= 0:
            slopes.append(0.0)
        else:  # the weighted harmonic mean of both sides
            one, other = 2 * after + before, after + 2 * before
            slopes.append((one + other) / (one / left + other / right))
    slopes.append(secants[-1])
    made: list[tuple[float, float]] = []
    for place, width in enumerate(widths):
        for cut in range(BETWEEN):
            t = cut / BETWEEN
            y = (
                (1 + 2 * t) * (1 - t) ** 2 * ys[place]
                + t * (1 - t) ** 2 * width * slopes[place]
                + t**2 * (3 - 2 * t) * ys[place + 1]
                + t**2 * (t - 1) * width * slopes[place + 1]
            )
            made.append((xs[place] + t * width, y))
    made.append((xs[-1], ys[-1]))
    return _points([x for x, _ in made], [y for _, y in made])


def _by_leaving_out(
    xs: list[float], ys: list[float], candidates: list[tuple[str, Points]]
) -> tuple[str, Points]:
    """Affine where a line through all is within 3 % everywhere, else straight lines."""
    by_kind = dict(candidates)
    if "affine" in by_kind:
        line = _reading(by_kind["affine"])
        if all(abs(line((round(x),)) - y) <= 0.03 * y for x, y in zip(xs, ys, strict=True)):
            return "affine", by_kind["affine"]
    return "straight", by_kind["straight"]


def _reading(points: Points) -> Predict:
    """What the simulator reads from a curve of these points."""
    through = Line([x for x, _ in points], [y for _, y in points])
    return lambda at: through.at(at[0])


def _points(xs: Sequence[float], ys: Sequence[float]) -> Points:
    """Whole numbers, one for each x."""
    made: dict[int, int] = {}
    for x, y in zip(xs, ys, strict=True):
        made[round(x)] = max(0, round(y))
    return tuple(sorted(made.items()))
