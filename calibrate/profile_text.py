"""A profile in words for a terminal: what it says, and in what two of them differ."""

from __future__ import annotations

from collections.abc import Iterator

from calibrate.sampling import remarks
from scenario.measurement import Measurement
from scenario.profile import Curve, Profile, Quantity, SampledModel, Sourced, Surface, sourced
from scenario.sizes import bytes_text

# From which relative difference on two values are told apart.
SAME = 0.005


def show_lines(profile: Profile) -> Iterator[str]:
    """The whole profile, a line for each value."""
    yield f"{profile.name}: {profile.machine}"
    yield f"{profile.software}; {profile.date}; {profile.source}"
    measurement = profile.measurement
    if measurement is not None:
        yield f"measured in {measurement.duration_s} s from {measurement.began}, by"
        yield f"  {measurement.command}"
        for name, fact in measurement.facts.items():
            yield f"  {name}: {fact}"
    yield ""
    rows = [
        (key, value.provenance, value_text(key, value), _spread(value))
        for key, value in sourced(profile)
    ]
    yield from _table([("key", "known by", "value", "spread"), *rows])
    if measurement is not None:
        yield ""
        yield from fit_lines(measurement)
        for note, where in notes(measurement):
            yield f"{where}: {note}"
        for missing in measurement.missing:
            yield f"not measured: {missing}"


def fit_lines(measurement: Measurement) -> Iterator[str]:
    """How each curve was made, and how far it is from what was held out."""
    rows = [("fit", "kind", "held out", "median", "p95", "verdict")]
    for fit in measurement.fits:
        rows.append(
            (
                fit.key,
                fit.kind,
                str(fit.held_out),
                percent_text(fit.median_error_permille),
                percent_text(fit.p95_error_permille),
                fit.verdict,
            )
        )
    yield from _table(rows)
    points = sum(len(series.samples) for series in measurement.series)
    samples = sum(len(each.ns) for series in measurement.series for each in series.samples)
    yield f"{len(measurement.series)} series, {points} points, {samples} samples"


def notes(measurement: Measurement) -> list[tuple[str, str]]:
    """What is to be said of samples, and of which: rejected ones, ones of another day.

    How wide an interval is does not count: every fit's spread has it in it.
    """
    found: dict[str, dict[str, list[str]]] = {}
    for series in measurement.series:
        for sample in series.samples:
            for note in remarks(sample.note):
                at = "x".join(map(str, sample.at))
                found.setdefault(note, {}).setdefault(series.key, []).append(at)
    return [
        (note, ", ".join(" ".join(filter(None, (key, *at))) for key, at in of.items()))
        for note, of in found.items()
    ]


def diff_lines(one: Profile, other: Profile) -> Iterator[str]:
    """What `other` says otherwise than `one`; where nothing differs, that."""
    first, second = dict(sourced(one)), dict(sourced(other))
    rows = [("key", one.name, other.name, "change")]
    same = 0
    for key in [*first, *(key for key in second if key not in first)]:
        before, after = first.get(key), second.get(key)
        if before is None or after is None:
            rows.append((key, _text(key, before), _text(key, after), ""))
            continue
        change = _change(before, after)
        if change is None:
            same += 1
        else:
            rows.append((key, value_text(key, before), value_text(key, after), change))
    if len(rows) == 1:
        yield f"{one.name} and {other.name} say the same ({same} values)"
        return
    yield from _table(rows)
    yield f"the same, within {100 * SAME:.1f} %: {same} values"


def value_text(key: str, value: Sourced) -> str:
    """A value in a few words."""
    if isinstance(value, Quantity):
        return _number(key, value.value)
    if isinstance(value, Curve | Surface):
        xs = [point[0] for point in value.points]
        ys = [point[-1] for point in value.points]
        return (
            f"{len(ys)} points over {min(xs):,}..{max(xs):,}: "
            f"{_number(key, min(ys))} .. {_number(key, max(ys))}"
        )
    if isinstance(value, SampledModel):
        return value.name
    return ""


def _text(key: str, value: Sourced | None) -> str:
    return "-" if value is None else value_text(key, value)


def _change(before: Sourced, after: Sourced) -> str | None:
    """How `after` differs; None if it does not."""
    if isinstance(before, Quantity) and isinstance(after, Quantity):
        return _ratio([(float(before.value), float(after.value))])
    if isinstance(before, Curve) and isinstance(after, Curve):
        from sim.curves import line

        one, other = line(before.points), line(after.points)
        low = max(before.points[0][0], after.points[0][0])
        high = min(before.points[-1][0], after.points[-1][0])
        xs = {x for x, _ in (*before.points, *after.points) if low <= x <= high}
        return _ratio([(one.at(x), other.at(x)) for x in sorted(xs)]) if xs else "elsewhere"
    if isinstance(before, Surface) and isinstance(after, Surface):
        old = {(a, b): ns for a, b, ns in before.points}
        new = {(a, b): ns for a, b, ns in after.points}
        pairs = [(float(old[at]), float(new[at])) for at in old if at in new]
        if not pairs:
            return "other points"
        more = f", {len(pairs)} points in both" if len(pairs) < max(len(old), len(new)) else ""
        ratio = _ratio(pairs)
        return None if ratio is None and not more else f"{ratio or 'the same'}{more}"
    if isinstance(before, SampledModel) and isinstance(after, SampledModel):
        return None if before.name == after.name else "another model"
    return "of another kind"


def _ratio(pairs: list[tuple[float, float]]) -> str | None:
    """The range of new / old, in percent; None where all are the same."""
    ratios = sorted(new / old for old, new in pairs if old > 0)
    if not ratios:
        return None if all(old == new for old, new in pairs) else "from 0"
    if ratios[0] > 1 - SAME and ratios[-1] < 1 + SAME:
        return None
    low, high = (100 * (each - 1) for each in (ratios[0], ratios[-1]))
    return f"{low:+.1f} %" if high - low < 0.1 else f"{low:+.1f} .. {high:+.1f} %"


def _number(key: str, value: int) -> str:
    if key.endswith("bytes_per_s"):
        return f"{bytes_text(value)}/s"
    if key.endswith("_bytes"):
        return bytes_text(value)
    counted = key.endswith(("steps_ahead", "at_once"))
    timed = key.endswith(("_ns", "_overhead", "gather_scatter"))
    if timed or (key.startswith(("gpu.", "pcie.")) and not counted):
        return _time(value)
    return f"{value:,}"


def _time(ns: int) -> str:
    for unit, name in ((10**9, "s"), (10**6, "ms"), (10**3, "us")):
        if ns >= unit:
            return f"{ns / unit:.4g} {name}"
    return f"{ns} ns"


def _spread(value: Sourced) -> str:
    spread = getattr(value, "spread_permille", 0)
    return f"{spread / 10:.1f} %" if spread else "-"


def percent_text(value: int | None) -> str:
    """Thousandths as percent; "-" where nothing is known."""
    return "-" if value is None else f"{value / 10:.1f} %"


def _table(rows: list[tuple[str, ...]]) -> Iterator[str]:
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    for row in rows:
        yield "  ".join(text.ljust(width) for text, width in zip(row, widths, strict=True)).rstrip()
