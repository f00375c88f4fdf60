"""An operation on its way to a device: what a queue is given, and what is asked of it meanwhile.

    engine's thread   Job(pending, operation, control, steps) --> queue --> worker's thread
                      control.end() ---------------------------> control.ending
                      control.beat_ns <------------------------- control.beat()

Made for every operation before the machine has it, so that this module is compiled where there is
a compiler (`hicache.compiled`). It refuses to know queues and threads.
"""

from __future__ import annotations

from time import monotonic_ns
from typing import TYPE_CHECKING, final

from hicache.kernel import Pending
from hicache.operations import Completion, Operation

if TYPE_CHECKING:
    from hw.device import Steps


@final
class Control:
    """What is asked of an operation under way, and its signs of life. Thread-safe.

    `number`: the operation's place in the order of submissions, by which others name it.
    """

    __slots__ = ("_beat_ns", "_ending", "number")

    def __init__(self, number: int = -1) -> None:
        self.number = number
        self._ending = False
        self._beat_ns = 0

    def end(self) -> None:
        """A decode burst is to end at its next step boundary."""
        self._ending = True

    @property
    def ending(self) -> bool:
        """Whether that was asked for; to be looked at between steps."""
        return self._ending

    def beat(self) -> None:
        """The device got on (a decode step is done): its watchdog counts anew from here."""
        self._beat_ns = monotonic_ns()

    @property
    def beat_ns(self) -> int:
        """When it last got on, in `time.monotonic_ns()`; 0: it has not said so yet."""
        return self._beat_ns


@final
class Job:
    """One operation on its way to a device."""

    __slots__ = ("control", "operation", "pending", "steps")

    def __init__(
        self,
        pending: Pending[Completion],
        operation: Operation,
        control: Control,
        steps: Steps = (),
    ) -> None:
        self.pending = pending
        self.operation = operation
        self.control = control
        self.steps: Steps = steps
