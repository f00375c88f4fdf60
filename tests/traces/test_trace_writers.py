"""Writers: what they hold comes back, what they lose is said, a file is complete or absent."""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from row_traces import made, opened, rows_of, traces
from trace_helpers import CONVERSATION, needs_conversation

from hicache.errors import InputError
from traces.bailian import BailianReader
from traces.convert import convert, write
from traces.features import survey
from traces.lengths_csv import AzureReader
from traces.mooncake import MooncakeReader
from traces.rows import Layout, Row
from traces.token_ids import TokenIdsReader
from traces.writers import WRITER_NAMES, MooncakeWriter, writer_of

READERS = {
    "mooncake": MooncakeReader(),
    "bailian": BailianReader(),
    "token-ids": TokenIdsReader(),
    "azure": AzureReader(),
}


def timed(rows: list[Row]) -> list[Row]:
    """The rows, each with a time."""
    now: int | float = 0
    for row in rows:
        row.timestamp = now = row.timestamp if row.timestamp is not None else now
    return rows


def spelled(rows: list[Row], layout: Layout) -> list[list[tuple[int, int]]]:
    """Every token of each prompt, as (id, offset); tokens without a name are like no others."""
    prompts = []
    for number, row in enumerate(rows):
        lengths = row.lengths or [layout.block_tokens] * len(row.hash_ids)
        tokens = [
            (each, offset)
            for each, length in zip(row.hash_ids, lengths, strict=True)
            for offset in range(length)
        ][: row.input_length]
        missing = row.input_length - len(tokens)
        prompts.append(tokens + [(-1 - number, place) for place in range(missing)])
    return prompts


def shared(prompts: list[list[Any]], unit: int) -> list[tuple[int, ...]]:
    """For each pair of prompts the leading tokens that are equal, in whole units (or ends)."""
    found = []
    for a in prompts:
        row = []
        for b in prompts:
            common = 0
            while common < min(len(a), len(b)) and a[common] == b[common]:
                common += 1
            # A partly filled last unit is shared only by prompts that end in the same place.
            whole = common // unit * unit
            row.append(common if common == len(a) == len(b) else whole)
        found.append(tuple(row))
    return found


@settings(max_examples=120, deadline=None)
@given(traces(), st.sampled_from(["mooncake", "bailian"]), st.integers(1, 7))
def test_blocks_share_what_the_prompts_share(
    tmp_path_factory: Any, trace: Any, name: str, size: int
) -> None:
    layout, rows = trace
    timed(rows)
    if name == "bailian":
        size = 16
    path = tmp_path_factory.mktemp("blocks") / "t.jsonl"
    write(made(layout, rows), path, name, block_tokens=size)
    stream = opened(path, READERS[name], block_tokens=None if name == "bailian" else size)
    again = rows_of(stream)
    for row, expected in zip(again, rows, strict=True):
        assert (row.input_length, row.output_length) == (
            expected.input_length,
            expected.output_length,
        )
        assert row.timestamp == expected.timestamp
        assert bool(row.session) == bool(expected.session) or name == "bailian"
    if layout.block_tokens == size:
        assert [row.hash_ids for row in again] == [row.hash_ids for row in rows]
    else:
        wanted = shared(spelled(rows, layout), size)
        assert shared(spelled(again, stream.layout), size) == wanted


@settings(max_examples=120, deadline=None)
@given(traces())
def test_token_ids_share_what_the_prompts_share(tmp_path_factory: Any, trace: Any) -> None:
    layout, rows = trace
    timed(rows)
    path = tmp_path_factory.mktemp("tokens") / "t.jsonl"
    write(made(layout, rows), path, "token-ids")
    stream = opened(path, READERS["token-ids"])
    again = rows_of(stream)
    assert [row.timestamp for row in again] == [row.timestamp for row in rows]
    assert shared(spelled(again, stream.layout), 1) == shared(spelled(rows, layout), 1)
    if layout.block_tokens == 1:
        assert [row.hash_ids for row in again] == [row.hash_ids for row in rows]
        assert [row.output_ids for row in again] == [row.output_ids for row in rows]


