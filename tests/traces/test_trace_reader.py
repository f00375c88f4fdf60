"""Opening and streaming a trace: formats, compression, pipes, facts, progress."""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import os
import subprocess
import sys
import threading
from pathlib import Path

import pyarrow as pa
import pytest
from trace_helpers import REPOSITORY, line, write_lines

from hicache.errors import InputError
from hicache.requests import Request
from traces import source as source_module
from traces.reader import open_trace

LINES = [
    line([0, 1], 1000, 0, 5),
    line([0, 2], 900, 0.5, 0),
    line([0, 1, 3], 1300, 2000, 7),
]


def as_tuple(request: Request) -> tuple[object, ...]:
    return (
        request.number,
        request.arrival_ns,
        request.prompt_tokens,
        request.output_tokens,
        tuple(request.prompt_runs),
        request.prompt_pages,
        request.ideal_pages,
    )


EXPECTED = [
    (0, 0, 1000, 5, ((0, 2),), 2, 0),
    (1, 500_000, 900, 0, ((0, 1), (2, 1)), 2, 1),
    (2, 2_000_000_000, 1300, 7, ((0, 2), (3, 1)), 3, 2),
]


def packed(text: bytes, how: str) -> bytes:
    if how == "gzip":
        return gzip.compress(text)
    if how == "gzip in two members":
        return gzip.compress(text[:77]) + gzip.compress(text[77:])
    if how == "zstd":
        return pa.compress(text, codec="zstd", asbytes=True)
    return text


@pytest.mark.parametrize("how", ["plain", "gzip", "gzip in two members", "zstd"])
def test_plain_and_compressed_files_are_the_same_trace(tmp_path: Path, how: str) -> None:
    text = "".join(f"{each}\n" for each in LINES).encode()
    path = tmp_path / "some.name"
    path.write_bytes(packed(text, how))
    trace = open_trace(path)
    assert [as_tuple(r) for r in trace.requests(512, "partial")] == EXPECTED
    facts = trace.facts
    assert facts.complete
    assert (facts.requests, facts.prompt_tokens, facts.output_tokens) == (3, 3200, 12)
    assert (facts.blocks, facts.unique_blocks, facts.prompt_pages) == (7, 4, 7)
    assert (facts.ideal_pages, facts.ideal_tokens, facts.longest_prompt_tokens) == (3, 1536, 1300)
    assert (facts.first_timestamp_ms, facts.last_timestamp_ms, facts.duration_s) == (0, 2000, 2.0)
    assert facts.sha256 == trace.sha256 == hashlib.sha256(text).hexdigest()
    assert facts.warnings == []
    assert open_trace(path).sha256 == facts.sha256


def test_a_trace_can_be_read_again_at_another_page_size(tmp_path: Path) -> None:
    trace = open_trace(write_lines(tmp_path / "t.jsonl", LINES))
    assert [as_tuple(r) for r in trace.requests(512, "partial")] == EXPECTED
    assert [r.prompt_pages for r in trace.requests(256)] == [3, 3, 5]
    assert trace.facts.prompt_pages == 11
    assert [as_tuple(r) for r in trace.requests(512, "partial")] == EXPECTED


def test_names_and_format(tmp_path: Path) -> None:
    for name in ("day.jsonl", "day.jsonl.gz", "day.json.zst", "day"):
        trace = open_trace(write_lines(tmp_path / name, LINES))
        assert (trace.name, trace.format, trace.block_tokens) == ("day", "mooncake", 512)


def test_arrivals_count_from_the_first_request_and_are_divided_by_speed(tmp_path: Path) -> None:
    path = write_lines(tmp_path / "t", [line([0], 1, t) for t in (5000, 5000.25, 5003)])
    assert [r.arrival_ns for r in open_trace(path).requests(1)] == [0, 250_000, 3_000_000]
    slow, fast = open_trace(path, speed=0.5), open_trace(path, speed=3)
    assert [r.arrival_ns for r in slow.requests(1)] == [0, 500_000, 6_000_000]
    assert [r.arrival_ns for r in fast.requests(1)] == [0, 83_333, 1_000_000]


@pytest.mark.parametrize("speed", [0, -1, float("nan"), float("inf"), 1e-9])
def test_a_speed_that_is_none(tmp_path: Path, speed: float) -> None:
    path = write_lines(tmp_path / "t", LINES)
    with pytest.raises(InputError, match="speed is"):
        open_trace(path, speed=speed)


@pytest.mark.parametrize("first", [-1, -1_000_000, 0, 10**12])
def test_timestamps_may_begin_anywhere(tmp_path: Path, first: int) -> None:
    rows = [line([place], 100, first + place * 1000) for place in range(3)]
    trace = open_trace(write_lines(tmp_path / "t.jsonl", rows))
    assert [each.arrival_ns for each in trace.requests(512)] == [0, 10**9, 2 * 10**9]
    assert trace.facts.first_timestamp_ms == first


def test_a_bad_page_size_is_refused_at_the_call(tmp_path: Path) -> None:
    trace = open_trace(write_lines(tmp_path / "t", LINES))
    with pytest.raises(InputError, match="page size 3 does not divide"):
        trace.requests(3)
    with pytest.raises(InputError, match="block size is -1"):
        open_trace(tmp_path / "t", block_tokens=-1)
    assert open_trace(tmp_path / "t", block_tokens=0).block_tokens == 512


