"""From the engine to the queues: what is done for every operation before the machine has it.

    Prefill, Decode -> "gpu"      Copy -> its direction: "h2d", "d2h", "s2h", "h2s"
    Lookup -> "lookup"

It is apart from `hw.lanes` because it is compiled where there is a compiler (`hicache.compiled`):
the operation waits for it. It refuses to know queues beyond where their jobs go, and to end
anything.
"""

# pyright: reportPrivateUsage=false
# `Environment.now` is a property in Python; see hicache.kernel.
from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, final

from hicache.errors import DeviceError
from hicache.kernel import Pending
from hicache.operations import Completion, Copy, Decode, Lookup, Operation
from hw.device import Steps
from hw.jobs import Control, Job
from hw.pump import Pump

StepsOf = Callable[[Operation], Steps]
Put = Callable[[Job], object]


@final
class Submissions:
    """Numbers operations, and sends each to the queue that it belongs to.

    `puts`: by the name of a queue, what takes a job for it. `steps_of`: see `hw.lanes.LiveLanes`.
    `bursts`: of the decode bursts under way, or not seen by the engine yet, by their number.
    """

    __slots__ = ("_env", "_numbers", "_pump", "_puts", "_steps_of", "bursts")

    def __init__(
        self,
        env: Any,
        pump: Pump,
        numbers: Iterator[int],
        puts: dict[str, Put],
        steps_of: StepsOf | None,
    ) -> None:
        self._env = env  # its times are ints
        self._pump = pump
        self._numbers = numbers
        self._puts = puts
        self._steps_of = steps_of
        self.bursts: dict[int, Control] = {}

    def submit(self, operation: Operation) -> Pending[Completion]:
        """Take `operation`. Raises DeviceError where the run has no device for it."""
        steps: Steps = ()
        if type(operation) is Copy:
            name: str = operation.direction
        elif type(operation) is Lookup:
            name = "lookup"
        else:
            name = "gpu"
            if self._steps_of is not None:
                steps = self._steps_of(operation)
        put = self._puts.get(name)
        if put is None:
            raise DeviceError(f"no device serves queue {name}, which {operation} needs")
        number = next(self._numbers)
        pending: Pending[Completion] = Pending(self._env, number, self._env._now)
        control = Control(number)
        if type(operation) is Decode:
            self.bursts[number] = control
            assert pending.callbacks is not None
            pending.callbacks.append(self._over)
        pump = self._pump
        pump.begin(pending)
        put(Job(pending, operation, control, steps))
        pump.handed_over()
        return pending

    def _over(self, pending: Pending[Completion]) -> None:
        del self.bursts[pending.number]
