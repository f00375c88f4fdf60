"""Batches of a write to a store, one after the other, without an event for each.

SGLang's rules write 128 pages at a time: at one-token pages that is a million writes for an hour of
traffic, and hardly ever does anything come between two of them. Then it is known when each begins
and ends, and all but the first and the last take the same:

    submitted T --> the host's thread --> latency --> work --> E --> T of the next

Nothing is done for a batch but arithmetic, and that only when somebody could see it:

    another operation is submitted      the host's thread has been busy with the batches so far
    the store is asked, or read         the pages of the batches so far are there
    another transfer comes to the disk  the batch under way goes to where it would have been
    the last batch has ended            whoever submitted them is told

Of two things in the very same ns, what others do comes first. This is for an engine that has the
store and the disk to itself (`sim.lanes`), since another one could see a difference. Batches that
the store has already are only looked up, and need no device.
"""

# pyright: reportPrivateUsage=false
# `Environment.now` is a property in Python; see hicache.kernel.
from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, final

from simpy import Environment

from hicache.allocator import cut
from hicache.kernel import FIRST_COMPLETION_PRIORITY, Pending
from hicache.operations import Batches, Copy
from hicache.store_contents import StoreContents
from sim.disk import Disk, Solo
from sim.host import Host
from sim.timer import Callbacks, Timer

# From the end of a batch to the submission of the next: the device tells one ns later
# (`sim.keyed_store`), and the engine one ns after that (`hicache.kernel.stamp`).
_TOLD_NS = 2
_LOOKED_NS = 1


