"""One contract for every eviction strategy, by node and by page, against a plain search."""

from __future__ import annotations

from collections.abc import Callable
from itertools import count as counting
from itertools import pairwise
from typing import Any

import pytest
from adversarial_lanes import pages_of
from examples import examples
from hypothesis import given
from hypothesis import strategies as st
from tree_user import TreeUser, small_tree
from tree_view import nodes_of, path_of, published

from hicache.adaptive import NEW, PROVEN
from hicache.integrity import check_integrity
from hicache.node import DEVICE, HOST, Node
from hicache.options import EVICTION_NAMES
from hicache.tree import HiRadixTree

contents = st.lists(st.integers(0, 1), min_size=1, max_size=6).map(tuple)
actions = st.lists(
    st.one_of(
        st.tuples(st.just("compute"), contents, st.integers(0, 2)),
        st.tuples(st.just("compute"), contents, st.integers(0, 2)),
        st.tuples(st.just("touch"), contents, st.just(0)),
        st.tuples(st.just("copy"), contents, st.just(0)),
        st.tuples(st.just("pin"), contents, st.integers(0, 1)),
        st.tuples(st.just("arrive"), contents, st.just(0)),
        st.tuples(st.just("evict"), st.integers(1, 9), st.integers(0, 1)),
        st.tuples(st.just("let go"), st.integers(0, 9), st.just(0)),
    ),
    max_size=30,
)


class Ghost:
    """A node in the oracle's list."""

    segment = hits = 0  # for strategies that remember

    def __init__(self, node: Node, tier: int, key: Any) -> None:
        self.path = path_of(node.parent) if node.parent is not None else ()
        self.start = node.start
        self.parent: Ghost | None = None
        self.held = node.resident[tier]
        self.pinned = False
        self.key = key


