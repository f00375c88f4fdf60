"""Decode: the batch, the pages that its steps need, and the bursts in which it advances.

    burst    reserve the pages of all its steps -> decode until the first request is done, or until
             `end_burst` -> give back what was not needed
    mixed    one step of the batch, in a prefill step

Refuses to decide what follows where not even one step's pages can be had: the scheduler does.
"""

# pyright: reportPrivateUsage=false
# `Environment.now` is a property in Python; see hicache.kernel.
from __future__ import annotations

from typing import Any, final

from simpy import Environment

from hicache.endings import Endings
from hicache.kernel import Pending
from hicache.metrics import Metrics
from hicache.node import DEVICE
from hicache.offloading import DecodeOffload
from hicache.operations import Chunk, Completion, Decode, PageRuns, Prefill
from hicache.options import EngineOptions
from hicache.ports import Lanes
from hicache.running import DecodeBatch, Running
from hicache.transfers import Transfers
from hicache.tree import HiRadixTree


@final
class DecodeSteps:
    """The decode steps of one engine."""

    def __init__(
        self,
        env: Environment,
        lanes: Lanes,
        tree: HiRadixTree,
        transfers: Transfers,
        endings: Endings,
        options: EngineOptions,
        metrics: Metrics,
    ) -> None:
        self._env: Any = env  # its times are ints
        self.lanes = lanes
        self._tree = tree
        self._device = tree.tiers[DEVICE]
        self._transfers = transfers
        self._writes_back = transfers.writes_back
        self._endings = endings
        self._metrics = metrics
        self._page = options.page_size_tokens
        self.batch = DecodeBatch(self._page)
        self.offload: DecodeOffload | None = None  # who writes answers while they are made
        self._burst: Pending[Completion] | None = None
        self._burst_start_ns = 0

    async def burst(self) -> bool:
        """Decode until the first request is done, or until `end_burst`; False, at once, if not even
        one step's pages can be had.
        """
        batch, tree = self.batch, self._tree
        steps = batch.steps_to_first_finish
        if self.offload is not None:
            steps = self.offload.limit(steps)
        need = batch.pages_for(steps)
        pages: PageRuns = ()
        if need:
            if need > self._device.available:
                steps = batch.steps_within(self._device.available, steps)
                if not steps:
                    return False
                need = batch.pages_for(steps)
            if self._writes_back and need > self._device.allocator.free:
                await self._transfers.make_room(need)
                return True  # whatever has happened meanwhile comes first
            taken = tree.take(DEVICE, need)
            assert taken is not None
            pages = taken
        requests: tuple[int, ...] = ()
        if tree.named:
            requests = batch.requests
            batch.share_out(steps, pages)
        self._burst_start_ns = self._env._now
        self._burst = self.lanes.submit(Decode(batch.size, batch.context_tokens, steps, requests))
        done = await self._burst
        self._burst = None
        metrics = self._metrics
        metrics.decode_bursts += 1
        metrics.decode_steps += done.steps
        metrics.decode_ns += self._env._now - self._burst_start_ns
        self._advance(done.steps, steps, need)
        return True

    def end_burst(self) -> None:
        """Let the burst, if one is under way, end at its next step boundary."""
        if self._burst is not None:
            self.lanes.end_burst(self._burst)

    def clock_ns(self) -> int:
        """Time spent in decode bursts so far, the present one included."""
        if self._burst is None:
            return self._metrics.decode_ns
        return self._metrics.decode_ns + self._env._now - self._burst_start_ns

    async def mixed(self, chunks: tuple[Chunk, ...], tokens: int) -> Completion:
        """A prefill step in which the batch rides along, if its one step's pages can be had."""
        batch = self.batch
        need = batch.pages_for(1)
        if self._writes_back and need > self._device.allocator.free:
            await self._transfers.make_room(need)
        pages = self._tree.take(DEVICE, need)
        if pages is None:
            return await self.lanes.submit(Prefill(chunks, tokens))
        batch.share_out(1, pages)
        operation = Prefill(chunks, tokens, batch.size, batch.context_tokens)
        done = await self.lanes.submit(operation)
        self._metrics.decode_steps += 1
        self._advance(1, 1, need)
        return done

    def take_out(self, run: Running) -> None:
        """`run` leaves before it is done: what it has so far is its own again, and is released."""
        kv_tokens = self.batch.kv_tokens(run)
        self.batch.remove(run)
        run.generated = kv_tokens - run.request.prompt_tokens + 1
        self._count_pages(run, kv_tokens)
        self._endings.release(run)

    def _advance(self, steps: int, planned: int, reserved: int) -> None:
        """The batch made `steps` tokens of `planned`; of the reserved pages it keeps what they
        fill.
        """
        batch = self.batch
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
            self._count_pages(run, kv_tokens)
            if self.offload is not None:
                self.offload.ended(run, kv_tokens)
            self._endings.finish(run, kv_tokens)
        if self.offload is not None:
            self.offload.advanced()

    def _count_pages(self, run: Running, kv_tokens: int) -> None:
        """While a request decodes its pages are counted by the batch; now they are its own
        again.
        """
        run.private = -(-kv_tokens // self._page) - run.held
