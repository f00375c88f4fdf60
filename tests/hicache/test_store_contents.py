"""What a simulated store holds: by hand, and against a list of pages by use."""

from __future__ import annotations

from collections import OrderedDict
from random import Random

import pytest

from hicache.operations import PageRuns
from hicache.store_contents import STRETCH, StoreContents


def test_what_one_writes_the_other_finds() -> None:
    contents = StoreContents()
    assert contents.write(((10, 6),)) == 6
    assert contents.leading(((10, 10),)) == 6
    assert contents.missing(((10, 10),)) == 4
    assert contents.read(((10, 4),)) == 4
    assert contents.write(((14, 6),)) == 4
    assert contents.leading(((10, 10), (50, 2))) == 10
    assert contents.leading(((50, 2), (10, 10))) == 0
    assert contents.pages == 10


def test_the_least_recently_used_leave() -> None:
    contents = StoreContents(4)
    contents.write(((0, 4),))
    assert contents.read(((0, 2),)) == 2
    contents.write(((4, 2),))
    assert [contents.leading(((key, 1),)) for key in range(6)] == [1, 1, 0, 0, 1, 1]
    assert (contents.pages, contents.evicted_pages) == (4, 2)
    assert contents.write(((4, 2),)) == 0


def test_a_question_uses_nothing() -> None:
    contents = StoreContents(2)
    contents.write(((0, 2),))
    assert contents.leading(((0, 1),)) == 1
    assert contents.missing(((0, 1),)) == 0
    contents.write(((2, 1),))
    assert contents.leading(((0, 1),)) == 0


def test_what_is_read_up_to_the_first_that_lacks_is_used() -> None:
    contents = StoreContents(4)
    contents.write(((0, 2), (10, 2)))
    assert contents.read(((0, 5),)) == 2
    contents.write(((20, 2),))
    assert contents.leading(((0, 2),)) == 2
    assert contents.leading(((10, 2),)) == 0


class Naive:
    """Page by page."""

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self.held: OrderedDict[int, None] = OrderedDict()

    def leading(self, keys: list[int]) -> int:
        return next((n for n, key in enumerate(keys) if key not in self.held), len(keys))

    def read(self, keys: list[int]) -> int:
        count = self.leading(keys)
        for key in keys[:count]:
            self.held.move_to_end(key)
        return count

    def write(self, keys: list[int]) -> int:
        new = 0
        for key in keys:
            new += key not in self.held
            self.held[key] = None
            self.held.move_to_end(key)
            if self.capacity and len(self.held) > self.capacity:
                self.held.popitem(last=False)
        return new

    def forget(self, keys: list[int]) -> int:
        return sum(self.held.pop(key, 0) is None for key in keys)


def random_runs(rng: Random, shift: int) -> PageRuns:
    """Up to three runs, no page twice."""
    runs: list[tuple[int, int]] = []
    for base in rng.sample((0, 20, 40), rng.randrange(1, 4)):
        first = shift + base + rng.randrange(12)
        runs.append((first, rng.randrange(1, 9)))
    return tuple(runs)


# With the last shifts some of the keys lie behind the end of a stretch.
@pytest.mark.parametrize("shift", [0, STRETCH - 25, -30])
@pytest.mark.parametrize("seed", range(300))
def test_as_a_list_of_pages_by_use(seed: int, shift: int) -> None:
    rng = Random(seed)
    capacity = rng.choice([0, 1, 5, 12, 25])
    contents, naive = StoreContents(capacity), Naive(capacity)
    written = 0
    for _ in range(60):
        runs = random_runs(rng, shift)
        keys = [key for first, count in runs for key in range(first, first + count)]
        act = rng.choice(["leading", "missing", "read", "write", "write", "forget"])
        if act == "missing":
            first, end = keys[0], shift + 60
            gap = next((k for k in range(first, end) if k in naive.held), end) - first
            assert contents.gap(first, end - first) == gap
            assert contents.missing(runs) == sum(key not in naive.held for key in keys)
        elif act == "leading":
            assert contents.leading(runs) == naive.leading(keys)
        elif act == "forget":
            contents.forget(runs)
            written -= naive.forget(keys)
        elif act == "read":
            assert contents.read(runs) == naive.read(keys)
        else:
            new = contents.write(runs)
            assert new == naive.write(keys)
            written += new
        assert contents.pages == len(naive.held)
        assert contents.evicted_pages == written - len(naive.held)
        every = range(shift, shift + 60)
        assert [key for key in every if contents.leading(((key, 1),))] == sorted(naive.held)
