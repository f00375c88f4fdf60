"""Arrivals: the whole bookkeeping of a transfer, as a `with` block around its await.

    ABSENT -> ARRIVING -> PUBLISHED     the body of the `with` ended
                       -> ABSENT        it raised: rolled back

While the body runs, the source's and the target's path are pinned, and the pages are marked.
Whatever happens inside, the pins are undone and the pages are either the tree's or free (or the
caller's again). Nothing here waits by itself.
"""

from __future__ import annotations

from collections.abc import Callable
from types import TracebackType
from typing import TYPE_CHECKING

from hicache.allocator import deal_out, join
from hicache.kernel import Signal
from hicache.node import Node
from hicache.operations import PageRuns

if TYPE_CHECKING:
    from hicache.tree import HiRadixTree


class Arrival:
    """Pages `first` .. `node.end` of the path ending at `node`, on their way from `source` to
    `target`.

    `after` is the arrival that brings the page before `first`, if it is under way too; the body
    must not end before that one is over, and must raise if it failed: publishing behind a hole is
    forbidden. The body takes the pages with `reserve`, or brings its own (`pages`), which are the
    caller's again if it fails. `published` is None while under way.
    """

    __slots__ = (
        "_owned", "_settled", "after", "count", "first", "node", "pages", "published", "source",
        "target", "tree",
    )  # fmt: skip

    def __init__(
        self,
        tree: HiRadixTree,
        node: Node,
        source: int,
        target: int,
        first: int,
        after: Arrival | None = None,
    ) -> None:
        self.tree = tree
        self.node = node
        self.source = source
        self.target = target
        self.first = first
        self.count = node.depth + node.length - first
        self.after = after
        self.pages: PageRuns = ()
        self.published: bool | None = None
        self._settled: Signal[None] | None = None
        self._owned = False  # whether `pages` are to be freed if it fails

    def reserve(self) -> bool:
        """Take the pages from the target tier, evicting for them; False if they cannot be had.

        To be called in the body, before anything is awaited: the target's path is pinned by then,
        so that its head does not leave for its tail.
        """
        pages = self.tree.take(self.target, self.count)
        if pages is None:
            return False
        self.pages, self._owned = pages, True
        return True

    def settled(self, make: Callable[[], Signal[None]]) -> Signal[None]:
        """The signal that fires when this arrival is over; `make` builds one in the right
        environment.
        """
        assert self.published is None
        if self._settled is None:
            self._settled = make()
        return self._settled

    def __enter__(self) -> Arrival:
        tree, node, target, first = self.tree, self.node, self.target, self.first
        tree.pin(node, self.source)
        tree.pin(node, target)
        current: Node = node
        while current.parent is not None and current.depth + current.length > first:
            assert current.arrival[target] is None, f"{current} is arriving in tier {target}"
            current.arrival[target] = self
            current = current.parent
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        tree, node = self.tree, self.node
        if kind is None:
            self._publish()
        else:
            self._roll_back()
        self.published = kind is None
        tree.unpin(node, self.target)
        tree.unpin(node, self.source)
        if self._settled is not None:
            self._settled.succeed()

    def _publish(self) -> None:
        assert self.after is None or self.after.published, "published before the pages in front"
        tree, tier, first = self.tree, self.target, self.first
        owner = tree.tiers[tier]
        pages = self.pages
        lacks: list[int] = []  # of named pages: how many each node gets, from the end upwards
        holders: list[Node] = []
        left = self.count
        current: Node = self.node
        while left:
            resident = current.resident
            held = resident[tier]
            assert current.arrival[tier] is self
            assert not held or current.depth + held == first, current
            current.arrival[tier] = None
            count = current.length - held
            left -= count
            if pages:
                lacks.append(count)
                holders.append(current)
            resident[tier] = current.length
            parent = current.parent
            assert parent is not None
            if not held:
                kids = parent.kids
                kids[tier] = kids[tier] + 1
            if owner.notes:  # whoever had it loaded into L1 will count its hit
                owner.arrived(current, count, 0 if tier else 1)
            current = parent
        assert left == 0
        if pages:
            lacks.reverse()
            for mine in deal_out(pages, lacks):
                current = holders.pop()
                current.pages[tier] = join(current.pages[tier], mine)
        # The path is pinned, so none of it counts as evictable.
        owner.resident += self.count

    def _roll_back(self) -> None:
        tier, first = self.target, self.first
        current: Node = self.node
        while current.parent is not None and current.depth + current.length > first:
            assert current.arrival[tier] is self
            current.arrival[tier] = None
            current = current.parent
        if self._owned:
            self.tree.give(tier, self.pages, self.count)
