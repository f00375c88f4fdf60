"""Time and completions: the little that the engine needs on top of unmodified SimPy.

The engine is `async def` processes. What they await is a `Pending`: it is created by whoever takes
the operation, and finished by `post`, the one way in which a completion enters an environment, in
every mode:

    submit ............ the lane creates Pending number n                          (untriggered)
    the device works
    post(finished) .... stamp = max(finished, now + 1); the event joins SimPy's queue (triggered)
    stamp is reached .. waiting processes resume with the Completion or the error     (processed)

Order at one instant: timers first, then inputs from outside, then completions by submission number.
This module refuses to know what an operation is, who carries it out, and what time it is.
"""

# pyright: reportPrivateUsage=false
# SimPy has no public way to trigger an event with a priority of one's own, and its `now` is a
# property in Python: what runs for every operation reads `_now`.
from __future__ import annotations

from collections.abc import Callable, Coroutine, Generator
from heapq import heappop, heappush
from typing import Any, Final, Generic, TypeVar, cast, final

from simpy import Environment
from simpy.events import NORMAL, PENDING, EventPriority

from hicache.operations import Completion

T = TypeVar("T")

# Compiled code has these at hand, and looks builtins and imported functions up each time.
_push: Final = heappush
_pop: Final = heappop
_next: Final = next

INPUT_PRIORITY = EventPriority(2)
FIRST_COMPLETION_PRIORITY: Final = 3


class Entry:
    """What stands on SimPy's queue for the engine and for simulated devices.

    It is to SimPy what an Event is (same attributes), in a quarter of the space and time: there is
    one for every operation, timer and signal.
    """

    __slots__ = ("_ok", "callbacks")

    _ok: bool
    callbacks: list[Callable[[Any], object]] | None


class Awaited(Entry, Generic[T]):
    """An entry that processes of the engine can await, also after it was processed."""

    __slots__ = ("_defused", "_value", "env")

    env: Environment
    _defused: bool  # SimPy's mark of an error that somebody has seen
    _value: Any

    def __await__(self) -> Generator[Any, Any, T]:
        if self.callbacks is not None:  # not yet processed
            yield self
        if not self._ok:
            raise cast(BaseException, self._value)
        return cast(T, self._value)

    @property
    def triggered(self) -> bool:
        """Whether it is over, though the engine may not have seen it yet."""
        return self._value is not PENDING

    def defuse(self) -> None:
        """Its error has been seen: that nobody awaits it is no mistake."""
        self._defused = True

    @property
    def ok(self) -> bool:
        """Whether it went well; to be asked once it is over."""
        return self._ok

    @property
    def value(self) -> Any:
        """What came of it (of an operation its Completion), or the error; to be asked once it is
        over.
        """
        return self._value


@final
class Pending(Awaited[T]):
    """An operation under way. `number` is its place in the order of submissions, `submitted_ns` its
    time.
    """

    __slots__ = ("number", "submitted_ns")

    def __init__(self, env: Environment, number: int, submitted_ns: int) -> None:
        self.env = env
        self.callbacks = []
        self._value = PENDING
        self._ok = True
        self.number = number
        self.submitted_ns = submitted_ns


@final
class Signal(Awaited[T]):
    """Something that a process of the engine waits for and another one brings about."""

    __slots__ = ()

    def __init__(self, env: Environment) -> None:
        self.env = env
        self.callbacks = []
        self._value = PENDING
        self._ok = True

    def succeed(self, value: Any = None) -> None:
        """Let whoever waits go on at this instant, with `value`."""
        assert self._value is PENDING, "a signal was given twice"
        self._value = value
        put(self.env, self, NORMAL, self.env._now)

    def fail(self, error: BaseException) -> None:
        """Let whoever waits see `error` at this instant."""
        self.succeed(error)
        self._ok = False


@final
class Sleep(Awaited[None]):
    """A timer that can be awaited."""

    __slots__ = ()

    def __init__(self, env: Environment, delay_ns: int) -> None:
        self.env = env
        self.callbacks = []
        self._value = None
        self._ok = True
        put(env, self, NORMAL, env._now + delay_ns)


