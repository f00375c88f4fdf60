"""Evictions that remember: GDSF, S3-FIFO and ARC, brought to a tree whose leaves leave first.

What they share stands in `hicache.adaptive`; here is which candidate goes first, with the paper it
is from and what is different on a tree. Refuses to ask what was measured: an eviction must not
depend on the machine's last sample.
"""

from __future__ import annotations

from typing import Any, Final, final

from hicache.adaptive import NEW, PROVEN, Adaptive, Entry, Ghosts
from hicache.node import HOST, STORAGE, Node
from hicache.options import EngineOptions

SMALL_PART: Final = 10  # S3-FIFO's small queue is a tenth of the cache
MOST_HITS: Final = 3  # S3-FIFO counts hits in two bits


@final
class Gdsf(Adaptive):
    """Greedy Dual Size Frequency: clock at the last hit + hits * what a page costs to get back.

    Cherkasova, "Improving WWW proxies performance with Greedy-Dual-Size-Frequency caching policy",
    HP Labs 1998. The clock is the key of what left last, so that what is not hit any more ages.
    Cost over size is the cost of one page: to compute it again, which takes longer the more tokens
    stand before it (attention), or to load it from the tier below that holds it, if that is less.
    The unit is a page computed at the beginning of a prompt. Ties go by last access.
    """

    __slots__ = ("_doubling_pages", "_load_cost", "_now")

    def __init__(self, index: int, options: EngineOptions) -> None:
        super().__init__(index, options)
        self.watches = True
        self._now = 0.0
        self._doubling_pages = options.cache.gdsf_doubling_tokens / options.page_size_tokens
        restore = options.restore
        token_gib = options.bytes_per_token / 2**30
        recompute_s = restore.prior_recompute_us_per_token * 1e-6
        host = token_gib / restore.prior_host_gib_per_s / recompute_s
        storage = host + token_gib / restore.prior_storage_gib_per_s / recompute_s
        # What a page costs when it has to come from each tier.
        self._load_cost = [0.0, host, storage]

    def key_of(self, node: Node) -> Any:
        entry = self._entries[node]
        hits = 1 + node.hit_count - entry.seen
        cost = self._cost(node)
        return (entry.base + (hits * cost if hits > 1 else cost), node.last_access)

    def accessed(self, node: Node) -> None:
        entry = self._entries.get(node)
        if entry is not None and node.hit_count > entry.known:
            entry.known = node.hit_count
            entry.base = self._now

    def offer(self, node: Node) -> None:
        # A copy below makes a page cheap, so that a key can fall: each offer is a new one.
        self._push(node, self._entries[node])

    def next(self) -> Node | None:
        node = self._top(NEW)
        if node is None:
            return None
        key = self.key_of(node)[0]
        if key > self._now:
            self._now = key
        return self._pop(NEW)

    def _clock(self) -> float:
        return self._now

    def _cost(self, node: Node) -> float:
        """Of one page of `node`, on average."""
        cost = 1.0 + (node.depth + 0.5 * node.length) / self._doubling_pages
        held = node.resident[self._index]
        for tier in (HOST, STORAGE):
            if tier > self._index and node.resident[tier] >= held:
                return min(cost, self._load_cost[tier])
        return cost


