"""Continuous batching: who is admitted, what the GPU does next, and when a request is done.

One process makes one GPU step after the other:

    admit what fits -> prefill chunks, if any -> else a decode burst, if anyone decodes -> else wait

Restores of admitted requests run beside it, under decode. A decode burst goes on until its first
request is done; whatever could change the plan sooner (an arrival at the head of the queue, a
publication, an abort) calls `poke`, which ends the burst at its next step boundary.

L1 is shared by cached and running KV. A request takes the pages of its prompt at admission and
leaves its pages to the tree when its prompt is computed; decode reserves the pages of a burst
before it begins and gives back what was not needed. When not even one step's pages can be had, the
newest request is retracted.
"""

# pyright: reportPrivateUsage=false
# `Environment.now` is a property in Python; see hicache.kernel.
from __future__ import annotations

from collections import deque
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Any, final

from simpy import Environment

from hicache.arrival import Arrival
from hicache.cost_model import MIN_PREFILL_TOKENS, CostModel
from hicache.errors import InputError, PredecessorError, TransferError
from hicache.holdings import Holdings
from hicache.kernel import Pending, Signal, Task
from hicache.loads import Early, QueuedLoad, Ready
from hicache.metrics import Metrics
from hicache.node import DEVICE, HOST, Node
from hicache.operations import Chunk, Completion, Decode, PageRuns, Prefill
from hicache.options import EngineOptions
from hicache.ports import Lanes
from hicache.prefetch import Prefetcher
from hicache.queue import RequestQueue
from hicache.requests import KeyRuns, Request, without_last_page
from hicache.restore_policy import Choice, Policy
from hicache.running import DecodeBatch, Running
from hicache.store_index import StoreWriter
from hicache.transfers import Transfers
from hicache.tree import HiRadixTree, Match


