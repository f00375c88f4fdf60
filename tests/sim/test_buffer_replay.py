"""Host memory as a buffer in replays: nothing is hit there, and its size bounds what moves."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from hicache.errors import InputError
from scenario.load import load_scenario
from sim.replay import prepare, replay


@pytest.fixture(scope="module")
def trace(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Twelve prompts in turn, five times, some at once; L1 holds three."""
    path = tmp_path_factory.mktemp("trace") / "turns.jsonl"
    rows = [
        {
            "timestamp": 700 * (place // 2), "input_length": 4160 + 64 * (place % 5),
            "output_length": 20 + place, "hash_ids": [100 * (place % 12) + b for b in range(9)],
        }
        for place in range(60)
    ]  # fmt: skip
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def options_with(trace: Path, **changed: Any) -> dict[str, object]:
    options = {
        "preset": "sglang-0.5.20", "trace.path": str(trace), "tiers.l1": "230pages",
        "tiers.l2": "1.2x", "tiers.l3": "5000pages", "tiers.l2_mode": "buffer_only",
        "prefetch.stop": "wait_complete", "engine.check_every_steps": 1,
    }  # fmt: skip
    return options | {key.replace("__", "."): value for key, value in changed.items()}


def summary_with(trace: Path, **changed: Any) -> dict[str, Any]:
    summary: dict[str, Any] = dict(
        replay(load_scenario(None, options_with(trace, **changed))).summary
    )
    cached = summary["cached_tokens_total"]
    assert sum(cached.values()) + summary["computed_tokens"] == summary["prompt_tokens"]
    lost = sum(summary["storage_prefetch_unfulfilled_tokens_total"].values())
    hit = summary["storage_prefetch_hit_tokens_total"]
    assert summary["prefetch_fulfilled_tokens"] + lost == hit
    assert summary["tiers"]["host"]["used_pages_at_end"] == cached["host"] == 0
    assert summary["load_back_tokens_total"] == cached["storage"]
    return summary


@pytest.mark.parametrize("preset", ["sglang-0.5.9", "sglang-0.5.20", "sglang-0.5.23"])
@pytest.mark.parametrize("mode", ["timed", "untimed"])
@pytest.mark.parametrize("page_ids", ["counted", "named"])
def test_hits_come_from_l3_alone(trace: Path, preset: str, mode: str, page_ids: str) -> None:
    changed = {"preset": preset, "mode": mode, "engine__page_ids": page_ids}
    summary = summary_with(trace, prefetch__limit="host", **changed)
    assert summary["cached_tokens_total"]["storage"] > 40 * 4032
    # Each prompt and answer was written about once: what the store has is not written again.
    assert summary["hicache_backup_tokens_total"] < 20 * 4500
    assert "device_capacity" in summary["storage_prefetch_unfulfilled_tokens_total"]
    assert summary["hicache_dropped_tokens_total"]["write_through_unbacked_eviction"] == 0


def test_a_small_buffer_moves_less(trace: Path) -> None:
    large, small = (
        summary_with(trace, tiers__l2=size, cache__write_unit="path")
        for size in ("300pages", "60pages")
    )
    assert small["cached_tokens_total"]["storage"] < large["cached_tokens_total"]["storage"]
    assert small["storage_prefetch_unfulfilled_tokens_total"]["host_capacity"] > 0


def test_the_same_again_is_the_same(trace: Path) -> None:
    scenario = load_scenario(None, options_with(trace))
    assert json.dumps(replay(scenario).summary) == json.dumps(replay(scenario).summary)


def test_servers_share_what_each_has_written(trace: Path) -> None:
    summary = summary_with(trace, instances=2)
    assert summary["cached_tokens_total"]["storage"] > 40 * 4032
    per_server = [
        each["storage_prefetch_unfulfilled_tokens_total"] for each in summary["instances"]
    ]
    total = summary["storage_prefetch_unfulfilled_tokens_total"]
    assert total == {why: sum(each[why] for each in per_server) for why in total}


def test_with_decode_offload_and_a_detach(trace: Path) -> None:
    changed = {"offload__decode": True, "cache__write_policy": "none", "storage__detach_s": 14.0}
    summary = summary_with(trace, **changed)
    assert summary["offloaded_tokens"] > 0
    assert summary["hicache_backup_tokens_total"] >= summary["offloaded_tokens"]


def test_aborts_leave_the_buffer_empty(trace: Path) -> None:
    run = prepare(load_scenario(None, options_with(trace, prefetch__read_batch_pages=8)))
    engine = run.instances[0]
    for number in range(60):
        timer = run.env.timeout(700_000_000 * (number // 2) + number * 3_333_333)
        assert timer.callbacks is not None
        timer.callbacks.append(lambda _, number=number: engine.abort(number))  # type: ignore[arg-type]
    run.execute()
    engine.check_integrity()
    assert engine.metrics.aborted > 20
    host = engine.tree.tiers[1]
    assert host.allocator.free == host.capacity
    status = engine.status()
    assert status["pending_writes"] == status["write_backlog_pages"] == 0


@pytest.mark.parametrize(
    ("changed", "named"),
    [
        ({"tiers__l3": "0"}, "tiers.l3 is 0"),
        (
            {"storage__index": "tree", "prefetch__mode": "restore"},
            "storage.index is tree",
        ),
        ({"cache__write_policy": "write_back"}, "cache.write_policy is write_back"),
    ],
)
def test_what_cannot_be_is_one_line(trace: Path, changed: dict[str, Any], named: str) -> None:
    with pytest.raises(InputError, match=f"tiers.l2_mode is buffer_only and {named}") as caught:
        prepare(load_scenario(None, options_with(trace, **changed)))
    assert "\n" not in str(caught.value)


def test_what_only_a_cache_needs_has_no_effect(trace: Path) -> None:
    warnings = " ".join(summary_with(trace, cache__l2_victims="any")["warnings"])
    assert "cache.l2_victims is any but has no effect: tiers.l2_mode is buffer_only" in warnings
