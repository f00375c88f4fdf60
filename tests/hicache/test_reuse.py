"""Admission to L3 by reuse: the counts against a dictionary, and what is written when."""

from __future__ import annotations

from collections import Counter
from random import Random

import pytest
from bench import FILLER, Bench
from engine_runs import assert_at_rest
from small_workloads import runs_of
from tree_user import small_tree

from hicache.errors import InputError
from hicache.node import DEVICE, STORAGE
from hicache.options import EngineOptions, StorageOptions
from hicache.reuse import ReuseCounts, make_reuse
from hicache.tree import HiRadixTree


def path_in(tree: HiRadixTree, keys: list[int]):
    return tree.extend(tree.match(runs_of(keys)).node, runs_of(keys))


@pytest.mark.parametrize("seed", range(20))
def test_counts_are_those_of_a_dictionary(seed: int) -> None:
    rng, tree = Random(seed), small_tree(4)
    least = rng.choice([2, 3, 5])
    reuse, seen = ReuseCounts(tree, least), Counter[int]()
    numbers: dict[tuple[int, ...], int] = {}
    for _ in range(200):
        path: tuple[int, ...] = ()
        keys: list[int] = []
        for _ in range(rng.randint(1, 8)):
            path = (*path, rng.choice([0, 0, 1]))
            keys.append(numbers.setdefault(path, len(numbers)))
        node = path_in(tree, keys)
        reuse.count(node)
        seen.update(keys)
        expected = next((n for n, key in enumerate(keys) if seen[key] < least), len(keys))
        assert reuse.admitted(node).end == expected
        newly, first = reuse.crossed(node)
        assert newly is tree.root  # L2 holds nothing
        assert first == next((n for n, key in enumerate(keys) if seen[key] <= least), len(keys))


def test_it_is_not_there_unless_it_is_asked_for() -> None:
    tree = small_tree(4)
    assert make_reuse(tree, EngineOptions(1, 1, 4, 4, 4)) is None
    asked = StorageOptions(admit_after_hits=2)
    assert make_reuse(tree, EngineOptions(1, 1, 4, 4, storage=asked)) is None, "there is no L3"
    assert make_reuse(tree, EngineOptions(1, 1, 4, 4, 4, storage=asked)) is not None
    with pytest.raises(InputError, match=r"storage.admit_after_hits is 0"):
        StorageOptions(admit_after_hits=0)


@pytest.mark.parametrize("store", [False, True])
def test_a_shared_head_is_written_and_the_tails_behind_it_are_not(store: bool) -> None:
    bench = Bench(40, 40, 64, admit_after_hits=3, prefetch={} if store else None)
    for place in range(3):
        bench.ask(1000 * place, [*range(4), *range(100 * place + 100, 100 * place + 103)])
    bench.run(2000)
    assert not bench.copies("h2s")
    bench.run()
    assert [copy.pages for copy in bench.copies("h2s")] == [4]
    assert_at_rest(bench.engine)


@pytest.mark.parametrize("store", [False, True])
def test_counts_outlive_what_was_evicted(store: bool) -> None:
    """The second request finds nothing of the first, and is the second all the same."""
    bench = Bench(8, 8, 64, admit_after_hits=2, prefetch={} if store else None)
    bench.ask(0, range(4))
    bench.ask(1000, range(FILLER, FILLER + 8))
    bench.ask(2000, range(4))
    bench.run()
    assert bench.rows()[2]["host_tokens"] == 0
    assert sum(copy.pages for copy in bench.copies("h2s")) == 4
    assert_at_rest(bench.engine)


def test_a_request_that_is_given_up_does_not_count() -> None:
    bench = Bench(64, 64, 64, admit_after_hits=2)
    bench.ask(0, range(4))
    number = bench.ask(1000, range(4), output=50)
    bench.at(1050, lambda: bench.engine.abort(number))
    bench.run()
    assert bench.metrics.aborted == 1
    assert not bench.copies("h2s")
    assert bench.tree.tiers[STORAGE].resident == 0


def test_what_was_admitted_while_it_was_on_its_way_to_l2_is_written_when_it_is_there() -> None:
    for store in (False, True):
        bench = Bench(16, 16, 64, admit_after_hits=2, prefetch={} if store else None)
        bench.holding = {"d2h"}
        bench.ask(0, range(4))
        bench.ask(1000, range(4))
        bench.run(3000)
        assert not bench.copies("h2s")
        bench.let("d2h")
        bench.run()
        assert sum(copy.pages for copy in bench.copies("h2s")) == 4
        assert bench.tree.tiers[DEVICE].resident == 4
        assert_at_rest(bench.engine)


def test_what_is_admitted_while_l3_is_detached_is_not_written() -> None:
    bench = Bench(16, 16, 64, admit_after_hits=2, prefetch={}, switches={"detach_s": 5e-7})
    for place in range(3):
        bench.ask(1000 * place, range(4))
    bench.run()
    assert bench.metrics.detached == 1
    assert not bench.copies("h2s")
    assert_at_rest(bench.engine)


@pytest.mark.parametrize("store", [False, True])
def test_an_offloaded_answer_is_admitted_as_all_else_is(store: bool) -> None:
    """It is in L2 as it is made, and goes to L3 with the request that has it for the second time;
    without a write policy nothing else would bring it there.
    """
    bench = Bench(
        32, 32, 64, admit_after_hits=2, prefetch={} if store else None,
        cache={"write_policy": "none", "outputs": "cached"}, offload={"decode": True},
    )  # fmt: skip
    bench.ask(0, range(4), output=5)
    bench.requests[0].output_runs = ((4, 4),)
    bench.ask(1000, range(9))
    bench.run(900)
    assert bench.hits(range(8))[1] == 8
    assert not bench.copies("h2s")
    bench.run()
    assert sum(copy.pages for copy in bench.copies("h2s")) == 8
    assert_at_rest(bench.engine)
