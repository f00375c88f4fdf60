"""Every cutter against a cache that knows each page by all tokens up to its end, answers too."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from trace_helpers import keys_of

from hicache.errors import InputError
from traces.cut import Cutter, cutter_for, split_runs
from traces.rows import Layout, Row
from traces.segments import SegmentCutter
from traces.tokens import TokenCutter

Token = Hashable
BLOCK = 4


class EveryToken:
    """The oracle: an infinite cache; a page is the tuple of all tokens up to its end."""

    def __init__(self, cutter: Cutter, page: int, pages: str) -> None:
        self.cutter = cutter
        self.page = page
        self.partial = pages == "partial"
        self.held: set[Hashable] = set()
        self.identity_of: dict[int, Hashable] = {}
        self.key_of: dict[Hashable, int] = {}

    def full_pages(self, tokens: Sequence[Token]) -> list[Hashable]:
        ends = range(self.page, len(tokens) + 1, self.page)
        return [tuple(tokens[:end]) for end in ends]

    def check(self, row: Row, prompt: list[Token], answer: list[Token] | None) -> None:
        """`prompt` and `answer` are the tokens that ids stand for, as far as ids reach."""
        runs, num_pages, ideal, output_runs = self.cutter.cut_row(row)
        expected = self.full_pages(prompt)
        if self.partial:
            answer = None
            if len(prompt) == row.input_length and len(prompt) % self.page:
                expected.append(("ends here", tuple(prompt)))
        keys = keys_of(runs)
        assert len(keys) == num_pages == len(expected)
        hit = 0
        while hit < len(expected) and expected[hit] in self.held:
            hit += 1
        assert ideal == hit
        named = expected
        if answer is None:
            assert output_runs is None
        else:
            assert output_runs is not None
            context = [*prompt, *answer][: row.input_length + max(row.output_length, 1) - 1]
            named = self.full_pages(context)
            assert named[:num_pages] == expected
            keys += keys_of(output_runs)
        assert len(keys) == len(named)
        for each in (runs, output_runs or ()):
            assert all(count > 0 for _, count in each)
            assert all(first + count != after for (first, count), (after, _) in pairwise(each))
        for key, identity in zip(keys, named, strict=True):
            assert self.identity_of.setdefault(key, identity) == identity
            assert self.key_of.setdefault(identity, key) == key
        self.held.update(named)


@st.composite
def piece_rows(
    draw: st.DrawFn, longest: int, uncovered: bool = True
) -> list[tuple[Row, list[Token], list[Token] | None]]:
    """Rows of pieces over few ids, many of which go on from an earlier prompt and its answer."""
    pieces = st.lists(st.tuples(st.integers(0, 2), st.integers(1, longest)), max_size=5)
    contexts: list[list[tuple[int, int]]] = [[]]
    rows = []
    for _ in range(draw(st.integers(1, 10))):
        before = draw(st.sampled_from(contexts))
        prompt = before[: draw(st.integers(0, len(before)))] if draw(st.booleans()) else before
        prompt = prompt + draw(pieces)
        answer = draw(st.none() | pieces)
        gap = draw(st.sampled_from([0, 0, 0, 1, 5])) if uncovered else 0
        tokens = [(each, length, at) for each, length in prompt for at in range(length)]
        if not tokens and not gap:
            continue
        made = [(each, length, at) for each, length in answer or [] for at in range(length)]
        row = Row(
            len(tokens) + gap,
            len(made),
            0,
            [each for each, _ in prompt],
            [length for _, length in prompt],
            None if answer is None else [each for each, _ in answer],
            None if answer is None else [length for _, length in answer],
        )
        # Where the answer begins is not known behind tokens without an id.
        rows.append((row, tokens, None if gap or answer is None else made))
        contexts += [prompt, prompt + (answer or [])]
    return rows


@pytest.mark.parametrize("pages", ["full", "partial"])
@pytest.mark.parametrize("page", [1, 3, 4, 7])
@settings(max_examples=60, deadline=None)
@given(rows=piece_rows(longest=6))
def test_pieces_of_any_length(
    page: int, pages: str, rows: list[tuple[Row, list[Token], list[Token] | None]]
) -> None:
    cutter = cutter_for(Layout(0), page, pages)  # type: ignore[arg-type]
    oracle = EveryToken(cutter, page, pages)
    for row, prompt, answer in rows:
        oracle.check(row, prompt, answer)
    assert cutter.blocks == sum(len(row.hash_ids) for row, _, _ in rows)


@pytest.mark.parametrize("pages", ["full", "partial"])
@pytest.mark.parametrize("page", [1, 2, 4])
@settings(max_examples=60, deadline=None)
@given(rows=piece_rows(longest=1), wide_from=st.integers(0, 12))
def test_token_ids(
    page: int,
    pages: str,
    rows: list[tuple[Row, list[Token], list[Token] | None]],
    wide_from: int,
) -> None:
    """The same, with token ids; from some row on an id needs more than 32 bits."""
    cutter = cutter_for(Layout(1), page, pages)  # type: ignore[arg-type]
    oracle = EveryToken(cutter, page, pages)
    for index, (row, prompt, answer) in enumerate(rows):
        row.lengths = row.output_lengths = None
        if index >= wide_from:
            row.hash_ids = [each or (1 << 62) for each in row.hash_ids]
            prompt = [("wide",) if token[0] == 0 else token for token in prompt]  # type: ignore[index]
        oracle.check(row, prompt, answer)
    assert cutter.blocks == sum(
        -(-len(p) // page) if pages == "partial" and len(p) == r.input_length else len(p) // page
        for r, p, _ in rows
    )
    assert cutter.unique_blocks == len(oracle.key_of)


@st.composite
def block_rows(draw: st.DrawFn) -> list[tuple[Row, list[Token], list[Token] | None]]:
    """Rows of blocks, some without their tail's id, some with the blocks that the answer filled."""
    contexts: list[list[int]] = [[]]
    rows = []
    for _ in range(draw(st.integers(1, 10))):
        before = draw(st.sampled_from(contexts))
        full = before[: draw(st.integers(0, len(before)))] + draw(
            st.lists(st.integers(0, 2), max_size=4)
        )
        rest = draw(st.integers(0, BLOCK - 1))
        if not full and not rest:
            continue
        ids = list(full)
        tail_id = draw(st.booleans()) and rest
        if tail_id:
            ids.append(draw(st.integers(0, 2)))
        tokens = len(full) * BLOCK + rest
        output, output_ids = 0, None
        if draw(st.booleans()):
            output = draw(st.integers(0, 3 * BLOCK))
            num_filled = (tokens + output) // BLOCK - len(full)
            output_ids = draw(st.lists(st.integers(0, 2), min_size=num_filled, max_size=num_filled))
        row = Row(tokens, output, 0, ids, None, output_ids)
        # The tail is the start of the block that the answer filled, if there is one.
        named = full + output_ids if output_ids else ids
        content = [(each, at) for each in named for at in range(BLOCK)]
        prompt, made = content[:tokens], None
        if output_ids is not None:
            made = content[tokens:] if output_ids else []
        rows.append((row, prompt, made))
        contexts += [full, full + (output_ids or [])]
    return rows


