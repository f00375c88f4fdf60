"""What ends a run early leaves what was done: a result of the requests that ended, and a record
that replays as far as it goes. Nothing is lost to a dead GPU or disk, a bug, Ctrl-C, or kill -9.
"""

from __future__ import annotations

import functools
import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pandas
import pytest

pytest.importorskip("torch")

from fault_runs import (
    DEVICES,
    HERE,
    FaultyRun,
    Front,
    Rig,
    overrides,
    quick,
    scenario_of,
    write_inputs,
)
from file_store_helpers import ROOT, environment

import hw.run
from hicache.errors import InputError
from hicache.metrics import Metrics
from hw.assembly import Assembly
from hw.journal import RECORD, Journal
from hw.run_command import run_live_scenario
from hw.storage.file_store import FileStore
from hw.storage.host import HostBuffer
from sim.run_command import run_replay

REQUESTS = 21  # of the usual trace


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    write_inputs(tmp_path)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def rigged_command(
    folder: Path, device: str, monkeypatch: pytest.MonkeyPatch, rig: Rig, **options: object
) -> int:
    """`hicache run` with devices of ours, into the folder `out`."""

    def assemble(*arguments) -> Assembly:
        made = Assembly(*arguments)
        for name, devices in made.queues.items():
            made.queues[name] = [rig(name, each) for each in devices]
        return made

    prepare = functools.partial(hw.run.prepare, assemble=assemble)
    monkeypatch.setattr(hw.run, "prepare", prepare)
    given = overrides(folder, **options)
    return run_live_scenario(None, given, device=device, out="out", show=False)  # type: ignore[arg-type]


def check_kept(said: str) -> None:
    """`out` holds a part of the run, and its record replays to the same rows."""
    assert "out holds the requests that were done" in said
    assert sorted(each.name for each in Path().glob("out*")) == ["out"]
    summary = json.loads(Path("out/summary.json").read_text())
    assert summary["interrupted"] is True
    assert any(each.startswith("broke_off: the run ended early") for each in summary["warnings"])
    check_replays("out", pandas.read_parquet("out/requests.parquet"))


def check_replays(record: str, rows: pandas.DataFrame) -> None:
    assert 0 < len(rows) < REQUESTS
    assert run_replay(None, {}, record_of=record, out="again", show=False) == 1
    pandas.testing.assert_frame_equal(pandas.read_parquet("again/requests.parquet"), rows)


def at(queue: str, number: int, act: Callable[[], object]) -> Rig:
    """A rig: `act()` in place of the `number`-th operation of a queue, and of all after it."""

    class Ending(Front):
        begun = 0

        def run(self, operation, control, steps=()):
            self.begun += 1
            if self.begun >= number:
                act()
            return super().run(operation, control, steps)

    return lambda name, device: (
        Ending(quick(name, device)) if name == queue else quick(name, device)
    )


def lost_gpu() -> None:
    raise RuntimeError("CUDA error: unspecified launch failure")


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("queue", ["gpu", "d2h", "s2h"])
def test_a_device_that_breaks(folder, device, queue, monkeypatch, capsys):
    code = rigged_command(
        folder, device, monkeypatch, at(queue, 20 if queue == "gpu" else 5, lost_gpu)
    )
    assert code == 1
    said = capsys.readouterr().err
    assert "hicache: error: " in said
    assert f"(queue {queue}) broke at operation" in said
    assert "RuntimeError: CUDA error: unspecified launch failure" in said
    check_kept(said)


@pytest.mark.parametrize("device", DEVICES)
def test_a_device_that_never_answers(folder, device, monkeypatch, capsys):
    release = threading.Event()
    monkeypatch.setattr("hw.workers.Patience.limit_ns", lambda self, _: int(self.base_s * 1e9))
    rig = at("s2h", 4, lambda: release.wait(60))
    began_s = time.monotonic()
    try:
        code = rigged_command(folder, device, monkeypatch, rig, hw__watchdog_s=1.5)
    finally:
        release.set()
    assert code == 1
    assert time.monotonic() - began_s < 30
    said = capsys.readouterr().err
    assert "L3 file (pread) (queue s2h) no longer answers: nothing was heard of operation" in said
    assert "direction='s2h'" in said
    check_kept(said)


def test_a_bug_in_the_engine(folder, monkeypatch, capsys):
    finish, calls = Metrics.finish_row, []

    def buggy(self, *arguments):
        finish(self, *arguments)
        calls.append(1)
        assert len(calls) < 8, "a bug"

    monkeypatch.setattr(Metrics, "finish_row", buggy)
    with pytest.raises(AssertionError, match="a bug"):
        rigged_command(folder, HERE, monkeypatch, quick)
    said = capsys.readouterr().err
    assert "out holds the requests that were done" in said
    assert len(pandas.read_parquet("out/requests.parquet")) == 8


