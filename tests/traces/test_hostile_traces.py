"""What nobody writes by accident: bombs, odd files, files that change, numbers out of range."""

from __future__ import annotations

import gzip
import json
import os
import subprocess
import sys
import tracemalloc
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from reader_contract import check_contract
from reader_samples import DUMPED, dump_of, rows_of, sample
from trace_helpers import REPOSITORY, line, write_lines

from hicache.errors import InputError
from traces import block_keys, jsonstream, weka
from traces.blocks import PageCutter
from traces.joined import JoinedCutter
from traces.reader import open_trace
from traces.rows import Row

MOONCAKE = [line([0, each], 1000, each) for each in range(1, 9)]

# --- Files and pipes


def test_standard_input_that_is_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", None)
    with pytest.raises(InputError, match="standard input: cannot be opened: it is closed"):
        open_trace("-")


READ_STDIN = (
    "import os, sys; from traces.reader import open_trace;"
    "os.set_blocking(0, {blocking});"
    "print(sum(len(batch.rows) for batch in open_trace('-').stream().batches()))"
)


@pytest.mark.parametrize("blocking", [True, False])
@pytest.mark.parametrize("packed", [bytes, gzip.compress])
def test_a_slow_pipe_is_read_to_its_end(blocking: bool, packed: Any) -> None:
    """The first bytes come one by one, and the pipe may not block."""
    data = packed("".join(f"{each}\n" for each in MOONCAKE).encode())
    reader = subprocess.Popen(
        [sys.executable, "-c", READ_STDIN.format(blocking=blocking)],
        cwd=REPOSITORY,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        bufsize=0,
    )
    assert reader.stdin is not None
    assert reader.stdout is not None
    for part in (data[:1], data[1:2], data[2:5], data[5:70], data[70:]):
        os.write(reader.stdin.fileno(), part)
        with pytest.raises(subprocess.TimeoutExpired):
            reader.wait(0.1)
    reader.stdin.close()
    with reader.stdout as answer:
        assert answer.read().strip() == b"8"
    assert reader.wait() == 0


def test_an_empty_pipe() -> None:
    done = subprocess.run(
        [sys.executable, "-c", READ_STDIN.format(blocking=True)],
        cwd=REPOSITORY,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stderr.splitlines()[-1].endswith("standard input: the trace is empty")


def test_files_that_are_none(tmp_path: Path) -> None:
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    with pytest.raises(InputError, match="loop: cannot be opened: Too many levels of symbolic"):
        open_trace(tmp_path / "loop")
    if os.path.exists("/proc/self/mem"):
        with pytest.raises(InputError, match="mem: cannot be read: Input/output error"):
            open_trace("/proc/self/mem")
    if os.path.exists("/dev/zero"):
        with pytest.raises(InputError, match="zero, line 1: binary data"):
            open_trace("/dev/zero")


@pytest.mark.parametrize("stays", [True, False])
def test_a_file_that_changes_after_it_was_opened(tmp_path: Path, stays: bool) -> None:
    path = write_lines(tmp_path / "t", MOONCAKE)

    def opened() -> Any:
        trace = open_trace(path, on_error="skip")
        trace._sources[0].stays_open = stays
        return trace

    trace = opened()
    path.write_bytes(gzip.compress(path.read_bytes()))
    assert len(rows_of(trace)) == 8
    path.write_text("")
    with pytest.raises(InputError, match="the trace is empty"):
        list(trace.requests(512))
    write_lines(path, ["[1, 2]", "{", MOONCAKE[0]])
    assert len(rows_of(trace)) == 1
    assert trace.bad.count == 2
    path.unlink()
    with pytest.raises(InputError, match=r"t: cannot be (opened|read): No such file"):
        rows_of(trace)
    path.mkdir()
    with pytest.raises(InputError, match=r"t: cannot be (opened|read): Is a directory"):
        rows_of(trace)


def test_a_folder_of_more_sessions_than_files_may_be_open(tmp_path: Path) -> None:
    resource = pytest.importorskip("resource")
    sessions = weka.MOST_OPEN_FILES + 40
    text = sample("weka").text()
    for number in range(sessions):
        packed = gzip.compress(text) if number % 2 else text
        (tmp_path / f"{number}.json").write_bytes(packed)
    (tmp_path / "LICENSE").write_text("is no trace")
    os.mkfifo(tmp_path / "pipe.json")
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (len(os.listdir("/dev/fd")) + 20, limits[1]))
    try:
        trace = open_trace(tmp_path)
        rows = rows_of(trace)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)
    assert len(rows) == sessions * len(sample("weka").records)
    assert len({row.session for row in rows}) == sessions
    check_contract(rows, trace.layout)


