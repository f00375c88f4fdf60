"""GDSF, S3-FIFO and ARC: on prompts of one page against their papers' lists; on trees by hand."""

from __future__ import annotations

from collections import OrderedDict

import pytest
from examples import examples
from hypothesis import given
from hypothesis import strategies as st
from tree_user import TreeUser, small_tree
from tree_view import published

from hicache.adaptive import NEW, PROVEN, Ghosts
from hicache.integrity import check_integrity
from hicache.node import DEVICE, HOST
from hicache.options import CacheOptions, EngineOptions
from hicache.tree import HiRadixTree

objects = st.lists(st.integers(0, 12), max_size=120)


class FlatGdsf:
    """All objects cost and measure the same: H = clock + hits."""

    def __init__(self, capacity: int, cost: float) -> None:
        self.capacity, self.cost, self.clock, self.now = capacity, cost, 0.0, 0
        self.held: dict[int, list[float]] = {}  # hits, clock at the last one, its time

    def ask(self, item: int) -> bool:
        self.now += 1
        if item in self.held:
            self.held[item] = [self.held[item][0] + 1, self.clock, self.now]
            return True
        if len(self.held) == self.capacity:
            order = {
                each: (clock + hits * self.cost, time)
                for each, (hits, clock, time) in self.held.items()
            }
            victim = min(order, key=lambda each: order[each])
            self.clock = max(self.clock, order[victim][0])
            del self.held[victim]
        self.held[item] = [1, self.clock, self.now]
        return False


class FlatS3Fifo:
    """Two queues and ghosts, oldest first."""

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self.small: OrderedDict[int, int] = OrderedDict()  # item -> hits
        self.main: OrderedDict[int, int] = OrderedDict()
        self.ghosts: OrderedDict[int, None] = OrderedDict()

    def ask(self, item: int) -> bool:
        for queue in (self.small, self.main):
            if item in queue:
                queue[item] += 1
                return True
        if len(self.small) + len(self.main) == self.capacity:
            self.evict()
        if item in self.ghosts:
            del self.ghosts[item]
            self.main[item] = 0
        else:
            self.small[item] = 0
        return False

    def evict(self) -> None:
        while True:
            if self.small and (10 * len(self.small) >= self.capacity or not self.main):
                item, hits = self.small.popitem(last=False)
                if hits > 1:
                    self.main[item] = 0
                    continue
                self.ghosts[item] = None
                while len(self.ghosts) > self.capacity - self.capacity // 10:
                    self.ghosts.popitem(last=False)
                return
            item, hits = self.main.popitem(last=False)
            if not hits:
                return
            self.main[item] = min(hits, 3) - 1


class FlatArc:
    """The paper's four lists; as in the engine, room is made before the target moves."""

    def __init__(self, capacity: int) -> None:
        self.capacity, self.target = capacity, 0.0
        self.once: OrderedDict[int, None] = OrderedDict()
        self.again: OrderedDict[int, None] = OrderedDict()
        self.once_ghosts: OrderedDict[int, None] = OrderedDict()
        self.again_ghosts: OrderedDict[int, None] = OrderedDict()

    def ask(self, item: int) -> bool:
        if item in self.once or item in self.again:
            self.once.pop(item, None)
            self.again[item] = None
            self.again.move_to_end(item)
            return True
        if len(self.once) + len(self.again) == self.capacity:
            self.replace()
        b1, b2 = len(self.once_ghosts), len(self.again_ghosts)
        if item in self.once_ghosts:
            del self.once_ghosts[item]
            self.target = min(self.capacity, self.target + max(1, b2 / b1))
            self.again[item] = None
        elif item in self.again_ghosts:
            del self.again_ghosts[item]
            self.target = max(0, self.target - max(1, b1 / b2))
            self.again[item] = None
        else:
            self.once[item] = None
        return False

    def replace(self) -> None:
        lists = [(self.once, self.once_ghosts), (self.again, self.again_ghosts)]
        if len(self.once) <= self.target:
            lists.reverse()
        cached, ghosts = next(each for each in lists if each[0])
        ghosts[cached.popitem(last=False)[0]] = None
        c, t1, t2 = self.capacity, len(self.once), len(self.again)
        while len(self.once_ghosts) > c - t1:
            self.once_ghosts.popitem(last=False)
        while len(self.again_ghosts) > 2 * c - t1 - t2 - len(self.once_ghosts):
            self.again_ghosts.popitem(last=False)


def hits_of(user: TreeUser, items: list[int]) -> list[bool]:
    """Whether each one-page prompt was there, asked for one after the other."""
    hits = []
    for item in items:
        before = user.match((item,)).device
        user.compute((item,))
        check_integrity(user.tree)
        hits.append(before == 1)
    return hits


