"""The benchmark of the file store runs: on a small file, without a word about how fast."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from file_store_helpers import ROOT

sys.path.insert(0, str(ROOT / "benchmarks/hw"))

from l3_fio import Fio, Setting

BLOCK, FILE_BYTES = 65536, 8 << 20
SETTINGS = [
    (Setting("warm", "read", False, BLOCK, 4), {"numjobs=4", "direct=0", "ioengine=io_uring"}),
    (Setting("warm", "read", False, BLOCK, 4, 4 << 30), {f"iodepth={(1 << 30) // BLOCK}"}),
    (Setting("small", "read", False, BLOCK, 4), {f"iodepth={(32 << 20) // BLOCK}"}),
    (Setting("hot", "read", False, BLOCK, 4), {"numjobs=4", "direct=0", "ioengine=psync"}),
    (Setting("direct", "read", False, BLOCK, 4), {"numjobs=4", "direct=1", "iodepth=1"}),
    (Setting("direct", "write", True, BLOCK, 8), {"numjobs=1", "direct=1", "iodepth=8"}),
    (Setting("cold", "read", True, BLOCK, 8), {"numjobs=1", "direct=0", "iodepth=8"}),
]


@pytest.fixture
def stand_in(tmp_path: Path) -> Path:
    """A program that answers as fio does, and keeps how it was called."""
    program = tmp_path / "fio"
    program.write_text(
        f"#!{sys.executable}\n"
        "import json, pathlib, sys\n"
        "if sys.argv[1] == '--version': print('fio-stand-in'); sys.exit()\n"
        "pathlib.Path(__file__).with_name('called').write_text('\\n'.join(sys.argv[1:]))\n"
        "verb = 'write' if '--rw=randwrite' in sys.argv else 'read'\n"
        "moved = {'io_bytes': 3 << 30, 'bw_bytes': 3 << 30}\n"
        "none = {'io_bytes': 0, 'bw_bytes': 0}\n"
        "job = {'read': none, 'write': none, verb: moved}\n"
        "print('a note'); print(json.dumps({'jobs': [job]}))\n"
    )
    program.chmod(0o755)
    return program


@pytest.mark.parametrize(("setting", "flags"), SETTINGS)
def test_fio_is_asked_for_the_same_blocks_depth_and_flags(
    stand_in: Path, tmp_path: Path, setting: Setting, flags: set[str]
) -> None:
    fio = Fio(str(stand_in), tmp_path / "file", FILE_BYTES)
    assert fio.version == "fio-stand-in"
    assert fio.gib_s(setting) == 3
    called = {line.removeprefix("--") for line in (tmp_path / "called").read_text().split("\n")}
    assert called >= flags | {f"bs={BLOCK}", f"rw=rand{setting.verb}", "invalidate=0"}
    assert "mem=mmap" in called, "buffers that begin where pages do"
    none_twice = setting.kind == "cold"
    assert ("norandommap" in called) != none_twice
    assert any(each.startswith("offset_increment=") for each in called) == none_twice


@pytest.mark.skipif(shutil.which("fio") is None, reason="there is no fio here")
@pytest.mark.parametrize(
    "setting", [setting for setting, _ in SETTINGS if setting.kind != "direct"]
)
def test_fio_takes_these_options(tmp_path: Path, setting: Setting) -> None:
    path = tmp_path / "file"
    path.write_bytes(os.urandom(FILE_BYTES))
    program = shutil.which("fio") or ""
    assert Fio(program, path, FILE_BYTES).gib_s(setting) > 0
    assert path.stat().st_size == FILE_BYTES


def smoke(tmp_path: Path, *options: str) -> tuple[dict, str]:
    """A short run, which leaves nothing behind: its result, and what it printed."""
    out, folder = tmp_path / "out.json", tmp_path / "disk"
    folder.mkdir()
    benchmark = ROOT / "benchmarks/hw/l3_file.py"
    done = subprocess.run(
        [
            sys.executable, benchmark, "--smoke", *options,
            "--folder", folder, "--out", out, "--fio", "no-fio",
        ],
        capture_output=True,
        text=True,
        timeout=150,
        check=True,
    )  # fmt: skip
    assert done.stderr == ""
    assert list(folder.iterdir()) == []
    return json.loads(out.read_text()), done.stdout


@pytest.mark.extended
def test_the_benchmark_measures_every_row_and_leaves_nothing_behind(tmp_path: Path) -> None:
    result, printed = smoke(tmp_path)
    assert "HOLDS" not in printed
    assert "MISSED" not in printed, "a smoke run judges nothing"
    assert len(result["rows"]) + len(result["skipped"]) == 54
    assert {row["backend"] for row in result["rows"]} >= {"pread"}
    assert all(row["gib_s"] > 0 and row["loop_gib_s"] > 0 for row in result["rows"])
    for line in result["skipped"]:
        assert "cannot be used" in line or "O_DIRECT" in line


@pytest.mark.extended
def test_sizes_of_operations_are_measured_beside_a_loop_without_an_end(tmp_path: Path) -> None:
    rows = smoke(tmp_path, "--sizes", "4,8")[0]["rows"]
    assert sorted(row["block"] for row in rows) == [64 << 10, 144 << 10, 1 << 20, 4 << 20]
    assert all(set(row["gib_s"]) == {"steady", "4M", "8M"} for row in rows)
    assert all(rate > 0 for row in rows for rate in row["gib_s"].values())
