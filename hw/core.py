"""A core of its own for the engine's thread, where it polls (`hw.waiting = "poll"`).

A thread that never sleeps is still moved between cores now and then, and leaves its caches behind
each time. Refuses to move anybody else away: the scheduler does, where there are other cores.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

_PROCESSOR = 36  # of /proc/*/stat, counted behind the name, which may hold anything: field 39


@contextmanager
def own_core() -> Iterator[None]:
    """Keep the calling thread on the core that it runs on, as long as the block lasts.

    Threads that it starts meanwhile would stay there, too. Nothing happens where the system does
    not tell cores apart, or there is one only.
    """
    core = _present_core()
    if core is None:
        yield
        return
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {core})
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


def _present_core() -> int | None:
    if not hasattr(os, "sched_setaffinity") or len(os.sched_getaffinity(0)) < 2:
        return None
    try:
        with open("/proc/thread-self/stat", encoding="utf-8", errors="replace") as stat:
            core = int(stat.read().rpartition(")")[2].split()[_PROCESSOR])
    except (OSError, ValueError, IndexError):
        return None
    return core if core in os.sched_getaffinity(0) else None
