"""`hicache curve` as a user runs it: its file, its table, what it refuses, Ctrl-C."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from pathlib import Path

import pytest
from cli_helpers import COMMAND, files_under, hicache, line, write_lines

SHARED = Path(__file__).resolve().parents[3] / "shared"
CONVERSATION = SHARED / "traces" / "mooncake_conversation.jsonl"
GOLDENS = SHARED / "goldens" / "mooncake_conversation.json"


@pytest.fixture
def tiny(tmp_path: Path) -> Path:
    """Three prompts of three blocks, the last partly filled."""
    rows = [line(ids, 1100, time) for time, ids in enumerate(([0, 1, 2], [0, 1, 3], [0, 1, 2]))]
    return write_lines(tmp_path / "tiny.jsonl", *rows)


def curve(tmp_path: Path, *arguments: str | Path) -> subprocess.CompletedProcess[str]:
    return hicache("curve", *arguments, cwd=tmp_path)


@pytest.mark.skipif(not GOLDENS.exists(), reason="needs ../shared/traces and ../shared/goldens")
def test_the_golden_counts_in_one_run(tmp_path: Path) -> None:
    golden = json.loads(GOLDENS.read_text())
    half = golden["last_half_token_weighted"]
    done = curve(
        tmp_path, CONVERSATION, "--page-size", "512", "--out", "c.json",
        "--optimum", ",".join(half["lru"]),
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    found = json.loads((tmp_path / "c.json").read_text())
    at = dict(zip(found["capacity_pages"], found["hit_pages"], strict=True))
    capacities = sorted(at)
    for capacity, hits in golden["leaf_lru_hit_blocks"].items():
        wanted = 10**9 if capacity == "inf" else int(capacity)
        # As a reader of the file would: the last capacity that is not larger.
        assert at[max(each for each in capacities if each <= wanted)] == hits
    assert found["method"] == "exact"
    assert found["trace"]["requests"] == golden["requests"]
    keys = {"lru": "lru", "may_bypass": "optimal_with_bypass", "must_insert": None}
    keys["must_insert"] = "optimal_forced_insert"
    for row in found["optimum"]:
        for ours, theirs in keys.items():
            assert row[ours]["last_half"]["hit_tokens"] == half[theirs][str(row["capacity_pages"])]
        assert row["lru"]["last_half"]["of_tokens"] == half["total_tokens"]
    assert "LRU gets 13.93 of the 35.51 points that can be had" in done.stdout


def test_the_file_the_table_and_the_plots(tmp_path: Path, tiny: Path) -> None:
    asked = (
        tiny, "--page-size", "512", "--at", "2", "--optimum", "3,curve", "--tiers", "2,3",
        "--model", "Qwen3-8B",
    )  # fmt: skip
    done = curve(tmp_path, *asked, "--out", "c.json", "--plot", "c.svg")
    assert done.returncode == 0, done.stderr
    assert sorted(files_under(tmp_path)) == ["c.json", "c.svg", "tiny.jsonl"]
    found = json.loads((tmp_path / "c.json").read_text())
    # Blocks 0 and 1 come back at once; block 2 when 0, 1 and 3 have been asked for, too.
    assert found["capacity_pages"] == [0, 1, 2, 3, 4]
    assert found["hit_pages"] == [0, 2, 4, 4, 5]
    assert found["hit_tokens"] == [0, 1024, 2048, 2048, 2048 + 1100 - 1024]
    assert found["optimum"][0]["may_bypass"]["hit_pages"] == 5
    assert found["optimum"][0]["must_insert"]["hit_pages"] == 4
    assert found["tiers"]["hit_pages"] == [4, 0]
    assert "4 44.44 % 2 (144 MiB) asked for" in " ".join(done.stdout.split())
    assert done.stdout.splitlines()[-2:] == ["curve: c.json", "plot: c.svg"]
    assert "<svg" in (tmp_path / "c.svg").read_text()


def test_the_same_bytes_again_and_under_another_hash_seed(tmp_path: Path, tiny: Path) -> None:
    first, again = tmp_path / "first", tmp_path / "again"
    for folder, seed in ((first, "1"), (again, "2")):
        folder.mkdir()
        done = hicache(
            "curve", tiny, "--page-size", "64", "--out", "c.json", "--plot", "c.png",
            "--optimum", "30,curve", cwd=folder, env={"PYTHONHASHSEED": seed},
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
    assert files_under(first) == files_under(again)
    done = curve(again, tiny, "--page-size", "64", "--out", "c.json", "--optimum", "30,curve")
    assert done.returncode == 0, "what the command made, it replaces"
    assert files_under(first) == files_under(again)


def test_standard_input_and_output(tmp_path: Path, tiny: Path) -> None:
    done = hicache(
        "curve", "-", "--page-size", "512", "--out", "-", cwd=tmp_path, stdin=tiny.read_bytes()
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["hit_pages"] == [0, 2, 4, 4, 5]
    assert "standard input: 3 requests" in done.stderr


def test_a_sample_says_what_it_is(tmp_path: Path, tiny: Path) -> None:
    done = curve(tmp_path, tiny, "--page-size", "64", "--sample", "0.1", "--out", "c.json")
    assert done.returncode == 0, done.stderr
    found = json.loads((tmp_path / "c.json").read_text())
    assert found["method"] == "sampled: one page in 10"
    assert len(found["standard_error_pages"]) == len(found["hit_pages"])
    assert "take a larger sample" in done.stdout
    # The ceiling is known exactly, and no estimate exceeds it.
    assert max(found["hit_pages"]) <= 16 + 18


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--page-size", "0"], "page size is 0"),
        (["--page-size", "100"], "does not divide"),
        (["--sample", "2"], "sample is 2"),
        (["--sample", "0.1", "--optimum", "5"], "the optimum needs every page"),
        (["--at", "5GiB"], "give --model"),
        (["--at", "0"], "--at is 0: it must be at least one page"),
        (["--optimum", "5x"], "--optimum is 5x"),
        (["--optimum", "5,,6"], "--optimum is ''"),
        (["--outputs", "cached"], "outputs is cached while pages is partial"),
        (["--relation", "inclusive"], "--relation says how --tiers work together"),
        (["--tiers", "5", "--relation", "exclusiv"], "did you mean exclusive?"),
        (["--plot", "c.pdf"], "must end in .png or .svg"),
        (["--out", "c.svg", "--plot", "c.svg"], "they are two files"),
        (["--out", "no/c.json"], "there is no folder no"),
        (["--out", "tiny.jsonl"], "is the trace itself"),
        (["--out", "notes.txt"], "was not made by hicache curve; --force replaces it"),
        (["--model", "Qwen9"], "Qwen9"),
    ],
)
def test_bad_input_is_one_line_and_changes_nothing(
    tmp_path: Path, tiny: Path, arguments: list[str], said: str
) -> None:
    (tmp_path / "notes.txt").write_text("mine\n")
    before = files_under(tmp_path)
    done = curve(tmp_path, "tiny.jsonl", *arguments)
    assert done.returncode == 2
    assert done.stdout == ""
    assert done.stderr.count("\n") == 1
    assert done.stderr.startswith("hicache: error: ")
    assert said in done.stderr
    assert files_under(tmp_path) == before


def test_help_teaches(tmp_path: Path) -> None:
    done = curve(tmp_path, "--help")
    assert done.returncode == 0
    assert "Example: hicache curve trace.jsonl" in done.stdout
    for option in ("--optimum", "--tiers", "--sample", "--plot", "--hit-cap"):
        assert option in done.stdout


@pytest.mark.skipif(os.name != "posix", reason="sends SIGINT")
def test_ctrl_c_keeps_the_curve_of_what_was_read(tmp_path: Path) -> None:
    """The trace comes from a pipe that stalls; what came before is the result."""
    rows = "".join(f"{line([0, 1, number], 1100, number)}\n" for number in range(2, 20_000))
    with subprocess.Popen(
        [COMMAND, "curve", "-", "--page-size", "512", "--out", "c.json"],
        cwd=tmp_path, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        text=True,
    ) as process:  # fmt: skip
        assert process.stdin is not None
        process.stdin.write(rows)  # a pipe holds 64 KiB: most of it has been read by then
        process.stdin.flush()
        time.sleep(0.5)  # until it waits for more: the pipe stays open
        process.send_signal(signal.SIGINT)
        process.wait(timeout=60)
        process.stdin.close()
        assert process.stderr is not None
        complained = process.stderr.read()
    assert process.returncode == 130, complained
    assert complained == "interrupted: the curve is that of the requests read before\n"
    found = json.loads((tmp_path / "c.json").read_text())
    assert found["interrupted"]
    assert 0 < found["trace"]["requests"] < 20_000
    assert found["trace"]["sha256"] is None
    # Every prompt but the first finds the two blocks that all begin with.
    assert found["hit_pages_all"] == 2 * (found["trace"]["requests"] - 1)
