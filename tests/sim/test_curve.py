"""The hit-rate curve is that of separate replays, at any capacity, to the page."""

from __future__ import annotations

import json
import random
import signal
from bisect import bisect_right
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from curve_cases import (
    BLOCK_LRU,
    CONVERSATION,
    GOLDENS,
    Listed,
    conversation,
    exact,
    examples,
    exclusive_lru,
    flat_lru,
    prompts,
    replayed,
    shared,
)
from hypothesis import given
from hypothesis import strategies as st

from hicache.errors import InputError
from hicache.options import CacheOptions
from hicache.requests import Request
from scenario.load import load_scenario
from sim.curve_points import HitCurve, Shortfall, curve_of
from sim.curve_study import CurveQuestions, study_curve
from sim.curve_trace import CurveRules, ExactReuse
from sim.replay import replay
from traces.convert import write
from traces.generator import AgentOptions
from traces.reader import open_trace
from traces.reuse import Reuse
from traces.workloads import WORKLOADS
from traces.workloads.multi_turn import MultiTurnOptions

GENERATED: dict[str, Any] = {
    "agents": AgentOptions(hours=0.2, sessions_per_hour=2000, longest_prompt_tokens=16000),
    "multi-turn": MultiTurnOptions(clients=30, rounds=6, parallel=30),
}


