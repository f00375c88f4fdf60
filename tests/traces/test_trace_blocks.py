"""Block keys, pages and the ceiling against a naive cache, for ids of every kind."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from trace_helpers import NaiveCeiling, keys_of

from hicache.errors import InputError
from traces.block_keys import BlockKeys
from traces.blocks import PageCutter, pages_per_block
from traces.cut import cutter_for
from traces.rows import Layout

BLOCK = 8


@st.composite
def chained_prompts(draw: st.DrawFn) -> list[tuple[list[int], int]]:
    """Prompts over a growing tree whose nodes are numbered in order of appearance, as Mooncake has.

    A block that has been a prompt's partly filled end may come again with more or fewer tokens, or
    be followed by others.
    """
    children: dict[tuple[int, int], int] = {}
    prompts = []
    for _ in range(draw(st.integers(1, 12))):
        ids: list[int] = []
        node = -1
        for branch in draw(st.lists(st.integers(0, 1), min_size=1, max_size=6)):
            node = children.setdefault((node, branch), len(children))
            ids.append(node)
        tokens = len(ids) * BLOCK - draw(st.integers(0, BLOCK - 1))
        prompts.append((ids, tokens))
    return prompts


@st.composite
def loose_prompts(draw: st.DrawFn) -> list[tuple[list[int], int]]:
    """Prompts of any ids at all: repeated, out of order, without their tail's id."""
    prompts = []
    for _ in range(draw(st.integers(1, 10))):
        ids = draw(st.lists(st.integers(0, 6), max_size=6))
        tokens = draw(
            st.integers(max(1, len(ids) * BLOCK - BLOCK + 1), len(ids) * BLOCK + BLOCK - 1)
        )
        prompts.append((ids, tokens))
    return prompts


def agrees_with_the_naive_ceiling(
    prompts: list[tuple[list[int], int]], page_size_tokens: int, pages: str
) -> PageCutter:
    cutter = PageCutter(BLOCK, page_size_tokens, pages)  # type: ignore[arg-type]
    naive = NaiveCeiling(BLOCK, page_size_tokens, pages)
    page_at_key: dict[int, object] = {}
    key_of_page: dict[object, int] = {}
    for ids, tokens in prompts:
        expected_pages = naive.pages_of(ids, tokens)
        expected_hit = naive.ideal_pages(ids, tokens)
        runs, num_pages, hit = cutter.cut(tokens, ids)
        keys = keys_of(runs)
        assert num_pages == len(keys) == len(expected_pages)
        assert hit == expected_hit
        assert all(count > 0 for _, count in runs)
        assert all(a + n != b for (a, n), (b, _) in pairwise(runs))
        # One key for each page, one page for each key.
        for key, page in zip(keys, expected_pages, strict=True):
            assert page_at_key.setdefault(key, page) == page
            assert key_of_page.setdefault(page, key) == key
    return cutter


@pytest.mark.parametrize("pages", ["full", "partial"])
@pytest.mark.parametrize("page_size_tokens", [1, 2, 4, 8])
@settings(max_examples=25, deadline=None)
@given(prompts=chained_prompts())
def test_chained_ids(
    page_size_tokens: int, pages: str, prompts: list[tuple[list[int], int]]
) -> None:
    cutter = agrees_with_the_naive_ceiling(prompts, page_size_tokens, pages)
    assert not cutter.keys.unchained
    per_block = BLOCK // page_size_tokens
    again = PageCutter(BLOCK, page_size_tokens, pages)  # type: ignore[arg-type]
    for ids, tokens in prompts:  # ids in order of appearance are the keys themselves
        for key in keys_of(again.cut(tokens, ids)[0]):
            assert key // per_block in ids


@pytest.mark.parametrize("pages", ["full", "partial"])
@pytest.mark.parametrize("page_size_tokens", [1, 4, 8])
@settings(max_examples=20, deadline=None)
@given(prompts=chained_prompts(), skipped=st.integers(0, 4), seed=st.integers(0, 3))
def test_chained_ids_that_are_hashes_or_a_slice(
    page_size_tokens: int,
    pages: str,
    prompts: list[tuple[list[int], int]],
    skipped: int,
    seed: int,
) -> None:
    if seed:
        prompts = [
            ([(id_ * 2_654_435_761 + seed) % (1 << 61) for id_ in ids], t) for ids, t in prompts
        ]
    agrees_with_the_naive_ceiling(prompts[skipped:], page_size_tokens, pages)


