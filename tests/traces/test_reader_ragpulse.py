"""RAGPulse: pieces and their lengths, the template's tokens, a clock that starts again."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from recorded_helpers import (
    REAL_TRACES,
    check_mutations,
    check_rows,
    ideal_hit_rate,
    needs_real_traces,
    opened,
    read,
    read_skipping,
    refusal,
    rows_of,
    write,
)

from hicache.errors import InputError
from traces.ragpulse import LENGTH_FILES, RAGPulseReader
from traces.reader import open_trace
from traces.rows import Layout, ReadOptions

READER = RAGPulseReader()
LENGTHS = {"sys_prompt": {1: 50, 2: 60}, "passages_ids": {3: 30, 4: 40}, "user_input": {9: 7}}
FIELDS = {
    "sys_prompt": "sys_prompt_id",
    "passages_ids": "passage_id",
    "history": "history_id",
    "web_search": "web_search_id",
    "user_input": "user_input_id",
}


def query(tokens: int, seconds: Any = "5", **pieces: Any) -> str:
    ids = {"sys_prompt": [1], "passages_ids": [], "history": [], "web_search": []}
    row = {
        "timestamp": seconds,
        "input_length": tokens,
        "output_length": 3,
        "hash_ids": ids | {"user_input": [9]} | pieces,
        "session_id": "s1",
    }
    return json.dumps(row)


def write_lengths(folder: Path) -> None:
    for kind, name in LENGTH_FILES.items():
        lengths = LENGTHS.get(kind, {})
        lines = [{FIELDS[kind]: each, "token_length": n} for each, n in lengths.items()]
        write(folder / name, "".join(f"{json.dumps(each)}\n" for each in lines) + "\n")


def longer(piece: int, tokens: int) -> int:
    return piece + (tokens << 31)


def test_pieces_have_their_lengths_and_the_last_one_the_rest(tmp_path: Path) -> None:
    write_lengths(tmp_path)
    lines = [
        query(57),
        query(65),
        query(140, "6.5", passages_ids=[4, 3], sys_prompt=[2]),
        query(65, 8.25),
    ]
    stream = opened(READER, write(tmp_path / "0_trace.jsonl", "\n".join(lines) + "\n\n"))
    rows = rows_of(stream)
    assert stream.layout == Layout(0)
    assert [r.hash_ids for r in rows] == [
        [1, 9],
        [1, longer(9, 15)],
        [2, 4, 3, longer(9, 10)],
        [1, longer(9, 15)],
    ]
    assert [r.lengths for r in rows] == [[50, 7], [50, 15], [60, 40, 30, 10], [50, 15]]
    assert [r.timestamp for r in rows] == [5000, 5000, 6500, 8250]
    assert {r.session for r in rows} == {"s1"}
    assert stream.notes == []
    check_rows(rows, 0)


def test_a_clock_that_starts_again_goes_on_from_the_next_day(tmp_path: Path) -> None:
    write_lengths(tmp_path)
    times = ["100", "99", "604453", "0", "27", "90000", "5"]
    path = write(tmp_path / "t", "\n".join(query(57, each) for each in times))
    stream = opened(READER, path)
    day = 86_400_000
    expected = [100_000, 100_000, 604_453_000, 7 * day, 7 * day + 27_000, 7 * day + 90_000_000]
    assert [r.timestamp for r in rows_of(stream)] == [*expected, 9 * day + 5000]
    assert [note for note in stream.notes if "clock" in note] == [
        f"t, line {line}: the clock starts again; it was taken to go on from the next whole day, "
        "so that the trace lasts longer than its times say"
        for line in (4, 7)
    ]
    assert any("1 request (first on line 2) had an earlier time" in note for note in stream.notes)


def test_a_file_of_lengths_alone_is_told_from_a_trace(tmp_path: Path) -> None:
    write_lengths(tmp_path)
    message = r"2_passages\.jsonl: has the lengths .* give the folder"
    with pytest.raises(InputError, match=message):
        open_trace(tmp_path / "2_passages.jsonl")


def test_lengths_are_estimated_where_their_files_are_missing(tmp_path: Path) -> None:
    lines = [query(100, passages_ids=[3, 4]), query(91, passages_ids=[4], sys_prompt=[1, 2])]
    stream = opened(READER, write(tmp_path / "t", "\n".join([*lines, query(10)])))
    rows = rows_of(stream)
    assert [r.lengths for r in rows] == [[25, 25, 25, 25], [25, 22, 25, 19], [9, 1]]
    assert rows[1].hash_ids == [1, 2, 4, longer(9, 19)]
    assert rows[2].hash_ids == [longer(1, 9), longer(9, 1)]
    assert "1_sys_prompt.jsonl" in stream.notes[0]
    assert "estimated" in stream.notes[0]
    check_rows(rows, 0)
    assert rows_of(stream) == rows
    assert "hash_ids: 2 pieces for 1 tokens" in refusal(READER, write(tmp_path / "u", query(1)))


def test_one_missing_file_leaves_the_others_exact(tmp_path: Path) -> None:
    write_lengths(tmp_path)
    (tmp_path / LENGTH_FILES["passages_ids"]).unlink()
    path = write(tmp_path / "t", query(131, passages_ids=[3]))
    (row,) = read(READER, path)
    assert row.lengths == [50, 40, 41]
    path = write(tmp_path / "t", query(131, sys_prompt=[5]))
    assert "hash_ids.sys_prompt[0]: id 5 has no length in 1_sys" in refusal(READER, path)


BAD = {
    "words for a time": (query(57, "soon"), "timestamp: 'soon' is no time in seconds"),
    "a negative time": (query(57, "-5"), "timestamp: '-5' is no time in seconds"),
    "a time of NaN": (query(57, "nan"), "timestamp: 'nan' is no time in seconds"),
    "a blank time": (query(57, ""), "timestamp: '' is no time in seconds"),
    "a time as null": (query(57, None), "timestamp: expected int | float | str, got null"),
    "too many tokens": (query(57 + 65), "the 2 pieces have 57 tokens, which do not match"),
    "too few tokens": (query(56), "hash_ids: the 2 pieces have 57 tokens, which do not match"),
    "an id without length": (query(57, user_input=[8]), "user_input[0]: id 8 has no length in 4_u"),
    "a large id": (query(57, user_input=[1 << 40]), "hash_ids.user_input[0]: expected int <"),
    "ids that are no list": (query(57, history=7), "hash_ids.history: expected array, got int"),
    "no pieces": (query(57, sys_prompt=[], user_input=[]), "hash_ids: no piece for 57 tokens"),
    "a missing kind": (query(57).replace("history", "hist"), "hash_ids.history: is missing"),
    "a list of ids": (query(57).split("{", 2)[0] + "{}", "timestamp: is missing"),
    "cut off": (query(57)[:70], "the JSON is cut off"),
}


@pytest.mark.parametrize("kind", BAD)
def test_a_bad_line_is_named_or_skipped(tmp_path: Path, kind: str) -> None:
    write_lengths(tmp_path)
    bad_line, reason = BAD[kind]
    path = write(tmp_path / "t", f"{query(57)}\n{bad_line}\n{query(57)}\n")
    message = refusal(READER, path)
    assert message.startswith("FILE, line 2")
    assert reason in message
    rows, bad = read_skipping(READER, path)
    assert len(rows) == 2
    assert (bad.count, bad.listed[0].line) == (1, 2)


def test_a_bad_file_of_lengths_is_named_and_never_skipped(tmp_path: Path) -> None:
    write_lengths(tmp_path)
    path = write(tmp_path / "t", query(57))
    lengths = tmp_path / LENGTH_FILES["history"]
    for text, reason in (
        ('{"history_id": 9, "token_length": 8}', "line 1, token_length: id 9 has 8 tokens here"),
        ('{"history": 9, "token_length": 8}', "line 1, history_id: is missing"),
        ('{"history_id": 8, "token_length": 0}', "line 1, token_length: expected int >= 1"),
    ):
        write(lengths, text)
        # Files are read in the order of a prompt: what clashes is found in the later one.
        with pytest.raises(InputError) as caught:
            read_skipping(READER, path)
        if "here" not in reason:
            assert str(lengths) in str(caught.value)
            assert reason in str(caught.value)
        else:
            assert "id 9 has 7 tokens here and 8 before" in str(caught.value)


def test_a_block_size_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="each piece has its own length"):
        opened(READER, write(tmp_path / "t", query(57)), ReadOptions(block_tokens=16))


@pytest.mark.parametrize("seed", range(25))
def test_mutated_lines_are_read_or_refused(tmp_path: Path, seed: int) -> None:
    if seed % 2:
        write_lengths(tmp_path)
    good = [query(57), query(140, "6.5", passages_ids=[4, 3], sys_prompt=[2])]
    check_mutations(READER, tmp_path / "t", [each.encode() for each in good], seed, b"")


@needs_real_traces
def test_the_real_trace() -> None:
    stream = opened(READER, REAL_TRACES / "ragpulse" / "0_trace.jsonl")
    rows = rows_of(stream)
    assert len(rows) == 7106
    assert sum(len(r.hash_ids) for r in rows) == 71583
    assert f"{ideal_hit_rate(rows):.4f}" == "0.1796"
    assert rows[3800].timestamp == 7 * 86_400_000
    assert len([note for note in stream.notes if "clock" in note]) == len(stream.notes) == 1
    check_rows(rows, 0)


@needs_real_traces
def test_the_real_trace_alone_has_the_same_hits_of_blocks(tmp_path: Path) -> None:
    shutil.copy(REAL_TRACES / "ragpulse" / "0_trace.jsonl", tmp_path)
    rows = read(READER, tmp_path / "0_trace.jsonl")
    assert f"{ideal_hit_rate(rows):.4f}" == "0.1796"
    check_rows(rows, 0)