@final
class S3Fifo(Adaptive):
    """S3-FIFO: a small queue for what is new, a main queue for what was wanted again, and ghosts.

    Yang, Zhang, Qiu, Yue and Rashmi, "FIFO queues are all you need for cache eviction", SOSP 2023.
    New pages join the small queue, a tenth of the tier; pages whose ghosts are still remembered
    join the main queue. While the small queue is full its oldest leaf goes: hit more than once
    since it came, into the main queue, else out, leaving ghosts of as many pages as the main queue
    has room for. The main queue's oldest leaf goes if it was not hit, else to its end with one hit
    less. A node is remembered if at least half of its new pages are.
    """

    __slots__ = ("_ghosts",)

    def __init__(self, index: int, options: EngineOptions) -> None:
        super().__init__(index, options)
        self._ghosts = Ghosts()

    def key_of(self, node: Node) -> Any:
        return self._entries[node].place

    def next(self) -> Node | None:
        while True:
            small, main = self._top(NEW), self._top(PROVEN)
            full = self.segment_pages[NEW] * SMALL_PART >= self._capacity
            if small is not None and (full or main is None):
                self._pop(NEW)
                entry = self._entries[small]
                if small.hit_count - entry.seen <= 1:
                    return small
                self._move(small, entry, PROVEN)
                entry.seen = small.hit_count
                self._queue_again(small, entry)
            elif main is not None:
                self._pop(PROVEN)
                entry = self._entries[main]
                hits = min(main.hit_count - entry.seen, MOST_HITS)
                if hits <= 0:
                    return main
                entry.seen = main.hit_count - (hits - 1)
                self._queue_again(main, entry)
            else:
                return None

    def _queue_again(self, node: Node, entry: Entry) -> None:
        self._order += 1
        entry.place = self._order
        self._push(node, entry)

    def _segment_of(self, start: int, count: int) -> int:
        return PROVEN if 2 * self._ghosts.recall(start, count) >= count else NEW

    def _gone(self, entry: Entry, start: int, count: int) -> None:
        if entry.segment == NEW:
            self._ghosts.add(start, count)
            self._ghosts.trim(self._capacity - self._capacity // SMALL_PART)


@final
class Arc(Adaptive):
    """ARC: what was seen once and what was seen again, each by last access; ghosts set the border.

    Megiddo and Modha, "ARC: a self-tuning, low overhead replacement cache", FAST 2003. `target` is
    how many pages those seen once may fill: more when pages return that had left from there, less
    when they had left from among those seen again. Both kinds of ghosts, with what is cached, are
    at most twice the tier. The paper learns before it makes room; here room is made when a request
    is admitted and the lesson comes when its pages are published.
    """

    __slots__ = ("_ghosts", "target")

    def __init__(self, index: int, options: EngineOptions) -> None:
        super().__init__(index, options)
        self.watches = True
        self.target = 0.0
        self._ghosts = [Ghosts(), Ghosts()]  # of those seen once, and seen again

    def key_of(self, node: Node) -> Any:
        return node.last_access

    def accessed(self, node: Node) -> None:
        entry = self._entries.get(node)
        if entry is not None and entry.segment == NEW and node.hit_count > entry.seen:
            self._move(node, entry, PROVEN)
            if self._may_leave(node):
                self._push(node, entry)

    def next(self) -> Node | None:
        first = NEW if self.segment_pages[NEW] > self.target else PROVEN
        for segment in (first, PROVEN - first):
            if self._top(segment) is not None:
                return self._pop(segment)
        return None

    def _segment_of(self, start: int, count: int) -> int:
        once, again = self._ghosts
        had_once, had_again = once.pages, again.pages
        from_once, from_again = once.recall(start, count), again.recall(start, count)
        if from_once:
            step = max(1.0, had_again / had_once)
            self.target = min(float(self._capacity), self.target + from_once * step)
        if from_again:
            step = max(1.0, had_once / had_again)
            self.target = max(0.0, self.target - from_again * step)
        return PROVEN if 2 * (from_once + from_again) >= count else NEW

    def _gone(self, entry: Entry, start: int, count: int) -> None:
        once, again = self._ghosts
        self._ghosts[entry.segment].add(start, count)
        new, proven = self.segment_pages
        once.trim(self._capacity - new)
        again.trim(2 * self._capacity - new - proven - once.pages)


def make_adaptive(index: int, options: EngineOptions) -> Adaptive | None:
    """The memory of `cache.eviction` for one tier; None where the strategy needs none."""
    name = options.cache.eviction
    if name == "gdsf":
        return Gdsf(index, options)
    if name == "s3fifo":
        return S3Fifo(index, options)
    if name == "arc":
        return Arc(index, options)
    return None