def test_an_id_with_another_length_is_another_piece(tmp_path: Path) -> None:
    rows = [Row(4, 0, 0, [1], [4]), Row(8, 0, 0, [1], [8]), Row(8, 0, 0, [1, 2], [4, 4])]
    write(made(Layout(0), rows), tmp_path / "t", "token-ids")
    tokens = [row.hash_ids for row in rows_of(opened(tmp_path / "t", READERS["token-ids"]))]
    assert not set(tokens[0]) & set(tokens[1])
    assert tokens[2][:4] == tokens[0]
    write(made(Layout(0), rows), tmp_path / "t", "mooncake", block_tokens=4)
    stream = opened(tmp_path / "t", READERS["mooncake"], block_tokens=4)
    assert [row.hash_ids for row in rows_of(stream)] == [[0], [1, 2], [0, 3]]


@settings(max_examples=60, deadline=None)
@given(traces())
def test_lengths_come_back(tmp_path_factory: Any, trace: Any) -> None:
    layout, rows = trace
    timed(rows)
    path = tmp_path_factory.mktemp("csv") / "t.csv"
    lost = write(made(layout, rows), path, "azure").lost
    assert ("All ids: no request shares a prefix any more." in lost) == layout.has_ids
    again = rows_of(opened(path, READERS["azure"]))
    assert [(r.timestamp, r.input_length, r.output_length) for r in again] == [
        (r.timestamp, r.input_length, r.output_length) for r in rows
    ]


@settings(max_examples=100, deadline=None)
@given(traces(), st.sampled_from(["mooncake", "bailian", "token-ids", "azure"]))
def test_there_and_back_changes_nothing_that_the_format_holds(
    tmp_path_factory: Any, trace: Any, name: str
) -> None:
    """format -> hicache -> format: the same bytes. hicache loses nothing of any of them."""
    layout, rows = trace
    folder = tmp_path_factory.mktemp("back")
    write(made(layout, timed(rows)), folder / "a", name)
    stream = opened(folder / "a", READERS[name])
    features = survey(opened(folder / "a", READERS[name]))
    assert writer_of("hicache").loses(stream.layout, features) == []
    write(stream, folder / "b.gz")
    write(opened(folder / "b.gz"), folder / "c", name)
    assert (folder / "c").read_bytes() == (folder / "a").read_bytes()


def test_what_is_lost_is_said_before_anything_is_written(tmp_path: Path) -> None:
    rows = [
        Row(600, 2, 0, [1], [600], [2], [2], "a", cached_tokens=7),
        Row(700, 2, 9, [1], [700], session="a", after=0, delay=4),
    ]
    path = tmp_path / "t.jsonl"
    told: list[list[str]] = []

    def tell(sentences: list[str]) -> None:
        assert not any(tmp_path.iterdir())
        told.append(sentences)

    features = survey(made(Layout(0), rows))
    done = convert(made(Layout(0), rows), MooncakeWriter(), path, features=features, tell=tell)
    assert done.requests == 2
    assert list(done.lost) == told[0]
    text = " ".join(told[0])
    for part in ("blocks of 512", "1 of 2 requests: which answer", "1 of 2 requests: the ids of",
                 "1 of 2 requests: how many tokens the recorded"):  # fmt: skip
        assert part in text
    path.unlink()
    done = convert(made(Layout(0), rows), MooncakeWriter(), path, tell=tell)
    assert "where the trace says it: which answer a request waits for" in " ".join(told[1])
    assert list(done.lost) == told[0], "known after all, once it was read"


@pytest.mark.parametrize("name", ["mooncake", "bailian", "token-ids", "azure"])
def test_a_row_that_a_format_cannot_hold_is_named(tmp_path: Path, name: str) -> None:
    rows = [Row(2, 1, 0, [1], [2], session="a"), Row(3, 1, None, [1], [2], session="a", after=0)]
    with pytest.raises(InputError, match=rf"request 1 \(line 2\): has no timestamp, which {name}"):
        write(made(Layout(0), rows), tmp_path / "t", name)
    assert not any(tmp_path.iterdir())


