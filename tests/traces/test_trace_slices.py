"""A slice keeps the rows asked for, no others, unchanged; what rows wait for stays or is told."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from row_traces import made, rows_of, traces

from hicache.errors import InputError
from traces.made import MadeRows
from traces.rows import Layout, Row
from traces.slices import slice_rows

LAYOUT = Layout(0)


def row(number: int, session: str = "", after: int = -1, **more: Any) -> Row:
    """A request at `number` seconds whose id is its number."""
    more.setdefault("timestamp", 1000 * number + 5000)
    return Row(1, 0, hash_ids=[number], lengths=[1], session=session, after=after, **more)


# Sessions a and b by turns, then two rows of none.
TWO = [
    row(0, "a"), row(1, "b"), row(2, "a", 0, delay=9), row(3, "b", 1), row(4, "a", 2),
    row(5), row(6),
]  # fmt: skip


def kept(rows: list[Row] = TWO, **cut: Any) -> list[int]:
    return [each.hash_ids[0] for each in rows_of(slice_rows(made(LAYOUT, rows), **cut))]


@pytest.mark.parametrize(
    ("cut", "expected"),
    [
        ({}, [0, 1, 2, 3, 4, 5, 6]),
        ({"requests": (2, 4)}, [2, 3]),
        ({"requests": (5, None)}, [5, 6]),
        ({"requests": (7, None)}, []),
        ({"first": 3}, [0, 1, 2]),
        ({"requests": (2, None), "first": 2}, [2, 3]),
        ({"from_s": 2, "to_s": 4}, [2, 3]),
        ({"from_s": 4.5}, [5, 6]),
        ({"sessions": 1}, [0, 2, 4]),
        ({"sessions": 3}, [0, 1, 2, 3, 4, 5]),
        ({"every": 2}, [0, 2, 4, 5]),
        ({"every": 3}, [0, 2, 4, 6]),
        ({"every": 2, "to_s": 3}, [0, 2]),
        ({"requests": (1, 3), "whole": "sessions"}, [1, 3]),
        ({"first": 1, "whole": "sessions"}, [0, 2, 4]),
        ({"to_s": 1, "whole": "sessions"}, [0, 2, 4]),
        ({"from_s": 1, "whole": "sessions"}, [1, 3, 5, 6]),
    ],
)
def test_what_is_kept(cut: dict[str, Any], expected: list[int]) -> None:
    assert kept(**cut) == expected


def test_after_is_renumbered_and_orphans_are_told() -> None:
    stream = slice_rows(made(LAYOUT, TWO), requests=(1, None))
    rows = rows_of(stream)
    assert [each.after for each in rows] == [-1, -1, 0, 1, -1, -1]
    assert rows[1].delay == 0
    assert stream.notes == [
        "1 of 6 requests wait for no other any more: the one they waited for was cut off"
    ]
    assert rows_of(slice_rows(made(LAYOUT, TWO), sessions=1))[1] == row(2, "a", 0, delay=9)
    assert [line for _, lines in stream.batches() for line in lines] == [2, 3, 4, 5, 6, 7]


def test_a_row_without_a_time_goes_where_its_predecessor_goes() -> None:
    rows = [
        row(0, "a"),
        row(1, "b"),
        row(2, "a", 0, timestamp=None),
        row(3, "b", 1, timestamp=None),
    ]
    rows.append(row(9))
    assert kept(rows, from_s=1, to_s=5) == [1, 3]
    alone = rows_of(slice_rows(made(LAYOUT, rows), requests=(2, 3)))
    assert (alone[0].timestamp, alone[0].after) == (6000, -1), "the time when it was its turn"


def test_reads_no_further_than_it_must() -> None:
    def endless() -> Any:
        number = 0
        while True:
            yield row(number)
            number += 1

    stream = MadeRows(LAYOUT, endless)
    assert len(rows_of(slice_rows(stream, first=300))) == 300
    assert len(rows_of(slice_rows(stream, requests=(700, 900)))) == 200


@pytest.mark.parametrize(
    ("cut", "message"),
    [
        ({"first": 0}, "first is 0: it must be at least 1"),
        ({"every": -1}, "every is -1"),
        ({"sessions": 0}, "sessions is 0"),
        ({"requests": (3, 3)}, "requests is 3:3: the end must come after the start"),
        ({"requests": (-1, None)}, "requests is -1:None"),
        ({"from_s": 5.0, "to_s": 5.0}, "nothing is between"),
        ({"from_s": float("nan"), "to_s": 5.0}, "nothing is between"),
        ({"whole": "days"}, "whole is 'days': it must be rows or sessions"),
    ],
)
def test_bad_cuts(cut: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError) as caught:
        slice_rows(made(LAYOUT, TWO), **cut)
    assert message in str(caught.value)


@settings(max_examples=150, deadline=None)
@given(traces(), st.integers(0, 5), st.integers(1, 6))
def test_any_slice_is_a_sound_trace(trace: Any, start: int, length: int) -> None:
    layout, rows = trace
    cut = rows_of(slice_rows(made(layout, rows), requests=(start, start + length)))
    assert len(cut) == len(rows[start : start + length])
    for number, (each, old) in enumerate(zip(cut, rows[start:], strict=False)):
        assert -1 <= each.after < number
        assert each.after < 0 or each.after + start == old.after
        assert each.timestamp is not None or each.after >= 0
        assert (each.hash_ids, each.output_ids, each.session) == (
            old.hash_ids, old.output_ids, old.session,
        )  # fmt: skip
    times = [each.timestamp for each in cut if each.timestamp is not None]
    assert times == sorted(times)
