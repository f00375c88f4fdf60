"""The benchmarks run: on a small input, without a word about how fast."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

BENCHMARKS = Path(__file__).resolve().parents[2] / "benchmarks"


def _run(*arguments: str | Path) -> str:
    done = subprocess.run(
        [sys.executable, *map(str, arguments)],
        capture_output=True,
        text=True,
        timeout=150,
        check=True,
    )
    assert done.stderr == ""
    return done.stdout


@pytest.mark.slow
def test_replay_speed_smoke() -> None:
    said = _run(BENCHMARKS / "replay_speed.py", "--smoke")
    for name in (
        "cost, page 1,",
        "always, page 64, fast disk",
        "untimed",
        "cost, page 512, trace 4 times",
    ):
        assert f"| {name}" in said
    assert "interpreted engine; the fixed loop: median" in said
    assert "MISSED" not in said, "a smoke run judges nothing"


@pytest.mark.slow
def test_preset_speed_smoke() -> None:
    said = _run(BENCHMARKS / "preset_speed.py", "--smoke")
    rows = [line.split(" | ") for line in said.splitlines()[2:]]
    assert len(rows) == 8
    assert {row[0] for row in rows} >= {"| mini-hicache", "| sglang-0.5.20"}
    assert [row[5] for row in rows if row[0] == "| mini-hicache"] == ["1.00", "1.00"]
    operations = {(row[0], row[1]): int(row[7].replace(",", "")) for row in rows}
    for (preset, tiers), count in operations.items():
        if tiers == "with L3":  # it is written to
            assert count > operations[preset, "without L3"]
    assert "MISSED" not in said, "a smoke run judges nothing"


def test_profile_replay(tmp_path: Path) -> None:
    trace = tmp_path / "t.jsonl"
    trace.write_text(
        '{"timestamp": 0, "input_length": 600, "output_length": 9, "hash_ids": [0, 1]}\n'
    )
    said = _run(BENCHMARKS / "profile_replay.py", trace, "--set", "seed=1", "--top", "5")
    assert "hicache/kernel.py" in said
    assert said.count("| ") > 10


def test_trace_speed(tmp_path: Path) -> None:
    trace = tmp_path / "t.jsonl"
    trace.write_text(
        '{"timestamp": 0, "input_length": 600, "output_length": 9, "hash_ids": [0, 1]}\n'
    )
    said = _run(BENCHMARKS / "trace_speed.py", trace, "--runs", "1", "--long-blocks", "33000")
    assert said.count("| 1 |") >= 3
    assert "agent trace: 20 requests, 33,000 blocks, 6,000 unique" in said


def test_curve_speed(tmp_path: Path) -> None:
    trace = tmp_path / "t.jsonl"
    trace.write_text(
        '{"timestamp": 0, "input_length": 600, "output_length": 9, "hash_ids": [0, 1]}\n' * 2
    )
    said = _run(BENCHMARKS / "curve_speed.py", trace, "--runs", "1")
    assert "| curve, all capacities | " in said
    assert said.count("\n| ") == 4
    said = _run(BENCHMARKS / "curve_speed.py", "--grow", "320")
    assert said.count("| exact | ") == 3


@pytest.mark.extended
def test_sweep_speed(tmp_path: Path) -> None:
    trace = tmp_path / "t.jsonl"
    trace.write_text(
        '{"timestamp": 0, "input_length": 600, "output_length": 9, "hash_ids": [0, 1]}\n' * 2
    )
    said = _run(BENCHMARKS / "sweep_speed.py", trace, "--cells", "8", "--runs", "1")
    assert "the tables are the same bytes" in said


def test_memory_growth() -> None:
    said = _run(BENCHMARKS / "memory_growth.py", "--requests", "320", "--only", "curve,untimed")
    assert said.count("\n| curve | ") == said.count("\n| untimed | ") == 2


def test_plan_check(tmp_path: Path) -> None:
    trace = tmp_path / "t.jsonl"
    lines = (BENCHMARKS.parent / "data" / "agents.jsonl").read_text().splitlines(keepends=True)
    trace.write_text("".join(lines[:300]))
    set_l1 = ("--set", "tiers.l1=60000tokens")
    said = _run(BENCHMARKS / "plan_check.py", trace, *set_l1, "--l2", "4GiB", "--l3", "0")
    assert "met (0.00%)" in said
    assert said.count("\n| ") == 4
