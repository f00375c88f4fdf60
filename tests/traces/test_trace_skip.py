"""Rows that are left out are counted and named; lines that are too long; folders; 64-bit ids."""

from __future__ import annotations

import contextlib
import gzip
import tracemalloc
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from trace_helpers import CONVERSATION, line, needs_conversation, write_lines

from hicache.errors import InputError
from traces import reader as reader_module
from traces import source as source_module
from traces.jsonlines import decode_lines
from traces.mooncake import MooncakeReader
from traces.reader import open_trace
from traces.rows import BadRows, Batch, Layout, ReadOptions, Row
from traces.source import Source


def test_bad_rows_are_left_out_counted_and_named(tmp_path: Path) -> None:
    lines = [
        line([0], 512, 10),
        "{",
        line([0, 1], 1024, 5),
        line([0, 1], 1024, 20),
        line([0, 1, 2], 1024, 30),
        line([0, 1], 1024, 40).replace("40", "NaN"),
        line([0, 1], 1024, 50),
    ]
    trace = open_trace(write_lines(tmp_path / "t", lines), on_error="skip")
    requests = list(trace.requests(512))
    assert [request.number for request in requests] == [0, 1, 2]
    assert [request.arrival_ns for request in requests] == [0, 10_000_000, 40_000_000]
    assert [request.ideal_pages for request in requests] == [0, 1, 2]
    assert trace.facts.bad_rows == trace.bad.count == 4
    listed = sorted(trace.bad.listed, key=lambda each: each.line)
    assert [(each.line, each.field) for each in listed] == [
        (2, ""),
        (3, "timestamp"),
        (5, "hash_ids"),
        (6, "timestamp"),
    ]
    assert str(listed[0]) == "line 2: the JSON is cut off: the line ends inside it"
    assert listed[1].reason.startswith("5 is earlier than 10 of the request before")
    assert listed[2].reason.startswith("3 ids do not match input_length 1024")
    assert str(listed[3]).startswith("line 6, timestamp: is no JSON: invalid character at byte 14")
    (warning,) = trace.facts.warnings
    assert warning.startswith("4 malformed rows were left out: line 2: the JSON is cut off")
    assert warning.endswith("; ...")
    assert trace.facts.complete
    list(trace.requests(512))
    assert trace.bad.count == 4, "counted anew in each pass"


def test_a_trace_of_bad_rows_only(tmp_path: Path) -> None:
    path = write_lines(tmp_path / "t", [line([0, 1], 512)])
    with pytest.raises(InputError, match="not one request in it; 1 malformed row was left out: "):
        list(open_trace(path, on_error="skip").requests(512))
    with pytest.raises(InputError, match="on_error is 'go on'"):
        open_trace(path, on_error="go on")  # type: ignore[arg-type]


@settings(max_examples=60, deadline=None)
@given(
    kinds=st.lists(st.sampled_from(["good", "bad", "blank", "long"]), min_size=1, max_size=12),
    piece=st.sampled_from([7, 100, 1000, 1 << 17]),
    ends=st.booleans(),
)
def test_no_line_is_lost_or_counted_twice(
    tmp_path_factory: pytest.TempPathFactory, kinds: list[str], piece: int, ends: bool
) -> None:
    texts = {"good": line([0], 1), "bad": "{", "blank": "  ", "long": "x" * 5000}
    path = tmp_path_factory.mktemp("lines") / "t"
    path.write_text("\n".join(texts[kind] for kind in kinds) + "\n" * ends)
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(source_module, "PIECE_BYTES", piece)
        patched.setattr(source_module, "LONGEST_LINE_BYTES", 4000)
        source = Source(path)
        bad = source.bad = BadRows("t", skip=True)
        stream = MooncakeReader().open(source, ReadOptions(), bad)
        lines = [at for batch in stream.batches() for at in batch.lines]
    assert lines == [at for at, kind in enumerate(kinds, 1) if kind == "good"]
    wrong = [at for at, kind in enumerate(kinds, 1) if kind in ("bad", "long")]
    assert [each.line for each in bad.listed] == wrong


