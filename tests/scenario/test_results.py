"""The result folder: whole or not there, the same bytes each time, and no foreign file touched."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from hicache.errors import InputError
from scenario.parquet import ParquetError, ParquetWriter
from scenario.records import Scenario, dump_toml
from scenario.results import check_target, load_result, summary_text, write_result

SUMMARY = {"requests": 2, "ttft_ms": {"p50": 1 / 3, "mean": None}, "warnings": ["one"]}
ROWS = {"arrival_ns": [0, 10], "ttft_ms": [0.25, None], "reason": ["", "aborted"]}
TEXT = dump_toml(Scenario())


def write(folder: Path, **options: object) -> str:
    return write_result(folder, SUMMARY, ROWS, TEXT, **options)  # pyright: ignore[reportArgumentType]


def contents(folder: Path) -> dict[str, bytes]:
    return {file.name: file.read_bytes() for file in sorted(folder.iterdir())}


def test_a_result_is_read_as_it_was_written(tmp_path: Path) -> None:
    place = write(tmp_path / "deep" / "down")
    assert place == str(tmp_path / "deep" / "down")
    result = load_result(place)
    assert result.summary == {
        "requests": 2,
        "ttft_ms": {"p50": 0.333333333, "mean": None},
        "warnings": ["one"],
    }
    assert result.scenario_text == TEXT
    rows = result.requests()
    assert rows["arrival_ns"].tolist() == [0, 10]
    assert rows["ttft_ms"].isna().tolist() == [False, True]
    assert rows["reason"].tolist() == ["", "aborted"]


def test_the_same_result_has_the_same_bytes(tmp_path: Path) -> None:
    write(tmp_path / "one")
    with ParquetWriter.start() as writer:
        write(tmp_path / "two", writer=writer)
    assert contents(tmp_path / "one") == contents(tmp_path / "two")
    assert list(contents(tmp_path / "one")) == ["requests.parquet", "scenario.toml", "summary.json"]


def test_bytes_do_not_depend_on_the_hash_seed(tmp_path: Path) -> None:
    code = (
        "import sys; from scenario.results import write_result\n"
        "from scenario.parquet import ParquetWriter\n"
        "words = ['a', 'b', 'c'] * 5\n"
        "with ParquetWriter.start() as writer:\n"
        "    write_result(sys.argv[1], {'z': 1, 'a': 0.1}, {'w': words}, '', writer=writer)"
    )
    for seed in ("1", "2"):
        path = os.pathsep.join(filter(None, sys.path))
        env = {**os.environ, "PYTHONPATH": path, "PYTHONHASHSEED": seed}
        subprocess.run([sys.executable, "-c", code, str(tmp_path / seed)], check=True, env=env)
    assert contents(tmp_path / "1") == contents(tmp_path / "2")


def test_extra_files_by_content_and_by_function(tmp_path: Path) -> None:
    def record(path: str) -> None:
        Path(path).write_bytes(b"\x01")

    write(tmp_path / "r", extras={"timeline.json": "[]", "completions.bin": record})
    assert contents(tmp_path / "r")["timeline.json"] == b"[]"
    assert contents(tmp_path / "r")["completions.bin"] == b"\x01"
    # An older result goes with everything in it.
    write(tmp_path / "r")
    assert "timeline.json" not in contents(tmp_path / "r")
    with pytest.raises(AssertionError):
        write(tmp_path / "r", extras={"notes.txt": ""})
    assert os.listdir(tmp_path) == ["r"]


def test_an_older_result_and_an_empty_folder_are_replaced(tmp_path: Path) -> None:
    (tmp_path / "r").mkdir()
    write(tmp_path / "r")
    write_result(tmp_path / "r", {"requests": 9}, ROWS, TEXT)
    assert load_result(tmp_path / "r").summary == {"requests": 9}
    assert os.listdir(tmp_path) == ["r"]


@pytest.mark.parametrize("foreign", ["thesis.tex", ".git", "summary.json", "scenario.toml"])
def test_a_folder_with_anything_else_is_left_alone(tmp_path: Path, foreign: str) -> None:
    folder = tmp_path / "mine"
    folder.mkdir()
    (folder / foreign).write_text("precious", encoding="utf-8")
    for attempt in (check_target, write):
        with pytest.raises(InputError, match=f"mine holds {foreign}, which belongs to no result"):
            attempt(folder)
    assert contents(folder) == {foreign: b"precious"}
    assert os.listdir(tmp_path) == ["mine"]


def test_a_foreign_file_or_folder_beside_a_result_protects_it(tmp_path: Path) -> None:
    write(tmp_path / "r")
    (tmp_path / "r" / "completions.d").mkdir()
    with pytest.raises(InputError, match=r"r holds completions\.d"):
        write(tmp_path / "r")
    assert load_result(tmp_path / "r").summary["requests"] == 2


def test_places_where_no_folder_can_be(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x", encoding="utf-8")
    with pytest.raises(InputError, match="file is a file; a result is a folder"):
        write(tmp_path / "file")
    with pytest.raises(InputError, match="file is a file, so no result folder can be made in it"):
        write(tmp_path / "file" / "r")
    check_target(tmp_path / "new" / "r")
    assert os.listdir(tmp_path) == ["file"]


def test_a_link_to_a_result_stays_a_link(tmp_path: Path) -> None:
    write(tmp_path / "real")
    (tmp_path / "link").symlink_to("real")
    write_result(tmp_path / "link", {"requests": 9}, ROWS, TEXT)
    assert (tmp_path / "link").is_symlink()
    assert load_result(tmp_path / "real").summary == {"requests": 9}


class Failed(Exception):
    pass


def fail(path: str) -> None:
    Path(path).write_text("half", encoding="utf-8")
    raise Failed


def interrupt(path: str) -> None:
    raise KeyboardInterrupt


def no_space(path: str) -> None:
    raise OSError(28, "No space left on device")


@pytest.mark.parametrize(
    ("writer", "error"),
    [(fail, Failed), (interrupt, KeyboardInterrupt), (no_space, InputError)],
)
def test_a_failure_leaves_what_was_there(
    tmp_path: Path, writer: object, error: type[BaseException]
) -> None:
    with pytest.raises(error):
        write(tmp_path / "r", extras={"timeline.json": writer})
    assert os.listdir(tmp_path) == []
    write(tmp_path / "r")
    before = contents(tmp_path / "r")
    with pytest.raises(error):
        write(tmp_path / "r", extras={"timeline.json": writer})
    assert contents(tmp_path / "r") == before
    assert os.listdir(tmp_path) == ["r"]


def test_rows_that_cannot_be_written_leave_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("scenario.parquet._attempt", lambda payload, path: b"OSError: disk full")
    with pytest.raises(ParquetError, match="disk full"):
        write(tmp_path / "r")
    with pytest.raises(ValueError, match="column 'b' has 1 rows"):
        write_result(tmp_path / "r", {}, {"a": [1, 2], "b": [1]}, "")
    assert os.listdir(tmp_path) == []


def test_a_summary_has_one_form() -> None:
    summary = {
        "z": 0.1 + 0.2,
        "a": np.float64(2 / 3),
        "n": np.int64(3),
        "list": (1, 2.5),
        "none": float("nan"),
        "much": float("inf"),
        "large": 12_345_678_901_234,
        "unicode": "µs",
    }
    text = summary_text(summary)
    assert list(json.loads(text)) == list(summary)
    assert json.loads(text) == {
        "z": 0.3, "a": 0.666666667, "n": 3, "list": [1, 2.5], "none": None, "much": None,
        "large": 12_345_678_901_234, "unicode": "µs",
    }  # fmt: skip
    assert text.endswith("}\n")
    with pytest.raises(TypeError, match="cannot hold a object"):
        summary_text({"a": object()})


def test_what_is_no_result_says_which_file_is_wrong(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"is no result folder: summary\.json: No such file"):
        load_result(tmp_path)
    (tmp_path / "summary.json").write_text("{", encoding="utf-8")
    (tmp_path / "scenario.toml").write_text("", encoding="utf-8")
    with pytest.raises(InputError, match=r"summary\.json: not valid JSON"):
        load_result(tmp_path)
