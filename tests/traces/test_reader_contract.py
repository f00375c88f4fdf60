"""One contract for the readers of all formats: sound files, bad records, pipes, memory, rows."""

from __future__ import annotations

import gzip
import io
import json
import sys
import tracemalloc
from pathlib import Path

import pyarrow as pa
import pytest
from reader_contract import BAD_ENDS, bad_records, canonical, check_contract
from reader_samples import DUMPED, MAKERS, Sample, dump_of, rows_of, sample

from hicache.errors import InputError
from traces import jsonstream, sglang_dump
from traces import source as source_module

NAMES = list(MAKERS)
OF_RECORDS = [name for name in NAMES if sample(name).records]
OF_LINES = [name for name in OF_RECORDS if sample(name).is_lines]
DOCUMENTS = [name for name in OF_RECORDS if not sample(name).is_lines]
# One for each way of reading.
STREAMED = (
    *("mooncake", "mooncake delta", "hicache pieces", "ragpulse", "weka", "bailian"),
    *("lmcache", "burstgpt", "hisim", "sharegpt array"),
)
UTF8_MARK = b"\xef\xbb\xbf"
CUT = 7_777


def zstd(data: bytes) -> bytes:
    return pa.compress(data, codec="zstd", asbytes=True)


WRITTEN = {
    "gzip": gzip.compress,
    "gzip in members": lambda text: gzip.compress(text[:CUT]) + gzip.compress(text[CUT:]),
    "zstd": zstd,
    # As parallel compressors write it: a frame to pass over, then several; one of them is empty.
    "zstd in frames": lambda text: (
        b"\x50\x2a\x4d\x18\4\0\0\0size" + zstd(text[:CUT]) + zstd(b"") + zstd(text[CUT:])
    ),
}
WRITTEN_TEXT = {
    "byte order mark": lambda text: UTF8_MARK + text,
    "CRLF": lambda text: text.replace(b"\n", b"\r\n"),
    "no last newline": lambda text: text.rstrip(b"\n"),
}


def sound(name: str, folder: Path) -> tuple[Sample, list[object]]:
    made = sample(name)
    rows, trace = made.rows(made.write(folder))
    assert trace.format == made.format
    assert trace.bad.count == 0
    assert len(rows) == len(made.records or DUMPED)
    check_contract(rows, trace.layout)
    return made, canonical(rows, made)


@pytest.mark.parametrize("name", NAMES)
def test_however_a_sound_file_is_written_its_rows_are_the_same(tmp_path: Path, name: str) -> None:
    made, expected = sound(name, tmp_path)
    writings = WRITTEN | (WRITTEN_TEXT if made.records else {})
    for how, written in writings.items():
        rows, trace = made.rows(made.write(tmp_path, written(made.text())))
        assert canonical(rows, made) == expected, how
        assert canonical(rows_of(trace), made) == expected, f"{how}, second pass"
    if made.is_lines:
        blank = made.head + b"\n \n\r\n".join(made.records) + b"\n\n"
        assert canonical(made.rows(made.write(tmp_path, blank))[0], made) == expected


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("written", [bytes, gzip.compress])
def test_standard_input_gives_the_same_rows_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, written: object
) -> None:
    made, expected = sound(name, tmp_path)
    monkeypatch.chdir(tmp_path)  # where a tokenizer is looked for
    data = written(made.text())  # type: ignore[operator]
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(data)))
    rows, trace = made.rows("-")
    check_contract(rows, trace.layout)
    if made.beside:
        assert len(rows) == len(made.records)  # lengths in files beside it are estimated
    else:
        assert canonical(rows, made) == expected
    with pytest.raises(InputError, match="can be read only once"):
        rows_of(trace)


@pytest.mark.parametrize("name", OF_RECORDS)
def test_a_bad_record_is_one_error_or_is_left_out_and_counted(tmp_path: Path, name: str) -> None:
    made, _ = sound(name, tmp_path)
    rows, _ = made.rows(made.write(tmp_path))
    broken = [(how, end(made.records[1])) for how, end in BAD_ENDS.items()] * made.is_lines
    kinds = list(bad_records(made)) + broken * made.is_json
    assert len(kinds) > 12
    for how, bad in kinds:
        records = [made.records[0], bad, *made.records[2:]]
        path = made.write(tmp_path, made.text(records))
        with pytest.raises(InputError) as caught:
            made.rows(path)
        message = str(caught.value)
        assert message.startswith(f"{path}, line {made.line_of(1)}"), how
        assert "\n" not in message, how
        read, trace = made.rows(path, "skip")
        assert canonical(read, made) == canonical(rows, made, [1]), how
        assert trace.bad.count == 1, how
        (listed,) = trace.bad.listed
        assert (listed.file, listed.line) == (str(path), made.line_of(1)), how
        assert str(listed) in message, how


@pytest.mark.parametrize("name", [each for each in OF_RECORDS if sample(each).is_json])
def test_the_error_names_the_field(tmp_path: Path, name: str) -> None:
    made = sample(name)
    for place in {made.count, made.time, made.ids, *made.needed} - {()}:
        field = str(place[-1])
        bad = [(how, each) for how, each in bad_records(made) if how.split(":")[0] == field]
        bad += [(how, each) for how, each in bad_records(made) if how == f"{field} is missing"]
        assert bad
        for how, each in bad:
            path = made.write(tmp_path, made.text([made.records[0], each, *made.records[2:]]))
            with pytest.raises(InputError) as caught:
                made.rows(path)
            _, _, named = str(caught.value).removeprefix(f"{path}, line ").partition(", ")
            # What lies in values of any kind is named no further than their keys.
            assert field in named.split(": ")[0] or "[...]" in named, (how, str(caught.value))


