"""The GPU: one step or burst at a time, in the order of submission.

A decode burst can be cut at a step boundary while it runs. Its step ends come in closed form
(`sim.burst`): a burst of a thousand steps costs one event, and its ends are listed once, for the
steps that were done.
"""

# pyright: reportPrivateUsage=false
# `Environment.now` is a property in Python; see hicache.kernel.
from __future__ import annotations

from collections import deque
from typing import Any, cast

from simpy import Environment

from hicache.kernel import Pending, completion_priority, conclude
from hicache.operations import Completion, Decode, Prefill
from sim.burst import Burst
from sim.step_model import StepModel
from sim.timer import Callbacks, Timer


class _Job:
    """One operation on the GPU or in its queue. `steps`: those to do, fewer once it was cut."""

    __slots__ = ("burst", "finish_ns", "operation", "pending", "ready_ns", "start_ns", "steps")

    def __init__(
        self, pending: Pending[Completion], operation: Prefill | Decode, ready_ns: int
    ) -> None:
        self.pending = pending
        self.operation = operation
        self.ready_ns = ready_ns
        self.start_ns = 0
        self.finish_ns = 0
        self.burst: Burst | None = None
        self.steps = operation.max_steps if type(operation) is Decode else 0


class Gpu:
    """Serves `Prefill` and `Decode`."""

    def __init__(self, env: Environment, steps: StepModel) -> None:
        self._env: Any = env  # its times are ints
        self._steps = steps
        self._running: _Job | None = None
        self._queue: deque[_Job] = deque()
        self._timer: Timer | None = None
        self._callbacks: Callbacks = [self._on_timer]

    def submit(
        self, pending: Pending[Completion], operation: Prefill | Decode, ready_ns: int
    ) -> None:
        """Take a step or burst that the engine has ready at `ready_ns`."""
        job = _Job(pending, operation, ready_ns)
        if self._running is None:
            self._start(job, self._env._now)
        else:
            self._queue.append(job)

    def end_burst(self, pending: Pending[Completion]) -> None:
        """Let a burst end at its next step boundary; one yet to begin, after one step."""
        job = self._running
        if job is None or job.pending is not pending:
            for waiting in self._queue:
                if waiting.pending is pending:
                    waiting.steps = min(waiting.steps, 1)
            return
        burst = job.burst
        if burst is None:
            return
        now = self._env._now
        step = burst.step_at(now - job.start_ns)
        if step < job.steps:
            job.steps = step
            job.finish_ns = job.start_ns + burst.end_ns(step)
            self._set_timer(job)

    def _start(self, job: _Job, now: int) -> None:
        start = job.start_ns = job.ready_ns if job.ready_ns > now else now
        operation = job.operation
        if type(operation) is Decode:
            burst = self._steps.burst(
                operation.batch, operation.context_tokens, operation.max_steps
            )
            job.burst = burst
            job.finish_ns = start + burst.end_ns(job.steps)
        else:
            job.finish_ns = start + self._steps.prefill_ns(cast(Prefill, operation))
        self._running = job
        self._set_timer(job)

    def _set_timer(self, job: _Job) -> None:
        """The GPU's one event: at the stamp of the job's completion, in its place in the order."""
        self._timer = Timer(
            self._env,
            job.finish_ns + 1 - self._env._now,
            self._callbacks,
            completion_priority(job.pending.number),
        )

    def _on_timer(self, timer: Timer) -> None:
        if timer is not self._timer:
            return
        job = self._running
        assert job is not None
        finished = job.finish_ns
        if self._queue:
            self._start(self._queue.popleft(), finished)  # the next job begins when this one ended
        else:
            self._running = None
        pending, burst = job.pending, job.burst
        ends = burst.ends_ns(job.steps, job.start_ns) if burst is not None else ()
        conclude(
            pending,
            Completion(
                pending.number, job.operation, pending.submitted_ns, job.start_ns, finished,
                finished + 1, 0, job.steps, ends,
            ),
        )  # fmt: skip
