"""`hicache sweep --ray`: the same bytes as without, also where a worker of the cluster dies."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from cli_helpers import COMMAND, hicache

needs_ray = pytest.mark.skipif(
    importlib.util.find_spec("ray") is None, reason="Ray is not installed (extra ray)"
)
GRID = ("--grid", "tiers.l2=0,1x,2x,3x", "--grid", "trace.speed=1,2,4,8")
SET = ("--set", "tiers.l1=40000tokens", "--set", "machine.profile=mini-group-b")


class _Cluster:
    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process
        self.address = self._answer("address ")

    def kill_a_worker(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write("kill\n")
        self._process.stdin.flush()
        self._answer("killed")

    def _answer(self, start: str) -> str:
        assert self._process.stdout is not None
        for line in self._process.stdout:  # Ray has words of its own
            if line.startswith(start):
                return line.removeprefix(start).strip()
        raise AssertionError(f"the cluster ended: {self._process.wait()}")


@pytest.fixture
def cluster() -> Iterator[_Cluster]:
    """Two workers of one core each."""
    rig = Path(__file__).with_name("ray_cluster.py")
    with subprocess.Popen(
        [sys.executable, str(rig)],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
    ) as process:  # fmt: skip
        try:
            yield _Cluster(process)
        finally:
            assert process.stdin is not None
            process.stdin.close()
            process.wait(60)


@needs_ray
def test_a_cluster_that_loses_a_worker_gives_the_same_bytes(
    tmp_path: Path, small_trace: Path, cluster: _Cluster
) -> None:
    sweep = ("sweep", str(small_trace), *GRID, *SET, "-q")
    with subprocess.Popen(
        [COMMAND, *sweep, "--ray", cluster.address, "--out", "ray.parquet"],
        cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    ) as process:  # fmt: skip
        _wait_for_rows(tmp_path / "ray.parquet.journal", 3, process)
        cluster.kill_a_worker()
        assert process.poll() is None, "it was killed after the end: nothing is shown"
        rows = (tmp_path / "ray.parquet.journal").read_bytes().count(b"\n") - 1
        said, complained = process.communicate(timeout=120)
    assert rows < 16, "it was killed after the end: nothing is shown"
    assert process.returncode == 0, complained
    # Ray says there that a worker was lost.
    assert said.splitlines()[-1] == "16 of 16 scenarios: ray.parquet"
    assert hicache(*sweep, "--jobs", "2", "--out", "here.parquet", cwd=tmp_path).returncode == 0
    assert (tmp_path / "ray.parquet").read_bytes() == (tmp_path / "here.parquet").read_bytes()


def _wait_for_rows(journal: Path, rows: int, process: subprocess.Popen[str]) -> None:
    for _ in range(3000):
        if journal.exists() and journal.read_bytes().count(b"\n") > rows:
            return
        assert process.poll() is None, process.communicate()
        time.sleep(0.02)
    raise AssertionError("no scenario was done in time")


@needs_ray
def test_where_there_is_no_cluster(tmp_path: Path, small_trace: Path) -> None:
    done = hicache("sweep", small_trace, *SET, "--ray", "127.0.0.1:1", cwd=tmp_path)
    assert done.returncode == 2
    assert done.stderr.startswith("hicache: error: --ray 127.0.0.1:1: no cluster there: ")
    assert done.stderr.count("\n") == 1


@pytest.mark.skipif(importlib.util.find_spec("ray") is not None, reason="Ray is installed")
def test_without_ray_the_extra_is_named(tmp_path: Path, small_trace: Path) -> None:
    done = hicache("sweep", small_trace, *SET, "--ray", "local", cwd=tmp_path)
    assert done.returncode == 2
    assert done.stderr == "hicache: error: --ray needs Ray: pip install 'hicache-lab[ray]'\n"
