"""SimPy on the wall clock: the engine's own code, with time and completions from a machine.

    step:  ask the machine ---- something came in ----> post it, ask again
                |
                +---- the next event is due ----------> SimPy's own step

`env.now` is the time of the event being processed, as in every mode. It never runs ahead of the
machine's clock (an event waits until it is due) and never goes back (what comes in late is stamped
`max(finished, now + 1)`, the rule of `hicache.kernel`). So a run depends on the clock only through
the stamps of its completions and inputs, and a record of these repeats it in plain SimPy.

What is done for every event stands in `hw.pump`. This module refuses to know threads and devices: a
`hw.machine.Machine` stands between.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from itertools import count
from typing import Protocol

from simpy import Environment
from simpy.core import EmptySchedule

from hicache.errors import DeviceError
from hicache.kernel import Pending
from hicache.operations import Completion
from hw.interrupt import Interrupt
from hw.machine import Input, Machine
from hw.pump import Pump

# Python hands the interpreter over after this long where a thread does not let go by itself. Its
# default of 5 ms is what a completion would wait while a worker launches a model from Python.
SWITCH_INTERVAL_S = 0.0005


class LiveEnvironment(Environment):
    """SimPy's environment, its time and completions supplied by `machine`.

    `numbers` counts the operations of all lanes.
    """

    def __init__(self, machine: Machine) -> None:
        super().__init__(0)
        self.machine = machine
        self.numbers = count()
        self.pump = Pump(self, machine)

    @property
    def under_way(self) -> int:
        """Operations submitted and not reported yet."""
        return len(self.pump.under_way)

    @property
    def operations(self) -> int:
        """Operations submitted so far."""
        return self.pump.operations

    @property
    def engine_ns_per_operation(self) -> float:
        """CPU time of this thread outside of waiting, for each operation so far."""
        return self.pump.engine_ns / max(self.pump.operations, 1)

    @property
    def submission_ns_per_operation(self) -> float:
        """The part of it that an operation waits for: from the completion or timer that led to it,
        or the operation before it, until it is with the machine.
        """
        return self.pump.to_submission_ns / max(self.pump.operations, 1)

    def begin(self, pending: Pending[Completion]) -> None:
        """An operation is about to be handed to the machine, which will report it once."""
        self.pump.begin(pending)

    def at_turns_end(self, act: Callable[[], object]) -> None:
        """Call `act` whenever this thread is about to wait, and once more when the run is over: for
        what no operation has to wait for.
        """
        self.pump.later.append(act)

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
        self.pump.step()


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
    env.pump.begin_turn()
    step = env.step
    try:
        with interrupt or Interrupt(env.machine):
            while True:
                step()
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
        env.pump.end_turn()
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
