"""What may leave L2, how much goes at once, what is evicted ahead of need, and what a walk touches:
each option on a small tree by hand. Any sequence of actions under them is in `test_tree_machine`.
"""

from __future__ import annotations

import pytest
from examples import examples
from hypothesis import given
from hypothesis import strategies as st
from naive_caches import InstantLanes, flat_lru
from simpy import Environment
from small_workloads import Keys
from tree_user import TreeUser, small_tree
from tree_view import claims, nodes_of, published

from hicache.engine import Engine
from hicache.errors import InputError
from hicache.integrity import check_integrity
from hicache.node import DEVICE, HOST, STORAGE
from hicache.options import CacheOptions, EngineOptions
from hicache.requests import Request

# ---------------------------------------------------------------------- how much goes


def four_leaves(tier: str, amount: str) -> TreeUser:
    """A tier of ten pages with four leaves of two, each in L1 and (for "l2") in L2."""
    sizes = (10, 0) if tier == "l1" else (20, 10)
    user = TreeUser(small_tree(*sizes, **{f"{tier}_eviction_amount": amount}))
    for first in range(4):
        user.compute((first, 9))
        if tier == "l2":
            user.copy((first, 9), HOST)
    return user


@pytest.mark.parametrize("tier", ["l1", "l2"])
@pytest.mark.parametrize(("amount", "leaves"), [("shortfall", 1), ("request", 2)])
def test_what_is_missing_goes_or_as_much_as_was_asked_for(tier, amount, leaves):
    user, index = four_leaves(tier, amount), ("l1", "l2").index(tier)
    assert user.tree.take(index, 2) is not None
    assert len(published(user.tree, index)) == 8, "there was room"
    user.tree.give(index, ((8, 2),), 2)
    pages = user.tree.take(index, 4)
    assert pages is not None
    assert len(published(user.tree, index)) == 8 - 2 * leaves
    user.tree.give(index, pages, 4)


def test_as_much_as_was_asked_for_is_no_more_than_there_is():
    user = four_leaves("l1", "request")
    user.tree.pin(user.match((3, 9)).node, DEVICE)
    assert user.tree.take(DEVICE, 9) is None, "two pages are pinned"
    assert len(published(user.tree, DEVICE)) == 8
    assert user.tree.take(DEVICE, 8) is not None
    assert len(published(user.tree, DEVICE)) == 2


# ---------------------------------------------------------------------- what may leave L2


def doubled(victims: str, *, l1: int = 8, l2: int = 4, **cache: object) -> TreeUser:
    """Two prompts of two pages, all of them in L1 and in L2, which is full."""
    user = TreeUser(small_tree(l1, l2, l2_victims=victims, **cache))
    for first in (0, 1):
        user.compute((first, 7))
        user.copy((first, 7), HOST)
    return user


def test_what_l1_holds_does_not_leave_l2():
    user = doubled("not_in_l1")
    assert user.tree.evict(HOST, 1) == 0
    assert user.tree.take(HOST, 1) is None
    user.match((1, 7))
    user.tree.evict(DEVICE, 1)  # the first prompt, by node
    check_integrity(user.tree)
    assert user.match((0, 7)).host == 2
    assert user.tree.take(HOST, 1) is not None
    assert user.match((0, 7)).host == 0
    assert user.match((1, 7)).host == 2


def test_what_comes_back_to_l1_stays_in_l2_again():
    user = doubled("not_in_l1")
    user.tree.evict(DEVICE, 4)
    node = user.match((0, 7)).node
    arrival = user.arrive(node, HOST, DEVICE)
    assert arrival is not None
    user.settle(arrival)
    assert user.tree.evict(HOST, 4) == 2
    assert user.match((0, 7)).host == 2
    assert user.match((1, 7)).host == 0


def test_a_part_that_l1_has_dropped_may_leave_l2():
    user = doubled("not_in_l1", eviction_granularity="page")
    user.tree.evict(DEVICE, 1)
    assert user.tree.evict(HOST, 4) == 1
    assert sorted(map(len, published(user.tree, HOST))) == [1, 1, 2]
    assert user.tree.tiers[HOST].lost_pages == 1


def test_who_asks_for_more_than_can_go_gets_nothing_and_what_could_go_is_gone():
    """As in SGLang, where L2 is evicted first and asked again after it."""
    user = doubled("not_in_l1")
    user.tree.evict(DEVICE, 2)
    assert user.tree.take(HOST, 3) is None
    assert len(published(user.tree, HOST)) == 2
    plain = doubled("any")
    assert plain.tree.take(HOST, 3) is not None


def test_duplicates_go_first_and_the_oldest_of_them_first():
    user = doubled("duplicates_first", l1=12, l2=6)
    user.compute((2, 7))
    user.copy((2, 7), HOST)
    for first in (0, 1):  # a child in L1 alone: these leaves of L2 are no leaves of L1
        user.compute((first, 7, 8, 8))
    user.match((0, 7))  # its use does not make it younger
    assert user.tree.evict(HOST, 1) == 2
    assert user.match((0, 7)).host == 0
    assert user.match((0, 7)).device == 2, "L1 keeps its copy"
    check_integrity(user.tree)


