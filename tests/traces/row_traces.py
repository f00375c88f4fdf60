"""Small traces of rows for tests: made up by hypothesis, written to files, read back."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from hypothesis import strategies as st

from traces.made import MadeRows
from traces.native import NativeReader
from traces.rows import BadRows, Layout, ReadOptions, Row, RowStream
from traces.source import Source


def rows_of(stream: RowStream) -> list[Row]:
    return [row for batch in stream.batches() for row in batch.rows]


def opened(path: Path, reader: Any = None, *, block_tokens: int | None = None) -> RowStream:
    """The rows of a file; this project's own format unless another reader is given."""
    source = Source(path)
    reader = reader or NativeReader()
    assert reader.recognises(source.head())
    return reader.open(source, ReadOptions(block_tokens), BadRows(str(path)))


def is_timed(rows: Sequence[Row]) -> bool:
    return all(row.timestamp is not None for row in rows)


def made(layout: Layout, rows: Sequence[Row]) -> MadeRows:
    return MadeRows(replace(layout, timed=is_timed(rows)), lambda: rows, {"clients": 3})


@st.composite
def traces(draw: st.DrawFn, kinds: Sequence[str] = ("pieces", "tokens", "blocks", "none")) -> Any:
    """(layout, rows): sessions that go on and fork; few different ids, so that much is shared."""
    kind = draw(st.sampled_from(kinds))
    size = draw(st.integers(2, 5))
    layout = Layout({"tokens": 1, "blocks": size}.get(kind, 0), has_ids=kind != "none")
    rows: list[Row] = []
    now: int | float = 0
    for number in range(draw(st.integers(1, 8))):
        now += draw(st.sampled_from([0, 1, 0.25, 1000]))
        after = draw(st.integers(-1, number - 1))
        ids = draw(st.lists(st.integers(0, 9), max_size=6))
        answer = draw(st.lists(st.integers(0, 9), max_size=3))
        parent = rows[after] if after >= 0 and draw(st.booleans()) else None
        row = Row(
            1,
            0,
            now if after < 0 or draw(st.booleans()) else None,
            session=parent.session if parent else draw(st.sampled_from(["", "a", "b"])),
            after=after,
            delay=draw(st.sampled_from([0, 0.5, 700])),
            cached_tokens=draw(st.sampled_from([-1, 0, 3])),
        )
        fill = {"pieces": _pieces, "tokens": _tokens, "blocks": _blocks, "none": _none}[kind]
        fill(row, ids, answer if draw(st.booleans()) else None, parent, size)
        rows.append(row)
    return replace(layout, timed=is_timed(rows)), rows


def _tokens_of(each: int) -> int:
    return each % 4 + 1


def _pieces(row: Row, ids: list[int], answer: list[int] | None, parent: Row | None, _: int) -> None:
    if parent is not None:
        ids = parent.hash_ids + (parent.output_ids or []) + ids
    row.hash_ids = ids or [5]
    row.lengths = [_tokens_of(each) for each in row.hash_ids]
    row.input_length = sum(row.lengths)
    if answer is not None:
        row.output_ids = answer
        row.output_lengths = [_tokens_of(each) for each in answer]
        row.output_length = sum(row.output_lengths)


def _tokens(row: Row, ids: list[int], answer: list[int] | None, parent: Row | None, _: int) -> None:
    if parent is not None:
        ids = parent.hash_ids + (parent.output_ids or []) + ids
    row.hash_ids = ids or [5]
    row.input_length = len(row.hash_ids)
    row.output_ids = answer
    row.output_length = len(answer or [])


def _blocks(
    row: Row, ids: list[int], answer: list[int] | None, parent: Row | None, size: int
) -> None:
    if parent is not None:
        ids = parent.hash_ids[: parent.input_length // size] + (parent.output_ids or []) + ids
    row.hash_ids = ids or [5]
    # The last block is full, or holds one token.
    row.input_length = len(row.hash_ids) * size - (size - 1) * (len(row.hash_ids) % 2)
    row.output_ids = answer
    start = row.input_length // size
    row.output_length = max(0, (start + len(answer or [])) * size - row.input_length)


def _none(row: Row, ids: list[int], answer: list[int] | None, _: Row | None, __: int) -> None:
    row.input_length = len(ids) + 1
    row.output_length = len(answer or [])
