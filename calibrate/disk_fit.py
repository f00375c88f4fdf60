"""The disk's latency and rates, fitted together from whole operations of L3.

    an operation of E pieces of B bytes takes   latency + E * alone(B)            (sim.disk)

Operations of pages that lie apart have one B and several E: a line, whose fixed term is the latency
and whose slope is what a page takes. One piece of more bytes gives alone(B) for the other sizes.
With n operations at once, all of them together take latency + n * alone(B) / gain(n). Reads and
writes at once: the parts of their own speed that both keep add up to what the device still does.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from calibrate.fits import Errors, errors_of, slope_through, spread_permille
from scenario.measurement import Sample
from scenario.profile import Surface
from sim.disk import BlockTimes

NS = 1e9


class WayFit(NamedTuple):
    """One direction: points [block bytes, at once, bytes/s], the latency, and the errors."""

    points: tuple[tuple[int, int, int], ...]
    latency_ns: int
    errors: Errors | None
    spread_permille: int


def fit_way(samples: Sequence[Sample]) -> WayFit | None:
    """Samples at (bytes, extents, at once); None where too few were measured."""
    fits = {each.at: each.median_ns for each in samples if each.role == "fit"}
    alone = {at: ns for at, ns in fits.items() if at[2] == 1}
    if not alone:
        return None
    page = min(size // pieces for size, pieces, _ in alone)
    apart = sorted((pieces, ns) for (size, pieces, _), ns in alone.items() if size == pieces * page)
    if len(apart) >= 2:
        latency, each = slope_through([float(e) for e, _ in apart], [ns for _, ns in apart])
    else:
        latency, each = 0.0, min(alone.values())
    # One piece cannot take less than its bytes at any speed: the latency gives way.
    singles = {size: ns for (size, pieces, _), ns in alone.items() if pieces == 1}
    if singles:
        latency = min(latency, 0.9 * min(singles.values()))
    blocks = {page: max(1.0, each)}
    for size, ns in sorted(singles.items()):
        if size > page:
            blocks[size] = max(1.0, ns - latency)
    points = [(block, 1, max(1, round(block * NS / ns))) for block, ns in blocks.items()]
    for (size, pieces, at_once), ns in sorted(fits.items()):
        if at_once > 1 and pieces == 1:
            rate = size * at_once * NS / max(1.0, ns - latency)
            points.append((size, at_once, max(1, round(rate))))
    surface = tuple(sorted(points))
    checks = [each for each in samples if each.role == "check" and each.at[2] == 1]
    errors = errors_of(_predictor(surface, latency), checks) if checks else None
    return WayFit(surface, round(latency), errors, spread_permille(samples, errors))


def mixed_permille(
    alone: dict[str, float], together: dict[str, float], gains: dict[str, float]
) -> int:
    """Thousandths of its work that the device does while it reads and writes.

    Times of one operation by direction, alone and while the other direction goes on; what two
    operations of a direction gain by being two. At most 1000: the simulator knows no more. Who gets
    how much of it says `read_share_permille`.
    """
    kept = sum(alone[way] / together[way] for way in alone)
    gain = sum(gains.values()) / len(gains)
    return max(1, min(1000, round(1000 * kept / gain)))


def read_share_permille(alone: dict[str, float], together: dict[str, float]) -> int:
    """What a read gets of the work that the device does while it reads and writes, in thousandths.

    Of each what it keeps of its own speed, as in `mixed_permille`; a disk may favour either.
    """
    kept = {way: alone[way] / together[way] for way in alone}
    return max(1, min(999, round(1000 * kept["read"] / (kept["read"] + kept["write"]))))


def first_write_permille(samples: Sequence[Sample], again: WayFit) -> int | None:
    """What first writes of slots keep of the speed of writing them again, in thousandths: over
    sizes that both were timed at, the middle one. None: nothing was timed. At most 1000.
    """
    predict = _predictor(again.points, again.latency_ns)
    kept = sorted(predict(each.at) / each.median_ns for each in samples)
    return max(1, min(1000, round(1000 * kept[len(kept) // 2]))) if kept else None


def _predictor(surface: tuple[tuple[int, int, int], ...], latency: float):
    """What the simulator says that an operation takes."""
    times = BlockTimes(Surface(provenance="measured", how="samples", points=surface))

    def predict(at: tuple[int, ...]) -> float:
        size, pieces, _ = at
        return latency + pieces * times.alone_ns(size / pieces)

    return predict
