"""SimPy on the wall clock: the engine's own code, with time and completions from a machine.

    step:  ask the machine ---- something came in ----> post it, ask again
                |
                +---- the next event is due ----------> SimPy's own step

`env.now` is the time of the event being processed, as in every mode. It never runs ahead of the
machine's clock (an event waits until it is due) and never goes back (what comes in late is stamped
`max(finished, now + 1)`, the rule of `hicache.kernel`). So a run depends on the clock only through
the stamps of its completions and inputs, and a record of these repeats it in plain SimPy.

This module refuses to know threads and devices: a `hw.machine.Machine` stands between.
"""

# pyright: reportPrivateUsage=false
# What runs for every event reads SimPy's `_now` and `_queue`; see hicache.kernel.
from __future__ import annotations

import sys
import time
from collections.abc import Callable
from itertools import count
from typing import Any, Protocol

from simpy import Environment
from simpy.core import EmptySchedule

from hicache.errors import DeviceError, TransferError
from hicache.kernel import Pending, post, stamp
from hicache.operations import Completion, Decode
from hicache.record import deliver
from hw.device import Timing
from hw.interrupt import Interrupt
from hw.machine import Input, Machine, Report

# Python hands the interpreter over after this long where a thread does not let go by itself. Its
# default of 5 ms is what a completion would wait while a worker launches a model from Python.
SWITCH_INTERVAL_S = 0.0005


class LiveEnvironment(Environment):
    """SimPy's environment, its time and completions supplied by `machine`.

    `numbers` counts the operations of all lanes. `engine_ns` is the CPU time that this thread spent
    outside of waiting, `operations` how many operations began meanwhile, `longest_turn_ns` the most
    that passed between two waits.
    """

    def __init__(self, machine: Machine) -> None:
        super().__init__(0)
        self.machine = machine
        self.numbers = count()
        self.operations = 0
        self.engine_ns = 0
        self.longest_turn_ns = 0
        # Kept also when a run is stopped: nobody else holds on to the processes that wait for them,
        # and a collector that found one would end it, with all that its ending does.
        self._under_way: dict[int, Pending[Completion]] = {}
        self._turn_began_ns = -1

    @property
    def under_way(self) -> int:
        """Operations submitted and not reported yet."""
        return len(self._under_way)

    @property
    def engine_ns_per_operation(self) -> float:
        """CPU time of the engine for each operation so far."""
        return self.engine_ns / max(self.operations, 1)

    def begin(self, pending: Pending[Completion]) -> None:
        """An operation is about to be handed to the machine, which will report it once."""
        if not self.operations:
            self.machine.now_ns()  # its clock runs from here at the latest
        self.operations += 1
        self._under_way[pending.number] = pending

    def call_soon_threadsafe(self, act: Callable[[], object]) -> None:
        """Let `act()` happen on the engine's thread, at the time at which it gets to know, and in
        its place among the events. From any thread.

        What it changes in the engine must go through `Recorder.abort` and the like to be in the
        record. Once a run is over it does not happen any more.
        """
        self.machine.tell(Input(act))

    def step(self) -> None:
        """Take in what the machine has, wait for the next event or completion, process one event.

        Raises EmptySchedule when no event is left and no operation is under way, DeviceError when a
        device broke or no longer answers, and KeyboardInterrupt when the run is to stop.
        """
        queue: list[Any] = self._queue
        # Nothing can enter the present instant, so that its events need not ask.
        if not queue or queue[0][0] > self._now:
            self._take_in(queue)
        super().step()

    def _take_in(self, queue: list[Any]) -> None:
        machine = self.machine
        while True:
            due_ns = queue[0][0] if queue else None
            if due_ns is None and not self._under_way:
                raise EmptySchedule
            if due_ns is None or due_ns > machine.now_ns():
                self._end_turn()
                try:
                    entries = machine.wait(due_ns)
                finally:
                    self._turn_began_ns = time.thread_time_ns()
            else:
                entries = machine.wait(due_ns)
            if entries is None:
                return
            for entry in entries:
                if isinstance(entry, Report):
                    self._enter(entry)
                elif isinstance(entry, Input):
                    deliver(self, stamp(self, machine.now_ns()), entry.act)
                else:
                    raise KeyboardInterrupt

    def _enter(self, report: Report) -> None:
        """Post a completion."""
        pending, outcome = report.pending, report.outcome
        known = self._under_way.pop(pending.number, None)
        assert known is pending, f"operation {pending.number} was reported twice, or never begun"
        if type(outcome) is Timing:
            done = _completion(self, report, outcome)
            post(self, pending, done, done.stamp_ns)
        elif isinstance(outcome, TransferError):
            post(self, pending, outcome, stamp(self, report.reported_ns))
        else:
            self._under_way[pending.number] = pending
            raise DeviceError(
                f"{report.device} broke at operation {pending.number} ({report.operation}): "
                f"{type(outcome).__name__}: {outcome}"
            ) from (outcome if isinstance(outcome, BaseException) else None)

    def _end_turn(self) -> None:
        if self._turn_began_ns >= 0:
            took_ns = time.thread_time_ns() - self._turn_began_ns
            self.engine_ns += took_ns
            if took_ns > self.longest_turn_ns:
                self.longest_turn_ns = took_ns
        self._turn_began_ns = -1


