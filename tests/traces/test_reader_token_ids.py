"""Token-id JSON lines: every form of a row, the order of arrival, and what is malformed."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from recorded_helpers import (
    REAL_TRACES,
    check_rows,
    mutated,
    needs_real_traces,
    opened,
    read,
    read_skipping,
    refusal,
    rows_of,
    write,
)

from hicache.errors import InputError
from traces import records
from traces.rows import BadRows, Layout, ReadOptions
from traces.source import Source
from traces.token_ids import TokenIdsReader

READER = TokenIdsReader()
REAL = REAL_TRACES / "sharegpt_tokens" / "sharegpt-llama-3.1-8b-300-sps10.jsonl"
FLAT = {"input_toks": 3, "output_toks": 2, "arrival_time_ns": 1_500_000, "input_tok_ids": [5, 7, 9]}
PROMPT = {"prompt": [5, 7, 9], "prompt_len": 3, "output_len": 2}


def lines(*rows: dict[str, Any]) -> str:
    return "".join(json.dumps(row) + "\n" for row in rows)


@needs_real_traces
def test_the_real_prompts_come_out_token_for_token() -> None:
    stream = opened(READER, REAL)
    rows = rows_of(stream)
    assert stream.layout == Layout(1, timed=False)
    assert stream.notes == []
    check_rows(rows, 1)
    assert len(rows) == 300
    assert sum(row.input_length for row in rows) == 257_239
    assert sum(row.output_length for row in rows) == 195_753
    with REAL.open() as file:
        written = [json.loads(line) for line in file]
    assert [row.hash_ids for row in rows] == [row["input_tok_ids"] for row in written]
    assert [row.output_ids for row in rows] == [row["output_tok_ids"] for row in written]
    assert rows[0].timestamp == 46.926808


@needs_real_traces
def test_the_ideal_hit_rate_of_the_real_prompts_at_16_tokens_is_about_8_percent() -> None:
    seen: set[tuple[int, ...]] = set()
    hits = pages = 0
    for row in read(READER, REAL):
        ends = range(16, row.input_length + 1, 16)
        prefixes = [tuple(row.hash_ids[:end]) for end in ends]
        hits += next((n for n, each in enumerate(prefixes) if each not in seen), len(prefixes))
        pages += len(prefixes)
        seen.update(prefixes)
    assert (hits, pages) == (1220, 15942)
    assert round(hits / pages, 2) == 0.08


def test_a_row_without_the_answers_ids_leaves_them_unknown(tmp_path: Path) -> None:
    (row,) = read(READER, write(tmp_path / "a", lines(FLAT)))
    assert (row.input_length, row.output_length, row.timestamp) == (3, 2, 1.5)
    assert (row.hash_ids, row.output_ids, row.after) == ([5, 7, 9], None, -1)


def test_rows_without_any_ids_share_nothing_and_say_so(tmp_path: Path) -> None:
    row = {key: FLAT[key] for key in ("input_toks", "output_toks", "arrival_time_ns")}
    stream = opened(READER, write(tmp_path / "a", lines(row, row)))
    assert stream.layout == Layout(0, has_ids=False, timed=False)
    assert [row.hash_ids for row in rows_of(stream)] == [[], []]
    assert "no token ids" in stream.notes[0]


def test_a_sessions_calls_wait_for_each_other_and_for_the_tool(tmp_path: Path) -> None:
    call = {key: FLAT[key] for key in ("input_toks", "output_toks", "input_tok_ids")}
    session = {
        "session_id": "s7",
        "arrival_time_ns": 2_000_000,
        "sub_requests": [
            {**call, "tool_duration_ns": 3_000_000, "output_tok_ids": [1, 2]},
            {**call, "tool_duration_ns": 4_500_000},
            {**call, "tool_duration_ns": 0},
        ],
    }
    rows = read(READER, write(tmp_path / "a", lines(FLAT, session, {**FLAT, "session_id": "x"})))
    # The last line arrives before the session: its row goes before the session's.
    assert [row.session for row in rows] == ["", "x", "s7", "s7", "s7"]
    assert [row.timestamp for row in rows] == [1.5, 1.5, 2.0, None, None]
    assert [row.after for row in rows] == [-1, -1, -1, 2, 3]
    assert [row.delay for row in rows] == [0, 0, 0, 3.0, 4.5]
    assert rows[2].output_ids == [1, 2]


TIMES = {"timestamp": 250, "arrival_time": 0.25, "arrival_time_ns": 250_000_000}


@pytest.mark.parametrize("field", TIMES)
def test_the_time_of_a_prompt_has_the_unit_of_its_field(tmp_path: Path, field: str) -> None:
    row = {**PROMPT, field: TIMES[field], "output_ids": [1, 2]}
    (found,) = read(READER, write(tmp_path / "a", lines(row)))
    assert found.timestamp == 250
    assert found.output_ids == [1, 2]


def test_prompts_without_times_keep_their_order(tmp_path: Path) -> None:
    rows = read(
        READER, write(tmp_path / "a", lines(*({**PROMPT, "output_len": n} for n in (3, 1))))
    )
    assert [(row.output_length, row.timestamp) for row in rows] == [(3, None), (1, None)]


def test_an_array_of_rows_is_read_like_lines(tmp_path: Path) -> None:
    path = write(tmp_path / "a", json.dumps([PROMPT, PROMPT], indent=1))
    assert len(rows_of(READER.open(Source(path), ReadOptions(), BadRows("F")))) == 2


def test_rows_leave_in_the_order_of_arrival_and_the_note_counts_those_moved(
    tmp_path: Path,
) -> None:
    times = [5, 1, 9, 9, 3, 12]
    path = write(tmp_path / "a", lines(*({**FLAT, "arrival_time_ns": n * 10**6} for n in times)))
    stream = opened(READER, path)
    assert [row.timestamp for row in rows_of(stream)] == sorted(times)
    assert stream.notes == [
        "2 requests came after later ones in the file and went back to the order of arrival"
    ]


def test_a_row_that_comes_too_late_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(records, "WAITING_RECORDS", 2)
    times = [5, 6, 7, 8, 4]
    path = write(tmp_path / "a", lines(*({**FLAT, "arrival_time_ns": n * 10**6} for n in times)))
    message = refusal(READER, path)
    assert message.startswith("FILE, line 5, arrival_time_ns: 4.0 ms is earlier than 6.0 ms")
    rows, bad = read_skipping(READER, path)
    assert [row.timestamp for row in rows] == [5, 6, 7, 8]
    assert bad.count == 1


BAD = {
    "truncated": (json.dumps(FLAT)[:-4], "line 2, input_tok_ids: the JSON is cut off"),
    "no lengths": ({**FLAT, "input_toks": None}, "line 2, input_toks: expected int, got null"),
    "missing": ({"arrival_time_ns": 2e6}, "line 2, input_toks: is missing"),
    "no time": ({**FLAT, "arrival_time_ns": None}, "line 2, arrival_time_ns: is missing"),
    "negative time": ({**FLAT, "arrival_time_ns": -1}, "line 2, arrival_time_ns: is negative"),
    "late": ({**FLAT, "arrival_time_ns": 10**40}, "line 2, arrival_time_ns: 1000000"),
    "text": ({**FLAT, "arrival_time_ns": "7"}, "line 2, arrival_time_ns: expected int | float"),
    "float": ({**FLAT, "input_toks": 3.5}, "line 2, input_toks: expected int, got float"),
    "no tokens": (
        {**FLAT, "input_toks": 0, "input_tok_ids": []},
        "line 2, input_toks: expected int >= 1",
    ),
    "few ids": (
        {**FLAT, "input_toks": 4},
        "line 2, input_tok_ids: 3 ids do not match input_toks 4",
    ),
    "answer": (
        {**FLAT, "output_tok_ids": [1]},
        "line 2, output_tok_ids: 1 ids do not match output_toks 2",
    ),
    "negative id": ({**FLAT, "input_tok_ids": [1, -2, 3]}, "input_tok_ids[1]: expected int >= 0"),
    "64 bits": ({**FLAT, "input_tok_ids": [1, 2**64, 3]}, "input_tok_ids[1]: expected int <="),
    "no ids": (
        {key: FLAT[key] for key in FLAT if key != "input_tok_ids"},
        "line 2, input_tok_ids: is missing; the first row has it",
    ),
    "NaN": (json.dumps(FLAT).replace("1500000", "NaN"), "line 2, arrival_time_ns: is no JSON"),
    "UTF-8": (b'{"a": "\xff\xff"}', "line 2: is no UTF-8 text"),
    "nested": (b'{"a":' + b"[" * 20000 + b"]" * 20000 + b"}", "line 2: is nested too deeply"),
    "no calls": (
        {"session_id": "s", "arrival_time_ns": 2e6, "sub_requests": []},
        "line 2, sub_requests: expected array of length >= 1",
    ),
    "bad call": (
        {
            "session_id": "s",
            "arrival_time_ns": 2e6,
            "sub_requests": [{**FLAT, "input_tok_ids": [1]}],
        },
        "line 2, sub_requests[0].input_tok_ids: 1 ids do not match input_toks 3",
    ),
    "a list": (b"[1, 2]", "line 2: expected object, got array"),
}


@pytest.mark.parametrize("name", BAD)
def test_a_malformed_row_is_one_error_or_is_left_out(tmp_path: Path, name: str) -> None:
    row, expected = BAD[name]
    text = row if isinstance(row, bytes) else json.dumps(row).encode()
    if isinstance(row, str):
        text = row.encode()
    good = json.dumps(FLAT).encode()
    path = write(tmp_path / "a", b"\n".join([good, text, b"", good]))
    assert expected in refusal(READER, path)
    rows, bad = read_skipping(READER, path)
    assert len(rows) == 2
    assert bad.count == 1
    assert expected in bad.message(bad.listed[0].line, bad.listed[0].field, bad.listed[0].reason)


def test_times_in_some_rows_only_are_refused(tmp_path: Path) -> None:
    timed = {**PROMPT, "timestamp": 1}
    assert "line 2, timestamp: is missing; the rows before" in refusal(
        READER, write(tmp_path / "a", lines(timed, PROMPT))
    )
    assert "line 2, timestamp: is not in the rows before" in refusal(
        READER, write(tmp_path / "b", lines(PROMPT, timed))
    )


@needs_real_traces
@settings(deadline=None)
@given(st.integers(0, 10**9))
def test_a_mutated_real_line_is_read_or_refused(
    tmp_path_factory: pytest.TempPathFactory, seed: int
) -> None:
    with REAL.open("rb") as file:
        real = [file.readline().rstrip(b"\n") for _ in range(3)]
    path = tmp_path_factory.getbasetemp() / "mutated-tokens"
    path.write_bytes(b"\n".join([real[0], mutated(real[1], seed), real[2]]))
    rows, bad = read_skipping(READER, path)
    assert len(rows) + bad.count == 3
    if bad.count:
        assert bad.listed[0].line == 2
        with pytest.raises(InputError, match="FILE, line 2"):
            rows_of(READER.open(Source(path), ReadOptions(), BadRows("FILE")))


NOT_THIS_FORMAT = [
    b'{"timestamp": 0, "input_length": 1, "output_length": 1, "hash_ids": [0]}',
    b'{"prompt": "a text", "prompt_len": 3}',
    b'{"prompt": [1, 2], "model": "m", "max_tokens": 3}',
    b'[{"conversations": []}]',
    b"TIMESTAMP,ContextTokens,GeneratedTokens",
    b"",
]


@pytest.mark.parametrize("head", NOT_THIS_FORMAT)
def test_files_of_other_formats_are_not_claimed(head: bytes) -> None:
    assert not READER.recognises(head)


def test_a_prompt_that_fills_the_head_is_recognised() -> None:
    assert READER.recognises(b'{"prompt": [' + b"12, " * 16384)
