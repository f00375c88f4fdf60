"""The lines that a run writes by hand are those that `json` makes."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hicache.operations import (
    DIRECTIONS,
    Chunk,
    Completion,
    Copy,
    Decode,
    Lookup,
    Operation,
    Prefill,
)
from hicache.record_lines import decoded, done_text

numbers = st.integers(0, 1 << 62)
runs = st.lists(st.tuples(numbers, numbers), max_size=4).map(tuple)
keys = st.lists(st.tuples(st.integers(-(1 << 62), 1 << 62), numbers), max_size=3).map(tuple)
operations = st.one_of(
    st.builds(Copy, st.sampled_from(DIRECTIONS), numbers, numbers, numbers, runs, runs, keys),
    st.builds(
        Prefill,
        st.lists(st.builds(Chunk, numbers, numbers, numbers), max_size=3).map(tuple),
        numbers, numbers, numbers, st.integers(-1, 99),
    ),
    st.builds(Decode, numbers, numbers, numbers, st.lists(numbers, max_size=4).map(tuple)),
    st.builds(Lookup, numbers, keys, st.integers(0, 3)),
)  # fmt: skip


def written(operation: Operation) -> list[Any]:
    """What a line holds of `operation`, as the format says."""
    if isinstance(operation, Prefill):
        chunks = [
            [chunk.request, chunk.new_tokens, chunk.past_tokens] for chunk in operation.chunks
        ]
        rest = list(operation.fields()[1:])
        return ["Prefill", chunks, *(rest if operation.load >= 0 else rest[:-1])]
    if isinstance(operation, Copy) and not operation.rank:
        return ["Copy", *operation.fields()[: -1 if operation.keys else -2]]
    if isinstance(operation, Lookup) and not operation.rank:
        return ["Lookup", *operation.fields()[:-1]]
    return [type(operation).__name__, *operation.fields()]


@given(operations, st.lists(numbers, min_size=7, max_size=7), st.lists(numbers, max_size=5))
def test_a_completion_is_written_as_json_writes_it(operation, times, ends):
    number, submitted, started, finished, stamp, setup, steps = times
    done = Completion(
        number, operation, submitted, started, finished, stamp, setup, steps, tuple(ends)
    )
    line = done_text(done, operation)
    items = ["done", number, written(operation), *times[1:], ends]
    assert line == json.dumps(items, separators=(",", ":"))
    assert decoded(json.loads(line)[2]) == operation


@pytest.mark.parametrize(
    "items",
    [
        ["Copy", "up", 1, 1, 1, [], []],
        ["Copy", "h2d", 1, 1, 1.0, [], []],
        ["Copy", "h2d", 1, 1, 1, [], [], [], []],
        ["Copy", "h2d", 1, 1, 1, [[1]], []],
        ["Decode", 1, 1, True, []],
        ["Prefill", [[1, 2]], 1, 0, 0],
        ["Fetch", 1],
    ],
)
def test_what_is_no_operation_is_refused(items):
    with pytest.raises((ValueError, TypeError)):
        decoded(items)
