"""This project's own format holds every row exactly, in small files, and checks every line."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from row_traces import made, opened, rows_of, traces

from hicache.errors import InputError
from traces import native_lines
from traces.convert import write
from traces.made import hints_of
from traces.native import NativeReader
from traces.rows import BadRows, Layout, ReadOptions, Row
from traces.source import Source

HEADER = '{"hicache_trace":1,"block_tokens":0}'
FIRST = (
    '{"input_length":3,"output_length":2,"timestamp":5,"session":"a",'
    '"pieces":[[7,3]],"answer":[[8,2]]}'
)
NEXT = '{"input_length":9,"output_length":0,"session":"a","after":0,"append":[[9,4]]}'


def read(path: Path, text: str, *, skip: bool = False) -> tuple[list[Row], BadRows]:
    path.write_bytes(text.encode("utf-8", "surrogateescape"))
    bad = BadRows(str(path), skip=skip)
    return rows_of(NativeReader().open(Source(path), ReadOptions(), bad)), bad


@settings(max_examples=150, deadline=None)
@given(traces())
def test_what_is_written_reads_back_exactly(tmp_path_factory: Any, trace: Any) -> None:
    layout, rows = trace
    path = tmp_path_factory.mktemp("native") / "t.jsonl"
    assert write(made(layout, rows), path).lost == ()
    stream = opened(path)
    assert stream.layout == layout
    assert hints_of(stream) == {"clients": 3}
    again = rows_of(stream)
    assert again == rows
    assert [type(row.timestamp) for row in again] == [type(row.timestamp) for row in rows]
    second = path.with_name("again.jsonl")
    write(opened(path), second)
    assert second.read_bytes() == path.read_bytes()


@pytest.mark.parametrize("ending", [".gz", ".zst", ""])
def test_a_file_may_be_compressed(tmp_path: Path, ending: str) -> None:
    rows = [Row(2, 1, 0, [number], [2]) for number in range(1000)]
    path = tmp_path / f"t.jsonl{ending}"
    write(made(Layout(0), rows), path)
    assert rows_of(opened(path)) == rows
    assert (path.stat().st_size < 20_000) == bool(ending)
    assert [each.name for each in tmp_path.iterdir()] == [path.name]


def test_a_later_turn_is_what_it_adds(tmp_path: Path) -> None:
    rows, _ = read(tmp_path / "t", f"{HEADER}\n{FIRST}\n{NEXT}\n")
    assert (rows[1].hash_ids, rows[1].lengths) == ([7, 8, 9], [3, 2, 4])
    # In blocks of 2: prompt 7 7 8, of which the last is not full; with the answer it is block 9.
    text = (
        '{"hicache_trace":1,"block_tokens":2}\n'
        '{"input_length":5,"output_length":2,"timestamp":0,"session":"a","ids":[6,7,8],'
        '"answer_ids":[9]}\n'
        '{"input_length":9,"output_length":0,"session":"a","after":0,"append_ids":[1,2]}\n'
    )
    rows, _ = read(tmp_path / "t", text)
    assert rows[1].hash_ids == [6, 7, 9, 1, 2]


def test_long_sessions_make_small_files(tmp_path: Path) -> None:
    rows = []
    ids: list[int] = []
    for number in range(300):
        ids = [*ids, 2 * number]
        rows.append(
            Row(len(ids), 1, number, ids, [1] * len(ids), [2 * number + 1], [1], "a", number - 1)
        )
        ids = [*ids, 2 * number + 1]
    path = tmp_path / "t"
    write(made(Layout(0), rows), path)
    assert path.stat().st_size < 300 * 160
    assert rows_of(opened(path)) == rows


def test_what_is_too_far_back_is_written_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(native_lines, "MOST_SESSIONS", 2)
    rows = [Row(1, 1, 0, [k], [1], [k + 10], [1], f"s{k}") for k in range(3)]
    rows += [Row(2, 1, 0, [k, k + 10], [1, 1], [k + 20], [1], f"s{k}", k) for k in range(3)]
    path = tmp_path / "t"
    write(made(Layout(0), rows), path)
    lines = path.read_text().splitlines()[4:]
    assert ["append" in json.loads(line) for line in lines] == [False, False, False]
    assert rows_of(opened(path)) == rows
    monkeypatch.setattr(native_lines, "MOST_SESSIONS", 3)
    write(made(Layout(0), rows), path)
    assert path.read_text().count('"append"') == 3
    monkeypatch.setattr(native_lines, "MOST_IDS", 5)
    with pytest.raises(InputError, match="line 5, append: row 0 cannot be appended to"):
        rows_of(opened(path))


BAD_LINES = {
    "cut off": (FIRST[:-1], "answer: the JSON is cut off"),
    "no JSON": ("oops", "is no JSON"),
    "two objects": (FIRST + FIRST, "is no JSON: trailing characters"),
    "unknown field": ('{"input_length":1,"output_length":0,"timestamp":9,"id":[]}', "id"),
    "no length": ('{"output_length":0,"timestamp":9}', "input_length: is missing"),
    "no time": ('{"input_length":1,"output_length":0}', "timestamp: is missing"),
    "an earlier time": (FIRST.replace(":5,", ":4,"), "timestamp: 4 is earlier than 5"),
    "NaN": (FIRST.replace(":5,", ":NaN,"), "timestamp: is no JSON"),
    "a time in ns": (FIRST.replace(":5,", ":1e18,"), "timestamp: 1e+18 is no time"),
    "text": (FIRST.replace(":5,", ':"5",'), "timestamp: expected"),
    "zero tokens": (NEXT.replace(":9,", ":0,", 1), "input_length: expected int >= 1"),
    "negative": (NEXT.replace('output_length":0', 'output_length":-1'), "output_length: expected"),
    "too many tokens": (FIRST.replace("[7,3]", "[7,4]"), "pieces: they have 4 tokens together"),
    "append too much": (NEXT.replace("[9,4]", "[9,5]"), "append: they have 10 tokens together"),
    "a long answer": (FIRST.replace("[8,2]", "[8,3]"), "answer: it has 3 tokens, more than"),
    "a pair of one": (FIRST.replace("[8,2]", "[8]"), "answer[0]: expected array of length 2"),
    "negative id": (FIRST.replace("[7,3]", "[-7,3]"), "pieces[0][0]: expected int >= 0"),
    "65 bits": (FIRST.replace("[7,3]", f"[{1 << 64},3]"), "pieces[0][0]: expected int <="),
    "plain ids": (FIRST.replace('"pieces":[[7,3]]', '"ids":[7]'), "ids: there are ids whose"),
    "plain answer": (FIRST.replace('"answer":[[8,2]]', '"answer_ids":[7]'), "answer_ids: there"),
    "twice": (
        FIRST.replace('"session"', '"ids":[],"session"'),
        "pieces: the prompt is given twice",
    ),
    "answers twice": (FIRST.replace('"session"', '"answer_ids":[],"session"'), "answer is given"),
    "after itself": (NEXT.replace('"after":0', '"after":1'), "after: row 1 does not come before"),
    "after -2": (NEXT.replace('"after":0', '"after":-2'), "after: expected int >= -1"),
    "huge after": (NEXT.replace('"after":0', f'"after":{1 << 70}'), "after: "),
    "another session": (NEXT.replace('"a"', '"b"'), "append: row 0 cannot be appended to"),
    "no session": (NEXT.replace('"session":"a",', ""), "`session` is missing"),
    "not after": (NEXT.replace('"after":0', '"timestamp":7'), "append: there is no row to append"),
    "other ids": (NEXT.replace('"append":[[9,4]]', '"append_ids":[9]'), "this must be append"),
    "negative delay": (NEXT.replace('"after"', '"delay":-1,"after"'), "delay: -1 is no time"),
    "cached": (FIRST.replace('"session"', '"cached_tokens":-2,"session"'), "cached_tokens: exp"),
    "deep": ("[" * 100_000, ""),
    "no UTF-8": (FIRST.replace('"a"', '"\udcff"'), ""),
    "lone surrogate": (FIRST.replace('"a"', '"\\ud800"'), ""),
}


@pytest.mark.parametrize("kind", BAD_LINES)
def test_a_bad_line_is_named_or_left_out(tmp_path: Path, kind: str) -> None:
    bad_line, expected = BAD_LINES[kind]
    path = tmp_path / "t"
    text = f"{HEADER}\n{FIRST}\n{bad_line}\n{FIRST}\n"
    with pytest.raises(InputError) as caught:
        read(path, text)
    message = str(caught.value)
    assert message.startswith(f"{path}, line 3")
    assert expected in message
    assert "\n" not in message
    rows, bad = read(path, text, skip=True)
    assert len(rows) == 2
    assert [(each.line, bad.count) for each in bad.listed] == [(3, 1)]


@pytest.mark.parametrize(
    ("header", "message"),
    [
        ("[]", "line 1: expected object"),
        ("", "line 1: the JSON is cut off"),
        (HEADER[:-1], "line 1, block_tokens: the JSON is cut off"),
        (HEADER.replace("1", "2", 1), "line 1, hicache_trace: is version 2; known is 1"),
        (HEADER.replace("0", "-1"), "line 1, block_tokens: expected int >= 0"),
        (HEADER.replace("}", ',"more":1}'), "line 1: the object contains unknown field more"),
        (f'{{"hicache_trace":"{"x" * 70_000}"', "line 1: the header is longer than 64 KiB"),
    ],
)
@pytest.mark.parametrize("skip", [False, True])
def test_a_bad_header_cannot_be_left_out(
    tmp_path: Path, header: str, message: str, skip: bool
) -> None:
    with pytest.raises(InputError) as caught:
        read(tmp_path / "t", f"{header}\n{FIRST}\n", skip=skip)
    assert message in str(caught.value)


def test_ids_must_match_the_length(tmp_path: Path) -> None:
    header = '{"hicache_trace":1,"block_tokens":4}\n'
    row = '{"input_length":9,"output_length":4,"timestamp":0,"ids":%s,"answer_ids":%s}'
    for ids, answer in (("[1,2]", "[]"), ("[1,2,3]", "[4]")):
        rows, _ = read(tmp_path / "t", header + row % (ids, answer))
        assert rows[0].hash_ids == json.loads(ids)
    for ids, answer, field in (("[1]", "[]", ", ids:"), ("[1,2]", "[1,2]", ", answer_ids:")):
        with pytest.raises(InputError, match=field):
            read(tmp_path / "t", header + row % (ids, answer))


def test_rows_are_numbered_by_line_and_go_with_what_they_wait_for(tmp_path: Path) -> None:
    """Row 0 is good, 1 blank, 2 bad; 3 waits for 2, 4 for 0, 5 for 4."""
    waits = '{"input_length":1,"output_length":0,"after":%d}'
    text = "\n".join([HEADER, FIRST, "", "{}", waits % 2, waits % 0, waits % 4, waits % 1])
    rows, bad = read(tmp_path / "t", text, skip=True)
    assert [row.after for row in rows] == [-1, 0, 1]
    assert [(each.line, each.field) for each in bad.listed] == [
        (4, "input_length"), (5, "after"), (8, "after"),
    ]  # fmt: skip
    assert "row 2 is blank or was left out" in bad.listed[1].reason


def test_options_that_do_not_suit_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "t"
    path.write_text(f"{HEADER}\n{FIRST}\n")
    source, bad = Source(path), BadRows(str(path))
    lengths = "block size is 64, but the trace says that its pieces have lengths of their own"
    with pytest.raises(InputError, match=lengths):
        NativeReader().open(source, ReadOptions(64), bad)
    assert NativeReader().open(source, ReadOptions(0), bad).layout == Layout(0, timed=False)


@settings(max_examples=200, deadline=None)
@given(st.data())
def test_mutated_files_never_raise_anything_else(
    tmp_path_factory: Any, data: st.DataObject
) -> None:
    text = bytearray(f"{HEADER}\n{FIRST}\n{NEXT}\n{FIRST}\n".encode())
    for _ in range(data.draw(st.integers(1, 4))):
        place = data.draw(st.integers(0, len(text) - 1))
        piece = data.draw(st.one_of(st.binary(max_size=4), st.sampled_from([b"\n", b"9" * 40])))
        text[place : place + data.draw(st.integers(0, 3))] = piece
    path = tmp_path_factory.mktemp("mutant") / "t"
    path.write_bytes(bytes(text))
    for skip in (False, True):
        bad = BadRows(str(path), skip=skip)
        error = ""
        rows: list[Row] = []
        try:
            rows = rows_of(NativeReader().open(Source(path), ReadOptions(), bad))
        except InputError as refusal:
            error = str(refusal)
        full = sum(1 for line in bytes(text).split(b"\n")[1:] if line.strip())
        assert str(path) in error or len(rows) + bad.count == full