@pytest.mark.parametrize("page", [1, 2, 4, 8, 12])
@settings(max_examples=80, deadline=None)
@given(rows=block_rows())
def test_blocks_that_pages_divide_or_join(
    page: int, rows: list[tuple[Row, list[Token], list[Token] | None]]
) -> None:
    cutter = cutter_for(Layout(BLOCK), page, "full")
    oracle = EveryToken(cutter, page, "full")
    for row, prompt, answer in rows:
        # Ids reach to the end of a block; a page beyond the last whole one is none.
        reach = len(prompt) if len(prompt) == row.input_length else len(prompt) // BLOCK * BLOCK
        oracle.check(row, prompt[:reach], answer if reach == row.input_length else answer and [])


@pytest.mark.parametrize("page", [8, 12])
@settings(max_examples=60, deadline=None)
@given(rows=block_rows())
def test_partly_filled_pages_of_several_blocks(
    page: int, rows: list[tuple[Row, list[Token], list[Token] | None]]
) -> None:
    oracle = EveryToken(cutter_for(Layout(BLOCK), page, "partial"), page, "partial")
    for row, _, _ in rows:
        content = [(each, at) for each in row.hash_ids for at in range(BLOCK)]
        oracle.check(row, content[: row.input_length], None)


@settings(max_examples=40, deadline=None)
@given(rows=piece_rows(longest=1, uncovered=False), page=st.integers(1, 4))
def test_token_ids_are_pieces_of_one_token(
    rows: list[tuple[Row, list[Token], list[Token] | None]], page: int
) -> None:
    tokens, pieces = TokenCutter(page, "full"), SegmentCutter(page, "full")
    for row, _, _ in rows:
        by_token, by_piece = tokens.cut_row(row), pieces.cut_row(row)
        assert by_token[1:3] == by_piece[1:3]


