"""Ctrl-C keeps what is done: exit code 130, a complete result that says it was interrupted."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType, FunctionType
from typing import Any

import pandas
import pytest
from cli_helpers import (
    COMMAND,
    RESULT_FILES,
    SHIPPED_TRACE,
    files_under,
    processes_of_session,
)
from cli_helpers import line as row_of

from cli.main import run
from hicache.endings import Endings
from hicache.metrics import DirectionStats, Metrics
from scenario.load import load_scenario
from sim.__main__ import main as sim_main
from sim.replay import Outcome, Run, prepare

# A replay of the shipped trace takes seconds; so many of them leave time for Ctrl-C.
TIMES = 8


@pytest.fixture(scope="module")
def long_trace(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The shipped trace several times over, each time with ids and hours of its own."""
    rows = [json.loads(each) for each in SHIPPED_TRACE.read_text().splitlines()]
    span = rows[-1]["timestamp"] + 1000
    ids = 1 + max(max(row["hash_ids"]) for row in rows)
    path = tmp_path_factory.mktemp("long") / "long.jsonl"
    with path.open("w") as written:
        for again in range(TIMES):
            for row in rows:
                shifted = {
                    **row,
                    "timestamp": row["timestamp"] + again * span,
                    "hash_ids": [each + again * ids for each in row["hash_ids"]],
                }
                written.write(json.dumps(shifted) + "\n")
    return path


@contextmanager
def started(cwd: Path, *arguments: str) -> Iterator[subprocess.Popen[str]]:
    """The command in a session of its own; ended by force if the test leaves it running."""
    process = subprocess.Popen(
        [COMMAND, *arguments],
        cwd=cwd,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        stdin=subprocess.DEVNULL,
        text=True,
        start_new_session=True,
    )
    try:
        yield process
    finally:
        if process.poll() is None:
            process.kill()
        process.communicate()


def wait_until_replaying(process: subprocess.Popen[str]) -> None:
    """The child that writes the rows is started right before the replay; then it takes a while to
    be under way.
    """
    deadline = time.monotonic() + 60
    while len(processes_of_session(process.pid)) < 2:
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < deadline
        time.sleep(0.05)
    spent_s = _cpu_s(process.pid)
    while _cpu_s(process.pid) < spent_s + 1:
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < deadline
        time.sleep(0.05)


def _cpu_s(pid: int) -> float:
    ticks = Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2].split()[11]
    return int(ticks) / os.sysconf("SC_CLK_TCK")


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="looks at processes as on Linux")
def test_ctrl_c_keeps_what_is_done(tmp_path: Path, long_trace: Path) -> None:
    arguments = ("replay", str(long_trace), "--page-size", "512", "--out", "out")
    with started(tmp_path, *arguments) as process:
        wait_until_replaying(process)
        process.send_signal(signal.SIGINT)
        said, complained = process.communicate(timeout=60)
        assert process.returncode == 130, complained
        assert processes_of_session(process.pid) == []
    assert "INTERRUPTED" in said
    assert complained.count("\n") == 1
    assert "interrupted" in complained
    assert sorted(files_under(tmp_path)) == ["out", *(f"out/{name}" for name in RESULT_FILES)]
    summary = json.loads((tmp_path / "out" / "summary.json").read_text())
    assert summary["interrupted"] is True
    rows = pandas.read_parquet(tmp_path / "out" / "requests.parquet")
    requests = TIMES * SHIPPED_TRACE.read_bytes().count(b"\n")
    assert 0 < len(rows) == summary["requests"] < requests
    assert rows["prompt_tokens"].sum() == summary["prompt_tokens"]
    assert rows["computed_tokens"].sum() == summary["computed_tokens"]


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="looks at processes as on Linux")
def test_ctrl_c_before_anything_is_done_leaves_nothing(tmp_path: Path, long_trace: Path) -> None:
    with started(tmp_path, "replay", str(long_trace), "--out", "out") as process:
        time.sleep(0.3)
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=60)
        assert process.returncode in (130, -signal.SIGINT)
        assert processes_of_session(process.pid) == []
    left = sorted(files_under(tmp_path))
    # On a quick machine the replay may have begun by then.
    assert left in ([], ["out", *(f"out/{name}" for name in RESULT_FILES)])


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="reads a named pipe")
@pytest.mark.parametrize("rows", [0, 1])
def test_ctrl_c_before_the_first_request_is_one_line(tmp_path: Path, rows: int) -> None:
    """In a pipe that has stalled, where nothing, or not one request, is done."""
    os.mkfifo(tmp_path / "pipe")
    with started(tmp_path, "replay", "pipe", "--out", "out") as process:
        with open(tmp_path / "pipe", "w") as pipe:  # waits until the command has it open, too
            pipe.write(rows * f"{row_of([0, 1], 1000)}\n")
            pipe.flush()
            time.sleep(0.5)
            process.send_signal(signal.SIGINT)
            said, complained = process.communicate(timeout=60)
        assert process.returncode == 130, complained
        assert processes_of_session(process.pid) == []
    assert (said, complained) == ("", "interrupted: no result was written\n")
    assert sorted(files_under(tmp_path)) == ["pipe"]


