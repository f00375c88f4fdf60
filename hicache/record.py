"""The record of a run: everything that entered the engine from outside, and its replay.

The engine is a pure function of (scenario, record): replaying a record in plain SimPy repeats every
decision, and stops at the first operation that differs. A record is taken at the outermost port, so
that injected faults are in it. One JSON array a line, in the order in which things happened:

    ["record", schema, scenario]                       once, first
    ["done", number, operation, completion times ...]  an operation finished
    ["failed", number, operation, submitted, stamp, message]
    ["end", number, submissions]                       the engine asked for burst `number` to end
    ["abort", stamp, request]                          a request was given up from outside
    ["end of record"]                                  once, last: a record without it was cut off

Times in ns. Lines are written as things happen, so that a run that dies leaves what it did.
"""

# pyright: reportPrivateUsage=false
# SimPy has no public way to trigger an event with a priority of one's own.
from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from itertools import count
from typing import Any, Protocol, cast

from simpy import Environment
from simpy.events import Event

from hicache.errors import RecordEnded, RecordError, ReplayDivergence, TransferError
from hicache.kernel import INPUT_PRIORITY, Pending, post, stamp
from hicache.operations import Chunk, Completion, Copy, Decode, Operation, Prefill
from hicache.ports import Lanes

SCHEMA = 1


class AbortsRequests(Protocol):
    """What inputs are delivered to: an engine."""

    def abort(self, number: int) -> bool:
        """Give request `number` up."""
        ...


class Recorder:
    """Lanes that pass everything on and write down what came of it. `write` takes one line without
    its end.
    """

    def __init__(
        self, env: Environment, inner: Lanes, write: Callable[[str], object], scenario: str = ""
    ) -> None:
        self._env = env
        self._inner = inner
        self._write = write
        self._submissions = 0
        self._line("record", SCHEMA, scenario)

    def submit(self, operation: Operation) -> Pending[Completion]:
        """Pass `operation` on; its ending is written when the engine sees it."""
        pending = self._inner.submit(operation)
        self._submissions += 1
        if pending.callbacks is None:  # type: ignore[redundant-expr]  # over already
            self._ended(pending, operation)
        else:
            callbacks = cast(list[Callable[[Event], None]], pending.callbacks)
            callbacks.append(lambda _event: self._ended(pending, operation))
        return pending

    def end_burst(self, pending: Pending[Completion]) -> None:
        """Pass the request on, and write down its place in the order of submissions."""
        self._line("end", pending.number, self._submissions)
        self._inner.end_burst(pending)

    def abort(self, engine: AbortsRequests, request: int) -> None:
        """Abort `request` at the next instant: the way in which aborts enter a recorded run."""
        at_ns = stamp(self._env, int(self._env.now))

        def act() -> None:
            self._line("abort", at_ns, request)
            engine.abort(request)

        deliver(self._env, at_ns, act)

    def close(self) -> None:
        """Mark the record as complete."""
        self._line("end of record")

    def _ended(self, pending: Pending[Completion], operation: Operation) -> None:
        if pending._ok:
            done = cast(Completion, pending._value)
            self._line(
                "done", done.number, _encode(operation), done.submitted_ns, done.started_ns,
                done.finished_ns, done.stamp_ns, done.setup_ns, done.steps, done.step_ends_ns,
            )  # fmt: skip
        else:
            self._line(
                "failed", pending.number, _encode(operation), pending.submitted_ns,
                self._env.now, str(pending._value),
            )  # fmt: skip

    def _line(self, *items: object) -> None:
        self._write(json.dumps(items, separators=(",", ":")))


class Record:
    """A record that was read back. `source` names it in messages."""

    def __init__(self, lines: Iterable[str], source: str = "record") -> None:
        """Raises RecordError if a line is not what a record holds."""
        self.source = source
        self.scenario = ""
        self.complete = False
        self.endings: dict[int, list[Any]] = {}
        self.burst_ends: list[tuple[int, int]] = []
        self.aborts: list[tuple[int, int]] = []
        for number, line in enumerate(lines, 1):
            try:
                self._take(json.loads(line))
            except (ValueError, LookupError, TypeError) as error:
                raise RecordError(
                    f"{source}, line {number}: not a line of a record ({error})"
                ) from None
        if not self.scenario and not self.endings and not self.complete:
            raise RecordError(f"{source}: holds no record")

    def _take(self, items: list[Any]) -> None:
        kind = items[0]
        if kind in ("done", "failed"):
            items[2] = _decode(items[2])
            self.endings[items[1]] = items
        elif kind == "end":
            self.burst_ends.append((items[1], items[2]))
        elif kind == "abort":
            self.aborts.append((items[1], items[2]))
        elif kind == "record":
            if items[1] != SCHEMA:
                raise ValueError(f"schema {items[1]}, this version reads {SCHEMA}")
            self.scenario = items[2]
        elif kind == "end of record":
            self.complete = True
        else:
            raise ValueError(f"unknown kind {kind!r}")


