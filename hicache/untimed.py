"""Serving requests one at a time, as if nothing took time: pure hit counting over the very same
tree.

A request looks up, restores what lower tiers hold, leaves its pages, and is written through before
the next one begins. Prefill and decode are not submitted; copies are, on lanes where they are over
at once. There is no queue, no batch and no belief here: with restores that cost nothing, every hit
is worth taking.
"""

from __future__ import annotations

from collections.abc import Iterable

from hicache.errors import InputError, PredecessorError, TransferError
from hicache.holdings import FIRST_PRIVATE_KEY
from hicache.kernel import Task
from hicache.metrics import Metrics
from hicache.node import DEVICE, Node
from hicache.operations import PageRuns
from hicache.options import EngineOptions
from hicache.requests import Request, without_last_page
from hicache.transfers import Transfers
from hicache.tree import HiRadixTree


class UntimedServer:
    """Serves requests in the order in which they are given."""

    def __init__(
        self, tree: HiRadixTree, transfers: Transfers, metrics: Metrics, options: EngineOptions
    ) -> None:
        self._tree = tree
        self._transfers = transfers
        self._metrics = metrics
        self._page = options.page_size_tokens
        self._caps_hits = options.cache.hit_cap == "last_token_computed"
        self._caches_outputs = options.cache.outputs == "cached"
        self._restores = options.restore.policy != "never"
        self._has_lower_tiers = options.host_pages > 0
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
        pages: PageRuns | None = ()
        if need > 0:
            pages = tree.take(DEVICE, need)
            if pages is None:
                raise InputError(
                    f"request {request.number} (counted from 0): its {kv_tokens} tokens "
                    f"need {need + held} pages of "
                    f"{page} tokens, but L1 has {tree.tiers[DEVICE].capacity}: give a larger --l1"
                )
        hits = (held, 0, 0)
        if self._restores and match.depth > held and max(match.host, match.storage) > held:
            goal = max(match.host, match.storage)
            end = tree.cut_at(match.node, goal)
            restored, pages = tree.cut_pages(pages, goal - held)
            outcome: list[bool] = []
            Task(self._restore(end, held, restored, outcome))
            assert outcome == [True], "a copy that takes no time cannot fail or wait"
            tree.unpin(node, DEVICE)
            node, need = end, need - (goal - held)
            from_host = max(0, min(match.host, goal) - held)
            hits = (held, from_host, goal - held - from_host)
            held = goal
            self._metrics.restores += 1
            self._metrics.restored_pages += hits[1] + hits[2]
        self._leave_pages(request, node, held, pages, need, kv_tokens)
        self._write_row(request, hits)

    async def _restore(self, end: Node, held: int, pages: PageRuns, outcome: list[bool]) -> None:
        try:
            await self._transfers.restore(end, held, pages)
            outcome.append(True)
        except (TransferError, PredecessorError):
            outcome.append(False)

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
            end = tree.append(node, self._private_key, more)
            self._private_key += more + 1
            node, _, pages, adopted = tree.adopt(node, end, held, pages)
            private -= adopted
        if private > 0:
            tree.give(DEVICE, pages, private)
        if self._has_lower_tiers:
            self._transfers.write_through(node)
        tree.unpin(node, DEVICE)

    def _write_row(self, request: Request, hits: tuple[int, int, int]) -> None:
        metrics, page = self._metrics, self._page
        metrics.requests += 1
        made = max(
            request.output_tokens, 1
        )  # as when it is timed: the prompt's last token makes one
        metrics.output_tokens += made
        metrics.finish_row(request, page, hits, (0, 0, 0, 0, 0, made, 0), "")
