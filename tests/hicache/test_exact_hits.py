"""Untimed hit counts: exactly those of the golden file, and of caches that are not trees."""

from __future__ import annotations

import json
from functools import cache

import pytest
from engine_runs import rows_of
from examples import examples
from hypothesis import example, given
from hypothesis import strategies as st
from naive_caches import (
    GOLDENS,
    InstantLanes,
    brute_force,
    engine_hits,
    flat_lru,
    keys_of,
    leaf_fifo,
    shared_file,
    trace_requests,
)
from simpy import Environment
from small_workloads import Keys

from hicache.engine import Engine
from hicache.errors import InputError
from hicache.options import EngineOptions
from hicache.requests import Request

prompts = st.lists(st.lists(st.integers(0, 1), min_size=1, max_size=6), max_size=30)


def named(prompts: list[list[int]]) -> tuple[list[list[int]], list[Request]]:
    """Page keys of each prompt, and the prompts as requests of one-token pages."""
    keys = Keys()
    return [keys.keys(prompt) for prompt in prompts], [
        Request(number, 0, len(prompt), 1, keys.runs(prompt), len(prompt))
        for number, prompt in enumerate(prompts)
    ]


@given(prompts, st.integers(6, 24))
@examples(100)
def test_leaf_lru_is_that_of_a_brute_force_search(prompts, capacity):
    keys, requests = named(prompts)
    hits = brute_force(keys, capacity, "lru")
    assert list(engine_hits(requests, capacity, "lru").metrics.column("device_pages")) == hits
    assert flat_lru(keys, capacity) == hits


@given(prompts, st.integers(6, 24))
@example(  # a page that left the tail of its node and came back is a new one
    [[0, 1, 0], [0, 0, 0, 0], [1, 0, 0, 0], [0, 1, 0], [0, 0, 0, 0, 0], [0, 1]], 9
)
@examples(100)
def test_leaf_fifo_is_that_of_a_brute_force_search(prompts, capacity):
    keys, requests = named(prompts)
    hits = brute_force(keys, capacity, "fifo")
    assert leaf_fifo(keys, capacity) == hits
    assert list(engine_hits(requests, capacity, "fifo").metrics.column("device_pages")) == hits


@pytest.mark.parametrize("eviction", ["lru", "fifo"])
@pytest.mark.parametrize(("page", "requests"), [(512, 400), (64, 400), (1, 12)])
@pytest.mark.parametrize("part", [0.15, 0.5])
def test_a_real_prefix_at_any_page_size(eviction, page, requests, part):
    trace = trace_requests(requests, page)
    prompts = [keys_of(request) for request in trace]
    unique = len({key for prompt in prompts for key in prompt})
    capacity = max(int(unique * part), *map(len, prompts))
    naive = {"lru": flat_lru, "fifo": leaf_fifo}[eviction]
    engine = engine_hits(trace, capacity, eviction, page)
    assert list(engine.metrics.column("device_pages")) == naive(prompts, capacity)
    assert engine.metrics.cached_pages[0] > 0
    engine.check_integrity()


@cache
def whole_trace() -> list[Request]:
    """The conversation trace at pages of a block."""
    return trace_requests()


@cache
def goldens() -> dict:
    """The golden file."""
    return json.loads(shared_file(GOLDENS).read_text())


CAPACITIES = [1000, 1827, 5859, 9139, 10000, 18279, 30000, 45697, 50000, 91395, 100000, "inf"]


@pytest.mark.parametrize("capacity", CAPACITIES)
def test_the_golden_leaf_lru_counts(capacity):
    golden = goldens()
    assert {str(each) for each in CAPACITIES} == set(golden["leaf_lru_hit_blocks"])
    pages = golden["unique_blocks"] if capacity == "inf" else capacity
    metrics = engine_hits(whole_trace(), pages, "lru", 512).metrics
    assert (metrics.requests, metrics.prompt_pages) == (golden["requests"], golden["blocks"])
    assert metrics.cached_pages == [golden["leaf_lru_hit_blocks"][str(capacity)], 0, 0]
    rate = metrics.cached_tokens[0] / metrics.prompt_tokens
    assert rate == pytest.approx(golden["leaf_lru_token_hit_rate"][str(capacity)], abs=1e-12)


@pytest.mark.parametrize(("eviction", "name"), [("lru", "lru"), ("fifo", "fifo_leaf")])
@pytest.mark.parametrize("capacity", [2984, 6000, 17999])
def test_the_golden_hit_tokens_of_the_last_half(eviction, name, capacity):
    golden = goldens()["last_half_token_weighted"]
    metrics = engine_hits(whole_trace(), capacity, eviction, 512).metrics
    half = metrics.requests // 2
    assert sum(metrics.column("prompt_tokens")[half:]) == golden["total_tokens"]
    assert sum(metrics.column("device_tokens")[half:]) == golden[name][str(capacity)]


def test_exact_duplicates_of_full_pages_hit_all_but_the_last_token():
    """An infinite cache, whole pages and the cap of every server: floor((tokens - 1) / page)."""
    for page in (1, 4):
        env = Environment(0)
        engine = Engine(env, InstantLanes(env), EngineOptions(page, 1, 1000))
        lengths = [1, 3, 4, 5, 8, 11, 12]
        for place, tokens in enumerate(lengths):
            full = tokens // page
            runs = ((100 * place, full),) if full else ()
            for copy in (0, 1):
                number = 2 * place + copy
                engine.serve_untimed([Request(number, 0, tokens, 1, runs, full)])
        hits = [row["device_tokens"] for row in rows_of(engine)]
        assert hits[::2] == [0] * len(lengths)
        assert hits[1::2] == [(tokens - 1) // page * page for tokens in lengths]


def test_a_prompt_larger_than_l1_is_an_input_error_naming_it():
    _, requests = named([[0, 1], [0] * 9])
    with pytest.raises(InputError, match=r"request 1\b.*9"):
        engine_hits(requests, 8, "lru")
