"""`hicache validate` and `hicache learning` as a user types them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from cli_helpers import REPOSITORY, hicache

SCENARIO = REPOSITORY / "data" / "demo.toml"
RUN = REPOSITORY / "benchmarks" / "hw" / "results" / "h200-2026-11-29" / "agents-8b"


def test_a_recorded_run_of_the_h200_is_validated(tmp_path: Path) -> None:
    done = hicache(
        "validate", "--runs", RUN, "--truth", "record", "--no-causes", "--limits", "usual",
        "--out", "out", cwd=tmp_path,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "TTFT mean, ms" in done.stdout
    assert "every request had its tokens from the same sources" in done.stdout
    found = json.loads((tmp_path / "out" / "validation.json").read_text())
    # With what the H200 measured, the simulator's schedule is that of the H200.
    assert found["held"] is True
    for name in ("ttft_mean", "ttft_p50", "ttft_p90", "throughput"):
        assert abs(found[f"{name}_error_percent"]) < 0.5, name
    assert (tmp_path / "out" / "validation.html").read_text().startswith("<!doctype html>")


def test_what_was_learned_in_a_recorded_run_is_shown(tmp_path: Path) -> None:
    done = hicache("learning", RUN, "--out", "out", "-q", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stdout == "out\n"
    assert (tmp_path / "out" / "learning.png").exists()


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        (("validate",), "no scenario was given"),
        (("validate", "none.toml"), "none.toml: No such file"),
        (("validate", "--runs", "none"), "none is no result folder"),
        (("validate", "--runs", RUN, "--limits", "usally"), "no known limits"),
        (("validate", "--runs", RUN, "--set", "seed=3"), "seed cannot be changed"),
        (("validate", "--runs", RUN, "--profile", "h100"), "no known machine"),
        (("learning", "none.toml"), "none.toml: No such file"),
        (("learning", SCENARIO, "--set", "ranks.tp=2"), "ranks.tp is 2: this is a comparison of"),
        (("learning", RUN, "--set", "restore.policy=always"), "restore.policy cannot be changed"),
    ],
)
def test_bad_input_is_one_line_and_exit_code_2(arguments, error: str, tmp_path: Path) -> None:
    done = hicache(*arguments, cwd=tmp_path)
    assert done.returncode == 2, done.stdout + done.stderr
    assert error in done.stderr
    assert done.stderr.startswith("hicache: error: ")
    assert done.stderr.count("\n") == 1
    assert not list(tmp_path.iterdir())