@pytest.mark.parametrize("name", OF_RECORDS)
def test_a_bad_first_record_loses_nothing_silently(tmp_path: Path, name: str) -> None:
    """It may be what the format is told by; then the file is refused, and nothing is guessed."""
    made = sample(name)
    for how, bad in bad_records(made):
        path = made.write(tmp_path, made.text([bad, *made.records[1:]]))
        with pytest.raises(InputError, match="line"):
            made.rows(path)
        try:
            rows, trace = made.rows(path, "skip")
        except InputError:
            continue
        if trace.format == made.format and name != "mooncake delta":
            assert len(rows) + trace.bad.count == len(made.records), how


@pytest.mark.parametrize("name", DOCUMENTS)
def test_a_document_whose_structure_is_broken_is_an_error_in_any_case(
    tmp_path: Path, name: str
) -> None:
    made = sample(name)
    text = made.text()
    first = len(made.head) + len(made.records[0]) + 1
    for cut in range(first, len(text.rstrip()), 97):
        path = made.write(tmp_path, text[:cut])
        for on_error in ("stop", "skip"):
            with pytest.raises(InputError, match="cut off"):
                made.rows(path, on_error)
    for data in (text + b"x", text.replace(b",\n", b"\n", 1), made.head + text):
        with pytest.raises(InputError, match=r"line \d"):
            made.rows(made.write(tmp_path, data), "skip")


@pytest.mark.parametrize("name", [each for each in OF_RECORDS if each != "mooncake delta"])
def test_a_record_too_long_to_be_one_is_never_held(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setattr(source_module, "LONGEST_LINE_BYTES", 1 << 20)
    monkeypatch.setattr(jsonstream, "LONGEST_ELEMENT_BYTES", 1 << 20)
    made, _ = sound(name, tmp_path)
    rows, _ = made.rows(made.write(tmp_path))
    long = b'{"zz": "' + b"x" * (3 << 20) + b'"}'
    path = made.write(
        tmp_path, gzip.compress(made.text([made.records[0], long, *made.records[2:]]))
    )
    with pytest.raises(InputError, match=rf"line {made.line_of(1)}: .*longer than 1 MiB"):
        made.rows(path)
    if made.is_lines:
        read, trace = made.rows(path, "skip")
        assert canonical(read, made) == canonical(rows, made, [1])
        assert [each.line for each in trace.bad.listed] == [made.line_of(1)]


@pytest.mark.slow
@pytest.mark.parametrize("name", STREAMED)
def test_memory_does_not_grow_with_the_file(tmp_path: Path, name: str) -> None:
    made = sample(name)
    record = min(made.records, key=len)
    count = min(20_000, (8 << 20) // len(record))
    records = [record] * count
    if name == "mooncake delta":
        single = made.records[0].replace(b'"s0"', b'""')
        records = [made.records[0], made.records[-1], *[single] * (count - 2)]
    if made.format == "bailian":
        records = [record.replace(b'"chat_id": 0', b'"chat_id": %d' % n) for n in range(count)]
    trace = made.open(made.write(tmp_path, made.text(records)))
    num_rows = 0
    tracemalloc.start()
    try:
        for batch in trace.stream().batches():
            num_rows += len(batch.rows)
        _, peak_bytes = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert num_rows == count
    assert peak_bytes < 6 << 20


def test_a_dump_larger_than_memory_is_refused_while_it_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sglang_dump, "LARGEST_DUMP_BYTES", 1 << 20)
    made = sample("sglang dump")
    bomb = gzip.compress(made.head + bytes(3 << 20))
    with pytest.raises(InputError, match="line 1: a dump of more than 1 MiB"):
        made.rows(made.write(tmp_path, bomb))


def test_bad_entries_of_a_dump_are_left_out(tmp_path: Path) -> None:
    made, expected = sound("sglang dump", tmp_path)
    obj, out, start_s, end_s = DUMPED[1]
    bad = [
        7,
        (obj, out),
        (obj, out, float("nan"), end_s),
        (obj, out, float("inf"), end_s),
        (obj, out, -1.0, end_s),
        (obj, out, True, end_s),
        (obj, out, 10**400, end_s),
        ({**obj, "input_ids": [1, 2]}, out, start_s, end_s),
        ({**obj, "input_ids": [10**400]}, {}, start_s, end_s),
        ({"text": "\ud800"}, {}, start_s, end_s),
        (obj, {"meta_info": {"completion_tokens": -1}}, start_s, end_s),
    ]
    rows, trace = made.rows(made.write(tmp_path, dump_of([DUMPED[0], *bad, *DUMPED[1:]])), "skip")
    assert canonical(rows, made) == expected
    assert trace.bad.count == len(bad)
    assert {each.line for each in trace.bad.listed} == {*range(2, len(bad) + 2)}


def test_events_that_are_no_requests_are_counted_in_a_note(tmp_path: Path) -> None:
    made, expected = sound("sglang log", tmp_path)
    came = json.dumps({"event": "request.received", "rid": "r0"}).encode()
    rows, trace = made.rows(made.write(tmp_path, made.text([came, *made.records])))
    assert canonical(rows, made) == expected
    list(trace.requests(16))
    assert "1 events of other kinds" in "".join(trace.facts.warnings)
