"""Faults that users reported of what is written below L1: each report as a run of the engine, with
the counters that are right, and the same run with the fault put back, which must not pass.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator
from typing import Any

import pytest
from bench import Bench
from engine_runs import assert_at_rest
from naive_caches import InstantLanes
from simpy import Environment

from hicache.arrival import Arrival
from hicache.engine import Engine
from hicache.node import DEVICE, HOST, STORAGE
from hicache.reuse import ReuseCounts
from hicache.store_index import keys_from
from hicache.tree import HiRadixTree
from hicache.write_back import Departure

# A run that broke leaves processes under way; they go in the test that broke it.
BROKEN = "ignore::pytest.PytestUnraisableExceptionWarning"


@pytest.fixture(autouse=True)
def nothing_is_left() -> Iterator[None]:
    """Whatever a broken run left under way goes now."""
    yield
    gc.collect()


def prompts(bench: Bench, count: int) -> Bench:
    """Prompts of four pages, one after the other."""
    for place in range(count):
        bench.ask(1000 * place, range(100 * place, 100 * place + 4))
    return bench


# ---------------------------------------------------------------------- failed write-back
# sglang#27108, sglang#24585: a write-back that had failed was taken as done, so that later requests
# hit pages of L2 that nobody had written.


def failed_write_back() -> Bench:
    """L1 is full, its oldest prompt is to be written back, and the copy fails."""
    bench = prompts(Bench(8, 16, cache={"write_policy": "write_back"}), 3)
    bench.ask(5000, range(4), tail=1)
    bench.failing = {"d2h"}
    bench.at(4000, bench.failing.clear)
    return bench.run()


def test_sglang_27108_a_failed_write_back_is_a_counted_loss() -> None:
    bench = failed_write_back()
    assert bench.metrics.dropped_pages["transfer_failed"] == 4
    assert bench.tree.tiers[DEVICE].lost_pages == 0, "counted twice"
    assert bench.metrics.directions["d2h"].failed == 1
    row = bench.rows()[3]
    assert (row["device_tokens"], row["host_tokens"], row["computed_tokens"]) == (0, 0, 5)
    assert bench.tree.tiers[HOST].resident == 8  # of the two prompts that had to leave later
    assert_at_rest(bench.engine)


@pytest.mark.filterwarnings(BROKEN)
def test_sglang_27108_put_back(monkeypatch: pytest.MonkeyPatch) -> None:
    """A copy that is over counts as one that went well."""
    close = Departure.close
    monkeypatch.setattr(Departure, "close", lambda self, arrival, error=None: close(self, arrival))
    with pytest.raises(AssertionError, match=r"of tier 1 holds None"):
        failed_write_back()


def failed_write_through() -> Bench:
    """What is written to L2 at once never gets there."""
    bench = prompts(Bench(8, 16), 3)
    bench.ask(5000, range(4), tail=1)
    bench.failing = {"d2h"}
    return bench.run()


def test_sglang_24585_a_failed_write_through_is_a_counted_loss_too() -> None:
    bench = failed_write_through()
    assert bench.metrics.dropped_pages["transfer_failed"] == 16
    assert [row["host_tokens"] for row in bench.rows()] == [0] * 4
    assert bench.tree.tiers[HOST].allocator.free == 16
    assert_at_rest(bench.engine)


@pytest.mark.filterwarnings(BROKEN)
def test_sglang_24585_put_back(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a copy was to bring is published however it ended."""
    leave = Arrival.__exit__

    def published_anyway(self: Arrival, *error: Any) -> None:
        leave(self, None, None, None)

    monkeypatch.setattr(Arrival, "__exit__", published_anyway)
    with pytest.raises(AssertionError, match=r"of tier 1 holds None"):
        failed_write_through()


# ---------------------------------------------------------------------- L3 without its head
# sglang#26886, sglang#12092: under write_back only leaves had left L1 when the server stopped, so
# that L3 held the ends of prompts whose beginnings it lacked; after a restart nothing of it could
# be hit, and nothing said so.

PATH = [*range(4), *range(100, 104)]  # a head that others share, and an answer


