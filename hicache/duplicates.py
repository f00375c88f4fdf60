"""Which copies in L2 are copies of what L1 holds, oldest first: what `l2_victims =
"duplicates_first"` gives up before anything else.

A node is a duplicate from the moment both tiers hold it (written, loaded back, or computed again
over its copy) until one of them does not. As everywhere a leaf of L2 goes before what it hangs on,
so that L2 stays closed under prefixes; SGLang may free the middle of a path. Those that are about
to leave L1 themselves (leaves of L1 without a pin) are spared until nothing else is left.

Refuses to move pages: `hicache.tier` takes the nodes and lets their pages go.
"""

from __future__ import annotations

from heapq import heappop, heappush
from typing import Final, final

from hicache.node import DEVICE, HOST, Node

_STANDS: Final = 8  # bit of `Node.offered`: the node stands in this queue


@final
class Duplicates:
    """The duplicates of one tree."""

    __slots__ = ("_heap", "_order", "_since")

    def __init__(self) -> None:
        self._since: dict[Node, int] = {}  # looked up, never walked
        self._heap: list[tuple[int, int, Node]] = []
        self._order = 0

    def register(self, node: Node) -> None:
        """L1 holds all that L2 holds of `node`."""
        if node not in self._since:
            self._order += 1
            self._since[node] = self._order
        self.offer(node)

    def forget(self, node: Node) -> None:
        """One of the tiers does not hold `node` any more, or not as much as it did."""
        self._since.pop(node, None)

    def split(self, upper: Node, lower: Node) -> None:
        """`lower` was cut, and `upper` is its first part: as old as the whole, and maybe a
        duplicate where the whole was none.
        """
        since = self._since.get(lower)
        for half in (upper, lower):
            if not is_double(half):
                self.forget(half)
            elif since is None:
                self.register(half)
            else:
                self._since[half] = since

    def holds(self, node: Node) -> bool:
        """Whether `node` is a duplicate."""
        return node in self._since

    def offer(self, node: Node) -> None:
        """`node` may be a leaf of L2 without a pin."""
        since = self._since.get(node)
        if since is None or node.offered & _STANDS or node.kids[HOST] or node.pins[HOST]:
            return
        node.offered |= _STANDS
        self._order += 1
        heappush(self._heap, (since, self._order, node))

    def next(self, spared: list[Node]) -> Node | None:
        """The oldest that L1 is to keep; those in front of it that L1 is about to give up are
        added to `spared`.
        """
        heap = self._heap
        while heap:
            since, _, node = heappop(heap)
            node.offered &= ~_STANDS
            if self._since.get(node) != since:
                self.offer(node)  # it has become one again since it was put here
                continue
            if node.kids[HOST] or node.pins[HOST]:
                continue
            if node.kids[DEVICE] or node.pins[DEVICE]:
                return node
            spared.append(node)
        return None


def is_double(node: Node) -> bool:
    """Whether L1 holds all that L2 holds of `node`."""
    return 0 < node.resident[HOST] <= node.resident[DEVICE]
