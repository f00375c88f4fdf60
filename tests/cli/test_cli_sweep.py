"""`hicache sweep`: one table of many scenarios, the same whoever computes it, kept as it goes."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pandas
import pytest
from cli_helpers import COMMAND, files_under, hicache, processes_of_session, refusal

from hicache.errors import InputError
from sim.sweep_store import check_out

GRID = ("--grid", "tiers.l2=0,1x,2x", "--grid", "restore.policy=cost,always")
SET = ("--set", "tiers.l1=40000tokens", "--set", "machine.profile=mini-group-b")
on_linux = pytest.mark.skipif(
    not Path("/proc/self/stat").exists(), reason="looks at processes as on Linux"
)


def _sweep(trace: Path, *more: str | Path) -> tuple[str | Path, ...]:
    return ("sweep", trace, *GRID, *SET, *more)


def test_a_row_a_scenario_with_the_figures_of_its_result(tmp_path: Path, small_trace: Path) -> None:
    done = hicache(*_sweep(small_trace, "--folders", "all"), cwd=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.endswith("6 of 6 scenarios: sweep.parquet\n")
    rows = pandas.read_parquet(tmp_path / "sweep.parquet")
    assert list(rows["tiers.l2"]) == ["0", "0", "1x", "1x", "2x", "2x"]
    assert list(rows["restore.policy"]) == ["cost", "always"] * 3
    assert set(rows["error"]) == {""}
    for row in rows.to_dict("records"):
        summary = json.loads((tmp_path / row["folder"] / "summary.json").read_text())
        for key in ("ttft_ms.p99", "bytes.h2d", "cached_tokens_total.host", "cache_hit_rate"):
            flat = pandas.json_normalize(summary).iloc[0]
            assert row[key] == flat[key]
    assert rows["cached_tokens_total.host"].max() > 0
    folder = str(rows["folder"][5])
    assert hicache(
        "replay", small_trace, "--l1", "40000tokens", "--profile", "mini-group-b", "--policy",
        "always", "--out", "one", "--quiet", cwd=tmp_path,
    ).returncode == 0  # fmt: skip
    assert files_under(tmp_path / "one") == files_under(tmp_path / folder)


def test_one_core_gives_the_same_bytes_and_a_larger_grid_runs_what_is_new(
    tmp_path: Path, small_trace: Path
) -> None:
    assert hicache(*_sweep(small_trace, "--jobs", "1"), cwd=tmp_path).returncode == 0
    bytes_of_one = (tmp_path / "sweep.parquet").read_bytes()
    done = hicache(*_sweep(small_trace, "--jobs", "2", "--fresh", "-q"), cwd=tmp_path)
    assert (done.stdout, done.stderr) == ("6 of 6 scenarios: sweep.parquet\n", "")
    assert (tmp_path / "sweep.parquet").read_bytes() == bytes_of_one
    done = hicache(*_sweep(small_trace, "-q"), cwd=tmp_path)
    assert "6 of 6 scenarios, 6 of them done before" in done.stdout
    assert (tmp_path / "sweep.parquet").read_bytes() == bytes_of_one
    more = ("sweep", small_trace, "--grid", "tiers.l2=0,1x,2x,3x", *GRID[2:], *SET)
    done = hicache(*more, cwd=tmp_path)
    assert "8 of 8 scenarios, 6 of them done before" in done.stdout
    assert sorted(each.name for each in tmp_path.iterdir()) == ["sweep.parquet"]
    # Rows of a sweep that varied something else, too: their options are no figures.
    other = ("sweep", small_trace, *GRID[:2], *SET, "--set", "restore.policy=always", "-q")
    done = hicache(*other, cwd=tmp_path)
    assert "3 of 3 scenarios, 3 of them done before" in done.stdout
    again = (tmp_path / "sweep.parquet").read_bytes()
    assert hicache(*other, "--fresh", cwd=tmp_path).returncode == 0
    assert (tmp_path / "sweep.parquet").read_bytes() == again


def test_scenarios_that_fail_have_a_row_that_says_why(tmp_path: Path, small_trace: Path) -> None:
    grid = ("--grid", "tiers.l1=2000tokens,40000tokens", "--set", "mode=untimed")
    done = hicache("sweep", small_trace, *grid, cwd=tmp_path)
    assert done.returncode == 1
    assert done.stderr.startswith("scenario 1 (tiers.l1=2000tokens) failed: request ")
    rows = pandas.read_parquet(tmp_path / "sweep.parquet")
    assert "give a larger --l1" in rows["error"][0]
    assert pandas.isna(rows["cache_hit_rate"][0])
    assert rows["cache_hit_rate"][1] > 0
    done = hicache("sweep", small_trace, "--grid", "tiers.l1=1000tokens,2000tokens", cwd=tmp_path)
    assert done.returncode == 2
    assert done.stderr.startswith("hicache: error: all 2 scenarios failed; the first: request ")


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        ((), "no trace was given"),
        (("none.jsonl",), "none.jsonl: No such file"),
        (("none.toml",), "none.toml: No such file"),
        (("-",), "standard input cannot be read again"),
        (("TRACE", "TRACE"), "is named twice"),
        (("TRACE", "--grid", "tiers.l2"), "write KEY=V1,V2,..."),
        (("TRACE", "--grid", "seed=1", "--grid", "seed=2"), "seed is given twice"),
        (("TRACE", "--grid", "seed=1,2", "--set", "seed=3"), "seed: is given by --set, too"),
        (("TRACE", "--grid", "trace.path=a,b"), "traces are named as arguments, too"),
        (("TRACE", "--grid", "restore.policy=cost,best"), '"best": it must be'),
        (("TRACE", "--grid", "restore.policy=cost,gone.py:X"), "there is no module gone.py"),
        (("TRACE", "--set", "restore.policy=math:sqrt"), "sqrt is no class but a builtin"),
        (("TRACE", "--jobs", "0"), "--jobs is 0"),
        (("TRACE", "--jobs", "2", "--ray", "here:1"), "--jobs is about this machine"),
        (("TRACE", "--out", "x.csv"), "must end in .parquet"),
        (("TRACE", "--out", "no/x.parquet"), "there is no folder no"),
        (("TRACE", "--out", "mine.parquet"), "was not made by hicache sweep"),
    ],
)
def test_bad_input_is_one_line(
    tmp_path: Path,
    small_trace: Path,
    arguments: tuple[str, ...],
    reason: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    (tmp_path / "mine.parquet").write_text("mine")
    given = [str(small_trace) if each == "TRACE" else each for each in arguments]
    assert reason in refusal(["sweep", *given], tmp_path, monkeypatch, capsys)


def test_a_dry_run_lists_and_runs_nothing(tmp_path: Path, small_trace: Path) -> None:
    done = hicache(*_sweep(small_trace, "--dry-run"), cwd=tmp_path)
    assert done.stdout.splitlines()[1] == "2  tiers.l2=0  restore.policy=always"
    assert done.stdout.endswith("6 scenarios; nothing was run\n")
    assert files_under(tmp_path) == {}


def test_out_is_looked_at_before_anything_runs(tmp_path: Path) -> None:
    (tmp_path / "x.parquet").mkdir()
    with pytest.raises(InputError, match="is a folder"):
        check_out(str(tmp_path / "x.parquet"))


def _started(
    tmp_path: Path, trace: Path, *more: str
) -> tuple[subprocess.Popen[str], Callable[[int], None]]:
    """A sweep of many scenarios under way, and what waits until so many of them are done."""
    grid = ("--grid", "tiers.l2=0,1x,2x,3x", "--grid", "trace.speed=1,2,4")
    process = subprocess.Popen(
        [COMMAND, "sweep", str(trace), *grid, *SET, *more],
        cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        start_new_session=True,
    )  # fmt: skip
    out = more[more.index("--out") + 1]

    def wait_for(rows: int) -> None:
        journal = tmp_path / f"{out}.journal"
        for _ in range(600):
            if journal.exists() and journal.read_bytes().count(b"\n") > rows:
                return
            assert process.poll() is None, process.communicate()
            time.sleep(0.02)
        raise AssertionError("no scenario was done in time")

    return process, wait_for


@on_linux
def test_ctrl_c_keeps_what_is_done_and_a_killed_worker_is_made_good(
    tmp_path: Path, small_trace: Path
) -> None:
    process, wait_for = _started(tmp_path, small_trace, "--out", "a.parquet", "--jobs", "2")
    wait_for(2)
    os.killpg(process.pid, signal.SIGINT)  # as a terminal does, to the workers, too
    said, complained = process.communicate(timeout=60)
    assert process.returncode == 130, complained
    assert complained.startswith("interrupted: ")
    assert complained.endswith(" of 12 scenarios are done; the same command goes on from there\n")
    assert complained.count("\n") == 1
    _ends(process.pid)
    kept = len(pandas.read_parquet(tmp_path / "a.parquet"))
    assert 2 <= kept < 12
    assert f"{kept} of 12 scenarios: a.parquet" in said

    process, wait_for = _started(tmp_path, small_trace, "--out", "a.parquet", "--jobs", "2")
    wait_for(kept + 1)
    os.kill(_workers(process.pid)[0], signal.SIGKILL)
    said, complained = process.communicate(timeout=60)
    assert (process.returncode, complained) == (0, "")
    lost = "1 workers were killed and their scenarios run again"
    assert f"12 of 12 scenarios, {kept} of them done before, {lost}: a.parquet" in said
    _ends(process.pid)
    assert sorted(each.name for each in tmp_path.iterdir()) == ["a.parquet"]
    process, _ = _started(tmp_path, small_trace, "--out", "b.parquet", "--jobs", "1", "-q")
    process.communicate(timeout=60)
    assert (tmp_path / "a.parquet").read_bytes() == (tmp_path / "b.parquet").read_bytes()


def _ends(session: int) -> None:
    """Nothing of it is left, a moment later: joblib's tracker of resources goes last, by itself."""
    for _ in range(250):
        if not processes_of_session(session):
            return
        time.sleep(0.02)
    raise AssertionError(processes_of_session(session))


