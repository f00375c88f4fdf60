"""The record of a run: everything that entered the engine from outside, and its replay.

The engine is a pure function of (scenario, record): replaying a record in plain SimPy repeats every
decision, and stops at the first operation that differs. A record is taken at the outermost port, so
that injected faults are in it. One JSON array a line, in the order in which things happened:

    ["record", schema, scenario]                       once, first
    ["done", number, operation, completion times ...]  an operation finished
    ["failed", number, operation, submitted, stamp, message]
    ["end", number, submissions]                       the engine asked for burst `number` to end
    ["abort", stamp, request]                          a request was given up from outside
    ["end of record", hash]                            once, last: a record without it was cut off

Times in ns. The hash is the SHA-256 of all lines before it, each with its line feed, in hexadecimal
digits: times that no decision rests on are held by it alone. Older records end without one. Lines
are written as things happen, so that a run that dies leaves what it did.
"""

# pyright: reportPrivateUsage=false
# SimPy has no public way to trigger an event with a priority of one's own.
from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from functools import partial
from hashlib import sha256
from itertools import count
from typing import Any, Protocol, cast

from simpy import Environment
from simpy.events import Event

from hicache.errors import RecordEnded, RecordError, ReplayDivergence, TransferError
from hicache.kernel import INPUT_PRIORITY, Pending, post, stamp
from hicache.operations import Completion, Operation
from hicache.ports import Lanes
from hicache.record_lines import decoded, done_text, line_text, whole

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
        self._hash = sha256()  # of the lines that were written
        self._under_way: dict[int, Operation] = {}
        self._over: Callable[[Event], None] = self._ended
        # Lines put off: items, or a completion and what it is of. None: nothing is put off.
        self._waiting: list[tuple[Any, ...]] | None = None
        self._line("record", SCHEMA, scenario)

    def put_off(self) -> Callable[[], None]:
        """From now on, write lines only when the function that is returned is called, and on
        `close`: to make a line takes time that an engine on the real clock has after it has asked
        for the next operation.
        """
        if self._waiting is None:
            self._waiting = []
        return self._write_waiting

    def submit(self, operation: Operation) -> Pending[Completion]:
        """Pass `operation` on; its ending is written when the engine sees it."""
        pending = self._inner.submit(operation)
        self._submissions += 1
        self._under_way[pending.number] = operation
        if pending.callbacks is None:  # type: ignore[redundant-expr]  # over already
            self._ended(pending)
        else:
            cast(list[Callable[[Event], None]], pending.callbacks).append(self._over)
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
        self._write_waiting()
        self._put(("end of record", self._hash.hexdigest()))

    def _ended(self, event: Any) -> None:
        pending: Pending[Completion] = event
        operation = self._under_way.pop(pending.number)
        if pending._ok:
            self._line(cast(Completion, pending._value), operation)
        else:
            self._line(
                "failed", pending.number, operation, pending.submitted_ns, self._env.now,
                str(pending._value),
            )  # fmt: skip

    def _line(self, *items: Any) -> None:
        if self._waiting is None:
            self._put(items)
        else:
            self._waiting.append(items)

    def _write_waiting(self) -> None:
        if self._waiting:
            for items in self._waiting:
                self._put(items)
            self._waiting.clear()

    def _put(self, items: tuple[Any, ...]) -> None:
        if isinstance(items[0], Completion):
            line = done_text(items[0], items[1])
        else:
            line = line_text(items)
        self._hash.update(f"{line}\n".encode())
        self._write(line)


class Record:
    """A record that was read back. `source` names it in messages."""

    def __init__(self, lines: Iterable[str], source: str = "record") -> None:
        """Raises RecordError if a line is not what a record holds.

        Half a line at the end is where a run that died stopped writing: it was cut off there.
        """
        self.source = source
        self.scenario = ""
        self.complete = False
        # False: it says what its lines' hash was when they were written, and they have another.
        self.intact = True
        self.endings: dict[int, list[Any]] = {}
        self.burst_ends: list[tuple[int, int]] = []
        self.aborts: list[tuple[int, int]] = []
        self.last_ns = 0  # when the last of its completions and inputs was seen
        begun = False
        broken: tuple[int, Exception] | None = None
        seen = sha256()
        for number, line in enumerate(lines, 1):
            if broken is not None:
                break
            try:
                items = json.loads(line)
            except (ValueError, RecursionError) as error:
                broken = (number, error)
                continue
            try:
                if self.complete:
                    raise ValueError("it comes after the end of the record")
                self._take(items, begun, seen.hexdigest)
            except (ValueError, LookupError, TypeError) as error:
                raise self._no_record(number, error) from None
            seen.update(f"{line.removesuffix(chr(10))}\n".encode())
            begun = True
        else:
            if begun:
                return
        if broken is not None:
            raise self._no_record(*broken)
        raise RecordError(f"{source}: holds no record")

    def _no_record(self, number: int, error: Exception) -> RecordError:
        return RecordError(f"{self.source}, line {number}: not a line of a record ({error})")

    def _take(self, items: list[Any], begun: bool, seen: Callable[[], str]) -> None:
        kind, *rest = items
        if begun == (kind == "record"):
            raise ValueError("a record begins with its header, and has one")
        if kind == "done":
            number, operation, *times, ends = rest
            submitted, started, finished, stamp_ns, _setup, _steps = whole(times)
            if not (submitted <= stamp_ns and started <= finished <= stamp_ns):
                raise ValueError("its times do not follow each other")
            self._ending([kind, *whole([number]), decoded(operation), *times, whole(ends)])
            self.last_ns = max(self.last_ns, stamp_ns)
        elif kind == "failed":
            number, operation, submitted, stamp_ns, message = rest
            if not submitted <= stamp_ns:
                raise ValueError("its times do not follow each other")
            whole([submitted, stamp_ns])
            self._ending([kind, *whole([number]), decoded(operation), *rest[2:4], str(message)])
            self.last_ns = max(self.last_ns, stamp_ns)
        elif kind == "end":
            number, submissions = whole(rest)
            self.burst_ends.append((number, submissions))
        elif kind == "abort":
            stamp_ns, request = whole(rest)
            self.aborts.append((stamp_ns, request))
            self.last_ns = max(self.last_ns, stamp_ns)
        elif kind == "record":
            schema, self.scenario = rest
            if schema != SCHEMA:
                raise ValueError(f"schema {schema}, this version reads {SCHEMA}")
        elif kind == "end of record":
            (written,) = rest or (None,)
            self.complete, self.intact = True, written is None or written == seen()
        else:
            raise ValueError(f"unknown kind {kind!r}")

    def _ending(self, items: list[Any]) -> None:
        if items[1] in self.endings:
            raise ValueError(f"operation {items[1]} ended before")
        self.endings[items[1]] = items


