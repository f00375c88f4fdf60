"""The compiled engine: the same bytes as the sources, and none of it once a source is edited.

The library is the one that `make compiled` left, if it is of these sources; else it is made here,
where mypyc and a C compiler are there.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from importlib.util import find_spec
from itertools import islice
from pathlib import Path

import pytest

from hicache import compiled

pytestmark = pytest.mark.slow

REPOSITORY = Path(__file__).resolve().parents[2]
PACKAGES = ("cli", "hicache", "hw", "report", "scenario", "sim", "traces")
TRACE = REPOSITORY / "data" / "agents.jsonl"
REQUESTS = 250
TIERS = ("--l1", "8GiB", "--l2", "2x", "--l3", "10x")

RUNS = {
    "cost": ("--page-size", "512", "--policy", "cost", "--timeline"),
    "always, named pages": (
        "--page-size", "64", "--policy", "always", "--save-record",
        "--set", "engine.page_ids=named", "--set", "engine.check_every_steps=50",
    ),
    "parts of hits, counting what is in front": (
        "--policy", "meet", "--set", "restore.layerwise=true", "--set", "restore.queue_aware=true",
        "--set", "restore.prior_host_gib_per_s=1", "--save-record",
    ),
    "untimed": ("--page-size", "64", "--untimed"),
    "block-lru": (
        "--preset", "block-lru", "--l2", "0", "--l3", "0", "--set", "cache.eviction=slru",
    ),
    "mixed steps, blocking restores": (
        "--policy", "always", "--set", "scheduler.mixed_chunk=true",
        "--set", "restore.overlap=false", "--set", "cache.eviction=mru", "--save-record",
    ),
}  # fmt: skip


@pytest.fixture(scope="session")
def library(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A folder with the compiled engine of these sources."""
    ready = compiled.folder_of(str(REPOSITORY))
    if compiled.look_in(ready, str(REPOSITORY)) is not None:
        yield Path(ready)
        return
    if find_spec("mypyc") is None:
        pytest.skip("mypyc is not installed (the extra `fast`)")
    folder = tmp_path_factory.mktemp("compiled") / "engine"
    done = subprocess.run(
        [sys.executable, REPOSITORY / "scripts" / "compile_engine.py", "--folder", folder],
        capture_output=True,
        text=True,
        check=False,
    )
    if "there is no C compiler" in done.stdout or "headers" in done.stdout:
        pytest.skip(done.stdout)
    assert done.returncode == 0, done.stdout + done.stderr
    yield folder


