"""One tier's capacity, and which of its cached pages may leave.

    capacity = free + resident + in transfer or private          (pages)
    resident = evictable + pinned

A page is evictable when no pin needs it; since pins are closed upwards, evicting leaves first
reaches every evictable page, so `free + evictable` is what an allocation can count on. The
candidates stand in a lazy heap: an entry may be out of date, and is put right when it comes to the
top. This module refuses to know how pages move; `hicache.tree` tells it what became resident or
pinned.
"""

from __future__ import annotations

from heapq import heappop, heappush, heapreplace
from typing import Literal

from hicache.allocator import Allocator, PageAllocator, PageCounter, cut
from hicache.eviction import KEY_CAN_FALL, STRATEGIES, Key
from hicache.node import Node
from hicache.operations import PageRuns
from hicache.options import EvictionName


class Tier:
    """Pages of one tier. `index` is DEVICE, HOST or STORAGE."""

    __slots__ = (
        "_bit", "_heap", "_key", "_order", "allocator", "by_page", "capacity", "evictable",
        "evicted_pages", "index", "lost_pages", "named", "offers_on_access", "resident",
    )  # fmt: skip

    def __init__(
        self,
        index: int,
        capacity: int,
        eviction: EvictionName,
        granularity: Literal["node", "page"],
        page_ids: Literal["counted", "named"],
    ) -> None:
        self.index = index
        self.capacity = capacity
        self.named = page_ids == "named"
        self.allocator: Allocator = PageAllocator(capacity) if self.named else PageCounter(capacity)
        self.resident = 0
        self.evictable = 0
        self.evicted_pages = 0
        self.lost_pages = 0  # evicted while no tier below held anything of their node
        self.by_page = granularity == "page"
        self.offers_on_access = eviction in KEY_CAN_FALL
        self._key = STRATEGIES[eviction]
        self._bit = 1 << index
        self._heap: list[tuple[Key, int, Node]] = []
        self._order = 0

    @property
    def available(self) -> int:
        """Pages that an allocation can count on: free now, or after evicting."""
        return self.allocator.free + self.evictable

    def offer(self, node: Node) -> None:
        """Put `node` among the candidates, unless it stands there already."""
        if not node.offered & self._bit:
            node.offered |= self._bit
            self._order += 1
            heappush(self._heap, (self._key(node), self._order, node))

    def offer_again(self, node: Node) -> None:
        """The same after an access under a strategy whose keys can fall: the old entry goes
        stale.
        """
        node.offered &= ~self._bit
        self.offer(node)

    def next_victim(self) -> Node | None:
        """The candidate that the strategy lets go first; it stays at the top of the heap."""
        heap, index = self._heap, self.index
        while heap:
            key, _, node = heap[0]
            if not node.resident[index] or node.kids[index] or node.pins[index]:
                node.offered &= ~self._bit
                heappop(heap)
                continue
            current = self._key(node)
            if current == key:
                return node
            if self.offers_on_access and current < key:
                heappop(
                    heap
                )  # the newer entry, offered at the access, stands further up or is gone
                if not node.offered & self._bit:
                    self.offer(node)
                continue
            self._order += 1
            heapreplace(heap, (current, self._order, node))
        return None

    def trim(self, node: Node, count: int) -> None:
        """Free the last `count` resident pages of an unpinned node."""
        index = self.index
        left = node.resident[index] - count
        assert left >= 0
        assert not node.pins[index], f"{node} is pinned"
        node.resident[index] = left
        self.resident -= count
        self.evictable -= count
        self.evicted_pages += count
        freed: PageRuns = ()
        if self.named:
            node.pages[index], freed = cut(node.pages[index], left)
        self.allocator.give(freed, count)
