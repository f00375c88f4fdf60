"""Requests that are held come back as they were, whatever runs they have."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hicache.requests import Request
from hicache.waiting import WaitingRequests

RUNS = st.lists(
    st.tuples(st.integers(0, 1 << 62), st.integers(1, 1 << 31)), max_size=5
).map(tuple)  # fmt: skip


@given(st.lists(st.tuples(RUNS, st.none() | RUNS, st.booleans()), max_size=12), st.randoms())
def test_runs_are_those_that_were_held(cases, order) -> None:
    waiting = WaitingRequests()
    held: list[int] = []
    requests: list[Request] = []
    for number, (prompt, answer, is_held) in enumerate(cases):
        request = Request(number, 5, 9, 2, prompt, 7, output_runs=answer)
        requests.append(request)
        if is_held:
            waiting.hold(request)
            held.append(number)
            assert not request.prompt_runs
            assert not request.output_runs
        else:
            waiting.pass_over()
    order.shuffle(held)
    for number in held:
        assert waiting.take(number) is requests[number]
    for request, (prompt, answer, _) in zip(requests, cases, strict=True):
        assert (request.prompt_runs, request.output_runs) == (prompt, answer)


def test_only_what_is_held_can_be_taken_and_once() -> None:
    waiting = WaitingRequests()
    waiting.pass_over()
    waiting.hold(Request(1, 0, 4, 1, ((0, 1),), 1))
    waiting.take(1)
    for number in (0, 1):
        with pytest.raises(AssertionError, match="is not held"):
            waiting.take(number)
