"""Which keys of `[cache]` that follow SGLang's tree change nothing in a scenario, and why."""

from __future__ import annotations

from scenario.records import Scenario


def idle_tree_keys(scenario: Scenario) -> dict[str, str]:
    """Each such key with the reason, for `scenario.idle`."""
    cache, restore = scenario.cache, scenario.restore
    idle: dict[str, str] = {}
    by_page = cache.eviction_granularity == "page" and cache.write_unit == "path"
    if by_page and cache.touch == "matched":
        idle["cache.node_boundaries"] = (
            "cache.eviction_granularity is page, cache.write_unit path and cache.touch matched, so "
            "nothing goes by node"
        )
    if cache.eviction != "priority":
        idle["cache.prompt_priority_step"] = f"cache.eviction is {cache.eviction}"
    elif cache.outputs == "dropped":
        idle["cache.prompt_priority_step"] = "cache.outputs is dropped, so there are prompts alone"
    if cache.eviction == "priority" and (
        not cache.prompt_priority_step or cache.outputs == "dropped"
    ):
        idle["cache.eviction"] = "the trace gives no priorities, so it is lru"
    for key, value in (
        ("restore.policy", restore.policy == "never"),
        ("cache.write_policy", cache.write_policy == "none"),
        ("tiers.l2", scenario.tiers.l2.is_zero),
    ):
        if value:
            idle["cache.load_eviction_amount"] = f"{key} rules loads from L2 out"
    return idle
