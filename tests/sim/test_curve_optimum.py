"""The offline optimum: brute force on small traces, never below a policy, the golden counts."""

from __future__ import annotations

import json
from itertools import combinations
from typing import Any, Literal

import pytest
from curve_cases import (
    CONVERSATION,
    GOLDENS,
    Listed,
    Prompt,
    exact,
    examples,
    prompts,
    replayed,
    shared,
)
from hypothesis import example, given
from hypothesis import strategies as st

from hicache.options import EVICTION_NAMES, CacheOptions
from sim.curve_trace import ExactReuse, TraceUses
from sim.optimum import Spells, optimum_hits
from traces.reader import open_trace

Admission = Literal["may_bypass", "must_insert"]
ADMISSIONS: tuple[Admission, ...] = ("may_bypass", "must_insert")
State = frozenset[tuple[int, ...]]

few_prompts = st.lists(st.lists(st.integers(0, 1), min_size=1, max_size=3), min_size=1, max_size=7)


def best(uses: TraceUses, taker: ExactReuse, capacity: int, admission: Admission) -> list[int]:
    spells = Spells(taker.reuse.hit_runs, uses.requests)
    return optimum_hits(spells, capacity, admission, uses.held_pages)


def brute_force(prompts: list[Prompt], capacity: int, admission: Admission) -> int:
    """The most hits of any cache: tries every content that a cache may have after each prompt.

    A content is any set of pages that were there or have just been served, as long as the page
    before each of them is in it, too.
    """
    reached: dict[State, int] = {frozenset(): 0}
    for prompt in prompts:
        path = [tuple(prompt[: end + 1]) for end in range(len(prompt))]
        following: dict[State, int] = {}
        for state, hits in reached.items():
            known = next((place for place, page in enumerate(path) if page not in state), len(path))
            must = frozenset(path) if admission == "must_insert" else frozenset()
            others = sorted((state | frozenset(path)) - must)
            room = min(capacity - len(must), len(others))
            # Fewer pages than there is room for never hit more.
            for count in range(room + 1):
                for more in combinations(others, count):
                    content = must | frozenset(more)
                    if all(len(page) == 1 or page[:-1] in content for page in content):
                        following[content] = max(following.get(content, 0), hits + known)
        reached = following
    return max(reached.values())


@pytest.mark.parametrize("admission", ADMISSIONS)
@given(few_prompts, st.integers(3, 5))
@example([[0, 0, 0], [1, 0], [0, 0, 0], [1, 1], [1, 0], [0, 0, 0]], 3)
@examples(60)
def test_nothing_hits_more_than_the_optimum_and_something_hits_as_much(
    admission: Admission, prompts: list[list[int]], capacity: int
) -> None:
    uses, taker, _ = exact(Listed(prompts))
    hits = best(uses, taker, capacity, admission)
    assert sum(hits) == brute_force(prompts, capacity, admission)


@given(few_prompts, st.integers(1, 2))
@examples(40)
def test_a_cache_smaller_than_a_prompt_may_still_bypass(
    prompts: list[list[int]], capacity: int
) -> None:
    uses, taker, _ = exact(Listed(prompts))
    assert sum(best(uses, taker, capacity, "may_bypass")) == brute_force(
        prompts, capacity, "may_bypass"
    )


@given(prompts, st.integers(6, 20))
@examples(60)
def test_no_policy_of_the_engine_is_above_either(prompts: list[list[int]], capacity: int) -> None:
    trace = Listed(prompts)
    uses, taker, curve = exact(trace)
    bypass = sum(best(uses, taker, capacity, "may_bypass"))
    insert = sum(best(uses, taker, capacity, "must_insert"))
    assert curve.pages_at(capacity) <= insert <= bypass <= curve.hit_pages[-1]
    for eviction in EVICTION_NAMES:
        for granularity in ("page", "node"):
            options = CacheOptions(
                pages="partial", hit_cap="none", outputs="dropped",
                eviction=eviction, eviction_granularity=granularity,
            )  # fmt: skip
            engine = replayed(trace.requests(), 1, capacity, cache_options=options)
            assert engine.metrics.cached_pages[0] <= insert, (eviction, granularity)


@given(prompts, st.integers(12, 24), st.booleans(), st.integers(1, 4))
@examples(60)
def test_with_a_cap_and_with_outputs_it_still_bounds_the_engine(
    prompts: list[list[int]], capacity: int, capped: bool, outputs: int
) -> None:
    trace = Listed(prompts, outputs)
    rules: dict[str, Any] = {
        "pages": "full",
        "hit_cap": "last_token_computed" if capped else "none",
        "outputs": "cached" if outputs > 1 else "dropped",
    }
    uses, taker, _ = exact(trace, 1, **rules)
    insert = sum(best(uses, taker, capacity, "must_insert"))
    for eviction in EVICTION_NAMES:
        options = CacheOptions(**rules, eviction=eviction)
        engine = replayed(trace.requests(), 1, capacity, cache_options=options)
        assert engine.metrics.cached_pages[0] <= insert, eviction


@given(prompts, st.integers(1, 20))
@examples(40)
def test_more_pages_never_hit_less(prompts: list[list[int]], capacity: int) -> None:
    uses, taker, _ = exact(Listed(prompts))
    here = best(uses, taker, capacity, "may_bypass")
    more = best(uses, taker, capacity + 1, "may_bypass")
    # A content is the pages used next: one of a larger cache holds that of a smaller one.
    assert all(a <= b for a, b in zip(here, more, strict=True))
    assert sum(best(uses, taker, 10**9, "may_bypass")) == taker.reuse.hits


def test_the_golden_counts_of_the_conversation_trace() -> None:
    golden = json.loads(shared(GOLDENS).read_text())["last_half_token_weighted"]
    uses, taker, _ = exact(open_trace(shared(CONVERSATION)), 512)
    middle = uses.requests // 2
    for admission, key in zip(
        ADMISSIONS, ("optimal_with_bypass", "optimal_forced_insert"), strict=True
    ):
        for capacity, tokens in golden[key].items():
            hits = best(uses, taker, int(capacity), admission)
            columns = zip(hits[middle:], uses.prompt_tokens[middle:], strict=True)
            assert sum(min(512 * pages, prompt) for pages, prompt in columns) == tokens