def test_a_folder_with_a_file_of_another_format_is_refused(tmp_path: Path) -> None:
    made = sample("weka")
    made.write(tmp_path, name="a.json")
    (tmp_path / "package.json").write_text('{"name": "x", "files": []}')
    with pytest.raises(InputError, match=r"package\.json, line 1, requests: is missing"):
        rows_of(open_trace(tmp_path, on_error="skip"))


# --- Bombs


def test_blank_lines_without_end_take_no_memory(tmp_path: Path) -> None:
    made = sample("hicache pieces")
    blank = b"\n" * 400_000
    record = made.records[0].replace(b'"s0"', b'"s9", "after": 1')
    path = made.write(tmp_path, gzip.compress(made.text([*made.records[:2], blank, record])))
    tracemalloc.start()
    try:
        rows, trace = made.rows(path, "skip")
        _, peak_bytes = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert [row.after for row in rows] == [-1, -1]
    assert trace.bad.count == 1  # its time falls
    assert peak_bytes < 8 << 20


def test_rows_are_counted_right_around_many_gaps(tmp_path: Path) -> None:
    """`after` names lines of the file; the rows that are left have other numbers."""
    made = sample("hicache pieces")
    records, expected = [], []
    for number in range(40):
        if number % 5 in (1, 2):
            records.append(b"" if number % 2 else b"{")
            continue
        after = number - 5 if number >= 5 else -1
        record = json.loads(made.records[0]) | {"session": f"s{number}", "after": after}
        records.append(json.dumps(record).encode())
        expected.append(len(expected) - 3 if number >= 5 else -1)
    rows, _ = made.rows(made.write(tmp_path, made.text(records)), "skip")
    assert [row.after for row in rows] == expected
    waits = json.dumps(json.loads(made.records[0]) | {"after": 7}).encode()
    path = made.write(tmp_path, made.text([*records, waits]))
    _, trace = made.rows(path, "skip")
    assert str(trace.bad.listed[-1]) == "line 42, after: row 7 is blank or was left out"


def test_members_beside_the_array_are_bounded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(jsonstream, "LONGEST_ELEMENT_BYTES", 1 << 20)
    made = sample("weka")
    for members in (
        b"".join(b'"a%d": 1, ' % each for each in range(9000)),
        b"".join(b'"a%d": "%s", ' % (each, b"x" * 400_000) for each in range(4)),
    ):
        head = made.head.replace(b'"requests"', members + b'"requests"')
        path = made.write(tmp_path, head + made.text()[len(made.head) :])
        with pytest.raises(InputError, match="with those before, it is longer than 1 MiB"):
            made.rows(path)


def test_keys_that_are_there_twice_in_a_document(tmp_path: Path) -> None:
    made = sample("weka")
    for twice in (b'"block_size": 64, ', b'"requests": [], '):
        text = made.text().replace(b'"block_size"', twice + b'"block_size"', 1)
        with pytest.raises(InputError, match="is there twice"):
            made.rows(made.write(tmp_path, text))


def test_a_key_twice_is_found_wherever_it_stands(tmp_path: Path) -> None:
    """Also where another row lacks it, and where it is a text or a key of something else."""
    sound = [
        '{"timestamp": 1, "input_length": 5, "output_length": 1, "hash_ids": [1]}',
        '{"timestamp": 1, "input_length": 5, "output_length": 1, "hash_ids": [1], '
        '"x": {"timestamp": 7, "y": "timestamp"}, "session_id": "hash_ids"}',
    ]
    twice = sound[0].replace("}", ', "session_id": 1, "session_id": 2}')
    path = write_lines(tmp_path / "t", [*sound, twice, *sound])
    trace = open_trace(path, on_error="skip")
    assert [row.session for row in rows_of(trace)] == ["", "hash_ids", "", "hash_ids"]
    assert [str(each) for each in trace.bad.listed] == ["line 3, session_id: is there twice"]


