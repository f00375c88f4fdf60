"""Ctrl-C that ends a run between two events, so that no count is half made and the result is sound.

While a request is read (perhaps from a pipe that has stalled) it takes effect at once. So does the
second Ctrl-C, but between any two lines: what was counted is not sound then (`given_up`). Where
SIGINT belongs to somebody else (a notebook, a thread), nothing changes.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from types import TracebackType

from simpy import Environment
from simpy.events import URGENT

from hicache.errors import InputError
from hicache.requests import Request
from sim.timer import Timer


class Interrupt:
    """A context manager around a run. `reading` passes the requests on and looks at the flag."""

    def __init__(self, env: Environment) -> None:
        self._env = env
        self._asked = False
        self._reading = False
        self._ours = False
        self.given_up = False  # asked twice: there will be no result

    def __enter__(self) -> Interrupt:
        self._ours = (
            threading.current_thread() is threading.main_thread()
            and signal.getsignal(signal.SIGINT) is signal.default_int_handler
        )
        if self._ours:
            signal.signal(signal.SIGINT, self._on_signal)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._ours:
            signal.signal(signal.SIGINT, signal.default_int_handler)

    def reading(self, requests: Iterator[Request]) -> Iterator[Request]:
        """The requests, one at a time; InputError if there is none."""
        empty = True
        while True:
            if self._asked:
                raise KeyboardInterrupt
            self._reading = True
            request = next(requests, None)
            self._reading = False
            if request is None:
                break
            empty = False
            yield request
        if empty:
            raise InputError("the trace holds no request")

    def _on_signal(self, number: int, frame: object) -> None:
        if self._asked:
            self.given_up = True
        if self._reading or self._asked:
            raise KeyboardInterrupt
        self._asked = True
        Timer(self._env, 0, [_raise], URGENT)


def _raise(_timer: object) -> None:
    raise KeyboardInterrupt
