"""Every key of a scenario, changed: the result differs, or a warning names the key."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path

import pytest

from scenario.load import load_scenario
from scenario.records import value_types
from sim.replay import replay

REPOSITORY = Path(__file__).resolve().parents[2]
# Another value of each key, and for some what must be set with it.
OTHERS: dict[str, object] = {
    "preset": "block-lru",
    "seed": 7,
    "instances": 2,
    "router": "cache_aware",
    "trace.speed": 0.5,
    "trace.prefix_groups": 3,
    "trace.prefix_zipf": 2.0,
    "load.arrivals": "at_once",
    "load.rate": 3.0,
    "load.loop": "closed",
    "load.clients": 2,
    "load.parallel": 2,
    "load.barrier": True,
    "model.name": "Qwen3-4B",
    "model.kv_dtype": "fp8",
    "machine.profile": "mini-group-b",
    "machine.transfer_mode": "kernel",
    "machine.host_layout": "layer_first",
    "machine.memory_fraction": 0.5,
    "machine.store": "mooncake",
    "ranks.tp": 2,
    "ranks.tp_lcm_size": 8,
    "tiers.page_size_tokens": 128,
    "tiers.l1": "700pages",
    "tiers.l2": "900pages",
    "tiers.l3": "0",
    "tiers.l2_rounding": "up_one",
    "tiers.l2_mode": "buffer_only",
    "cache.hit_cap": "none",
    "cache.outputs": "dropped",
    "cache.eviction": "mru",
    "cache.eviction_granularity": "page",
    "cache.l1_eviction_amount": "request",
    "cache.l2_eviction_amount": "request",
    "cache.load_eviction_amount": "request",
    "cache.l2_victims": "duplicates_first",
    "cache.touch": "walked",
    "cache.node_boundaries": "insert",
    "cache.prompt_priority_step": 1,
    "cache.l1_high_watermark": 0.9,
    "cache.l1_low_watermark": 0.8,
    "cache.l2_high_watermark": 0.9,
    "cache.l2_low_watermark": 0.8,
    "cache.gdsf_doubling_tokens": 1000,
    "cache.hit_counting": "insert",
    "cache.write_policy": "write_back",
    "cache.write_after_hits": 2,
    "cache.write_unit": "node",
    "cache.write_at": "prefill",
    "cache.writes_in_flight": 1,
    "cache.merge_writes_tokens": 0,
    "cache.write_backlog_fraction": 0.01,
    "restore.policy": "never",
    "restore.threshold_tokens": 2000,
    "restore.overlap": False,
    "restore.layerwise": True,
    "restore.start": "prefill",
    "restore.merge_loads": True,
    "restore.queue_aware": True,
    "restore.probe_every": 1,
    "restore.prior_recompute_us_per_token": 50_000.0,
    "restore.prior_host_gib_per_s": 0.01,
    "restore.prior_storage_gib_per_s": 300.0,
    "storage.index": "store",
    "storage.admit_after_hits": 3,
    "storage.attach_s": 5.0,
    "storage.detach_s": 5.0,
    "prefetch.mode": "queued",
    "prefetch.threshold_tokens": 2000,
    "prefetch.stop": "best_effort",
    "prefetch.timeout_base_s": 0.001,
    "prefetch.timeout_per_ki_token_s": 0.0,
    "prefetch.timeout_max_s": 0.001,
    "prefetch.query_batch_pages": 4,
    "prefetch.read_batch_pages": 4,
    "prefetch.workers": 4,
    "prefetch.limit": "host_less_device",
    "prefetch.limit_fraction": 0.0,
    "prefetch.allocate": "before_lookup",
    "prefetch.shortfall": "revoke",
    "prefetch.publish": "turn",
    "prefetch.retries": 3,
    "prefetch.retry_passes": 1,
    "offload.decode": True,
    "offload.stride_tokens": 256,
    "scheduler.max_running_requests": 1,
    "scheduler.chunk_tokens": 512,
    "scheduler.mixed_chunk": True,
    "scheduler.output_reserve_fraction": 1.0,
    "engine.page_ids": "named",
    "hw.compute": "synthetic",
    "hw.weights": "elsewhere",
    "hw.transfers": "direct",
    "hw.l3_backend": "direct",
    "hw.l3_path": "elsewhere",
    "hw.checksum": "crc32",
    "hw.l3_workers": 3,
    "hw.store": "file",
    "hw.store_path": "elsewhere",
    "hw.store_model": "Qwen/Qwen3-8B",
    "hw.store_layout": "layer_first",
    "hw.store_class": "module:Class",
    "hw.store_config": "{}",
    "hw.store_timeout_s": 5.0,
    "hw.host_limit_gib": 5.0,
    "hw.watchdog_s": 5.0,
    "hw.waiting": "poll",
}
# What is set with a key and without it, where else it rarely matters.
BESIDE: dict[str, dict[str, object]] = {
    "cache.touch": {"cache.eviction": "fifo"},
    "cache.node_boundaries": {"tiers.l2": "0", "tiers.l3": "0"},
    "cache.prompt_priority_step": {"cache.eviction": "priority"},
    "cache.load_eviction_amount": {"restore.policy": "always", "tiers.l2": "2000pages"},
    "cache.gdsf_doubling_tokens": {"cache.eviction": "gdsf"},
    "offload.decode": {"cache.write_policy": "none"},
    "offload.stride_tokens": {"cache.write_policy": "none", "offload.decode": True},
    "tiers.l2_mode": {"storage.index": "store", "prefetch.mode": "queued"},
    "storage.attach_s": {"storage.index": "store", "prefetch.mode": "queued"},
    "storage.detach_s": {"storage.index": "store", "prefetch.mode": "queued"},
    "restore.merge_loads": {
        "restore.start": "prefill",
        "restore.policy": "always",
        "load.arrivals": "at_once",
        "scheduler.chunk_tokens": 65536,
    },
}
# What this test leaves out, and why.
LEFT_OUT = {
    "mode": "the two modes are the two runs of this test",
    "trace.path": "another trace is another result",
    "trace.block_tokens": "refused where the trace's blocks have another length",
    "trace.tokenizer": "needs a tokenizer's file",
    "trace.prefix_share": "refused, or said, where a trace has prefixes of its own",
    "trace.on_error": "this trace has no malformed row",
    "cache.pages": "partial is refused unless outputs are dropped",
    "engine.check_every_steps": "it checks, and changes no result",
}


@pytest.fixture(scope="module")
def trace(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A dozen prompts of one length, twice, so that priors count; then dense traffic."""
    first = [
        {"input_length": 4096, "output_length": 4, "hash_ids": list(range(ids, ids + 8))}
        for ids in range(100_000, 100_120, 10)
    ]
    lines = (REPOSITORY / "data" / "agents.jsonl").read_text().splitlines()[:70]
    rows = [*first, *first, *map(json.loads, lines)]
    path = tmp_path_factory.mktemp("trace") / "dense.jsonl"
    with path.open("w") as made:
        for place, row in enumerate(rows):
            # Many end at once, and their writes have to wait; then answers need room.
            row["output_length"] = min(row["output_length"], 60) if place < 60 else 2000
            made.write(
                json.dumps({**row, "timestamp": min(place * 300, 15_000 + place * 50)}) + "\n"
            )
    return path


