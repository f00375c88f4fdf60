"""The delta form of Mooncake's format: whole prompts are put together, and nothing is guessed."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from trace_helpers import write_lines

from hicache.errors import InputError
from traces.mooncake import is_delta
from traces.reader import Trace, open_trace
from traces.rows import Row


def turn(session: str, tokens: int, output: int, ids: list[int], **more: Any) -> str:
    row = {"session_id": session, "input_length": tokens, "output_length": output, "hash_ids": ids}
    return json.dumps({**row, **more})


TWO_SESSIONS = [
    turn("a", 1536, 320, [0, 1, 2], timestamp=0.0, group_id=4),
    turn("b", 1100, 10, [0, 1, 7], timestamp=5),
    turn("a", 768, 180, [1000, 1001], delay=2450.5),
    turn("b", 100, 0, [1002], delay=1),
    turn("a", 512, 64, [1003], delay=0),
]


def opened(tmp_path: Path, lines: list[str], **options: Any) -> Trace:
    return open_trace(write_lines(tmp_path / "t.jsonl", lines), **options)


def rows_of(trace: Trace) -> list[Row]:
    return [row for batch in trace.stream().batches() for row in batch.rows]


def test_prompts_are_put_together(tmp_path: Path) -> None:
    trace = opened(tmp_path, TWO_SESSIONS)
    assert (trace.format, trace.block_tokens) == ("mooncake", 0)
    rows = rows_of(trace)
    assert [row.input_length for row in rows] == [
        1536,
        1100,
        1536 + 320 + 768,
        1100 + 10 + 100,
        1536 + 320 + 768 + 180 + 512,
    ]
    assert all(sum(row.lengths or []) == row.input_length for row in rows)
    assert [row.after for row in rows] == [-1, -1, 0, 1, 2]
    assert [row.delay for row in rows] == [0, 0, 2450.5, 1, 0]
    assert [row.timestamp for row in rows] == [0.0, 5, None, None, None]
    assert [row.session for row in rows] == ["a", "b", "a", "b", "a"]
    assert rows[2].lengths == [512, 512, 512, 320, 512, 256]
    for earlier, later in ((0, 2), (2, 4), (1, 3)):
        context = rows[earlier].hash_ids + (rows[earlier].output_ids or [])
        assert rows[later].hash_ids[: len(context)] == context
    # An answer of no tokens has no id; no answer's id is another's or a block's.
    assert rows[3].output_ids == []
    answers = [each for row in rows for each in row.output_ids or []]
    assert len(set(answers)) == len(answers) == 4
    # Session b shares its first two blocks with a, and nothing else.
    assert rows[1].hash_ids[:2] == rows[0].hash_ids[:2]
    assert not set(rows[1].hash_ids[2:]) & set(rows[0].hash_ids)


@pytest.mark.parametrize("page", [1, 16, 64, 700])
def test_every_later_turn_could_hit_all_that_has_kv(tmp_path: Path, page: int) -> None:
    requests = list(opened(tmp_path, TWO_SESSIONS, speed=2).requests(page))
    for earlier, later in ((0, 2), (2, 4), (1, 3)):
        before = requests[earlier]
        held = before.prompt_tokens + max(before.output_tokens, 1) - 1
        assert requests[later].ideal_pages == held // page
        keys = [*before.prompt_runs, *(before.output_runs or ())]
        assert sum(count for _, count in keys) == held // page
    assert [request.after for request in requests] == [-1, -1, 0, 1, 2]
    assert requests[2].delay_ns == 1_225_250_000
    assert [request.arrival_ns for request in requests] == [0, 2_500_000, -1, -1, -1]
    assert requests[4].session == "a"


def test_rows_with_times_and_sessions_are_whole_prompts(tmp_path: Path) -> None:
    lines = [
        turn("a", 1000, 3, [0, 1], timestamp=0),
        turn("a", 1500, 3, [0, 1, 2], timestamp=9, delay=None),
    ]
    trace = opened(tmp_path, lines)
    assert trace.block_tokens == 512
    rows = rows_of(trace)
    assert [(row.session, row.input_length, row.after) for row in rows] == [
        ("a", 1000, -1),
        ("a", 1500, -1),
    ]
    assert [request.session for request in trace.requests(512)] == ["a", "a"]


def test_sessions_without_a_time_start_with_the_row_before(tmp_path: Path) -> None:
    lines = [
        turn("a", 512, 3, [0]),
        turn("a", 512, 3, [1], delay=1),
        turn("b", 512, 3, [0], timestamp=7),
        turn("c", 512, 3, [5], delay=0),
        turn("", 512, 3, [5]),
    ]
    trace = opened(tmp_path, lines)
    assert [row.timestamp for row in rows_of(trace)] == [0, None, 7, 7, 7]
    list(trace.requests(512))
    (warning,) = trace.facts.warnings
    assert warning.startswith("3 sessions state no timestamp")


FIRST = turn("a", 1024, 3, [0, 1], timestamp=5)
AGAIN = turn("a", 512, 3, [2], delay=1)

BAD_TURNS = {
    "a time and a delay": (
        turn("a", 512, 3, [3], delay=1, timestamp=9),
        "timestamp: is there, but 'a' has begun",
    ),
    "a time in a later turn": (turn("a", 512, 3, [3], timestamp=9), "'a' has begun"),
    "neither": (turn("a", 512, 3, [3]), "delay: is missing in a later turn of 'a'"),
    "the whole prompt again": (
        turn("a", 1536, 3, [0, 1, 3], delay=1),
        "hash_ids: begin as those of the first turn of 'a' did",
    ),
    "a delay after nothing": (turn("x", 512, 3, [3], delay=1), "no earlier turn of this session"),
    "a delay without session": (turn("", 512, 3, [3], delay=1), "delay: is there, but no earlier"),
    "a negative delay": (turn("a", 512, 3, [3], delay=-1), "delay: -1 is no time in milliseconds"),
    "a text for a delay": (turn("a", 512, 3, [3], delay="1"), "delay: expected"),
    "an earlier start": (turn("b", 512, 3, [3], timestamp=4), "timestamp: 4 is earlier than 5"),
    "too many ids": (turn("a", 512, 3, [3, 4], delay=1), "2 ids do not match input_length 512"),
    "an id too large": (turn("a", 512, 3, [1 << 64], delay=1), "hash_ids[0]: expected int <="),
    "a prompt too long": (
        turn("a", (1 << 31) - 512, 3, list(range(10, 10 + (1 << 22) - 1)), delay=1),
        "input_length: makes a prompt of 21474",
    ),
}


@pytest.mark.parametrize("kind", BAD_TURNS)
def test_what_could_be_meant_otherwise_is_refused(tmp_path: Path, kind: str) -> None:
    bad, reason = BAD_TURNS[kind]
    lines = [FIRST, AGAIN, bad, turn("a", 512, 3, [9], delay=2), turn("c", 1, 1, [7], timestamp=9)]
    trace = opened(tmp_path, lines)
    with pytest.raises(InputError) as caught:
        list(trace.requests(16))
    assert f"{trace.path}, line 3" in str(caught.value)
    assert reason in str(caught.value)


def test_turns_behind_one_that_was_left_out_are_left_out_too(tmp_path: Path) -> None:
    lines = [
        FIRST,
        AGAIN,
        turn("a", 512, 3, [3, 4], delay=1),
        turn("a", 512, 3, [9], delay=2),
        turn("c", 1, 1, [7], timestamp=9),
        turn("c", 1, 1, [8], delay=9),
        '{"session_id": "c", ',
    ]
    trace = opened(tmp_path, lines, on_error="skip")
    requests = list(trace.requests(16))
    assert [(each.number, each.session, each.after) for each in requests] == [
        (0, "a", -1),
        (1, "a", 0),
        (2, "c", -1),
        (3, "c", 2),
    ]
    assert sorted((each.line, each.field) for each in trace.bad.listed) == [
        (3, "hash_ids"),
        (4, "session_id"),
        (7, "session_id"),
    ]
    notes, left_out = trace.facts.warnings
    assert notes.startswith("1 lines could not be read at all")
    assert left_out.startswith("3 malformed rows were left out: line 3, hash_ids: 2 ids do not")


def test_only_a_delay_without_a_time_makes_the_form() -> None:
    assert is_delta(b'{"delay": 1, "session_id": "a"}\n')
    assert is_delta(b'{"timestamp": 0}\n{"delay": 1}')
    assert not is_delta(b'{"timestamp": 0, "delay": 1}\n')
    assert not is_delta(b'{"delay": null}\n')
    assert not is_delta(b'{"note": "delay"}\n{"x": "\\"delay\\""}')
    assert not is_delta(b'{"delay": 1, "cut off at the end of the he')
    assert not is_delta(b'{"delay": ' + b"[" * 60_000)