def test_a_second_ctrl_c_gives_the_run_up(
    tmp_path: Path,
    small_trace: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """The first would end it between two events; the second comes before that."""
    finish = Metrics.finish_row

    def interrupted(self: Metrics, *arguments: Any) -> None:
        for _ in range(2):
            signal.raise_signal(signal.SIGINT)
        finish(self, *arguments)

    monkeypatch.setattr(Metrics, "finish_row", interrupted)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["hicache", "replay", str(small_trace), "--out", "out"])
    assert run() == 130
    assert capsys.readouterr() == ("", "interrupted: no result was written\n")
    assert files_under(tmp_path) == {}
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    assert sim_main(["replay", str(_scenario_of(tmp_path, small_trace)), "--out", "out"]) == 130
    assert capsys.readouterr() == ("", "interrupted: no result was written\n")
    assert sorted(files_under(tmp_path)) == ["s.toml"]


def _scenario_of(folder: Path, trace: Path) -> Path:
    path = folder / "s.toml"
    path.write_text(f'[trace]\npath = "{trace}"\n')
    return path


def _lines_of(function: FunctionType) -> list[int]:
    """The line numbers of a function's code, its head left out."""
    return sorted({line for _, _, line in function.__code__.co_lines() if line})[1:]


@pytest.mark.parametrize(
    "function",
    [Metrics._add_row, DirectionStats.add, Endings._write_row],
    ids=lambda function: function.__qualname__,
)
def test_ctrl_c_between_any_two_counts_keeps_the_books_straight(
    tmp_path: Path, small_trace: Path, function: FunctionType
) -> None:
    """SIGINT just before each line of the bookkeeping, at its tenth call: the outcome adds up."""
    short = tmp_path / "short.jsonl"
    short.write_text("".join(small_trace.read_text().splitlines(keepends=True)[:60]))
    options = {"tiers.l1": "40000tokens", "tiers.l3": "10x", "restore.policy": "always"}
    scenario = load_scenario(None, {**options, "trace.path": str(short)})
    reached, wrong = 0, {}
    for line in _lines_of(function):
        run = prepare(scenario)
        _execute_with_sigint_at(run, function, line)
        if not run.interrupted:
            continue  # a branch that was not taken
        reached += 1
        try:
            _check_books(run.outcome())
        except Exception as error:
            wrong[line] = f"{type(error).__name__}: {error}"
    assert reached > 5
    assert not wrong


def _execute_with_sigint_at(run: Run, function: FunctionType, line: int) -> None:
    calls = 0

    def trace(frame: FrameType, event: str, _: object) -> object:
        nonlocal calls
        if frame.f_code is not function.__code__:
            return None
        if event == "call":
            calls += 1
        elif event == "line" and frame.f_lineno == line and calls == 10:
            sys.settrace(None)
            calls += 1
            signal.raise_signal(signal.SIGINT)
        return trace

    sys.settrace(trace)
    try:
        run.execute()
    finally:
        sys.settrace(None)


def _check_books(outcome: Outcome) -> None:
    assert outcome.interrupted
    summary, columns = outcome.summary, outcome.columns
    assert 0 < len(columns["request"]) == summary["requests"]
    assert sum(columns["prompt_tokens"]) == summary["prompt_tokens"]
    assert sum(columns["computed_tokens"]) == summary["computed_tokens"]
    assert len({len(column) for column in columns.values()}) == 1
