"""Pages of L2 that are a prefetch's: no part of the tree, read into, then published or given back.

    taken    |-- come, to be published --|-- under way, or never to come --|
             given back: from the end, all but so many

Decides nothing about what is read or when it ends: `hicache.prefetch` does.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import final

from hicache.allocator import cut
from hicache.node import HOST
from hicache.operations import PageRuns
from hicache.options import EngineOptions
from hicache.prefetch_rules import Prefetch, threshold_pages
from hicache.tree import HiRadixTree


@final
class PrefetchPages:
    """The pages of one engine's prefetches. `on_room` is called whenever some may have been given
    back.
    """

    def __init__(
        self, tree: HiRadixTree, options: EngineOptions, on_room: Callable[[], None] | None
    ) -> None:
        self._tree = tree
        self._allocator = tree.tiers[HOST].allocator
        self._trims = options.prefetch.shortfall == "trim"
        self._threshold_pages = threshold_pages(options)
        self._on_room = on_room
        self._holding: dict[int, Prefetch] = {}  # those with pages, by number

    def take(self, prefetch: Prefetch, count: int) -> bool:
        """Take `count` pages, evicting for them; False if they cannot be had."""
        pages = self._tree.take(HOST, count)
        if pages is None:
            return False
        prefetch.pages, prefetch.taken = pages, count
        self._holding[prefetch.number] = prefetch
        return True

    def take_less(self, prefetch: Prefetch) -> bool:
        """Take what there is of the pages that the store has, if it is worth a read."""
        if not self._trims:
            return False
        self._tree.evict(HOST, prefetch.hit - self._allocator.free)
        free = min(self._allocator.free, prefetch.hit)
        return free >= self._threshold_pages and self.take(prefetch, free)

    def give(self, prefetch: Prefetch, kept: int) -> None:
        """Give all but the first `kept` of its pages back."""
        spare = prefetch.taken - kept
        if spare > 0:
            prefetch.pages, pages = cut(prefetch.pages, kept)
            self._tree.give(HOST, pages, spare)
            prefetch.taken = kept
        if not kept:
            self._holding.pop(prefetch.number, None)
        if self._on_room is not None:
            self._on_room()

    def lent(self) -> tuple[int, list[PageRuns]]:
        """How many pages they are, and which."""
        holding = self._holding.values()
        return sum(each.taken for each in holding), [each.pages for each in holding]