@final
class Scheduler:
    """Serves requests on one GPU. `on_step` is called before each GPU step (integrity checks,
    progress).
    """

    def __init__(
        self,
        env: Environment,
        lanes: Lanes,
        tree: HiRadixTree,
        policy: Policy,
        belief: CostModel,
        metrics: Metrics,
        options: EngineOptions,
    ) -> None:
        self._env: Any = env  # its times are ints
        self._lanes = lanes
        self._tree = tree
        self._device = tree.tiers[DEVICE]
        self._policy = policy
        self._belief = belief
        self._metrics = metrics
        self._options = options
        self._page = options.page_size_tokens
        self._max_running = options.scheduler.max_running_requests
        self._reserve = options.scheduler.output_reserve_fraction
        self._mixes = options.scheduler.mixed_chunk
        self._caps_hits = options.cache.hit_cap == "last_token_computed"
        self._layerwise = options.restore.layerwise
        self._loads_late = options.restore.start == "prefill"
        self._gathers_loads = options.restore.merge_loads and not self._loads_late
        self.transfers = Transfers(env, lanes, tree, options, metrics, belief, self.changed)
        self._writes_back = self.transfers.writes_back
        self._holdings = Holdings(tree, self.transfers, options, metrics)
        # What reads and writes a store that is asked by page key; None without one.
        self.prefetcher: Prefetcher | None = None
        self.store_writer: StoreWriter | None = None
        if options.has_store:
            self.prefetcher = Prefetcher(
                env, lanes, tree, options, metrics, self._fetched, self.changed
            )
            self.store_writer = StoreWriter(lanes, tree, options, metrics, self.changed)
            self.transfers.on_backed_up = self.store_writer.write
        self._aside = 0  # requests that were at the head of the queue and wait for a prefetch
        self.on_step: Callable[[], None] | None = None
        self.on_end: Callable[[Request], None] | None = None
        self._queue = RequestQueue()
        self._prefilling: deque[Running] = deque()
        self._batch = DecodeBatch(self._page)
        self._live: dict[int, Running] = {}  # by request number
        self._running = 0
        self._restoring = 0
        self._orders = 0
        self._wake: Signal[None] | None = None
        self._burst: Pending[Completion] | None = None
        self._burst_start_ns = 0
        self._aborting: list[Running] = []
        self._loaded: list[Running] = []  # those of phase "loading" whose load has ended
        self._closed = False
        # Under write back: pages that the head of the queue will be given once L1 has written them
        # back; what it found in L1 and L2 is pinned meanwhile.
        self._wanted: tuple[int, Node, Node] | None = None
        # L1 pages that the head of the queue needs and did not get; 0: it does not wait for room.
        # Admission is tried again when there is that much, not at every step: only a prefix
        # published meanwhile could make it need less.
        self._short = 0
        self._prefill_outputs = 0  # tokens that the requests being prefilled will make

    # ------------------------------------------------------------------ from outside

    def enqueue(self, request: Request) -> None:
        """A request arrives now. Raises InputError if L1 could never hold it."""
        pages = -(-(request.prompt_tokens + max(request.output_tokens, 1) - 1) // self._page)
        if pages > self._device.capacity:
            raise InputError(
                f"request {request.number} (counted from 0): its prompt of "
                f"{request.prompt_tokens} tokens and output of {request.output_tokens} need "
                f"{pages} pages of {self._page} tokens, but L1 has {self._device.capacity}: "
                "give a larger --l1"
            )
        self._orders += 1
        run = Running(request, self._orders, self._env._now)
        self._live[request.number] = run
        self._queue.join(run)
        if self.prefetcher is not None:
            self.prefetcher.begin(run, self._hittable(request))
        waiting = self._queue.size + self._aside
        if waiting > self._metrics.max_waiting:
            self._metrics.max_waiting = waiting
        if self._queue.size == 1:  # behind others it changes nothing: the queue is served in order
            self.poke()

    def close(self) -> None:
        """No more requests will come: `run` ends when those it has are done."""
        self._closed = True
        self.poke()

    def abort(self, number: int) -> bool:
        """Give request `number` up, wherever it is; False if it is not (or no longer) known."""
        run = self._live.get(number)
        if run is None or run.aborting:
            return False
        run.aborting = True
        self._aborting.append(run)
        self.poke()
        return True

    def poke(self) -> None:
        """Something changed: look at the plan again, at the next step boundary."""
        if self._wake is not None:
            wake, self._wake = self._wake, None
            wake.succeed()
        elif self._burst is not None:
            self._lanes.end_burst(self._burst)

    def changed(self) -> None:
        """Pages were published or unpinned: it matters to an idle GPU, and to a request that lacked
        room.
        """
        if self._wake is not None or (self._short and self._has_room(self._short)):
            self.poke()

    @property
    def waiting(self) -> int:
        """Requests in the queue, or waiting for a prefetch."""
        return self._queue.size + self._aside

    @property
    def load(self) -> int:
        """Requests that have come and not ended."""
        return len(self._live)

    @property
    def running(self) -> int:
        """Requests admitted and not done."""
        return self._running

    # ------------------------------------------------------------------ the loop

    async def run(self) -> None:
        """Serve until `close` was called and every request is done."""
        blocking = not self._options.restore.overlap
        while True:
            if self._loaded:
                self._take_loaded()
            if self._aborting:
                self._drop_aborted()
            if self._tree.evicts_ahead:
                if self._writes_back and await self.transfers.make_room_ahead():
                    continue
                self._tree.evict_ahead()
            if self._queue.size and not (self._short and not self._has_room(self._short)):
                if self._gathers_loads:
                    self._admit_gathering()
                else:
                    self._admit()
            if self._wanted is not None:
                await self._make_room(self._wanted)
                continue
            if self.on_step is not None:
                self.on_step()
            if blocking and self._restoring:
                await self._idle()
            elif self._prefilling:
                await self._prefill_step()
            elif self._batch.size:
                await self._decode_burst()
            elif self._closed and not self._live:
                return
            else:
                await self._idle()

    async def _idle(self) -> None:
        self._wake = Signal(self._env)
        await self._wake

    # ------------------------------------------------------------------ admission

    def _admit(self) -> None:
        self._short = 0
        if self.prefetcher is not None:
            self.prefetcher.look_again()
        while self._running < self._max_running:
            run = self._queue.head()
            if run is None:
                break
            if self.prefetcher is not None and not self.prefetcher.settle(run):
                self._queue.pop()  # those behind it do not wait
                run.phase = "prefetching"
                self._aside += 1
            elif not self._start(run):
                break
        if self._running > self._metrics.max_running:
            self._metrics.max_running = self._running

    def _admit_gathering(self) -> None:
        """The loads of one round of admission are one copy."""
        begins = self.transfers.loads
        loads: list[QueuedLoad] = []
        begins.gathered = loads
        self._admit()
        begins.gathered = None
        if loads:
            begins.begin(loads)

    def _start(self, run: Running) -> bool:
        """Admit `run`, or let it wait for somebody's restore; False if it does not fit now."""
        tree, request = self._tree, run.request
        match = tree.match(self._hittable(request))
        held, reason = match.device, ""
        goal = held
        if match.depth > held and not run.restore_failed:
            arrival = tree.arriving_at(match.node, DEVICE, held)
            if arrival is not None:
                self._queue.pop()
                Task(self._join(run, arrival))
                return True
            if match.host > held or match.storage > held:
                goal, reason = self._choose(run, match)
        return self._take_pages(run, match, goal, reason)

    def _hittable(self, request: Request) -> KeyRuns:
        """The keys of the pages of its prompt that may hit."""
        runs = request.prompt_runs
        if self._caps_hits and request.prompt_pages * self._page >= request.prompt_tokens:
            return without_last_page(runs)
        return runs

    def _fetched(self, run: Running) -> None:
        """`run` need not wait for its prefetch any more."""
        if run.phase == "prefetching" and not run.aborting:
            self._aside -= 1
            self._queue.rejoin(run)
            self._short = 0  # whoever lacked room is not the head any more
            self.poke()

    def _choose(self, run: Running, match: Match) -> Choice:
        """What the policy says; asked once for the same hits, however often admission is tried."""
        hits = (match.device, match.host, match.storage)
        if run.choice is None or run.choice[0] != hits:
            run.choice = (hits, self._policy(match))
        return run.choice[1]

    def _take_pages(self, run: Running, match: Match, goal: int, reason: str) -> bool:
        """Pin the L1 hit, take the pages of the rest of the prompt, and begin the restore or the
        prefill.
        """
        tree, page = self._tree, self._page
        held = match.device
        # A node of its own for what is pinned: what others may restore behind it stays evictable.
        node = match.node if match.depth == held else tree.cut_at(match.node, held)
        tree.pin(node, DEVICE)
        tokens = run.kv_tokens
        need = -(-tokens // page) - held
        if need < 0:
            need = 0  # a cached page that is partly filled counts in full
        if not self._has_room(need + 1):
            self._short = need + 1
            tree.unpin(node, DEVICE)
            return False
        if self._writes_back and need > self._device.allocator.free:
            found = match.node if match.host > held else node
            tree.pin(found, HOST)
            self._wanted = (need, node, found)
            return False
        self._queue.pop()
        end = tree.cut_at(match.node, goal) if goal > held else node
        pages = tree.take(DEVICE, need)
        assert pages is not None
        run.node, run.held, run.listed = node, held, -1
        run.matched_ns = self._env._now
        run.private, run.private_pages = need, pages
        past = held * page
        if past > run.request.prompt_tokens:  # its last page is cached, partly filled
            past = run.request.prompt_tokens
        run.past_tokens = past
        # Every request computes at least its last token, so that there is a next one.
        run.todo_tokens = tokens - past or 1
        self._running += 1
        if run.admitted_ns < 0:
            run.admitted_ns = self._env._now
            run.cached_pages = (held, 0, 0)
            run.reason = reason
            if reason:
                self._metrics.count_choice(reason)
        if goal > held:
            run.phase = "restoring"
            self._restoring += 1
            Task(self._restore(run, end, match))
        else:
            self._to_prefill(run)
        return True

    async def _make_room(self, wanted: tuple[int, Node, Node]) -> None:
        """Let L1 write back what must leave it for the head of the queue. Nothing else goes on
        meanwhile: no admission, no step.
        """
        need, node, found = wanted
        self._wanted = None
        await self.transfers.make_room(need)
        self._tree.unpin(node, DEVICE)
        self._tree.unpin(found, HOST)

    def _has_room(self, pages: int) -> bool:
        """Whether L1 can give `pages` pages and keep room for the outputs still to come of those
        who run.

        Nothing is kept when nobody runs, so that admission goes on; `pages` is one more than is
        needed.
        """
        device = self._device
        available = device.allocator.free + device.evictable - pages + 1
        if available < 0 or not self._running:
            return available >= 0
        tokens = self._batch.outstanding_tokens() + self._prefill_outputs
        if available * self._page < self._reserve * tokens:
            return False
        # Whole pages, too: requests that cross into a new page together must all get one, or one
        # that was just retracted for want of them would come back at once and go again.
        return available >= self._batch.pages_for(1)

    async def _join(self, run: Running, arrival: Arrival) -> None:
        """Wait for a restore that somebody else began, then queue again in the old place."""
        self._metrics.joined_restores += 1
        run.phase = "restoring"
        await self.transfers.joined(arrival)
        if run.aborting:
            self._close_aborted(run)
            return
        self._queue.rejoin(run)
        self._short = 0  # whoever lacked room is not the head any more
        self.poke()

    async def _restore(self, run: Running, end: Node, match: Match) -> None:
        """Bring the pages up to `end` into L1; on failure the request computes them."""
        metrics, tree, env = self._metrics, self._tree, self._env
        held, goal = run.held, end.end
        began_ns, under_decode_ns = env._now, self._decode_clock_ns()
        mine, rest = tree.cut_pages(run.private_pages, goal - held)
        assert run.node is not None
        early: Early | None = None
        ready: Ready | None = None
        if self._loads_late:
            ready = partial(self._prefill_later, run, goal)
        elif self._layerwise:
            early = partial(self._prefill_early, run, goal)
        try:
            await self.transfers.restore(end, held, mine, early, ready)
        except (TransferError, PredecessorError):
            if run.queued_load is None:
                metrics.restore_fallbacks += 1
            run.queued_load = None
            run.restore_failed = True
            run.reason = "restore_failed"
            if run.load >= 0:  # whatever was computed rests on pages that did not come
                self._set_past(run, held)
                if run.retractions:
                    metrics.recomputed_tokens += (goal - held) * self._page
        else:
            tree.unpin(run.node, DEVICE)
            run.node, run.held = end, goal
            run.private, run.private_pages = run.private - (goal - held), rest
            if run.load < 0:
                self._set_past(run, goal)
            metrics.restores += 1
            metrics.restored_pages += goal - held
            if run.retractions == 0:
                from_host = max(0, min(match.host, goal) - held)
                if run.prefetched_pages:  # of them, what a store held
                    from_host -= min(from_host, run.prefetched_pages)
                run.cached_pages = (held, from_host, goal - held - from_host)
        took_ns = env._now - began_ns
        run.restored_ns += took_ns
        metrics.restore_ns += took_ns
        metrics.restore_under_decode_ns += min(took_ns, self._decode_clock_ns() - under_decode_ns)
        self._restoring -= 1
        load, run.load = run.load, -1
        if run.phase == "restoring":
            if run.aborting:
                self._release(run)
                self._close_aborted(run)
            else:
                self._to_prefill(run)
        elif run.phase == "loading":
            self._loaded.append(run)
        else:
            assert load >= 0, "a request was prefilled while it was restored, and not early"
        self.poke()

    def _prefill_early(self, run: Running, goal: int, load: int) -> None:
        """Copy `load` brings pages up to `goal`: prefill what comes behind them meanwhile."""
        if run.aborting:
            return  # it is let go when the copy has ended
        run.load = load
        self._set_past(run, goal)
        self._to_prefill(run)
        self.poke()

    def _prefill_later(self, run: Running, goal: int, load: QueuedLoad) -> None:
        """Pages up to `goal` are in L2: they are loaded with the step that computes what comes
        behind them.
        """
        run.queued_load = load
        if run.aborting:
            load.give_up()
            return
        self._set_past(run, goal)
        self._to_prefill(run)
        self.poke()

    def _set_past(self, run: Running, pages: int) -> None:
        """The first `pages` pages of `run` are in L1, or will be; the rest is to be computed."""
        run.past_tokens = min(pages * self._page, run.request.prompt_tokens)
        run.todo_tokens = max(1, run.kv_tokens - run.past_tokens)

    def _to_prefill(self, run: Running) -> None:
        run.phase = "prefilling"
        self._prefilling.append(run)
        self._prefill_outputs += run.request.output_tokens - run.generated
        if run.retractions:
            self._metrics.recomputed_tokens += run.todo_tokens

    def _decode_clock_ns(self) -> int:
        """Time spent in decode bursts so far, the present one included."""
        if self._burst is None:
            return self._metrics.decode_ns
        return self._metrics.decode_ns + self._env._now - self._burst_start_ns

    # ------------------------------------------------------------------ prefill

    async def _prefill_step(self) -> None:
        """Compute up to `chunk_tokens` prompt tokens, first come first served.

        A request whose pages are still being loaded has a step of its own, or with those whose
        pages come with the same copy: others would wait for its pages, too. Where loads begin with
        their step, all of it waits for them in any case.
        """
        budget = self._options.scheduler.chunk_tokens
        if self._loads_late:
            await self._begin_loads(budget)
        prefilling = self._prefilling
        chunks: list[Chunk] = []
        runs: list[Running] = []
        now = self._env._now
        left = budget
        load = -1
        while prefilling and left:
            run = prefilling[0]
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
            prefilling.popleft()
        tokens = budget - left
        if load >= 0:
            await self._loading_step(runs, Prefill(tuple(chunks), tokens, load=load))
            return
        if self._mixes and self._batch.size:
            done = await self._mixed_step(tuple(chunks), tokens)
        else:
            done = await self._lanes.submit(Prefill(tuple(chunks), tokens))
        if tokens >= MIN_PREFILL_TOKENS:
            self._belief.prefill.observe(tokens, done.recurring_ns * 1e-9)
        self._count_prefill(done)
        for run in runs:
            if not run.todo_tokens:
                self._computed(run)

    async def _begin_loads(self, budget: int) -> None:
        """Begin what the requests of the next step have to load, as far as `budget` goes; without
        layer-wise loads the step begins when they have ended.
        """
        begun: list[Running] = []
        loads: list[QueuedLoad] = []
        for run in self._prefilling:
            if budget <= 0:
                break
            if run.queued_load is not None:
                begun.append(run)
                loads.append(run.queued_load)
            budget -= run.todo_tokens
        if not loads:
            return
        number = self.transfers.loads.begin(loads)
        for run in begun:
            run.load, run.queued_load = number, None
        if self._layerwise:
            return
        for load in loads:
            with suppress(TransferError):
                await load.done

    async def _loading_step(self, runs: list[Running], operation: Prefill) -> None:
        """A prefill step of requests whose pages are still being loaded; they are in no list
        meanwhile. What is computed counts once the load has ended well: `_restore` sees to that,
        and to a load that fails.
        """
        failed = False
        try:
            # It waits for pages: nothing is to be learned from how long it takes.
            self._count_prefill(await self._lanes.submit(operation))
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
        self._prefilling.extendleft(reversed(again))

    def _count_prefill(self, done: Completion) -> None:
        self._metrics.prefill_steps += 1
        self._metrics.prefill_ns += done.finished_ns - done.started_ns

    def _take_loaded(self) -> None:
        """Requests that had been computed (or had failed to be) before their load ended."""
        loaded, self._loaded = self._loaded, []
        for run in loaded:
            run.phase = "prefilling"
            if not run.todo_tokens:
                self._computed(run)
            elif run.aborting:
                self._abort_prefill(run)
            else:
                self._prefilling.appendleft(run)

    def _look_again(self, run: Running) -> None:
        """Just before its first chunk: what was published since `run` was admitted is a hit, too.

        Requests of one burst are admitted together; all but the first find the prefix that they
        share computed by the time it is their turn.
        """
        tree, request, page = self._tree, run.request, self._page
        match = tree.match(self._hittable(request))
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
        run.past_tokens = min(run.held * page, request.prompt_tokens)
        run.todo_tokens = max(1, run.kv_tokens - run.past_tokens)
        _, host, storage = run.cached_pages
        run.cached_pages = (run.held - host - storage, host, storage)

    async def _mixed_step(self, chunks: tuple[Chunk, ...], tokens: int) -> Completion:
        """A prefill step in which the decode batch rides along, if its one step's pages can be
        had.
        """
        batch = self._batch
        need = batch.pages_for(1)
        if self._writes_back and need > self._device.allocator.free:
            await self.transfers.make_room(need)
        pages = self._tree.take(DEVICE, need)
        if pages is None:
            return await self._lanes.submit(Prefill(chunks, tokens))
        batch.share_out(1, pages)
        operation = Prefill(chunks, tokens, batch.size, batch.context_tokens)
        done = await self._lanes.submit(operation)
        self._metrics.decode_steps += 1
        self._advance(1, 1, need)
        return done

    def _computed(self, run: Running) -> None:
        """The prompt is in L1 and the first (or, after a retraction, the next) token is made."""
        kv_tokens = run.kv_tokens
        self._prefill_outputs -= run.request.output_tokens - run.generated
        run.generated += 1
        if run.first_token_ns < 0:
            run.first_token_ns = self._env._now
        if run.aborting:
            self._release(run)
            self._close_aborted(run)
            return
        self._holdings.leave_prompt(run)
        remaining = run.request.output_tokens - run.generated
        if remaining <= 0:
            self._finish(run, kv_tokens)
        else:
            run.phase = "decoding"
            self._batch.add(run, kv_tokens, remaining)

    # ------------------------------------------------------------------ decode

    async def _decode_burst(self) -> None:
        """Decode until the first request is done, or until `poke`."""
        batch, tree = self._batch, self._tree
        steps = batch.steps_to_first_finish
        need = batch.pages_for(steps)
        pages: PageRuns = ()
        if need:
            if need > self._device.available:
                steps = batch.steps_within(self._device.available, steps)
                if not steps:
                    if not self._retract():
                        await self._idle()
                    return
                need = batch.pages_for(steps)
            if self._writes_back and need > self._device.allocator.free:
                await self.transfers.make_room(need)
                return  # whatever has happened meanwhile comes first
            taken = tree.take(DEVICE, need)
            assert taken is not None
            pages = taken
        requests: tuple[int, ...] = ()
        if tree.named:
            requests = tuple(run.request.number for run in batch)
            batch.share_out(steps, pages)
        self._burst_start_ns = self._env._now
        self._burst = self._lanes.submit(Decode(batch.size, batch.context_tokens, steps, requests))
        done = await self._burst
        self._burst = None
        metrics = self._metrics
        metrics.decode_bursts += 1
        metrics.decode_steps += done.steps
        metrics.decode_ns += self._env._now - self._burst_start_ns
        self._advance(done.steps, steps, need)

    def _advance(self, steps: int, planned: int, reserved: int) -> None:
        """The batch made `steps` tokens of `planned`; of the reserved pages it keeps what they
        fill.
        """
        batch = self._batch
        if steps < planned and reserved:
            used = batch.pages_for(steps)
            if reserved > used:
                spare = batch.take_back(steps) if self._tree.named else ()
                self._tree.give(DEVICE, spare, reserved - used)
        batch.steps += steps
        while (run := batch.pop_finished()) is not None:
            request = run.request
            run.generated = request.output_tokens
            kv_tokens = request.prompt_tokens + request.output_tokens - 1
            # While it decoded its pages were counted by the batch; now they are its own again.
            run.private = -(-kv_tokens // self._page) - run.held
            self._finish(run, kv_tokens)

    def request(self, number: int) -> Request:
        """A request that is queued or runs."""
        return self._live[number].request

    def decoding(self) -> list[tuple[int, int]]:
        """(request number, tokens in its KV cache) of the decode batch, in its order."""
        return [(run.request.number, self._batch.kv_tokens(run)) for run in self._batch]

    def page_lists(self, number: int) -> tuple[PageRuns, PageRuns]:
        """The L1 pages that hold, or are about to hold, the KV cache of a request that runs: those
        of the tree, then its own, each in order; for machines with real pages.
        """
        run = self._live[number]
        node, held = run.node, run.held
        if node is None:
            return (), ()
        if run.listed != held:  # what is pinned keeps its pages
            run.listed, run.held_pages = held, self._tree.pages_from(node, DEVICE, 0)
        return run.held_pages, run.private_pages

    def _count_decode_pages(self, run: Running, kv_tokens: int) -> None:
        """While a request decodes its pages are counted by the batch; now they are its own
        again.
        """
        run.private = -(-kv_tokens // self._page) - run.held

    def _retract(self) -> bool:
        """Take the newest decoding request's pages away; False if waiting for transfers may help
        instead.
        """
        batch = self._batch
        if batch.size == 1:
            assert (
                self.transfers.writes_pending or self.transfers.restores_pending or self._restoring
            )
            return False
        run = batch.newest()
        kv_tokens = batch.kv_tokens(run)
        batch.remove(run)
        run.generated = kv_tokens - run.request.prompt_tokens + 1
        self._count_decode_pages(run, kv_tokens)
        self._release(run)
        run.retractions += 1
        run.restore_failed = False
        self._metrics.retractions += 1
        self._metrics.retracted_tokens += run.generated
        self._queue.rejoin(run)
        self._short = 0  # whoever lacked room is not the head any more
        return True

    # ------------------------------------------------------------------ endings

    def _finish(self, run: Running, kv_tokens: int) -> None:
        """All tokens are made: leave the pages to the cache, write the row."""
        self._holdings.leave_all(run, kv_tokens)
        self._running -= 1
        run.phase = "finished"
        del self._live[run.request.number]
        self._write_row(run)

    def _release(self, run: Running) -> None:
        self._holdings.release(run)
        self._running -= 1

    def _drop_aborted(self) -> None:
        """Let go of aborted requests that no transfer or step is using; the others see the flag
        themselves.
        """
        aborting, self._aborting = self._aborting, []
        for run in aborting:
            if run.phase == "queued":
                self._queue.remove(run)
                self._short = 0  # it may have been the one that lacked room
                self._close_aborted(run)
            elif run.phase == "prefetching":
                self._aside -= 1
                self._close_aborted(run)
            elif run.phase == "prefilling":
                self._prefilling.remove(run)
                if run.load < 0 and run.queued_load is None:
                    self._abort_prefill(run)
                else:  # its pages are being written to: it is let go when they are there
                    run.phase = "restoring"
                    self._prefill_outputs -= run.request.output_tokens - run.generated
                    if run.queued_load is not None:
                        run.queued_load.give_up()
            elif run.phase == "decoding":
                kv_tokens = self._batch.kv_tokens(run)
                self._batch.remove(run)
                run.generated = kv_tokens - run.request.prompt_tokens + 1
                self._count_decode_pages(run, kv_tokens)
                self._release(run)
                self._close_aborted(run)

    def _abort_prefill(self, run: Running) -> None:
        self._prefill_outputs -= run.request.output_tokens - run.generated
        self._release(run)
        self._close_aborted(run)

    def _close_aborted(self, run: Running) -> None:
        run.phase = "aborted"
        run.reason = "aborted"
        if self.prefetcher is not None:
            self.prefetcher.abandon(run)
        self._metrics.aborted += 1
        del self._live[run.request.number]
        self._write_row(run)

    def _write_row(self, run: Running) -> None:
        metrics, now = self._metrics, self._env._now
        arrival, admitted, first = run.enqueued_ns, run.admitted_ns, run.first_token_ns
        metrics.requests += 1
        metrics.output_tokens += run.generated
        metrics.last_token_ns = now
        if metrics.first_arrival_ns < 0 or arrival < metrics.first_arrival_ns:
            metrics.first_arrival_ns = arrival
        metrics.finish_row(
            run.request,
            self._page,
            run.cached_pages,
            (
                (admitted if admitted >= 0 else now) - arrival,
                run.restored_ns,
                first - run.prefill_start_ns if first >= 0 else 0,
                first - arrival if first >= 0 else -1,
                now - arrival if run.phase == "finished" else -1,
                run.generated,
                run.retractions,
            ),
            run.reason,
        )
        if self.on_end is not None:
            self.on_end(run.request)
