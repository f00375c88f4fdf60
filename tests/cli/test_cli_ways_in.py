"""The ways into a replay: the command, its help, standard input, `python -m sim replay`."""

from __future__ import annotations

import gzip
import json
import sys
from pathlib import Path

import pytest
from cli_helpers import REPOSITORY, RESULT_FILES, files_under, hicache

from report.table import print_summary


def test_help_teaches(tmp_path: Path) -> None:
    done = hicache("replay", "--help", cwd=tmp_path)
    assert done.returncode == 0
    said = " ".join(done.stdout.split())
    assert "Example: hicache replay" in said
    for size in ("40GiB", "8000000tokens", "6000pages", "2x", "0 (none)"):
        assert size in said
    for option in ("--scenario", "--l1", "--l2", "--l3", "--policy", "--page-size", "--speed"):
        assert option in said
    assert ".gz" in said
    assert done.stderr == ""


def test_without_arguments_it_shows_its_help(tmp_path: Path) -> None:
    done = hicache(cwd=tmp_path)
    assert "replay" in done.stdout + done.stderr
    assert hicache("--version", cwd=tmp_path).stdout.startswith("hicache 0.")


def test_the_table_says_what_happened(tmp_path: Path, small_replay: tuple[str, ...]) -> None:
    loud = [each for each in small_replay if each != "--quiet"]
    done = hicache(*loud, "--out", "out", cwd=tmp_path)
    assert done.returncode == 0
    assert done.stderr == ""
    summary = json.loads((tmp_path / "out" / "summary.json").read_text())
    for tier, label in (("device", "L1"), ("host", "L2"), ("storage", "L3")):
        tokens = summary["cached_tokens_total"][tier]
        assert tokens > 0, "the small trace uses every tier"
        row = next(row for row in done.stdout.splitlines() if row.strip().startswith(label))
        assert f"{tokens:,}" in row
    for word in ("TTFT", "TPOT", "end to end", "p99", "ceiling", "GiB/s", "estimates", "out"):
        assert word in done.stdout
    assert sorted(files_under(tmp_path / "out")) == sorted(RESULT_FILES)


def test_no_number_of_a_long_trace_is_cut_off_on_a_terminal_of_80_columns(
    tmp_path: Path,
    small_replay: tuple[str, ...],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert hicache(*small_replay, "--out", "out", cwd=tmp_path).returncode == 0
    summary = json.loads((tmp_path / "out" / "summary.json").read_text())
    # As after a day of traffic rather than three minutes.
    for totals in (summary["cached_tokens_total"], summary["evicted_tokens_total"]):
        totals.update({tier: tokens + 1_234_567_890 for tier, tokens in totals.items()})
    summary["computed_tokens"] += 1_234_567_890
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setenv("FORCE_COLOR", "1")  # rich then takes the output for a terminal
    print_summary(summary, "out")
    said = capsys.readouterr().out
    assert "…" not in said
    for totals in (summary["cached_tokens_total"], summary["evicted_tokens_total"]):
        for tokens in totals.values():
            assert f"{tokens:,}" in said
    assert f"{summary['computed_tokens']:,}" in said


def test_quiet_prints_the_folder_and_keeps_the_warnings(
    tmp_path: Path, small_replay: tuple[str, ...]
) -> None:
    done = hicache(*small_replay, "--out", "out", "--quiet", cwd=tmp_path)
    assert (done.returncode, done.stdout) == (0, "out\n")
    assert all(line.startswith("warning: ") for line in done.stderr.splitlines())
    written = json.loads((tmp_path / "out/summary.json").read_text())["warnings"]
    assert len(done.stderr.splitlines()) == len(written)


def test_without_out_the_result_goes_to_results(
    tmp_path: Path, small_replay: tuple[str, ...]
) -> None:
    assert hicache(*small_replay, cwd=tmp_path).returncode == 0
    (folder,) = (tmp_path / "results").iterdir()
    assert folder.name.startswith("small-")


@pytest.mark.parametrize("pack", [bytes, gzip.compress], ids=["plain", "gzip"])
def test_a_dash_reads_standard_input(
    tmp_path: Path, small_trace: Path, small_replay: tuple[str, ...], pack: type[bytes]
) -> None:
    _, _, *options = small_replay
    done = hicache(
        "replay",
        "-",
        *options,
        "--out",
        "piped",
        cwd=tmp_path,
        stdin=pack(small_trace.read_bytes()),
    )
    assert done.returncode == 0, done.stderr
    assert hicache(*small_replay, "--out", "read", cwd=tmp_path).returncode == 0
    name = "requests.parquet"
    assert (tmp_path / "piped" / name).read_bytes() == (tmp_path / "read" / name).read_bytes()


def test_python_m_sim_replay_is_another_way_in(
    tmp_path: Path, small_replay: tuple[str, ...]
) -> None:
    assert hicache(*small_replay, "--out", "first", cwd=tmp_path).returncode == 0
    module = (sys.executable, "-m", "sim")
    again = hicache(
        "replay", tmp_path / "first" / "scenario.toml", "--out", tmp_path / "second",
        cwd=REPOSITORY, command=module,
    )  # fmt: skip
    assert again.returncode == 0, again.stderr
    assert "TTFT" in again.stdout
    assert files_under(tmp_path / "first") == files_under(tmp_path / "second")
    wrong = hicache(
        "replay", tmp_path / "first" / "scenario.toml", "--set", "tiers.l2=0", "--out",
        tmp_path / "third", cwd=REPOSITORY, command=module,
    )  # fmt: skip
    assert wrong.returncode == 2
    assert "tiers.l2 is 0" in wrong.stderr
    assert wrong.stderr.count("\n") == 1
    assert not (tmp_path / "third").exists()