def test_what_is_tolerated(tmp_path: Path) -> None:
    """Blank lines, CRLF, a byte order mark, other keys, no last newline, a tail without an id."""
    other = json.dumps(
        {
            "id": "a",
            "timestamp": 9,
            "hash_ids": [0],
            "input_length": 700,
            "output_length": 0,
            "x": {"y": [1]},
        }
    )
    text = f"\n{LINES[0]}\r\n\r\n   \n{other}\n\n{line([0, 1], 1024, 10)}"
    path = tmp_path / "t"
    path.write_bytes(b"\xef\xbb\xbf" + text.encode())
    trace = open_trace(path)
    requests = list(trace.requests(512, "partial"))
    assert [(r.prompt_pages, r.ideal_pages) for r in requests] == [(2, 0), (1, 1), (2, 2)]
    assert trace.facts.requests_without_tail_id == 1
    assert trace.facts.warnings == [
        "1 of 3 prompts have tokens behind their last id (a partly filled last block, most often), "
        "which never hit and are always computed"
    ]


def test_a_tokenizer_or_a_part_of_a_folder_that_is_not_used_is_said(tmp_path: Path) -> None:
    write_lines(tmp_path / "t.jsonl", [line([0], 512)])
    (tmp_path / "README.md").write_text("no trace")
    (tmp_path / "more").mkdir()
    trace = open_trace(tmp_path, tokenizer="nowhere.json")
    list(trace.requests(512))
    assert trace.facts.warnings == [
        "the tokenizer is not used: a mooncake trace holds no texts",
        "of the folder, t.jsonl was read, but not more",
    ]


def test_ids_that_are_not_chained_are_said_so(tmp_path: Path) -> None:
    lines = [line([0, 1], 1024), "", line([1], 512), line([0, 1], 1024)]
    trace = open_trace(write_lines(tmp_path / "t", lines))
    assert [r.ideal_pages for r in trace.requests(512)] == [0, 0, 2]
    (warning,) = trace.facts.warnings
    assert warning.startswith("line 3: an id follows another id than before")


def test_it_streams(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Requests come before the rest of the file is read, and closing early closes the file."""
    monkeypatch.setattr(source_module, "PIECE_BYTES", 1000)
    lines = [line([0], 512, t) for t in range(100)] + ["no json"]
    trace = open_trace(write_lines(tmp_path / "t", lines))
    requests = trace.requests(512)
    assert next(requests).number == 0
    assert 0 < trace.facts.requests < 20
    assert not trace.facts.complete
    requests.close()  # type: ignore[attr-defined]
    with pytest.raises(InputError, match="line 101"):
        list(trace.requests(512))


def test_pieces_of_any_size_give_the_same_requests(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write_lines(tmp_path / "t", LINES)
    for size in (1, 7, 64, 70, 1000):
        monkeypatch.setattr(source_module, "PIECE_BYTES", size)
        assert [as_tuple(r) for r in open_trace(path).requests(512, "partial")] == EXPECTED


@pytest.mark.parametrize("how", ["plain", "gzip", "zstd"])
def test_standard_input_can_be_read_once(monkeypatch: pytest.MonkeyPatch, how: str) -> None:
    text = "".join(f"{each}\n" for each in LINES).encode()
    stdin = io.TextIOWrapper(io.BytesIO(packed(text, how)))
    monkeypatch.setattr(sys, "stdin", stdin)
    trace = open_trace("-")
    assert trace.name == "stdin"
    with pytest.raises(InputError, match="standard input: its SHA-256 is known once"):
        _ = trace.sha256
    assert [as_tuple(r) for r in trace.requests(512, "partial")] == EXPECTED
    assert trace.sha256 == hashlib.sha256(text).hexdigest()
    assert not stdin.buffer.closed
    with pytest.raises(InputError, match="standard input: can be read only once"):
        list(trace.requests(512))


def test_a_named_pipe_is_read_once_too(tmp_path: Path) -> None:
    path = tmp_path / "pipe"
    os.mkfifo(path)
    text = "".join(f"{each}\n" for each in LINES)
    writer = threading.Thread(target=path.write_text, args=(text,))
    writer.start()
    trace = open_trace(path)
    assert [as_tuple(r) for r in trace.requests(512, "partial")] == EXPECTED
    writer.join()
    with pytest.raises(InputError, match="can be read only once"):
        list(trace.requests(512))


@pytest.mark.parametrize("how", ["plain", "gzip", "zstd"])
def test_progress_is_told_in_bytes_of_the_file(tmp_path: Path, how: str) -> None:
    text = "".join(f"{line([0], 512, t)}\n" for t in range(20_000)).encode()
    path = tmp_path / "t"
    path.write_bytes(packed(text, how))
    told: list[tuple[int, int | None]] = []
    trace = open_trace(path, progress=lambda done, total: told.append((done, total)))
    assert told == []
    assert sum(1 for _ in trace.requests(512)) == 20_000
    size = path.stat().st_size
    assert len(told) > 5
    assert told == sorted(told, key=lambda each: each[0])
    assert told[-1] == (size, size)


def test_importing_traces_is_cheap() -> None:
    heavy = ["numpy", "pandas", "pyarrow", "rich", "matplotlib", "simpy"]
    program = (
        "import sys, traces, traces.reader, traces.progress, traces.generator, traces.__main__;"
        f"print([name for name in {heavy!r} if name in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=REPOSITORY, capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "[]"
