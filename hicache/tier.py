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

from collections.abc import Callable
from heapq import heappop, heappush, heapreplace
from typing import Literal, final

from hicache.allocator import Allocator, PageAllocator, PageCounter, cut
from hicache.eviction import KEY_CAN_FALL, STRATEGIES, Key, lru
from hicache.node import HOST, STORAGE, Node
from hicache.options import EvictionName


@final
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
        self.lost_pages = 0  # evicted while no tier below held them
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
        """Put `node` among the candidates, unless it stands there already.

        Under a strategy whose keys can fall an entry may stand too deep in the heap to be found, so
        that each offer (at an unpin, at an access) makes a new one.
        """
        if self.offers_on_access or not node.offered & self._bit:
            node.offered |= self._bit
            self._order += 1
            heappush(self._heap, (self._key(node), self._order, node))

    def evict(self, count: int, prune: Callable[[Node], None]) -> int:
        """Free `count` pages, leaves first, as the strategy says; returns how many were freed.

        By node, whole leaves go until the shortfall is covered; by page, exactly the shortfall,
        from the tail of the last one. `prune` is called with a node that has no children and
        nothing left here.
        """
        heap, index, bit, key_of = self._heap, self.index, self._bit, self._key
        freed = lost = 0
        while freed < count and heap:
            key, _, node = heap[0]
            resident = node.resident
            held = resident[index]
            if not held or node.kids[index] or node.pins[index]:
                node.offered &= ~bit
                heappop(heap)
                continue
            current = node.last_access if key_of is lru else key_of(node)
            if current != key:  # out of date: the node was used since it was offered
                self._order += 1
                heapreplace(heap, (current, self._order, node))
                continue
            part = held
            if self.by_page and held > count - freed:
                part = count - freed
            resident[index] = left = held - part
            freed += part
            if self.named:
                node.pages[index], gone = cut(node.pages[index], left)
                self.allocator.give(gone, part)
            kept = resident[HOST]
            if resident[STORAGE] > kept:
                kept = resident[STORAGE]
            if kept < held:
                lost += held - (kept if kept > left else left)
            if left:
                continue
            heappop(heap)
            node.offered &= ~bit
            parent = node.parent
            assert parent is not None
            parent.kids[index] -= 1
            if not parent.kids[index] and not parent.pins[index] and parent.resident[index]:
                self.offer(parent)
            if not node.children:
                prune(node)
        if not self.named:
            self.allocator.give((), freed)
        self.resident -= freed
        self.evictable -= freed
        self.evicted_pages += freed
        self.lost_pages += lost
        return freed
