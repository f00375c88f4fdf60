"""Which keys of `[storage]`, `[prefetch]` and `[offload]` change nothing in a scenario, and why."""

from __future__ import annotations

from hicache.options import PrefetchOptions
from scenario.records import Scenario, field_names

_SWITCHES = ("storage.attach_s", "storage.detach_s")
_KEYS = tuple(f"prefetch.{name}" for name in field_names(PrefetchOptions))
# What there is to decide only where L2 keeps something.
_OF_A_CACHE = (
    "cache.l2_eviction_amount", "cache.l2_victims", "cache.l2_high_watermark",
    "cache.l2_low_watermark", "prefetch.publish",
)  # fmt: skip
# What only time decides.
_TIMED = tuple(
    f"prefetch.{name}"
    for name in (
        "stop", "timeout_base_s", "timeout_per_ki_token_s", "timeout_max_s", "query_batch_pages",
        "read_batch_pages", "workers", "publish", "retries", "retry_passes",
    )
)  # fmt: skip


def idle_storage_keys(scenario: Scenario) -> dict[str, str]:
    """Each such key with the reason, for `scenario.idle`."""
    prefetch = scenario.prefetch
    idle: dict[str, str] = {}
    if scenario.tiers.l3.is_zero:
        keys = ("storage.index", "storage.admit_after_hits", *_SWITCHES, *_KEYS)
        return dict.fromkeys(keys, "tiers.l3 is 0")
    if scenario.cache.write_policy == "none" and not scenario.offload.decode:
        idle["storage.admit_after_hits"] = "cache.write_policy is none"
    if prefetch.mode == "restore":
        idle |= dict.fromkeys(_KEYS, "prefetch.mode is restore, so nothing is prefetched")
        del idle["prefetch.mode"]
        idle |= dict.fromkeys(_SWITCHES, "storage.index is tree: L3 is the engine's own")
        return idle
    idle["restore.prior_storage_gib_per_s"] = "prefetch.mode is queued, so no restore reads L3"
    if scenario.tiers.l2_mode == "buffer_only":
        idle |= dict.fromkeys(_OF_A_CACHE, "tiers.l2_mode is buffer_only, so L2 keeps nothing")
        idle["cache.write_backlog_fraction"] = (
            "tiers.l2_mode is buffer_only: the buffer bounds what is under way"
        )
    if prefetch.allocate == "before_lookup":
        idle["prefetch.shortfall"] = "prefetch.allocate is before_lookup, so there is room"
    if not prefetch.retries:
        idle["prefetch.retry_passes"] = "prefetch.retries is 0"
    if prefetch.stop != "timeout":
        reason = f"prefetch.stop is {prefetch.stop}"
        idle |= dict.fromkeys((key for key in _KEYS if "timeout" in key), reason)
    if scenario.mode == "untimed":
        idle |= dict.fromkeys(_SWITCHES, "mode is untimed, so no time passes")
        reason = "mode is untimed, so every prefetch is over at once"
        idle |= dict.fromkeys(_TIMED, reason)
        if prefetch.limit_fraction:
            idle |= dict.fromkeys(("prefetch.limit", "prefetch.limit_fraction"), reason)
    return idle


def idle_offload_keys(scenario: Scenario) -> dict[str, str]:
    """The keys of `[offload]` that change nothing, each with the reason."""
    cache = scenario.cache
    keys = ("offload.decode", "offload.stride_tokens")
    if scenario.tiers.l3.is_zero:
        return dict.fromkeys(keys, "tiers.l3 is 0")
    if cache.outputs == "dropped":
        return dict.fromkeys(keys, "cache.outputs is dropped")
    writes_all = cache.write_policy in ("write_through", "write_through_selective")
    if scenario.mode == "untimed" and writes_all and cache.least_write_hits <= 1:
        return dict.fromkeys(
            keys, "mode is untimed, and cache.write_policy writes all of an answer at its end"
        )
    return {} if scenario.offload.decode else {keys[1]: "offload.decode is false"}
