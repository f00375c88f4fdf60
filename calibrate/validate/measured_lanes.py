"""A simulated machine in which operations take what they took on a real one.

    error of a prediction = error of the device model + error of the schedule
    with measured durations the first is gone, and what is left is the second

    prefill, decode   what a step took             copies    what a copy took
    waits             what passed before it began  endings   steps after the end that was asked for

Any of these parts can be as recorded while the others are the profile's. Refuses to look a duration
up: see `calibrate.validate.measured`.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Any, Literal

from msgspec.structs import replace as replaced
from simpy import Environment

from calibrate.validate.measured import MeasuredTimes, Took, at_once
from hicache.kernel import Pending, Sleep, Task
from hicache.operations import DIRECTIONS, Completion, Copy, Decode, Operation, Prefill
from scenario.profile import Quantity
from sim.burst import SHIFT, Burst
from sim.contention import PERMILLE
from sim.finish import report
from sim.lanes import SimLanes, SimMachine
from sim.step_model import StepModel

Part = Literal["prefill", "decode", "copies", "waits", "endings"]
PARTS: tuple[Part, ...] = ("prefill", "decode", "copies", "waits", "endings")


class MeasuredSteps:
    """`sim.step_model.StepModel` with recorded durations of the `parts` named.

    `launch_ns` is what the simulated host takes before a prefill step and before a burst in any
    case: recorded waits replace it. `requests` says who decodes, which a step model is not told.
    """

    def __init__(
        self,
        model: StepModel,
        times: MeasuredTimes,
        parts: frozenset[Part],
        launch_ns: tuple[int, int],
    ) -> None:
        self._model = model
        self._times = times
        self._parts = parts
        self._launch_ns = launch_ns
        self.requests: tuple[int, ...] = ()
        self.joint_prefills = 0

    def prefill_ns(self, step: Prefill) -> int:
        """See `StepModel`."""
        took = self._times.prefill(step)
        said_ns = self._model.prefill_ns(step)
        self.joint_prefills = self._model.joint_prefills
        if "prefill" in self._parts:
            said_ns = took.service_ns
        return self._whole(took, said_ns, self._launch_ns[0])

    def decode_ns(self, batch: int, context_tokens: int) -> int:
        """See `StepModel`."""
        return self._model.decode_ns(batch, context_tokens)

    def burst(self, batch: int, context_tokens: int, max_steps: int) -> Burst:
        """See `StepModel`. A piece for each step."""
        if "decode" not in self._parts and "waits" not in self._parts:
            return self._model.burst(batch, context_tokens, max_steps)
        pieces: list[tuple[int, int, int, int]] = []
        base = 0
        for step in range(max_steps):
            context = context_tokens + step * batch
            took = self._times.decode(batch, context, self.requests)
            known = "decode" in self._parts
            took_ns = took.service_ns if known else self._model.decode_ns(batch, context)
            if not step:
                took_ns = self._whole(took, took_ns, self._launch_ns[1])
            pieces.append((step, base, took_ns << SHIFT, 0))
            base += took_ns << SHIFT
        return Burst(pieces, max_steps)

    def _whole(self, took: Took, service_ns: int, launch_ns: int) -> int:
        if "waits" not in self._parts:
            return max(1, service_ns)
        return max(1, service_ns + took.wait_ns - launch_ns)


class MeasuredLanes:
    """`hicache.ports.Lanes`: a simulated machine in which the `parts` named are as recorded.

    Copies that are as recorded go through one queue a direction, as many at once as the record has
    (in `hw` one): what they lost to one another is in their durations. `steps_ahead` ("endings") is
    what a burst that is asked to end does after the step under way.
    """

    def __init__(
        self,
        env: Environment,
        machine: SimMachine,
        completions: Sequence[Completion],
        parts: frozenset[Part],
        steps_ahead: int = 0,
    ) -> None:
        self._env: Any = env  # its times are ints
        self._parts = parts
        self.times = MeasuredTimes(completions, machine.steps)
        engine = machine.profile.host.engine
        step_ns = engine.step_ns.value
        launch_ns = (step_ns, step_ns if engine.burst_ns is None else engine.burst_ns.value)
        self._steps = MeasuredSteps(machine.steps, self.times, parts, launch_ns)
        machine.steps = self._steps
        if "endings" in parts:
            ahead = Quantity(provenance="measured", how="of a record", value=steps_ahead)
            gpu = replaced(machine.profile.gpu, steps_ahead=ahead)
            machine.profile = replaced(machine.profile, gpu=gpu)
        interference = machine.profile.interference
        if interference is not None:  # what a measured step lost is in its duration
            known = {
                f"{step}_under_{way}_permille": replaced(
                    getattr(interference, f"{step}_under_{way}_permille"), value=PERMILLE
                )
                for step in ("prefill", "decode")
                for way in ("h2d", "d2h")
                if step in parts
            }
            machine.profile = replaced(
                machine.profile, interference=replaced(interference, **known)
            )
        self._numbers = machine.numbers
        self._inner: SimLanes = machine.lanes()
        places = at_once(completions)
        self._ways = {way: _Way(env, places.get(way, 1)) for way in DIRECTIONS}

    def submit(self, operation: Operation) -> Pending[Completion]:
        """See `hicache.ports.Lanes`."""
        if type(operation) is Copy:
            took = self.times.copy(operation) if "copies" in self._parts else None
            if took is None:
                return self._inner.submit(operation)
            pending: Pending[Completion] = Pending(
                self._env, next(self._numbers), int(self._env.now)
            )
            self._ways[operation.direction].take(pending, operation, took)
            return pending
        if type(operation) is Decode:
            self._steps.requests = operation.requests
        return self._inner.submit(operation)

    def end_burst(self, pending: Pending[Completion]) -> None:
        """See `hicache.ports.Lanes`."""
        self._inner.end_burst(pending)


class _Way:
    """One direction: copies in order, so many at once, each of a time that is known."""

    def __init__(self, env: Environment, places: int) -> None:
        self._env: Any = env
        self._queue: deque[tuple[Pending[Completion], Copy, Took]] = deque()
        self._free = places

    def take(self, pending: Pending[Completion], operation: Copy, took: Took) -> None:
        """Begin it now or when there is a place for it."""
        self._queue.append((pending, operation, took))
        self._begin()

    def _begin(self) -> None:
        while self._queue and self._free:
            self._free -= 1
            Task(self._carry_out(*self._queue.popleft()))

    async def _carry_out(self, pending: Pending[Completion], operation: Copy, took: Took) -> None:
        started_ns = int(self._env.now) + took.wait_ns
        await Sleep(self._env, took.wait_ns + max(1, took.service_ns))
        report(pending, operation, started_ns, int(self._env.now))
        self._free += 1
        self._begin()