def test_new_pages_of_a_prompt_are_one_run() -> None:
    for layout in (Layout(0), Layout(1), Layout(2), Layout(4)):
        cutter = cutter_for(layout, 4, "full")
        size = layout.block_tokens or 8
        ids = list(range(80 // size))
        lengths = None if layout.block_tokens else [8] * 10
        assert cutter.cut_row(Row(80, 0, 0, ids, lengths))[:3] == (((0, 20),), 20, 0)
        ids = ids[: 40 // size] + [1000 + each for each in ids[40 // size :]]
        runs, _, ideal, _ = cutter.cut_row(Row(80, 0, 0, ids, lengths))
        assert (runs, ideal) == (((0, 10), (20, 10)), 10)


def test_without_ids_nothing_is_shared() -> None:
    cutter = cutter_for(Layout(0, has_ids=False), 16, "full")
    assert cutter.cut_row(Row(40, 3)) == (((0, 2),), 2, 0, None)
    assert cutter.cut_row(Row(40, 3)) == (((2, 2),), 2, 0, None)
    assert cutter.cut_row(Row(15, 3)) == ((), 0, 0, None)
    assert cutter_for(Layout(0, has_ids=False), 16, "partial").cut_row(Row(40, 3))[1] == 3
    assert (cutter.blocks, cutter.unique_blocks) == (0, 0)


def test_a_later_turn_hits_all_that_has_kv() -> None:
    """Prompt 10, answer 8: the last token's KV is never computed, so 17 tokens are held."""
    for page, cached in ((1, 17), (4, 16), (17, 17), (18, 0)):
        cutter = cutter_for(Layout(0), page, "full")
        cutter.cut_row(Row(10, 8, 0, [0], [10], [1], [8]))
        later = Row(25, 1, 0, [0, 1, 2], [10, 8, 7], [3], [1])
        assert cutter.cut_row(later)[2] * page == cached


def test_counts_of_blocks() -> None:
    cutter = cutter_for(Layout(0), 4, "full")
    cutter.cut_row(Row(10, 8, 0, [0, 1], [4, 6], [2], [8]))
    cutter.cut_row(Row(12, 0, 0, [0, 1, 3], [4, 6, 2]))
    cutter.cut_row(Row(10, 0, 0, [0, 1], [4, 5]))
    assert (cutter.blocks, cutter.ideal_blocks, cutter.unique_blocks) == (7, 3, 5)
    assert cutter.rows_without_tail == 1


def test_runs_are_split_anywhere() -> None:
    runs = ((5, 3), (9, 2))
    assert split_runs(runs, 0) == ((), runs)
    assert split_runs(runs, 2) == (((5, 2),), ((7, 1), (9, 2)))
    assert split_runs(runs, 3) == (((5, 3),), ((9, 2),))
    assert split_runs(runs, 4) == (((5, 3), (9, 1)), ((10, 1),))
    assert split_runs(runs, 9) == (runs, ())


@pytest.mark.parametrize("layout", [Layout(0), Layout(1), Layout(0, has_ids=False)])
def test_sizes_and_rules_that_are_none(layout: Layout) -> None:
    with pytest.raises(InputError, match="page size is 0"):
        cutter_for(layout, 0, "full")
    with pytest.raises(InputError, match="pages is 'some'"):
        cutter_for(layout, 4, "some")  # type: ignore[arg-type]
