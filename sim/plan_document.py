"""A plan as a document of plain numbers: what `hicache plan` writes as plan.json and prints.

It computes nothing that the search has not found, but for the break-even bandwidth of L3, which it
asks for at the chosen point. Every point's scenario can be replayed as it stands.
"""

from __future__ import annotations

from typing import Any

from scenario.sizes import bytes_text
from sim.plan import Plan, Point, options_of
from sim.plan_break_even import break_even, reads_beyond

SCHEMA = "hicache plan 1"
# Of a point's figures.
_FIGURES = (
    "ttft_ms.p50", "ttft_ms.p99", "ttft_ms.mean", "tpot_ms.p50", "cache_hit_rate",
    "hit_rates.all.tokens.device", "hit_rates.all.tokens.host", "hit_rates.all.tokens.storage",
    "hit_rates.all.tokens.ceiling", "throughput.requests_per_s", "gpu.busy_fraction", "bytes.s2h",
)  # fmt: skip


def document_of(plan: Plan, priced: str) -> dict[str, Any]:
    """The plan; `priced` is the unit of cost. It must have a point that was simulated."""
    wishes, limits = plan.wishes, plan.limits
    front, knee = plan.front(), plan.knee()
    chosen, reason = plan.chosen()
    points = sorted(plan.figures, key=lambda each: (plan.cost(each), plan.ttft_ms(each), each))
    shown = chosen or front[-1]
    return {
        "schema": SCHEMA,
        "trace": {
            "path": plan.trace.path,
            "format": plan.trace.format,
            "sha256": plan.figures[shown]["trace.sha256"],
            "requests": plan.figures[shown]["requests"],
        },
        "scenario": wishes.scenario,
        "options": {key: value for key, value in wishes.options.items() if key != "trace.path"},
        "model": plan.geometry.name,
        "machine": plan.profile.name,
        "interrupted": plan.interrupted,
        "goals": {
            "ttft_p99_ms": wishes.ttft_p99_ms,
            "budget": limits.budget,
            "cost_unit": priced,
            "price_l2_per_gib": limits.price_l2,
            "price_l3_per_gib": limits.price_l3,
        },
        "ranks": limits.ranks,
        "simulations": {
            "ran": len(plan.figures) + len(plan.failed),
            "of": plan.would_run,
            "skipped": plan.skipped,
        },
        "sizes": {
            "l2_bytes": plan.ladder.l2,
            "l3_bytes": plan.ladder.l3,
            "page_size_tokens": list(plan.sizings),
            "policies": list(wishes.policies),
            "refused": plan.ladder.refused,
        },
        "chosen": None if chosen is None else points.index(chosen),
        "chosen_because": reason,
        "knee": None if knee is None else points.index(knee),
        "front": [points.index(each) for each in front],
        "memory": _memory(plan, shown),
        "break_even": _break_even(plan, shown),
        "warnings": [each for each in plan.figures[shown]["warnings"].split("\n") if each],
        "points": [_point(plan, each) for each in points],
        "failed": [
            {**options_of(each), "error": error} for each, error in sorted(plan.failed.items())
        ],
    }


def _point(plan: Plan, point: Point) -> dict[str, Any]:
    figures, sizing = plan.figures[point], plan.sizings[point.page_size_tokens]
    return {
        **options_of(point),
        "l2_bytes": point.pair.l2_bytes,
        "l3_bytes": point.pair.l3_bytes,
        "cost": plan.cost(point),
        **{key: figures[key] for key in _FIGURES},
        "curve_hit_rate": sizing.all_tokens(point.pair) / max(1, sizing.asked_tokens),
    }


def _memory(plan: Plan, point: Point) -> dict[str, Any]:
    """What the point takes of the machine, of one rank and of all ranks of a node."""
    limits, pair = plan.limits, point.pair
    l1 = plan.figures[point]["tiers.device.capacity_bytes"]
    return {
        "l1_per_rank_bytes": l1,
        "host_per_rank_bytes": pair.l2_bytes,
        "host_per_node_bytes": limits.ranks * pair.l2_bytes,
        "storage_per_rank_bytes": pair.l3_bytes,
        "storage_per_node_bytes": limits.storing * pair.l3_bytes,
        "machine_host_bytes": limits.host_bytes,
        "host_fraction": limits.host_fraction,
        "machine_storage_bytes": limits.storage_bytes,
    }


def _break_even(plan: Plan, point: Point) -> dict[str, Any] | None:
    """Of what the point's L1 and L2 do not hold and its L3 does; without one, an L3 of any size."""
    sizing = plan.sizings[point.page_size_tokens]
    uses, taker = plan.reuses[point.page_size_tokens]
    fast = max(sizing.l1_pages, point.pair.l2_bytes // sizing.page_bytes)
    deep = point.pair.l3_bytes // sizing.page_bytes if point.pair.l3_bytes else None
    reads = reads_beyond(taker.reuse.hit_runs, uses.prompt_tokens, fast, deep)
    found = break_even(reads, plan.scenario_of(point), plan.profile, plan.geometry)
    if found is None:
        return None
    size = bytes_text(point.pair.l3_bytes) if point.pair.l3_bytes else "any size"
    return {"l3": size, **found}
