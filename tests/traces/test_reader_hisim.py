"""HiSim collections: token ids, the length that was really answered, the prefix really hit."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from recorded_helpers import check_rows, opened, read, read_skipping, refusal, rows_of, write

from traces.hisim import HiSimReader

READER = HiSimReader()
ROW: dict[str, Any] = {
    "rid": "21e5",
    "timestamp": 732.25,
    "output_length": 4,
    "input_length": 3,
    "input_ids": [9, 8, 7],
    "output_ids": [1, 2, 3, 4],
    "queue_end": 732.5,
    "final_prefix_cache_len": 2,
}


def lines(*rows: dict[str, Any]) -> str:
    return "".join(json.dumps(row) + "\n" for row in rows)


def test_a_request_keeps_its_ids_and_the_prefix_that_was_hit(tmp_path: Path) -> None:
    rows = read(READER, write(tmp_path / "a", lines(ROW, {**ROW, "timestamp": 733})))
    check_rows(rows, 1)
    assert [row.timestamp for row in rows] == [732_250, 733_000]
    assert rows[0].hash_ids == [9, 8, 7]
    assert rows[0].output_ids == [1, 2, 3, 4]
    assert [row.cached_tokens for row in rows] == [2, 2]


def test_created_time_goes_before_timestamp_and_the_older_hit_length_counts(
    tmp_path: Path,
) -> None:
    row = {**ROW, "created_time": 1.5, "final_device_hit_len": 3}
    del row["final_prefix_cache_len"]
    (found,) = read(READER, write(tmp_path / "a", lines(row)))
    assert (found.timestamp, found.cached_tokens) == (1500, 3)
    del row["final_device_hit_len"]
    (found,) = read(READER, write(tmp_path / "b", lines({**row, "queue_end": 2})))
    assert found.cached_tokens == -1


def test_an_answer_that_ended_early_has_the_length_of_its_ids(tmp_path: Path) -> None:
    rows = lines({**ROW, "output_length": 1024}, {**ROW, "output_ids": [], "output_length": 7})
    stream = opened(READER, write(tmp_path / "a", rows))
    first, second = rows_of(stream)
    assert (first.output_length, first.output_ids) == (4, [1, 2, 3, 4])
    assert (second.output_length, second.output_ids) == (7, None)
    assert stream.notes[0].startswith("1 answers have another number of output_ids")


BAD: dict[str, tuple[dict[str, Any], str]] = {
    "unfinished": (
        {"input_length": 0, "input_ids": [], "timestamp": 733},
        "input_length: expected int >= 1",
    ),
    "ids": ({"input_length": 4}, "input_ids: 3 ids do not match input_length 4"),
    "hit": (
        {"final_prefix_cache_len": 4},
        "final_prefix_cache_len: 4 tokens are more than input_length 3",
    ),
    "negative hit": ({"final_prefix_cache_len": -1}, "final_prefix_cache_len: expected int >= 0"),
    "no time": ({"timestamp": None}, "timestamp: is missing; the rows before have it"),
    "64 bits": ({"input_ids": [1, 2**63, 3]}, "input_ids[1]: expected int <="),
    "text": ({"input_ids": "1 2 3"}, "input_ids: expected array, got str"),
}


@pytest.mark.parametrize("name", BAD)
def test_a_malformed_request_is_one_error_or_is_left_out(tmp_path: Path, name: str) -> None:
    change, expected = BAD[name]
    path = write(tmp_path / "a", lines(ROW, {**ROW, **change}, ROW))
    assert refusal(READER, path).startswith(f"FILE, line 2, {expected}")
    rows, bad = read_skipping(READER, path)
    assert (len(rows), bad.count) == (2, 1)


def test_only_hisim_requests_are_recognised() -> None:
    assert READER.recognises(lines(ROW).encode()[:95])
    assert not READER.recognises(b'{"input_ids": [1, 2], "input_tok_ids": []}')
    assert not READER.recognises(b'{"timestamp": 0, "input_length": 1, "hash_ids": [0]}')
    assert not READER.recognises(b'{"event": "request.finished", "rid": "a", "obj": {}}')
