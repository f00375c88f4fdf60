"""A log of lengths only, replayed as it is and with prefixes that were asked for."""

from __future__ import annotations

from pathlib import Path

import pytest

from hicache.errors import InputError
from scenario.load import load_scenario
from sim.replay import replay

HEAD = "TIMESTAMP,ContextTokens,GeneratedTokens\n"
REPOSITORY = Path(__file__).resolve().parents[2]


@pytest.fixture
def lengths(tmp_path: Path) -> Path:
    path = tmp_path / "azure.csv"
    rows = (f"2023-11-16 18:17:{n % 60:02}.0000000,{1000 + 10 * n},8" for n in range(60))
    path.write_text(HEAD + "\n".join(rows) + "\n")
    return path


def summary_of(path: Path, **options: object) -> dict:
    given = {f"trace.{key}": value for key, value in options.items() if key != "seed"}
    given |= {"seed": options.get("seed", 0), "trace.path": str(path)}
    return replay(load_scenario(None, {**given, "tiers.page_size_tokens": 16})).summary


def test_as_it_is_nothing_is_shared(lengths: Path) -> None:
    summary = summary_of(lengths)
    assert summary["cache_hit_rate"] == 0
    assert summary["trace"]["has_ids"] is False


def test_the_share_that_was_asked_for_is_hit_and_stated(lengths: Path) -> None:
    summary = summary_of(lengths, prefix_share=0.5, prefix_groups=1)
    # All but the first prompt's share, and what is longer than any prompt before, rounded to pages.
    assert 0.47 < summary["cache_hit_rate"] < 0.5
    assert any("prefixes are made up: 0.5" in warning for warning in summary["warnings"])


def test_groups_exponent_and_seed_have_an_effect(lengths: Path) -> None:
    def rate(**options: object) -> float:
        return summary_of(lengths, prefix_share=0.5, **options)["cache_hit_rate"]

    assert rate(prefix_groups=30) < rate(prefix_groups=1)
    assert rate(prefix_groups=30, prefix_zipf=0.0) != rate(prefix_groups=30, prefix_zipf=3.0)
    assert rate(prefix_groups=8, seed=1) != rate(prefix_groups=8, seed=2)


def test_a_trace_that_says_what_is_shared_refuses_it() -> None:
    with pytest.raises(InputError, match=r"prefix_share: .* this one has its own"):
        summary_of(REPOSITORY / "data" / "agents.jsonl", prefix_share=0.5)


def test_a_share_is_a_fraction(lengths: Path) -> None:
    with pytest.raises(InputError, match=r"trace.prefix_share is 1.5: it must lie between 0 and 1"):
        summary_of(lengths, prefix_share=1.5)
