"""Forked workers: what comes of a killed one, of an error, of a process that has threads.

In a process of their own, because the one that runs the tests has threads.
"""

from __future__ import annotations

import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest

from sim.forked import may_fork

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="forks on Linux alone")
ROOT = Path(__file__).parents[2]
HEAD = """
    import os, signal, time
    from contextlib import closing
    from sim.forked import ForkedWorkers, may_fork

    def twice(number):
        if number < 0:
            os.kill(os.getpid(), signal.SIGKILL)
        if number == 13:
            raise ValueError("13 is not done")
        return 2 * number, os.getpid()

    def children():
        found = open(f"/proc/self/task/{os.getpid()}/children").read().split()
        return [int(each) for each in found]

    workers = ForkedWorkers()
    assert may_fork() and workers.start(2) and len(children()) == 2
"""


def _run(script: str) -> str:
    script = textwrap.dedent(HEAD) + textwrap.dedent(script)
    done = subprocess.run(
        [sys.executable, "-W", "error", "-W", "ignore::ResourceWarning", "-c", script],
        cwd=ROOT, capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout


def test_every_result_comes_and_the_workers_stay() -> None:
    _run("""
        for _ in range(2):
            before = children()
            results = list(workers.run(twice, range(100, 140), 2))
            assert sorted(each for each, _ in results) == list(range(200, 280, 2))
            assert {pid for _, pid in results} <= set(before) == set(children())
        assert list(workers.run(twice, [], 2)) == []
        assert {pid for _, pid in workers.run(twice, range(20, 30), 1)} == {before[0]}
        workers.end()
        assert children() == []
    """)


def test_a_killed_worker_leaves_its_argument_and_those_not_begun() -> None:
    _run("""
        results = [each for each, _ in workers.run(twice, [1, -1, *range(1000, 2000)], 2)]
        assert 2 in results and len(results) < 1000
        assert results == sorted(results)
        assert len(children()) == 1
        assert workers.start(2) and len(children()) == 2
        os.kill(children()[0], signal.SIGKILL)  # one that waits
        assert len(list(workers.run(twice, range(20, 30), 2))) < 10
        assert len(list(workers.run(twice, range(20, 30), 2))) == 10
    """)


def test_an_error_is_raised_here_and_says_where_it_was() -> None:
    _run("""
        try:
            list(workers.run(twice, [13, 14, 15], 2))
        except ValueError as error:
            assert str(error) == "13 is not done"
            assert "in twice" in error.__notes__[0]
        else:
            raise AssertionError
        assert workers.start(2)
        assert sorted(each for each, _ in workers.run(twice, [1, 2, 3], 2)) == [2, 4, 6]
    """)


def test_an_error_that_cannot_travel_is_told_in_words() -> None:
    _run("""
        class Odd(Exception):
            def __init__(self, one, two):
                super().__init__(f"{one} and {two}")

        def fails(kind):
            error = Odd("this", "that")
            if kind:
                error.held = open(os.devnull)
            raise error

        workers.end()
        assert workers.start(2)  # with these
        for kind in (0, 1):
            try:
                list(workers.run(fails, [kind], 1))
                raise AssertionError("no error")
            except RuntimeError as error:
                assert str(error) == "Odd: this and that", error
                assert "in fails" in error.__notes__[0]
        assert len(children()) == 2
    """)


@pytest.mark.parametrize("name", ["stdout", "stderr"])
def test_a_stream_that_is_closed_keeps_nobody_from_working(name: str) -> None:
    _run(f"""
        import sys
        sys.{name} = None
        assert workers.start(3)
        assert sorted(done for done, _ in workers.run(twice, range(6), 3)) == [0, 2, 4, 6, 8, 10]
        workers.end()
    """)


def test_workers_that_are_busy_when_it_is_closed_are_ended() -> None:
    _run("""
        with closing(workers.run(time.sleep, [0, 1000], 2)) as results:
            assert next(results) is None
        assert len(children()) == 1
    """)


def test_ctrl_c_is_left_to_this_process_and_output_is_written_once() -> None:
    said = _run("""
        print("once", end=" ")
        pid = children()[0]
        os.kill(pid, signal.SIGINT)
        assert workers.start(3)
        assert pid in children()
        assert len(list(workers.run(twice, range(20, 50), 3))) == 30
    """)
    assert said == "once "


def test_they_end_with_this_process() -> None:
    said = _run("print(*children())")
    pids = [int(each) for each in said.split()]
    assert len(pids) == 2
    for _ in range(500):
        if not any(Path(f"/proc/{pid}").exists() for pid in pids):
            return
        time.sleep(0.01)
    raise AssertionError(pids)


def test_a_process_with_threads_is_not_forked() -> None:
    _run("""
        import threading
        done = threading.Event()
        thread = threading.Thread(target=done.wait)
        thread.start()
        try:
            assert not may_fork()
            assert workers.start(2) and not workers.start(3)
            assert len(children()) == 2
        finally:
            done.set()
            thread.join()
    """)


def test_one_that_cannot_be_asked_is_not_forked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sim.forked._THREADS", "/nowhere")
    assert not may_fork()
