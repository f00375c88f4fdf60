"""The GPU: one step or burst at a time, in the order of submission.

A decode burst can be cut at a step boundary while it runs. Its step ends come in closed form
(`sim.burst`): a burst of a thousand steps costs one event, and its ends are listed once, for the
steps that were done.
"""

# pyright: reportPrivateUsage=false
# `Environment.now` is a property in Python; see hicache.kernel.
from __future__ import annotations

from collections import deque
from typing import Any

from simpy import Environment

from hicache.kernel import FIRST_COMPLETION_PRIORITY, Pending, conclude
from hicache.operations import Completion, Decode, Prefill
from sim.burst import Burst
from sim.step_model import StepModel
from sim.timer import Callbacks, Timer

Waiting = tuple[Pending[Completion], Prefill | Decode, int, bool]


class Gpu:
    """Serves `Prefill` and `Decode`. What is running stands in the fields, what waits in a
    queue.
    """

    __slots__ = (
        "_burst", "_callbacks", "_env", "_finish_ns", "_keeps_step_ends", "_model", "_operation",
        "_pending", "_queue", "_start_ns", "_steps", "_timer",
    )  # fmt: skip

    def __init__(self, env: Environment, steps: StepModel, *, keeps_step_ends: bool = True) -> None:
        self._env: Any = env  # its times are ints
        self._model = steps
        self._keeps_step_ends = keeps_step_ends
        self._pending: Pending[Completion] | None = None
        self._operation: Prefill | Decode
        self._start_ns = 0
        self._finish_ns = 0
        self._burst: Burst | None = None
        self._steps = 0  # of the burst: those to do, fewer once it was cut
        # (pending, operation, ready_ns, whether a burst was asked to end before it began)
        self._queue: deque[Waiting] = deque()
        self._timer: Timer | None = None
        self._callbacks: Callbacks = [self._on_timer]

    def submit(
        self, pending: Pending[Completion], operation: Prefill | Decode, ready_ns: int
    ) -> None:
        """Take a step or burst that the engine has ready at `ready_ns`."""
        if self._pending is not None:
            self._queue.append((pending, operation, ready_ns, False))
            return
        self._pending = pending
        self._operation = operation
        self._start_ns = ready_ns
        if type(operation) is Decode:
            self._steps = steps = operation.max_steps
            burst = self._model.burst(operation.batch, operation.context_tokens, steps)
            self._burst = burst
            self._finish_ns = ready_ns + burst.end_ns(steps)
        else:
            self._burst = None
            self._steps = 0
            self._finish_ns = ready_ns + self._model.prefill_ns(operation)
        env = self._env
        priority = FIRST_COMPLETION_PRIORITY + pending.number
        self._timer = Timer(env, self._finish_ns + 1 - env._now, self._callbacks, priority)

    def end_burst(self, pending: Pending[Completion]) -> None:
        """Let a burst end at its next step boundary; one yet to begin, after one step."""
        if self._pending is not pending:
            for place, waiting in enumerate(self._queue):
                if waiting[0] is pending:
                    self._queue[place] = (*waiting[:3], True)
            return
        burst = self._burst
        if burst is None:
            return
        step = burst.step_at(self._env._now - self._start_ns)
        if step < self._steps:
            self._steps = step
            self._finish_ns = self._start_ns + burst.end_ns(step)
            self._set_timer(pending)

    def _set_timer(self, pending: Pending[Completion]) -> None:
        """The GPU's one event: at the stamp of the running one's completion, in its place."""
        env = self._env
        priority = FIRST_COMPLETION_PRIORITY + pending.number
        self._timer = Timer(env, self._finish_ns + 1 - env._now, self._callbacks, priority)

    def _on_timer(self, timer: Timer) -> None:
        if timer is not self._timer:
            return
        pending, finish_ns, burst, steps = self._pending, self._finish_ns, self._burst, self._steps
        assert pending is not None
        ends: tuple[int, ...] = ()
        if burst is not None and self._keeps_step_ends:
            ends = burst.ends_ns(steps, self._start_ns)
        done = Completion(
            pending.number, self._operation, pending.submitted_ns, self._start_ns, finish_ns,
            finish_ns + 1, 0, steps, ends,
        )  # fmt: skip
        self._pending = None
        if self._queue:  # the next one begins when this one ended
            following, operation, ready_ns, cut = self._queue.popleft()
            self.submit(following, operation, max(ready_ns, finish_ns))
            if cut:
                self.end_burst(following)
        conclude(pending, done)
