"""The benchmark of the file store runs: on a small file, without a word about how fast."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from file_store_helpers import ROOT


@pytest.mark.extended
def test_the_benchmark_measures_every_row_and_leaves_nothing_behind(tmp_path: Path) -> None:
    out = tmp_path / "out.json"
    folder = tmp_path / "disk"
    folder.mkdir()
    benchmark = ROOT / "benchmarks/hw/l3_file.py"
    options = "--smoke", "--folder", folder, "--out", out, "--fio", "no-fio"
    done = subprocess.run(
        [sys.executable, benchmark, *options],
        capture_output=True,
        text=True,
        timeout=150,
        check=True,
    )
    assert done.stderr == ""
    assert "HOLDS" not in done.stdout
    assert "MISSED" not in done.stdout, "a smoke run judges nothing"
    result = json.loads(out.read_text())
    assert len(result["rows"]) + len(result["skipped"]) == 45
    assert {row["backend"] for row in result["rows"]} >= {"pread"}
    assert all(row["gib_s"] > 0 and row["loop_gib_s"] > 0 for row in result["rows"])
    for line in result["skipped"]:
        assert "cannot be used" in line or "O_DIRECT" in line
    assert list(folder.iterdir()) == []