@pytest.mark.slow
def test_a_line_of_200_mib_is_never_in_memory(tmp_path: Path) -> None:
    path = tmp_path / "t.gz"
    with gzip.open(path, "wb", 1) as file:
        file.write(f"{line([0], 512)}\n".encode())
        for _ in range(200):
            file.write(b"x" * (1 << 20))
        file.write(f"\n{line([0], 512)}\n".encode())
    with pytest.raises(InputError, match=r"line 2: longer than 64 MiB; a trace has one request"):
        list(open_trace(path).requests(512))
    trace = open_trace(path, on_error="skip")
    tracemalloc.start()
    assert [request.ideal_pages for request in trace.requests(512)] == [0, 1]
    _, peak_bytes = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak_bytes < 80 << 20
    assert [each.line for each in trace.bad.listed] == [2]


def test_ids_of_64_bits(tmp_path: Path) -> None:
    large = [(1 << 64) - 1, 1 << 63, 7]
    path = write_lines(tmp_path / "t", [line(large, 1500, 1), line(large[:2], 1024, 2)])
    assert [request.ideal_pages for request in open_trace(path).requests(64)] == [0, 16]


class Numbers(msgspec.Struct):
    a: int


def test_a_piece_is_decoded_like_its_lines() -> None:
    decoder = msgspec.json.Decoder(Numbers)
    for text, rows in (
        (b'{"a":1}\n{"a":2}', [(1, 7), (2, 8)]),
        (b'{"a":1}\r\n\n{"a":2}\n', [(1, 7), (2, 9)]),
        (b'{"a":1}\n{"a":\n2}\n{"a":3}{"a":4}\n{"a":5}', [(1, 7), (5, 11)]),
        (b'{"a":1}\n{"a":2,"x":"\xff"}\n{"a":"3"}\n', [(1, 7)]),
        (b'{"a":1}\n{"a":2,"x":' + b"[" * 100_000, [(1, 7)]),
        (b"", []),
    ):
        bad = BadRows("f", skip=True)
        found, lines = decode_lines(decoder, 7, text, bad)
        assert list(zip([row.a for row in found], lines, strict=True)) == rows
        assert len(rows) + bad.count == sum(1 for each in text.split(b"\n") if each.strip())


class TwoFiles:
    """A format of its own for this test: each line is a prompt's length; a folder is one trace."""

    name = "two-files"
    describes = "numbers"

    def recognises(self, head: bytes) -> bool:
        return head[:1].isdigit()

    def open(self, source: Source, options: ReadOptions, bad: BadRows) -> TwoFilesStream:
        return TwoFilesStream([source], bad)

    def open_folder(
        self, sources: list[Source], options: ReadOptions, bad: BadRows
    ) -> TwoFilesStream:
        return TwoFilesStream(sources, bad)


class TwoFilesStream:
    layout = Layout(0, has_ids=False)

    def __init__(self, sources: list[Source], bad: BadRows) -> None:
        self.notes: list[str] = []
        self.sources = sources
        self.bad = bad

    def batches(self) -> Iterator[Batch]:
        for source in self.sources:
            self.bad.name = source.name
            for first, piece in source.pieces():
                for number, text in enumerate(piece.split(), first):
                    if text.isdigit():
                        yield Batch([Row(int(text), 1, 0)], [number])
                    else:
                        self.bad.refuse(number, "", "is no number")


