"""A light timer: one SimPy event that calls a device back.

A device keeps the one timer that counts and compares it with the event it is called with: when a
schedule changes, a new timer is made and the old one finds itself outdated when it comes. Outdated
timers stay in SimPy's queue, so the environment's clock may run on past the last completion: take
the end of a run from completions, not from the clock.
"""

from __future__ import annotations

from collections.abc import Callable

from simpy import Environment
from simpy.events import NORMAL, Event


class Timer(Event):
    """Calls `callbacks` after `delay_ns`. A device's timers share the list; nobody changes it."""

    def __init__(
        self, env: Environment, delay_ns: int, callbacks: list[Callable[[Event], None]]
    ) -> None:
        self.env = env
        self.callbacks = callbacks  # type: ignore[assignment]
        self._ok = True
        self._value = None
        env.schedule(self, NORMAL, delay_ns)