class EvictionContract:
    """Inherit, name the strategy, and say by which key a node leaves: the smallest goes first."""

    name: str
    key: Callable[[Node], Any]

    def key_in(self, tree: HiRadixTree, tier: int, node: Node) -> Any:
        """By what a node that `tier` holds leaves it."""
        return type(self).key(node)

    def picker(
        self, tree: HiRadixTree, tier: int, ghosts: dict[int, Ghost]
    ) -> Callable[[list[Ghost]], Ghost]:
        """What says which of the leaves goes first."""

        def smallest(leaves: list[Ghost]) -> Ghost:
            keys = [leaf.key for leaf in leaves]
            victim = leaves[keys.index(min(keys))]
            assert keys.count(victim.key) == 1, "the oracle cannot tell which goes first"
            return victim

        return smallest

    def expected(self, user: TreeUser, tier: int, count: int, pinned: list[Node], by_page: bool):
        """What `tier` holds after `count` pages of it were evicted, and how many are gone."""
        ghosts: dict[int, Ghost] = {}
        for node, _ in nodes_of(user.tree):  # parents first
            key = self.key_in(user.tree, tier, node) if node.resident[tier] else None
            ghost = ghosts[id(node)] = Ghost(node, tier, key)
            ghost.parent = ghosts.get(id(node.parent))
        pick = self.picker(user.tree, tier, ghosts)
        for node in pinned:
            ghost = ghosts.get(id(node))
            while ghost is not None:
                ghost.pinned, ghost = True, ghost.parent
        freed = 0
        while freed < count:
            inner = {id(ghost.parent) for ghost in ghosts.values() if ghost.held}
            leaves = [
                ghost
                for ghost in ghosts.values()
                if ghost.held and not ghost.pinned and id(ghost) not in inner
            ]
            if not leaves:
                break
            victim = pick(leaves)
            part = min(victim.held, count - freed) if by_page else victim.held
            victim.held -= part
            freed += part
        left = set()
        for ghost in ghosts.values():
            for place in range(ghost.held):
                left.add(ghost.path + tuple(range(ghost.start, ghost.start + place + 1)))
        return left, freed

    @given(actions=actions, by_page=st.booleans(), tail=st.integers(1, 30))
    @examples(60)
    def test_the_smallest_leaf_goes_first_and_no_pinned_or_arriving_page(
        self, actions, by_page, tail
    ):
        tree = small_tree(
            26, 26, eviction=self.name, eviction_granularity="page" if by_page else "node"
        )
        user = TreeUser(tree)
        pins: list[tuple[Node, int]] = []
        arrivals = []

        def evict(tier: int, count: int) -> None:
            pinned = [node for node, where in pins if where == tier]
            pinned += [each.node for each in arrivals if tier in (each.source, each.target)]
            left, freed = self.expected(user, tier, count, pinned, by_page)
            assert tree.evict(tier, count) == freed
            assert set(published(tree, tier)) == left

        for action, what, extra in [*actions, ("evict", tail, 0), ("evict", tail, 1)]:
            if action == "compute":
                user.compute(what, extra)
            elif action == "touch":
                user.match(what)
            elif action == "copy":
                if not arrivals:
                    user.copy(what, HOST)
            elif action == "pin":
                node = user.match(what).node
                tree.pin(node, extra)
                pins.append((node, extra))
            elif action == "arrive":
                node = user.match(what).node
                arrival = user.arrive(node, DEVICE, HOST)
                if arrival is not None:
                    arrivals.append(arrival)
            elif action == "evict":
                evict(extra, what)
            elif pins:
                tree.unpin(*pins.pop(what % len(pins)))
            elif arrivals:
                user.settle(arrivals.pop(0))
            check_integrity(tree)

    def test_a_shortfall_is_covered_exactly_by_page_and_by_whole_leaves_by_node(self):
        for granularity, freed in (("page", 5), ("node", 8)):
            user = TreeUser(small_tree(16, eviction=self.name, eviction_granularity=granularity))
            for first in range(4):
                user.compute((first, 9, 9, 9))
            assert user.tree.evict(DEVICE, 5) == freed
            assert len(published(user.tree, DEVICE)) == 16 - freed

    def test_a_tail_that_left_while_it_was_computed_comes_back(self):
        """Two compute one prompt; when the second is done, the first one's tail is gone again."""
        for granularity in ("page", "node"):
            user = TreeUser(small_tree(20, eviction=self.name, eviction_granularity=granularity))
            second = user.start((0, 1, 2))
            user.compute((0, 1, 2))
            user.tree.evict(DEVICE, 2)
            check_integrity(user.tree)
            before = published(user.tree, DEVICE)
            assert user.finish(second) == 0
            check_integrity(user.tree)
            now = published(user.tree, DEVICE)
            computed = dict(zip(sorted(now, key=len), pages_of(second.pages), strict=True))
            assert now == computed | before

    def test_what_cannot_be_had_evicts_nothing(self):
        user = TreeUser(small_tree(8, eviction=self.name))
        user.compute((0, 1, 2))
        user.compute((5, 6, 7))
        node = user.match((0, 1, 2)).node
        user.tree.pin(node, DEVICE)
        assert user.tree.take(DEVICE, 6) is None
        assert len(published(user.tree, DEVICE)) == 6
        assert user.tree.take(DEVICE, 5) is not None
        assert len(published(user.tree, DEVICE)) == 3

    def test_page_by_page_is_the_same_as_all_at_once(self):
        held = []
        for counts in ([1] * 7, [7]):
            user = TreeUser(small_tree(20, eviction=self.name, eviction_granularity="page"))
            for prompt in ((0, 1, 2, 3), (0, 1, 5, 6), (7, 8), (0, 1, 2, 3), (7, 9)):
                user.compute(prompt)
            for count in counts:
                user.tree.evict(DEVICE, count)
            held.append(set(published(user.tree, DEVICE)))
        assert held[0] == held[1]

    def test_a_tick_is_never_shared_by_two_leaves(self):
        """What makes the order total: one tick touches one path."""
        user = TreeUser(small_tree(20, eviction=self.name))
        for prompt in ((0, 1, 2, 3), (0, 1, 5, 6), (7, 8), (0, 1, 2, 3), (7, 9)):
            user.compute(prompt)
        leaves = [node for node, _ in nodes_of(user.tree) if not node.children]
        keys = [self.key_in(user.tree, DEVICE, node) for node in leaves]
        assert len(set(keys)) == len(keys)


class TestLru(EvictionContract):
    name = "lru"
    key = staticmethod(lambda node: node.last_access)


class TestLfu(EvictionContract):
    name = "lfu"
    key = staticmethod(lambda node: (node.hit_count, node.last_access))


class TestFifo(EvictionContract):
    name = "fifo"
    key = staticmethod(lambda node: node.created)


class TestFilo(EvictionContract):
    name = "filo"
    key = staticmethod(lambda node: -node.created)


class TestMru(EvictionContract):
    name = "mru"
    key = staticmethod(lambda node: -node.last_access)


class TestSlru(EvictionContract):
    name = "slru"
    key = staticmethod(lambda node: (node.hit_count > 1, node.last_access))


class TestPriority(EvictionContract):
    name = "priority"
    key = staticmethod(lambda node: (node.priority, node.last_access))


class RememberingContract(EvictionContract):
    """A strategy with a memory: the oracle reads what it remembers, and decides by itself."""

    def key_in(self, tree, tier, node):
        return tree.tiers[tier].adaptive.key_of(node)


