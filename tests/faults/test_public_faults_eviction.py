"""Faults that users reported of what leaves a cache, and when: each report as a run of the engine,
with the counters that are right, and the same run with the fault put back, which must not pass.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from adversarial_lanes import pages_of
from bench import Bench
from by_hand import H200_BY_HAND
from engine_runs import assert_at_rest
from tree_view import claims, nodes_of

from hicache.arrival import Arrival
from hicache.eviction import STRATEGIES
from hicache.holdings import Holdings
from hicache.node import DEVICE, HOST, Node
from hicache.tier import Tier
from hicache.tree import HiRadixTree, Match
from scenario import resolve as resolving
from scenario.load import load_scenario
from sim.plan import Wishes, prepare_plan
from sim.plan_document import document_of
from sim.plan_search import search
from sim.plan_sizes import GIB, Limits
from sim.replay import replay
from sim.sweep_cell import run_job

REPOSITORY = Path(__file__).resolve().parents[2]
SHIPPED = REPOSITORY / "data" / "agents.jsonl"
CONVERSATION = REPOSITORY.parent / "shared" / "traces" / "mooncake_conversation.jsonl"

# A run that broke leaves processes under way; they go in the test that broke it.
BROKEN = "ignore::pytest.PytestUnraisableExceptionWarning"


@pytest.fixture(autouse=True)
def nothing_is_left() -> Iterator[None]:
    """Whatever a broken run left under way goes now."""
    yield
    gc.collect()


# ---------------------------------------------------------------------- no victim in L2
# sglang#12875: evict_host found no candidate, because every page of L2 was one of L1, too.


def every_host_page_is_a_copy(victims: str) -> Bench:
    """L2 is full with copies of two prompts that L1 holds; a third one is to be written."""
    bench = Bench(16, 8, cache={"l2_victims": victims})
    for place in range(3):
        bench.ask(1000 * place, range(100 * place, 100 * place + 4))
    bench.run()
    assert_at_rest(bench.engine)
    return bench


def test_sglang_12875_no_victim_in_l2_is_no_error() -> None:
    bench = every_host_page_is_a_copy("not_in_l1")
    assert bench.tree.evict(HOST, 1) == 0
    assert bench.metrics.dropped_pages["host_pressure"] == 4
    assert [copy.pages for copy in bench.copies("d2h")] == [4, 4]
    assert bench.hits(range(200, 204)) == (4, 0, 0)


def test_sglang_12875_with_duplicates_reclaimed_there_is_room() -> None:
    bench = every_host_page_is_a_copy("duplicates_first")
    assert bench.metrics.dropped_pages["host_pressure"] == 0
    assert bench.hits(range(200, 204)) == (4, 4, 0)
    assert bench.tree.evict(HOST, 1) >= 1
    assert [bench.hits(range(first, first + 4))[0] for first in (0, 100, 200)] == [4, 4, 4]


@pytest.mark.filterwarnings(BROKEN)
def test_sglang_12875_put_back(monkeypatch: pytest.MonkeyPatch) -> None:
    """The allocation takes it for granted that evicting has made room."""

    def take(self: HiRadixTree, tier: int, count: int) -> object:
        owner = self.tiers[tier]
        if count > owner.allocator.free:
            if count > owner.available:
                return None
            self.evict(tier, count - owner.allocator.free)
        return owner.allocator.take(count)

    monkeypatch.setattr(HiRadixTree, "take", take)
    with pytest.raises(AssertionError):
        every_host_page_is_a_copy("not_in_l1")


# ---------------------------------------------------------------------- L2 smaller than L1
# sglang#16909, sglang#28614: an L2 that is no larger than L1 brings nothing, and nobody says so.


def served(trace: Path, l1: int, l2: int) -> tuple[float, list[str]]:
    """The part of the prompt tokens that hit, and what the result warns of."""
    options = {
        "preset": "sglang-0.5.20", "mode": "untimed", "trace.path": str(trace),
        "tiers.page_size_tokens": 512, "tiers.l1": f"{l1}pages", "tiers.l2": f"{l2}pages",
        "cache.outputs": "dropped", "tiers.l3": "0",
    }  # fmt: skip
    summary: Any = replay(load_scenario(None, options)).summary
    return summary["cache_hit_rate"], [each for each in summary["warnings"] if "tiers.l2" in each]


@pytest.fixture(scope="module", params=["shipped", "conversation"])
def sizes(request: pytest.FixtureRequest) -> tuple[Path, int, int]:
    """A trace with L1 and half as much L2, in blocks of 512 tokens."""
    if request.param == "shipped":
        return SHIPPED, 1200, 600
    if not CONVERSATION.exists():
        pytest.skip(f"{CONVERSATION.name} of the shared data is not here")
    return CONVERSATION, 6000, 3000


def test_sglang_16909_an_l2_below_l1_adds_nothing_and_the_planner_says_why(
    sizes: tuple[Path, int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    trace, l1, l2 = sizes
    alone, _ = served(trace, l1, 0)
    rate, said = served(trace, l1, l2)
    assert abs(rate - alone) < 0.001
    assert any(f"{l1:,} of L1" in each and "l2_victims is not_in_l1" in each for each in said)
    # Put back: sizes that are added up, as the flags suggest, promise more; and nobody says so.
    assert served(trace, l1 + l2, 0)[0] - alone > 0.001
    monkeypatch.setattr(resolving, "_idle_l2", lambda scenario, options: [])
    assert not any("not_in_l1" in each for each in served(trace, l1, l2)[1])


def warnings_of_a_plan(l1: int, l2: int) -> list[str]:
    """What `hicache plan` says of an L2 of so many pages, under SGLang's rules, if taken: that
    of 600 pages by chance, for a few milliseconds of TTFT p99 on this machine.
    """
    options = {
        "preset": "sglang-0.5.20", "trace.path": str(SHIPPED), "tiers.l1": f"{l1}pages",
        "tiers.page_size_tokens": 512, "cache.outputs": "dropped", "machine.profile": H200_BY_HAND,
    }  # fmt: skip
    wishes = Wishes(None, options, (512,), ("always",), (l2 * 512 * 147_456,), (0,))
    limits = Limits("node", 1024 * GIB, 0.9, None, 1, 4.0, 0.1, None)
    plan = prepare_plan(wishes, lambda _: limits)
    search(plan, lambda jobs, _: (run_job(job) for job in jobs), "GiB")
    return [each for each in document_of(plan, "GiB")["warnings"] if "l2_victims" in each]


def test_sglang_16909_a_plan_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    (said,) = warnings_of_a_plan(1200, 600)
    assert "no more than the 1,200 of L1" in said
    assert not warnings_of_a_plan(1200, 2400)
    monkeypatch.setattr(resolving, "_idle_l2", lambda scenario, options: [])
    assert not warnings_of_a_plan(1200, 600)


def test_sglang_28614_a_larger_l2_adds_what_it_has_beyond_l1(sizes: tuple[Path, int, int]) -> None:
    trace, l1, _ = sizes
    rate, said = served(trace, l1, 4 * l1)
    assert rate - served(trace, l1, 0)[0] > 0.01
    assert not any("not_in_l1" in each for each in said)


# ---------------------------------------------------------------------- reuse before arrival
# sglang#31427, vllm#45704: pages of L2 were handed out while a copy from them was still under way.


def evicted_under_a_load() -> Bench:
    """A prompt is on its way back to L1; L2 is asked for all it can give meanwhile."""
    bench = Bench(16, 24)
    start = bench.cool(range(8))
    bench.ask(start, range(8))
    bench.holding = {"h2d"}
    bench.run(start + 500)
    (copy,) = bench.copies("h2d")
    sources = set(pages_of(copy.source))
    assert len(sources) == 7
    bench.tree.evict(HOST, 24)
    free = bench.tree.tiers[HOST].allocator.free
    taken = bench.tree.take(HOST, free)
    assert taken is not None
    assert not sources & set(pages_of(taken)), "a page under way was handed out"
    assert bench.tree.take(HOST, 1) is None
    bench.tree.give(HOST, taken, free)
    bench.let("h2d")
    bench.run()
    return bench


def test_sglang_31427_a_page_under_way_is_not_handed_out() -> None:
    bench = evicted_under_a_load()
    assert bench.rows()[2]["host_tokens"] == 7
    assert bench.metrics.restores == 1
    assert_at_rest(bench.engine)


@pytest.mark.filterwarnings(BROKEN)
def test_sglang_31427_put_back(monkeypatch: pytest.MonkeyPatch) -> None:
    """A copy does not hold on to what it reads."""
    enter = Arrival.__enter__

    def careless(self: Arrival) -> Arrival:
        entered = enter(self)
        if self.source == HOST:
            self.tree.unpin(self.node, HOST)
        return entered

    monkeypatch.setattr(Arrival, "__enter__", careless)
    with pytest.raises(AssertionError):
        evicted_under_a_load()


# ---------------------------------------------------------------------- leaked pins
# lmcache#1034, vllm#35931: lookups that were answered from the GPU alone left their pins behind.

LOOKUPS = 1000


def asked_again_and_again() -> Bench:
    """One prompt, a thousand times; after the first time all of it is in L1."""
    bench = Bench(8, 16)
    for place in range(LOOKUPS + 1):
        bench.ask(100 * place, range(4), tail=1)
    return bench.run()


def test_lmcache_1034_a_thousand_hits_in_l1_leave_no_pin() -> None:
    bench = asked_again_and_again()
    assert [row["device_tokens"] for row in bench.rows()] == [0] + [4] * LOOKUPS
    assert claims(bench.tree) == []
    pages = bench.engine.status()["tiers"]["device"]
    assert (pages["protected_pages"], pages["evictable_pages"]) == (0, 4)
    assert bench.tree.evict(DEVICE, 8) == 4
    assert_at_rest(bench.engine)


@pytest.mark.filterwarnings(BROKEN)
def test_lmcache_1034_put_back(monkeypatch: pytest.MonkeyPatch) -> None:
    """A request whose prompt was all there forgets its pin."""
    release = Holdings.release

    def forget(self: Holdings, run: object) -> None:
        if getattr(run, "cached_pages", (0,))[0]:
            self._tree.pin(run.node, DEVICE)  # type: ignore[attr-defined]
        release(self, run)  # type: ignore[arg-type]

    monkeypatch.setattr(Holdings, "release", forget)
    bench = asked_again_and_again()
    assert claims(bench.tree)
    with pytest.raises(AssertionError):
        assert_at_rest(bench.engine)


# ---------------------------------------------------------------------- gap in the middle
# vllm#57325: of a path of three nodes L1 held the first and the last, and L2 the one in the middle;
# the lookup stopped at the gap, and what L2 and L1 had behind it was computed again. Here such a
# gap cannot arise (`hicache.tree`; any sequence of actions: tests/hicache/test_tree_machine.py);
# what comes closest to it is hit in full, and nothing is loaded that L1 has.

HEAD, MIDDLE, TAIL = range(4), range(100, 104), range(200, 204)
WHOLE = [*HEAD, *MIDDLE, *TAIL]


def three_nodes(eviction: str, wanted: int) -> Bench:
    """A path of three nodes in L1 and L2; then something else asks for `wanted` pages of L1, and
    the path is asked for again.
    """
    bench = Bench(16, 64, cache={"eviction": eviction})
    for place, path in enumerate((HEAD, [*HEAD, *MIDDLE], WHOLE)):
        bench.ask(1000 * place, path, tail=1)
    bench.ask(5000, range(900, 900 + wanted))
    bench.ask(9000, WHOLE, tail=1)
    return bench.run(8000)


def held_in_l1(bench: Bench) -> list[bool]:
    """Whether L1 holds each of the three nodes."""
    held = {node.start for node, _ in nodes_of(bench.tree) if node.resident[DEVICE]}
    return [keys[0] in held for keys in (HEAD, MIDDLE, TAIL)]


@pytest.mark.parametrize("eviction", STRATEGIES)
@pytest.mark.parametrize(
    ("wanted", "held", "loaded"),
    [(4, [True, True, True], 0), (8, [True, True, False], 4), (12, [True, False, False], 8)],
)
def test_vllm_57325_all_that_any_tier_holds_is_hit_and_no_more_is_loaded_than_l1_lacks(
    eviction: str, wanted: int, held: list[bool], loaded: int
) -> None:
    bench = three_nodes(eviction, wanted)
    assert held_in_l1(bench) == held
    assert bench.hits(WHOLE) == (12 - loaded, 12, 0)
    bench.run()
    assert sum(copy.pages for copy in bench.copies("h2d")) == loaded
    row = bench.rows()[-1]
    assert (row["device_tokens"], row["host_tokens"]) == (12 - loaded, loaded)
    assert row["computed_tokens"] == 1
    assert_at_rest(bench.engine)


@pytest.mark.filterwarnings(BROKEN)
def test_vllm_57325_put_back(monkeypatch: pytest.MonkeyPatch) -> None:
    """The lookup stops where L1 does."""
    match = HiRadixTree.match

    def stopping(self: HiRadixTree, runs: object) -> Match:
        found = match(self, runs)  # type: ignore[arg-type]
        return Match(found.node, found.depth, found.device, found.device, found.device)

    monkeypatch.setattr(HiRadixTree, "match", stopping)
    bench = three_nodes("lru", 8).run()
    assert bench.rows()[-1]["computed_tokens"] == 5


@pytest.mark.filterwarnings(BROKEN)
def test_vllm_57325_the_gap_put_back(monkeypatch: pytest.MonkeyPatch) -> None:
    """What leaves first is not a leaf: the gap is there, and the integrity check names it."""
    evict = Tier.evict

    def middle_first(self: Tier, count: int, prune: object) -> int:
        middle = [n for n, _ in nodes_of(bench.tree) if n.start == MIDDLE[0] and not any(n.pins)]
        if self.index == DEVICE and middle and middle[0].resident[DEVICE]:
            node: Node = middle[0]
            self._let_go(node, 4, prune)  # type: ignore[arg-type]
            return 4
        return evict(self, count, prune)  # type: ignore[arg-type]

    bench = Bench(16, 64)
    for place, path in enumerate((HEAD, [*HEAD, *MIDDLE], WHOLE)):
        bench.ask(1000 * place, path, tail=1)
    bench.run(4000)
    monkeypatch.setattr(Tier, "evict", middle_first)
    bench.tree.evict(DEVICE, 1)
    assert held_in_l1(bench) == [True, False, True]
    with pytest.raises(AssertionError, match="hole in device"):
        bench.engine.check_integrity()
