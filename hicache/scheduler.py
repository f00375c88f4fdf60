"""Continuous batching: what the GPU does next.

One process makes one GPU step after the other:

    admit what fits -> prefill chunks, if any -> else a decode burst, if anyone decodes -> else wait

Restores of admitted requests run beside it, under decode. A decode burst goes on until its first
request is done; whatever could change the plan sooner (an arrival at the head of the queue, a
publication, an abort) calls `poke`, which ends the burst at its next step boundary.

A request takes the pages of its prompt at admission and leaves its pages to the tree when its
prompt is computed; decode reserves the pages of a burst before it begins. When not even one step's
pages can be had, the newest request is retracted.

Refuses to do any of it itself: who is admitted (`hicache.admission`), how pages come back
(`hicache.restoring`), what a step computes (`hicache.prefilling`, `hicache.decoding`) and how a
request leaves (`hicache.endings`) are other modules.
"""

# pyright: reportPrivateUsage=false
# `Environment.now` is a property in Python; see hicache.kernel.
from __future__ import annotations

from collections.abc import Callable
from typing import Any, final

from simpy import Environment

from hicache.admission import Admission
from hicache.attachment import Attachment
from hicache.cost_model import CostModel
from hicache.decoding import DecodeSteps
from hicache.endings import Endings
from hicache.errors import InputError
from hicache.holdings import Holdings
from hicache.kernel import Signal
from hicache.metrics import Metrics
from hicache.node import DEVICE
from hicache.offloading import DecodeOffload
from hicache.options import EngineOptions
from hicache.ports import Lanes
from hicache.prefetch import Prefetcher
from hicache.prefilling import PrefillSteps
from hicache.queue_ahead import QueueAhead
from hicache.requests import Request
from hicache.restore_policy import Policy
from hicache.restoring import Restores
from hicache.running import Asked, Running
from hicache.staged_reads import StagedReads
from hicache.staged_writes import StagedWrites
from hicache.store_belief import StoreBelief
from hicache.store_index import StoreWriter
from hicache.transfers import Transfers
from hicache.tree import HiRadixTree