def test_writers_refuse_what_nobody_could_read(tmp_path: Path) -> None:
    path = tmp_path / "t"
    with pytest.raises(InputError, match=r"request 0 \(line 1\): ids: 3 ids do not match"):
        write(made(Layout(4), [Row(5, 0, 0, [1, 2, 3])]), path)
    with pytest.raises(InputError, match="is no date in this calendar"):
        write(made(Layout(0), [Row(2, 0, 1e15, [1], [2])]), path, "azure")
    with pytest.raises(InputError, match="format is 'csv': what can be written is hicache, moon"):
        writer_of("csv")
    with pytest.raises(InputError, match="block size is 0"):
        write(made(Layout(0), [Row(2, 0, 0, [1], [2])]), path, "mooncake", block_tokens=0)
    with pytest.raises(InputError, match="azure has no blocks"):
        writer_of("azure", block_tokens=16)
    with pytest.raises(InputError, match="not one request"):
        write(made(Layout(0), []), path)
    assert not any(tmp_path.iterdir())
    assert [writer_of(name).name for name in WRITER_NAMES] == list(WRITER_NAMES)


@pytest.mark.parametrize("ending", ["", ".gz", ".zst"])
def test_a_file_is_complete_or_as_it_was(tmp_path: Path, ending: str) -> None:
    path = tmp_path / f"t.jsonl{ending}"
    path.write_text("before")

    def rows() -> Iterator[Row]:
        for number in range(5000):
            yield Row(2, 1, number, [number], [2])
        raise InputError("line 5001 is bad")

    stream = made(Layout(0), [])
    stream._rows = rows
    with pytest.raises(InputError, match="line 5001"):
        write(stream, path)
    assert path.read_text() == "before"
    assert list(tmp_path.iterdir()) == [path]
    for target in (tmp_path, tmp_path / "no" / "t", Path("/dev/null/t")):
        with pytest.raises(InputError, match="cannot be written"):
            write(made(Layout(0), [Row(2, 1, 0, [1], [2])]), target)


def test_gzip_is_the_same_each_time(tmp_path: Path) -> None:
    rows = [Row(2, 1, number, [number], [2]) for number in range(100)]
    for name in ("a.gz", "b.gz"):
        write(made(Layout(0), rows), tmp_path / name, "mooncake")
    packed = (tmp_path / "a.gz").read_bytes()
    assert packed == (tmp_path / "b.gz").read_bytes()
    assert json.loads(gzip.decompress(packed).splitlines()[99])["hash_ids"] == [99]


@needs_conversation
def test_a_real_trace_through_every_format(tmp_path: Path) -> None:
    """Mooncake's trace, all of it, survives hicache, and keeps its sharing in larger blocks."""
    mooncake = READERS["mooncake"]
    features = survey(opened(CONVERSATION, mooncake))
    assert (features.rows, features.unnamed, features.sessions) == (12_031, 0, 0)
    done = write(opened(CONVERSATION, mooncake), tmp_path / "t.zst")
    assert done.requests == 12_031
    assert done.lost == ()
    write(opened(tmp_path / "t.zst"), tmp_path / "again", "mooncake")
    again = rows_of(opened(tmp_path / "again", mooncake))
    assert again == rows_of(opened(CONVERSATION, mooncake))
    unique = len({each for row in again for each in row.hash_ids})
    write(opened(tmp_path / "t.zst"), tmp_path / "larger", "mooncake", block_tokens=1024)
    larger = rows_of(opened(tmp_path / "larger", mooncake, block_tokens=1024))
    ids = {each for row in larger for each in row.hash_ids}
    assert ids == set(range(len(ids))), "numbered in order of appearance"
    assert unique / 2 < len(ids) < unique