def test_duplicates_that_are_about_to_leave_l1_are_spared():
    user = doubled("duplicates_first", l1=12)
    user.compute((1, 7, 8, 8))
    assert user.tree.evict(HOST, 1) == 2
    assert user.match((1, 7)).host == 0, "the younger one: the older one is a leaf of L1"
    assert user.match((0, 7)).host == 2
    assert user.tree.evict(HOST, 1) == 2, "none but the spared one is left"
    assert user.match((0, 7)).host == 0


def test_duplicates_go_before_what_only_l2_holds():
    user = doubled("duplicates_first", l1=12)
    user.tree.evict(DEVICE, 2)
    assert user.match((0, 7)).device == 0
    assert user.tree.evict(HOST, 2) == 2
    assert user.match((0, 7)).host == 2
    assert user.match((1, 7)).host == 0
    assert user.tree.evict(HOST, 2) == 2
    assert not published(user.tree, HOST)


def test_what_is_computed_again_over_its_copy_is_a_duplicate_again_and_a_young_one():
    user = doubled("duplicates_first", l1=12)
    user.tree.evict(DEVICE, 2)
    user.compute((0, 7))
    for first in (0, 1):
        user.compute((first, 7, 8))
    assert user.tree.evict(HOST, 1) == 2
    assert user.match((1, 7)).host == 0
    assert user.tree.evict(HOST, 1) == 2
    assert user.match((0, 7)).host == 0


def test_the_copies_of_a_path_go_from_its_end():
    user = TreeUser(small_tree(8, 6, l2_victims="duplicates_first"))
    for prompt in ((0, 1), (0, 1, 2, 3), (0, 1, 2, 3, 4, 5)):
        user.compute(prompt)
        user.copy(prompt, HOST)
    for left in (4, 2, 0):
        user.tree.evict(HOST, 2)
        assert max(map(len, published(user.tree, HOST)), default=0) == left
        check_integrity(user.tree)


prompts = st.lists(st.lists(st.integers(0, 2), min_size=1, max_size=6), max_size=25)


@given(prompts, st.integers(8, 20), st.integers(1, 24), st.sampled_from(["any", "not_in_l1"]))
@examples(60)
def test_under_lru_an_inclusive_l2_serves_what_the_larger_tier_would(prompts, l1, l2, victims):
    """Written through, restored at once, page by page: what L2 alone would where it is no smaller
    than L1, and no less than L1 alone where it is (a prompt too long for it leaves older ones).
    """
    keys = Keys()
    requests = [
        Request(n, 0, len(each), 1, keys.runs(each), len(each), 0) for n, each in enumerate(prompts)
    ]
    cache = CacheOptions(
        pages="partial", hit_cap="none", outputs="dropped", eviction_granularity="page",
        l2_victims=victims,
    )  # fmt: skip
    env = Environment(0)
    engine = Engine(env, InstantLanes(env), EngineOptions(1, 1, l1, l2, cache=cache))
    engine.serve_untimed(requests)
    served = sum(engine.metrics.cached_pages)
    larger = sum(flat_lru([keys.keys(each) for each in prompts], max(l1, l2)))
    assert served == larger if l2 >= l1 else served >= larger


def test_untimed_a_restore_that_ends_within_the_node_that_l1_holds_in_part():
    """L1 has dropped half of a leaf and L2 a quarter: one node is cut while it is pinned."""
    keys = Keys()
    prompts = [(1, 0, 1, 1), (0, 0, 0, 0, 0, 0), (1, 0, 1, 1)]
    requests = [Request(n, 0, len(p), 1, keys.runs(p), len(p), 0) for n, p in enumerate(prompts)]
    cache = CacheOptions(
        pages="partial", hit_cap="none", outputs="dropped", eviction_granularity="page"
    )
    env = Environment(0)
    engine = Engine(env, InstantLanes(env), EngineOptions(1, 1, 8, 9, cache=cache))
    engine.serve_untimed(requests)
    assert engine.metrics.cached_pages == [2, 1, 0]
    engine.check_integrity()
    assert claims(engine.tree) == []


# ---------------------------------------------------------------------- ahead of need


@pytest.mark.parametrize(("tier", "index"), [("l1", DEVICE), ("l2", HOST)])
def test_above_the_high_mark_a_tier_is_emptied_down_to_the_low_one(tier, index):
    marks = {f"{tier}_high_watermark": 0.8, f"{tier}_low_watermark": 0.4}
    user = TreeUser(small_tree(10, 10, eviction_granularity="page", **marks))
    assert user.tree.evicts_ahead
    user.compute((0, 1, 2, 3))
    user.compute((5, 6, 7, 8))
    for prompt in ((0, 1, 2, 3), (5, 6, 7, 8)):
        user.copy(prompt, HOST)
    user.tree.evict_ahead()
    assert len(published(user.tree, index)) == 8, "at the mark, not above it"
    user.compute((9,))
    user.copy((9,), HOST)
    user.tree.evict_ahead()
    assert len(published(user.tree, index)) == 4
    assert len(published(user.tree, 1 - index)) == 9
    assert not published(user.tree, STORAGE)


