"""Bad input ends in one clear line on standard error and exit code 2, and leaves nothing behind."""

from __future__ import annotations

import gzip
import sys
from pathlib import Path

import pytest
from cli_helpers import files_under, hicache, line, write_lines

from cli.main import run

GOOD = (line([0, 1], 1000), line([0, 1, 2], 1500, 10))
FAR = 3000  # lines: further than the first piece of a file that is read


def _bad_files(folder: Path) -> None:
    write_lines(folder / "good.jsonl", *GOOD)
    write_lines(folder / "empty.jsonl")
    write_lines(folder / "blank.jsonl", "", "")
    write_lines(folder / "cut.jsonl", GOOD[0], GOOD[1][:25])
    write_lines(folder / "backward.jsonl", line([0], 100, 50), line([0], 100, 49))
    write_lines(folder / "ids.jsonl", GOOD[0], line([0, 1, 2], 1000, 10))
    write_lines(folder / "missing.jsonl", '{"timestamp": 0, "input_length": 10, "hash_ids": [0]}')
    write_lines(folder / "long.jsonl", GOOD[0], line(range(2, 42), 20_000, 10))
    late = [line([0, 1], 1000, time) for time in range(FAR)]
    write_lines(folder / "late.jsonl", *late, line([0, 1], 1000, FAR - 2))
    (folder / "text.txt").write_text("hello\n")
    (folder / "half.jsonl.gz").write_bytes(gzip.compress("\n".join(late).encode())[:-40])
    (folder / "key.toml").write_text('[tiers]\nl4 = "2x"\n')
    (folder / "negative.toml").write_text("[tiers]\nl2 = -5\n")
    (folder / "broken.toml").write_text("[tiers\n")
    (folder / "profile.json").write_text('{"schema": 1}')
    (folder / "foreign").mkdir()
    (folder / "foreign" / "notes.txt").write_text("mine")


# What the user typed after `hicache replay`, and what the one line must say.
CASES = {
    "an unknown key in the scenario": (
        "good.jsonl --scenario key.toml",
        ["key.toml", "tiers.l4", "did you mean tiers.l3?"],
    ),
    "a negative size in the scenario": (
        "good.jsonl --scenario negative.toml",
        ["negative.toml", "tiers.l2 is -5", "negative"],
    ),
    "a scenario that is no TOML": (
        "good.jsonl --scenario broken.toml",
        ["broken.toml", "line 1"],
    ),
    "no such scenario": ("good.jsonl --scenario none.toml", ["none.toml", "No such file"]),
    "an unknown key on the command line": (
        "good.jsonl --set cache.evictoin=lru",
        ["command line", "cache.evictoin", "did you mean cache.eviction?"],
    ),
    "a negative size on the command line": ("good.jsonl --l2 -4GiB", ["tiers.l2", "negative"]),
    "a size without a unit": ("good.jsonl --l2 40", ["tiers.l2 is 40", "of what?", "40GiB"]),
    "a page size that does not divide the block": (
        "good.jsonl --page-size 100",
        ["100", "512", "64 and 128 would"],
    ),
    "a page size of nothing": ("good.jsonl --page-size 0", ["tiers.page_size_tokens is 0"]),
    "an empty trace": ("empty.jsonl", ["empty.jsonl", "empty"]),
    "a trace of blank lines": ("blank.jsonl", ["blank.jsonl", "empty"]),
    "a trace that is not there": ("none.jsonl", ["none.jsonl", "No such file"]),
    "a trace that is a folder": ("foreign", ["foreign", "folder"]),
    "a trace of no known format": ("text.txt", ["text.txt", "mooncake"]),
    "truncated JSON": ("cut.jsonl", ["cut.jsonl, line 2", "cut off"]),
    "a truncated archive": ("half.jsonl.gz", ["half.jsonl.gz", "cut off"]),
    "backward timestamps": ("backward.jsonl", ["backward.jsonl, line 2, timestamp", "49", "50"]),
    "backward timestamps, late in a long file": (
        "late.jsonl",
        [f"late.jsonl, line {FAR + 1}, timestamp"],
    ),
    "a field that is missing": ("missing.jsonl", ["line 1, output_length", "missing"]),
    "hash ids that do not match the length": (
        "ids.jsonl",
        ["ids.jsonl, line 2, hash_ids", "3 ids", "1000"],
    ),
    "another block size": ("good.jsonl --block-size 256", ["line 1, hash_ids", "--block-size 512"]),
    "a prompt larger than L1": (
        "long.jsonl --l1 10000tokens",
        ["prompt of 20000 tokens", "L1", "--l1"],
    ),
    "a prompt larger than L1, untimed": (
        "long.jsonl --l1 10000tokens --untimed",
        ["L1", "--l1"],
    ),
    "an unknown model": ("good.jsonl --model GPT-9", ["GPT-9", "Qwen3-8B", "config.json"]),
    "a model that does not fit": ("good.jsonl --model DeepSeek-V3", ["does not fit", "--l1"]),
    "an unknown profile": ("good.jsonl --profile h300", ["h300", "nvidia-h200"]),
    "a profile that is none": ("good.jsonl --profile profile.json", ["profile.json"]),
    "an unknown preset": ("good.jsonl --preset lru-block", ["lru-block", "block-lru"]),
    "an unknown policy": ("good.jsonl --policy maybe", ["maybe", "threshold"]),
    "an out folder with foreign files": (
        "good.jsonl --out foreign",
        ["foreign", "notes.txt", "not replaced"],
    ),
    "an out folder that is a file": ("good.jsonl --out text.txt", ["text.txt", "file"]),
    "an L3 without an L2": ("good.jsonl --l2 0 --l3 10x", ["tiers.l3", "tiers.l2 is 0"]),
    "a speed of nothing": ("good.jsonl --speed 0", ["trace.speed is 0"]),
    "a rate of next to nothing": (
        "good.jsonl --rate 1e-300",
        ["load.rate is 1e-300", "0.000001 and 1,000,000 a second"],
    ),
    "a rate of far too much": ("good.jsonl --rate 1e300", ["load.rate is 1e+300"]),
    "a page size that is no number": (
        "good.jsonl --page-size abc",
        ["Invalid value for '--page-size'", "'abc' is not a valid int", "hicache replay --help"],
    ),
    "an unknown option": ("good.jsonl --nosuch", ["No such option", "--nosuch"]),
    "an option with a slip": ("good.jsonl --page-sise 16", ["--page-sise", "--page-size"]),
    "an option without its value": ("good.jsonl --out", ["--out", "requires an argument"]),
    "an argument too many": ("good.jsonl more.jsonl", ["unexpected extra argument", "more.jsonl"]),
    "an L1 smaller than a page": (
        "good.jsonl --l1 10tokens",
        ["tiers.l1 is 10tokens", "less than one page", "L1 cannot be switched off"],
    ),
    "an L2 smaller than a page": (
        "good.jsonl --l2 10tokens",
        ["tiers.l2 is 10tokens", "less than one page", "0 to switch the tier off"],
    ),
    "a negative seed": ("good.jsonl --seed -1", ["seed is -1"]),
    "a record that is not there": ("--record foreign", ["foreign", "no result folder"]),
    "no trace at all": ("--l3 10x", ["no trace was given"]),
}


