"""What is shared stays, to the block; ids, names and times say nothing; the salt decides."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from row_traces import made, opened, rows_of, traces

from hicache.errors import InputError
from traces.anonymize import anonymize
from traces.convert import write
from traces.made import MadeRows, hints_of
from traces.rows import LARGEST_ID, Layout, Row

SALT = b"for tests"


def hidden(layout: Layout, rows: list[Row], **options: Any) -> list[Row]:
    options.setdefault("salt", SALT)
    return rows_of(anonymize(made(layout, rows), **options))


def spelled(row: Row, layout: Layout, number: int) -> list[Any]:
    """Every token of the prompt; those without a name are like no others."""
    lengths = row.lengths or [layout.block_tokens] * len(row.hash_ids)
    pairs = zip(row.hash_ids, lengths, strict=True)
    tokens: list[Any] = [(each, place) for each, length in pairs for place in range(length)]
    del tokens[row.input_length :]
    return tokens + [(number, place, "unnamed") for place in range(row.input_length - len(tokens))]


@settings(max_examples=150, deadline=None)
@given(traces(("pieces", "tokens", "blocks")), st.integers(1, 6))
def test_ids_are_equal_where_all_tokens_up_to_there_are(trace: Any, size: int) -> None:
    layout, rows = trace
    meant: dict[int, Any] = {}
    ids_of: dict[Any, int] = {}
    for number, (row, old) in enumerate(
        zip(hidden(layout, rows, block_tokens=size), rows, strict=True)
    ):
        tokens = spelled(old, layout, number)
        assert row.lengths is None
        assert len(row.hash_ids) == -(-len(tokens) // size)
        for index, each in enumerate(row.hash_ids):
            prefix = tuple(tokens[: (index + 1) * size])
            assert meant.setdefault(each, prefix) == prefix
            assert ids_of.setdefault(prefix, each) == each
            assert 0 <= each <= LARGEST_ID
        assert (row.input_length, row.output_length, row.delay, row.after, row.cached_tokens) == (
            old.input_length, old.output_length, old.delay, old.after, -1,
        )  # fmt: skip


@settings(max_examples=60, deadline=None)
@given(traces(("pieces", "tokens", "blocks")), st.integers(1, 6))
def test_what_was_made_anonymous_is_a_sound_trace(
    tmp_path_factory: Any, trace: Any, size: int
) -> None:
    layout, rows = trace
    path = tmp_path_factory.mktemp("anonymous") / "t"
    write(anonymize(made(layout, rows), salt=SALT, block_tokens=size), path)
    stream = opened(path)
    assert stream.layout == Layout(size, timed=layout.timed)
    assert rows_of(stream) == hidden(layout, rows, block_tokens=size)


def test_a_later_turn_finds_the_answer() -> None:
    """10 tokens asked, 7 answered, 5 asked: blocks of 4 of which 4 are full before the question."""
    rows = [
        Row(10, 7, 0, [1], [10], [2], [7], "a"),
        Row(22, 1, 9, [1, 2, 3], [10, 7, 5], session="a", after=0),
    ]
    first, second = hidden(Layout(0), rows, block_tokens=4)
    assert first.output_ids is not None
    assert second.hash_ids[:4] == first.hash_ids[:2] + first.output_ids
    assert len(second.hash_ids) == 6
    assert second.output_ids is None
    blocks = [Row(10, 7, 0, [1, 2, 3], None, [4, 5]), Row(17, 0, 1, [1, 2, 4, 5, 9])]
    first, second = hidden(Layout(4), blocks)
    assert first.output_ids == second.hash_ids[2:4]


def test_the_salt_decides() -> None:
    rows = [Row(8, 0, 0, [k], [8]) for k in range(50)]
    ids = [row.hash_ids for row in hidden(Layout(0), rows)]
    assert [row.hash_ids for row in hidden(Layout(0), rows)] == ids
    others = [row.hash_ids for row in hidden(Layout(0), rows, salt=b"another")]
    unsalted = [row.hash_ids for row in rows_of(anonymize(made(Layout(0), rows)))]
    again = [row.hash_ids for row in rows_of(anonymize(made(Layout(0), rows)))]
    everything = [each[0] for ids in (ids, others, unsalted, again) for each in ids]
    assert len(set(everything)) == 200
    assert min(everything) < 1 << 59
    assert max(everything) > 1 << 61
    for salt in (b"", b"x" * 65):
        with pytest.raises(InputError, match=f"the salt has {len(salt)} bytes"):
            anonymize(made(Layout(0), rows), salt=salt)


def test_names_and_times_say_nothing(tmp_path: Path) -> None:
    rows = [
        Row(8, 0, 1e12 + 0.1, [77], [8], session="alice@example.org"),
        Row(8, 0, 1e12 + 0.3, [78], [8], session="bob"),
        Row(8, 0, None, [77], [8], session="alice@example.org", after=0, delay=3),
    ]
    stream = MadeRows(
        Layout(0, timed=False), lambda: rows, {"clients": 2, "workload": "alice", "alice": 1}
    )
    assert [row.timestamp for row in rows_of(anonymize(stream))] == [0, 0.2, None]
    assert [row.session for row in rows_of(anonymize(stream))] == ["1", "2", "1"]
    kept = rows_of(anonymize(stream, start="kept"))
    assert [row.timestamp for row in kept] == [row.timestamp for row in rows]
    write(anonymize(stream), tmp_path / "t")
    text = (tmp_path / "t").read_text()
    assert "alice" not in text
    assert '"hints":{"clients":2}' in text
    with pytest.raises(InputError, match="start is 'one'"):
        anonymize(stream, start="one")


def test_block_sizes() -> None:
    rows = [Row(200, 0, 0, [1], [200])]
    assert anonymize(made(Layout(0), rows)).layout == Layout(64)
    assert anonymize(made(Layout(1), [])).layout == Layout(64)
    assert anonymize(made(Layout(512), [])).layout == Layout(512)
    assert anonymize(made(Layout(512), []), block_tokens=16).layout == Layout(16)
    nameless = Layout(0, has_ids=False)
    assert anonymize(made(nameless, [])).layout == nameless
    assert hidden(nameless, [Row(9, 1, 0)]) == [Row(9, 1, 0)]
    with pytest.raises(InputError, match="block size is 0"):
        anonymize(made(Layout(0), rows), block_tokens=0)
    assert hints_of(anonymize(made(Layout(0), rows))) == {"clients": 3}
