"""Prefill: the requests whose prompts are being computed, and the steps that do it.

    add ---> step, step, ... chunks, first come first served ---> computed: decodes, or is done
      load:  the pages behind which a chunk begins are still on their way (`Running.load`); such
             requests have steps of their own, and are computed when their load has ended, too

Refuses to know how pages are restored (`hicache.restoring`); begins their loads where they wait for
the step that needs them.
"""

# pyright: reportPrivateUsage=false
# `Environment.now` is a property in Python; see hicache.kernel.
from __future__ import annotations

from collections import deque
from contextlib import suppress
from typing import Any, final

from simpy import Environment

from hicache.cost_model import MIN_PREFILL_TOKENS, CostModel
from hicache.decoding import DecodeSteps
from hicache.endings import Endings
from hicache.errors import TransferError
from hicache.holdings import Holdings
from hicache.loads import Loads, QueuedLoad
from hicache.metrics import Metrics
from hicache.node import DEVICE
from hicache.operations import Chunk, Completion, Prefill
from hicache.options import EngineOptions
from hicache.ports import Lanes
from hicache.requests import hittable
from hicache.running import Running
from hicache.tree import HiRadixTree


@final
class PrefillSteps:
    """The prefill steps of one engine."""

    def __init__(
        self,
        env: Environment,
        lanes: Lanes,
        tree: HiRadixTree,
        loads: Loads,
        holdings: Holdings,
        endings: Endings,
        decode: DecodeSteps,
        belief: CostModel,
        options: EngineOptions,
        metrics: Metrics,
    ) -> None:
        self._env: Any = env  # its times are ints
        self._lanes = lanes
        self._tree = tree
        self._loads = loads
        self._holdings = holdings
        self._endings = endings
        self._decode = decode
        self._belief = belief
        self._metrics = metrics
        self._page = options.page_size_tokens
        self._capped_page = options.capped_page_tokens
        self._chunk_tokens = options.scheduler.chunk_tokens
        self._mixes = options.scheduler.mixed_chunk
        self._layerwise = options.restore.layerwise
        self._loads_late = options.restore.start == "prefill"
        self.waiting: deque[Running] = deque()
        self.loaded: list[Running] = []  # those of phase "loading" whose load has ended
        self.outputs = 0  # tokens that the requests being prefilled will make

    def set_past(self, run: Running, pages: int) -> None:
        """The first `pages` pages of `run` are in L1, or will be; the rest is to be computed."""
        run.past_tokens = min(pages * self._page, run.request.prompt_tokens)
        run.todo_tokens = max(1, run.kv_tokens - run.past_tokens)

    def add(self, run: Running) -> None:
        """`run` is to be prefilled, from its past on."""
        run.phase = "prefilling"
        self.waiting.append(run)
        self.outputs += run.request.output_tokens - run.generated
        if run.retractions:
            self._metrics.recomputed_tokens += run.todo_tokens

    def take_loaded(self) -> None:
        """Requests that had been computed (or had failed to be) before their load ended."""
        loaded, self.loaded = self.loaded, []
        for run in loaded:
            run.phase = "prefilling"
            if not run.todo_tokens:
                self._computed(run)
            elif run.aborting:
                self._give_up(run)
            else:
                self.waiting.appendleft(run)

    def drop(self, run: Running) -> None:
        """`run`, which waits for its next step, was aborted."""
        self.waiting.remove(run)
        if run.load < 0 and run.queued_load is None:
            self._give_up(run)
            return
        run.phase = "restoring"  # its pages are being written to: let go when they are there
        self.outputs -= run.request.output_tokens - run.generated
        if run.queued_load is not None:
            run.queued_load.give_up()

    async def step(self) -> None:
        """Compute up to `chunk_tokens` prompt tokens, first come first served.

        A request whose pages are still being loaded has a step of its own, or with those whose
        pages come with the same copy: others would wait for its pages, too. Where loads begin with
        their step, all of it waits for them in any case.
        """
        budget = self._chunk_tokens
        if self._loads_late:
            await self._begin_loads(budget)
        waiting = self.waiting
        chunks: list[Chunk] = []
        runs: list[Running] = []
        now = self._env._now
        left = budget
        load = -1
        while waiting and left:
            run = waiting[0]
            if run.load != load and chunks and not self._loads_late:
                break
            if run.queued_load is not None:
                break  # others need less than was thought: there was no budget for it
            if run.load > load:
                load = run.load
            if run.prefill_start_ns < 0:
                run.prefill_start_ns = now
                if run.load < 0 and now > run.matched_ns:
                    self._look_again(run)
            part = run.todo_tokens if run.todo_tokens < left else left
            chunks.append(Chunk(run.request.number, part, run.past_tokens))
            runs.append(run)
            left -= part
            run.todo_tokens -= part
            run.past_tokens += part
            if run.todo_tokens and load < 0:
                break
            waiting.popleft()
        tokens = budget - left
        if load >= 0:
            await self._loading_step(runs, Prefill(tuple(chunks), tokens, load=load))
            return
        if self._mixes and self._decode.batch.size:
            done = await self._decode.mixed(tuple(chunks), tokens)
        else:
            done = await self._lanes.submit(Prefill(tuple(chunks), tokens))
        if tokens >= MIN_PREFILL_TOKENS:
            self._belief.prefill.observe(tokens, done.recurring_ns * 1e-9)
        self._count(done)
        for run in runs:
            if not run.todo_tokens:
                self._computed(run)

    async def _begin_loads(self, budget: int) -> None:
        """Begin what the requests of the next step have to load, as far as `budget` goes; without
        layer-wise loads the step begins when they have ended.
        """
        begun: list[Running] = []
        loads: list[QueuedLoad] = []
        for run in self.waiting:
            if budget <= 0:
                break
            if run.queued_load is not None:
                begun.append(run)
                loads.append(run.queued_load)
            budget -= run.todo_tokens
        if not loads:
            return
        number = self._loads.begin(loads)
        for run in begun:
            run.load, run.queued_load = number, None
        if self._layerwise:
            return
        for load in loads:
            with suppress(TransferError):
                await load.done

    async def _loading_step(self, runs: list[Running], operation: Prefill) -> None:
        """A prefill step of requests whose pages are still being loaded; they are in no list
        meanwhile. What is computed counts once the load has ended well: `hicache.restoring` sees to
        that, and to a load that fails.
        """
        failed = False
        try:
            # It waits for pages: nothing is to be learned from how long it takes.
            self._count(await self._lanes.submit(operation))
        except TransferError:
            failed = True
        again: list[Running] = []
        for run, chunk in zip(runs, operation.chunks, strict=True):
            if failed and run.past_tokens == chunk.past_tokens + chunk.new_tokens:
                run.past_tokens = chunk.past_tokens
                run.todo_tokens += chunk.new_tokens
            if run.load >= 0 and (failed or not run.todo_tokens):
                run.phase = "loading"
            elif run.todo_tokens:
                again.append(run)
            else:
                self._computed(run)
        self.waiting.extendleft(reversed(again))

    def _count(self, done: Completion) -> None:
        self._metrics.prefill_steps += 1
        self._metrics.prefill_ns += done.finished_ns - done.started_ns

    def _look_again(self, run: Running) -> None:
        """Just before its first chunk: what was published since `run` was admitted is a hit, too.

        Requests of one burst are admitted together; all but the first find the prefix that they
        share computed by the time it is their turn.
        """
        tree = self._tree
        match = tree.match(hittable(run.request, self._capped_page))
        more = match.device - run.held
        if more <= 0:
            return
        assert run.node is not None
        node = match.node if match.depth == match.device else tree.cut_at(match.node, match.device)
        tree.repin(run.node, node, DEVICE)
        spare = min(more, run.private)
        mine, run.private_pages = tree.cut_pages(run.private_pages, spare)
        tree.give(DEVICE, mine, spare)
        run.private -= spare
        run.node, run.held = node, match.device
        self.set_past(run, run.held)
        _, host, storage = run.cached_pages
        run.cached_pages = (run.held - host - storage, host, storage)

    def _computed(self, run: Running) -> None:
        """The prompt is in L1 and the first (or, after a retraction, the next) token is made."""
        kv_tokens = run.kv_tokens
        self.outputs -= run.request.output_tokens - run.generated
        run.generated += 1
        if run.first_token_ns < 0:
            run.first_token_ns = self._env._now
        if run.aborting:
            self._endings.release(run)
            self._endings.give_up(run)
            return
        self._holdings.leave_prompt(run)
        remaining = run.request.output_tokens - run.generated
        if remaining <= 0:
            self._endings.finish(run, kv_tokens)
        else:
            run.phase = "decoding"
            self._decode.batch.add(run, kv_tokens, remaining)

    def _give_up(self, run: Running) -> None:
        self.outputs -= run.request.output_tokens - run.generated
        self._endings.release(run)
        self._endings.give_up(run)
