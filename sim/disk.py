"""The disk: reads and writes between L2 and L3 share its bandwidth, also among several engines.

An operation is one worker's job: a latency, then its blocks one after the other, a block for each
extent, or for each piece in which the layout of L2 has it (`sim.host_pieces`). What the disk does
for n operations at once comes from the profile's samples of that block size. A block larger than
the largest sample is moved at that sample's speed, as several blocks would be. Slots that were
never written take longer to write, where the profile knows by how much and pages are named
(`Copy.target`; engines that share a disk count as one). Reads and writes that go on together share
it as was measured. Where the profile says how many operations of one direction run at once, more of
them wait for their turn.
"""

from __future__ import annotations

import sys
from collections import deque
from functools import partial
from typing import final

from simpy import Environment

from hicache.kernel import FIRST_COMPLETION_PRIORITY, Pending
from hicache.operations import Completion, Copy, Direction
from scenario.profile import DiskProfile, Surface
from sim.curves import Line, line
from sim.finish import OnFinish, report
from sim.host_pieces import HostPieces
from sim.ranges import RangeWatch
from sim.shared_device import PERMILLE, SharedDevice


@final
class _Way:
    """One direction: what its blocks take, how many operations are under way, what waits."""

    __slots__ = ("block_bytes", "direction", "latency_ns", "times", "under_way", "waiting")

    def __init__(self, direction: Direction, rates: Surface, latency_ns: int) -> None:
        self.direction = direction
        self.times = BlockTimes(rates)
        self.latency_ns = latency_ns
        self.under_way = 0
        self.waiting: deque[tuple[Copy, int, int, OnFinish]] = deque()
        self.block_bytes = f"bytes of a disk block ({direction})"


@final
class _Gain:
    """What several operations of one block size gain."""

    __slots__ = ("_block_bytes", "_times")

    def __init__(self, times: BlockTimes, block_bytes: float) -> None:
        self._times = times
        self._block_bytes = block_bytes

    def __call__(self, active: int) -> int:
        return self._times.gain(self._block_bytes, active)


@final
class Solo:
    """What a transfer takes that has the disk to itself."""

    __slots__ = ("block_bytes", "latency_ns", "way", "work_ns")

    def __init__(self, way: _Way, block_bytes: float, work_ns: int) -> None:
        self.way = way
        self.block_bytes = block_bytes
        self.latency_ns = way.latency_ns
        self.work_ns = work_ns


_Job = tuple[_Way, OnFinish]


class Disk:
    """Serves `h2s` and `s2h` copies. `workers`: operations at once, the profile's if None."""

    def __init__(
        self,
        env: Environment,
        profile: DiskProfile,
        workers: int | None = None,
        watch: RangeWatch | None = None,
        pieces: HostPieces | None = None,
    ) -> None:
        self._pieces = pieces
        self._watch = watch or RangeWatch()
        self._read = _Way("s2h", profile.read_bytes_per_s, profile.read_latency_ns.value)
        self._write = _Way("h2s", profile.write_bytes_per_s, profile.write_latency_ns.value)
        weights: dict[str, int] | None = None
        if profile.read_share_permille is not None:
            share = min(max(profile.read_share_permille.value, 1), PERMILLE - 1)
            weights = {"s2h": share, "h2s": PERMILLE - share}
        self.device: SharedDevice[_Job] = SharedDevice(
            env, workers or profile.workers.value, self._finished, profile.mixed_permille.value,
            weights,
        )  # fmt: skip
        first = profile.first_write_permille
        self._first_permille = PERMILLE if first is None else first.value
        self._written = bytearray()  # by slot: 1 once it was written
        # Operations of a direction at once: a number of workers that is given takes its place.
        each_way = profile.each_way
        self._each_way = each_way.value if each_way is not None and workers is None else 0

    def submit(self, pending: Pending[Completion], operation: Copy, ready_ns: int) -> None:
        """Take a copy that the engine has ready at `ready_ns`."""
        on_finish = partial(report, pending, operation)
        self._take(operation, pending.number, ready_ns, on_finish, 0)

    def carry(self, operation: Copy, number: int, ready_ns: int, on_finish: OnFinish) -> None:
        """As `sim.keyed_store.Carrier` says."""
        place = FIRST_COMPLETION_PRIORITY + number
        self._take(operation, number, ready_ns, on_finish, place)

    def _take(
        self, operation: Copy, number: int, ready_ns: int, on_finish: OnFinish, place: int
    ) -> None:
        way = self._read if operation.direction == "s2h" else self._write
        if self._each_way and way.under_way >= self._each_way:
            way.waiting.append((operation, number, ready_ns, on_finish))
            self.device.tell_at_once()
            return
        way.under_way += 1
        self._begin(way, operation, number, ready_ns, on_finish, place)

    def _begin(
        self,
        way: _Way,
        operation: Copy,
        number: int,
        ready_ns: int,
        on_finish: OnFinish,
        place: int,
    ) -> None:
        solo, times = self._solo(way, operation), way.times
        self.count(solo, 1)
        self.device.submit(
            (way, on_finish),
            number,
            solo.work_ns,
            _Gain(times, solo.block_bytes),
            kind=way.direction,
            ready_ns=ready_ns,
            latency_ns=way.latency_ns,
            place=place,
        )
        if self.device.in_use > times.most_at_once:
            what = f"operations at once on the disk ({way.direction})"
            self._watch.above(what, self.device.in_use, times.most_at_once)

    def _solo(self, way: _Way, operation: Copy) -> Solo:
        """What `operation` takes; of a write, its slots have been written with that."""
        first_times = 1.0
        if way is self._write and self._first_permille != PERMILLE and operation.target:
            first_times += self._new(operation) * (PERMILLE / self._first_permille - 1)
        counted = self._pieces
        blocks = operation.extents if counted is None else counted.on_disk(operation)
        if blocks < 1:
            blocks = 1
        block_bytes = operation.size_bytes / blocks
        work_ns = int(blocks * way.times.alone_ns(block_bytes) * first_times + 0.5)
        return Solo(way, block_bytes, work_ns if work_ns > 1 else 1)

    def solo_write(self, pages: int, size_bytes: int) -> Solo:
        """What a write of consecutive, unnamed pages takes on the idle disk."""
        return self._solo(self._write, Copy("h2s", pages, size_bytes, 1))

    def count(self, solo: Solo, times: int) -> None:
        """So many such transfers begin: where they are beyond the samples, a result says so."""
        largest = solo.way.times.largest_bytes
        if times > 0 and solo.block_bytes > largest:
            self._watch.above(solo.way.block_bytes, int(solo.block_bytes), largest, times)

    def take_up(self, solo: Solo, number: int, started_ns: int, on_finish: OnFinish) -> None:
        """Take the disk's only transfer, which began at `started_ns` and has not ended; it has been
        counted.
        """
        way = solo.way
        way.under_way += 1
        self.device.take_up(
            (way, on_finish),
            number,
            solo.work_ns,
            _Gain(way.times, solo.block_bytes),
            kind=way.direction,
            started_ns=started_ns,
            latency_ns=way.latency_ns,
        )

    def _new(self, operation: Copy) -> float:
        """The part of a write's slots that were never written; they are now."""
        written, new, slots = self._written, 0, 0
        for first, count in operation.target:
            if first + count > len(written):
                written.extend(bytes(first + count - len(written)))
            new += written.count(0, first, first + count)
            slots += count
            written[first : first + count] = b"\x01" * count
        return new / slots

    def _finished(self, job: _Job, started_ns: int, finished_ns: int) -> None:
        way, on_finish = job
        if way.waiting:
            operation, number, ready_ns, following = way.waiting.popleft()
            # Others may wait for its end: that is told at once.
            self._begin(way, operation, number, ready_ns, following, 0)
        else:
            way.under_way -= 1
        on_finish(started_ns, finished_ns)