@pytest.mark.parametrize("pages", ["full", "partial"])
@pytest.mark.parametrize("page_size_tokens", [1, 4, 8])
@settings(max_examples=30, deadline=None)
@given(prompts=loose_prompts(), head=chained_prompts())
def test_any_ids_at_all(
    page_size_tokens: int,
    pages: str,
    prompts: list[tuple[list[int], int]],
    head: list[tuple[list[int], int]],
) -> None:
    agrees_with_the_naive_ceiling(prompts, page_size_tokens, pages)
    agrees_with_the_naive_ceiling(head + prompts, page_size_tokens, pages)


@settings(max_examples=50, deadline=None)
@given(prompts=st.one_of(chained_prompts(), loose_prompts()))
def test_new_blocks_of_a_prompt_are_consecutive(prompts: list[tuple[list[int], int]]) -> None:
    keys = BlockKeys()
    for ids, _ in prompts:
        unique = keys.unique_blocks
        runs, known, last = keys.number(ids)
        new = keys_of(runs)[known:]
        assert new == list(range(unique, unique + len(new)))
        assert keys.unique_blocks == unique + len(new)
        assert last == (keys_of(runs)[known - 1] if known else -1)


def test_runs_merge_consecutive_ids() -> None:
    cutter = PageCutter(512, 512, "partial")
    assert cutter.cut(1536, [0, 1, 2]) == (((0, 3),), 3, 0)
    assert cutter.cut(1024, [3, 4]) == (((3, 2),), 2, 0)
    assert cutter.cut(2048, [0, 1, 5, 6]) == (((0, 2), (5, 2)), 4, 2)
    assert cutter.cut(2560, [0, 1, 5, 6, 7]) == (((0, 2), (5, 3)), 5, 4)
    assert not cutter.keys.unchained


def test_a_partly_filled_block_counts_only_the_pages_it_had() -> None:
    cutter = PageCutter(512, 128, "full")
    assert cutter.cut(812, [0, 1]) == (((0, 6),), 6, 0)  # block 1: 300 tokens, 2 full pages
    assert cutter.cut(812, [0, 1])[2] == 6
    assert cutter.cut(1024, [0, 1])[2] == 6  # block 1 is full from here on
    assert cutter.cut(1536, [0, 1, 2])[2] == 8
    assert PageCutter(512, 128, "partial").cut(812, [0, 1]) == (((0, 7),), 7, 0)


def test_a_tail_without_an_id_is_no_page() -> None:
    cutter = PageCutter(512, 128, "partial")
    assert cutter.cut(1000, [0]) == (((0, 4),), 4, 0)
    assert cutter.cut(100, []) == ((), 0, 0)


def test_an_id_behind_another_prefix_is_another_block() -> None:
    keys = BlockKeys()
    assert keys.number([0, 1, 2]) == ([(0, 3)], 0, -1)
    assert not keys.unchained
    assert keys.number([1, 2]) == ([(3, 2)], 0, -1)
    assert keys.unchained
    assert keys.number([0, 1, 2]) == ([(0, 3)], 3, 2)
    assert keys.number([1, 2, 2]) == ([(3, 3)], 2, 4)
    assert keys.unique_blocks == 6


@pytest.mark.parametrize(
    ("page", "block", "message"),
    [
        (48, 512, "page size 48 does not divide the trace's block size of 512 tokens and is no "),
        (48, 512, "no multiple of it; 32 and 64 would do"),
        (700, 512, "no multiple of it; 512 and 1024 would do"),
        (1300, 512, "no multiple of it; 1024 and 1536 would do"),
        (2, 3, "no multiple of it; 1 and 3 would do"),
        (0, 512, "page size is 0: it must be at least 1 token"),
        (-4, 512, "page size is -4"),
        (1, 0, "block size is 0"),
    ],
)
def test_a_page_size_that_does_not_divide_a_block(page: int, block: int, message: str) -> None:
    with pytest.raises(InputError) as caught:
        cutter_for(Layout(block), page, "full") if block else pages_per_block(page, block)
    assert message in str(caught.value)


def test_an_unknown_page_rule() -> None:
    with pytest.raises(InputError, match="pages is 'some'"):
        PageCutter(512, 512, "some")  # type: ignore[arg-type]
