"""Token ids made from page keys."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from hicache.requests import Request
from hw.tokens import TokenBook, expand
from traces.cut import cutter_for
from traces.rows import Layout, Row


def book(page: int = 4, vocab: int = 1000, **options) -> TokenBook:
    return TokenBook(page, vocab, **options)


def request(number: int, prompt: int, output: int, runs, output_runs=None, pages=None) -> Request:
    counted = sum(count for _, count in runs)
    return Request(
        number, 0, prompt, output, runs, counted if pages is None else pages,
        output_runs=output_runs,
    )  # fmt: skip


@given(
    runs=st.lists(st.tuples(st.integers(0, 50), st.integers(1, 6)), min_size=1, max_size=4),
    page=st.integers(1, 9),
    vocab=st.integers(2, 200_000),
)
def test_a_token_is_a_function_of_its_pages_key_and_its_place(runs, page, vocab):
    keys = [first + place for first, count in runs for place in range(count)]
    assert expand(runs).tolist() == keys
    tokens = book(page, vocab).tokens(request(7, len(keys) * page, 3, runs), 1)
    assert tokens.dtype == np.int32
    assert len(tokens) == len(keys) * page + 3
    assert 0 <= tokens.min() <= tokens.max() < vocab
    by_key: dict[int, list[int]] = {}
    for place, key in enumerate(keys):
        part = tokens[place * page : (place + 1) * page].tolist()
        assert by_key.setdefault(key, part) == part
        alone = book(page, vocab).tokens(request(8, page, 1, [(key, 1)]), 1)
        assert alone[:page].tolist() == part


def test_keys_places_seeds_and_requests_give_other_tokens():
    base = request(1, 64, 64, [(3, 16)])
    tokens = book(vocab=1 << 30).tokens(base, 128)
    assert len(set(tokens.tolist())) == 128
    seeded = book(vocab=1 << 30, seed=1).tokens(base, 128)
    assert not set(tokens.tolist()) & set(seeded.tolist())
    other = book(vocab=1 << 30).tokens(request(2, 64, 64, [(3, 16)]), 128)
    assert np.array_equal(tokens[:64], other[:64])
    assert not set(tokens[64:].tolist()) & set(other[64:].tolist())


def test_a_later_prompt_has_the_tokens_of_the_answer_that_it_goes_on_from():
    """The example of docs/pages.md, with the traces' own keys."""
    cutter = cutter_for(Layout(block_tokens=0), page_size_tokens=4, pages="full")
    rows = (
        Row(input_length=10, output_length=8, hash_ids=[0], lengths=[10],
            output_ids=[1], output_lengths=[8]),
        Row(input_length=25, output_length=1, hash_ids=[0, 1, 2], lengths=[10, 8, 7]),
    )  # fmt: skip
    made = []
    for number, row in enumerate(rows):
        prompt_runs, pages, _, output_runs = cutter.cut_row(row)
        made.append(
            request(number, row.input_length, row.output_length, prompt_runs, output_runs, pages)
        )
    first, second = (book().tokens(each, 0) for each in made)
    # 17 tokens with KV in 4 full pages; the answer's last token is nobody's.
    assert np.array_equal(first[:16], second[:16])
    assert not np.array_equal(first[16:18], second[16:18])


def test_a_prompts_tail_is_private_where_no_answer_is_named():
    first = book(vocab=1 << 30).tokens(request(0, 10, 8, [(5, 2)]), 18)
    second = book(vocab=1 << 30).tokens(request(1, 10, 8, [(5, 2)]), 18)
    assert np.array_equal(first[:8], second[:8])
    assert not set(first[8:].tolist()) & set(second[8:].tolist())


def test_a_partly_filled_page_with_a_key_of_its_own():
    """Two prompts that end alike share their last page, whatever they answer."""
    first = book(vocab=1 << 30).tokens(request(0, 10, 8, [(5, 3)], pages=3), 18)
    second = book(vocab=1 << 30).tokens(request(1, 10, 8, [(5, 3)], ((90, 2),), 3), 18)
    assert np.array_equal(first[:10], second[:10])
    assert first[10] != second[10]


def test_more_tokens_than_a_request_has_go_on_from_those_it_has():
    tokens = book()
    base = request(0, 10, 8, [(5, 2)], ((40, 2),))
    short = tokens.tokens(base, 5).copy()
    long = tokens.tokens(base, 100)
    assert len(long) == 100
    assert np.array_equal(long[:18], short)
    assert tokens.tokens(base, 50) is long


def test_tokens_are_kept_for_those_asked_about_last():
    tokens = book(keep_tokens=100)
    requests = [request(number, 36, 4, [(number * 50, 9)]) for number in range(4)]
    first, second = (tokens.tokens(each, 40) for each in requests[:2])
    assert tokens.tokens(requests[0], 40) is first
    tokens.tokens(requests[2], 40)
    assert tokens.tokens(requests[0], 40) is first
    again = tokens.tokens(requests[1], 40)
    assert again is not second
    assert np.array_equal(again, second)
    assert not again.flags.writeable
