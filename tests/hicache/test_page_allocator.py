"""Free pages: against a plain set of page numbers, and page lists against plain lists."""

from __future__ import annotations

from itertools import pairwise

import pytest
from adversarial_lanes import pages_of
from examples import examples
from hypothesis import assume, given
from hypothesis import strategies as st

from hicache.allocator import (
    PageAllocator,
    PageCounter,
    cut,
    deal_out,
    extents,
    join,
    join_all,
)

CAPACITY = 24


def runs_of_pages(pages: set[int]) -> list[tuple[int, int]]:
    """The maximal runs of consecutive numbers in a set, sorted."""
    runs: list[tuple[int, int]] = []
    for page in sorted(pages):
        if runs and sum(runs[-1]) == page:
            runs[-1] = (runs[-1][0], runs[-1][1] + 1)
        else:
            runs.append((page, 1))
    return runs


def fewest_runs(free: set[int], count: int) -> int:
    """Over how few free runs `count` pages can be spread."""
    needed = 0
    for length in sorted((length for _, length in runs_of_pages(free)), reverse=True):
        if count <= 0:
            break
        needed, count = needed + 1, count - length
    return needed


def check(allocator: PageAllocator, free: set[int]) -> None:
    assert allocator.free == len(free)
    assert allocator.free_runs() == runs_of_pages(free)


# Each step takes a number of pages (> 0), or gives the n-th holding back (<= 0).
steps = st.lists(st.integers(-6, CAPACITY), max_size=40)


def after(steps: list[int]) -> tuple[PageAllocator, set[int], list[tuple[tuple[int, int], ...]]]:
    """An allocator after `steps`, what is free in it, and what it has handed out."""
    allocator, free = PageAllocator(CAPACITY), set(range(CAPACITY))
    holdings: list[tuple[tuple[int, int], ...]] = []
    for step in steps:
        if step > 0:
            count = min(step, len(free))
            if not count:
                continue
            smallest = min((n for _, n in runs_of_pages(free) if n >= count), default=None)
            needed = fewest_runs(free, count)
            lengths = dict(runs_of_pages(free))
            runs = allocator.take(count)
            pages = pages_of(runs)
            assert len(pages) == len(set(pages)) == count
            assert set(pages) <= free
            if smallest is None:
                assert len(runs) == needed  # spread as little as can be
            else:
                ((first, _),) = runs  # consecutive, from the run that fits best
                assert lengths[first] == smallest
            free -= set(pages)
            holdings.append(runs)
        elif holdings:
            runs = holdings.pop(-step % len(holdings))
            allocator.give(runs, len(pages_of(runs)))
            free |= set(pages_of(runs))
        check(allocator, free)
    return allocator, free, holdings


@given(steps)
@examples(100)
def test_takes_one_run_where_it_can_and_the_fewest_otherwise(steps):
    after(steps)


@given(steps, st.randoms(use_true_random=False))
@examples(60)
def test_pages_come_back_in_any_order_and_in_pieces(steps, rng):
    allocator, free, holdings = after(steps)
    pages = [page for runs in holdings for page in pages_of(runs)]
    rng.shuffle(pages)
    for page in pages:
        allocator.give(((page, 1),), 1)
        free.add(page)
        check(allocator, free)
    assert allocator.free_runs() == [(0, CAPACITY)]


@given(steps, st.integers(0, CAPACITY - 1), st.integers(1, CAPACITY))
@examples(100)
def test_a_page_that_is_free_cannot_be_freed(steps, first, length):
    allocator, free, _ = after(steps)
    length = min(length, CAPACITY - first)
    assume(free & set(range(first, first + length)))
    with pytest.raises(AssertionError):
        allocator.give(((first, length),), length)


def test_a_double_free_is_caught_inside_one_of_many_free_runs():
    allocator = PageAllocator(30)
    allocator.take(30)
    for first, length in ((0, 10), (20, 1), (22, 1), (24, 1)):
        allocator.give(((first, length),), length)
    with pytest.raises(AssertionError):
        allocator.give(((5, 1),), 1)