def _workers(session: int) -> list[int]:
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            rest = (entry / "stat").read_text().rpartition(") ")[2].split()
            command = (entry / "cmdline").read_bytes()
        except OSError:
            continue
        # Forks have the command's own line, joblib's workers one of theirs, its tracker another.
        child = int(rest[3]) == session and int(rest[1]) == session
        if child and (b"popen_loky" in command or b"sweep" in command):
            found.append(int(entry.name))
    return sorted(found)


@on_linux
@pytest.mark.parametrize("closed", [">&-", "2>&-", "<&- >&- 2>&-"])
def test_streams_that_are_closed_change_nothing(
    tmp_path: Path, small_trace: Path, closed: str
) -> None:
    arguments = ("sweep", small_trace, "--grid", "tiers.l2=1x,2x", "--jobs", "2", *SET)
    assert hicache(*arguments, "--out", "a.parquet", cwd=tmp_path).returncode == 0
    shell = ("sh", "-c", f'exec "$@" {closed}', "sh", COMMAND)
    done = hicache(*arguments, "--out", "b.parquet", cwd=tmp_path, command=shell)
    assert (done.returncode, done.stderr) == (0, "")
    assert (tmp_path / "a.parquet").read_bytes() == (tmp_path / "b.parquet").read_bytes()