@final
class Scheduler:
    """Serves requests on one GPU. `on_step` is called before each GPU step (integrity checks,
    progress), `on_end` with each request that has ended.
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
        ahead: QueueAhead | None = None,
    ) -> None:
        self._env: Any = env  # its times are ints
        self._tree = tree
        self._capacity_pages = options.device_pages
        self._metrics = metrics
        self._page = options.page_size_tokens
        self._blocks = not options.restore.overlap
        self.transfers = Transfers(env, lanes, tree, options, metrics, belief, self.changed, ahead)
        self._writes_back = self.transfers.writes_back
        holdings = Holdings(tree, self.transfers, options, metrics)
        self.endings = Endings(env, holdings, options, metrics, self._ended)
        self.decode = DecodeSteps(env, lanes, tree, self.transfers, self.endings, options, metrics)
        if options.offload_pages:
            self.decode.offload = DecodeOffload(
                self.decode.batch, holdings, self.transfers, options, metrics
            )
        self._prefill = PrefillSteps(
            env, lanes, tree, self.transfers.loads, holdings, self.endings, self.decode, belief,
            options, metrics,
        )  # fmt: skip
        self._restores = Restores(
            env, tree, self.transfers, self.endings, self.decode, self._prefill, options, metrics,
            self.poke, ahead,
        )  # fmt: skip
        if ahead is not None:
            ahead.waiting = self._prefill.waiting
        self.admission = Admission(
            env, tree, self.transfers, self.endings, self.decode, self._prefill, self._restores,
            policy, options, metrics, self.poke,
        )  # fmt: skip
        # What reads and writes a store that is asked by page key; None without one.
        self.prefetcher: Prefetcher | None = None
        self.store_writer: StoreWriter | None = None
        if options.has_store:
            writer = StoreWriter(lanes, tree, options, metrics, self.changed)
            writer.reuse = self.transfers.reuse
            self.store_writer = writer
            if options.buffers:
                self.prefetcher = self._with_buffer(env, lanes, writer, options)
            else:
                self.prefetcher = Prefetcher(
                    env, lanes, tree, options, metrics, self.admission.fetched, self.changed
                )
                self.transfers.on_backed_up = writer.write
                self.transfers.on_counted = writer.write_crossed
            self.admission.prefetcher = self.endings.prefetcher = self.prefetcher
        self._attachment: Attachment | None = None
        if options.storage.switches and self.prefetcher is not None and self.store_writer:
            self._attachment = Attachment(
                env, self.prefetcher, self.store_writer, self.transfers, self.admission,
                self.endings, options, metrics,
            )  # fmt: skip
        self.on_step: Callable[[], None] | None = None
        self.on_end: Callable[[Request], None] | None = None
        self._orders = 0
        self._wake: Signal[None] | None = None
        self._aborting: list[Running] = []
        self._closed = False

    def _with_buffer(
        self, env: Environment, lanes: Lanes, writer: StoreWriter, options: EngineOptions
    ) -> StagedReads:
        """L2 is only a buffer: who writes through it, and who reads."""
        tree, transfers, metrics = self._tree, self.transfers, self._metrics
        belief = StoreBelief()
        writes = StagedWrites(tree, transfers, writer, belief, options, metrics, self.changed)
        reads = StagedReads(
            env, lanes, tree, options, metrics, self.admission.fetched, self.changed,
            transfers.loads, belief, writes.flush,
        )  # fmt: skip
        tree.tiers[DEVICE].lost_of = belief.missing
        transfers.staging = writes
        self.admission.staged = self._restores.staged = reads
        return reads

    # ------------------------------------------------------------------ from outside

    def enqueue(self, request: Request) -> None:
        """A request arrives now. Raises InputError if L1 could never hold it."""
        pages = -(-(request.prompt_tokens + max(request.output_tokens, 1) - 1) // self._page)
        if pages > self._capacity_pages:
            raise InputError(
                f"request {request.number} (counted from 0): its prompt of "
                f"{request.prompt_tokens} tokens and output of {request.output_tokens} need "
                f"{pages} pages of {self._page} tokens, but L1 has {self._capacity_pages}: "
                "give a larger --l1"
            )
        if self._attachment is not None:
            self._attachment.look()
        self._orders += 1
        run = Running(request, self._orders, self._env._now)
        self.endings.live[request.number] = run
        self.admission.join(run)
        if self.admission.queue.size == 1:  # behind others it changes nothing: served in order
            self.poke()

    def close(self) -> None:
        """No more requests will come: `run` ends when those it has are done."""
        self._closed = True
        self.poke()

    def abort(self, number: int) -> bool:
        """Give request `number` up, wherever it is; False if it is not (or no longer) known."""
        run = self.endings.live.get(number)
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
        else:
            self.decode.end_burst()

    def changed(self) -> None:
        """Pages were published or unpinned: it matters to an idle GPU, and to a request that lacked
        room.
        """
        if self._wake is not None or self.admission.hopeful:
            self.poke()

    @property
    def waiting(self) -> int:
        """Requests in the queue, or waiting for a prefetch."""
        return self.admission.waiting

    @property
    def load(self) -> int:
        """Requests that have come and not ended."""
        return len(self.endings.live)

    @property
    def running(self) -> int:
        """Requests admitted and not done."""
        return self.endings.running

    # ------------------------------------------------------------------ the loop

    async def run(self) -> None:
        """Serve until `close` was called and every request is done."""
        tree, admission, prefill, decode = self._tree, self.admission, self._prefill, self.decode
        while True:
            if prefill.loaded:
                prefill.take_loaded()
            if self._aborting:
                self._drop_aborted()
            if tree.evicts_ahead:
                if self._writes_back and await self.transfers.make_room_ahead():
                    continue
                tree.evict_ahead()
            admission.admit()
            if admission.wants_room:
                await admission.make_room()
                continue
            if self.on_step is not None:
                self.on_step()
            if self._blocks and self._restores.under_way:
                await self._idle()
            elif prefill.waiting:
                await prefill.step()
            elif decode.batch.size:
                if not await decode.burst() and not self._retract():
                    await self._idle()
            elif self._closed and not self.endings.live:
                return
            else:
                await self._idle()

    def _ended(self, request: Request) -> None:
        if self.on_end is not None:
            self.on_end(request)

    async def _idle(self) -> None:
        self._wake = Signal(self._env)
        await self._wake

    def _retract(self) -> bool:
        """Take the newest decoding request's pages away; False if waiting for transfers may help
        instead.
        """
        batch, transfers = self.decode.batch, self.transfers
        if batch.size == 1:
            assert (
                transfers.writes_pending or transfers.restores_pending or self._restores.under_way
            )
            return False
        run = batch.newest()
        self.decode.take_out(run)
        run.retractions += 1
        run.restore_failed = False
        self._metrics.retractions += 1
        self._metrics.retracted_tokens += run.generated
        self.admission.rejoin(run)
        return True

    def _drop_aborted(self) -> None:
        """Let go of aborted requests that no transfer or step is using; the others see the flag
        themselves.
        """
        aborting, self._aborting = self._aborting, []
        for run in aborting:
            if run.phase in ("queued", "prefetching"):
                self.admission.drop(run)
            elif run.phase == "prefilling":
                self._prefill.drop(run)
            elif run.phase == "decoding":
                self.decode.take_out(run)
                self.endings.give_up(run)

    # ------------------------------------------------------------------ for real machines

    def asked(self, number: int, past_tokens: int) -> Asked:
        """What a device needs to know of a request that runs, as it is now."""
        return self._asked(self.endings.live[number], past_tokens)

    def decoding(self) -> tuple[int, list[Asked]]:
        """The steps that the decode batch has done, and the same of its requests, in its order."""
        batch = self.decode.batch
        found: list[Any] = []
        for run in batch.runs:
            pages = run.private_pages
            if run.asked is None or run.asked_pages is not pages or run.listed != run.held:
                run.asked, run.asked_pages = self._asked(run, run.decode_offset), pages
            found.append(run.asked)
        return batch.steps, found

    def _asked(self, run: Running, past_tokens: int) -> Asked:
        held, node = run.held, run.node
        if node is None:
            return run.request, past_tokens, (), ()
        if run.listed != held:  # what is pinned keeps its pages
            run.listed, run.held_pages = held, self._tree.pages_from(node, DEVICE, 0)
        return run.request, past_tokens, run.held_pages, run.private_pages
