"""Page lists become the fewest requests that move exactly what was asked for."""

from __future__ import annotations

import threading
import time

import pytest
from file_store_helpers import runs
from hypothesis import given
from hypothesis import strategies as st

from hicache.allocator import extents as count_extents
from hw.storage.crew import Crew
from hw.storage.plan import (
    ROUND_BYTES,
    SMALLEST_REQUEST_BYTES,
    Extent,
    merge,
    request_size,
    requests,
)

lists = st.integers(0, 40).flatmap(
    lambda n: st.tuples(*[st.permutations(range(50)).map(lambda p: list(p[:n]))] * 2)
)
# Long runs: what an allocator gives, and not what a random permutation is.
piecewise = st.lists(st.tuples(st.integers(0, 7), st.integers(0, 7)), unique=True, max_size=12).map(
    lambda tiles: (
        [a * 5 + i for a in dict.fromkeys(a for a, _ in tiles) for i in range(5)],
        [b * 5 + i for b in dict.fromkeys(b for _, b in tiles) for i in range(5)],
    )
)


def _same_length(pair):
    n = min(map(len, pair))
    return pair[0][:n], pair[1][:n]


@given(st.one_of(lists, piecewise).map(_same_length))
def test_extents_are_the_same_pages_in_order_and_as_few_as_can_be(pair):
    slots, pages = pair
    extents = merge(runs(slots), runs(pages))
    assert [s + i for s, _, n in extents for i in range(n)] == slots
    assert [p + i for _, p, n in extents for i in range(n)] == pages
    breaks = sum(
        slots[i] + 1 != slots[i + 1] or pages[i] + 1 != pages[i + 1] for i in range(len(slots) - 1)
    )
    assert len(extents) == (breaks + 1 if slots else 0)
    if slots:
        assert len(extents) == count_extents(runs(slots), runs(pages))


def test_runs_that_meet_are_one_extent_however_they_are_written():
    assert merge(((0, 2), (2, 3)), ((7, 1), (8, 4))) == [Extent(0, 7, 5)]
    assert merge(((0, 2), (5, 0), (2, 1)), ((7, 3),)) == [Extent(0, 7, 3)]
    assert merge((), ()) == []
    assert merge(((4, 0),), ()) == []


def test_lists_of_different_lengths_are_a_bug():
    with pytest.raises(AssertionError):
        merge(((0, 2),), ((0, 3),))
    with pytest.raises(AssertionError):
        merge((), ((0, 1),))


@given(
    st.lists(st.tuples(st.integers(0, 99), st.integers(0, 99), st.integers(1, 9)), max_size=9),
    st.sampled_from([4096, 147456, 1000, 1 << 20]),
    st.sampled_from([4096, 65536, 1 << 20, 300_000]),
    st.sampled_from([1 << 20, 1 << 22, 1 << 62]),
)
def test_requests_cover_the_extents_once_and_keep_to_both_limits(extents, page, most, fence):
    made = requests([Extent(*e) for e in extents], page, most, fence)
    assert all(0 < size <= most for _, _, size in made)
    assert all(m // fence == (m + size - 1) // fence for _, m, size in made)
    glued: list[list[int]] = []
    wanted = [[s * page, p * page, n * page] for s, p, n in extents]
    for position, memory, size in made:
        if glued and glued[-1] != wanted[len(glued) - 1]:
            last = glued[-1]
            assert (last[0] + last[2], last[1] + last[2]) == (position, memory)
            last[2] += size
        else:
            glued.append([position, memory, size])
    assert glued == wanted


@given(st.integers(1, 1 << 34), st.integers(1, 64), st.sampled_from([1 << 20, 4 << 20, 1 << 26]))
def test_a_request_is_an_equal_share_in_reason(total, at_once, largest):
    size = request_size(total, at_once, largest)
    assert SMALLEST_REQUEST_BYTES <= size <= largest
    assert size % ROUND_BYTES == 0
    if SMALLEST_REQUEST_BYTES < size < largest:
        assert total <= size * at_once < total + ROUND_BYTES * at_once


def test_a_crew_does_every_part_once_from_many_callers():
    crew = Crew("test", 4)
    done: list[int] = []  # appending is atomic
    callers = [
        threading.Thread(target=crew.each, args=(done.append, range(i * 1000, i * 1000 + 1000)))
        for i in range(6)
    ]
    for caller in callers:
        caller.start()
    for caller in callers:
        caller.join()
    crew.close()
    assert sorted(done) == list(range(6000))


def test_a_crew_never_works_with_more_threads_than_it_has():
    crew = Crew("test", 3)
    now, most, lock = [0], [0], threading.Lock()

    def work(_part: int) -> None:
        with lock:
            now[0] += 1
            most[0] = max(most[0], now[0])
        time.sleep(0.002)
        with lock:
            now[0] -= 1

    crew.each(work, range(30))
    crew.close()
    assert most[0] == 3


def test_a_crew_raises_only_when_no_part_is_under_way_and_begins_no_further_one():
    crew = Crew("test", 4)
    begun: list[int] = []
    ended: list[int] = []

    def work(part: int) -> None:
        begun.append(part)
        time.sleep(0.05 if part else 0.01)
        ended.append(part)
        if part == 0:
            raise ValueError("first")

    with pytest.raises(ValueError, match="first"):
        crew.each(work, range(1000))
    assert sorted(begun) == sorted(ended)
    assert len(begun) < 20
    done: list[int] = []
    crew.each(done.append, range(10))  # and goes on
    assert sorted(done) == list(range(10))
    crew.close()
