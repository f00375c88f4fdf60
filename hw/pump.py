"""What a live environment does for every event: take in what the machine has, process what is due.

    take_in:  ask the machine ---- something came in ----> post it, ask again
                   |
                   +---- the next event is due, or nothing will come ----> back
    step:     take_in, unless events of the present instant are left; then one event

It is apart from `hw.live` because it is compiled where there is a compiler (`hicache.compiled`),
and what derives from SimPy's classes cannot be. It refuses to wait itself, and to know threads.

The engine's thread takes turns with waiting. A turn begins when a wait is over and ends with the
next one; the operations submitted in it are what the machine waits for. So whatever need not be
done before them (`later`) is done at the turn's end:

    wait | deliver, decide, submit, submit | write the record, ... | wait
         ^------- to_submission_ns -------^
         ^------------------- engine_ns ---------------------------^
"""

# pyright: reportPrivateUsage=false
# What runs for every event reads SimPy's `_now` and `_queue`; see hicache.kernel.
from __future__ import annotations

from collections.abc import Callable
from time import thread_time_ns
from typing import Any, final

from simpy.core import EmptySchedule

from hicache.errors import DeviceError, TransferError
from hicache.kernel import Pending, drain, post, stamp
from hicache.operations import Completion, Decode
from hicache.record import deliver
from hw.device import Timing
from hw.machine import Input, Machine, Report


@final
class Pump:
    """The moving part of one `LiveEnvironment`. Times are CPU time of the engine's thread, in ns.

    `later`: what is called at the end of each turn.
    """

    __slots__ = (
        "_env", "_machine", "_queue", "_submitted_ns", "_turn_began_ns", "engine_ns", "later",
        "longest_turn_ns", "operations", "to_submission_ns", "under_way",
    )  # fmt: skip

    def __init__(self, env: Any, machine: Machine) -> None:
        self._env = env  # its times are ints
        self._queue: list[Any] = env._queue
        self._machine = machine
        self._turn_began_ns = -1  # -1: waiting
        self._submitted_ns = -1
        self.engine_ns = 0
        self.to_submission_ns = 0
        self.longest_turn_ns = 0
        self.operations = 0
        # Kept also when a run is stopped: nobody else holds on to the processes that wait for them,
        # and a collector that found one would end it, with all that its ending does.
        self.under_way: dict[int, Pending[Completion]] = {}
        self.later: list[Callable[[], object]] = []

    def begin(self, pending: Pending[Completion]) -> None:
        """An operation is about to be handed to the machine, which will report it once."""
        if not self.operations:
            self._machine.now_ns()  # its clock runs from here at the latest
        self.operations += 1
        self.under_way[pending.number] = pending

    def handed_over(self) -> None:
        """The operation that was begun last is with the machine."""
        self._submitted_ns = thread_time_ns()

    @property
    def submission_ns(self) -> int:
        """When the last operation was handed over, from the beginning of its turn."""
        return self._submitted_ns - self._turn_began_ns

    def begin_turn(self) -> None:
        """Waiting is over."""
        self._turn_began_ns = thread_time_ns()

    def end_turn(self) -> None:
        """Waiting begins: do what was put off, and count."""
        began_ns = self._turn_began_ns
        if began_ns < 0:
            return
        for act in self.later:
            act()
        if self._submitted_ns >= 0:
            self.to_submission_ns += self._submitted_ns - began_ns
            self._submitted_ns = -1
        took_ns = thread_time_ns() - began_ns
        self.engine_ns += took_ns
        if took_ns > self.longest_turn_ns:
            self.longest_turn_ns = took_ns
        self._turn_began_ns = -1

    def step(self) -> None:
        """See `hw.live.LiveEnvironment.step`."""
        queue, env = self._queue, self._env
        # Nothing can enter the present instant, so that its events need not ask.
        if not queue or queue[0][0] > env._now:
            self._take_in()
        drain(env, 1)

    def _take_in(self) -> None:
        machine, queue = self._machine, self._queue
        while True:
            due_ns: int | None = queue[0][0] if queue else None
            if due_ns is None and not self.under_way:
                raise EmptySchedule
            if due_ns is None or due_ns > machine.now_ns():
                self.end_turn()
                try:
                    entries = machine.wait(due_ns)
                finally:
                    self._turn_began_ns = thread_time_ns()
            else:
                entries = machine.wait(due_ns)
            if entries is None:
                return
            for entry in entries:
                if isinstance(entry, Report):
                    self._enter(entry)
                elif isinstance(entry, Input):
                    deliver(self._env, stamp(self._env, machine.now_ns()), entry.act)
                else:
                    raise KeyboardInterrupt

    def _enter(self, report: Report) -> None:
        """Post a completion."""
        pending, outcome = report.pending, report.outcome
        known = self.under_way.pop(pending.number, None)
        assert known is pending, f"operation {pending.number} was reported twice, or never begun"
        if type(outcome) is Timing:
            done = _completion(self._env, report, outcome)
            post(self._env, pending, done, done.stamp_ns)
        elif isinstance(outcome, TransferError):
            post(self._env, pending, outcome, stamp(self._env, report.reported_ns))
        else:
            self.under_way[pending.number] = pending
            raise DeviceError(
                f"{report.device} broke at operation {pending.number} ({report.operation}): "
                f"{type(outcome).__name__}: {outcome}"
            ) from (outcome if isinstance(outcome, BaseException) else None)


def _completion(env: Any, report: Report, timing: Timing) -> Completion:
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
            ends = tuple([min(max(end, started), finished) for end in ends])
    return Completion(
        pending.number, operation, submitted, started, finished, stamp(env, finished), setup,
        steps, ends,
    )  # fmt: skip
