"""Serving requests one at a time, as if nothing took time: pure hit counting over the very same
tree.

A request looks up, restores what lower tiers hold, leaves its pages, and is written through before
the next one begins. Nothing is submitted to a machine: a copy is over at once, so there is nothing
to wait for, no queue, no batch and no belief. With restores that cost nothing, every hit is worth
taking; the policies `never` and `threshold`, which ask for no cost, decline what they always do.
"""

from __future__ import annotations

from collections.abc import Iterable

from hicache.allocator import extents
from hicache.errors import InputError
from hicache.holdings import first_private_key
from hicache.instant_buffer import InstantBuffer
from hicache.instant_store import InstantStore
from hicache.metrics import Metrics
from hicache.node import DEVICE, HOST, STORAGE, Node
from hicache.operations import Direction, PageRuns
from hicache.options import EngineOptions
from hicache.requests import Request, answer_runs, hittable
from hicache.reuse import make_reuse
from hicache.store_contents import StoreContents
from hicache.tree import HiRadixTree
from hicache.write_back import Departure
from hicache.write_rules import WriteRules


class UntimedServer:
    """Serves requests in the order in which they are given."""

    def __init__(
        self,
        tree: HiRadixTree,
        metrics: Metrics,
        options: EngineOptions,
        contents: StoreContents | None = None,
    ) -> None:
        """`contents`: of a store that is shared with others."""
        self._tree = tree
        self._metrics = metrics
        self._page = options.page_size_tokens
        self._page_bytes = options.page_bytes
        self._capped_page = options.capped_page_tokens
        self._caches_outputs = options.cache.outputs == "cached"
        self._restores = options.restore.policy != "never"
        by_size = options.restore.policy == "threshold"
        self._least_tokens = options.restore.threshold_tokens if by_size else 0
        self._ways_down: list[tuple[Direction, int, int, str]] = []
        self._rules = WriteRules(options)
        self._writes_at_prefill = options.cache.write_at == "prefill"
        self._offload_pages = options.offload_pages
        if self._rules.writes_answers:
            self._offload_pages = 0  # all of an answer is written when it has ended
        if self._rules.writes_through:
            self._ways_down.append(("d2h", DEVICE, HOST, "host_pressure"))
        self._reuse = make_reuse(tree, options)
        self._store: InstantStore | None = None
        self._buffer: InstantBuffer | None = None
        if options.buffers:
            self._buffer = InstantBuffer(tree, metrics, options, self._rules, contents)
        elif options.has_store:
            self._store = InstantStore(tree, metrics, options, contents)
            self._store.reuse = self._reuse
        if options.capacities[STORAGE] > 0:
            self._ways_down.append(("h2s", HOST, STORAGE, "storage_pressure"))
        # Of what is written whatever the policy says.
        self._offload_ways = self._ways_down
        if self._offload_pages and not self._rules.writes_through:
            way: tuple[Direction, int, int, str] = ("d2h", DEVICE, HOST, "host_pressure")
            self._offload_ways = [way, *self._ways_down]
        self._private_key = first_private_key(options)

    def serve(self, requests: Iterable[Request]) -> None:
        """Serve all of `requests`. Raises InputError if L1 cannot hold one."""
        for request in requests:
            self._serve_one(request)

    def _serve_one(self, request: Request) -> None:
        tree, page = self._tree, self._page
        if tree.evicts_ahead:
            self._evict_ahead()
        runs, prompt = hittable(request, self._capped_page), request.prompt_tokens
        match = tree.match(runs)
        fetched = 0
        staged: PageRuns = ()
        if self._buffer is not None:
            staged = self._buffer.fetch(match, runs)
        elif self._store is not None:
            fetched = self._store.fetch(match, runs)
            if fetched:
                match = tree.match(runs)
        held = match.device
        node = match.node if match.depth == held else tree.holder(match.node, held)
        if staged:
            node = tree.cut_at(match.node, held)
            match.host = held + sum(count for _, count in staged)
            fetched = match.host - held
        tree.pin(node, DEVICE)
        kv_tokens = prompt
        if self._caches_outputs and request.output_tokens > 1:
            kv_tokens += request.output_tokens - 1
        need = -(-kv_tokens // page) - held
        goal, reason = max(match.host, match.storage), ""
        if goal > held and (goal - held) * page < self._least_tokens:
            goal, reason = held, "below_threshold"
            self._metrics.count_choice(reason)
        elif not self._restores:
            goal = held
        pages: PageRuns = ()
        if need > 0:
            taken = self._take(need, goal - held, match.node)
            if taken is None:
                raise InputError(
                    f"request {request.number} (counted from 0): its {kv_tokens} tokens "
                    f"need {need + held} pages of "
                    f"{page} tokens, but L1 has {tree.tiers[DEVICE].capacity}: give a larger --l1"
                )
            pages = taken
        hits = (held, 0, 0)
        if goal > held:
            restored, rest = tree.cut_pages(pages, goal - held)
            if self._buffer is not None:
                end = self._buffer.load(node, staged, restored)
                staged, came = (), True
            else:
                end = tree.cut_at(match.node, goal)
                came = self._restore(end, held, restored)
            if came:
                tree.pin(end, DEVICE)
                tree.unpin(node, DEVICE)  # by now `end` may lie above it: it may have been cut
                node, pages, need = end, rest, need - (goal - held)
                from_host = max(0, min(match.host, goal) - held)
                from_host -= min(from_host, fetched)
                hits = (held, from_host, goal - held - from_host)
                held = goal
        if self._buffer is not None:
            self._buffer.decline(staged)
        self._leave_pages(request, node, held, pages, need, kv_tokens)
        self._write_row(request, hits, reason)

    def _take(self, need: int, load: int, found: Node) -> PageRuns | None:
        """`need` pages of L1, of which `load` or less are for what was found below it (at most 0:
        none are).
        """
        tree = self._tree
        if self._rules.writes_back and need > tree.tiers[DEVICE].allocator.free:
            self._make_room(need, found, load)
        if load > 0 and tree.loads_by_request:
            return tree.take_for_load(min(load, need), need)
        return tree.take(DEVICE, need)

    def _evict_ahead(self) -> None:
        tree = self._tree
        device = tree.tiers[DEVICE]
        used = device.capacity - device.allocator.free
        if self._rules.writes_back and device.high_pages and used > device.high_pages:
            most = device.allocator.free + device.evictable
            self._make_room(min(most, device.capacity - device.low_pages), tree.root)
        tree.evict_ahead()

    def _restore(self, end: Node, held: int, pages: PageRuns) -> bool:
        """Bring pages `held` .. `end.end` into the L1 `pages`, through L2; False if L2 has no room
        for what only L3 has.
        """
        tree, metrics = self._tree, self._metrics
        first, _ = tree.covered(end, HOST)
        if first < end.end:
            taken = tree.place(end, HOST, first)
            if taken is None:
                metrics.dropped_pages["host_pressure"] += end.end - first
                metrics.restore_fallbacks += 1
                return False
            metrics.promoted_pages += end.end - first
            self._count("s2h", end, STORAGE, first, taken)
        tree.publish(end, DEVICE, held, pages)
        self._count("h2d", end, HOST, held, pages)
        metrics.restores += 1
        metrics.restored_pages += end.end - held
        return True

    def _write_through(self, node: Node) -> None:
        """Write what is due of what L2 and L3 lack of the L1-resident path ending at `node`."""
        rules = self._rules
        if not rules.writes_through:
            return
        if self._buffer is not None:
            self._buffer.write_through(self._admitted(node))
            return
        if rules.takes_all:
            self._write(node, self._ways_down)
            return
        begins = 0
        for end in rules.due(node):
            if rules.by_node and self._tree.covered(end, HOST)[0] < begins:
                break  # what is in front of it got no room
            self._write(end, self._ways_down)
            begins = end.end

    def _admitted(self, node: Node) -> Node:
        """What of the path ending at `node` may be written to L3."""
        return node if self._reuse is None else self._reuse.admitted(node)

    def _write(self, node: Node, ways_down: list[tuple[Direction, int, int, str]]) -> None:
        """Bring the path ending at `node` to every tier below that lacks part of it."""
        tree = self._tree
        for direction, source, target, pressure in ways_down:
            if target == STORAGE and self._reuse is not None:
                node = self._reuse.admitted(node)
            first, _ = tree.covered(node, target)
            if first >= node.depth + node.length:
                continue
            taken = tree.place(node, target, first)
            if taken is None:
                self._metrics.dropped_pages[pressure] += node.end - first
                return
            self._count(direction, node, source, first, taken)
            if self._store is not None:
                self._store.write(node, first)

    def _make_room(self, count: int, found: Node, load: int = 0) -> None:
        """Evict until L1 has `count` free pages, `load` of them for pages of L2; what leaves it
        goes to L2 at once, which keeps the path ending at `found`, as L3 does.
        """
        tree = self._tree
        tree.pin(found, HOST)
        tree.pin(found, STORAGE)
        leaving = Departure(tree, self._metrics, count, load)
        for arrival in leaving.arrivals:
            leaving.close(arrival)
        leaving.end()
        if leaving.pages:
            pages, runs = leaving.pages, extents(leaving.source, leaving.target)
            self._metrics.directions["d2h"].add_instant(pages, pages * self._page_bytes, runs)
        for arrival in leaving.arrivals:
            if self._store is not None:
                self._store.write(arrival.node, arrival.first)
            self._write(arrival.node, self._ways_down)  # to L3
        tree.unpin(found, STORAGE)
        tree.unpin(found, HOST)

    def _count(
        self, direction: Direction, node: Node, source: int, first: int, target: PageRuns
    ) -> None:
        pages = node.depth + node.length - first
        runs = 1
        if self._tree.named:
            runs = extents(self._tree.pages_from(node, source, first), target)
        self._metrics.directions[direction].add_instant(pages, pages * self._page_bytes, runs)

    def _leave_pages(
        self, request: Request, node: Node, held: int, pages: PageRuns, private: int, kv_tokens: int
    ) -> None:
        """Cache the prompt and, where outputs are cached, what follows it; unpin and write
        through.
        """
        tree = self._tree
        if held < request.prompt_pages:
            end = tree.extend(node, request.prompt_runs, request.priority)
            node, duplicates, pages, adopted = tree.adopt(node, end, held, pages)
            private -= duplicates + adopted
            held = request.prompt_pages
        elif tree.counts_full_hits:
            tree.extend(node, request.prompt_runs, request.priority)
        if self._writes_at_prefill:
            self._write_through(node)
        prompt_pages = held
        more = kv_tokens // self._page - held if self._caches_outputs else 0
        if more > 0:
            answer = answer_runs(request, more, self._private_key)
            if tree.prompt_step:
                tree.raise_prompt(node, request.priority)
            end = tree.append(node, answer, request.priority)
            self._private_key += more + 1
            node, duplicates, pages, adopted = tree.adopt(node, end, held, pages)
            private -= duplicates + adopted
        elif tree.counts_inserts and self._caches_outputs and request.output_tokens > 1:
            tree.append(node, ())
        if private > 0:
            tree.give(DEVICE, pages, private)
        if self._offload_pages and more >= self._offload_pages:
            strides = more // self._offload_pages
            end = tree.cut_at(node, prompt_pages + strides * self._offload_pages)
            self._metrics.offloaded_pages += strides * self._offload_pages
            if self._buffer is not None:
                self._buffer.write(self._admitted(end))
            else:
                self._write(end, self._offload_ways)
        if self._reuse is not None:
            self._reuse.count(node)
            if self._store is not None:
                self._store.write_crossed(node)
            elif self._buffer is None:  # to L3; what goes through a buffer is written below
                self._write(tree.cut_at(node, tree.held(node, HOST)), self._ways_down[-1:])
        self._write_through(node)
        tree.unpin(node, DEVICE)

    def _write_row(self, request: Request, hits: tuple[int, int, int], reason: str) -> None:
        metrics, page = self._metrics, self._page
        metrics.requests += 1
        made = max(
            request.output_tokens, 1
        )  # as when it is timed: the prompt's last token makes one
        metrics.output_tokens += made
        metrics.finish_row(request, page, hits, (0, 0, 0, 0, 0, made, 0), reason)