def test_a_key_twice_in_an_inner_object(tmp_path: Path) -> None:
    made = sample("ragpulse")
    bad = made.records[1].replace(b'"history"', b'"history": [], "history"')
    path = made.write(tmp_path, made.text([made.records[0], bad]))
    with pytest.raises(InputError, match=r"line 2, hash_ids\.history: is there twice"):
        made.rows(path)


def test_a_row_of_many_columns(tmp_path: Path) -> None:
    made = sample("azure")
    bad = b'"' + b"," * 200_000 + b'"'
    rows, trace = made.rows(made.write(tmp_path, made.text([made.records[0], bad])), "skip")
    assert len(rows) == 1
    assert trace.bad.listed[0].reason.startswith("is no row: it has more than 10,000 characters")


@pytest.mark.parametrize(
    "pairs",
    [
        "[{'Q': 'a', 'A': [1j]}]",
        "[{'Q': 'a', 'A': [...]}]",
        "[{'Q': 'a', 'A': [{(1, 2): 3}]}]",
        "[{'Q': 'a', 'A': ['\\ud800']}]",
        "[{'Q': '\\ud800', 'A': 'a'}]",
        "[" * 100_000,
        "-" * 100_000 + "1",
        "1 < " * 50_000 + "1",
        "a" + ".b" * 100_000,
        "[{'Q': 'a', 'A': 1" + "0" * 5000 + "}]",
        "\0",
    ],
    ids=lambda pairs: pairs[:20],
)
def test_pairs_that_python_would_choke_on(tmp_path: Path, pairs: str) -> None:
    made = sample("loogle")
    bad = json.dumps({"input": "the page", "qa_pairs": pairs}).encode()
    rows, trace = made.rows(
        made.write(tmp_path, made.text([made.records[0], bad, made.records[1]])), "skip"
    )
    assert len(rows) == 2
    assert [(each.line, each.field) for each in trace.bad.listed] == [(2, "qa_pairs")]


@pytest.mark.parametrize(
    "data",
    [
        b"\x80\x04" + b"]" * 100_000 + b"a" * 99_999 + b".",
        b"\x80\x04]" + b"\x85" * 100_000 + b".",
        b"\x80\x04cmodule\nname\n)R" + b")R" * 100_000 + b".",
        b"\x80\x04]\x94(h\0h\0h\0h\0ta.",
    ],
    ids=["lists", "tuples", "objects", "itself"],
)
def test_a_pickle_that_is_deep_or_holds_itself(tmp_path: Path, data: bytes) -> None:
    made = sample("sglang dump")
    path = made.write(tmp_path, data)
    with pytest.raises(InputError, match="line 1"):
        made.rows(path)


# --- Numbers out of range


def test_hashes_of_64_bits_fit_into_rows_and_stay_apart(tmp_path: Path) -> None:
    large = [(1 << 64) - 1, 1 << 63, 7, (1 << 60) - 1, 1 << 60, (1 << 60) + 1, 1 << 62]
    lines = [line(large[start:], 512 * (len(large) - start)) for start in (0, 2, 0, 5)]
    trace = open_trace(write_lines(tmp_path / "t", lines))
    rows = rows_of(trace)
    check_contract(rows, trace.layout)
    number_of = dict(zip(large, rows[0].hash_ids, strict=True))
    assert len(set(number_of.values())) == len(large)
    assert (number_of[7], number_of[(1 << 60) - 1]) == (7, (1 << 60) - 1)
    for start, row in zip((0, 2, 0, 5), rows, strict=True):
        assert row.hash_ids == [number_of[each] for each in large[start:]]
    assert rows_of(trace) == rows


