"""The published counts of the Mooncake conversation trace, through the replay that users run.

Preset block-lru, untimed, pages of 512: one tier against every golden capacity, the warm second
half of the requests under LRU and FIFO, and two tiers against the reference of another
implementation.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from scenario.load import load_scenario
from sim.replay import replay

SHARED = Path(__file__).resolve().parents[3] / "shared"
TRACE = SHARED / "traces" / "mooncake_conversation.jsonl"
GOLDEN = SHARED / "goldens" / "mooncake_conversation.json"

pytestmark = pytest.mark.skipif(
    not (TRACE.exists() and GOLDEN.exists()),
    reason="needs ../shared/traces and ../shared/goldens, which are not part of the repository",
)


def golden() -> dict:
    return json.loads(GOLDEN.read_text()) if GOLDEN.exists() else {}


def summary(l1_pages: int, l2_pages: int = 0, **overrides: object) -> dict:
    options = {
        "trace.path": str(TRACE),
        "preset": "block-lru",
        "mode": "untimed",
        "tiers.page_size_tokens": 512,
        "tiers.l1": f"{l1_pages}pages",
        "tiers.l2": f"{l2_pages}pages" if l2_pages else "0",
        "tiers.l3": "0",
        **overrides,
    }
    return replay(load_scenario(None, options)).summary


CAPACITIES = golden().get("leaf_lru_hit_blocks", {})


@pytest.mark.parametrize("capacity", CAPACITIES)
def test_leaf_lru_hits_the_golden_number_of_blocks(capacity):
    pages = 200_000 if capacity == "inf" else int(capacity)
    run = summary(pages)
    assert run["cached_pages_total"]["device"] == CAPACITIES[capacity]
    rate = golden()["leaf_lru_token_hit_rate"][capacity]
    assert run["cache_hit_rate"] == pytest.approx(rate, abs=1e-12)


@pytest.mark.parametrize(("eviction", "key"), [("lru", "lru"), ("fifo", "fifo_leaf")])
@pytest.mark.parametrize("capacity", ["2984", "6000", "17999"])
def test_the_second_half_hits_the_golden_number_of_tokens(eviction, key, capacity):
    half = golden()["last_half_token_weighted"]
    run = summary(int(capacity), **{"cache.eviction": eviction})
    tokens = run["hit_rates"]["last_half"]["tokens"]
    assert tokens["asked"] == half["total_tokens"]
    assert tokens["ceiling_hit"] == half["ceiling_hit_tokens"]
    assert tokens["hit"] == half[key][capacity]


def test_full_pages_and_a_computed_last_token_cost_118_blocks():
    run = summary(200_000, **{"cache.pages": "full", "cache.hit_cap": "last_token_computed"})
    assert run["cached_pages_total"]["device"] == 105_592
    assert run["hit_rates"]["all"]["pages"]["ceiling_hit"] == 105_592


@pytest.mark.parametrize("l2_pages", [3000, 6000, 12000, 24000, 48000])
def test_two_tiers_hit_what_the_larger_of_them_would(l2_pages):
    """docs/two-tiers.md explains where the reference differs: an L2 no larger than L1.

    Inclusive tiers that every request touches alike hold the same pages in the same order, so L1
    and
    L2 together hit what the larger one hits alone. The reference never lets the host copy of a page
    go that L1 holds, which keeps a few others that LRU would have kept out.
    """
    reference = golden()["two_tier_reference"]
    run = summary(6000, l2_pages)
    together = run["hit_rates"]["all"]["pages"]["total"]
    alone = summary(max(6000, l2_pages))["hit_rates"]["all"]["pages"]["total"]
    assert together == alone
    theirs = reference["write_through"][str(l2_pages)]
    if l2_pages > 6000:
        assert together == pytest.approx(theirs, abs=5e-6)
    else:
        assert together == pytest.approx(reference["l1_only"], abs=5e-6)
        assert 0 < theirs - together < 0.0025