@on_linux
@pytest.mark.parametrize("more", [(), ("-q",)])
def test_a_full_disk_under_the_table_is_one_line(
    tmp_path: Path, small_trace: Path, more: tuple[str, ...]
) -> None:
    arguments = ("sweep", small_trace, "--grid", "tiers.l2=1x,2x", "--jobs", "2", *SET, *more)
    shell = ("sh", "-c", 'exec "$@" >/dev/full', "sh", COMMAND)
    done = hicache(*arguments, "--out", "a.parquet", cwd=tmp_path, command=shell)
    assert (done.returncode, done.stderr) == (2, "hicache: error: No space left on device\n")
    assert len(pandas.read_parquet(tmp_path / "a.parquet")) == 2


@on_linux
def test_a_full_disk_is_said_once_also_where_it_is_found_before_the_end(tmp_path: Path) -> None:
    """What could not be written then is tried once more."""
    code = "import cli.main as m; m.app = lambda **_: print('x', flush=True); m.main()"
    shell = ("sh", "-c", 'exec "$@" >/dev/full', "sh", sys.executable)
    done = hicache("-c", code, cwd=tmp_path, command=shell)
    assert (done.returncode, done.stderr) == (2, "hicache: error: No space left on device\n")


@on_linux
def test_a_table_that_nobody_reads_is_no_failed_scenario(tmp_path: Path, small_trace: Path) -> None:
    arguments = ("sweep", small_trace, "--grid", "tiers.l2=1x,2x", "--jobs", "2", *SET)
    shell = ("bash", "-c", '"$@" | true; exit ${PIPESTATUS[0]}', "sh", COMMAND)
    done = hicache(*arguments, "--out", "a.parquet", cwd=tmp_path, command=shell)
    assert (done.returncode, done.stderr) == (141, "")
    assert len(pandas.read_parquet(tmp_path / "a.parquet")) == 2


def test_a_trace_that_changes_meanwhile_is_refused(
    tmp_path: Path, small_trace: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from cli import sweep_run

    trace = tmp_path / "t.jsonl"
    trace.write_bytes(small_trace.read_bytes())

    def changing(jobs: list[object], workers: int, lost: object):
        from sim.sweep_cell import run_job

        for job in jobs:
            yield run_job(job)  # type: ignore[arg-type]
            trace.write_bytes(b"".join(trace.read_bytes().splitlines(keepends=True)[:-1]))

    monkeypatch.setattr(sweep_run, "run_here", changing)
    given = sweep_run.SweepArguments(
        [str(trace)], ["tiers.l2=0,1x"], ["tiers.l1=40000tokens"], str(tmp_path / "s.parquet")
    )
    with pytest.raises(InputError, match="its content is another for scenario 2"):
        sweep_run.run_sweep(given)