@pytest.mark.parametrize("field", ["timestamp", "delay"])
def test_times_further_apart_than_ten_years_are_refused(tmp_path: Path, field: str) -> None:
    """They would not fit into the nanoseconds of a result."""
    made = sample("hicache pieces")
    days_ms = 4000 * 86_400_000
    value = json.loads(made.records[1])
    value |= {"timestamp": days_ms} if field == "timestamp" else {"after": 0, "delay": days_ms}
    path = made.write(tmp_path, made.text([made.records[0], json.dumps(value).encode()]))
    with pytest.raises(InputError, match=rf"line 3, {field}: is 11 years.*; is it in another unit"):
        list(open_trace(path).requests(16))
    assert len(list(open_trace(path, speed=2).requests(16))) == 2
    with pytest.raises(InputError, match=r"is 110 years.* at speed 0\.1; is it"):
        list(open_trace(path, speed=0.1).requests(16))


def test_a_first_row_that_is_broken_does_not_hide_that_there_are_ids(tmp_path: Path) -> None:
    made = sample("token ids")
    broken = made.records[0].replace(b", ", b" ", 1)
    rows, trace = made.rows(made.write(tmp_path, made.text([broken, *made.records[1:]])), "skip")
    assert trace.layout.has_ids
    assert len(rows) == len(made.records) - 1


def test_requests_of_several_dumps_that_are_one_folder(tmp_path: Path) -> None:
    for number in range(70):
        obj, out, start_s, end_s = DUMPED[0]
        entry = (obj, out, start_s + number, end_s + number)
        (tmp_path / f"{number:03}.pkl").write_bytes(dump_of([entry]))
    (tmp_path / "000.pkl").write_bytes(b"")
    with pytest.raises(InputError, match=r"000\.pkl: the trace is empty"):
        open_trace(tmp_path)
    (tmp_path / "000.pkl").unlink()
    (tmp_path / "069.pkl").write_bytes(dump_of(DUMPED)[:-9])
    with pytest.raises(InputError, match=r"069\.pkl, line 1: the pickle is "):
        rows_of(open_trace(tmp_path))


# --- Long prompts


@st.composite
def prompts(draw: st.DrawFn) -> list[Row]:
    """Conversations that go on, fork and jump back, with ids of all kinds."""
    contexts: list[list[int]] = [[]]
    numbered = draw(st.booleans())
    rows: list[Row] = []
    fresh = 0
    for _ in range(draw(st.integers(1, 12))):
        context = draw(st.sampled_from(contexts))
        ids = context[: draw(st.integers(len(context) // 2, len(context)))]
        for _ in range(draw(st.integers(0 if ids else 1, 4))):
            ids.append(fresh if draw(st.integers(0, 5)) else draw(st.integers(0, 6)))
            fresh += 1 if numbered else 1_000_003
        tokens = len(ids) * 2 - draw(st.integers(0, 1))
        row = Row(tokens, draw(st.integers(0, 5)), 0, ids)
        context = list(ids)
        if draw(st.booleans()):
            room = (tokens + row.output_length) // 2 - tokens // 2
            row.output_ids = list(range(fresh, fresh + room))
            fresh += room
            context = [*ids[: tokens // 2], *row.output_ids]
        contexts.append(context)
        rows.append(row)
    return rows


@settings(max_examples=300, deadline=None)
@given(
    rows=prompts(), most=st.sampled_from([3, 20, 1000]), pages=st.sampled_from(["full", "partial"])
)
def test_remembering_long_prompts_changes_no_key(rows: list[Row], most: int, pages: Any) -> None:
    cut = []
    for least in (1 << 30, 1):
        with pytest.MonkeyPatch.context() as patched:
            patched.setattr(block_keys, "LONG_PROMPT_BLOCKS", least)
            patched.setattr(block_keys, "MOST_LATEST_BLOCKS", most)
            cutters = (PageCutter(2, 1, pages), PageCutter(2, 2, pages), JoinedCutter(2, 4, pages))
            found = [[cutter.cut_row(row) for row in rows] for cutter in cutters]
            cut.append((found, [(each.unique_blocks, each.ideal_blocks) for each in cutters]))
    assert cut[0] == cut[1]
