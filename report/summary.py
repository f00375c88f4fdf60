"""The summary of a run: every total under one stated name. Definitions: docs/hit-rates.md.

Names are SGLang's where the same thing is counted, so that a prediction can be laid beside a
server's counters.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from hicache import __version__
from hicache.metrics import DirectionStats, Metrics
from hicache.node import TIER_NAMES
from report.checks import run_checks
from report.rows import Rows, spread_ms

if TYPE_CHECKING:
    from report.run import FinishedRun, Served

SCHEMA = 1
GIB = 1 << 30


def summarise(run: FinishedRun, rows: Rows) -> dict[str, object]:
    """All totals of a run that has ended, or was interrupted."""
    metrics, options, facts = run.engine.metrics, run.options, run.trace.facts
    page = options.page_size_tokens
    timed = run.scenario.mode == "timed"
    cached = sum(metrics.cached_tokens)
    summary: dict[str, object] = {
        "schema": SCHEMA,
        "version": __version__,
        "mode": run.scenario.mode,
        "preset": run.scenario.preset,
        "seed": run.scenario.seed,
        "trace": {
            "name": run.trace.name,
            "format": run.trace.format,
            "sha256": facts.sha256 or None,
            "block_tokens": run.trace.block_tokens,
            "has_ids": run.trace.layout.has_ids,
            "requests": facts.requests,
            "duration_s": facts.duration_s,
            "speed": run.trace.speed,
        },
        "load": _load(run),
        "model": run.geometry.name,
        "profile": run.profile_name,
        "page_size_tokens": page,
        "bytes_per_token": options.bytes_per_token,
        "tiers": _tiers(run),
        **_ranks(run),
        "interrupted": run.interrupted,
        "requests": metrics.requests,
        "aborted_requests": metrics.aborted,
        "prompt_tokens": metrics.prompt_tokens,
        "prompt_pages": metrics.prompt_pages,
        "output_tokens": metrics.output_tokens,
        "cached_tokens_total": _by_tier(metrics.cached_tokens),
        "cached_pages_total": _by_tier(metrics.cached_pages),
        "computed_tokens": metrics.computed_tokens,
        "cache_hit_rate": _ratio(cached, metrics.prompt_tokens),
        "hit_rates": hit_rates(run, rows),
        "sessions": _sessions(rows),
        "recorded_hits": recorded_hits(rows),
    }
    if timed:
        summary |= _times(metrics, rows)
    summary |= _traffic(run, timed)
    if len(run.instances) > 1:
        summary["instances"] = [_instance(each, page, timed) for each in run.instances]
    summary["warnings"] = [*facts.warnings, *run.notes, *run.warnings, *run_checks(run, rows)]
    summary["estimates"] = [
        {"key": each.key, "how": each.how}
        for each in (run.machine.estimates() if run.machine is not None else ())
        if _was_used(each.key, metrics)
    ] + _places(run)
    return summary


def _load(run: FinishedRun) -> dict[str, object]:
    load = run.load
    return {
        "loop": load.loop,
        "arrivals": run.scenario.load.shape,
        "rate_per_s": run.scenario.load.rate or None,
        "clients": load.clients or None,
        "parallel": load.parallel or None,
        "barrier": load.barrier,
    }


def _sessions(rows: Rows) -> dict[str, object] | None:
    """How many sessions there were, and what later turns hit; None in a trace without any."""
    turns = rows.turns()
    requests = sum(turn is not None for turn in turns)
    if not requests:
        return None
    prompts, computed = rows.column("prompt_tokens"), rows.column("computed_tokens")
    by_turn: dict[str, object] = {}
    for name, of_turn in (("first", lambda turn: turn == 0), ("later", lambda turn: turn > 0)):
        places = [place for place, turn in enumerate(turns) if turn is not None and of_turn(turn)]
        asked = sum(prompts[place] for place in places)
        hit = asked - sum(computed[place] for place in places)
        by_turn[f"{name}_turns"] = {
            "requests": len(places),
            "prompt_tokens": asked,
            "cached_tokens": hit,
            "cache_hit_rate": _ratio(hit, asked),
        }
    return {
        "sessions": sum(turn == 0 for turn in turns),
        "requests": requests,
        "most_turns": 1 + max(turn for turn in turns if turn is not None),
        **by_turn,
    }


def recorded_hits(rows: Rows) -> dict[str, object] | None:
    """What the recorded server hit beside what is predicted, over the requests whose log says it;
    None if none does.
    """
    recorded = rows.column("recorded_tokens")
    places = [place for place, tokens in enumerate(recorded) if tokens >= 0]
    if not places:
        return None
    prompts, computed = rows.column("prompt_tokens"), rows.column("computed_tokens")
    differences = [prompts[at] - computed[at] - recorded[at] for at in places]
    asked = sum(prompts[at] for at in places)
    was = sum(recorded[at] for at in places)
    return {
        "requests": len(places),
        "prompt_tokens": asked,
        "recorded_tokens": was,
        "predicted_tokens": was + sum(differences),
        "recorded_hit_rate": _ratio(was, asked),
        "predicted_hit_rate": _ratio(was + sum(differences), asked),
        "same_requests": sum(not each for each in differences),
        "predicted_more_requests": sum(each > 0 for each in differences),
        "predicted_fewer_requests": sum(each < 0 for each in differences),
        "mean_absolute_difference_tokens": sum(map(abs, differences)) / len(places),
    }


def hit_rates(run: FinishedRun, rows: Rows) -> dict[str, object]:
    """Hit rates by token and by page: of all requests, and of the second half of them.

    `ceiling` is what an infinite cache would hit of the same requests by the same rules.
    """
    page = run.options.page_size_tokens
    capped = run.options.cache.hit_cap == "last_token_computed"
    prompts, ideal = rows.column("prompt_tokens"), rows.column("ideal_pages")
    ceiling_pages = [
        min(pages, (prompt - 1) // page) if capped else pages
        for pages, prompt in zip(ideal, prompts, strict=True)
    ]
    ceiling_tokens = [
        min(pages * page, prompt) for pages, prompt in zip(ceiling_pages, prompts, strict=True)
    ]
    half = len(rows) // 2
    rates: dict[str, object] = {}
    for name, first in (("all", 0), ("last_half", half)):
        by_unit: dict[str, object] = {}
        for unit, total, ceiling in (
            ("tokens", prompts, ceiling_tokens),
            ("pages", rows.column("prompt_pages"), ceiling_pages),
        ):
            asked = sum(total[first:])
            hits = {tier: sum(rows.column(f"{tier}_{unit}")[first:]) for tier in TIER_NAMES}
            by_unit[unit] = {
                "asked": asked,
                "hit": sum(hits.values()),
                "ceiling_hit": sum(ceiling[first:]),
                **{tier: _ratio(count, asked) for tier, count in hits.items()},
                "total": _ratio(sum(hits.values()), asked),
                "ceiling": _ratio(sum(ceiling[first:]), asked),
            }
        rates[name] = by_unit
    return rates


def _tiers(run: FinishedRun) -> dict[str, object]:
    page_bytes = run.options.page_bytes
    return {
        name: {
            "capacity_pages": tier.capacity,
            "capacity_tokens": tier.capacity * run.options.page_size_tokens,
            "capacity_bytes": tier.capacity * page_bytes,
            "used_pages_at_end": tier.resident,
        }
        for name, tier in zip(TIER_NAMES, run.engine.tree.tiers, strict=True)
    }


def _ranks(run: FinishedRun) -> dict[str, object]:
    """What each of several ranks takes of memory and storage, and all of them on one node; nothing
    where there is one rank.
    """
    options = run.options
    if options.ranks == 1:
        return {}
    of_page = options.page_bytes
    sizes: dict[str, object] = {"tp": options.ranks, "writing_l3": options.writing_ranks}
    for name, pages, ranks in (
        ("device", options.device_pages, options.ranks),
        ("host", options.host_pages, options.ranks),
        ("storage", options.storage_pages, options.writing_ranks),
    ):
        sizes[f"{name}_per_rank_bytes"] = pages * of_page
        sizes[f"{name}_per_node_bytes"] = ranks * pages * of_page
    return {"ranks": sizes}


def _times(metrics: Metrics, rows: Rows) -> dict[str, object]:
    duration_s = max(metrics.last_token_ns - max(metrics.first_arrival_ns, 0), 0) / 1e9
    per_second = (1 / duration_s) if duration_s else 0.0
    return {
        "ttft_ms": spread_ms(rows.column("ttft_ns")),
        "tpot_ms": spread_ms(rows.tpot_ns()),
        "e2e_ms": spread_ms(rows.column("e2e_ns")),
        "queue_ms": spread_ms(rows.column("queue_ns")),
        "throughput": {
            "duration_s": duration_s,
            "requests_per_s": metrics.requests * per_second,
            "prompt_tokens_per_s": metrics.prompt_tokens * per_second,
            "output_tokens_per_s": metrics.output_tokens * per_second,
        },
        "gpu": {
            "prefill_steps": metrics.prefill_steps,
            "prefill_s": metrics.prefill_ns / 1e9,
            "decode_bursts": metrics.decode_bursts,
            "decode_steps": metrics.decode_steps,
            "decode_s": metrics.decode_ns / 1e9,
            "busy_fraction": min(1.0, (metrics.prefill_ns + metrics.decode_ns) / 1e9 * per_second),
        },
    }


def _traffic(run: FinishedRun, timed: bool) -> dict[str, object]:
    metrics, page = run.engine.metrics, run.options.page_size_tokens
    tree, directions = run.engine.tree, metrics.directions
    dropped = {reason: pages * page for reason, pages in metrics.dropped_pages.items()}
    if run.options.host_pages:  # without an L2 it would only count the evictions again
        dropped["write_through_unbacked_eviction"] = tree.tiers[0].lost_pages * page
    extra: dict[str, object] = {}
    if run.options.offload_pages:
        extra["offloaded_tokens"] = metrics.offloaded_pages * page
    if run.options.has_store and run.options.storage.switches and timed:
        extra["storage_switches"] = {"attached": metrics.attached, "detached": metrics.detached}
    return {
        "bytes": {name: stats.size_bytes for name, stats in directions.items()},
        "transfers": {name: _direction(stats, timed) for name, stats in directions.items()},
        "evicted_tokens_total": _by_tier([tier.evicted_pages * page for tier in tree.tiers]),
        "hicache_dropped_tokens_total": dropped,
        "load_back_tokens_total": directions["h2d"].pages * page,
        "load_back_bytes_total": directions["h2d"].size_bytes,
        "load_back_duration_seconds": directions["h2d"].recurring_ns / 1e9,
        "hicache_backup_tokens_total": directions["d2h"].pages * page,
        "hicache_backup_bytes_total": directions["d2h"].size_bytes,
        "hicache_backup_duration_seconds": directions["d2h"].recurring_ns / 1e9,
        "backuped_tokens_total": directions["h2s"].pages * page,
        "prefetched_tokens_total": directions["s2h"].pages * page,
        **_prefetches(run),
        **extra,
        "hicache_host_used_tokens": tree.tiers[1].resident * page,
        "hicache_host_total_tokens": tree.tiers[1].capacity * page,
        "restores": {
            "done": metrics.restores,
            "tokens": metrics.restored_pages * page,
            "promoted_tokens": metrics.promoted_pages * page,
            "joined": metrics.joined_restores,
            "fallbacks": metrics.restore_fallbacks,
            "policy_skips": metrics.policy_skips,
            "policy_probes": metrics.policy_probes,
            "seconds": metrics.restore_ns / 1e9,
            "under_decode_seconds": metrics.restore_under_decode_ns / 1e9,
        },
        "retractions": metrics.retractions,
        "recomputed_tokens": metrics.recomputed_tokens,
        "duplicate_tokens": metrics.duplicate_pages * page,
        "merged_writes": metrics.merged_writes,
        "max_waiting_requests": metrics.max_waiting,
        "max_running_requests": metrics.max_running,
        "belief": run.engine.status()["belief"] if timed else None,
    }


def _instance(served: Served, page: int, timed: bool) -> dict[str, object]:
    """What one of several engines did; the totals are theirs together."""
    metrics = served.metrics
    rows, cached = Rows(metrics), sum(metrics.cached_tokens)
    counts: dict[str, object] = {
        "requests": metrics.requests,
        "prompt_tokens": metrics.prompt_tokens,
        "cached_tokens_total": _by_tier(metrics.cached_tokens),
        "computed_tokens": metrics.computed_tokens,
        "cache_hit_rate": _ratio(cached, metrics.prompt_tokens),
        "evicted_tokens_total": _by_tier([t.evicted_pages * page for t in served.tree.tiers]),
        "backuped_tokens_total": metrics.directions["h2s"].pages * page,
        "prefetched_tokens_total": metrics.directions["s2h"].pages * page,
        "storage_prefetch_hit_tokens_total": metrics.prefetch_hit_tokens,
        "prefetch_fulfilled_tokens": metrics.prefetch_fulfilled_tokens,
        "storage_prefetch_unfulfilled_tokens_total": dict(metrics.prefetch_unfulfilled_tokens),
    }
    if timed:
        counts["ttft_ms"] = spread_ms(rows.column("ttft_ns"))
        counts["queue_ms"] = spread_ms(rows.column("queue_ns"))
    return counts


def _prefetches(run: FinishedRun) -> dict[str, object]:
    """What a store said it holds and what became of it; nothing where L3 is not asked by key."""
    if not run.options.has_store:
        return {}
    metrics = run.engine.metrics
    return {
        "storage_prefetch_hit_tokens_total": metrics.prefetch_hit_tokens,
        "prefetch_fulfilled_tokens": metrics.prefetch_fulfilled_tokens,
        "storage_prefetch_unfulfilled_tokens_total": dict(metrics.prefetch_unfulfilled_tokens),
        "prefetches": {
            "asked": metrics.prefetches,
            "declined": dict(metrics.prefetches_declined),
            "declined_tokens": dict(metrics.prefetch_declined_tokens),
            "failed_lookups": metrics.lookups_failed,
        },
    }


def _direction(stats: DirectionStats, timed: bool) -> Mapping[str, object]:
    counts: dict[str, object] = {
        "operations": stats.operations,
        "failed": stats.failed,
        "pages": stats.pages,
        "bytes": stats.size_bytes,
        "extents": stats.extents,
    }
    if timed:
        done = max(stats.operations, 1)
        counts |= {
            "service_s": stats.service_ns / 1e9,
            "gib_per_s": stats.size_bytes / GIB / (stats.service_ns / 1e9)
            if stats.service_ns
            else None,
            "mean_queue_ms": stats.queue_ns / done / 1e6,
            "mean_service_ms": stats.service_ns / done / 1e6,
            "mean_end_to_end_ms": stats.recurring_ns / done / 1e6,
        }
    return counts


def _places(run: FinishedRun) -> list[dict[str, str]]:
    """The estimate that a simulation makes which counts pages: where they lie is not known, and
    every copy of pages that are not consecutive takes longer, but by a kernel.
    """
    counted = run.machine is not None and run.options.page_ids == "counted"
    directions = run.engine.metrics.directions
    tiers: list[str] = []
    if run.scenario.machine.transfer_mode != "kernel" and (
        directions["d2h"].operations or directions["h2d"].operations
    ):
        tiers.append("L2")
    if directions["h2s"].operations or directions["s2h"].operations:
        tiers.append("L3")
    if not counted or not tiers:
        return []
    how = (
        f"pages of {' and '.join(tiers)} are taken as consecutive, which makes copies as fast as "
        "they can be; --set engine.page_ids=named simulates where they lie, and takes longer"
    )
    return [{"key": "engine.page_ids", "how": how}]


def _was_used(key: str, metrics: Metrics) -> bool:
    """Whether a value of the profile had a part in this run."""
    done = {name: stats.operations for name, stats in metrics.directions.items()}
    part = key.rsplit(".", maxsplit=1)[-1]
    if key.startswith("disk."):
        return bool(done["h2s"] or done["s2h"])
    if key.startswith("host.engine.") and part.removesuffix("_ns") in done:
        return bool(done[part.removesuffix("_ns")])  # type: ignore[index]
    if key.startswith("host.copy_"):
        return any(each.extents > each.operations for each in metrics.directions.values())
    return True


def _by_tier(counts: list[int]) -> dict[str, int]:
    return dict(zip(TIER_NAMES, counts, strict=True))


def _ratio(part: int, whole: int) -> float:
    return part / whole if whole else 0.0
