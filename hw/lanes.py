"""The engine's port over work queues. How an operation gets to its queue stands in `hw.submission`.

What a device that computes needs beside the operation (token ids, page tables) is asked for at the
moment of submission, on the engine's thread: later the batch may have changed. What is the same
later may be left to the device's thread (`hw.steps`). This module refuses
to know how anything is carried out.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Protocol

from hicache.errors import DeviceError
from hicache.kernel import Pending
from hicache.operations import Completion
from hw.jobs import Job
from hw.live import LiveEnvironment
from hw.submission import Put, StepsOf, Submissions


class LoadBook(Protocol):
    """Loads under way, which others wait for; `hw.loads.LoadBook` in a real run."""

    def close(self) -> None: ...


class Queue(Protocol):
    """Where jobs go; `hw.workers.WorkQueue` in a real run."""

    def put(self, job: Job, /) -> object: ...
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
        self._queues = dict(queues)
        self._loads = loads
        puts: dict[str, Put] = {name: queue.put for name, queue in queues.items()}
        submissions = Submissions(env, env.pump, env.numbers, puts, steps_of)
        self._bursts = submissions.bursts
        # An attribute, not a method: without a call in between.
        self.submit = submissions.submit

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
