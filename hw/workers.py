"""The threads behind the lanes: a queue of jobs, and one worker for each device that serves it.

    put --> [job, job, job] --> worker thread: device.run(...) --> machine.tell(Report)

Jobs are taken in order; where several workers serve one queue (a disk), they may end in another. A
`TransferError` is an outcome like any other; anything else that a device raises stops its queue,
and ends the run when the engine's thread reads it. A job that takes longer than `Patience` allows
is what a dead device looks like from here: Python cannot end a thread that is inside a driver, so
the engine's thread raises a DeviceError and goes without it. The threads are daemons: one that
hangs does not keep the process.

This module refuses to know queues by their meaning, and touches neither tree nor environment.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from queue import SimpleQueue

from hicache.errors import DeviceError, TransferError
from hicache.operations import Copy, Decode, Lookup, Operation
from hw.device import Device, Timing
from hw.jobs import Job
from hw.machine import Report, ThreadMachine

JOIN_EVERY_S = 0.1


@dataclass(frozen=True, slots=True)
class Patience:
    """How long a device may go without a sign of life before it counts as dead: `base_s`, and
    generously more for large operations. A burst whose device says so after each step
    (`Control.beat`) has `base_s` for the next.
    """

    base_s: float = 60.0
    s_per_gib: float = 60.0
    s_per_token: float = 0.02
    s_per_step: float = 2.0

    def limit_ns(self, operation: Operation) -> int:
        """For one operation, in ns."""
        if type(operation) is Copy:
            more_s = operation.size_bytes / 2**30 * self.s_per_gib
        elif type(operation) is Decode:
            more_s = operation.max_steps * self.s_per_step
        elif type(operation) is Lookup:
            more_s = 0.0
        else:
            more_s = operation.tokens * self.s_per_token  # pyright: ignore[reportAttributeAccessIssue]
        return int((self.base_s + more_s) * 1e9)


class WorkQueue:
    """A queue and its workers, which start at once.

    `devices`: one worker for each; the same device several times where it can do several jobs at
    once.
    """

    def __init__(
        self,
        name: str,
        devices: Sequence[Device],
        machine: ThreadMachine,
        patience: Patience | None = None,
    ) -> None:
        assert devices, f"queue {name} has nobody to serve it"
        self.name = name
        self._devices = tuple(devices)
        self._machine = machine
        self._patience = patience or Patience()
        self._jobs: SimpleQueue[Job | None] = SimpleQueue()
        # Queue a job; the machine gets its Report once it is over. After `stop` nobody takes it.
        # An attribute, not a method: without a call in between, since the operation waits for it.
        self.put: Callable[[Job], object] = self._jobs.put
        self._stopping = False
        self._broken = False
        self._closed = False
        # What each worker is at, and since when (`time.monotonic_ns()`).
        self._busy: list[tuple[Job, int] | None] = [None] * len(devices)
        self._given_up: set[int] = set()
        machine.guard(self.check)
        self._threads = [
            threading.Thread(
                target=self._serve, args=(place,), name=f"hicache {name} {place}", daemon=True
            )
            for place in range(len(devices))
        ]
        for thread in self._threads:
            thread.start()

    @property
    def devices(self) -> tuple[Device, ...]:
        """Who serves it, each once."""
        return tuple({id(device): device for device in self._devices}.values())

    @property
    def stuck(self) -> bool:
        """Whether a worker is inside a device that no longer answers, and may still write."""
        return bool(self._given_up)

    def check(self) -> None:
        """Raises DeviceError, once for each worker, when a job takes longer than it may."""
        for place in range(len(self._threads)):
            self._check(place)

    def stop(self) -> None:
        """Take nothing more, and drop what no worker has begun."""
        if not self._stopping:
            self._stopping = True
            for _ in self._threads:
                self._jobs.put(None)

    def join(self) -> None:
        """After `stop`: wait until every worker has ended. Raises the first DeviceError of one that
        never does, after it has waited for the others.
        """
        assert self._stopping
        first: DeviceError | None = None
        for place, thread in enumerate(self._threads):
            while thread.is_alive() and place not in self._given_up:
                thread.join(JOIN_EVERY_S)
                try:
                    self._check(place)
                except DeviceError as error:
                    first = first or error
        if first is not None:
            raise first

    def close(self) -> None:
        """Stop, wait, and close the devices: those that still work."""
        if self._closed:
            return
        self._closed = True
        self.stop()
        try:
            self.join()
        finally:
            stuck = {id(self._devices[place]) for place in self._given_up}
            for device in self.devices:
                if id(device) not in stuck:
                    device.close()

    def _check(self, place: int) -> None:
        busy = self._busy[place]
        if busy is None or place in self._given_up:
            return
        job, since_ns = busy
        limit_ns = self._patience.limit_ns(job.operation)
        beat_ns = job.control.beat_ns
        if beat_ns > since_ns:
            since_ns, limit_ns = beat_ns, int(self._patience.base_s * 1e9)
        silent_ns = time.monotonic_ns() - since_ns
        if silent_ns > limit_ns:
            self._given_up.add(place)
            raise DeviceError(
                f"{self._title(place)} no longer answers: nothing was heard of operation "
                f"{job.pending.number} ({job.operation}) for {silent_ns / 1e9:.1f} s; "
                f"allowed: {limit_ns / 1e9:.1f} s"
            )

    def _title(self, place: int) -> str:
        return f"{self._devices[place].name} (queue {self.name})"

    def _serve(self, place: int) -> None:
        """What a worker's thread does."""
        device, machine, title = self._devices[place], self._machine, self._title(place)
        while True:
            job = self._jobs.get()
            if job is None or self._stopping or self._broken:
                return
            self._busy[place] = (job, time.monotonic_ns())
            outcome = self._carry_out(device, job)
            if isinstance(outcome, BaseException) and not isinstance(outcome, TransferError):
                self._broken = True  # what it would do next is anybody's guess
            self._busy[place] = None
            machine.tell(Report(job.pending, job.operation, title, machine.now_ns(), outcome))
            del job, outcome  # a waiting worker keeps nobody's token ids

    def _carry_out(self, device: Device, job: Job) -> Timing | BaseException:
        run_clock = self._machine.on_run_clock
        try:
            if job.steps:
                steps = job.steps if isinstance(job.steps, tuple) else job.steps()
                timing = device.run(job.operation, job.control, steps)
            else:
                timing = device.run(job.operation, job.control)
            return Timing(
                run_clock(timing.started_ns),
                run_clock(timing.finished_ns),
                timing.setup_ns,
                timing.steps,
                tuple(map(run_clock, timing.step_ends_ns)),
            )
        except TransferError as error:
            return error.with_traceback(None)
        except BaseException as error:  # whatever it is, the engine's thread must hear of it
            return error
