"""Options that leave SGLang's decisions behind, each under SGLang's presets and where it helps."""

from __future__ import annotations

import json
import re
from itertools import islice
from pathlib import Path

import pytest
from slow_links import slower

from scenario.load import load_scenario
from scenario.records import value_types
from sim.replay import Outcome, replay

REPOSITORY = Path(__file__).resolve().parents[2]
PRESETS = pytest.mark.parametrize("preset", ["sglang-0.5.9", "sglang-0.5.20", "sglang-0.5.23"])


@pytest.fixture(scope="module")
def trace(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The first agents of the shipped trace."""
    path = tmp_path_factory.mktemp("trace") / "agents.jsonl"
    with (REPOSITORY / "data" / "agents.jsonl").open() as rows:
        path.write_text("".join(islice(rows, 300)))
    return path


def served(
    trace: Path, preset: str, *, link: float = 1, disk: float = 1, speed: float = 0.3, **options
) -> Outcome:
    """`trace` under `preset`; by default with little L1, much L2, and time between requests."""
    given = {name.replace("__", "."): value for name, value in options.items()}
    scenario = load_scenario(
        None,
        {
            "preset": preset, "trace.path": str(trace), "trace.speed": speed, "tiers.l1": "6GiB",
            "tiers.l2": "4x", "engine.check_every_steps": 50, **given,
        },
    )  # fmt: skip
    return replay(scenario, profile=slower(link, disk))


def ttft_ms(outcome: Outcome) -> float:
    return outcome.summary["ttft_ms"]["mean"]  # type: ignore[index, return-value]


def tokens(outcome: Outcome, tier: str) -> int:
    return sum(outcome.columns[f"{tier}_tokens"])


@PRESETS
def test_the_cost_model_does_not_load_what_is_computed_sooner(trace: Path, preset: str) -> None:
    """A token takes twice as long to load as to compute; SGLang loads from ten tokens on."""
    usual = served(trace, preset, link=24)
    cost = served(trace, preset, link=24, restore__policy="cost")
    meet = served(trace, preset, link=24, restore__policy="meet")
    assert ttft_ms(cost) < 0.9 * ttft_ms(usual)
    assert ttft_ms(meet) < 0.9 * ttft_ms(cost)
    # Where loading pays it loads what SGLang loads.
    usual, cost = (
        served(trace, preset, **options) for options in ({}, {"restore__policy": "cost"})
    )
    assert tokens(cost, "host") > 0.99 * tokens(usual, "host")
    assert ttft_ms(cost) < 1.01 * ttft_ms(usual)


@PRESETS
def test_watermarks_write_back_while_nobody_waits(trace: Path, preset: str) -> None:
    options = {"link": 12, "cache__write_policy": "write_back"}
    usual = served(trace, preset, **options)
    ahead = served(
        trace, preset, **options, cache__l1_high_watermark=0.6, cache__l1_low_watermark=0.4
    )
    assert ttft_ms(ahead) < 0.95 * ttft_ms(usual)


@pytest.mark.parametrize("preset", ["sglang-0.5.9", "sglang-0.5.20"])
def test_duplicates_reclaimed_leave_an_l2_no_larger_than_l1_room(trace: Path, preset: str) -> None:
    options = {"speed": 0.5, "tiers__l1": "10GiB", "tiers__l2": "1x"}
    usual = served(trace, preset, **options)
    reclaimed = served(trace, preset, **options, cache__l2_victims="duplicates_first")
    assert tokens(reclaimed, "host") > 3 * tokens(usual, "host")
    assert reclaimed.summary["cache_hit_rate"] > usual.summary["cache_hit_rate"] + 0.02  # type: ignore[operator]
    assert ttft_ms(reclaimed) < 0.97 * ttft_ms(usual)


@pytest.mark.parametrize("preset", ["sglang-0.5.20", "sglang-0.5.23"])
def test_a_prefetch_that_was_declined_is_worth_another_try(trace: Path, preset: str) -> None:
    """Requests come faster than they are served, and a read of one fills the limit for others."""
    options = {
        "speed": 2.5, "tiers__l2": "1.5x", "tiers__l3": "40x",
        "prefetch__limit_fraction": 0.01,
    }  # fmt: skip
    usual = served(trace, preset, **options)
    again = served(trace, preset, **options, prefetch__retries=5, prefetch__retry_passes=1)
    assert usual.summary["prefetches"]["declined"]["rate_limited"] > 0  # type: ignore[index]
    assert tokens(again, "storage") > 1.2 * tokens(usual, "storage")
    assert ttft_ms(again) < 0.8 * ttft_ms(usual)


@pytest.fixture(scope="module")
def moved_on(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Sixty prompts of 4,096 tokens that nobody repeats, then ten by turns, six times."""
    path = tmp_path_factory.mktemp("trace") / "moved_on.jsonl"
    contents = [*range(60), *[100 + turn % 10 for turn in range(60)]]
    rows = [
        {
            "timestamp": 1000 * place,
            "input_length": 4096,
            "output_length": 4,
            "hash_ids": list(range(100 * content, 100 * content + 8)),
        }
        for place, content in enumerate(contents)
    ]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


@PRESETS
def test_a_bounded_backlog_keeps_a_slow_disk_from_pinning_all_of_l2(
    moved_on: Path, preset: str
) -> None:
    """A second writes 0.6 GB of cache, and the disk takes 17 MB: what nobody wants any more would
    fill L2 until it is written.
    """
    options = {
        "disk": 100, "speed": 1, "tiers__l1": "4GiB", "tiers__l2": "16GiB", "tiers__l3": "200GiB",
        "prefetch__stop": "best_effort",
    }  # fmt: skip
    usual = served(moved_on, preset, **options)
    bounded = served(moved_on, preset, **options, cache__write_backlog_fraction=0.5)
    assert tokens(bounded, "host") == 50 * 4032  # every turn but the first, and all that may hit
    assert tokens(usual, "host") < 0.25 * tokens(bounded, "host")
    assert ttft_ms(bounded) < 0.8 * ttft_ms(usual)


def test_every_option_that_the_page_names_is_tried() -> None:
    page = (REPOSITORY / "docs" / "sglang.md").read_text(encoding="utf-8")
    part = page.split("## Leaving SGLang's decisions behind\n")[1].split("\n## ")[0]
    rows = re.findall(r"^\| (`.*?) \|", part, re.M)
    named = [key for row in rows for key in re.findall(r"`([a-z_0-9.]+)", row)]
    assert len(rows) == 6
    assert set(named) <= set(value_types())
    tried = Path(__file__).read_text(encoding="utf-8")
    assert [key for key in named if key.replace(".", "__") not in tried] == []