def restarted_with_l3() -> Bench:
    """Of a path of two nodes the lower one leaves L1; then the server loses L1 and L2, keeps L3,
    and is asked again.
    """
    bench = Bench(12, 32, 64, cache={"write_policy": "write_back"})
    bench.ask(0, PATH)
    bench.ask(1000, range(500, 508))
    bench.ask(5000, PATH, tail=1)
    bench.run(2000)
    assert bench.hits(PATH)[0] == 4, "more than the leaf has left"
    for tier in (DEVICE, HOST):
        bench.tree.evict(tier, 1000)
    return bench


def test_sglang_26886_what_leaves_takes_its_head_along_so_that_l3_can_be_used() -> None:
    bench = restarted_with_l3()
    assert bench.hits(PATH) == (0, 0, 8)
    bench.run()
    assert bench.rows()[2]["storage_tokens"] == 8
    assert_at_rest(bench.engine)


@pytest.mark.filterwarnings(BROKEN)
def test_sglang_26886_put_back(monkeypatch: pytest.MonkeyPatch) -> None:
    """The victim goes alone, as in SGLang. L3 has its pages, no request can hit them, and the
    integrity check says so.
    """
    covered = HiRadixTree.covered

    def alone(self: HiRadixTree, node: Any, tier: int) -> Any:
        first, after = covered(self, node, tier)
        return (max(first, node.depth), after) if node.parent is not self.root else (first, after)

    monkeypatch.setattr(HiRadixTree, "covered", alone)
    monkeypatch.setattr("hicache.engine.check_integrity", lambda tree, *rest: None)
    bench = restarted_with_l3()
    assert bench.tree.tiers[STORAGE].resident == 4
    assert bench.hits(PATH) == (0, 0, 0)
    monkeypatch.undo()
    with pytest.raises(AssertionError, match=r"hole in"):
        bench.engine.check_integrity()


# ---------------------------------------------------------------------- admission count
# dynamo#8826: every block was seen three times; what had to be used often to be written to disk was
# written all the same, or never.

BLOCKS = 12


def seen_three_times(threshold: int, index: str, policy: str, *, timed: bool) -> int:
    """Three prompts of four pages, three times over; how many pages were written to L3."""
    bench = Bench(
        16, 32, 64, cache={"write_policy": policy}, admit_after_hits=threshold,
        prefetch={} if index == "store" else None,
    )  # fmt: skip
    for place in range(9):
        prompt = place % 3
        bench.ask(1000 * place, range(100 * prompt, 100 * prompt + 4))
    if policy == "write_back":  # so that all of it leaves L1 in the end
        bench.ask(9000, range(500, 516))
    engine = bench.engine
    if timed:
        bench.run()
    else:
        env = Environment(0)
        engine = Engine(env, InstantLanes(env), bench.options)
        engine.serve_untimed(bench.requests)
    assert_at_rest(engine)
    return engine.metrics.directions["h2s"].pages


WAYS = [
    (index, policy, timed)
    for index in ("tree", "store")
    for policy in ("write_through", "write_back")
    for timed in (True, False)
]


@pytest.mark.parametrize(("index", "policy", "timed"), WAYS)
@pytest.mark.parametrize(("threshold", "written"), [(8, 0), (4, 0), (3, BLOCKS), (2, BLOCKS)])
def test_dynamo_8826_what_was_seen_three_times_is_stored_from_two_on_and_not_at_eight(
    threshold: int, written: int, index: str, policy: str, timed: bool
) -> None:
    assert seen_three_times(threshold, index, policy, timed=timed) == written


@pytest.mark.parametrize(("index", "policy", "timed"), WAYS)
def test_dynamo_8826_put_back(
    index: str, policy: str, timed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was counted is not asked; and what is asked does not count what comes again."""
    with monkeypatch.context() as patch:
        patch.setattr(ReuseCounts, "admitted", lambda self, node: node)
        patch.setattr(ReuseCounts, "crossed", lambda self, node: (node, 0))
        assert seen_three_times(8, index, policy, timed=timed) >= BLOCKS
    count = ReuseCounts.count

    def once(self: ReuseCounts, node: Any) -> None:
        if self._leading(keys_from(node, 0), 1) < node.end:
            count(self, node)

    monkeypatch.setattr(ReuseCounts, "count", once)
    assert seen_three_times(2, index, policy, timed=timed) == 0