class BlockTimes:
    """What a block takes alone, and what several operations at once gain, from bytes/s."""

    def __init__(self, surface: Surface) -> None:
        samples: dict[int, list[tuple[int, float]]] = {}
        for block, concurrent, rate in surface.points:
            samples.setdefault(concurrent, []).append((block, block * 1e9 / rate))
        self._concurrent = sorted(samples)
        assert self._concurrent[0] == 1
        self._lines: dict[int, Line] = {}
        for concurrent, points in samples.items():
            # One sample is a rate: a straight line from nothing.
            self._lines[concurrent] = line(points if len(points) > 1 else [(0, 0.0), *points])
        # From this size on all samples are rates, so that gains are the same.
        self._largest = max(times.xs[-1] for times in self._lines.values())
        self._gains: dict[tuple[float, int], int] = {}
        # The ends of what was sampled. A single sample is a rate, which has none.
        self.largest_bytes = self.most_at_once = sys.maxsize
        if len(samples[1]) > 1:
            self.largest_bytes = int(self._lines[1].xs[-1])
        if len(samples) > 1:
            self.most_at_once = self._concurrent[-1]

    def alone_ns(self, block_bytes: float) -> float:
        """What one block takes when nothing else runs."""
        return self._ns(1, block_bytes)

    def gain(self, block_bytes: float, active: int) -> int:
        """Thousandths of solo speed that `active` operations of such blocks reach together.

        The bytes/s of the samples, straight lines between numbers of operations, constant beyond
        the last.
        """
        if active == 1:
            return PERMILLE
        block_bytes = min(block_bytes, self._largest)
        found = self._gains.get((block_bytes, active))
        if found is None:
            found = self._gains[block_bytes, active] = self._gain(block_bytes, active)
        return found

    def _gain(self, block_bytes: float, active: int) -> int:
        alone_ns = self._ns(1, block_bytes)
        low, high = 1, self._concurrent[-1]
        for concurrent in self._concurrent:
            if concurrent <= active:
                low = concurrent
            else:
                high = concurrent
                break
        gain = alone_ns / self._ns(low, block_bytes)
        if low < active < high:
            above = alone_ns / self._ns(high, block_bytes)
            gain += (above - gain) * (active - low) / (high - low)
        return max(1, int(gain * PERMILLE + 0.5))

    def _ns(self, concurrent: int, block_bytes: float) -> float:
        times = self._lines[concurrent]
        largest = times.xs[-1]
        if block_bytes > largest:
            return times.ys[-1] * block_bytes / largest
        return max(1.0, times.at(block_bytes))
