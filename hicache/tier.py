"""One tier's capacity, and which of its cached pages may leave.

    capacity = free + resident + in transfer or private          (pages)
    resident = evictable + pinned

A page is evictable when no pin needs it; since pins are closed upwards, evicting leaves first
reaches every evictable page, so `free + evictable` is what an allocation can count on, unless L2
keeps what L1 holds (`spares_l1`): then it is what it can hope for. The candidates stand in a lazy
heap: an entry may be out of date, and is put right when it comes to the top. Strategies that
remember have queues of their own (`hicache.remembering`). This module refuses to know how pages
move; `hicache.tree` tells it what became resident or pinned.
"""

from __future__ import annotations

from collections.abc import Callable
from heapq import heappop, heappush, heapreplace
from typing import Final, final

from hicache.allocator import Allocator, PageAllocator, PageCounter, cut
from hicache.duplicates import Duplicates, is_double
from hicache.eviction import KEY_CAN_FALL, SPLIT_CAN_LOWER_KEY, STRATEGIES, Key, Strategy, lru
from hicache.node import DEVICE, HOST, STORAGE, Node, Victim
from hicache.operations import PageRuns
from hicache.options import EngineOptions
from hicache.remembering import make_adaptive

Prune = Callable[[Node], None]

# Compiled code has these at hand, and looks imported functions up each time.
_push: Final = heappush
_pop: Final = heappop
_replace: Final = heapreplace