def _completion(env: Environment, report: Report, timing: Timing) -> Completion:
    """What the engine gets to see. A device's clock may be a little off the host's: its times are
    moved to between submission and report. Raises DeviceError for a burst that is none.
    """
    pending, operation, latest = report.pending, report.operation, report.reported_ns
    submitted = pending.submitted_ns
    started, finished, setup, steps, ends = timing
    if not submitted <= started <= finished <= latest:
        latest = max(latest, submitted)
        finished = min(max(finished, submitted), latest)
        started = min(max(started, submitted), finished)
    if setup:
        setup = min(max(setup, 0), finished - submitted)
    if steps or ends or type(operation) is Decode:
        most = operation.max_steps if type(operation) is Decode else 0
        if not 1 <= steps == len(ends) <= most:
            raise DeviceError(
                f"{report.device} says of operation {pending.number} ({operation}): "
                f"{steps} steps, {len(ends)} ends of steps; allowed: 1 to {most} for a "
                "burst, none for anything else"
            )
        if started > ends[0] or ends[-1] > finished:
            ends = tuple(min(max(end, started), finished) for end in ends)
    return Completion(
        pending.number, operation, submitted, started, finished, stamp(env, finished), setup,
        steps, ends,
    )  # fmt: skip


class Halts(Protocol):
    """Lanes that can be brought to rest."""

    def halt(self) -> None:
        """Take nothing more, and wait for what is under way. Raises DeviceError where that never
        ends.
        """
        ...


def run_live(env: LiveEnvironment, *lanes: Halts, interrupt: Interrupt | None = None) -> bool:
    """Run until nothing is left to happen and no operation is under way.

    `interrupt`: the one through which the requests are read, if they are.

    Returns False when Ctrl-C ended the run: after an event as a whole, so that the engine's counts
    hold for what was done. However a run ends before its time, what is under way on `lanes` ends
    first: nobody frees memory that a device still writes to. A second Ctrl-C does not wait for it.
    """
    before_s = sys.getswitchinterval()
    sys.setswitchinterval(min(before_s, SWITCH_INTERVAL_S))
    env._turn_began_ns = time.thread_time_ns()
    try:
        with interrupt or Interrupt(env.machine):
            while True:
                env.step()
    except EmptySchedule:
        return True
    except KeyboardInterrupt:
        halt_all(lanes)
        return False
    except BaseException as error:
        try:
            halt_all(lanes)
        except DeviceError as another:
            error.add_note(str(another))
        raise
    finally:
        env._end_turn()
        sys.setswitchinterval(before_s)


def halt_all(lanes: tuple[Halts, ...]) -> None:
    """Bring all of them to rest; then raise the first DeviceError."""
    errors: list[DeviceError] = []
    for each in lanes:
        try:
            each.halt()
        except DeviceError as error:
            errors.append(error)
    if errors:
        raise errors[0]