def test_a_result_that_cannot_be_written_leaves_the_record(folder, monkeypatch, capsys):
    """Somebody puts a file into the result's place while the run goes on."""
    rig = at("h2s", 5, lambda: Path("out").write_text("mine"))
    with pytest.raises(InputError, match="out is a file"):
        rigged_command(folder, HERE, monkeypatch, rig)
    assert "hicache replay --record out.unfinished repeats it" in capsys.readouterr().err
    assert Path("out").read_text() == "mine"
    assert run_replay(None, {}, record_of="out.unfinished", out="again", show=False) == 0
    assert len(pandas.read_parquet("again/requests.parquet")) == REQUESTS


def test_ctrl_c_leaves_a_result_and_nothing_else(folder, monkeypatch, capsys):
    rig = at("h2s", 8, lambda: os.kill(os.getpid(), signal.SIGINT))
    assert rigged_command(folder, HERE, monkeypatch, rig) == 130
    assert "interrupted: the result holds the requests that were done" in capsys.readouterr().err
    assert sorted(each.name for each in Path().glob("out*")) == ["out"]
    check_replays("out", pandas.read_parquet("out/requests.parquet"))


def test_a_journal_that_cannot_be_begun_lets_go_of_the_machine(folder):
    """Its devices have no queues yet that would close them."""
    journal = Journal(str(folder / "scenario.toml" / "out"))
    (folder / "scenario.toml").write_text("")
    with pytest.raises(InputError, match=r"scenario\.toml") as raised:
        hw.run.prepare(scenario_of(folder), device=HERE, tell=lambda _: None, journal=journal)
    store = FileStore(folder / "l3", 4, 4096, HostBuffer(4, 4096))  # nobody holds it
    store.close()
    del raised


def test_what_never_began_leaves_nothing(folder, monkeypatch):
    with pytest.raises(InputError, match="no room for an L3"):
        rigged_command(folder, HERE, monkeypatch, quick, tiers__l3="100000000000pages")
    assert not list(Path().glob("out*"))


# ------------------------------------------------------------------------------------ kill -9


def started(folder: Path, device: str, *assignments: str) -> subprocess.Popen[str]:
    """The command itself, as a process."""
    keys = [f"--set={key}={value}" for key, value in overrides(folder).items()]
    (folder / "scenario.toml").write_text("")
    command = [sys.executable, "-m", "cli.main", "run", "scenario.toml", "--out=out", "-q"]
    return subprocess.Popen(
        [*command, f"--device={device}", *keys, *(f"--set={each}" for each in assignments)],
        cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        env=environment(),
    )  # fmt: skip


def busy_with_l3(process: subprocess.Popen[str], record: Path) -> None:
    """Wait until L3 was written and read."""
    deadline_s = time.monotonic() + 60
    while True:
        lines = record.read_text().splitlines() if record.exists() else []
        done = "".join(each for each in lines if each.startswith('["done"'))
        if '"s2h"' in done and '"h2s"' in done and "Decode" in done:
            return
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < deadline_s
        time.sleep(0.01)


@pytest.mark.parametrize("device", DEVICES)
def test_kill_9_and_restart(folder, device, monkeypatch, capsys):
    """The record that was cut off replays to its end. The same L3 file serves the next run, of
    other tokens: nothing of the dead one is taken for its own.
    """
    write_inputs(folder, "longer.jsonl", clients=12, rounds=6)
    with started(folder, device, f"trace.path={folder / 'longer.jsonl'}") as process:
        try:
            busy_with_l3(process, Path("out.unfinished") / RECORD)
            with pytest.raises(InputError, match=rf"L3 of another run.*process {process.pid}"):
                FaultyRun(scenario_of(folder), device, monkeypatch)
        finally:
            process.send_signal(signal.SIGKILL)
            process.wait(30)
    assert not Path("out").exists()
    assert run_replay(None, {}, record_of="out.unfinished", out="again", show=False) == 1
    assert "cut off" in capsys.readouterr().err
    rows = pandas.read_parquet("again/requests.parquet")
    assert 0 < len(rows) < 72
    assert json.loads(Path("again/summary.json").read_text())["interrupted"] is True

    stale = (folder / "l3").read_bytes()
    assert any(stale[:4096])
    following = FaultyRun(scenario_of(folder, seed=11), device, monkeypatch)
    following.to_the_end()
    assert min(following.checked.values()) >= 12