@final
class Tier:
    """Pages of one tier. `index` is DEVICE, HOST or STORAGE; `host` is L2, for L1 alone."""

    __slots__ = (
        "_bit", "_by_access", "_covers", "_heap", "_key", "_order", "adaptive", "allocator",
        "by_page", "by_request", "capacity", "duplicates", "evictable", "evicted_pages",
        "high_pages", "index", "joins", "leaving", "lost_of", "lost_pages", "low_pages", "named",
        "notes", "offers_on_access", "resident", "spares_l1",
    )  # fmt: skip

    def __init__(self, index: int, options: EngineOptions, host: Tier | None = None) -> None:
        cache = options.cache
        capacity = options.capacities[index]
        self.index = index
        self.capacity = capacity
        self.named = options.page_ids == "named"
        self.allocator: Allocator = PageAllocator(capacity) if self.named else PageCounter(capacity)
        self.resident = 0
        self.evictable = 0
        self.evicted_pages = 0
        # Evicted while no tier below held them; what write back loses is counted where it fails.
        self.lost_pages = 0
        # Where no tier of the tree is below: how many of so many pages from a key on are lost.
        self.lost_of: Callable[[int, int], int] | None = None
        # Of L1, while it evicts under write back: what L2 lacks, in the order in which it left.
        self.leaving: list[Victim] | None = None
        self.by_page = cache.eviction_granularity == "page"
        # Whether what one insert added goes together.
        self.joins = cache.node_boundaries == "insert" and not self.by_page
        amounts = (cache.l1_eviction_amount, cache.l2_eviction_amount, "shortfall")
        self.by_request = amounts[index] == "request"
        # Where eviction ahead of need begins and ends, in pages in use; 0: never.
        high, low = (
            (cache.l1_high_watermark, cache.l1_low_watermark),
            (cache.l2_high_watermark, cache.l2_low_watermark),
            (0.0, 0.0),
        )[index]
        self.high_pages = int(high * capacity)
        self.low_pages = int(low * capacity)
        # Whether what L1 holds stays here, too, and what is done about it in the end.
        self.spares_l1 = index == HOST and cache.l2_victims != "any"
        self.duplicates: Duplicates | None = None
        if index == HOST and cache.l2_victims == "duplicates_first":
            self.duplicates = Duplicates()
        # L2, of L1: what leaves here may leave there from now on.
        self._covers: Tier | None = host if host is not None and host.spares_l1 else None
        if self._covers is not None:
            self.duplicates = self._covers.duplicates
        self.adaptive = make_adaptive(index, options)
        # Whether it must be told of arrivals and splits.
        self.notes = self.adaptive is not None or self.duplicates is not None
        walked = cache.touch == "walked"
        self.offers_on_access = cache.eviction in KEY_CAN_FALL or (
            walked and cache.eviction in SPLIT_CAN_LOWER_KEY
        )
        self._key = STRATEGIES.get(cache.eviction, lru)
        self._by_access = self._key is lru  # most often: without a call for each key
        self._bit = 1 << index
        self._heap: list[tuple[Key, int, Node]] = []
        self._order = 0

    @property
    def available(self) -> int:
        """Pages that an allocation can count on: free now, or after evicting."""
        return self.allocator.free + self.evictable

    def rank_by(self, key_of: Strategy) -> None:
        """From now on candidates leave by a key that is nobody's option and may fall; to be called
        before there are any.
        """
        self._key, self._by_access = key_of, False
        self.offers_on_access = True

    # ------------------------------------------------------------------ what the tree tells

    def arrived(self, node: Node, count: int, uncounted: int) -> None:
        """`count` more pages of `node` are here, of a request that still has `uncounted` hits to
        count. Only called where `notes` is set.
        """
        if self.adaptive is not None:
            self.adaptive.arrived(node, count, uncounted)
        if self.duplicates is not None:
            self._note_duplicate(node)

    def split(self, upper: Node, lower: Node) -> None:
        """`lower` was cut, and `upper` is its first part. Only called where `notes` is set."""
        if self.adaptive is not None:
            self.adaptive.split(upper, lower)
        if self.duplicates is not None and self.index == HOST:
            self.duplicates.split(upper, lower)

    def offer(self, node: Node) -> None:
        """Put `node` among the candidates, unless it stands there already.

        Under a strategy whose keys can fall an entry may stand too deep in the heap to be found, so
        that each offer (at an unpin, at an access) makes a new one.
        """
        if self.notes:
            if self.duplicates is not None and self.index == HOST:
                self.duplicates.offer(node)
            if self.adaptive is not None:
                self.adaptive.offer(node)
                return
        if self.offers_on_access or not node.offered & self._bit:
            node.offered |= self._bit
            self._order += 1
            key = node.last_access if self._by_access else self._key(node)
            _push(self._heap, (key, self._order, node))

    # ------------------------------------------------------------------ evicting

    def evict(self, count: int, prune: Prune) -> int:
        """Free `count` pages, leaves first, as the strategy says; returns how many were freed.

        By node, whole leaves go until the shortfall is covered; by page, exactly the shortfall,
        from the tail of the last one. `prune` is called with a node that has no children and
        nothing left here.
        """
        if self.duplicates is None or self.index != HOST:
            return self._evict_ranked(count, prune)
        freed = before = 0
        while freed < count:
            freed += self._reclaim(count - freed, prune)
            if freed < count:
                freed += self._evict_ranked(count - freed, prune)
            if freed == before:
                break
            before = freed
        return freed

    def _evict_ranked(self, count: int, prune: Prune) -> int:
        """Free `count` pages of the candidates, in the strategy's order."""
        if self.adaptive is not None:
            return self._evict_remembering(count, prune)
        heap, index, bit, spares = self._heap, self.index, self._bit, self.spares_l1
        key_of, by_access = self._key, self._by_access
        freed = 0
        while freed < count and heap:
            key, _, node = heap[0]
            resident = node.resident
            held = part = resident[index]
            if spares:  # the part that L1 holds stays
                part = held - resident[DEVICE]
            if part <= 0 or node.kids[index] or node.pins[index]:
                node.offered &= ~bit
                _pop(heap)
                continue
            current = node.last_access if by_access else key_of(node)
            if current != key:  # out of date: the node was used since it was offered
                self._order += 1
                _replace(heap, (current, self._order, node))
                continue
            if self.by_page and part > count - freed:
                part = count - freed
            if part == held:
                node.offered &= ~bit
                _pop(heap)
            if self.joins:
                freed += self._let_go_joined(node, part, prune)
                continue
            self._let_go(node, part, prune)
            freed += part
        return freed

    def _evict_remembering(self, count: int, prune: Prune) -> int:
        """The same, where the strategy has queues of its own."""
        adaptive = self.adaptive
        assert adaptive is not None
        freed = 0
        while freed < count:
            node = adaptive.next()
            if node is None:
                break
            kept = node.resident[DEVICE] if self.spares_l1 else 0
            part = node.resident[self.index] - kept
            if self.by_page and part > count - freed:
                part = count - freed
            freed += self._let_go_joined(node, part, prune)
            if node.resident[self.index] > kept:
                adaptive.offer(node)
        return freed

    def _reclaim(self, count: int, prune: Prune) -> int:
        """Free `count` pages of L2 that L1 holds, too; those that are about to leave L1 last."""
        duplicates = self.duplicates
        assert duplicates is not None
        spared: list[Node] = []
        last = freed = 0
        while freed < count:
            node = duplicates.next(spared)
            if node is None:
                if last == len(spared):
                    break
                node = spared[last]
                last += 1
            part = node.resident[HOST]
            if self.by_page and part > count - freed:
                part = count - freed
            freed += self._let_go_joined(node, part, prune)
            if node.resident[HOST]:
                duplicates.offer(node)
        for node in spared[last:]:
            duplicates.offer(node)
        return freed

    def _let_go_joined(self, node: Node, part: int, prune: Prune) -> int:
        """`_let_go`, and with all of a node goes what it is joined to; returns how many pages
        left.

        From the top, as one list of pages; but what has to be written back from the bottom, whose
        copy takes the others along.
        """
        index, resident = self.index, node.resident
        group = [node]
        top = node
        if self.joins and part == resident[index]:
            while top.joined:
                above = top.parent
                assert above is not None
                if above.pins[index] or above.kids[index] > 1:
                    break
                if index == HOST and (above.resident[DEVICE] > 0) != (resident[DEVICE] > 0):
                    break
                group.append(above)
                top = above
        if len(group) == 1:
            self._let_go(node, part, prune)
            return part
        if self.leaving is None:
            group.reverse()
        freed = 0
        for each in group:
            part = each.resident[index]
            freed += part
            self._let_go(each, part, prune)
        return freed

    def _let_go(self, node: Node, part: int, prune: Prune) -> None:
        """The last `part` pages of `node` leave this tier; it stands in no queue of it if they are
        all of them.
        """
        index, resident = self.index, node.resident
        held = resident[index]
        resident[index] = left = held - part
        gone: PageRuns = ()
        if self.named:
            node.pages[index], gone = cut(node.pages[index], left)
        self.resident -= part
        self.evictable -= part
        self.evicted_pages += part
        kept = resident[HOST]
        leaving = self.leaving if kept < held else None
        if leaving is None:
            self.allocator.give(gone, part)
            if resident[STORAGE] > kept:
                kept = resident[STORAGE]
            if self.lost_of is not None:
                self.lost_pages += self.lost_of(node.start + left, part)
            elif kept < held:
                self.lost_pages += held - (kept if kept > left else left)
        else:
            leaving.append(Victim(node, left, part, gone))
        if self.notes:
            if self.adaptive is not None:
                self.adaptive.left(node, part)
            if self.duplicates is not None:
                self._note_duplicate(node)
        below = self._covers
        if (
            below is not None
            and resident[HOST] > left
            and not node.kids[HOST]
            and not node.pins[HOST]
        ):
            below.offer(node)
        if left:
            return
        parent = node.parent
        assert parent is not None
        parent.kids[index] = kids = parent.kids[index] - 1
        if not kids and not parent.pins[index] and parent.resident[index]:
            self.offer(parent)
        if not node.children and leaving is None:
            prune(node)

    def _note_duplicate(self, node: Node) -> None:
        """What L1 or L2 holds of `node` has changed: it may be a duplicate now, or not any more."""
        duplicates = self.duplicates
        assert duplicates is not None
        if is_double(node):
            duplicates.register(node)
        else:
            duplicates.forget(node)
