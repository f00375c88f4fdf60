"""Decode offload: what requests make is written to L2 and L3 while they decode, stride by stride.

    prompt, whole pages |-- stride --|-- stride --|-- not yet a stride --|  KV of one request
                        written when all requests of the batch have made one more

SGLang looks after every step; here that would be an event a step. A burst is cut after a stride's
worth of steps instead: by then each request of the batch has made exactly one stride more, so that
one cut serves all of them, and nothing is written more than a stride later than there. A burst that
ends sooner, for another reason, is no occasion.

What is written is the tree's from then on, and pinned by its request: it is found by others, and
an abort or a retraction lets go of it as of a prompt. Its room in L2 is not waited for: what finds
none is tried again with the next stride. Refuses to know how pages get to L3 (`hicache.transfers`),
and to write anything that is not whole.
"""

from __future__ import annotations

from typing import final

from hicache.holdings import Holdings
from hicache.metrics import Metrics
from hicache.options import EngineOptions
from hicache.running import DecodeBatch, Running
from hicache.transfers import Transfers


@final
class DecodeOffload:
    """The offload of one engine's answers; `options.offload_pages` must not be 0."""

    def __init__(
        self,
        batch: DecodeBatch,
        holdings: Holdings,
        transfers: Transfers,
        options: EngineOptions,
        metrics: Metrics,
    ) -> None:
        self._batch = batch
        self._holdings = holdings
        self._transfers = transfers
        self._metrics = metrics
        self._page = options.page_size_tokens
        self._stride_pages = options.offload_pages
        self._stride_tokens = self._stride_pages * self._page
        self._due = self._stride_tokens  # decode steps, counted as the batch does

    def limit(self, steps: int) -> int:
        """How many of the `steps` steps of a burst may be made before the next look."""
        left = self._due - self._batch.steps
        return steps if steps < left else left

    def advanced(self) -> None:
        """The batch has made some steps; those of it that are done have left it."""
        batch = self._batch
        if batch.steps < self._due:
            return
        self._due = batch.steps + self._stride_tokens
        for run in batch:
            self.write(run, batch.kv_tokens(run))

    def ended(self, run: Running, kv_tokens: int) -> None:
        """`run` has made its last token: the strides that are left, unless its end writes them."""
        if not self._transfers.writes_answers:
            self.write(run, kv_tokens)

    def write(self, run: Running, kv_tokens: int) -> None:
        """Write the whole strides of `run`, which has `kv_tokens` tokens in L1, that are not."""
        prompt_pages = run.request.prompt_pages
        strides = (kv_tokens - prompt_pages * self._page) // self._stride_tokens
        full_pages = prompt_pages + strides * self._stride_pages
        before = run.held
        if full_pages > before:
            self._holdings.leave_part(run, full_pages)
            if before < run.held > prompt_pages:
                self._metrics.offloaded_pages += run.held - max(before, prompt_pages)
        if strides and run.node is not None:
            self._transfers.offload(run.node)