class ReplayLanes:
    """Lanes whose completions come from a record.

    Raises ReplayDivergence at the first operation, or request to end a burst, that differs from the
    record, and RecordEnded where a record that was cut off goes no further.
    """

    def __init__(self, env: Environment, record: Record) -> None:
        self._env = env
        self._record = record
        self._numbers = count()
        self._submissions = 0
        self._ends = 0
        self._last = max(record.endings, default=-1)
        self._unfinished: int | None = None

    def deliver_inputs(self, engine: AbortsRequests) -> None:
        """Let the recorded aborts happen when they did."""
        for at_ns, request in self._record.aborts:
            deliver(self._env, at_ns, lambda request=request: engine.abort(request))

    def submit(self, operation: Operation) -> Pending[Completion]:
        """Answer `operation` as the record says."""
        number, now, source = next(self._numbers), int(self._env.now), self._record.source
        self._submissions += 1
        pending: Pending[Completion] = Pending(self._env, number, now)
        entry = self._record.endings.get(number)
        if entry is None:
            if number > self._last:
                raise self._missing(number, operation)
            self._unfinished = number  # under way when the record was cut off
            return pending
        recorded, submitted_ns = entry[2], entry[3]
        if type(recorded) is not type(operation) or recorded != operation:
            raise ReplayDivergence(
                f"{source}: operation {number} was {recorded}, now it is {operation}"
            )
        if submitted_ns != now:
            raise ReplayDivergence(
                f"{source}: operation {number} ({operation}) was submitted at {submitted_ns} ns, "
                f"now it is at {now} ns"
            )
        if entry[0] == "failed":
            post(self._env, pending, TransferError(entry[5]), entry[4])
        else:
            _, _, _, _, started, finished, stamp_ns, setup, steps, step_ends = entry
            done = Completion(
                number, operation, now, started, finished, stamp_ns, setup, steps, tuple(step_ends)
            )
            post(self._env, pending, done, stamp_ns)
        return pending

    def end_burst(self, pending: Pending[Completion]) -> None:
        """Check that the record holds this request at this place."""
        if self._ends >= len(self._record.burst_ends):
            if self._record.complete:
                raise ReplayDivergence(
                    f"{self._record.source}: burst {pending.number} is asked to end, "
                    "which the record does not hold"
                )
            return
        recorded = self._record.burst_ends[self._ends]
        self._ends += 1
        if recorded != (pending.number, self._submissions):
            raise ReplayDivergence(
                f"{self._record.source}: burst {recorded[0]} was asked to end after {recorded[1]} "
                f"submissions, now it is burst {pending.number} after {self._submissions}"
            )

    def finish(self) -> None:
        """To be called when the environment has nothing left to do: RecordEnded if the record was
        cut off.
        """
        if self._unfinished is not None:
            raise RecordEnded(
                f"{self._record.source}: cut off while operation {self._unfinished} was under way"
            )
        if not self._record.complete:
            raise RecordEnded(f"{self._record.source}: cut off after operation {self._last}")
        if self._submissions <= self._last:
            raise ReplayDivergence(
                f"{self._record.source}: holds operation {self._last}, "
                f"but the engine submitted only {self._submissions}"
            )

    def _missing(self, number: int, operation: Operation) -> RecordError:
        source = self._record.source
        if self._record.complete:
            return ReplayDivergence(
                f"{source}: the record ends before operation {number}, which now is {operation}"
            )
        return RecordEnded(f"{source}: cut off before operation {number} ({operation})")


def deliver(env: Environment, at_ns: int, act: Callable[[], object]) -> None:
    """Let an input from outside happen at `at_ns`: after the timers of that instant, before its
    completions.
    """
    event = Event(env)
    event._ok = True
    event._value = None
    event.callbacks.append(lambda _event: act())  # pyright: ignore
    env.schedule(event, INPUT_PRIORITY, at_ns - env.now)


def _encode(operation: Operation) -> list[object]:
    return [type(operation).__name__, *operation]


def _decode(items: list[Any]) -> Operation:
    kind, fields = items[0], items[1:]
    if kind == "Copy":
        direction, pages, size_bytes, extents, source, target = fields
        return Copy(direction, pages, size_bytes, extents, _runs(source), _runs(target))
    if kind == "Prefill":
        return Prefill(tuple(Chunk(*chunk) for chunk in fields[0]), *fields[1:])
    if kind == "Decode":
        batch, context_tokens, max_steps, requests = fields
        return Decode(batch, context_tokens, max_steps, tuple(requests))
    raise ValueError(f"unknown operation {kind!r}")


def _runs(pairs: list[list[int]]) -> tuple[tuple[int, int], ...]:
    return tuple((first, length) for first, length in pairs)
