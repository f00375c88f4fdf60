"""What is written to L2 and when, one rule at a time, on a machine that is steered by hand."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from bench import Bench
from engine_runs import assert_at_rest
from naive_caches import InstantLanes
from simpy import Environment
from small_workloads import runs_of

from hicache.engine import Engine
from hicache.errors import InputError
from hicache.node import DEVICE, HOST
from hicache.options import CacheOptions

PROMPT = range(4)


def untimed(bench: Bench) -> Engine:
    """What the bench was asked, as if nothing took time; checked after each request."""
    env = Environment(0)
    engine = Engine(env, InstantLanes(env), replace(bench.options, check_every_steps=0))

    def checked() -> Any:
        for request in bench.requests:
            yield request
            assert_at_rest(engine)

    engine.serve_untimed(checked())
    return engine


# ---------------------------------------------------------------- hits are asked for


@pytest.mark.parametrize(
    ("cache", "written"),
    [
        ({}, [4, 4, 4]),
        ({"write_policy": "write_through_selective"}, [0, 4, 4]),
        ({"write_policy": "write_through_selective", "write_after_hits": 3}, [0, 0, 4]),
        ({"write_after_hits": 3}, [0, 0, 4]),
        ({"write_policy": "write_back"}, [0, 0, 0]),
        ({"write_policy": "none"}, [0, 0, 0]),
    ],
)
def test_a_prompt_is_written_when_it_was_hit_often_enough(
    cache: dict[str, Any], written: list[int]
) -> None:
    bench = Bench(16, 16, cache=cache)
    for place in range(3):
        bench.ask(1000 * place, PROMPT, tail=1)
    seen = []
    for place in range(3):
        bench.run(1000 * place + 900)
        seen.append(bench.hits(PROMPT)[1])
    assert seen == written
    bench.run()
    assert_at_rest(bench.engine)
    asked, after = bench.requests, []
    for count in (1, 2, 3):
        bench.requests = asked[:count]
        after.append(untimed(bench).tree.match(runs_of(PROMPT)).host)
    assert after == written


@pytest.mark.parametrize(
    ("counting", "output", "prompt_hits", "answer_hits"),
    [("request", 3, 1, 1), ("insert", 3, 2, 1), ("insert", 1, 1, 0), ("request", 1, 1, 0)],
)
def test_inserts_count_a_prompt_again_when_its_request_ends(
    counting: str, output: int, prompt_hits: int, answer_hits: int
) -> None:
    bench = Bench(16, 16, cache={"hit_counting": counting, "outputs": "cached"})
    bench.ask(0, PROMPT, output=output)
    bench.run()
    for engine in (bench.engine, untimed(bench)):
        node = engine.tree.root.children[0]
        assert node.hit_count == prompt_hits
        assert [child.hit_count for child in node.children.values()] == [answer_hits] * (output > 1)


def test_with_inserts_counted_one_request_is_enough_for_its_prompt_but_not_its_answer() -> None:
    """SGLang up to 0.5.20 under write_through_selective."""
    cache = {
        "hit_counting": "insert", "outputs": "cached", "write_policy": "write_through_selective",
        "write_unit": "node", "write_at": "prefill",
    }  # fmt: skip
    bench = Bench(16, 16, cache=cache)
    bench.ask(0, PROMPT, output=3)
    bench.run()
    assert [copy.pages for copy in bench.copies("d2h")] == [4]
    assert untimed(bench).metrics.directions["d2h"].pages == 4


def test_pages_that_come_back_to_l1_are_no_hit_where_inserts_count() -> None:
    """Recomputed over a copy in L2: the node takes the pages and its count stays."""
    counts = {}
    for counting in ("insert", "request"):
        bench = Bench(16, 64, cache={"hit_counting": counting}, restore={"policy": "never"})
        start = bench.cool(PROMPT)
        bench.ask(start, PROMPT)
        bench.run(start - 1)
        assert bench.hits(PROMPT)[:2] == (0, 4)
        bench.run()
        (node,) = (n for n in bench.tree.root.children.values() if n.start == 0)
        counts[counting] = node.hit_count
    assert counts == {"insert": 1, "request": 2}


def test_under_write_back_nothing_is_counted() -> None:
    bench = Bench(16, 16, cache={"write_policy": "write_back", "outputs": "cached"})
    for place in range(3):
        bench.ask(1000 * place, PROMPT, output=3, tail=1)
    bench.run()
    assert bench.tree.root.children[0].hit_count == 0


# ---------------------------------------------------------------- what one copy is


def head_and_tails(bench: Bench) -> Bench:
    """A prompt of two nodes: four pages that it shares, and four of its own."""
    bench.ask(0, [*range(4), *range(100, 104)])
    return bench


@pytest.mark.parametrize(("unit", "copies"), [("path", [8]), ("node", [4, 4])])
def test_one_copy_is_a_path_or_a_node(unit: str, copies: list[int]) -> None:
    cache = {"write_unit": unit, "merge_writes_tokens": 0, "writes_in_flight": 1}
    bench = head_and_tails(Bench(16, 16, 16, cache=cache)).run()
    assert [copy.pages for copy in bench.copies("d2h")] == copies
    assert [copy.pages for copy in bench.copies("h2s")] == copies
    assert bench.hits([*range(4), *range(100, 104)]) == (8, 8, 8)
    moved = untimed(bench).metrics.directions
    assert [moved[way].operations for way in ("d2h", "h2s")] == [len(copies)] * 2
    assert_at_rest(bench.engine)


@pytest.mark.parametrize(("unit", "host", "lost"), [("path", 0, 8), ("node", 4, 4)])
def test_a_node_behind_one_that_got_no_room_is_not_tried(unit: str, host: int, lost: int) -> None:
    """Six pages of L2: the path has no room as a whole, its first node has."""
    bench = head_and_tails(Bench(16, 6, cache={"write_unit": unit})).run()
    assert bench.hits([*range(4), *range(100, 104)])[1] == host
    assert bench.metrics.dropped_pages["host_pressure"] == lost
    assert untimed(bench).metrics.dropped_pages["host_pressure"] == lost
    # Three pages: not even the first node; what is behind it must not be written, nor tried.
    bench = head_and_tails(Bench(16, 3, cache={"write_unit": unit})).run()
    assert bench.copies("d2h") == []
    assert bench.metrics.dropped_pages["host_pressure"] == (4 if unit == "node" else 8)


def test_a_node_that_got_no_room_is_written_when_it_is_hit_again() -> None:
    bench = Bench(16, 8, cache={"write_unit": "node"})
    bench.ask(0, range(6))
    bench.ask(1000, range(500, 506))
    bench.holding = {"d2h"}  # the first one's copy pins L2 until then
    bench.at(2000, lambda: bench.let("d2h"))
    bench.ask(3000, range(500, 506), tail=1)
    bench.run(2900)
    assert bench.metrics.dropped_pages["host_pressure"] == 6
    assert bench.hits(range(500, 506))[1] == 0
    bench.run()
    assert bench.hits(range(500, 506))[1] == 6


def test_what_is_behind_a_copy_that_failed_is_not_published() -> None:
    cache = {"write_unit": "node", "merge_writes_tokens": 0, "writes_in_flight": 2}
    bench = head_and_tails(Bench(16, 16, cache=cache))
    bench.holding = {"d2h"}
    bench.run(500)
    first, second = bench.lanes.held("d2h")
    bench.lanes.release(second)
    bench.run(600)
    assert bench.hits([*range(4), *range(100, 104)])[1] == 0, "published in front of its head"
    bench.lanes.release(first, fails=True)
    bench.run()
    assert bench.hits([*range(4), *range(100, 104)])[1] == 0
    assert bench.metrics.dropped_pages["transfer_failed"] == 8
    assert_at_rest(bench.engine)


# ---------------------------------------------------------------- write back


def three_prompts(**cache: Any) -> Bench:
    """L1 of eight pages, L2 of sixteen, and three prompts of four pages."""
    bench = Bench(8, 16, cache={"write_policy": "write_back", **cache})
    for place in range(3):
        bench.ask(1000 * place, range(100 * place, 100 * place + 4))
    return bench


def test_what_l1_evicts_is_copied_first_and_who_needs_the_room_waits() -> None:
    bench = three_prompts()
    bench.holding = {"d2h"}
    bench.run(2500)
    assert [copy.pages for copy in bench.copies("d2h")] == [4]
    assert len(bench.steps(2000)) == 0
    assert bench.engine.status()["waiting_requests"] == 1
    assert bench.hits(PROMPT)[:2] == (0, 0), "published before it has arrived"
    bench.engine.check_integrity()
    bench.let("d2h")
    bench.run()
    row = bench.rows()[2]
    assert row["queue_ns"] > 400
    assert bench.hits(PROMPT)[:2] == (0, 4)
    assert bench.metrics.directions["d2h"].operations == 1
    assert bench.tree.tiers[DEVICE].lost_pages == 0
    assert_at_rest(bench.engine)


def test_nothing_is_written_back_twice_or_before_it_leaves() -> None:
    bench = three_prompts()
    for place, first in enumerate((0, 100, 0, 100, 200)):  # all of them are in L2 soon
        bench.ask(3000 + 1000 * place, range(first, first + 4))
    bench.run()
    assert [copy.pages for copy in bench.copies("d2h")] == [4, 4, 4]
    assert [bench.hits(range(first, first + 4))[1] for first in (0, 100, 200)] == [4, 4, 4]
    assert_at_rest(bench.engine)


def test_all_victims_of_one_eviction_are_one_copy_in_both_modes() -> None:
    bench = Bench(8, 16, cache={"write_policy": "write_back"})
    for place in range(4):
        bench.ask(1000 * place, range(100 * place, 100 * place + 2))
    bench.ask(5000, range(900, 906))
    bench.run()
    assert [copy.pages for copy in bench.copies("d2h")] == [6]
    moved = untimed(bench).metrics.directions["d2h"]
    assert (moved.operations, moved.pages) == (1, 6)


@pytest.mark.parametrize("granularity", ["node", "page"])
def test_a_victim_takes_its_head_along_which_may_stay_in_l1(granularity: str) -> None:
    """L2 holds whole prefixes; the head is not copied again when it leaves in its turn."""
    cache = {"write_policy": "write_back", "eviction_granularity": granularity}
    bench = Bench(8, 32, cache=cache)
    path = [*range(4), *range(100, 104)]
    bench.ask(0, path)
    bench.ask(1000, range(500, 502))
    bench.run()
    assert bench.hits(path)[1] == 8
    assert bench.hits(path)[0] == (4 if granularity == "node" else 6)
    bench.tree.evict(DEVICE, 8)
    assert bench.tree.tiers[DEVICE].lost_pages == 2  # 500 and 501, which nobody wrote back
    assert [copy.pages for copy in bench.copies("d2h")] == [8]
    assert_at_rest(bench.engine)


def test_without_room_in_l2_what_l1_evicts_is_lost_and_counted() -> None:
    bench = Bench(8, 3, cache={"write_policy": "write_back"})
    for place in range(3):
        bench.ask(1000 * place, range(100 * place, 100 * place + 4))
    bench.run()
    assert bench.copies("d2h") == []
    assert bench.metrics.dropped_pages["host_pressure"] == 4
    assert bench.tree.tiers[DEVICE].lost_pages == 0, "counted twice"
    assert bench.hits(PROMPT) == (0, 0, 0)
    assert untimed(bench).metrics.dropped_pages["host_pressure"] == 4
    assert_at_rest(bench.engine)


def test_what_was_written_back_goes_on_to_l3() -> None:
    bench = Bench(8, 16, 64, cache={"write_policy": "write_back"})
    for place in range(3):
        bench.ask(1000 * place, range(100 * place, 100 * place + 4))
    bench.run()
    assert [copy.pages for copy in bench.copies("h2s")] == [4]
    assert bench.hits(PROMPT) == (0, 4, 4)
    assert untimed(bench).metrics.directions["h2s"].pages == 4
    assert_at_rest(bench.engine)


def test_a_burst_that_needs_room_waits_for_the_copy_and_aborts_are_seen() -> None:
    bench = Bench(8, 16, cache={"write_policy": "write_back"})
    bench.ask(0, PROMPT)
    number = bench.ask(1000, range(50, 52), output=7)
    bench.holding = {"d2h"}
    bench.run(1500)
    assert [copy.pages for copy in bench.copies("d2h")] == [4]
    steps = len(bench.steps())
    bench.at(1600, lambda: bench.engine.abort(number))
    bench.at(1800, lambda: bench.let("d2h"))
    bench.run()
    assert len(bench.steps()) == steps, "decoded for a request that was given up"
    assert bench.metrics.aborted == 1
    assert_at_rest(bench.engine)


def test_the_hit_that_is_waited_with_stays() -> None:
    """L2 is just large enough for what is found in it: that is not given up for the victim."""
    bench = Bench(6, 4, cache={"write_policy": "write_back"})
    for place, first in enumerate((0, 100, 0)):  # the first one goes to L2, and is wanted again
        bench.ask(1000 * place, range(first, first + 4), tail=1)
    bench.run()
    assert bench.rows()[2]["host_tokens"] == 4
    assert bench.metrics.dropped_pages["host_pressure"] == 4
    assert_at_rest(bench.engine)


def test_eviction_ahead_of_need_writes_back_too() -> None:
    marks = {"l1_high_watermark": 0.5, "l1_low_watermark": 0.25}
    bench = Bench(16, 64, cache={"write_policy": "write_back", **marks})
    for place in range(4):
        bench.ask(1000 * place, range(100 * place, 100 * place + 4))
    bench.run()
    for engine in (bench.engine, untimed(bench)):
        assert engine.metrics.directions["d2h"].pages == 8
        assert engine.tree.tiers[DEVICE].lost_pages == 0
        assert engine.tree.tiers[HOST].resident == 8


def test_conversations_that_outgrow_l1_hit_more_than_when_all_is_written_through() -> None:
    """Nothing of L2 is spent on copies of L1: the two together hold more."""
    hits = {}
    for policy in ("write_through", "write_back"):
        bench = Bench(16, 16, cache={"write_policy": policy, "l2_victims": "not_in_l1"})
        for place in range(24):
            first = 100 * (place % 6)
            bench.ask(1000 * place, range(first, first + 4), tail=1)
        engine = untimed(bench)
        hits[policy] = sum(engine.metrics.cached_pages)
    assert hits["write_back"] > hits["write_through"]


def test_a_policy_that_does_not_exist_and_less_than_no_hits_are_refused() -> None:
    with pytest.raises(InputError, match=r"cache\.write_after_hits is -1"):
        CacheOptions(write_after_hits=-1)
