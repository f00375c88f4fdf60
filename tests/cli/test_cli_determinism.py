"""The same command writes the same bytes under any hash seed; a record repeats every decision."""

from __future__ import annotations

import json
from pathlib import Path

import pandas
import pytest
from cli_helpers import SMALL_TIERS, files_under, hicache

KEPT = ("completions.jsonl", "requests.parquet", "scenario.toml", "summary.json", "timeline.json")


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory, small_trace: Path) -> Path:
    """The result folder of a run that kept everything."""
    folder = tmp_path_factory.mktemp("recorded")
    done = hicache(
        "replay", small_trace, *SMALL_TIERS, "--quiet", "--timeline", "--save-record",
        "--out", "result", cwd=folder, env={"PYTHONHASHSEED": "0"},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return folder / "result"


@pytest.mark.parametrize("hash_seed", ["0", "1", "random"])
def test_the_same_command_writes_the_same_bytes(
    tmp_path: Path, recorded: Path, small_replay: tuple[str, ...], hash_seed: str
) -> None:
    done = hicache(
        *small_replay, "--timeline", "--save-record", "--out", "again",
        cwd=tmp_path, env={"PYTHONHASHSEED": hash_seed},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert tuple(files_under(recorded)) == KEPT
    assert files_under(tmp_path / "again") == files_under(recorded)


def test_a_record_replays_to_the_same_rows(tmp_path: Path, recorded: Path) -> None:
    done = hicache(
        "replay", "--record", recorded, "--save-record", "--timeline", "--quiet", "--out", "again",
        cwd=tmp_path,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    first, again = files_under(recorded), files_under(tmp_path / "again")
    for name in KEPT:
        if name != "summary.json":
            assert again[name] == first[name]
    # The machine was not asked, so it has nothing to say of itself.
    summaries = [json.loads(each["summary.json"]) for each in (first, again)]
    for summary in summaries:
        del summary["warnings"], summary["estimates"]
    assert summaries[0] == summaries[1]


def _tampered(recorded: Path, folder: Path, kind: str, place: int) -> tuple[Path, int]:
    """A copy of the result whose record says something else of the first operation of `kind` from
    the 50th on; returns its number.
    """
    copied = folder / "tampered"
    copied.mkdir()
    for name, content in files_under(recorded).items():
        (copied / name).write_bytes(content)
    record = copied / "completions.jsonl"
    lines = record.read_text().splitlines()
    for at, each in enumerate(lines):
        items = json.loads(each)
        if items[0] == "done" and items[1] >= 50 and items[2][0] == kind:
            items[2][place] += 1
            lines[at] = json.dumps(items)
            record.write_text("".join(f"{each}\n" for each in lines))
            return copied, items[1]
    raise AssertionError(f"the record holds no {kind}")


@pytest.mark.parametrize(("kind", "place"), [("Copy", 2), ("Decode", 3), ("Prefill", 2)])
def test_a_tampered_record_is_refused_at_the_operation(
    tmp_path: Path, recorded: Path, kind: str, place: int
) -> None:
    copied, number = _tampered(recorded, tmp_path, kind, place)
    before = files_under(tmp_path)
    done = hicache("replay", "--record", copied, "--out", "again", cwd=tmp_path)
    assert done.returncode == 2
    assert done.stdout == ""
    assert done.stderr.startswith("hicache: error: ")
    assert done.stderr.count("\n") == 1
    assert f"operation {number} was {kind}(" in done.stderr
    assert files_under(tmp_path) == before


@pytest.mark.parametrize("summary", ["kept", "never written"])
def test_a_record_that_was_cut_off_is_replayed_to_its_end(
    tmp_path: Path, recorded: Path, summary: str
) -> None:
    copied = tmp_path / "cut"
    copied.mkdir()
    for name, content in files_under(recorded).items():
        (copied / name).write_bytes(content)
    if summary == "never written":  # as a run that was killed leaves it
        (copied / "summary.json").unlink()
        (copied / "requests.parquet").unlink()
    lines = (recorded / "completions.jsonl").read_text().splitlines()
    cut = "\n".join(lines[: len(lines) // 2])
    (copied / "completions.jsonl").write_text(cut[:-9])
    done = hicache("replay", "--record", copied, "--out", "again", cwd=tmp_path)
    assert done.returncode == 1, done.stderr
    assert "cut off" in done.stderr
    assert "INTERRUPTED" in done.stdout
    told = json.loads((tmp_path / "again" / "summary.json").read_text())
    assert told["interrupted"] is True
    assert any(each.startswith("cut_off: ") for each in told["warnings"])
    whole = pandas.read_parquet(recorded / "requests.parquet").set_index("request")
    rows = pandas.read_parquet(tmp_path / "again" / "requests.parquet").set_index("request")
    assert 0 < len(rows) < len(whole)
    pandas.testing.assert_frame_equal(rows, whole.loc[rows.index], check_dtype=False)


def test_a_record_belongs_to_its_scenario(tmp_path: Path, recorded: Path) -> None:
    done = hicache("replay", "--record", recorded, "--l3", "0", "--out", "again", cwd=tmp_path)
    assert done.returncode == 2
    assert "another scenario" in done.stderr
    assert not (tmp_path / "again").exists()
