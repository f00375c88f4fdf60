"""Ctrl-C that ends a run between two events, so that no count is half made and the result is sound.

While a request is read it takes effect at once. So does the second Ctrl-C, but between any two
lines: what was counted is not sound then (`given_up`).
"""

from __future__ import annotations

from collections.abc import Iterator

from simpy import Environment
from simpy.events import URGENT

from hicache.errors import InputError
from hicache.requests import Request
from sim.timer import Timer
from traces.ctrl_c import CtrlC


class Interrupt(CtrlC):
    """A context manager around a run. `reading` passes the requests on and looks at the flag."""

    def __init__(self, env: Environment) -> None:
        super().__init__()
        self._env = env

    def reading(self, requests: Iterator[Request]) -> Iterator[Request]:
        """The requests, one at a time; InputError if there is none."""
        empty = True
        while True:
            if self.asked:
                raise KeyboardInterrupt
            self.reading_now = True
            request = next(requests, None)
            self.reading_now = False
            if request is None:
                break
            empty = False
            yield request
        if empty:
            raise InputError("the trace holds no request")

    def end_soon(self) -> None:
        """Before the next event."""
        Timer(self._env, 0, [_raise], URGENT)


def _raise(_timer: object) -> None:
    raise KeyboardInterrupt
