"""SGLang's tree rule by rule, on small trees by hand: what one insert added is one node, what a
request makes of priorities, and how much goes for a load. `tests/sglang_classes` compares with its
published classes, where they are there.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from bench import Bench
from engine_runs import assert_at_rest
from naive_caches import InstantLanes
from simpy import Environment
from small_workloads import runs_of
from tree_user import small_tree
from tree_view import nodes_of

from hicache.engine import Engine
from hicache.integrity import check_integrity
from hicache.metrics import Metrics
from hicache.node import DEVICE, HOST
from hicache.tree import HiRadixTree
from hicache.write_back import Departure

THREE_RUNS = (0, 1, 10, 11, 20)


def insert(tree: HiRadixTree, keys: Sequence[int], priority: int = 0) -> None:
    """A request with these pages comes and goes."""
    match = tree.match(runs_of(keys))
    held = match.device
    node = match.node if match.depth == held else tree.cut_at(match.node, held)
    tree.pin(node, DEVICE)
    pages = tree.take(DEVICE, len(keys) - held)
    assert pages is not None
    end = tree.extend(node, runs_of(keys), priority)
    node, *_ = tree.adopt(node, end, held, pages)
    tree.unpin(node, DEVICE)
    check_integrity(tree)


def inserts(tree: HiRadixTree, *paths: Sequence[int]) -> HiRadixTree:
    for keys in paths:
        insert(tree, keys)
    return tree


def held(tree: HiRadixTree, tier: int = DEVICE) -> set[int]:
    """First keys of what a tier holds."""
    return {node.start for node, _ in nodes_of(tree) if node.resident[tier]}


def joined(tree: HiRadixTree) -> set[int]:
    """First keys of what is joined to what it hangs on."""
    return {node.start for node, _ in nodes_of(tree) if node.joined}


# ---------------------------------------------------------------------- one insert, one node


@pytest.mark.parametrize(
    ("boundaries", "gone", "left"), [("run", 1, {0, 10}), ("insert", 5, set())]
)
def test_what_one_insert_added_leaves_together(boundaries: str, gone: int, left: set[int]) -> None:
    tree = inserts(small_tree(8, node_boundaries=boundaries), THREE_RUNS)
    assert tree.evict(DEVICE, 1) == gone
    check_integrity(tree)
    assert held(tree) == left
    assert tree.nodes == len(left)


def test_by_page_no_more_goes_than_is_missing() -> None:
    tree = small_tree(8, node_boundaries="insert", eviction_granularity="page")
    assert inserts(tree, THREE_RUNS).evict(DEVICE, 2) == 2
    check_integrity(tree)
    assert held(tree) == {0, 10}


@pytest.mark.parametrize("touch", ["matched", "walked"])
@pytest.mark.parametrize(
    ("path", "parts"),
    [
        ((0, 1), {20}),  # ends between two runs
        ((0, 1, 10), {10, 20}),  # ends within one: what is cut off begins with 11, and has 20
        ((0, 1, 77), {20}),  # branches off between two runs
        ((0, 1, 10, 77), {10, 20}),
        ((0, 1, 10, 11, 20, 77), {10, 20}),  # goes on behind it: nothing is cut
        ((0,), {10, 20}),  # within the first run, of which `10` stays a part
        ((88,), {10, 20}),
    ],
)
def test_a_path_that_ends_inside_parts_what_was_one(
    touch: str, path: Sequence[int], parts: set[int]
) -> None:
    for lookup in (False, True):
        tree = inserts(small_tree(20, node_boundaries="insert", touch=touch), THREE_RUNS)
        if lookup:
            tree.match(runs_of(path))
            check_integrity(tree)
        else:
            insert(tree, path)
        if path == (0, 1, 10):
            parts = {10, 20}  # `10` goes on with `0`; `11` begins what was cut off
        assert joined(tree) == parts


def test_parted_halves_leave_one_by_one() -> None:
    tree = inserts(small_tree(8, node_boundaries="insert"), THREE_RUNS, (0, 1))
    assert tree.evict(DEVICE, 1) == 3
    assert held(tree) == {0}


def test_walked_what_was_cut_off_is_used_too_and_what_is_in_front_is_new() -> None:
    """As where a run is cut: by last use the tail does not fall behind, by creation the head is
    made now.
    """
    for eviction, kept in (("lru", {0, 10, 20}), ("fifo", {0, 50})):
        tree = small_tree(20, node_boundaries="insert", touch="walked", eviction=eviction)
        inserts(tree, THREE_RUNS, (50, 51), (0, 1))
        tree.evict(DEVICE, 1)
        assert held(tree) == kept
    tree = small_tree(20, node_boundaries="insert", touch="walked", eviction="fifo")
    inserts(tree, THREE_RUNS, (50, 51), (0, 1))
    tree.evict(DEVICE, 4)
    assert held(tree) == {0}, "made when it was cut, after what came between"


def test_what_is_pinned_keeps_no_more_than_its_path() -> None:
    tree = inserts(small_tree(8, node_boundaries="insert"), THREE_RUNS)
    tree.pin(tree.match(runs_of((0, 1))).node, DEVICE)
    assert tree.evict(DEVICE, 1) == 3
    check_integrity(tree)
    assert held(tree) == {0}


@pytest.mark.parametrize("eviction", ["gdsf", "s3fifo", "arc"])
def test_evictions_that_remember_take_it_together_too(eviction: str) -> None:
    tree = small_tree(10, node_boundaries="insert", eviction=eviction)
    inserts(tree, THREE_RUNS, (50, 51))
    assert tree.evict(DEVICE, 1) in (5, 2)
    check_integrity(tree)
    assert tree.evict(DEVICE, 5) in (5, 2)
    assert not held(tree)


# ---------------------------------------------------------------------- written as one


@pytest.mark.parametrize(("boundaries", "copies"), [("run", [2, 2, 1]), ("insert", [5])])
def test_what_one_insert_added_is_one_write(boundaries: str, copies: list[int]) -> None:
    cache = {"write_unit": "node", "node_boundaries": boundaries}
    bench = Bench(16, 16, cache=cache)
    bench.ask(0, THREE_RUNS)
    bench.run()
    assert [copy.pages for copy in bench.copies("d2h")] == copies
    assert_at_rest(bench.engine)


def test_what_got_no_room_in_l2_keeps_what_is_behind_it_back() -> None:
    """Of two nodes the first does not fit: the second, which would, is not written either."""
    cache = {"write_unit": "node", "node_boundaries": "insert", "l2_victims": "not_in_l1"}
    bench = Bench(16, 4, cache=cache)
    bench.ask(0, THREE_RUNS)
    bench.ask(1000, (*THREE_RUNS, 30))
    bench.run()
    assert not bench.copies("d2h")
    assert bench.metrics.dropped_pages["host_pressure"] == 10
    assert_at_rest(bench.engine)


@pytest.mark.parametrize(("host", "kept"), [(8, {0, 10, 20}), (4, set())])
def test_written_back_it_goes_to_l2_as_a_whole_or_not_at_all(host: int, kept: set[int]) -> None:
    metrics = Metrics()
    tree = small_tree(8, host, node_boundaries="insert", write_policy="write_back")
    leaving = Departure(inserts(tree, THREE_RUNS), metrics, 8)
    assert len(leaving.arrivals) == (1 if kept else 0)
    for arrival in leaving.arrivals:
        leaving.close(arrival)
    leaving.end()
    check_integrity(tree)
    assert held(tree, HOST) == kept
    assert metrics.dropped_pages["host_pressure"] == (0 if kept else 5)
    assert tree.tiers[DEVICE].allocator.free == 8


@pytest.mark.parametrize("victims", ["not_in_l1", "duplicates_first"])
def test_it_leaves_l2_together(victims: str) -> None:
    tree = small_tree(8, 8, node_boundaries="insert", l2_victims=victims)
    inserts(tree, THREE_RUNS)
    assert tree.place(tree.match(runs_of(THREE_RUNS)).node, HOST, 0) is not None
    if victims == "not_in_l1":
        tree.evict(DEVICE, 1)
    assert tree.evict(HOST, 1) == 5
    check_integrity(tree)


# ---------------------------------------------------------------------- priorities


@pytest.mark.parametrize(
    ("step", "output", "priorities"),
    [(1, 4, {0: 3, 4: 2}), (0, 4, {0: 2, 4: 2}), (5, 4, {0: 7, 4: 2}), (1, 1, {0: 2})],
)
def test_a_request_that_has_answered_raises_its_prompt(
    step: int, output: int, priorities: dict[int, int]
) -> None:
    for timed in (True, False):
        cache = {"prompt_priority_step": step, "eviction": "priority", "outputs": "cached"}
        bench = Bench(16, 16, cache=cache)
        bench.ask(0, range(4), output=output)
        (request,) = bench.requests
        request.priority, request.output_runs = 2, ((4, output - 1),) if output > 1 else ()
        tree = bench.run().tree if timed else untimed_tree(bench)
        assert {node.start: node.priority for node, _ in nodes_of(tree)} == priorities


def test_an_answer_that_is_left_in_parts_has_its_requests_priority() -> None:
    for counting in ("request", "insert"):
        cache = {
            "prompt_priority_step": 1, "eviction": "priority", "outputs": "cached",
            "hit_counting": counting,
        }  # fmt: skip
        bench = Bench(32, 32, 32, cache=cache, offload={"decode": True, "stride_tokens": 2})
        bench.ask(0, range(4), output=8)
        (request,) = bench.requests
        request.priority, request.output_runs = 2, ((4, 7),)
        tree = bench.run().tree
        found = {node.start: node.priority for node, _ in nodes_of(tree)}
        assert found.pop(0) == 3
        assert set(found.values()) == {2}


def untimed_tree(bench: Bench) -> HiRadixTree:
    """The tree after what the bench was asked, as if nothing took time."""
    env = Environment(0)
    engine = Engine(env, InstantLanes(env), bench.options)
    engine.serve_untimed(bench.requests)
    assert_at_rest(engine)
    return engine.tree


# ---------------------------------------------------------------------- room for a load


@pytest.mark.parametrize("timed", [True, False])
@pytest.mark.parametrize("policy", ["write_through", "write_back"])
@pytest.mark.parametrize(("amount", "left"), [("shortfall", {200, 300}), ("request", {300})])
def test_a_load_has_l1_evict_what_is_missing_or_as_much_as_is_loaded(
    amount: str, left: set[int], policy: str, timed: bool
) -> None:
    """Of nine pages of L1 three are free; of a prompt of five pages four come from L2."""
    cache: dict[str, Any] = {"load_eviction_amount": amount, "write_policy": policy}
    bench = Bench(9, 40, cache=cache)
    bench.ask(0, range(5))
    for place in range(1, 4):
        bench.ask(1000 * place, range(100 * place, 100 * place + 2))
    bench.ask(6000, range(5))
    tree = bench.run().tree if timed else untimed_tree(bench)
    assert held(tree) - {0, 4} == left
    if timed:
        assert bench.rows()[-1]["host_tokens"] == 4
        assert_at_rest(bench.engine)


def test_a_load_for_which_all_is_free_evicts_no_more_than_the_rest_of_the_prompt_lacks() -> None:
    bench = Bench(10, 40, cache={"load_eviction_amount": "request"})
    bench.ask(0, range(5))
    for place in range(1, 4):
        bench.ask(1000 * place, range(100 * place, 100 * place + 2))
    bench.ask(6000, range(5))
    assert held(bench.run().tree) - {0, 4} == {200, 300}