# ------------------------------------------------------------------------------------ a full disk

FULL = """
import ctypes, os, sys
from pathlib import Path
import pytest
from fault_runs import HERE, FaultyRun, Front, quick, scenario_of, transfers, write_inputs
folder, disk = Path(sys.argv[1]), Path(sys.argv[2])
write_inputs(folder)
libc = ctypes.CDLL(None, use_errno=True)

class Losing(Front):
    begun = 0
    def run(self, operation, control, steps=()):
        self.begun += 1
        if self.begun == 4:  # the file loses the room of its slots from 30 on; others take it all
            fd, slot = run.store.file.fd, run.store.slot_bytes
            start = -(-30 * slot // 4096) * 4096
            length = run.store.file.size_bytes // 4096 * 4096 - start
            where, size = ctypes.c_long(start), ctypes.c_long(length)
            assert libc.fallocate(fd, 3, where, size) == 0, ctypes.get_errno()
            with open(disk / "others", "wb", 0) as file:
                try:
                    while file.write(bytes(4096)):
                        pass
                except OSError:
                    pass
        return super().run(operation, control, steps)

scenario = scenario_of(folder, hw__l3_path=str(disk / "l3"))
run = FaultyRun(scenario, HERE, pytest.MonkeyPatch(),
                lambda name, each: Losing(each) if name == "h2s" else quick(name, each))
counts = transfers(run.to_the_end())
assert counts["h2s"]["failed"] >= 2, counts
assert counts["h2s"]["operations"] >= 3, counts
assert counts["s2h"]["failed"] == 0, counts
failed = [line for line in run.run.lines if line.startswith('["failed"')]
print(failed[0])
"""


def test_a_disk_that_is_full(folder):
    """A file system of its own, filled while the run goes on: writes fail, all else goes on."""
    disk = folder / "disk"
    disk.mkdir()
    tools = shutil.which("unshare"), shutil.which("mount")
    mount = f"mount -t tmpfs -o size=1m tmpfs {disk}"
    inside = ["unshare", "-rm", "sh", "-c"]
    if (
        not all(tools)
        or subprocess.run([*inside, mount], capture_output=True, check=False).returncode
    ):
        pytest.skip("no small file system can be mounted here")
    code = [sys.executable, "-c", FULL, folder, disk]
    done = subprocess.run(
        [*inside, f'{mount} && exec "$@"', "sh", *code],
        cwd=ROOT, capture_output=True, text=True, timeout=100, check=False,
        env=environment(Path(__file__).parent),
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "(ENOSPC); 0 bytes are free on its disk" in done.stdout


# ------------------------------------------------------------------------------------ the journal


@pytest.fixture
def told() -> list[str]:
    return []


@pytest.fixture
def journal(tmp_path: Path, told: list[str]) -> Iterator[Journal]:
    made = Journal(str(tmp_path / "run"), told.append)
    yield made
    made.discard()


def test_lines_are_in_the_file_once_flushed_or_many(journal, tmp_path):
    journal.begin("seed = 1\n")
    path = tmp_path / "run.unfinished" / RECORD
    journal.write("one")
    assert path.read_text() == ""
    journal.flush()
    assert path.read_text() == "one\n"
    for number in range(1000):
        journal.write(str(number))
    assert path.read_text().count("\n") > 700
    journal.close()
    assert path.read_text().splitlines() == ["one", *map(str, range(1000))]
    assert (path.parent / "scenario.toml").read_text() == "seed = 1\n"
    journal.discard()
    assert list(tmp_path.iterdir()) == []


def test_what_an_older_run_left_is_not_touched(journal, tmp_path):
    old = tmp_path / "run.unfinished"
    old.mkdir()
    (old / RECORD).write_text("the only copy")
    journal.begin("")
    assert journal.folder == f"{old}-2"
    journal.discard()
    assert (old / RECORD).read_text() == "the only copy"
    assert list(tmp_path.iterdir()) == [old]


def test_a_disk_that_takes_no_more_lines_ends_the_journal_only(journal, tmp_path, told):
    journal.begin("")
    journal.write("one")
    journal.flush()
    full = os.open("/dev/full", os.O_WRONLY)
    os.dup2(full, journal._fd)
    os.close(full)
    for _ in range(3):
        journal.write("two")
        journal.flush()
    journal.close()
    assert told == [f"{journal.folder}: the record is not written any further: "
                    "No space left on device"]  # fmt: skip
    assert (tmp_path / "run.unfinished" / RECORD).read_text() == "one\n"


def test_a_place_that_cannot_be_written_to_is_named(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match="file"):
        Journal(str(tmp_path / "file" / "run")).begin("")
