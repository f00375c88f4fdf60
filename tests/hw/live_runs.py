"""Live runs of the tests: a machine without threads that is as unpleasant as its interface allows,
devices for threads, and whole engines on either.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from dataclasses import replace
from heapq import heappop, heappush
from itertools import count
from pathlib import Path
from random import Random

TESTS = Path(__file__).resolve().parent.parent
for folder in (TESTS, TESTS / "hicache"):
    if str(folder) not in sys.path:
        sys.path.insert(0, str(folder))

from adversarial_lanes import (  # noqa: E402
    TIER_OF,
    Fate,
    Memory,
    answer_of,
    can_fail,
    in_turn,
    pages_of,
)
from engine_runs import MOST_EVENTS, call_at, watch_memory  # noqa: E402
from simpy import Environment  # noqa: E402
from small_workloads import Workload  # noqa: E402

from hicache.engine import Engine  # noqa: E402
from hicache.errors import TransferError  # noqa: E402
from hicache.operations import Completion, Copy, Decode, Lookup, Operation  # noqa: E402
from hicache.ports import Lanes  # noqa: E402
from hicache.record import Record, Recorder, ReplayLanes  # noqa: E402
from hw.device import Control, Step, Timing  # noqa: E402
from hw.faulty import FaultyLanes  # noqa: E402
from hw.jobs import Job  # noqa: E402
from hw.lanes import LiveLanes  # noqa: E402
from hw.live import LiveEnvironment, run_live  # noqa: E402
from hw.machine import Entry, Report, ThreadMachine  # noqa: E402
from hw.workers import Patience, WorkQueue  # noqa: E402

QUEUES = ("gpu", "h2d", "d2h", "s2h", "h2s", "lookup")


class CheckedEnvironment(LiveEnvironment):
    """Looks at the clock at every event: time never goes back, nor ahead of the machine."""

    def __init__(self, machine) -> None:
        super().__init__(machine)
        self.steps = 0

    def step(self) -> None:
        before = self.now
        super().step()
        assert before <= self.now
        assert self.now <= self.machine.now_ns() or self.now == 0
        self.steps += 1
        assert self.steps < MOST_EVENTS, "a run without end"


class VirtualMachine:
    """A `Machine` with the work queues behind it, in one thread, on a clock of its own.

    The clock moves by 1 ns whenever it is looked at, and in `wait`. With `rng`, reports are late,
    several at once and in any order, timers fire late, answers are empty now and then, and a device
    says anything about when it started and finished. Without, everything happens when it is due.
    """

    def __init__(self, fate: Callable[[Operation], Fate], rng: Random | None = None) -> None:
        self._fate = fate
        self._rng = rng
        self._clock = 0
        self._inbox: list[Entry] = []
        self._events: list[tuple[int, int, Callable[[], None]]] = []
        self._order = count()
        self.memory: Memory | None = None
        self.under_way: dict[int, Operation] = {}
        self.jobs: list[Job] = []
        self.store: dict[int, None] = {}  # keys, where L3 is asked by them
        self.store_pages = 0

    def now_ns(self) -> int:
        self._clock += 1
        return self._clock

    def tell(self, entry: Entry) -> None:
        self._inbox.append(entry)

    def wait(self, until_ns: int | None) -> list[Entry] | None:
        rng = self._rng
        while True:
            while self._events and self._events[0][0] <= self._clock:
                heappop(self._events)[2]()
            if self._inbox and (rng is None or rng.random() < 0.6):
                return self._some()
            if until_ns is not None and until_ns <= self._clock:
                return None
            if rng is not None and rng.random() < 0.1:
                return []
            self._move(until_ns)

    def _some(self) -> list[Entry]:
        entries, rng = self._inbox, self._rng
        if rng is not None:
            rng.shuffle(entries)
            part = rng.randint(1, len(entries))
            entries, self._inbox = entries[:part], entries[part:]
        else:
            self._inbox = []
        return entries

    def _move(self, until_ns: int | None) -> None:
        times = [] if until_ns is None else [until_ns]
        if self._events:
            times.append(self._events[0][0])
        if self._inbox:
            times.append(self._clock + 1)
        assert times, "the engine waits for an operation that nobody carries out"
        late = self._rng.choice([0, 0, 0, 1, 13, 400]) if self._rng is not None else 0
        self._clock = max(self._clock + 1, min(times) + late)

    def at(self, at_ns: int, act: Callable[[], None]) -> None:
        """Call `act()` once the clock stands at `at_ns`."""
        heappush(self._events, (at_ns, next(self._order), act))

    # ---------------------------------------------------------------- as a queue, with a worker

    def queue(self) -> VirtualQueue:
        """One more queue of this machine."""
        return VirtualQueue(
            self, serves_one_at_a_time=self._rng is None or self._rng.random() < 0.5
        )

    def begin(self, job: Job, done: Callable[[], None]) -> None:
        """A device begins with `job`; `done` is called when it is free again."""
        number, operation = job.pending.number, job.operation
        self.jobs.append(job)
        self.under_way[number] = operation
        fate = self._fate(operation)
        if self.memory is not None:
            if isinstance(operation, Copy):
                self.memory.begin(number, operation)
            elif not isinstance(operation, Lookup):
                self.memory.forget_private()
        took = max(1, fate.took_ns)
        started = self._clock
        ends: list[int] = []

        def step() -> None:
            ends.append(self._clock if self._rng is not None else started + took * (len(ends) + 1))
            if len(ends) == operation.max_steps or job.control.ending:
                finish()
            else:
                self.at(ends[-1] + took, step)

        def finish() -> None:
            done()
            at = ends[-1] if ends else started + took
            self._finish(job, fate, started, at, tuple(ends))

        self.at(started + took, step if isinstance(operation, Decode) else finish)

    def _finish(
        self, job: Job, fate: Fate, started: int, finished: int, ends: tuple[int, ...]
    ) -> None:
        number, operation = job.pending.number, job.operation
        fails = fate.fails and can_fail(operation)
        answer = len(ends)
        if not fails:
            answer = answer_of(self.store, self.store_pages, operation, answer)
        if self.memory is not None and isinstance(operation, Copy):
            self.memory.end(number, arrived=not fails, answer=answer)
        del self.under_way[number]
        if self._rng is not None and not ends:
            started += self._rng.choice([0, 0, -700, 300])
            finished += self._rng.choice([0, 0, -700, 300, 10_000])
        outcome: Timing | TransferError = Timing(started, finished, fate.setup_ns, answer, ends)
        if fails:
            outcome = TransferError(f"operation {number} failed")

        def report() -> None:
            self.tell(Report(job.pending, operation, "the device", self._clock, outcome))

        if fate.notice_ns:
            self.at(self._clock + fate.notice_ns, report)
        else:
            report()


class VirtualQueue:
    """A queue of a virtual machine."""

    def __init__(self, machine: VirtualMachine, *, serves_one_at_a_time: bool) -> None:
        self._machine = machine
        self._one_at_a_time = serves_one_at_a_time
        self._waiting: list[Job] = []
        self._busy = False

    def put(self, job: Job) -> None:
        if not self._one_at_a_time:
            self._machine.begin(job, lambda: None)
        elif self._busy:
            self._waiting.append(job)
        else:
            self._busy = True
            self._machine.begin(job, self._next)

    def _next(self) -> None:
        self._busy = False
        if self._waiting:
            self.put(self._waiting.pop(0))

    def stop(self) -> None:
        self._waiting.clear()

    def join(self) -> None:
        pass

    def close(self) -> None:
        pass


class PacedDevice:
    """A device for real threads: sleeps `pause_s` for each operation, or each step of a burst."""

    def __init__(self, name: str = "a device", pause_s: Callable[[], float] = lambda: 1e-5) -> None:
        self.name = name
        self.pause_s = pause_s
        self.seen: list[tuple[Operation, tuple[Step, ...]]] = []
        self.closed = 0

    def run(self, operation: Operation, control: Control, steps: tuple[Step, ...] = ()) -> Timing:
        self.seen.append((operation, steps))
        started = time.monotonic_ns()
        ends: list[int] = []
        while isinstance(operation, Decode):
            self.pause(operation)
            ends.append(time.monotonic_ns())
            control.beat()
            if len(ends) == operation.max_steps or control.ending:
                return Timing(started, ends[-1], 0, len(ends), tuple(ends))
        self.pause(operation)
        return Timing(started, time.monotonic_ns())

    def pause(self, operation: Operation) -> None:
        time.sleep(self.pause_s())

    def close(self) -> None:
        self.closed += 1


def thread_lanes(
    env: LiveEnvironment, device: Callable[[str], PacedDevice], patience: Patience | None = None
) -> LiveLanes:
    """Lanes with one thread for each queue."""
    assert isinstance(env.machine, ThreadMachine)
    queues = {name: WorkQueue(name, [device(name)], env.machine, patience) for name in QUEUES}
    return LiveLanes(env, queues)


class LiveRun:
    """A workload that was run live and recorded. Looks like `engine_runs.Run` to its checks."""

    def __init__(
        self, workload: Workload, seed: int, *, threads: bool = False, inject: float = 0.0
    ) -> None:
        self.workload = workload
        if inject:  # for the checks: bytes may be lost
            self.workload = replace(workload, fates=(*workload.fates, Fate(fails=True)))
        self.requests = workload.requests()
        rng = Random(seed)
        self.env = CheckedEnvironment(
            ThreadMachine() if threads else VirtualMachine(in_turn(workload.fates), rng)
        )
        machine = self.lanes = self.env.machine
        if workload.options.has_store and not threads:
            machine.store_pages = workload.options.storage_pages
        if threads:
            pauses = [fate.took_ns * 1e-8 for fate in workload.fates]
            live = thread_lanes(
                self.env, lambda name: PacedDevice(name, lambda: rng.choice(pauses))
            )
        else:
            live = LiveLanes(self.env, {name: machine.queue() for name in QUEUES})
        port: Lanes = live
        self.faulty: FaultyLanes | None = None
        if inject:
            port = self.faulty = FaultyLanes(
                self.env, live, Random(seed), fail=inject, slow=inject, slow_ns=300,
                spoil=self._spoil,
            )  # fmt: skip
        self.lines: list[str] = []
        self.recorder = Recorder(self.env, port, self.lines.append, "a small workload")
        self.engine = Engine(self.env, self.recorder, workload.options)
        if not threads and workload.options.page_ids == "named":
            watch_memory(self.engine, machine)  # pyright: ignore
        for at_ns, number in workload.aborts:
            act = lambda number=number: self.abort_from_outside(number)  # noqa: E731
            if threads:
                call_at(self.env, at_ns, act)
            else:
                machine.at(at_ns, act)
        self.engine.serve(self.requests)
        assert run_live(self.env, live)
        assert self.env.under_way == 0
        self.recorder.close()
        live.close()
        if threads:
            self.lanes = FinishedLanes()

    def abort_from_outside(self, number: int) -> None:
        """Give a request up, as another thread would."""
        self.env.call_soon_threadsafe(lambda: self.recorder.abort(self.engine, number))

    def _spoil(self, copy: Copy) -> None:
        memory = getattr(self.lanes, "memory", None)
        if memory is not None:
            for page in pages_of(copy.target):
                memory.contents[TIER_OF[copy.direction][1]].pop(page, None)


class FinishedLanes:
    """What the checks of a run look at, where no memory was watched."""

    def __init__(self) -> None:
        self.under_way: dict[int, Operation] = {}
        self.memory = None


def replayed(workload: Workload, lines: list[str]) -> Engine:
    """The same workload in plain SimPy, on a record, to the end."""
    env = Environment(0)
    lanes = ReplayLanes(env, Record(lines, "the record"))
    engine = Engine(env, lanes, workload.options)
    lanes.deliver_inputs(engine)
    engine.serve(workload.requests())
    env.run()
    lanes.finish()
    return engine


def completions(lines: list[str]) -> dict[int, list]:
    """The record's endings by number."""
    return Record(lines).endings


__all__ = [
    "QUEUES", "CheckedEnvironment", "Completion", "FaultyLanes", "LiveRun", "PacedDevice",
    "VirtualMachine", "completions", "replayed", "thread_lanes",
]  # fmt: skip
