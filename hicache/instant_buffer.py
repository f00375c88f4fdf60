"""L2 as a buffer in front of a store, where nothing takes time, for untimed runs: the rules of
`hicache.staged_reads` and `hicache.staged_writes` without what only time decides.

Nothing else is ever under way, so that the buffer is empty whenever it is wanted: what is read is
in L1, and what is written in the store, before anything else happens. Its size bounds what is read
for one request, and the nodes that are written where writes are by node.
"""

from __future__ import annotations

from typing import final

from hicache.allocator import cut
from hicache.metrics import Metrics
from hicache.node import DEVICE, Node
from hicache.operations import PageRuns
from hicache.options import EngineOptions
from hicache.prefetch_rules import limit_tokens, threshold_pages
from hicache.requests import KeyRuns
from hicache.store_belief import StoreBelief
from hicache.store_contents import StoreContents
from hicache.store_index import keys_from
from hicache.tree import HiRadixTree, Match
from hicache.write_rules import WriteRules


@final
class InstantBuffer:
    """The buffer and the store of one untimed server."""

    def __init__(
        self,
        tree: HiRadixTree,
        metrics: Metrics,
        options: EngineOptions,
        rules: WriteRules,
        contents: StoreContents | None = None,
    ) -> None:
        """`contents`: of a store that is shared with others."""
        self._tree = tree
        self._metrics = metrics
        self._rules = rules
        self._options = options.prefetch
        self._room = options.host_pages
        self._page = options.page_size_tokens
        self._page_bytes = options.page_bytes
        self._least = threshold_pages(options)
        self._allows = limit_tokens(options) > 0
        self.contents = StoreContents(options.storage_pages) if contents is None else contents
        self._belief = StoreBelief()
        tree.tiers[DEVICE].lost_of = self._belief.missing
        metrics.prefetch_unfulfilled_tokens.setdefault("device_capacity", 0)

    # ------------------------------------------------------------------ reading

    def fetch(self, match: Match, runs: KeyRuns) -> PageRuns:
        """Read what the store has of `runs` behind what L1 holds; the keys of what came."""
        metrics, page = self._metrics, self._page
        keys = cut(tuple(runs), match.device)[1]
        asked = sum(count for _, count in keys)
        if asked < self._least:
            return ()
        before = self._options.allocate == "before_lookup"
        if not self._allows or (before and asked > self._room):
            reason = "host_capacity" if self._allows else "rate_limited"
            metrics.prefetches_declined[reason] += 1
            metrics.prefetch_declined_tokens[reason] += asked * page
            return ()
        metrics.prefetches += 1
        hit = self.contents.leading(keys)
        self._belief.absent(cut(keys, hit)[1])
        metrics.prefetch_hit_tokens += hit * page
        if hit < self._least:
            self._lose("below_threshold", hit)
            return ()
        came = min(hit, self._room)
        if came < hit and (self._options.shortfall == "revoke" or came < self._least):
            came = 0
        self._lose("host_capacity", hit - came)
        keys = cut(keys, came)[0]
        if came:
            self.contents.read(keys)
            self._belief.seen(keys)
            metrics.directions["s2h"].add_instant(came, came * self._page_bytes, 1)
        return keys

    def load(self, node: Node, keys: PageRuns, restored: PageRuns) -> Node:
        """What came, with `keys`, is in the L1 pages `restored`, behind `node`; its end."""
        metrics, came = self._metrics, sum(count for _, count in keys)
        end = self._tree.grow(node, keys)
        self._tree.publish(end, DEVICE, node.depth + node.length, restored)
        metrics.promoted_pages += came
        metrics.prefetch_fulfilled_tokens += came * self._page
        metrics.directions["h2d"].add_instant(came, came * self._page_bytes, 1)
        metrics.restores += 1
        metrics.restored_pages += came
        return end

    def decline(self, keys: PageRuns) -> None:
        """What came is not wanted."""
        self._lose("dropped", sum(count for _, count in keys))

    def _lose(self, reason: str, pages: int) -> None:
        if pages:
            self._metrics.prefetch_unfulfilled_tokens[reason] += pages * self._page

    # ------------------------------------------------------------------ writing

    def write_through(self, node: Node) -> None:
        """Write what is due of what L3 lacks of the path ending at `node`."""
        if not self._rules.by_node:
            for end in self._rules.due(node):
                self.write(end)
            return
        for end in self._rules.due(node):
            lacking = self._belief.missing(end.start, end.length)
            if lacking > self._room:
                self._metrics.dropped_pages["host_pressure"] += lacking
                break
            self._put_lacking(((end.start, end.length),))

    def write(self, node: Node) -> None:
        """Write what L3 lacks of the path ending at `node`, in parts that the buffer can hold."""
        self._put_lacking(keys_from(node, 0))

    def _put_lacking(self, keys: PageRuns) -> None:
        belief = self._belief
        while keys:
            keys = cut(keys, belief.leading(keys))[1]
            part, keys = cut(keys, min(belief.lacking(keys), self._room))
            if part:
                self._put(part)

    def _put(self, keys: PageRuns) -> None:
        pages = sum(count for _, count in keys)
        new = self.contents.write(keys)
        self._belief.seen(keys)
        directions = self._metrics.directions
        directions["d2h"].add_instant(pages, pages * self._page_bytes, 1)
        directions["h2s"].add_instant(new, new * self._page_bytes, 1)
