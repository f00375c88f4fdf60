"""Page lists become the fewest requests that move exactly what was asked for."""

from __future__ import annotations

import math
import sys
import threading
import time

import numpy as np
import pytest
from file_store_helpers import runs
from hypothesis import given
from hypothesis import strategies as st

from hicache.allocator import extents as count_extents
from hw.storage import plan
from hw.storage.crew import Crew
from hw.storage.native import LAST_REQUEST_BYTES
from hw.storage.plan import (
    ROUND_BYTES,
    SMALLEST_REQUEST_BYTES,
    as_array,
    in_parts,
    merge,
    request_size,
    requests,
    tapered,
)


def merged(slots, pages):
    """The extents of two page lists, as lists."""
    return merge(as_array(slots), as_array(pages)).tolist()


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
    extents = merged(runs(slots), runs(pages))
    assert [s + i for s, _, n in extents for i in range(n)] == slots
    assert [p + i for _, p, n in extents for i in range(n)] == pages
    breaks = sum(
        slots[i] + 1 != slots[i + 1] or pages[i] + 1 != pages[i + 1] for i in range(len(slots) - 1)
    )
    assert len(extents) == (breaks + 1 if slots else 0)
    if slots:
        assert len(extents) == count_extents(runs(slots), runs(pages))


@given(st.one_of(lists, piecewise).map(_same_length), st.integers(1, 9))
def test_parts_are_the_whole_lists_in_order(pair, most):
    slots, pages = map(runs, pair)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(plan, "PART_RUNS", most)
        parts = [merge(*part).tolist() for part in in_parts(slots, pages)]
    extents = [extent for part in parts for extent in part]
    assert [s + i for s, _, n in extents for i in range(n)] == pair[0]
    assert [p + i for _, p, n in extents for i in range(n)] == pair[1]
    if all(n == 1 for _, n in (*slots, *pages)):
        # Each may be twice as large as the one before it.
        assert len(parts) == max(1, math.ceil(math.log2(len(slots) / most + 1)))


def test_lists_of_different_lengths_are_a_bug_in_a_later_part_too(monkeypatch):
    monkeypatch.setattr(plan, "PART_RUNS", 2)
    slots = tuple((i, 1) for i in range(5))
    for pages in (slots[:4], slots[:2], (*slots, (9, 1))):
        with pytest.raises(AssertionError, match="different lengths"):
            [merge(*part) for part in in_parts(slots, pages)]


def test_runs_that_meet_are_one_extent_however_they_are_written():
    assert merged(((0, 2), (2, 3)), ((7, 1), (8, 4))) == [[0, 7, 5]]
    assert merged(((0, 2), (5, 0), (2, 1)), ((7, 3),)) == [[0, 7, 3]]
    assert merged((), ()) == []
    assert merged(((4, 0),), ()) == []


def test_lists_of_different_lengths_are_a_bug():
    with pytest.raises(AssertionError):
        merged(((0, 2),), ((0, 3),))
    with pytest.raises(AssertionError):
        merged((), ((0, 1),))


@given(
    st.lists(st.tuples(st.integers(0, 99), st.integers(0, 99), st.integers(1, 9)), max_size=9),
    st.sampled_from([4096, 147456, 1000, 1 << 20]),
    st.sampled_from([4096, 65536, 1 << 20, 300_000]),
    st.sampled_from([1 << 20, 1 << 22, 1 << 62]),
)
def test_requests_cover_the_extents_once_and_keep_to_both_limits(extents, page, most, fence):
    rows = np.array(extents, np.int64).reshape(-1, 3)
    made = requests(rows, page, most, fence).tolist()
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


def glued(rows: list[list[int]]) -> list[list[int]]:
    """Rows that go on where the one before them ended, as one."""
    made: list[list[int]] = []
    for position, memory, size in rows:
        last = made[-1] if made else [0, 0, -1]
        if [last[0] + last[2], last[1] + last[2]] == [position, memory]:
            last[2] += size
        else:
            made.append([position, memory, size])
    return made


