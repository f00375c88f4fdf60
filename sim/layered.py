"""When a prefill ends that computes each layer as soon as the layer's pages have come.

    link    |-- 0 --|-- 1 --|-- 2 --|-- 3 --|                a load of 4 layers
    GPU             |0|     |1|     |2|     |3|              computing is faster than it ...
    GPU             |-- 0 -----|-- 1 -----|-- 2 -----|-- 3 -----|           ... or slower

With L layers of equal compute time c / L, a step that begins at s, and a_i the time at which layer
i (from 0) is there, layer i cannot begin before a_i, and L - i layers are left to compute then:

    end = max(s + c, max over i of a_i + (L - i) * c / L)

Bytes come at the link's own speed, which changes when the other direction begins or ends: the load
keeps the corners of that curve. Where a back-end loads layers in groups, a layer comes with the
last one of its group. What the load takes of the GPU itself is left out.
"""

from __future__ import annotations

from typing import final

# How `hw.transfers.staged` loads: a group has pieces of so many bytes of each page, where that
# makes at least so many groups.
GROUP_BYTES, STAGED_GROUPS = 64 << 10, 12


def staged_groups(layers: int, page_bytes: int) -> int:
    """In how many groups the layers of such pages come."""
    most = -(-layers // min(STAGED_GROUPS, layers))
    size = min(most, -(-GROUP_BYTES * layers // max(page_bytes, 1)))
    return -(-layers // size)


@final
class Trail:
    """How one load came: (time, work left) wherever its speed changed, the first where somebody
    began to look. `whole` is all of its work, in the unit of what is left.
    """

    __slots__ = ("_left", "_times", "whole")

    def __init__(self, whole: int) -> None:
        self.whole = whole
        self._times: list[int] = []
        self._left: list[int] = []

    def mark(self, now_ns: int, left: int) -> None:
        """At `now_ns` so much is left."""
        self._times.append(now_ns)
        self._left.append(left)

    def end_ns(self, start_ns: int, compute_ns: int, layers: int, groups: int) -> int:
        """The end of a step of `layers` layers that began at `start_ns` and takes `compute_ns`
        without waiting; layers come in at most `groups` groups.
        """
        size = -(-layers // min(groups, layers))
        end_ns = start_ns + compute_ns
        place = 0  # of the corner behind which the layer came
        for layer in range(0, layers, size):  # of each group its first layer waits longest
            there = min(layer + size, layers)
            left = self.whole * (layers - there) // layers
            while place + 1 < len(self._left) and self._left[place + 1] > left:
                place += 1
            came_ns = self._came_ns(place, left)
            end_ns = max(end_ns, came_ns - (-(layers - layer) * compute_ns // layers))
        return end_ns

    def _came_ns(self, place: int, left: int) -> int:
        """When no more than `left` was left: between corner `place` and the next."""
        if self._left[place] <= left or place + 1 == len(self._left):
            return self._times[place]
        before, after = self._left[place], self._left[place + 1]
        took_ns = self._times[place + 1] - self._times[place]
        return self._times[place] - (-(before - left) * took_ns // (before - after))