# These go through a process of their own; the others call the command's entry in this one.
IN_FULL = (
    "an unknown key in the scenario",
    "an empty trace",
    "truncated JSON",
    "backward timestamps, late in a long file",
    "a prompt larger than L1",
    "an out folder with foreign files",
)


def _typed(case: str) -> list[str]:
    arguments = CASES[case][0].split()
    return ["replay", *arguments, *([] if "--out" in arguments else ["--out", "out"])]


def _check(case: str, code: int, said: str, complained: str) -> None:
    assert code == 2, complained
    assert said == ""
    assert complained.startswith("hicache: error: ")
    assert complained.count("\n") == 1
    assert complained.endswith("\n")
    for text in CASES[case][1]:
        assert text in complained


@pytest.mark.parametrize("case", CASES)
def test_one_line_exit_code_2_and_nothing_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], case: str
) -> None:
    _bad_files(tmp_path)
    before = files_under(tmp_path)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["hicache", *_typed(case)])
    code = run()
    said = capsys.readouterr()
    _check(case, code, said.out, said.err)
    assert files_under(tmp_path) == before


@pytest.mark.parametrize("case", IN_FULL)
def test_the_same_as_a_process(tmp_path: Path, case: str) -> None:
    here, temporary = tmp_path / "here", tmp_path / "temporary"
    here.mkdir()
    temporary.mkdir()
    _bad_files(here)
    before = files_under(here)
    done = hicache(*_typed(case), cwd=here, env={"TMPDIR": str(temporary)})
    _check(case, done.returncode, done.stdout, done.stderr)
    assert files_under(here) == before
    assert files_under(temporary) == {}


def test_an_old_result_survives_bad_input(tmp_path: Path) -> None:
    _bad_files(tmp_path)
    good = ("replay", "good.jsonl", "--out", "out", "--quiet")
    assert hicache(*good, cwd=tmp_path).returncode == 0
    before = files_under(tmp_path)
    assert hicache("replay", "late.jsonl", "--out", "out", cwd=tmp_path).returncode == 2
    assert files_under(tmp_path) == before
    assert hicache(*good, "--l3", "10x", cwd=tmp_path).returncode == 0
    after = files_under(tmp_path)
    assert after.keys() == before.keys()
    assert after["out/scenario.toml"] != before["out/scenario.toml"]