@final
class BatchedWrites:
    """The batches that an engine has under way, if it has. `looks_ns`: what it takes to see that a
    batch is in the store.
    """

    def __init__(
        self,
        env: Environment,
        host: Host,
        disk: Disk,
        contents: StoreContents,
        looks_ns: int,
        numbers: Iterator[int],
    ) -> None:
        self._env: Any = env  # its times are ints
        self._host = host
        self._disk = disk
        self._contents = contents
        self._looks_ns = looks_ns if looks_ns > 1 else 1
        self._numbers = numbers
        self._on_timer_only: Callbacks = [self._on_timer]
        self.allowed = True
        self._pending: Pending[Any] | None = None  # who waits for the end
        self._runs_ahead = False  # whether batches are under way that nobody has disturbed
        self._timer: Timer | None = None
        self._writes = False  # whether they are written; else the store has them
        self._full: Solo | None = None
        self._last: Solo | None = None
        self._batch_pages = self._last_pages = self._batches = 0
        self._keys: tuple[tuple[int, int], ...] = ()  # of the pages that are not put in yet
        self._shown = 0  # batches whose pages were put in
        # The batch under way.
        self._number = 0
        self._index = 0
        self._submitted_ns = self._started_ns = self._ended_ns = 0
        # Of those before it.
        self._queue_ns = self._service_ns = self._recurring_ns = 0

    def submit(self, copy: Copy, batch_pages: int) -> Pending[Batches] | None:
        """Take the leading batches of `copy` that are alike: the store has every page, or none.
        None: there are too few, or the device is busy; the next batch is to be submitted by itself.
        """
        assert self._pending is None, "a write has one worker"
        if not self.allowed:
            return None
        keys, pages = copy.keys, copy.pages
        there = self._contents.leading(keys)
        if not (there or self._disk.device.idle):
            return None
        alike = there if there else self._contents.lacking(keys)
        if alike < pages:
            alike -= alike % batch_pages
        if alike <= batch_pages:
            return None
        self._writes = not there
        self._batch_pages = batch_pages
        self._last_pages = (alike - 1) % batch_pages + 1
        self._batches = (alike + batch_pages - 1) // batch_pages
        self._full = self._last = None
        if not there:
            page_bytes = copy.size_bytes // pages
            self._full = self._last = self._disk.solo_write(batch_pages, batch_pages * page_bytes)
            if self._last_pages < batch_pages:
                size_bytes = self._last_pages * page_bytes
                self._last = self._disk.solo_write(self._last_pages, size_bytes)
            self._disk.count(self._full, 1)
            self._disk.device.guest = self._give_way
        self._keys = keys
        self._shown = self._index = 0
        self._queue_ns = self._service_ns = self._recurring_ns = 0
        self._runs_ahead = True
        self._number = next(self._numbers)
        self._pending = Pending(self._env, self._number, self._env._now)
        self._begin(self._env._now)
        self._set_timer()
        return self._pending

    def settle(self) -> None:
        """An operation is about to be submitted: the host's thread is as busy as it is by now."""
        if self._runs_ahead:
            self._go_on(self._env._now)

    def show(self) -> None:
        """The store is about to be asked, or read: what has come is there."""
        if self._runs_ahead:
            now = self._env._now
            self._go_on(now)
            there_ns = self._ended_ns + 1 if self._writes else self._ended_ns
            self._put_in(self._index + 1 if there_ns < now else self._index)

    def end(self) -> None:
        """The run ends here: who waits is told of the batches that are over."""
        if self._pending is None:
            return
        if self._runs_ahead:
            self._go_on(self._env._now)
        if self._index < self._batches:
            self._batches = self._index
            self._last, self._last_pages = self._full, self._batch_pages
        self._tell()

    # ------------------------------------------------------------------ one batch after the other

    def _pages(self, batches: int) -> int:
        """How many pages the first `batches` have."""
        if batches < self._batches or not batches:
            return batches * self._batch_pages
        return (batches - 1) * self._batch_pages + self._last_pages

    def _solo(self, index: int) -> Solo | None:
        return self._last if index == self._batches - 1 else self._full

    def _begin(self, submitted_ns: int) -> None:
        """Batch `_index` is submitted."""
        host = self._host
        free_ns = host.free_ns
        free_ns = (submitted_ns if submitted_ns > free_ns else free_ns) + host.write_ns
        host.free_ns = free_ns
        self._submitted_ns = submitted_ns
        solo = self._solo(self._index)
        if solo is None:
            self._started_ns = submitted_ns
            self._ended_ns = submitted_ns + self._looks_ns
        else:
            self._started_ns = free_ns
            self._ended_ns = free_ns + solo.latency_ns + solo.work_ns

    def _next_ns(self) -> int:
        """When the batch after the one under way is submitted."""
        return self._ended_ns + (_TOLD_NS if self._writes else _LOOKED_NS)

    def _period_ns(self, solo: Solo | None) -> int:
        """From one submission to the next where the host's thread is free."""
        if solo is None:
            return self._looks_ns + _LOOKED_NS
        return self._host.write_ns + solo.latency_ns + solo.work_ns + _TOLD_NS

    def _count(self) -> None:
        """The batch under way is over."""
        self._queue_ns += self._started_ns - self._submitted_ns
        self._service_ns += self._ended_ns - self._started_ns
        self._recurring_ns += self._next_ns() - self._submitted_ns

    def _go_on(self, before_ns: int) -> None:
        """Submit what is submitted before `before_ns`."""
        index = self._index
        while self._index < self._batches - 1:
            next_ns = self._next_ns()
            if next_ns >= before_ns:
                break
            self._count()
            full = self._batches - 1 - self._index  # of the others, those of a full batch
            if self._last_pages < self._batch_pages:
                full -= 1
            period_ns = self._period_ns(self._full)
            many = (before_ns - 1 - next_ns) // period_ns
            if many >= full:
                many = full - 1
            host_ns = self._host.write_ns
            if many > 0 and self._host.free_ns <= next_ns and host_ns <= period_ns:
                # So many that are over as well, each like the other.
                queue_ns = host_ns if self._writes else 0
                self._queue_ns += many * queue_ns
                self._recurring_ns += many * period_ns
                told_ns = _TOLD_NS if self._writes else _LOOKED_NS
                self._service_ns += many * (period_ns - told_ns - queue_ns)
                self._index += many
                next_ns += many * period_ns
            self._index += 1
            self._begin(next_ns)
        if self._index != index:
            self._number = next(self._numbers)

    def _set_timer(self) -> None:
        """Look again when all is over if nothing comes between."""
        end_ns = self._next_ns()
        more = self._batches - 1 - self._index
        if more:
            free_ns = self._host.free_ns
            if self._writes and free_ns > end_ns:
                end_ns = free_ns
            end_ns += (more - 1) * self._period_ns(self._full) + self._period_ns(self._last)
        now = self._env._now
        priority = FIRST_COMPLETION_PRIORITY + self._number
        self._timer = Timer(self._env, end_ns - now, self._on_timer_only, priority)

    def _on_timer(self, timer: Timer) -> None:
        if timer is not self._timer:
            return
        now = self._env._now
        self._go_on(now + 1)
        if self._index < self._batches - 1 or self._next_ns() > now:
            self._set_timer()
            return
        self._index += 1
        self._count()
        self._tell()

    # ------------------------------------------------------------------ what others see

    def _put_in(self, batches: int) -> None:
        """The pages of the first `batches` are in the store."""
        if batches > self._shown:
            pages = self._pages(batches) - self._pages(self._shown)
            mine, self._keys = cut(self._keys, pages)
            self._shown = batches
            self._contents.write(mine)

    def _tell(self) -> None:
        """Whoever waits goes on."""
        pending, batches = self._pending, self._batches
        assert pending is not None
        self._put_in(batches)
        full, last = self._full, self._last
        if full is not None and last is not None:
            self._disk.count(full, batches - 1 if last is full else batches - 2)
            if last is not full:
                self._disk.count(last, 1)
            self._disk.device.guest = None
        self._runs_ahead = False
        self._pending = self._timer = None
        pages = self._pages(batches)
        pending._value = Batches(
            batches, pages, pages if self._writes else 0, self._queue_ns, self._service_ns,
            self._recurring_ns,
        )  # fmt: skip
        callbacks, pending.callbacks = pending.callbacks, None
        assert callbacks is not None, "batches ended twice"
        for callback in callbacks:
            callback(pending)

    # ------------------------------------------------------------------ another transfer comes

    def _give_way(self) -> None:
        """The batch under way is the last; if the device is not through with it, it goes there."""
        now = self._env._now
        self._go_on(now)
        self._disk.device.guest = None
        self._end_with_this()
        if self._ended_ns < now:
            self._set_timer()
            return
        self._put_in(self._index)
        self._runs_ahead = False
        self._timer = None
        assert self._last is not None
        self._disk.take_up(self._last, self._number, self._started_ns, self._carried)

    def _end_with_this(self) -> None:
        if self._index < self._batches - 1:
            self._last, self._last_pages = self._full, self._batch_pages
            self._batches = self._index + 1

    def _carried(self, _started_ns: int, finished_ns: int) -> None:
        """The device is through; from here on it goes as in `sim.keyed_store`."""
        self._ended_ns = finished_ns
        self._soon(self._on_there)

    def _on_there(self, _timer: Timer) -> None:
        self._index += 1
        self._put_in(self._index)
        self._count()
        self._soon(self._on_told)

    def _on_told(self, _timer: Timer) -> None:
        self._tell()

    def _soon(self, then: Callable[[Timer], object]) -> None:
        Timer(self._env, 1, [then], FIRST_COMPLETION_PRIORITY + self._number)
