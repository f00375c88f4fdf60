"""LMCache's look-up logs: hashes of any size become ids, chunk sizes come from the file."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from recorded_helpers import (
    check_mutations,
    check_rows,
    opened,
    read,
    read_skipping,
    refusal,
    rows_of,
    write,
)

from hicache.errors import InputError
from traces.lmcache import LMCacheReader
from traces.rows import Layout, ReadOptions

READER = LMCacheReader()
LONG = "0x" + "ab" * 32


def look_up(hashes: list[Any], tokens: int, seconds: float = 1711929600.123, **more: Any) -> str:
    row = {
        "timestamp": seconds,
        "request_id": f"req-{seconds}",
        "model_name": "DeepSeek-V3",
        "chunk_size": 128,
        "seq_len": tokens,
        "dtypes": ["float8_e4m3fn"],
        "shapes": [[32, 128, 128]],
        "chunk_hashes": hashes,
    }
    return json.dumps(row | more)


LINES = [
    look_up(["0xff", LONG], 300),
    look_up(["0xff", LONG, 1 << 70], 384, 1711929601.5),
    look_up([], 100, 1711929602),
]


def test_hashes_become_ids_in_order_of_appearance(tmp_path: Path) -> None:
    stream = opened(READER, write(tmp_path / "t", "\n".join(LINES)))
    rows = rows_of(stream)
    assert stream.layout == Layout(128)
    assert [r.hash_ids for r in rows] == [[0, 1], [0, 1, 2], []]
    assert [r.timestamp for r in rows] == [1711929600123, 1711929601500, 1711929602000]
    assert [(r.input_length, r.output_length) for r in rows] == [(300, 0), (384, 0), (100, 0)]
    assert "no answers" in stream.notes[0]
    assert len(stream.notes) == 1
    check_rows(rows, 128)
    assert rows_of(stream) == rows


def test_models_share_nothing_and_repeats_are_counted(tmp_path: Path) -> None:
    lines = [LINES[0], LINES[0], look_up(["0xff"], 128, 1711929603, model_name="other")]
    stream = opened(READER, write(tmp_path / "t", "\n".join(lines)))
    assert [r.hash_ids for r in rows_of(stream)] == [[0, 1], [0, 1], [2]]
    assert any("of 2 models" in note for note in stream.notes)
    assert any("1 look-ups are for the same request" in note for note in stream.notes)


def test_the_chunk_size_is_the_files(tmp_path: Path) -> None:
    path = write(tmp_path / "t", "\n".join(LINES))
    assert len(read(READER, path, ReadOptions(block_tokens=128))) == 3
    with pytest.raises(InputError, match="block size is 64, but the log says chunk_size 128"):
        opened(READER, path, ReadOptions(block_tokens=64))
    bare = '{"timestamp": 1, "seq_len": 600, "chunk_hashes": ["a", "b"]}'
    stream = opened(READER, write(tmp_path / "bare", bare))
    assert stream.layout == Layout(256)
    assert "2 ids do not match the length 600" in refusal(
        READER, tmp_path / "bare", ReadOptions(block_tokens=64)
    )


BAD = {
    "another chunk size": (look_up(["1"], 256, chunk_size=256), "256 is not the 128 of the log"),
    "too many hashes": (look_up(["1", "2", "3"], 200), "3 ids do not match the length 200"),
    "a float hash": (look_up([1.5], 128), "chunk_hashes[0]: expected int | str, got float"),
    "an empty hash": (look_up([""], 128), "chunk_hashes[0]: expected str of length >= 1"),
    "no tokens": (look_up([], 0), "seq_len: expected int >= 1"),
    "negative": (look_up([], -3), "seq_len: expected int >= 1"),
    "no time": (look_up(["1"], 128).replace("timestamp", "time"), "timestamp: is missing"),
    "a date": (look_up(["1"], 128, timestamp="2026-05-07"), "timestamp: expected int | float"),
    "truncated": (look_up(["1"], 128)[:-9], "the JSON is cut off"),
}


@pytest.mark.parametrize("kind", BAD)
def test_a_bad_line_is_named_or_skipped(tmp_path: Path, kind: str) -> None:
    bad_line, reason = BAD[kind]
    path = write(tmp_path / "t", f"{LINES[0]}\n{bad_line}\n{LINES[1]}\n")
    message = refusal(READER, path)
    assert message.startswith("FILE, line 2")
    assert reason in message
    rows, bad = read_skipping(READER, path)
    assert [r.hash_ids for r in rows] == [[0, 1], [0, 1, 2]]
    assert (bad.count, bad.listed[0].line) == (1, 2)


@pytest.mark.parametrize("seed", range(25))
def test_mutated_lines_are_read_or_refused(tmp_path: Path, seed: int) -> None:
    check_mutations(READER, tmp_path / "t", [each.encode() for each in LINES[:2]], seed, b"")