class ReplayLanes:
    """Lanes whose completions come from a record.

    Raises ReplayDivergence at the first operation, or request to end a burst, that differs from the
    record, and RecordEnded where a record that was cut off goes no further: when everything that it
    holds has happened, so that what operations under way then had brought about is not lost.
    """

    def __init__(self, env: Environment, record: Record) -> None:
        self._env = env
        self._record = record
        self._numbers = count()
        self._submissions = 0
        self._ends = 0
        self._last = max(record.endings, default=-1)
        # Under way when the record was cut off. Kept: nobody else holds on to the process that
        # waits for one, and a collector that found it would end it, with all that its ending does.
        self._unfinished: list[Pending[Completion]] = []
        self._diverged: RecordError | None = None
        if not record.complete:
            ahead_ns = max(0, record.last_ns + 1 - int(env.now))
            cast(Any, env.timeout(ahead_ns)).callbacks.append(self._cut_off)

    def deliver_inputs(self, engine: AbortsRequests) -> None:
        """Let the recorded aborts happen when they did."""
        for at_ns, request in self._record.aborts:
            deliver(self._env, at_ns, partial(engine.abort, request))

    def submit(self, operation: Operation) -> Pending[Completion]:
        """Answer `operation` as the record says."""
        if self._diverged is not None:
            raise self._diverged  # what the engine does after the first difference says nothing
        try:
            return self._answer(operation)
        except RecordError as error:
            self._diverged = error
            raise

    def _answer(self, operation: Operation) -> Pending[Completion]:
        number, now, source = next(self._numbers), int(self._env.now), self._record.source
        self._submissions += 1
        pending: Pending[Completion] = Pending(self._env, number, now)
        entry = self._record.endings.get(number)
        if entry is None:
            beyond = number > self._last and now > self._record.last_ns
            if beyond or self._record.complete:
                raise self._missing(number, operation)
            self._unfinished.append(pending)
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
        if self._diverged is not None:
            return
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
        cut off, ReplayDivergence if it holds more, or other times than were written into it.
        """
        source, last = self._record.source, self._last
        if self._submissions <= last:
            raise ReplayDivergence(
                f"{source}: holds operation {last}, but the engine submitted only "
                f"{self._submissions}"
            )
        if self._unfinished:
            number = self._unfinished[0].number
            raise RecordEnded(f"{source}: cut off while operation {number} was under way")
        if not self._record.complete:
            raise RecordEnded(f"{source}: cut off after operation {last}")
        if not self._record.intact:
            raise ReplayDivergence(
                f"{source}: it was changed after it was written: the operations are the same, but "
                "some time or input is not (the hash in its last line is of other lines)"
            )

    def _cut_off(self, _event: object) -> None:
        """The instant behind the last one that the record knows."""
        try:
            self.finish()
        except RecordError as error:
            self._diverged = error
            raise

    def _missing(self, number: int, operation: Operation) -> RecordError:
        source = self._record.source
        if self._record.complete:
            return ReplayDivergence(
                f"{source}: the record does not hold operation {number}, which now is {operation}"
            )
        return RecordEnded(f"{source}: cut off before operation {number} ({operation})")


def deliver(env: Environment, at_ns: int, act: Callable[[], object]) -> None:
    """Let an input from outside happen at `at_ns`: after the timers of that instant, before its
    completions.
    """
    event = Event(env)
    event._ok = True
    event._value = None

    def happen(_event: object) -> None:
        act()

    cast(Any, event).callbacks.append(happen)
    env.schedule(event, INPUT_PRIORITY, at_ns - env.now)