@pytest.mark.parametrize("size", [4096, 65536, 1 << 20, 4 << 20, (4 << 20) + 4096])
@pytest.mark.parametrize("counts", [[], [0], [1], [3], [4], [9], [3, 0, 2], [64, 128, 96], [9, 1]])
def test_the_last_requests_are_cut_and_none_is_lost(counts, size):
    total = sum(counts)
    rows = np.full((total, 3), size, np.int64)
    rows[:, 0], rows[:, 1] = np.arange(total) * (size + 512), np.arange(total)[::-1] * (size + 512)
    parts = np.split(rows, np.cumsum(counts)[:-1]) if counts else []
    made = list(tapered(parts, 4, LAST_REQUEST_BYTES))
    together = [row for part in made for row in part.tolist()]
    assert glued(together) == rows.tolist()
    whole = sum(row[2] == size for row in together)
    assert whole == (max(0, total - 4) if size > LAST_REQUEST_BYTES else total)
    assert all(row[2] <= LAST_REQUEST_BYTES for row in together[whole:])
    # A part is there before the next one is asked for: all of it but what may be the last.
    for i, part in enumerate(made[:-1]):
        least = sum(counts[: i + 1]) - (4 if size > LAST_REQUEST_BYTES else 0)
        assert sum(map(len, made[:i])) + len(part) >= least


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


def test_a_crew_works_on_a_list_while_the_next_one_is_made():
    crew = Crew("test", 3)
    done: list[int] = []
    seen: list[int] = []

    def lists():
        yield range(4)
        deadline = time.monotonic() + 10
        while len(done) < 4 and time.monotonic() < deadline:
            time.sleep(0.001)
        seen.append(len(done))
        yield range(4, 4)
        yield range(4, 9)

    crew.stream(done.append, lists())
    assert seen == [4], "helpers began before the second list was there"
    assert sorted(done) == list(range(9))
    for few in (
        (), ((),), ((), range(3)), (range(1),), (range(1), range(1, 3)),
        (range(1), (), range(1, 3)), ((), (), range(3)),
    ):  # fmt: skip
        done.clear()
        crew.stream(done.append, few)
        assert sorted(done) == list(range(sum(map(len, few))))
    crew.close()


def test_helpers_begin_before_the_next_list_is_made_even_if_that_keeps_the_interpreter(monkeypatch):
    monkeypatch.setattr("hw.storage.crew.BEGIN_S", 10)  # a busy machine may need it
    crew = Crew("test", 3)
    threads: set[int] = set()
    begun: list[int] = []

    def work(_part: int) -> None:
        threads.add(threading.get_ident())
        time.sleep(0.02)

    def lists():
        yield range(8)
        begun.append(len(threads))
        yield range(1)

    before_s = sys.getswitchinterval()
    sys.setswitchinterval(10)  # nobody gets the interpreter who is not let have it
    try:
        crew.stream(work, lists())
    finally:
        sys.setswitchinterval(before_s)
    assert begun == [2], "both helpers"
    crew.close()


def test_a_caller_does_not_wait_for_helpers_that_are_busy(monkeypatch):
    monkeypatch.setattr("hw.storage.crew.BEGIN_S", 0.01)
    crew = Crew("test", 2)
    over, ended = threading.Event(), []
    other = threading.Thread(target=crew.each, args=(lambda _part: over.wait(30), range(2)))
    other.start()
    crew.stream(ended.append, (range(4), range(4, 6)))
    assert sorted(ended) == list(range(6))
    over.set()
    other.join()
    crew.close()


def test_a_crew_asks_for_no_further_list_after_an_error():
    crew = Crew("test", 3)
    asked: list[int] = []

    def lists():
        for number in range(50):
            asked.append(number)
            yield (number, number)
            time.sleep(0.002)

    def work(part: int) -> None:
        raise ValueError(part)

    with pytest.raises(ValueError, match="0"):
        crew.stream(work, lists())
    assert len(asked) < 50
    crew.close()


def test_a_list_that_cannot_be_made_is_raised_when_nothing_is_under_way():
    crew = Crew("test", 3)
    begun, ended = [], []

    def work(part: int) -> None:
        begun.append(part)
        time.sleep(0.02)
        ended.append(part)

    def lists():
        yield range(6)
        raise KeyError("no plan")

    with pytest.raises(KeyError):
        crew.stream(work, lists())
    assert sorted(begun) == sorted(ended) == list(range(6))
    crew.close()
