"""L1 and L2 against SGLang's HiRadixCache (0.5.20) under write_through: hits in both, and victims.

0.5.23 has no such class any more; its tree is another, which imports a whole server.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Literal

import pytest
from published import missing, version
from served import Ask, branches, rewinds, sessions
from served_hi import HiOutcome, OursWithL2, TheirsWithL2

from hicache.options import EvictionName

SEEDS = 8
REQUESTS = 150
PAGES = 40
PLENTY = 4000

OPTIONS: dict[str, Any] = {
    "l2_victims": "not_in_l1",
    "l2_eviction_amount": "request",
    "write_unit": "node",
}

Work = Callable[[int, int, int], list[Ask]]
WORKS = pytest.mark.parametrize("work", [sessions, rewinds, branches], ids=lambda f: f.__name__)


@pytest.fixture(autouse=True)
def _only_where_it_is() -> None:
    if not missing() and version() != "0.5.20":
        pytest.skip("0.5.20 alone publishes HiRadixCache as a class of its own")


def both(
    work: Work,
    host_pages: int,
    monkeypatch: pytest.MonkeyPatch,
    eviction: EvictionName = "lru",
    loads: Literal["shortfall", "request"] = "request",
) -> Iterator[tuple[HiOutcome, HiOutcome]]:
    """Ours and theirs, request by request. `loads`: how much both have L1 evict for a load."""
    for seed in range(SEEDS):
        ours = OursWithL2(
            PAGES, host_pages, eviction=eviction, load_eviction_amount=loads, **OPTIONS
        )
        theirs = TheirsWithL2(PAGES, host_pages, eviction, load_evicts=loads)
        priorities = 3 if eviction == "priority" else 1
        for ask in work(seed, REQUESTS, priorities):
            yield ours.serve_hi(ask, monkeypatch), theirs.serve_hi(ask)


@WORKS
@pytest.mark.parametrize("eviction", ["lru", "priority"])
def test_with_room_in_l2_everything_is_theirs(
    work: Work, eviction: EvictionName, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Hits in L1 and L2, and what leaves L1, in order."""
    hits, victims = 0, 0
    for mine, other in both(work, PLENTY, monkeypatch, eviction):
        assert mine == other
        hits += mine.host_hits
        victims += len(mine.device_victims)
    assert hits > 20
    assert victims > 1000


@pytest.mark.parametrize("host_pages", [PLENTY, 55, 30])
@WORKS
def test_everything_is_theirs_where_loads_evict_what_is_missing(
    work: Work, host_pages: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The other amount, which 0.5.23 has."""
    victims = 0
    for mine, other in both(work, host_pages, monkeypatch, loads="shortfall"):
        assert mine == other
        victims += len(mine.device_victims)
    assert victims > 1000


@pytest.mark.parametrize("host_pages", [60, 55, 30])
@pytest.mark.parametrize("eviction", ["lru", "priority"])
@WORKS
def test_with_a_small_l2_everything_is_theirs(
    work: Work, eviction: EvictionName, host_pages: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also what leaves L2, in order; and an L2 that is smaller than L1."""
    victims = 0
    for mine, other in both(work, host_pages, monkeypatch, eviction):
        assert mine == other
        victims += len(mine.host_victims)
    assert victims > 200


@WORKS
def test_an_l2_smaller_than_l1_serves_next_to_nothing(
    work: Work, monkeypatch: pytest.MonkeyPatch
) -> None:
    """sglang#16909, #28614: under write_through it holds little that L1 does not; in both."""
    device, host = [0, 0], [0, 0]
    for outcomes in both(work, 30, monkeypatch):
        for side, outcome in enumerate(outcomes):
            device[side] += outcome.device_hits
            host[side] += outcome.host_hits
    for side in (0, 1):
        assert host[side] < 0.02 * device[side]