@pytest.fixture(scope="session")
def trace(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The first requests of the shipped trace."""
    path = tmp_path_factory.mktemp("trace") / "agents.jsonl"
    with TRACE.open() as lines:
        path.write_text("".join(islice(lines, REQUESTS)))
    return path


def command(
    which: Path | str, *arguments: str | Path, path: Path = REPOSITORY
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "cli.main", *map(str, arguments)],
        env=environment(which, path),
        cwd=path,
        capture_output=True,
        text=True,
        check=False,
    )


def environment(which: Path | str, path: Path = REPOSITORY) -> dict[str, str]:
    return {**os.environ, "HICACHE_COMPILED": str(which), "PYTHONPATH": str(path)}


def is_compiled(which: Path | str, path: Path = REPOSITORY) -> bool:
    done = command(which, "--version", path=path)
    assert done.stderr == ""
    return {"(compiled": True, "(interpreted": False}[done.stdout.split()[2]]


@pytest.mark.parametrize("name", RUNS)
def test_the_same_bytes(library: Path, trace: Path, tmp_path: Path, name: str) -> None:
    assert is_compiled(library)
    left = []
    for which in (library, "0"):
        out = tmp_path / f"of-{len(left)}"
        done = command(which, "replay", trace, *TIERS, *RUNS[name], "--quiet", "--out", out)
        assert done.returncode == 0, done.stderr
        files = {file.name: file.read_bytes() for file in out.iterdir()}
        left.append((files, done.stderr))
    assert left[0] == left[1]
    if "--save-record" in RUNS[name]:  # made by one, repeated by the other
        again = command("0", "replay", "--record", tmp_path / "of-0", "-q", "--out", tmp_path / "r")
        assert again.returncode == 0, again.stderr
        again = command(
            library, "replay", "--record", tmp_path / "of-1", "-q", "--out", tmp_path / "s"
        )
        assert again.returncode == 0, again.stderr


def test_the_same_refusal(library: Path, trace: Path, tmp_path: Path) -> None:
    said = []
    for which in (library, "0"):
        done = command(which, "replay", trace, "--l1", "600tokens", "--out", tmp_path / "out")
        assert done.returncode == 2
        said.append(done.stderr)
    assert said[0] == said[1]
    assert "give a larger --l1" in said[0]


def test_an_edited_source_is_run(library: Path, tmp_path: Path) -> None:
    for package in PACKAGES:
        shutil.copytree(
            REPOSITORY / package, tmp_path / package, ignore=shutil.ignore_patterns("__pycache__")
        )
    assert is_compiled(library, tmp_path)
    source = (
        tmp_path / "hicache" / "options.py"
    )  # not compiled itself, but compiled code rests on it
    before = source.read_text()
    source.write_text(before + "\n")
    assert not is_compiled(library, tmp_path)
    source.write_text(before)
    assert is_compiled(library, tmp_path)


def test_a_module_that_is_to_be_compiled_as_well_makes_it_outdated(tmp_path: Path) -> None:
    code = """
import compile_engine as script, sys
from pathlib import Path
compiled, sources = script.compiled, script.sources_of(script.MODULES)
for modules in script.MODULES, script.MODULES[1:]:
    stamp = compiled.stamp_text(str(script.ROOT), sources, modules)
    Path(sys.argv[1], compiled.STAMP).write_text(stamp)
    print(script.up_to_date(Path(sys.argv[1])))
"""
    done = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path)],
        env={**os.environ, "PYTHONPATH": str(REPOSITORY / "scripts")},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.split() == ["True", "False"]


def test_packages_from_elsewhere_are_not_mixed(library: Path, tmp_path: Path) -> None:
    """`sim` of another copy, in front of this one's."""
    shutil.copytree(REPOSITORY / "sim", tmp_path / "sim")
    code = "import sim.gpu, hicache.tree; from hicache import compiled; print(compiled.in_use())"
    done = subprocess.run(
        [sys.executable, "-P", "-c", code],
        env={**environment(library), "PYTHONPATH": f"{tmp_path}{os.pathsep}{REPOSITORY}"},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout == "False\n"


@pytest.mark.parametrize("first", ["hicache.tree", "sim.gpu", "sim.timer"])
def test_whatever_is_imported_first(library: Path, first: str) -> None:
    code = f"import {first} as first; print(first.__file__)"
    done = subprocess.run(
        [sys.executable, "-c", code],
        env=environment(library),
        cwd=REPOSITORY,
        capture_output=True,
        text=True,
        check=True,
    )
    assert Path(done.stdout.strip()).parent == library


CTRL_C = """
import signal, sys
from scenario.load import load_scenario
from sim.replay import prepare

run = prepare(load_scenario(None, {"trace.path": sys.argv[1], "tiers.l3": "10x"}))
signal.signal(signal.SIGALRM, lambda *_: signal.raise_signal(signal.SIGINT))
signal.setitimer(signal.ITIMER_REAL, 0.1)
run.execute()
print(run.interrupted, run.engine.metrics.requests)
"""


def test_ctrl_c_ends_it(library: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", CTRL_C, TRACE],
        env=environment(library),
        cwd=REPOSITORY,
        capture_output=True,
        text=True,
        check=True,
    )
    interrupted, requests = done.stdout.split()
    assert interrupted == "True"
    assert int(requests) < len(TRACE.read_text().splitlines())
