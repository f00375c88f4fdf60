"""L1 against SGLang's RadixCache: the same hits and the same victims, in the same order."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from served import Ask, Ours, Theirs, branches, rewinds, sessions

SEEDS = 12
REQUESTS = 150
PAGES = 40

Work = Callable[[int, int, int], list[Ask]]


@pytest.mark.parametrize("eviction", ["lru", "lfu", "fifo", "filo", "mru", "slru", "priority"])
@pytest.mark.parametrize("work", [sessions, rewinds, branches], ids=lambda f: f.__name__)
def test_hits_and_victims_are_theirs(
    work: Work, eviction: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    priorities = 3 if eviction == "priority" else 1
    victims = hits = 0
    for seed in range(SEEDS):
        ours, theirs = Ours(PAGES, eviction), Theirs(PAGES, eviction)
        for number, ask in enumerate(work(seed, REQUESTS, priorities)):
            mine, other = ours.serve(ask, monkeypatch), theirs.serve(ask)
            assert mine == other, f"seed {seed}, request {number}"
            victims += len(mine.victims)
            hits += mine.hit_pages
    assert victims > 1000
    assert hits > 1000


def test_a_random_workload_exercises_what_it_should() -> None:
    """The workloads have splits, answers, hits in part; else agreeing would say little."""
    for work in (rewinds, branches):
        asks = work(1, REQUESTS, 1)
        assert any(ask.answer for ask in asks)
        assert any(ask.extra for ask in asks)
        assert any(a.prompt[: len(b.prompt)] == b.prompt for a in asks for b in asks if a is not b)
    ours = Ours(PAGES, "lru")
    for ask in rewinds(1, REQUESTS):
        ours.serve(ask, pytest.MonkeyPatch())
    assert ours.tree.splits > 10
