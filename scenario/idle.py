"""Which options of a scenario were set but cannot change anything in it, and why.

A tier that is off, a mode in which nothing takes time, a policy that estimates nothing: each makes
some keys idle. Those of the tree, of L3 and of offloads have modules of their own.
"""

from __future__ import annotations

from hicache.options import RestoreOptions
from scenario.idle_cache import idle_tree_keys
from scenario.idle_storage import idle_offload_keys, idle_storage_keys
from scenario.presets import preset_options
from scenario.records import TABLES, Scenario, field_names
from scenario.sizes import Size

# What is believed before anything was measured.
_PRIORS = tuple(
    f"restore.{name}" for name in field_names(RestoreOptions) if name.startswith("prior_")
)


def idle_options(scenario: Scenario) -> list[str]:
    """One warning for each option that was set, going by its preset, but cannot change anything."""
    idle = idle_keys(scenario)
    usual = preset_values(scenario.preset)
    warnings: list[str] = []
    drawn = scenario.load.shape in ("poisson", "uniform") and scenario.mode == "timed"
    drawn = drawn or scenario.trace.prefix_share > 0
    if scenario.seed and not drawn:
        warnings.append(
            f"seed is {scenario.seed} but has no effect: without a load.rate or a "
            "trace.prefix_share nothing in a replay is random"
        )
    if scenario.instances == 1 and scenario.router != "round_robin":
        warnings.append(f"router is {scenario.router} but has no effect: instances is 1")
    for key, reason in idle.items():
        table, _, name = key.rpartition(".")
        value = getattr(getattr(scenario, table), name)
        # A tier that is not switched off counts as set, also where it has its usual size.
        is_set = not value.is_zero if isinstance(value, Size) else value != usual[key]
        if is_set:
            warnings.append(f"{key} is {_shown(value)} but has no effect: {reason}")
    return warnings


def preset_values(preset: str) -> dict[str, object]:
    """Every key's value under `preset`, where nothing else is said."""
    usual: dict[str, object] = {}
    for table, record in TABLES.items():
        defaults = record()
        usual |= {f"{table}.{name}": getattr(defaults, name) for name in field_names(record)}
    return usual | preset_options(preset)


def _shown(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def idle_keys(scenario: Scenario) -> dict[str, str]:
    """The keys that change nothing in this scenario, and why."""
    idle: dict[str, str] = {}
    restore = scenario.restore
    if scenario.mode == "untimed":
        untimed = "mode is untimed, so no operation takes time and requests run one at a time"
        idle |= dict.fromkeys(
            (
                "trace.speed",
                "machine.transfer_mode",
                "machine.host_layout",
                "machine.store",
                "cache.writes_in_flight",
                "cache.merge_writes_tokens",
                "cache.write_backlog_fraction",
                "restore.overlap",
                "restore.layerwise",
                "restore.start",
                "restore.merge_loads",
                "restore.queue_aware",
                "restore.probe_every",
                *_PRIORS,
                *(f"scheduler.{name}" for name in field_names(type(scenario.scheduler))),
                "engine.check_every_steps",
                *(f"load.{name}" for name in field_names(type(scenario.load))),
            ),
            untimed,
        )
        if restore.policy in ("cost", "meet", "always"):
            idle["restore.policy"] = f"{untimed}: every restore pays, as under cost and always"
    elif scenario.load.shape != "trace" and scenario.load.loop != "closed":
        idle["trace.speed"] = (
            f"load.arrivals is {scenario.load.shape}, so the trace's times are not used"
        )
    if not scenario.trace.prefix_share:
        for name in ("prefix_groups", "prefix_zipf"):
            idle[f"trace.{name}"] = "trace.prefix_share is 0"
    idle |= _idle_lcm(scenario)
    if scenario.tiers.l1.unit != "auto":
        idle["machine.memory_fraction"] = f"tiers.l1 is {scenario.tiers.l1}, not auto"
    if scenario.tiers.l2.is_zero or scenario.tiers.l2.unit == "pages":
        idle["tiers.l2_rounding"] = f"tiers.l2 is {scenario.tiers.l2}"
    if scenario.cache.eviction != "gdsf":
        idle["cache.gdsf_doubling_tokens"] = f"cache.eviction is {scenario.cache.eviction}"
    if restore.policy != "threshold":
        idle["restore.threshold_tokens"] = f"restore.policy is {restore.policy}"
    if restore.policy not in ("cost", "meet"):
        reason = f"restore.policy is {restore.policy}, so nothing is estimated"
        for key in ("restore.queue_aware", "restore.probe_every", *_PRIORS):
            idle[key] = reason
    cache = scenario.cache
    writes = [f"cache.{name}" for name in field_names(type(cache)) if "write" in name]
    counts = cache.least_write_hits > 1 or cache.eviction in ("lfu", "slru")
    if scenario.mode == "untimed" and not counts:
        idle["cache.hit_counting"] = "mode is untimed, and nothing depends on hits"
    if cache.write_policy == "write_back":
        reason = "cache.write_policy is write_back: what L1 evicts is written, all of it at once"
        for name in ("write_after_hits", "write_unit", "write_at"):
            idle[f"cache.{name}"] = reason
        idle["cache.hit_counting"] = "cache.write_policy is write_back, so no hits are counted"
        if scenario.tiers.l3.is_zero:
            idle |= dict.fromkeys(("cache.writes_in_flight", "cache.merge_writes_tokens"), reason)
    offload_idle = idle_offload_keys(scenario)
    idle |= offload_idle
    offloads = scenario.offload.decode and not offload_idle
    if scenario.cache.write_policy == "none" and not offloads:
        reason = "cache.write_policy is none"
        idle |= dict.fromkeys(writes, reason)
        del idle["cache.write_policy"]
        for tier in ("tiers.l2", "tiers.l3"):
            idle[tier] = f"{reason}, so nothing is ever written below L1"
    if scenario.tiers.l3.is_zero:
        for key in (
            "cache.write_backlog_fraction",
            "restore.prior_storage_gib_per_s",
            "machine.store",
        ):
            idle.setdefault(key, "tiers.l3 is 0")
    idle |= idle_storage_keys(scenario)
    idle |= idle_tree_keys(scenario)
    if scenario.tiers.l2.is_zero:
        for key in ("machine.transfer_mode", "machine.host_layout"):
            idle.setdefault(key, "tiers.l2 is 0, so nothing is moved")
        of_l2 = [f"cache.{name}" for name in field_names(type(scenario.cache)) if name[:2] == "l2"]
        for key in (*writes, *of_l2, *(f"restore.{name}" for name in field_names(type(restore)))):
            idle.setdefault(key, "tiers.l2 is 0, so there is no tier below L1")
    return idle


def _idle_lcm(scenario: Scenario) -> dict[str, str]:
    ranks = scenario.ranks
    if scenario.tiers.l3.is_zero:
        reason = "tiers.l3 is 0"
    elif scenario.storage.index == "tree":
        reason = "storage.index is tree, so nobody else reads what is in L3"
    elif scenario.mode == "untimed":
        reason = "mode is untimed, and how L3 is cut changes times alone"
    elif ranks.tp_lcm_size == ranks.tp:
        reason = "it is ranks.tp, and a rank's part is one object anyhow"
    else:
        return {}
    return {"ranks.tp_lcm_size": reason}
