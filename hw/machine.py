"""Where a live run gets its time, and what comes in from outside: one clock, one inbox.

    worker threads --- Report (an operation is over) ---+
    other threads ---- Input (something to do) ---------+--> inbox --> LiveEnvironment.step
    Ctrl-C ----------- Stop ----------------------------+

Reports may come late, out of order and many at once; it is the environment that gives them their
place. A machine refuses to know what an operation is, and never calls into the engine.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from queue import SimpleQueue
from typing import Literal, NamedTuple, Protocol

from hicache.kernel import Pending
from hicache.operations import Completion, Operation
from hw.device import Timing


class Report(NamedTuple):
    """An operation is over. Times, those of the outcome too, are on the run's clock.

    `outcome`: the device's Timing, a TransferError (the engine falls back and goes on), or anything
    else that was raised (it ends the run). `device` names who carried it out, for messages.
    """

    pending: Pending[Completion]
    operation: Operation
    device: str
    reported_ns: int
    outcome: Timing | BaseException


class Input(NamedTuple):
    """Something that is to happen on the engine's thread, between two of its events."""

    act: Callable[[], object]


class Stop(NamedTuple):
    """The run is to end, between two events: somebody pressed Ctrl-C."""


Entry = Report | Input | Stop
Waiting = Literal["sleep", "poll"]


class Machine(Protocol):
    """What a `LiveEnvironment` asks. Only `tell` may be called from other threads."""

    def now_ns(self) -> int:
        """Nanoseconds since the run's start; never less than it said before."""
        ...

    def wait(self, until_ns: int | None) -> Sequence[Entry] | None:
        """What has come in, as soon as there is anything; None once `until_ns` has passed (at once
        if it already has) and nothing is there. An empty answer means: ask again. None as
        `until_ns`: there is no such time. Raises DeviceError when a device no longer answers.
        """
        ...

    def tell(self, entry: Entry) -> None:
        """Put `entry` into the inbox. From any thread, and from a signal handler."""
        ...


class ThreadMachine:
    """The real one: a monotonic clock, which starts when it is first looked at, and an inbox that
    threads fill.

    `guard`ed checks are made every `check_every_s` seconds, also while nothing else happens.

    `waiting`: "sleep" leaves the core to others until something comes in. "poll" keeps looking, and
    the core with its caches to the engine's thread: what it does next takes a fraction of the time
    (a program that has just been woken is slow: nothing of it is in the caches any more). It lets
    go of the interpreter at each look, so that workers get it as soon as they ask.
    """

    def __init__(self, *, check_every_s: float = 0.25, waiting: Waiting = "sleep") -> None:
        self._check_every_ns = int(check_every_s * 1e9)
        self._polls = waiting == "poll"
        # Its `put` is atomic and reentrant: a signal handler may interrupt another one.
        self._inbox: SimpleQueue[Entry] = SimpleQueue()
        # Open once something came in. The inbox is never waited for with its own time limit: its
        # first try may take a lock that an earlier `put` left open, and if the limit has passed by
        # then, what is left of it is negative, which it takes for "without limit" (Python 3.11).
        self._bell = threading.Lock()
        self._bell.acquire()
        self._origin_ns: int | None = None
        self._guards: list[Callable[[], None]] = []
        self._next_check_ns = self._check_every_ns

    def now_ns(self) -> int:
        """Nanoseconds since the first call, which comes from the engine's thread."""
        now = time.monotonic_ns()
        if self._origin_ns is None:
            self._origin_ns = now
        return now - self._origin_ns

    def on_run_clock(self, monotonic_ns: int) -> int:
        """A time of `time.monotonic_ns()`, on this clock."""
        assert self._origin_ns is not None, "the run has not begun"
        return monotonic_ns - self._origin_ns

    def guard(self, check: Callable[[], None]) -> None:
        """Call `check` now and then, on the engine's thread; it raises where something is wrong."""
        self._guards.append(check)

    def tell(self, entry: Entry) -> None:
        """See `Machine`."""
        self._inbox.put(entry)
        with suppress(RuntimeError):  # it is open already
            self._bell.release()

    def wait(self, until_ns: int | None) -> Sequence[Entry] | None:
        """See `Machine`."""
        inbox = self._inbox
        while True:
            if not inbox.empty():
                return self._all_of(inbox.get())
            now = self.now_ns()
            if until_ns is not None and until_ns <= now:
                return None
            if now >= self._next_check_ns:
                self._next_check_ns = now + self._check_every_ns
                for check in self._guards:
                    check()
            if self._polls:
                os.sched_yield()
                continue
            left_ns = self._next_check_ns - now
            if until_ns is not None and until_ns - now < left_ns:
                left_ns = until_ns - now
            self._bell.acquire(timeout=left_ns / 1e9)

    def _all_of(self, first: Entry) -> Sequence[Entry]:
        entries = [first]
        while not self._inbox.empty():
            entries.append(self._inbox.get())
        return entries
