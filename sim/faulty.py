"""Lanes that go wrong on purpose: copies that fail, operations that end late and so out of order.

Faults are drawn from a generator that is handed in, a fixed number of draws for each operation, so
that the same seed gives the same faults. A copy that fails has taken its time on the device first.
GPU steps are late at most: a step that fails ends a real server. A late end is reported when it
comes, through the same `stamp` and `post` as every other, so that a record taken outside these
lanes holds the faults too.
"""

from __future__ import annotations

from collections.abc import Sequence
from random import Random

from simpy import Environment

from hicache.errors import TransferError
from hicache.kernel import Pending, post, stamp
from hicache.operations import Completion, Copy, Lookup, Operation
from hicache.ports import Lanes
from sim.timer import Timer


class FaultyLanes:
    """Wraps `inner`.

    `fail`: probability that a copy ends in a TransferError. `slow`: probability that an operation
    ends up to `slow_ns` later than it did on its device. `rank_late_ns`: so much later ends, by
    rank, all that a rank asks of a store and moves to or from it; 0 beyond its end.
    """

    def __init__(
        self, env: Environment, inner: Lanes, rng: Random, *, fail: float = 0.0, slow: float = 0.0,
        slow_ns: int = 1_000_000, rank_late_ns: Sequence[int] = (),
    ) -> None:  # fmt: skip
        assert 0.0 <= fail <= 1.0
        assert 0.0 <= slow <= 1.0
        assert slow_ns >= 1
        self._env = env
        self._inner = inner
        self._rng = rng
        self._fail = fail
        self._slow = slow
        self._slow_ns = slow_ns
        self._rank_late_ns = tuple(rank_late_ns)
        # Inner operations under way, by number.
        self._under_way: dict[int, Pending[Completion]] = {}

    def submit(self, operation: Operation) -> Pending[Completion]:
        """Pass `operation` on; what comes back may fail or be late."""
        rng = self._rng
        fails = rng.random() < self._fail
        is_late = rng.random() < self._slow
        late_ns = rng.randint(1, self._slow_ns)
        late_ns = (late_ns if is_late else 0) + self._late_by_rank(operation)
        inner = self._inner.submit(operation)
        outer: Pending[Completion] = Pending(self._env, inner.number, inner.submitted_ns)
        fate = _Fate(self, outer, operation, fails and isinstance(operation, Copy), late_ns)
        if inner.callbacks is None:  # over already: the lanes inside take no time
            fate.device_done(inner)
        else:
            self._under_way[inner.number] = inner
            inner.callbacks.append(fate.device_done)
        return outer

    def _late_by_rank(self, operation: Operation) -> int:
        asked = isinstance(operation, Lookup) or (isinstance(operation, Copy) and operation.keys)
        if not asked or operation.rank >= len(self._rank_late_ns):  # type: ignore[union-attr]
            return 0
        return self._rank_late_ns[operation.rank]  # type: ignore[union-attr]

    def end_burst(self, pending: Pending[Completion]) -> None:
        """Pass the wish on; a burst that is over on its device is left alone."""
        inner = self._under_way.get(pending.number)
        if inner is not None:
            self._inner.end_burst(inner)

    def forget(self, number: int) -> None:
        """The device is done with operation `number`."""
        self._under_way.pop(number, None)


class _Fate:
    """What will happen to one operation."""

    __slots__ = ("_fails", "_lanes", "_late_ns", "_operation", "_outcome", "_outer")

    def __init__(
        self,
        lanes: FaultyLanes,
        outer: Pending[Completion],
        operation: Operation,
        fails: bool,
        late_ns: int,
    ) -> None:
        self._lanes = lanes
        self._outer = outer
        self._operation = operation
        self._fails = fails
        self._late_ns = late_ns
        self._outcome: Completion | BaseException | None = None

    def device_done(self, inner: Pending[Completion]) -> None:
        """The lanes inside are done with it: settle now, or when the delay is over."""
        outer = self._outer
        self._lanes.forget(outer.number)
        self._outcome = inner.value
        if isinstance(self._outcome, BaseException):
            inner._defused = True
        elif self._fails:
            assert isinstance(self._operation, Copy)
            self._outcome = TransferError(
                f"injected fault: {self._operation.direction} copy of "
                f"{self._operation.size_bytes} bytes, operation {outer.number}"
            )
        if self._late_ns:
            Timer(outer.env, self._late_ns, [self._settle])
        else:
            self._settle()

    def _settle(self, timer: Timer | None = None) -> None:
        outer, outcome = self._outer, self._outcome
        assert outcome is not None
        env = outer.env
        finished_ns = int(env.now)
        if isinstance(outcome, Completion) and not self._late_ns:
            finished_ns = outcome.finished_ns
        stamp_ns = stamp(env, finished_ns)
        if isinstance(outcome, Completion):
            outcome = outcome.ended(finished_ns, stamp_ns)
        post(env, outer, outcome, stamp_ns)
