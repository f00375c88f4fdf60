"""A light timer: calls a device back.

A device keeps the one timer that counts and compares it with the one it is called with: when a
schedule changes, a new timer is made and the old one finds itself outdated when it comes. Outdated
timers stay in SimPy's queue, so the environment's clock may run on past the last completion: take
the end of a run from completions, not from the clock.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from simpy import Environment
from simpy.events import NORMAL

from hicache.kernel import Entry, put

# What a device's timers call. A list, because that is what SimPy takes; nobody changes it.
Callbacks = list[Callable[[Any], object]]


class Timer(Entry):
    """Calls `callbacks`, with itself, after `delay_ns`. To SimPy it is what an Event is."""

    __slots__ = ()

    def __init__(
        self,
        env: Environment,
        delay_ns: int,
        callbacks: Callbacks,
        priority: int = NORMAL,
    ) -> None:
        self.callbacks = callbacks
        self._ok = True
        put(env, self, priority, env._now + delay_ns)
