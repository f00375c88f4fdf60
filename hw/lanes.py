"""The engine's port over work queues: numbers operations, and sends each to the queue it belongs
to.

    Prefill, Decode -> "gpu"    Copy -> its direction: "h2d", "d2h", "s2h", "h2s"
    Lookup -> "lookup"

What a device that computes needs beside the operation (token ids, page tables) is asked for at the
moment of submission, on the engine's thread: later the batch may have changed. What is the same
later may be left to the device's thread (`hw.steps`). This module refuses
to know how anything is carried out.
"""

# pyright: reportPrivateUsage=false
# `Environment.now` is a property in Python; see hicache.kernel.
from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Protocol

from hicache.errors import DeviceError
from hicache.kernel import Pending
from hicache.operations import Completion, Copy, Decode, Lookup, Operation
from hw.device import Control
from hw.live import LiveEnvironment
from hw.workers import Job, Steps

StepsOf = Callable[[Operation], Steps]


class LoadBook(Protocol):
    """Loads under way, which others wait for; `hw.loads.LoadBook` in a real run."""

    def close(self) -> None: ...


class Queue(Protocol):
    """Where jobs go; `hw.workers.WorkQueue` in a real run."""

    def put(self, job: Job) -> None: ...
    def stop(self) -> None: ...
    def join(self) -> None: ...
    def close(self) -> None: ...


class LiveLanes:
    """`hicache.ports.Lanes` over `queues`, which other lanes of the environment may share.

    `steps_of` makes the Steps of a Prefill or Decode; without it devices get none. `loads`: where
    prefills wait for loads, if they do.
    """

    def __init__(
        self,
        env: LiveEnvironment,
        queues: Mapping[str, Queue],
        steps_of: StepsOf | None = None,
        loads: LoadBook | None = None,
    ) -> None:
        self._env: Any = env  # its times are ints
        self._pump = env.pump
        self._numbers = env.numbers
        self._queues = dict(queues)
        self._steps_of = steps_of
        self._loads = loads
        self._bursts: dict[int, Control] = {}  # under way, or not seen by the engine yet

    def submit(self, operation: Operation) -> Pending[Completion]:
        """Take `operation`. Raises DeviceError where the run has no device for it."""
        env = self._env
        steps: Steps = ()
        if type(operation) is Copy:
            name = operation.direction
        elif type(operation) is Lookup:
            name = "lookup"
        else:
            name = "gpu"
            if self._steps_of is not None:
                steps = self._steps_of(operation)
        queue = self._queues.get(name)
        if queue is None:
            raise DeviceError(f"no device serves queue {name}, which {operation} needs")
        pending: Pending[Completion] = Pending(env, next(self._numbers), env._now)
        control = Control(pending.number)
        if type(operation) is Decode:
            self._bursts[pending.number] = control
            assert pending.callbacks is not None
            pending.callbacks.append(self._over)
        pump = self._pump
        pump.begin(pending)
        queue.put(Job(pending, operation, control, steps))
        pump.handed_over()
        return pending

    def end_burst(self, pending: Pending[Completion]) -> None:
        """See `hicache.ports.Lanes`."""
        control = self._bursts.get(pending.number)
        if control is not None:
            control.end()

    def halt(self) -> None:
        """Take nothing more; bursts end at their next step, and what is under way is waited for.

        Raises DeviceError where a device does not come to an end.
        """
        self._stop()
        self._each(lambda queue: queue.join())

    def close(self) -> None:
        """Halt, and close the devices. To be called once the run is over, however it ended."""
        self._stop()
        self._each(lambda queue: queue.close())

    def _stop(self) -> None:
        for control in self._bursts.values():
            control.end()
        for queue in self._queues.values():
            queue.stop()
        if self._loads is not None:
            self._loads.close()

    def _each(self, act: Callable[[Queue], None]) -> None:
        """`act` on all of them; then raise the first DeviceError."""
        errors: list[DeviceError] = []
        for queue in self._queues.values():
            try:
                act(queue)
            except DeviceError as error:
                errors.append(error)
        if errors:
            raise errors[0]

    def _over(self, pending: Pending[Completion]) -> None:
        del self._bursts[pending.number]