def test_more_than_is_free_cannot_be_taken():
    for allocator in (PageAllocator(4), PageCounter(4)):
        allocator.take(3)
        with pytest.raises(AssertionError):
            allocator.take(2)
        assert allocator.free == 1


def test_a_count_that_does_not_match_the_pages_is_refused():
    allocator = PageAllocator(8)
    pages = allocator.take(5)
    with pytest.raises(AssertionError):
        allocator.give(pages, 4)


def test_an_allocator_of_nothing_gives_nothing():
    assert PageAllocator(0).take(0) == ()
    assert PageCounter(0).take(0) == ()


@given(st.lists(st.integers(0, 5), max_size=12))
@examples(30)
def test_a_counter_counts(steps):
    counter, free = PageCounter(10), 10
    for count in steps:
        if count <= free:
            assert counter.take(count) == ()
            free -= count
        else:
            counter.give((), 10 - free)
            free = 10
        assert counter.free == free


page_lists = st.lists(st.integers(0, 30), max_size=15, unique=True).map(
    lambda pages: tuple(runs_in_order(pages))
)


def runs_in_order(pages: list[int]) -> list[tuple[int, int]]:
    """A list of pages as runs, the order kept."""
    runs: list[tuple[int, int]] = []
    for page in pages:
        if runs and sum(runs[-1]) == page:
            runs[-1] = (runs[-1][0], runs[-1][1] + 1)
        else:
            runs.append((page, 1))
    return runs


@given(page_lists, st.integers(0, 15))
@examples(100)
def test_cut_splits_a_list_in_two(runs, count):
    pages = pages_of(runs)
    if count > len(pages) > 0:
        with pytest.raises(AssertionError):
            cut(runs, count)
        return
    head, tail = cut(runs, count)
    assert pages_of(head) == pages[:count]
    assert pages_of(tail) == pages[count:]
    assert all(length > 0 for _, length in head + tail)


@given(page_lists, page_lists)
@examples(100)
def test_join_puts_one_list_behind_another_in_the_fewest_runs(head, tail):
    pages = pages_of(head) + pages_of(tail)
    assert join(head, tail) == tuple(runs_in_order(pages))


@given(st.lists(page_lists, max_size=5))
@examples(60)
def test_many_lists_are_joined_as_one_after_the_other(lists):
    runs = ()
    for each in lists:
        runs = join(runs, each)
    assert join_all(lists) == runs


@given(page_lists, st.lists(st.integers(0, 15), max_size=5))
@examples(100)
def test_what_is_dealt_out_is_cut_off_piece_by_piece(runs, cuts):
    rest, counts, pieces = runs, [], []
    for count in cuts:
        count = min(count, len(pages_of(rest)))
        piece, rest = cut(rest, count)
        counts.append(count)
        pieces.append(piece)
    counts.append(len(pages_of(rest)))
    assert deal_out(runs, counts) == [*pieces, rest]


def test_not_all_of_a_list_dealt_out_is_a_bug():
    with pytest.raises(AssertionError):
        deal_out(((0, 2), (5, 3)), [1, 1])


@given(page_lists, st.integers(0, 15))
@examples(50)
def test_join_undoes_cut(runs, count):
    assert join(*cut(runs, min(count, len(pages_of(runs))))) == runs


@given(page_lists, page_lists)
@examples(100)
def test_extents_are_runs_that_are_consecutive_on_both_sides(source, target):
    pairs = list(zip(pages_of(source), pages_of(target), strict=False))
    assume(pairs)
    source, _ = cut(source, len(pairs))
    target, _ = cut(target, len(pairs))
    count = 1
    for (a, b), (c, d) in pairwise(pairs):
        count += c != a + 1 or d != b + 1
    assert extents(source, target) == count


def test_pages_that_are_only_counted_are_one_extent():
    assert extents((), ()) == 1
