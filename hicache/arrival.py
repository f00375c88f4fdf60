"""Pins and arrivals around an await: what a transfer needs to stay, and what it is about to bring.

    ABSENT -> ARRIVING -> PUBLISHED     the body of the `with` ended
                       -> ABSENT        it raised: rolled back

A `with` block around the await is the whole bookkeeping of a transfer: whatever happens inside,
pins are undone and pages are either the tree's or free. Nothing here waits by itself.
"""

from __future__ import annotations

from collections.abc import Callable
from types import TracebackType
from typing import TYPE_CHECKING

from hicache.allocator import cut, join
from hicache.kernel import Signal
from hicache.node import Node
from hicache.operations import PageRuns

if TYPE_CHECKING:
    from hicache.tree import HiRadixTree


class Pinned:
    """`with Pinned(tree, node, tier):` the path ending at `node` stays in `tier` for as long."""

    __slots__ = ("_node", "_tier", "_tree")

    def __init__(self, tree: HiRadixTree, node: Node, tier: int) -> None:
        self._tree, self._node, self._tier = tree, node, tier

    def __enter__(self) -> None:
        self._tree.pin(self._node, self._tier)

    def __exit__(self, *_: object) -> None:
        self._tree.unpin(self._node, self._tier)


class Arrival:
    """Pages on their way into a tier: ARRIVING while the `with` body runs, then PUBLISHED, or
    ABSENT again.

    `after` is the arrival that brings the page before `first`; `predecessor` must be awaited before
    the body ends, since publishing pages behind a hole is forbidden. `settled` fires when it is
    decided either way. `pages` is the caller's until the body ends well; after a failure they have
    been freed, unless the caller took them back with `keep_pages`.
    """

    __slots__ = (
        "_keeps",
        "_settled",
        "after",
        "first",
        "node",
        "pages",
        "published",
        "tier",
        "tree",
    )

    def __init__(
        self,
        tree: HiRadixTree,
        node: Node,
        tier: int,
        first: int,
        pages: PageRuns,
        after: Arrival | None = None,
    ) -> None:
        self.tree = tree
        self.node = node
        self.tier = tier
        self.first = first
        self.pages = pages
        self.after = after
        self.published: bool | None = None  # None while under way
        self._settled: Signal[None] | None = None
        self._keeps = False

    @property
    def count(self) -> int:
        """How many pages arrive."""
        return self.node.end - self.first

    def settled(self, make: Callable[[], Signal[None]]) -> Signal[None]:
        """The signal that fires when this arrival is over; `make` builds one in the right
        environment.
        """
        assert self.published is None
        if self._settled is None:
            self._settled = make()
        return self._settled

    def keep_pages(self) -> None:
        """If the arrival fails, leave its pages to the caller instead of freeing them."""
        self._keeps = True

    def __enter__(self) -> Arrival:
        tier, node, first = self.tier, self.node, self.first
        assert node.pins[tier], "an arrival needs a pinned path"
        current: Node = node
        while current.parent is not None and current.depth + current.length > first:
            assert current.arrival[tier] is None, f"{current} is arriving in tier {tier} already"
            current.arrival[tier] = self
            current = current.parent
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if kind is None:
            self._publish()
        else:
            self._roll_back()
        self.published = kind is None
        if self._settled is not None:
            self._settled.succeed()

    def _publish(self) -> None:
        assert self.after is None or self.after.published, (
            "published before the pages in front of it"
        )
        tree, tier, first = self.tree, self.tier, self.first
        path: list[Node] = []
        current: Node = self.node
        while current.parent is not None and current.depth + current.length > first:
            path.append(current)
            current = current.parent
        pages = self.pages
        while path:
            current = path.pop()
            assert current.arrival[tier] is self
            held = current.resident[tier]
            assert not held if current.depth >= first else current.depth + held == first, current
            current.arrival[tier] = None
            count = current.length - held
            if tree.named:
                mine, pages = cut(pages, count)
                current.pages[tier] = join(current.pages[tier], mine)
            tree.grow(current, tier, count)
        assert not pages

    def _roll_back(self) -> None:
        tier, first = self.tier, self.first
        current: Node = self.node
        while current.parent is not None and current.depth + current.length > first:
            assert current.arrival[tier] is self
            current.arrival[tier] = None
            current = current.parent
        if not self._keeps:
            self.tree.give(tier, self.pages, self.count)