def stamp(env: Environment, finished_ns: int) -> int:
    """The instant at which a completion that finished at `finished_ns` becomes visible to the
    engine.
    """
    soonest = env._now + 1
    return finished_ns if finished_ns > soonest else soonest  # type: ignore[return-value]


def post(
    env: Environment,
    pending: Pending[Completion],
    completion: Completion | BaseException,
    stamp_ns: int,
) -> None:
    """Let `pending` end at `stamp_ns` with a completion, or with an error that the awaiting process
    will see.

    `stamp_ns` comes from `stamp`, or, in a replay, from the record.
    """
    if type(completion) is not Completion:
        pending._ok = False
    pending._value = completion
    now: Any = env._now
    assert stamp_ns >= cast(int, now), "a completion cannot enter the past"
    put(env, pending, FIRST_COMPLETION_PRIORITY + pending.number, stamp_ns)


def put(env: Environment, event: Any, priority: int, at_ns: Any) -> None:
    """`Environment.schedule` at a time instead of after a delay, without its two calls."""
    queue: list[Any] = env._queue
    _push(queue, (at_ns, priority, _next(env._eid), event))


def drain(env: Environment, most: int) -> bool:
    """`Environment.run` for at most `most` entries of the queue, where `step` is SimPy's own: the
    same loop, without a call for each. Returns whether anything is left.

    In pieces, because a signal's handler gets its turn only between them where this module is
    compiled.
    """
    queue: list[Any] = env._queue
    entry: tuple[Any, Any, Any, Any]
    while queue and most:
        most -= 1
        entry = _pop(queue)
        env._now, _, _, event = entry
        if isinstance(event, Entry):
            known = event.callbacks
            event.callbacks = None
            assert known is not None, "an entry stood on the queue twice"
            for callback in known:
                callback(event)
            if event._ok:
                continue
        else:  # one of SimPy's own
            callbacks, event.callbacks = event.callbacks, None
            for callback in callbacks:
                callback(event)
        if not event._ok and not hasattr(event, "_defused"):
            raise cast(Any, event)._value
    return bool(queue)


def conclude(pending: Pending[Completion], completion: Completion) -> None:
    """Let `pending` end here and now.

    For a device that knows when it will be done and is told if that moves: its own event stands at
    the completion's stamp, in the completion's place in the order (`FIRST_COMPLETION_PRIORITY +
    number`), so that there is one event for both. The effect is that of `post` at the end of the
    work.
    """
    assert pending.env._now == completion.stamp_ns
    pending._value = completion
    callbacks, pending.callbacks = pending.callbacks, None
    assert callbacks is not None, "an operation ended twice"
    for callback in callbacks:
        callback(pending)


def completed(env: Environment, number: int, completion: Completion) -> Pending[Completion]:
    """A `Pending` that is over already: awaiting it does not suspend. For runs in which nothing
    takes time.
    """
    pending: Pending[Completion] = Pending(env, number, int(env.now))
    pending._value = completion
    pending.callbacks = None  # SimPy's mark of a processed event
    return pending


@final
class Task:
    """A process of the engine: a coroutine that runs at once, up to its first wait, and then from
    event to event.

    SimPy's own Process starts at a later event; the engine needs the start to be atomic with the
    decision that led to it (pages looked at are pages pinned). An exception that the coroutine lets
    out stops the run.
    """

    __slots__ = ("_coroutine",)

    def __init__(self, coroutine: Coroutine[Any, Any, None]) -> None:
        self._coroutine = coroutine
        self._go_on()

    def _go_on(self) -> None:
        try:
            target: Entry = self._coroutine.send(None)
        except StopIteration:
            return
        callbacks = target.callbacks
        assert callbacks is not None, "an entry that was processed is not waited for"
        callbacks.append(self._resume)

    def _resume(self, event: Awaited[Any]) -> None:
        if not event._ok:  # it raises its error in whoever awaits it
            event._defused = True
        self._go_on()