@given(objects, st.integers(1, 11))
@examples(80)
def test_on_pages_without_a_tree_each_is_what_its_paper_says(items, capacity):
    for name, flat in (
        ("s3fifo", FlatS3Fifo(capacity)),
        ("arc", FlatArc(capacity)),
        ("gdsf", FlatGdsf(capacity, 1 + 0.5 / 32768)),
    ):
        user = TreeUser(small_tree(capacity, eviction=name))
        assert hits_of(user, items) == [flat.ask(item) for item in items], name


def loop(rounds: int, length: int) -> list[int]:
    """A scan that is one page longer than the tier, with two prompts that are always wanted."""
    items = []
    for each in range(rounds * length):
        items += [100, 100 + each % 2, each % length]
    return items


def test_a_scan_does_not_push_out_what_is_wanted_again():
    found = {
        name: sum(hits_of(TreeUser(small_tree(8, eviction=name)), loop(6, 9)))
        for name in ("lru", "arc", "s3fifo", "gdsf")
    }
    assert all(found[name] >= found["lru"] for name in found), found
    assert found["s3fifo"] > found["lru"], found


@pytest.mark.parametrize("name", ["arc", "s3fifo"])
def test_what_comes_back_is_remembered_page_by_page_across_splits(name):
    """A leaf leaves in two parts and comes back as one run: ghosts follow each other by key."""
    user = TreeUser(small_tree(12, eviction=name, eviction_granularity="page"))
    user.compute((0, 1, 2, 3))
    user.tree.evict(DEVICE, 1)
    user.tree.evict(DEVICE, 2)
    user.compute((9, 9))
    user.compute((0, 1, 2, 3))
    memory = user.tree.tiers[DEVICE].adaptive
    node = user.match((0, 1, 2, 3)).node
    assert (memory.pages_of(node), memory._entries[node].segment) == (3, PROVEN)
    # The page that had stayed was hit once more: enough for ARC.
    assert memory._entries[node.parent].segment == (PROVEN if name == "arc" else NEW)
    assert memory.segment_pages == ([2, 4] if name == "arc" else [3, 3])


def test_ghosts_are_found_by_the_key_where_they_begin():
    ghosts = Ghosts()
    ghosts.add(10, 3)
    ghosts.add(13, 2)
    ghosts.add(40, 5)
    assert ghosts.recall(11, 4) == 0
    assert ghosts.recall(10, 4) == 4
    assert ghosts.pages == 5
    ghosts.add(40, 2)
    ghosts.add(50, 9)
    ghosts.trim(10)
    assert (ghosts.recall(40, 9), ghosts.recall(50, 9), ghosts.pages) == (0, 9, 0)


def gdsf_tree(*capacities: int) -> HiRadixTree:
    cache = CacheOptions(eviction="gdsf", gdsf_doubling_tokens=2)
    # 50 us to compute a token, 144 KiB of it: 11 us to load it from L2.
    return HiRadixTree(EngineOptions(1, 144 * 1024, *capacities, cache=cache))


def test_gdsf_keeps_what_takes_longest_to_compute():
    """Of two leaves, the one behind a long prefix stays, though it was used before the other."""
    user = TreeUser(gdsf_tree(9))
    user.compute((0, 0, 0, 0, 0, 0, 1))
    user.compute((5,))
    user.compute((6,))
    user.tree.evict(DEVICE, 1)
    assert (user.match((5,)).device, user.match((0, 0, 0, 0, 0, 0, 1)).device) == (0, 7)
    lru = TreeUser(small_tree(9))
    for prompt in ((0, 0, 0, 0, 0, 0, 1), (5,), (6,)):
        lru.compute(prompt)
    lru.tree.evict(DEVICE, 1)
    assert (lru.match((5,)).device, lru.match((0, 0, 0, 0, 0, 0, 1)).device) == (1, 0)


def test_gdsf_gives_up_first_what_the_tier_below_holds():
    user = TreeUser(gdsf_tree(8, 8))
    user.compute((1,))
    user.compute((0, 0, 0, 0, 0))
    user.copy((0, 0, 0, 0, 0), HOST)
    user.tree.evict(DEVICE, 1)
    assert len(published(user.tree, DEVICE)) == 1
    assert user.tree.tiers[DEVICE].lost_pages == 0


def test_gdsf_forgets_what_was_hit_often_and_long_ago():
    """The clock: without it, a prompt hit ten times would stay for ever."""
    user = TreeUser(small_tree(3, eviction="gdsf"))
    for _ in range(10):
        user.compute((0,))
    for other in range(1, 15):
        user.compute((other,))
        user.compute((other,))
    assert user.match((0,)).device == 0