@pytest.fixture(scope="module")
def generated(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("curve")
    for name, options in GENERATED.items():
        write(WORKLOADS[name].generate(options), folder / f"{name}.jsonl")
    return {name: folder / f"{name}.jsonl" for name in GENERATED}


def random_capacities(curve: HitCurve, least: int, number: int) -> list[int]:
    """Spread over their logarithms, where most happens, and a few beyond the end."""
    draw = random.Random(7)
    growth = 1.2 * max(curve.last_capacity_pages, least + 1) / least
    return [round(least * growth ** draw.random()) for _ in range(number)]


def check_replays(requests: list[Request], trace: Any, page: int, number: int) -> None:
    uses, _, curve = exact(trace, page)
    capacities = random_capacities(curve, max(uses.held_pages), number)
    assert len(set(capacities)) > number // 2
    hits = set()
    for capacity in capacities:
        metrics = replayed(requests, page, capacity).metrics
        assert metrics.cached_pages[0] == curve.pages_at(capacity), capacity
        assert metrics.cached_tokens[0] == curve.tokens_at(capacity), capacity
        hits.add(metrics.cached_pages[0])
    assert len(hits) > number // 3, "capacities at which nothing differs test nothing"


def test_twenty_replays_of_the_conversation_trace() -> None:
    check_replays(conversation(), open_trace(CONVERSATION), 512, 20)


@pytest.mark.parametrize(("name", "page"), [("agents", 64), ("multi-turn", 1)])
def test_twenty_replays_of_a_generated_trace(
    generated: dict[str, Path], name: str, page: int
) -> None:
    requests = list(open_trace(generated[name]).requests(page, "partial"))
    check_replays(requests, open_trace(generated[name]), page, 20)


def test_a_replay_as_users_run_it(generated: dict[str, Path]) -> None:
    path = str(generated["agents"])
    _, _, curve = exact(open_trace(path), 64)
    capacity = curve.capacity_for(curve.hit_pages[-1] // 2)
    options: dict[str, object] = {
        "trace.path": path, "preset": "block-lru", "mode": "untimed",
        "tiers.page_size_tokens": 64, "tiers.l1": f"{capacity}pages", "tiers.l2": "0",
    }  # fmt: skip
    summary = replay(load_scenario(None, options)).summary
    assert summary["cached_pages_total"]["device"] == curve.pages_at(capacity)
    assert summary["cached_tokens_total"]["device"] == curve.tokens_at(capacity)


def test_the_golden_counts() -> None:
    golden = json.loads(shared(GOLDENS).read_text())
    uses, taker, curve = exact(open_trace(shared(CONVERSATION)), 512)
    assert (uses.requests, sum(uses.prompt_pages)) == (golden["requests"], golden["blocks"])
    for capacity, hits in golden["leaf_lru_hit_blocks"].items():
        pages = 10**9 if capacity == "inf" else int(capacity)
        assert curve.pages_at(pages) == hits
        rate = curve.tokens_at(pages) / sum(uses.prompt_tokens)
        assert rate == pytest.approx(golden["leaf_lru_token_hit_rate"][capacity], abs=1e-12)
    half = golden["last_half_token_weighted"]
    last = curve_of(taker.reuse.hit_runs, 512, uses.shortfalls, uses.requests // 2)
    for capacity, tokens in half["lru"].items():
        assert last.tokens_at(int(capacity)) == tokens
    assert last.hit_tokens[-1] == half["ceiling_hit_tokens"]


@given(prompts)
@examples(100)
def test_every_capacity_of_any_small_trace(prompts: list[list[int]]) -> None:
    """Smaller caches than a prompt, too: then the curve is that of a cache that keeps its start."""
    _, _, curve = exact(Listed(prompts))
    steps = curve.every_step()
    for capacity in range(curve.last_capacity_pages + 3):
        hits = flat_lru(prompts, capacity)
        assert curve.pages_at(capacity) == hits
        # The written form, read as a staircase and as a line.
        assert steps.hit_pages[bisect_right(steps.capacity_pages, capacity) - 1] == hits
        assert steps.pages_at(capacity) == hits
    assert sorted(set(steps.capacity_pages)) == steps.capacity_pages
    changes = sum(
        curve.pages_at(each) != curve.pages_at(each - 1)
        for each in range(1, curve.last_capacity_pages + 1)
    )
    assert curve.num_steps == changes
    for hits in range(curve.hit_pages[-1] + 1):
        least = curve.capacity_for(hits)
        assert curve.pages_at(least) >= hits
        assert least == 0 or curve.pages_at(least - 1) < hits


@given(prompts, st.lists(st.integers(6, 24), min_size=2, max_size=3))
@examples(60)
def test_inclusive_tiers_are_the_largest_and_exclusive_ones_the_sum(
    prompts: list[list[int]], tiers: list[int]
) -> None:
    trace = Listed(prompts)

    def together(relation: Any) -> Any:
        questions = CurveQuestions(tiers=tiers, relation=relation)
        return _studied(trace, questions)["tiers"]

    inclusive = together("inclusive")
    assert inclusive["kind"] == "exact"
    assert (
        inclusive["hit_pages"]
        == replayed(trace.requests(), 1, *tiers).metrics.cached_pages[: len(tiers)]
    )
    exclusive = together("exclusive")
    assert exclusive["hit_pages"] == exclusive_lru(prompts, tiers)
    bound = together("other")
    assert bound["as_one_of_pages"] == sum(tiers)
    assert "bound" in bound["kind"]
    assert bound["together"]["hit_pages"] >= max(
        inclusive["hit_pages_together"], exclusive["hit_pages_together"]
    )


@cache
def _facts() -> Any:
    from traces.facts import TraceFacts

    return TraceFacts()


def _studied(trace: Any, questions: CurveQuestions, **rules: Any) -> dict[str, Any]:
    trace.path, trace.format, trace.facts = "a list", "a list", _facts()
    return study_curve(trace, CurveRules(1, **rules), questions).document


@given(prompts, st.integers(12, 30), st.booleans(), st.integers(1, 5), st.sampled_from([1, 4]))
@examples(150)
def test_a_cap_or_outputs_or_full_pages_cost_at_most_one_page_of_capacity(
    prompts: list[list[int]], capacity: int, capped: bool, outputs: int, page: int
) -> None:
    cap = "last_token_computed" if capped else "none"
    kept = "cached" if outputs > 1 else "dropped"
    trace = _in_pages(prompts, page, outputs)
    uses, _, curve = exact(trace, page, pages="full", hit_cap=cap, outputs=kept)
    options = CacheOptions(
        pages="full", hit_cap=cap, outputs=kept, eviction_granularity="page"
    )  # fmt: skip
    hits = replayed(trace.requests(), page, capacity, cache_options=options).metrics.cached_pages[0]
    assert curve.pages_at(capacity - 1) <= hits <= curve.pages_at(capacity)
    if uses.rules.exact:
        assert hits == curve.pages_at(capacity)


def _in_pages(prompts: list[list[int]], page: int, outputs: int) -> Listed:
    """Prompts whose last page may lack tokens, so that it is not cached."""
    trace = Listed(prompts, outputs)
    for request in trace.requests():
        lacking = (request.number * 7) % page
        request.prompt_tokens = request.prompt_pages * page + lacking
    return trace


def test_the_same_bytes_and_an_empty_curve() -> None:
    document = _studied(Listed([[0, 1], [1, 1]]), CurveQuestions(optimum_curve=True, lru_at=[3]))
    assert document["capacity_pages"] == document["hit_pages"] == document["hit_tokens"] == [0]
    assert document["at"][0]["hit_pages"] == 0
    assert document["optimum_curve"]["hit_pages_may_bypass"] == [0]


def test_a_partly_filled_page_counts_for_the_tokens_in_it() -> None:
    reuse = Reuse()
    for _ in range(2):
        reuse.add([(0, 3)], 3)
    curve = curve_of(reuse.hit_runs, 10, [Shortfall(3, 4, 1)])
    assert [curve.tokens_at(pages) for pages in range(5)] == [0, 10, 20, 26, 26]
    assert [curve.pages_at(pages) for pages in range(5)] == [0, 1, 2, 3, 3]


def test_beyond_so_many_steps_only_corners_are_written(monkeypatch: pytest.MonkeyPatch) -> None:
    trace = Listed([[0, 1, 0], [0, 1, 0], [1], [0, 1, 0]])
    every = _studied(trace, CurveQuestions())
    monkeypatch.setattr("sim.curve_study.MOST_STEPS", 1)
    corners = _studied(trace, CurveQuestions())
    assert len(corners["capacity_pages"]) < len(every["capacity_pages"])
    assert "corners" in corners["between_points"]
    line = HitCurve(corners["capacity_pages"], corners["hit_pages"], corners["hit_tokens"])
    for capacity, hits in zip(every["capacity_pages"], every["hit_pages"], strict=True):
        assert line.pages_at(capacity) == hits


@pytest.mark.parametrize(
    ("rules", "named"),
    [
        ({"pages": "half"}, "pages is 'half'"),
        ({"hit_cap": "all"}, "hit_cap is 'all'"),
        ({"outputs": "kept"}, "outputs is 'kept'"),
        ({"outputs": "cached"}, "outputs is cached while pages is partial"),
    ],
)
def test_rules_that_cannot_be(rules: dict[str, Any], named: str) -> None:
    with pytest.raises(InputError, match=named):
        CurveRules(64, **rules)


def test_the_rules_are_those_of_the_preset() -> None:
    rules = CurveRules(64)
    assert (rules.pages, rules.hit_cap, rules.outputs) == (
        BLOCK_LRU.pages, BLOCK_LRU.hit_cap, BLOCK_LRU.outputs,
    )  # fmt: skip
    from scenario.presets import PRESETS

    preset = PRESETS["block-lru"]
    assert preset["cache.pages"] == rules.pages
    assert preset["cache.hit_cap"] == rules.hit_cap
    assert preset["cache.outputs"] == rules.outputs


@pytest.mark.parametrize("when", ["reading", "counting"])
def test_ctrl_c_leaves_the_curve_of_what_was_read(
    monkeypatch: pytest.MonkeyPatch, when: str
) -> None:
    paths = [[0, 1, 0], [0, 1, 1], [0, 1, 0], [0, 1, 1]]
    trace = Listed(paths)
    requests = list(trace.requests())

    def stalls(*_: Any) -> Any:
        yield from requests[:3]
        signal.raise_signal(signal.SIGINT)
        yield requests[3]

    class Interrupted(ExactReuse):
        def take(self, runs: Any, may_hit_pages: int) -> int:
            if self.reuse.requests == 2:
                signal.raise_signal(signal.SIGINT)
            return super().take(runs, may_hit_pages)

    if when == "reading":
        monkeypatch.setattr(trace, "requests", stalls)
    else:
        monkeypatch.setattr("sim.curve_study.ExactReuse", Interrupted)
    document = _studied(trace, CurveQuestions())
    assert document["interrupted"]
    assert any("interrupted" in each for each in document["warnings"])
    monkeypatch.undo()
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    whole = _studied(Listed(paths[:3]), CurveQuestions())
    assert not whole["interrupted"]
    for key in ("trace", "prompt_pages", "capacity_pages", "hit_pages", "hit_tokens"):
        assert document[key] == whole[key]
