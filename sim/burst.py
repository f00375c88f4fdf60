"""When each step of a decode burst ends, in closed form: cheap for one step, cheap for all of them.

A step's time is a straight line over the requests' mean context, which grows by one token a step;
over a few pieces of that line the end of step k is a quadratic of k. All in integers, in 1/1024 ns,
so that the list and the single answers agree exactly.

    pieces   (steps before it, time before it, time of its first step, what each further step adds)
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate, repeat
from math import sqrt

SHIFT = 10

Piece = tuple[int, int, int, int]


class Burst:
    """The ends of up to `steps` decode steps, in ns from the start. Steps are counted from 1."""

    __slots__ = ("_pieces", "steps")

    def __init__(self, pieces: Sequence[Piece], steps: int) -> None:
        self._pieces = pieces
        self.steps = steps

    def end_ns(self, step: int) -> int:
        """When step `step` ends."""
        number = len(self._pieces) - 1
        while number and step <= self._pieces[number][0]:
            number -= 1
        before, base, first, more = self._pieces[number]
        done = step - before
        return (base + done * first + (done * (done - 1) >> 1) * more) >> SHIFT

    def step_at(self, elapsed_ns: int) -> int:
        """The first step that ends at `elapsed_ns` or later; the last one if none does."""
        number = len(self._pieces) - 1
        while number and self._pieces[number][1] >> SHIFT >= elapsed_ns:
            number -= 1
        before, base, first, more = self._pieces[number]
        if elapsed_ns <= 0:
            return 1
        # end(k) is a quadratic of k; the guess from its root is off by rounding at most.
        rest, half = float((elapsed_ns << SHIFT) - base), more / 2
        slope = first - half
        root = (sqrt(slope * slope + 4 * half * rest) - slope) / more if more else rest / first
        step = min(max(before + int(root), 1), self.steps)
        while step < self.steps and self.end_ns(step) < elapsed_ns:
            step += 1
        while step > 1 and self.end_ns(step - 1) >= elapsed_ns:
            step -= 1
        return step

    def ends_ns(self, steps: int, start_ns: int) -> tuple[int, ...]:
        """When each of the first `steps` steps ends, for a burst that starts at `start_ns`."""
        ends: list[int] = []
        for number, (before, base, first, more) in enumerate(self._pieces):
            if before >= steps:
                break
            after = self._pieces[number + 1][0] if number + 1 < len(self._pieces) else steps
            count = min(after, steps) - before
            costs = range(first, first + count * more, more) if more else repeat(first, count)
            sums = accumulate(costs, initial=base)
            next(sums)
            ends += [start_ns + (end >> SHIFT) for end in sums]
        return tuple(ends)
