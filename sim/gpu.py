"""The GPU: one step or burst at a time, in the order of submission.

A decode burst can be cut at a step boundary while it runs. Its step ends come in closed form
(`sim.burst`): a burst of a thousand steps costs one event, and its ends are listed once, for the
steps that were done.

Where the profile knows what copies take of a step, a step goes on at another pace from the moment a
copy begins or ends (`sim.contention`):

    work done    0 ---- 40 ---- 70 ----- 100      in ns of the step alone
    paces          1000     750     1000          (work done, since when, thousandths of its speed)
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
from sim.contention import DECODE, IDLE, PERMILLE, PREFILL, Contention
from sim.layered import Trail
from sim.link_ways import NEVER
from sim.pcie import Link
from sim.step_model import StepModel
from sim.timer import Callbacks, Timer

Waiting = tuple[Pending[Completion], Prefill | Decode, int, bool]
Pace = tuple[int, int, int]


class Gpu:
    """Serves `Prefill` and `Decode`. What is running stands in the fields, what waits in a
    queue.
    """

    __slots__ = (
        "_ahead", "_burst", "_callbacks", "_contention", "_copies_ns", "_env", "_finish_ns",
        "_groups", "_keeps_step_ends", "_layers", "_link", "_model", "_operation", "_paces",
        "_pending", "_queue", "_start_ns", "_step", "_steps", "_timer", "_timer_ns", "_work_ns",
    )  # fmt: skip

    def __init__(
        self,
        env: Environment,
        steps: StepModel,
        *,
        keeps_step_ends: bool = True,
        steps_ahead: int = 0,
        link: Link | None = None,
        layers: int = 1,
        groups: int = 1,
        contention: Contention | None = None,
    ) -> None:
        """`link`: the one whose loads a prefill may overlap with (`Prefill.load`); they come in
        `groups` groups of the model's `layers`. `contention`: with the copies of that link.
        """
        self._env: Any = env  # its times are ints
        self._contention = contention
        if contention is not None and link is not None:
            link.told = self._beside
        # What is under way as the link is told, its work, and its paces: those that begin later
        # than now are as far as is known.
        self._step = IDLE
        self._work_ns = 0
        self._paces: list[Pace] = []
        self._copies_ns = (NEVER, NEVER)  # when the copies under way begin, h2d and d2h
        self._ahead = steps_ahead
        self._link = link
        self._layers = layers
        self._groups = groups
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
        self._timer_ns = 0
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
            self._begin(DECODE, burst.end_ns(steps))
        else:
            self._burst = None
            self._steps = 0
            link, load = self._link, operation.load
            if load >= 0 and link is not None and link.watch(load, self._loaded):
                self._timer = None  # its end follows from the load's (`_loaded`)
                self._begin(IDLE, 0)
                return
            self._begin(PREFILL, self._model.prefill_ns(operation))
        self._set_timer(pending)

    def _begin(self, step: int, work_ns: int) -> None:
        """What was taken takes `work_ns` alone; IDLE: its end is not known yet."""
        self._work_ns = work_ns
        self._finish_ns = self._start_ns + work_ns
        if self._contention is not None:
            self._paces.clear()
            self._tell(step)
            if step != IDLE:
                self._plan(self._start_ns)

    def _tell(self, step: int) -> None:
        """Let the link know what goes on from the start on."""
        self._step = step
        if self._link is not None:
            self._link.beside(step, self._start_ns)

    def _beside(self, h2d_ns: int, d2h_ns: int) -> None:
        """The copies that are under way have changed: when each begins, NEVER without one."""
        self._copies_ns = (h2d_ns, d2h_ns)
        pending = self._pending
        if pending is None or self._step == IDLE:
            return
        finish_ns = self._finish_ns
        self._plan(self._env._now)
        if self._finish_ns != finish_ns:
            self._set_timer(pending)

    def _plan(self, now: int) -> None:
        """The paces from now on, and the end that follows."""
        contention, paces, (h2d_ns, d2h_ns) = self._contention, self._paces, self._copies_ns
        assert contention is not None
        at = now if now > self._start_ns else self._start_ns
        while paces and paces[-1][1] >= at:
            paces.pop()
        while True:
            permille = contention.step_speed(self._step, int(h2d_ns <= at), int(d2h_ns <= at))
            if not paces or paces[-1][2] != permille:
                paces.append((self._done_ns(at), at, permille))
            following = NEVER
            for begin_ns in (h2d_ns, d2h_ns):
                if at < begin_ns < following:
                    following = begin_ns
            if following == NEVER:
                break
            at = following
        self._finish_ns = self._when_ns(self._work_ns)

    def _done_ns(self, now: int) -> int:
        """How much of its work the step has done by now; below 0 before it begins."""
        paces = self._paces
        if not paces:
            return now - self._start_ns
        place = len(paces) - 1
        while place and paces[place][1] > now:
            place -= 1
        done_ns, since_ns, permille = paces[place]
        return done_ns + (now - since_ns) * permille // PERMILLE

    def _when_ns(self, work_ns: int) -> int:
        """When so much of its work is done."""
        paces = self._paces
        if not paces:
            return self._start_ns + work_ns
        place = len(paces) - 1
        while place and paces[place][0] >= work_ns:
            place -= 1
        done_ns, since_ns, permille = paces[place]
        return since_ns - (-(work_ns - done_ns) * PERMILLE // permille)

    def end_burst(self, pending: Pending[Completion]) -> None:
        """Let a burst end at its next step boundary, or `steps_ahead` later: those steps are
        launched already. One yet to begin ends after one step.
        """
        if self._pending is not pending:
            for place, waiting in enumerate(self._queue):
                if waiting[0] is pending:
                    self._queue[place] = (*waiting[:3], True)
            return
        burst = self._burst
        if burst is None:
            return
        done_ns = self._done_ns(self._env._now)
        step = burst.step_at(done_ns)
        if done_ns > 0:
            step += self._ahead
        if step < self._steps:
            self._steps = step
            self._work_ns = burst.end_ns(step)
            self._finish_ns = self._when_ns(self._work_ns)
            self._set_timer(pending)

    def _loaded(self, trail: Trail) -> None:
        """The load that the running prefill overlaps with has come."""
        pending, operation = self._pending, self._operation
        assert pending is not None
        assert type(operation) is Prefill
        compute_ns = self._model.prefill_ns(operation)
        self._finish_ns = trail.end_ns(self._start_ns, compute_ns, self._layers, self._groups)
        self._set_timer(pending)

    def _set_timer(self, pending: Pending[Completion]) -> None:
        """The GPU's one event: at the stamp of the running one's completion, in its place.

        One that stands there too early stays, and is set anew when it comes: a copy that begins
        and ends beside a step moves its end to and fro.
        """
        stamp_ns = self._finish_ns + 1
        if self._timer is not None and self._timer_ns <= stamp_ns:
            return
        env = self._env
        priority = FIRST_COMPLETION_PRIORITY + pending.number
        self._timer = Timer(env, stamp_ns - env._now, self._callbacks, priority)
        self._timer_ns = stamp_ns

    def _on_timer(self, timer: Timer) -> None:
        if timer is not self._timer:
            return
        self._timer = None
        pending, finish_ns, burst, steps = self._pending, self._finish_ns, self._burst, self._steps
        assert pending is not None
        if finish_ns >= self._env._now:
            self._set_timer(pending)
            return
        ends: tuple[int, ...] = ()
        if burst is not None and self._keeps_step_ends:
            if len(self._paces) > 1 or (self._paces and self._paces[0][2] != PERMILLE):
                ends = tuple(map(self._when_ns, burst.ends_ns(steps, 0)))
            else:
                ends = burst.ends_ns(steps, self._start_ns)
        done = Completion(
            pending.number, self._operation, pending.submitted_ns, self._start_ns, finish_ns,
            finish_ns + 1, 0, steps, ends,
        )  # fmt: skip
        self._pending = None
        if self._contention is not None and self._step != IDLE and not self._queue:
            self._tell(IDLE)
        if self._queue:  # the next one begins when this one ended
            following, operation, ready_ns, cut = self._queue.popleft()
            self.submit(following, operation, max(ready_ns, finish_ns))
            if cut:
                self.end_burst(following)
        conclude(pending, done)