def test_without_marks_nothing_is_evicted_ahead():
    user = TreeUser(small_tree(4))
    user.compute((0, 1, 2, 3))
    assert not user.tree.evicts_ahead
    user.tree.evict_ahead()
    assert len(published(user.tree, DEVICE)) == 4


@pytest.mark.parametrize(
    ("marks", "named"),
    [
        ({"l1_high_watermark": 0.9}, "cache.l1_low_watermark 0"),
        ({"l2_low_watermark": 0.9}, "cache.l2_low_watermark is 0.9"),
        ({"l2_high_watermark": 0.5, "l2_low_watermark": 0.6}, "cache.l2_low_watermark is 0.6"),
        ({"l1_high_watermark": 1.5, "l1_low_watermark": 0.6}, "cache.l1_high_watermark is 1.5"),
    ],
)
def test_marks_that_make_no_sense_are_refused(marks, named):
    with pytest.raises(InputError, match=named):
        CacheOptions(**marks)


# ---------------------------------------------------------------------- what a walk touches


def order_of(user: TreeUser) -> list[tuple[int, ...]]:
    """The contents at the end of each leaf, in the order in which they leave L1."""
    gone = []
    while held := set(published(user.tree, DEVICE)):
        user.tree.evict(DEVICE, 1)
        left = max(held - set(published(user.tree, DEVICE)), key=len)
        gone.append(user.keys.contents(left))
    return gone


def partly_matched(eviction: str, touch: str) -> TreeUser:
    """(0, 1, 2, 3), then (8, 8), then a look at (0, 1): the walk ends within the first node."""
    user = TreeUser(small_tree(20, eviction=eviction, touch=touch))
    user.compute((0, 1, 2, 3))
    user.compute((8, 8))
    user.match((0, 1))
    check_integrity(user.tree)
    return user


@pytest.mark.parametrize(
    ("eviction", "touch", "expected"),
    [
        # The tail that did not match is as old as it was, or as young as what did.
        ("lru", "matched", [(0, 1, 2, 3), (8, 8), (0, 1)]),
        ("lru", "walked", [(8, 8), (0, 1, 2, 3), (0, 1)]),
        ("mru", "matched", [(8, 8), (0, 1, 2, 3), (0, 1)]),
        ("mru", "walked", [(0, 1, 2, 3), (0, 1), (8, 8)]),
        # The upper half was made with the whole, or when it was cut.
        ("fifo", "matched", [(0, 1, 2, 3), (0, 1), (8, 8)]),
        ("fifo", "walked", [(0, 1, 2, 3), (8, 8), (0, 1)]),
        ("filo", "matched", [(8, 8), (0, 1, 2, 3), (0, 1)]),
        ("filo", "walked", [(8, 8), (0, 1, 2, 3), (0, 1)]),
    ],
)
def test_what_counts_as_used_when_a_node_matches_in_part(eviction, touch, expected):
    assert order_of(partly_matched(eviction, touch)) == expected


def test_filo_finds_an_upper_half_that_has_become_the_youngest():
    user = partly_matched("filo", "walked")
    user.tree.evict(DEVICE, 3)  # (8, 8), then the tail of the cut node
    user.compute((7, 7))
    assert order_of(user) == [(7, 7), (0, 1)]
    young = partly_matched("filo", "walked")
    young.tree.pin(young.match((8, 8)).node, DEVICE)
    young.tree.evict(DEVICE, 1)
    young.tree.unpin(young.match((8, 8)).node, DEVICE)
    assert order_of(young) == [(0, 1), (8, 8)]


def test_walked_each_node_has_a_time_of_its_own_and_parents_are_older():
    user = TreeUser(small_tree(30, touch="walked"))
    for prompt in ((0, 1, 2, 3), (0, 1, 5, 6), (0, 1, 5, 7), (4,), (0, 1, 2, 9)):
        user.compute(prompt)
    times = [node.last_access for node, _ in nodes_of(user.tree)]
    assert len(set(times)) == len(times)
    for node, _ in nodes_of(user.tree):
        assert node.parent is not None
        if node.last_access == max(times):
            assert node.parent.last_access == node.last_access - 1


def test_walked_a_priority_reaches_the_tail_that_did_not_match_where_there_is_an_l2():
    for touch, host, expected in (
        ("matched", 30, 0),
        ("walked", 0, 0),
        ("walked", 30, 2),
    ):
        user = TreeUser(small_tree(30, host, eviction="priority", touch=touch))
        user.compute((0, 1, 2, 3))
        user.tree.extend(user.tree.root, user.keys.runs((0, 1)), 2)
        upper, tail = (node for node, _ in nodes_of(user.tree))
        assert (upper.priority, tail.priority) == (2, expected)
        check_integrity(user.tree)
