"""Write back: what L1 evicts is copied to L2 first, and its pages are free when that has ended.

    evict           victims leave the tree's L1, their pages stay taken       LEAVING
    reserve         L2 pages for what L2 lacks of each victim's path          ARRIVING in L2
    copy            all of one eviction as one operation (the caller's part)
    arrived, end    published in L2; the L1 pages are free

L2 holds leading parts of paths, so a victim brings along what L2 lacks in front of it, which may
stay in L1: in SGLang the victim goes alone, and what is below a part that is lost later is lost
with it. A victim for which L2 has no room, or whose copy fails, is lost and counted.

Waits for nothing and submits nothing: the timed engine does that between `Departure` and `end`, the
untimed one has nothing to wait for.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, final

from hicache.allocator import cut, join
from hicache.arrival import Arrival
from hicache.errors import TransferError
from hicache.metrics import Metrics
from hicache.node import DEVICE, HOST, Node, Victim
from hicache.operations import PageRuns

if TYPE_CHECKING:
    from hicache.tree import HiRadixTree


@final
class Departure:
    """One eviction of L1 with what has to be copied for it: `pages` pages, `source` to `target`.

    `arrivals` are the parts that L2 gets, in the order in which they must be `close`d; then comes
    `end`. With `pages` 0 there is nothing to copy, and `end` may come at once.
    """

    __slots__ = (
        "_metrics", "_refused", "_sources", "_tree", "arrivals", "pages", "source", "target",
        "victims",
    )  # fmt: skip

    def __init__(self, tree: HiRadixTree, metrics: Metrics, count: int, load: int = 0) -> None:
        """Evict for `count` free pages of L1, or as far as anything can leave; `load` of them are
        for pages of L2.
        """
        self._tree = tree
        self._metrics = metrics
        self._sources: list[Node] = []  # pinned in L1: what is copied along and does not leave
        self.arrivals: list[Arrival] = []
        self.pages = 0
        self.source: PageRuns = ()
        self.target: PageRuns = ()
        self.victims: list[Victim] = tree.evict_leaving(count, load)
        self._refused: Node | None = None  # the last one for which L2 had no room
        leaving: dict[Node, PageRuns] = {}  # looked up, never walked
        for victim in self.victims:
            node, end = victim.node, victim.first + victim.count
            tree.pin(node, HOST)  # it stays in the tree, and so does the head of its path
            if end < node.end:  # the rest had left before
                victim.node = tree.cut_at(node, end)
                tree.pin(victim.node, HOST)
                tree.unpin(node, HOST)
            leaving[victim.node] = victim.pages
        for victim in self.victims:
            self._reserve(victim, leaving)

    def _reserve(self, victim: Victim, leaving: dict[Node, PageRuns]) -> None:
        tree, node = self._tree, victim.node
        first, after = tree.covered(node, HOST)
        if first >= node.end:
            return  # it is copied with one that left before it
        refused = self._refused
        if refused is not None and refused.joined and refused.parent is node:
            self._refuse(victim)
            return
        arrival = Arrival(tree, node, HOST, HOST, first, after)
        arrival.__enter__()
        if not arrival.reserve():
            arrival.__exit__(TransferError, None, None)
            self._refuse(victim)
            return
        self.arrivals.append(arrival)
        self.pages += arrival.count
        if tree.named:
            self.source = join(self.source, _source(node, first, leaving))
            self.target = join(self.target, arrival.pages)
        stays = node
        while stays.parent is not None and not stays.resident[DEVICE]:
            stays = stays.parent
        tree.pin(stays, DEVICE)
        self._sources.append(stays)

    def _refuse(self, victim: Victim) -> None:
        victim.reason = "host_pressure"
        self._refused = victim.node

    def close(self, arrival: Arrival, error: BaseException | None = None) -> None:
        """The copy of this part has ended, well or with `error`."""
        if error is None:
            arrival.__exit__(None, None, None)
        else:
            arrival.__exit__(type(error), error, None)

    def end(self) -> None:
        """All is closed: the pages that left L1 are free."""
        tree, metrics = self._tree, self._metrics
        for node in self._sources:
            tree.unpin(node, DEVICE)
        for victim in self.victims:
            node = victim.node
            if node.resident[HOST] < node.length and node.arrival[HOST] is None:
                metrics.dropped_pages[victim.reason] += victim.count
            tree.unpin(node, HOST)
        tree.leave(self.victims)


def _source(node: Node, first: int, leaving: dict[Node, PageRuns]) -> PageRuns:
    """L1 pages `first` .. `node.end` of the path ending at `node`: those of the tree, and those
    that are leaving.
    """
    parts: list[PageRuns] = []
    current = node
    while current.parent is not None and current.end > first:
        pages = join(current.pages[DEVICE], leaving.get(current, ()))
        parts.append(cut(pages, first - current.depth)[1] if first > current.depth else pages)
        current = current.parent
    runs: PageRuns = ()
    for pages in reversed(parts):
        runs = join(runs, pages)
    return runs