class TestGdsf(RememberingContract):
    name = "gdsf"


class TestArc(RememberingContract):
    name = "arc"

    def picker(self, tree, tier, ghosts):
        memory = tree.tiers[tier].adaptive
        for node, _ in nodes_of(tree):
            if node.resident[tier]:
                ghosts[id(node)].segment = memory._entries[node].segment

        def pick(leaves):
            once = sum(ghost.held for ghost in ghosts.values() if ghost.segment == NEW)
            first = NEW if once > memory.target else PROVEN
            here = [leaf for leaf in leaves if leaf.segment == first]
            return min(here or leaves, key=lambda leaf: leaf.key)

        return pick


class TestS3Fifo(RememberingContract):
    name = "s3fifo"

    def picker(self, tree, tier, ghosts):
        memory, places = tree.tiers[tier].adaptive, counting(10**9)
        for node, _ in nodes_of(tree):
            if node.resident[tier]:
                entry = memory._entries[node]
                ghost = ghosts[id(node)]
                ghost.segment, ghost.hits = entry.segment, node.hit_count - entry.seen

        def pick(leaves):
            while True:
                small = [leaf for leaf in leaves if leaf.segment == NEW]
                main = [leaf for leaf in leaves if leaf.segment == PROVEN]
                new = sum(ghost.held for ghost in ghosts.values() if ghost.segment == NEW)
                full = 10 * new >= tree.tiers[tier].capacity
                from_small = bool(small) and (full or not main)
                leaf = min(small if from_small else main, key=lambda leaf: leaf.key)
                if leaf.hits <= (1 if from_small else 0):
                    return leaf
                leaf.hits = 0 if from_small else min(leaf.hits, 3) - 1
                leaf.segment, leaf.key = PROVEN, next(places)

        return pick


def contracts(of: type = EvictionContract) -> set[str]:
    return {of.name} if hasattr(of, "name") else set().union(*map(contracts, of.__subclasses__()))


def test_every_strategy_has_its_contract():
    assert contracts() == set(EVICTION_NAMES)


@given(st.lists(st.tuples(st.booleans(), contents, st.integers(0, 2)), max_size=20))
@examples(60)
def test_a_node_knows_how_often_and_when_its_pages_were_used(actions):
    """Attributes of each page, counted one by one, without evictions."""
    user = TreeUser(small_tree(200))
    facts: dict[tuple[int, ...], dict[str, int]] = {}
    for tick, (computes, what, priority) in enumerate(actions):
        keys = tuple(user.keys.keys(what))
        known = user.match(what).device
        if computes:
            user.compute(what, priority)
        for end in range(1, len(keys) + 1 if computes else known + 1):
            page = facts.setdefault(
                keys[:end], {"created": tick, "hits": 0, "priority": 0, "touched": tick}
            )
            page["touched"] = tick
            if computes and known < len(keys):  # a prompt that is all there is not inserted
                page["hits"] += 1
                page["priority"] = max(page["priority"], priority)
    order = {"created": [], "touched": []}
    for node, before in nodes_of(user.tree):
        for place in range(node.length):
            page = facts[before + tuple(range(node.start, node.start + place + 1))]
            assert (node.hit_count, node.priority) == (page["hits"], page["priority"])
            order["created"].append((page["created"], node.created))
            order["touched"].append((page["touched"], node.last_access))
    for pairs in order.values():
        pairs.sort()
        for (mine, theirs), (mine_next, theirs_next) in pairwise(pairs):
            assert mine == mine_next or theirs < theirs_next


@pytest.mark.parametrize("granularity", ["node", "page"])
def test_most_recently_used_goes_first_also_when_it_was_used_behind_the_lookup(granularity):
    """Two lookups, then the first prompt is extended: it is the one used last."""
    user = TreeUser(small_tree(20, eviction="mru", eviction_granularity=granularity))
    tree = user.tree
    user.compute((0, 1))
    user.compute((5, 6))
    first = user.match((0, 1))
    user.match((5, 6))
    tree.extend(first.node, user.keys.runs((0, 1)))
    tree.evict(DEVICE, 1)
    assert user.match((5, 6)).device == 2
    assert user.match((0, 1)).device < 2


def test_pages_that_no_lower_tier_holds_are_lost_when_they_leave_l1():
    user = TreeUser(small_tree(8, 8, eviction_granularity="page"))
    user.compute((0, 1, 2, 3, 4))
    user.copy((0, 1, 2, 3, 4), HOST)
    user.tree.evict(HOST, 3)
    user.tree.evict(DEVICE, 4)
    assert user.tree.tiers[DEVICE].lost_pages == 3
