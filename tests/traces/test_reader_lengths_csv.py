"""CSV of lengths: dates to 100 ns, columns by name, failures, conversations."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from recorded_helpers import (
    REAL_TRACES,
    check_mutations,
    check_rows,
    needs_real_traces,
    opened,
    read,
    read_skipping,
    refusal,
    rows_of,
    write,
)

from hicache.errors import InputError
from traces.lengths_csv import AzureReader, BurstGPTReader
from traces.rows import Layout, ReadOptions

AZURE, BURSTGPT = AzureReader(), BurstGPTReader()
AZURE_HEADER = "TIMESTAMP,ContextTokens,GeneratedTokens"
BURST_HEADER = "Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type"
BURST_3_HEADER = (
    "Timestamp,Session ID,Elapsed time,Model,Request tokens,Response tokens,Total tokens,Log Type"
)


def lengths(rows: list[Any]) -> list[tuple[Any, ...]]:
    return [(r.timestamp, r.input_length, r.output_length) for r in rows]


def test_azure_dates_count_from_midnight(tmp_path: Path) -> None:
    text = (
        f"{AZURE_HEADER}\r\n2023-11-16 18:17:03.9799600,4808,10\r\n"
        "2023-11-17 00:00:00.0000001,3180,8\r\n2023-11-17 00:00:00.0000001,7,0"
    )
    stream = opened(AZURE, write(tmp_path / "t", text))
    rows = rows_of(stream)
    assert stream.layout == Layout(0, has_ids=False)
    assert lengths(rows) == [
        (65823979.96, 4808, 10),
        (86400000.0001, 3180, 8),
        (86400000.0001, 7, 0),
    ]
    assert all(r.hash_ids == [] and r.after == -1 for r in rows)
    assert any("1 requests have no answer" in note for note in stream.notes)
    check_rows(rows, 0)


def test_azure_dates_with_a_zone_and_other_columns(tmp_path: Path) -> None:
    text = (
        "TIMESTAMP,NumImages,GeneratedTokens,ContextTokens\n"
        '2024-05-10 00:00:00.009930+00:00,0,13,2399\n"2024-05-10T02:00:01+02:00",2,5,9\n'
    )
    rows = read(AZURE, write(tmp_path / "t", text))
    assert lengths(rows) == [(9.93, 2399, 13), (1000, 9, 5)]


def test_burstgpt(tmp_path: Path) -> None:
    text = (
        f"{BURST_HEADER}\n5,ChatGPT,472,18,490,Conversation log\n45.5,GPT-4,1087,0,1087,API log\n"
        "46,GPT-4,0,0,0,API log\n46,ChatGPT,12.0,3.0,15,API log\n\n"
    )
    stream = opened(BURSTGPT, write(tmp_path / "t", text))
    rows = rows_of(stream)
    assert lengths(rows) == [(5000, 472, 18), (45500, 1087, 0), (46000, 12, 3)]
    assert any("1 requests have no answer" in note for note in stream.notes)
    assert any("1 requests without prompt tokens were left out" in note for note in stream.notes)
    assert rows_of(stream) == rows


def test_burstgpt_conversations_follow_each_other(tmp_path: Path) -> None:
    text = (
        f"{BURST_3_HEADER}\n"
        "100.0,aa,43,GPT-4,906,446,1352,Conversation log\n"
        "110.0,bb,2,GPT-4,0,0,0,Conversation log\n"
        "120.0,bb,2,GPT-4,36,29,65,Conversation log\n"
        "130.0,cc,1,GPT-4,36,29,65,API log\n"
        "131.0,cc,1,GPT-4,36,29,65,API log\n"
        "140.0,bb,,GPT-4,99,29,65,Conversation log\n"
        "141.0,bb,1,GPT-4,99,29,65,Conversation log\n"
        "150.0,aa,1,GPT-4,999,29,65,Conversation log\n"
    )
    rows = read(BURSTGPT, write(tmp_path / "t", text))
    assert [r.session for r in rows] == ["aa", "bb", "cc", "cc", "bb", "bb", "aa"]
    assert [(r.after, r.delay) for r in rows] == [
        (-1, 0), (-1, 0), (-1, 0), (-1, 0), (-1, 0), (1, 19000), (0, 7000),
    ]  # fmt: skip


def test_formats_are_told_apart(tmp_path: Path) -> None:
    for header in (BURST_HEADER, BURST_3_HEADER, "Timestamp,SessionID,Request tokens\r"):
        assert BURSTGPT.recognises(header.encode())
        assert not AZURE.recognises(header.encode())
    assert AZURE.recognises(b"TIMESTAMP,ContextTokens\n")
    assert not BURSTGPT.recognises(AZURE_HEADER.encode())
    for other in (b'{"ContextTokens": 1, "Request tokens": 2}', b"a,b\n1,2", b"", b"\xff\xfe"):
        assert not AZURE.recognises(other)
        assert not BURSTGPT.recognises(other)
    path = write(tmp_path / "t", "Timestamp,Request tokens\n1,2\n")
    assert "line 1, Response tokens: is not among the columns" in refusal(BURSTGPT, path)
    with pytest.raises(InputError, match="the trace has no blocks"):
        opened(AZURE, write(tmp_path / "u", AZURE_HEADER), ReadOptions(block_tokens=16))


TIME = "2023-11-16 18:17:03.9799600"
BAD = {
    "few fields": (f"{TIME},5", "2 fields, but the header has 3"),
    "many fields": (f"{TIME},5,6,7", "4 fields, but the header has 3"),
    "blank": (f"{TIME},,6", "ContextTokens: is blank"),
    "negative": (f"{TIME},-5,6", "ContextTokens: '-5' is no number of tokens"),
    "NaN": (f"{TIME},5,nan", "GeneratedTokens: 'nan' is no number of tokens"),
    "fraction": (f"{TIME},5.5,6", "ContextTokens: '5.5' is no number of tokens"),
    "64 bits": (f"{TIME},{1 << 64},6", f"ContextTokens: '{1 << 64}' is no number of tokens"),
    "32 bits": (f"{TIME},{1 << 31},6", f"ContextTokens: '{1 << 31}' is no number of tokens"),
    "other digits": (f"{TIME},\u0665,6", "ContextTokens: '\u0665' is no number of tokens"),
    "no time": ("soon,5,6", "TIMESTAMP: 'soon' is no time"),
    "no day": ("2023-02-30 00:00:00,5,6", "TIMESTAMP: '2023-02-30 00:00:00' is no time"),
    "no year": ("0001-01-01 00:00:00+14:00,5,6", "is no time"),
    "seconds": ("17,5,6", "TIMESTAMP: '17' is no time"),
    "an open quote": (f'"{TIME},5,6', "is no CSV: "),
    "no UTF-8": (f"{TIME},5,\udcff", "is no UTF-8 text"),
    "NUL": (f"{TIME},5,\0", "GeneratedTokens: '\\x00' is no number of tokens"),
}


@pytest.mark.parametrize("kind", BAD)
def test_a_bad_line_is_named_or_skipped(tmp_path: Path, kind: str) -> None:
    bad_line, reason = BAD[kind]
    text = f"{AZURE_HEADER}\n{TIME},1,2\n{bad_line}\n{TIME},3,4\n"
    path = write(tmp_path / "t", text.encode("utf-8", "surrogateescape"))
    message = refusal(AZURE, path)
    assert message.startswith("FILE, line 3")
    assert reason in message
    rows, bad = read_skipping(AZURE, path)
    assert [r.input_length for r in rows] == [1, 3]
    assert (bad.count, bad.listed[0].line) == (1, 3)


def test_bad_seconds(tmp_path: Path) -> None:
    for time in ("1e5", "inf", "-1", "", "1" * 13):
        path = write(tmp_path / "t", f"{BURST_3_HEADER}\n{time},a,1,m,5,6,11,API log\n")
        assert "line 2, Timestamp: " in refusal(BURSTGPT, path)
    path = write(tmp_path / "t", f"{BURST_3_HEADER}\n1,a,x,m,5,6,11,API log\n")
    assert "line 2, Elapsed time: 'x' is no number of seconds" in refusal(BURSTGPT, path)


@pytest.mark.parametrize("seed", range(25))
def test_mutated_lines_are_read_or_refused(tmp_path: Path, seed: int) -> None:
    good = [f"{TIME},123,45".encode(), b"2023-11-17 00:00:01,1,0"]
    check_mutations(AZURE, tmp_path / "t", good, seed, f"{AZURE_HEADER}\n".encode())
    good = [b"5,a1,2,ChatGPT,472,18,490,Conversation log", b"6.5,,1.5,ChatGPT,9,8,17,API log"]
    check_mutations(BURSTGPT, tmp_path / "u", good, seed, f"{BURST_3_HEADER}\n".encode())


@needs_real_traces
def test_the_real_trace() -> None:
    rows = read(AZURE, REAL_TRACES / "azure2023" / "AzureLLMInferenceTrace_code.csv")
    assert len(rows) == 8819
    assert sum(r.input_length for r in rows) == 18_059_974
    assert lengths(rows)[-1][1:] == (549, 173)
    assert (rows[-1].timestamp or 0) - (rows[0].timestamp or 0) == pytest.approx(3435948.056)
    check_rows(rows, 0)
