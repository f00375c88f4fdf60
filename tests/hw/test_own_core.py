"""A core of its own for the engine's thread: kept while it polls, given back afterwards."""

from __future__ import annotations

import os
import threading

import pytest

from hw import core
from hw.core import own_core

pytestmark = pytest.mark.skipif(
    not hasattr(os, "sched_setaffinity") or len(os.sched_getaffinity(0)) < 2,
    reason="this system does not tell cores apart, or there is one only",
)


def test_the_thread_stays_on_one_core_and_may_leave_it_afterwards():
    before = os.sched_getaffinity(0)
    with own_core():
        inside = os.sched_getaffinity(0)
    assert len(inside) == 1
    assert inside < before
    assert os.sched_getaffinity(0) == before


def test_it_is_the_core_that_the_thread_runs_on(monkeypatch: pytest.MonkeyPatch):
    before = os.sched_getaffinity(0)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: before)  # as if it were not held there
    try:
        for wanted in sorted(before):
            os.sched_setaffinity(0, {wanted})
            assert core._present_core() == wanted
    finally:
        os.sched_setaffinity(0, before)


def test_other_threads_are_left_alone():
    before = os.sched_getaffinity(0)
    seen: list[set[int]] = []
    looking, over = threading.Event(), threading.Event()

    def look() -> None:
        looking.wait()
        seen.append(os.sched_getaffinity(0))
        over.set()

    threading.Thread(target=look, daemon=True).start()
    with own_core():
        looking.set()
        over.wait()
    assert seen == [before]


def test_the_cores_are_given_back_after_an_error():
    before = os.sched_getaffinity(0)
    with pytest.raises(KeyError), own_core():
        raise KeyError("any")
    assert os.sched_getaffinity(0) == before


def test_nothing_happens_where_the_core_is_not_known(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(core, "_present_core", lambda: None)
    before = os.sched_getaffinity(0)
    with own_core():
        assert os.sched_getaffinity(0) == before