def test_a_folder_is_one_trace_where_the_format_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reader_module, "readers", lambda: iter((TwoFiles(), MooncakeReader())))
    folder = tmp_path / "a folder"
    folder.mkdir()
    (folder / "2.jsonl").write_text("30\nx\n")
    (folder / "1.json.gz").write_bytes(gzip.compress(b"10\n20\n"))
    (folder / "LICENSE").write_text("may be there")
    (folder / ".hidden.json").write_text("may be there")
    told: list[tuple[int, int | None]] = []
    trace = open_trace(
        f"{folder}/", on_error="skip", progress=lambda done, total: told.append((done, total))
    )
    assert (trace.name, trace.format) == ("a folder", "two-files")
    assert [request.prompt_tokens for request in trace.requests(16)] == [10, 20, 30]
    assert str(trace.bad.listed[0].file) == str(folder / "2.jsonl")
    (warning,) = trace.facts.warnings
    assert warning == (f"1 malformed row was left out: {folder / '2.jsonl'}, line 2: is no number")
    sizes = (folder / "1.json.gz").stat().st_size, (folder / "2.jsonl").stat().st_size
    assert told[-1] == (sum(sizes), sum(sizes))
    first = trace.sha256
    (folder / "2.jsonl").write_text("40\n")
    assert open_trace(folder).sha256 != first == trace.facts.sha256
    (folder / "2.jsonl").write_text("y\n")
    with pytest.raises(InputError, match=r"2\.jsonl, line 1: is no number"):
        list(open_trace(folder).requests(16))


def test_a_folder_of_a_format_that_is_single_files(tmp_path: Path) -> None:
    write_lines(tmp_path / "a.jsonl", [line([0], 512)])
    assert sum(1 for _ in open_trace(tmp_path).requests(512)) == 1
    write_lines(tmp_path / "b.jsonl", [line([0], 512)])
    with pytest.raises(InputError, match=r"is a folder of 2 files; .* a\.jsonl \(mooncake\), is a"):
        open_trace(tmp_path)


@needs_conversation
def test_ceilings_of_the_real_conversation() -> None:
    trace = open_trace(CONVERSATION)
    for page, of_tokens in ((512, 0.3734), (64, 0.3736), (1024, 0.3396), (16384, 0.1667)):
        for _ in trace.requests(page):
            pass
        facts = trace.facts
        assert round(facts.ideal_blocks / facts.blocks, 4) == 0.3664
        assert facts.unique_blocks == 182_790
        assert round(facts.ideal_tokens / facts.prompt_tokens, 4) == of_tokens


DELTA = (
    '{"session_id": "a", "timestamp": 0.0, "input_length": 700, "output_length": 9, '
    '"hash_ids": [0, 1]}',
    '{"session_id": "a", "delay": 2450.3, "input_length": 100, "output_length": 9, '
    '"hash_ids": [9]}',
)


@settings(max_examples=300, deadline=None)
@given(
    lines=st.sampled_from([[line([0, each], 1000 + each, each) for each in range(6)], [*DELTA]]),
    edits=st.lists(
        st.tuples(
            st.integers(0, 10**6),
            st.integers(0, 4),
            st.one_of(
                st.binary(max_size=3),
                st.sampled_from([b"-", b"null", b"1e999", b"NaN", b"[" * 3000, b"9" * 5000, b"\n"]),
            ),
        ),
        min_size=1,
        max_size=4,
    ),
)
def test_mutated_lines_are_refused_or_left_out_and_none_is_lost(
    tmp_path_factory: pytest.TempPathFactory,
    lines: list[str],
    edits: list[tuple[int, int, bytes]],
) -> None:
    text = bytearray("\n".join(lines).encode())
    for at, count, put in edits:
        at %= len(text) or 1
        text[at : at + count] = put
    path = tmp_path_factory.mktemp("mutated") / "t"
    path.write_bytes(text)
    with contextlib.suppress(InputError):
        list(open_trace(path).requests(64))
    try:
        trace = open_trace(path, on_error="skip")
        requests = list(trace.requests(64))
    except InputError:
        return  # no trace any more, or no row left in it
    there = sum(
        1 for each in bytes(text).removeprefix(b"\xef\xbb\xbf").split(b"\n") if each.strip()
    )
    assert len(requests) + trace.bad.count == there
