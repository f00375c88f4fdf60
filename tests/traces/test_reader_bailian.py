"""Qwen Bailian's traces: parents, sessions, seconds, blocks of 16 tokens."""

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

from traces.bailian import BailianReader
from traces.rows import Layout, ReadOptions

READER = BailianReader()


def turn(chat: int, parent: int, seconds: float, ids: list[int], **changed: Any) -> str:
    row = {
        "chat_id": chat,
        "parent_chat_id": parent,
        "timestamp": seconds,
        "input_length": 16 * len(ids) - 7,
        "output_length": 132,
        "type": "text",
        "turn": 1,
        "hash_ids": ids,
    }
    return json.dumps(row | changed)


CHATS = [
    turn(159, -1, 61.114, [1, 2, 3]),
    turn(7, -1, 61.114, [1, 9]),
    turn(160, 159, 80.5, [1, 2, 3, 4, 5]),
    turn(200, 55, 81, [70]),
    turn(161, 160, 99.25, [1, 2, 3, 4, 5, 6]),
    turn(201, 55, 99.25, [70, 71]),
]


def test_turns_follow_their_parents(tmp_path: Path) -> None:
    stream = opened(READER, write(tmp_path / "t", "\n".join(CHATS) + "\n\n"))
    rows = rows_of(stream)
    assert stream.layout == Layout(16)
    assert [r.timestamp for r in rows] == [61114, 61114, 80500, 81000, 99250, 99250]
    assert [r.after for r in rows] == [-1, -1, 0, -1, 2, -1]
    assert [r.delay for r in rows] == [0, 0, 19386, 0, 18750, 0]
    assert [r.session for r in rows] == ["159", "7", "159", "55", "159", "55"]
    assert rows[2].hash_ids == [1, 2, 3, 4, 5]
    assert (rows[0].input_length, rows[0].output_length) == (41, 132)
    assert any("includes that answer" in note for note in stream.notes)
    assert any("2 later turns name a parent" in note for note in stream.notes)
    check_rows(rows, 16)
    assert rows_of(stream) == rows


def test_a_root_needs_no_parent_field_and_the_last_block_no_id(tmp_path: Path) -> None:
    bare = (
        '{"chat_id": 1, "timestamp": 0, "input_length": 40, "output_length": 0, "hash_ids": [5, 6]}'
    )
    (row,) = read(READER, write(tmp_path / "t", bare))
    assert (row.after, row.hash_ids, row.timestamp) == (-1, [5, 6], 0)
    options = ReadOptions(block_tokens=40)
    assert "hash_ids: 2 ids do not match the length 40" in refusal(READER, tmp_path / "t", options)


def test_a_row_out_of_order_comes_with_the_one_before(tmp_path: Path) -> None:
    stream = opened(READER, write(tmp_path / "t", f"{CHATS[2]}\n{CHATS[0]}\n"))
    assert [r.timestamp for r in rows_of(stream)] == [80500, 80500]
    assert "1 request (first on line 2) had an earlier time" in "".join(stream.notes)


BAD = {
    "negative time": (turn(1, -1, -5, [1]), "timestamp: expected int >= 0"),
    "a time as text": (turn(1, -1, 5, [1], timestamp="5"), "timestamp: expected int | float"),
    "no chat": (turn(1, -1, 5, [1]).replace("chat_id", "chat", 1), "chat_id: is missing"),
    "too few ids": (turn(1, -1, 5, [1], input_length=99), "1 ids do not match the length 99"),
    "zero prompt": (turn(1, -1, 5, [], input_length=0), "input_length: expected int >= 1"),
    "an id of 65 bits": (turn(1, -1, 5, [1 << 64]), "hash_ids[0]: expected int <= 461"),
    "a chat of 65 bits": (turn(1 << 64, -1, 5, [1]), "chat_id: expected int <= 922"),
    "null": (turn(1, -1, 5, [1], hash_ids=None), "hash_ids: expected array, got null"),
    "truncated": (turn(1, -1, 5, [1])[:-3], "the JSON is cut off"),
    "NaN": (turn(1, -1, float("nan"), [1]), "timestamp: is no JSON"),
    "infinite": (turn(1, -1, 5, [1]).replace("5", "1e999", 1), "timestamp: Number out of range"),
    "deep": ('{"chat_id": ' + "[" * 100_000, "chat_id: expected int, got array"),
}


@pytest.mark.parametrize("kind", BAD)
def test_a_bad_line_is_named_or_skipped(tmp_path: Path, kind: str) -> None:
    bad_line, reason = BAD[kind]
    path = write(tmp_path / "t", f"{CHATS[0]}\n\n{bad_line}\n{CHATS[2]}\n")
    message = refusal(READER, path)
    assert message.startswith("FILE, line 3")
    assert reason in message
    rows, bad = read_skipping(READER, path)
    assert [r.after for r in rows] == [-1, 0]
    assert (bad.count, bad.listed[0].line) == (1, 3)


@pytest.mark.parametrize("seed", range(25))
def test_mutated_lines_are_read_or_refused(tmp_path: Path, seed: int) -> None:
    check_mutations(READER, tmp_path / "t", [each.encode() for each in CHATS], seed, b"")