@cache
def result(trace: Path, mode: str, key: str = "", beside: str = "") -> tuple[str, tuple[str, ...]]:
    """All of a result but its warnings and estimates, as text; and the warnings."""
    options: dict[str, object] = {
        "mode": mode, "trace.path": str(trace), "tiers.l1": "500pages", "tiers.l2": "700pages",
        "tiers.l3": "5000pages", "load.arrivals": "trace", "load.loop": "open",
    }  # fmt: skip
    options |= BESIDE.get(beside, {})
    if key:
        options[key] = OTHERS[key]
    if key == "load.rate":
        options["load.arrivals"] = "poisson"
    if key in ("storage.index", "prefetch.mode"):  # one alone is refused
        options |= {"storage.index": "store", "prefetch.mode": "queued"}
    # One mark of a pair alone is refused, and needs no look where the other one has it.
    if key.endswith("_low_watermark"):
        options[key.replace("_low_", "_high_")] = 0.9
    if key.endswith("_high_watermark"):
        options[key.replace("_high_", "_low_")] = 0.8
    if key in ("load.clients", "load.parallel", "load.barrier"):
        options["load.loop"] = "closed"
    outcome = replay(load_scenario(None, options))
    summary = dict(outcome.summary)
    warnings = summary.pop("warnings")
    del summary["estimates"], summary["seed"], summary["preset"]
    columns = {name: list(column) for name, column in outcome.columns.items()}
    return json.dumps([summary, columns], default=str), tuple(warnings)


@pytest.mark.parametrize("mode", ["timed", "untimed"])
@pytest.mark.parametrize("key", OTHERS)
def test_it_changes_the_result_or_is_named(trace: Path, mode: str, key: str) -> None:
    beside = key if key in BESIDE else ""
    usual, before = result(trace, mode, beside=beside)
    changed, warnings = result(trace, mode, key, beside)
    new = [each for each in warnings if each not in before]
    assert changed != usual or any(key in each for each in new)


def test_no_key_is_forgotten() -> None:
    assert {*OTHERS, *LEFT_OUT} == set(value_types())
