"""Real lanes that go wrong on purpose: copies and lookups that fail, operations whose end is late.

Faults stand at the port, between the lanes and the record, so that a record holds them like any
other completion. A copy that is to fail is carried out first, and takes its time on the device;
then `spoil` may overwrite its target pages, as the interface says of failed copies, so that an
engine that used them would be found out. GPU steps are late at most: a step that fails ends a real
server. The draws are a fixed number for each operation, from a generator that is handed in: the
same seed deals the same faults out to the same submissions.
"""

from __future__ import annotations

from collections.abc import Callable
from random import Random

from hicache.errors import TransferError
from hicache.kernel import Pending, post, stamp
from hicache.operations import Completion, Copy, Lookup, Operation
from hicache.ports import Lanes
from hw.live import LiveEnvironment


class FaultyLanes:
    """Wraps `inner`, the lanes of a live run.

    `fail`: probability that a copy or lookup ends in a TransferError. `slow`: probability that the
    end of an operation comes up to `slow_ns` later. `spoil` is called with each copy that fails, on
    the engine's thread, while its target pages still belong to it.
    """

    def __init__(
        self, env: LiveEnvironment, inner: Lanes, rng: Random, *, fail: float = 0.0,
        slow: float = 0.0, slow_ns: int = 1_000_000, spoil: Callable[[Copy], object] | None = None,
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
        self._spoil = spoil
        self._under_way: dict[int, Pending[Completion]] = {}  # of the inner lanes
        self.failed = 0
        self.slowed = 0

    def submit(self, operation: Operation) -> Pending[Completion]:
        """Pass `operation` on; what comes back may fail or be late."""
        rng = self._rng
        fails = rng.random() < self._fail
        is_late = rng.random() < self._slow
        late_ns = rng.randint(1, self._slow_ns)
        inner = self._inner.submit(operation)
        outer: Pending[Completion] = Pending(self._env, inner.number, inner.submitted_ns)
        self._under_way[inner.number] = inner

        def device_done(_event: object) -> None:
            outcome = self._outcome(inner, operation, fails)
            if not is_late:
                self._settle(outer, outcome, 0)
                return
            self.slowed += 1
            timer = self._env.timeout(late_ns)
            timer.callbacks.append(lambda _event: self._settle(outer, outcome, late_ns))

        assert inner.callbacks is not None, "an operation was over at once"
        inner.callbacks.append(device_done)
        return outer

    def end_burst(self, pending: Pending[Completion]) -> None:
        """Pass the wish on; a burst that is over on its device is left alone."""
        inner = self._under_way.get(pending.number)
        if inner is not None:
            self._inner.end_burst(inner)

    def _outcome(
        self, inner: Pending[Completion], operation: Operation, fails: bool
    ) -> Completion | BaseException:
        del self._under_way[inner.number]
        if not inner.ok:
            inner._defused = True
        elif fails and isinstance(operation, Copy | Lookup):
            self.failed += 1
            what = "lookup"
            if isinstance(operation, Copy):
                what = f"{operation.direction} copy of {operation.size_bytes} bytes"
                if self._spoil is not None:
                    self._spoil(operation)
            return TransferError(f"injected fault: {what}, operation {inner.number}")
        return inner.value

    def _settle(
        self, outer: Pending[Completion], outcome: Completion | BaseException, late_ns: int
    ) -> None:
        env = self._env
        if isinstance(outcome, Completion):
            finished_ns = int(env.now) if late_ns else outcome.finished_ns
            stamp_ns = stamp(env, finished_ns)
            post(env, outer, outcome.ended(finished_ns, stamp_ns), stamp_ns)
        else:
            post(env, outer, outcome, stamp(env, int(env.now)))
