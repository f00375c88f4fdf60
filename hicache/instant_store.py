"""A store asked by page key on which nothing takes time, for untimed runs: the rules of
`hicache.prefetch` and `hicache.store_index` without what only time decides (stop policies, workers,
the limit on what is under way).
"""

from __future__ import annotations

from typing import final

from hicache.allocator import cut
from hicache.metrics import Metrics
from hicache.node import HOST, Node
from hicache.operations import PageRuns
from hicache.options import EngineOptions
from hicache.prefetch_rules import limit_tokens, threshold_pages
from hicache.requests import KeyRuns
from hicache.reuse import ReuseCounts
from hicache.store_contents import StoreContents
from hicache.store_index import keys_from
from hicache.tree import HiRadixTree, Match


@final
class InstantStore:
    """The store of one untimed server."""

    def __init__(
        self,
        tree: HiRadixTree,
        metrics: Metrics,
        options: EngineOptions,
        contents: StoreContents | None = None,
    ) -> None:
        self._tree = tree
        self._metrics = metrics
        self._options = options.prefetch
        self._page = options.page_size_tokens
        self._page_bytes = options.page_bytes
        self._least = threshold_pages(options)
        self._allows = limit_tokens(options) > 0
        self.reuse: ReuseCounts | None = None  # what may be written, where not all may
        if contents is None:
            contents = StoreContents(options.storage_pages)
        self.contents = contents

    def write(self, node: Node, first: int) -> None:
        """Pages `first` .. `node.end` of the path ending at `node` have come to L2."""
        if self.reuse is not None:
            node = self.reuse.admitted(node)
            if node.depth + node.length <= first:
                return
        new = self.contents.write(keys_from(node, first))
        self._metrics.directions["h2s"].add_instant(new, new * self._page_bytes, 1)

    def write_crossed(self, node: Node) -> None:
        """As `hicache.store_index.StoreWriter.write_crossed`."""
        if self.reuse is not None:
            end, first = self.reuse.crossed(node)
            self.write(end, first)

    def fetch(self, match: Match, runs: KeyRuns) -> int:
        """Bring into L2 what the store has of `runs` behind `match`; how many pages came."""
        tree, metrics, first = self._tree, self._metrics, match.host
        total = sum(count for _, count in runs)
        if match.device > first or total - first < self._least:
            return 0
        asked = total - first
        if not self._allows:
            metrics.prefetches_declined["rate_limited"] += 1
            metrics.prefetch_declined_tokens["rate_limited"] += asked * self._page
            return 0
        keys = cut(tuple(runs), first)[1]
        anchor = tree.cut_at(match.node, first)
        tree.pin(anchor, HOST)
        room = asked if self._options.allocate == "before_lookup" else 0
        pages: PageRuns = ()
        if room:
            taken = tree.take(HOST, room)
            if taken is None:
                metrics.prefetches_declined["host_capacity"] += 1
                metrics.prefetch_declined_tokens["host_capacity"] += asked * self._page
                tree.unpin(anchor, HOST)
                return 0
            pages = taken
        metrics.prefetches += 1
        hit = self.contents.leading(keys)
        metrics.prefetch_hit_tokens += hit * self._page
        came = 0
        if hit < self._least:
            self._lose("below_threshold", hit)
        else:
            if not room:
                room, pages = self._take(hit)
            came = min(room, hit)
            self._lose("host_capacity", hit - came)
        if came:
            keys = cut(keys, came)[0]
            self.contents.read(keys)
            mine, pages = tree.cut_pages(pages, came)
            tree.publish(tree.grow(anchor, keys), HOST, first, mine)
            metrics.promoted_pages += came
            metrics.prefetch_fulfilled_tokens += came * self._page
            metrics.directions["s2h"].add_instant(came, came * self._page_bytes, 1)
        if room > came:
            tree.give(HOST, pages, room - came)
        tree.unpin(anchor, HOST)
        return came

    def _take(self, hit: int) -> tuple[int, PageRuns]:
        """L2 pages for a hit, or for as much of it as there is room for."""
        tree = self._tree
        pages = tree.take(HOST, hit)
        if pages is not None:
            return hit, pages
        if self._options.shortfall == "revoke":
            return 0, ()
        allocator = tree.tiers[HOST].allocator
        tree.evict(HOST, hit - allocator.free)
        room = min(hit, allocator.free)
        return (room, allocator.take(room)) if room >= self._least else (0, ())

    def _lose(self, reason: str, pages: int) -> None:
        if pages:
            self._metrics.prefetch_unfulfilled_tokens[reason] += pages * self._page
