"""Serving requests one at a time, as if nothing took time: pure hit counting over the very same
tree.

A request looks up, restores what lower tiers hold, leaves its pages, and is written through before
the next one begins. Nothing is submitted to a machine: a copy is over at once, so there is nothing
to wait for, no queue, no batch and no belief. With restores that cost nothing, every hit is worth
taking.
"""

from __future__ import annotations

from collections.abc import Iterable

from hicache.allocator import extents
from hicache.errors import InputError
from hicache.holdings import FIRST_PRIVATE_KEY
from hicache.metrics import Metrics
from hicache.node import DEVICE, HOST, STORAGE, Node
from hicache.operations import Direction, PageRuns
from hicache.options import EngineOptions
from hicache.requests import Request, answer_runs, without_last_page
from hicache.tree import HiRadixTree


class UntimedServer:
    """Serves requests in the order in which they are given."""

    def __init__(self, tree: HiRadixTree, metrics: Metrics, options: EngineOptions) -> None:
        self._tree = tree
        self._metrics = metrics
        self._page = options.page_size_tokens
        self._page_bytes = options.page_bytes
        self._caps_hits = options.cache.hit_cap == "last_token_computed"
        self._caches_outputs = options.cache.outputs == "cached"
        self._restores = options.restore.policy != "never"
        self._ways_down: list[tuple[Direction, int, int, str]] = []
        if options.cache.write_policy == "write_through" and options.host_pages > 0:
            self._ways_down.append(("d2h", DEVICE, HOST, "host_pressure"))
            if options.storage_pages > 0:
                self._ways_down.append(("h2s", HOST, STORAGE, "storage_pressure"))
        self._private_key = FIRST_PRIVATE_KEY

    def serve(self, requests: Iterable[Request]) -> None:
        """Serve all of `requests`. Raises InputError if L1 cannot hold one."""
        for request in requests:
            self._serve_one(request)

    def _serve_one(self, request: Request) -> None:
        tree, page = self._tree, self._page
        runs, prompt = request.prompt_runs, request.prompt_tokens
        if self._caps_hits and request.prompt_pages * page >= prompt:
            runs = without_last_page(runs)
        match = tree.match(runs)
        held = match.device
        node = match.node if match.depth == held else tree.holder(match.node, held)
        tree.pin(node, DEVICE)
        kv_tokens = prompt
        if self._caches_outputs and request.output_tokens > 1:
            kv_tokens += request.output_tokens - 1
        need = -(-kv_tokens // page) - held
        pages: PageRuns = ()
        if need > 0:
            taken = tree.take(DEVICE, need)
            if taken is None:
                raise InputError(
                    f"request {request.number} (counted from 0): its {kv_tokens} tokens "
                    f"need {need + held} pages of "
                    f"{page} tokens, but L1 has {tree.tiers[DEVICE].capacity}: give a larger --l1"
                )
            pages = taken
        hits = (held, 0, 0)
        goal = max(match.host, match.storage)
        if self._restores and goal > held:
            end = tree.cut_at(match.node, goal)
            restored, rest = tree.cut_pages(pages, goal - held)
            if self._restore(end, held, restored):
                tree.repin(node, end, DEVICE)
                node, pages, need = end, rest, need - (goal - held)
                from_host = max(0, min(match.host, goal) - held)
                hits = (held, from_host, goal - held - from_host)
                held = goal
        self._leave_pages(request, node, held, pages, need, kv_tokens)
        self._write_row(request, hits)

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
        """Write what L2 and L3 lack of the L1-resident path ending at `node`."""
        tree = self._tree
        for direction, source, target, pressure in self._ways_down:
            first, _ = tree.covered(node, target)
            if first >= node.depth + node.length:
                continue
            taken = tree.place(node, target, first)
            if taken is None:
                self._metrics.dropped_pages[pressure] += node.end - first
                return
            self._count(direction, node, source, first, taken)

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
        more = kv_tokens // self._page - held if self._caches_outputs else 0
        if more > 0:
            end = tree.append(node, answer_runs(request, more, self._private_key))
            self._private_key += more + 1
            node, _, pages, adopted = tree.adopt(node, end, held, pages)
            private -= adopted
        if private > 0:
            tree.give(DEVICE, pages, private)
        self._write_through(node)
        tree.unpin(node, DEVICE)

    def _write_row(self, request: Request, hits: tuple[int, int, int]) -> None:
        metrics, page = self._metrics, self._page
        metrics.requests += 1
        made = max(
            request.output_tokens, 1
        )  # as when it is timed: the prompt's last token makes one
        metrics.output_tokens += made
        metrics.finish_row(request, page, hits, (0, 0, 0, 0, 0, made, 0), "")
