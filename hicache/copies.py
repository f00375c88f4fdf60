"""Single copies between tiers, and the queue of those that write: each counted and learned from.

    Copier        begins a copy; metrics and cost model see how it went
    WriteQueue    one writing direction: some at once, the rest in order behind them

Decides nothing about what is copied, nor when: `hicache.transfers` does.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from functools import partial

from simpy import Environment

from hicache.allocator import extents, join_all
from hicache.cost_model import CostModel
from hicache.errors import TransferError
from hicache.kernel import Pending, Signal, Task
from hicache.metrics import Metrics
from hicache.operations import DIRECTIONS, Completion, Copy, Direction, PageRuns
from hicache.options import EngineOptions
from hicache.ports import Lanes
from hicache.queue_ahead import QueueAhead


class Copier:
    """Submits single copies, and lets the metrics and the cost model see how each went."""

    def __init__(
        self, lanes: Lanes, options: EngineOptions, metrics: Metrics, belief: CostModel
    ) -> None:
        self._lanes = lanes
        self._page_bytes = options.page_bytes
        self._stats = metrics.directions
        self._lines = belief.copies
        self.ahead: QueueAhead | None = None  # if there, it learns from them in its own way
        self._ended: dict[Direction, Callable[[Pending[Completion]], None]] = {
            direction: partial(self.see, direction) for direction in DIRECTIONS
        }

    def begin(
        self,
        direction: Direction,
        pages: int,
        source: PageRuns = (),
        target: PageRuns = (),
        over: Callable[[Pending[Completion]], None] | None = None,
    ) -> Pending[Completion]:
        """Move `pages` pages; who awaits it gets TransferError if the device could not.

        `over` is called when it ended, before whoever awaits it goes on; it must call `see`.
        """
        runs = extents(source, target) if source else 1
        operation = Copy(direction, pages, pages * self._page_bytes, runs, source, target)
        pending = self._lanes.submit(operation)
        if self.ahead is not None:
            self.ahead.copies(direction, operation.size_bytes, pending)
        ended = over or self._ended[direction]
        if pending.callbacks is None:
            ended(pending)
        else:
            pending.callbacks.append(ended)
        return pending

    def see(self, direction: Direction, pending: Pending[Completion]) -> None:
        """A copy ended: count it, and learn from it."""
        stats = self._stats[direction]
        if not pending.ok:
            stats.failed += 1
            return
        done: Completion = pending.value
        operation: Copy = done.operation  # type: ignore[assignment]
        stats.add(done, operation)
        if self.ahead is None:
            self._lines[direction].observe(operation.size_bytes, done.recurring_ns * 1e-9)


class WriteJob:
    """A copy that waits for its turn in a `WriteQueue`."""

    __slots__ = ("done", "pages", "source", "target")

    def __init__(self, pages: int, source: PageRuns, target: PageRuns, done: Signal[None]) -> None:
        self.pages = pages
        self.source = source
        self.target = target
        self.done = done


class WriteQueue:
    """One writing direction: at most `in_flight` copies at once, and what waits behind them, in
    order.

    The jobs that wait together become one operation of at most `merge_writes_tokens` tokens; they
    then succeed or fail together.
    """

    def __init__(
        self,
        env: Environment,
        copier: Copier,
        direction: Direction,
        options: EngineOptions,
        metrics: Metrics,
    ) -> None:
        self._env = env
        self._copier = copier
        self._direction: Direction = direction
        self._limit = options.cache.writes_in_flight
        self._merge_pages = options.cache.merge_writes_tokens // options.page_size_tokens
        self._metrics = metrics
        self._in_flight = 0
        self._waiting: deque[WriteJob] = deque()

    def write(
        self, pages: int, source: PageRuns, target: PageRuns
    ) -> Pending[Completion] | Signal[None]:
        """Copy `pages` pages when it is their turn; who awaits it gets TransferError if the device
        could not.
        """
        if self._in_flight >= self._limit:
            job = WriteJob(pages, source, target, Signal(self._env))
            self._waiting.append(job)
            return job.done
        self._in_flight += 1
        return self._copier.begin(self._direction, pages, source, target, self._over)

    def _over(self, pending: Pending[Completion]) -> None:
        self._copier.see(self._direction, pending)
        self._in_flight -= 1
        if self._waiting:
            self._serve_next()

    def _serve_next(self) -> None:
        while self._waiting and self._in_flight < self._limit:
            job = self._waiting.popleft()
            if not self._merge_pages:
                self._in_flight += 1
                over = partial(self._served, job)
                self._copier.begin(self._direction, job.pages, job.source, job.target, over)
                continue
            jobs = [job]
            pages = job.pages
            while self._waiting and pages + self._waiting[0].pages <= self._merge_pages:
                jobs.append(self._waiting.popleft())
                pages += jobs[-1].pages
            self._in_flight += 1
            Task(self._serve(jobs, pages))

    def _served(self, job: WriteJob, pending: Pending[Completion]) -> None:
        """The copy of one job ended, well or not."""
        self._copier.see(self._direction, pending)
        if pending.ok:
            job.done.succeed()
        elif isinstance(pending.value, TransferError):
            pending.defuse()
            job.done.fail(TransferError(*pending.value.args))
        else:
            return  # no fault of the device: nobody sees it, so that it stops the run
        self._in_flight -= 1
        if self._waiting:
            self._serve_next()

    async def _serve(self, jobs: list[WriteJob], pages: int) -> None:
        source = join_all([job.source for job in jobs])
        target = join_all([job.target for job in jobs])
        self._metrics.merged_writes += len(jobs) - 1
        try:
            await self._copier.begin(self._direction, pages, source, target)
        except TransferError as error:
            for job in jobs:
                job.done.fail(TransferError(*error.args))
        else:
            for job in jobs:
                job.done.succeed()
        self._in_flight -= 1
        if self._waiting:
            self._serve_next()
