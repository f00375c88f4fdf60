"""Samples made into functions: straight lines between them, and the repair of those that go down.

Measured times carry noise, so that a larger size sometimes took less. `monotone` removes exactly
that: samples that never go down are left as they are, so the function equals the profile there.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from functools import lru_cache


class Line:
    """Piecewise linear through `(x, y)` samples, x strictly increasing.

    Beyond either end the nearest piece goes on, but never below 0; one sample is a constant. Call
    it with an x.
    """

    __slots__ = ("_inner", "slopes", "xs", "ys")

    def __init__(self, xs: Sequence[float], ys: Sequence[float]) -> None:
        assert len(xs) == len(ys) >= 1
        self.xs = tuple(xs)
        self.ys = tuple(ys)
        slopes = [
            (ys[i + 1] - ys[i]) / (xs[i + 1] - xs[i]) for i in range(len(xs) - 1)
        ] or [0.0]  # fmt: skip
        self.slopes = tuple(slopes)
        self._inner = self.xs[1:-1]

    def same_as(self, other: Line) -> bool:
        """Whether the other goes through the same samples."""
        return self.xs == other.xs and self.ys == other.ys

    def __call__(self, x: float) -> float:
        return self.at(x)

    def at(self, x: float) -> float:
        """The line's value at `x`."""
        piece = bisect_right(self._inner, x)
        y = self.ys[piece] + (x - self.xs[piece]) * self.slopes[piece]
        return y if y > 0.0 else 0.0


def line(points: Sequence[tuple[int, float]]) -> Line:
    """The monotone line through a curve's samples."""
    heights = monotone([(x,) for x, _ in points], [y for _, y in points])
    return Line([x for x, _ in points], heights)


def monotone(places: Sequence[tuple[int, ...]], heights: Sequence[float]) -> list[float]:
    """`heights` changed so that they never go down where `places` goes up in some coordinates.

    Each becomes the middle of the highest sample at or below its place and the lowest at or above
    it. Both of these are monotone, so their middle is; and where nothing was out of order both are
    the sample.
    """
    return list(_repaired(tuple(places), tuple(heights)))


# Every run of one process asks for the same few, and it takes a tenth of a second: as long as a
# short replay.
@lru_cache(maxsize=64)
def _repaired(places: tuple[tuple[int, ...], ...], heights: tuple[float, ...]) -> list[float]:
    def below(one: tuple[int, ...], other: tuple[int, ...]) -> bool:
        return all(a <= b for a, b in zip(one, other, strict=True))

    repaired: list[float] = []
    for place, height in zip(places, heights, strict=True):
        pairs = zip(places, heights, strict=True)
        highest, lowest = height, height
        for other, its_height in pairs:
            if below(other, place):
                highest = max(highest, its_height)
            elif below(place, other):
                lowest = min(lowest, its_height)
        repaired.append(height if highest == lowest else (highest + lowest) / 2)
    return repaired
