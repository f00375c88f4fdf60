"""From scenario, machine and model to the engine's options: sizes become pages, doubts warnings.

A size that cannot be is an InputError with the numbers; one that can be but surprises (host memory
that the machine does not have, an option that changes nothing here) is a warning that goes into the
result.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, Protocol

import msgspec

from hicache.errors import InputError
from hicache.options import EngineOptions, RestoreOptions
from scenario.geometry import ModelGeometry
from scenario.host_layout import idle_layout, used_layout
from scenario.idle_cache import idle_tree_keys
from scenario.idle_storage import idle_offload_keys, idle_storage_keys
from scenario.presets import preset_options, preset_warnings
from scenario.ranks import rank_geometry
from scenario.records import TABLES, Scenario, TierOptions, field_names
from scenario.sizes import Size, bytes_text
from scenario.transfer_mode import chosen_mode

if TYPE_CHECKING:
    from scenario.profile import PcieProfile

# What is believed before anything was measured.
_PRIORS = tuple(
    f"restore.{name}" for name in field_names(RestoreOptions) if name.startswith("prior_")
)


class Quantity(Protocol):
    """A number of a profile."""

    @property
    def value(self) -> int: ...


class ProfileMemory(Protocol):
    """What a profile says of a machine's memory, in bytes; None where it does not say."""

    @property
    def device_bytes(self) -> Quantity | None: ...
    @property
    def host_bytes(self) -> Quantity | None: ...
    @property
    def storage_bytes(self) -> Quantity | None: ...


class MachineMemory(Protocol):
    """The part of a machine profile that sizes depend on."""

    @property
    def name(self) -> str: ...
    @property
    def memory(self) -> ProfileMemory: ...


class Resolved(NamedTuple):
    """What the engine runs with, and what the user should know about it: one sentence each."""

    options: EngineOptions
    warnings: tuple[str, ...]


def resolve(scenario: Scenario, profile: MachineMemory | None, geometry: ModelGeometry) -> Resolved:
    """The engine's options for `scenario` with `geometry`'s model on `profile`'s machine.

    `geometry` is the model as loaded; the scenario's `model.kv_dtype` is applied here, and sizes
    are those of one rank (`scenario.ranks`). `profile` None: sizes are not compared with a machine,
    and L1 must be given. L1 "auto" is `memory_fraction` of the GPU's memory less the weights, in
    whole pages. Raises InputError when the model leaves no room for L1 or cannot be split among
    ranks, when a size is less than a page, and for an L3 without an L2.
    """
    model = geometry.with_kv_dtype(scenario.model.kv_dtype)
    geometry = rank_geometry(model, scenario.ranks)
    tiers = scenario.tiers
    page_tokens = tiers.page_size_tokens
    page_bytes = page_tokens * geometry.kv_bytes_per_token
    if tiers.l1.unit == "auto":
        l1 = _room_for_l1(scenario, profile, geometry, page_bytes)
    else:
        l1 = tiers.l1.pages("tiers.l1", page_tokens, page_bytes)
    l2 = tiers.l2.pages("tiers.l2", page_tokens, page_bytes, l1)
    if tiers.l2_rounding == "up_one" and not tiers.l2.is_zero and tiers.l2.unit != "pages":
        l2 += 1
    options = EngineOptions(
        page_size_tokens=page_tokens,
        bytes_per_token=geometry.kv_bytes_per_token,
        device_pages=l1,
        host_pages=l2,
        storage_pages=tiers.l3.pages("tiers.l3", page_tokens, page_bytes, l1),
        cache=scenario.cache,
        restore=scenario.restore,
        storage=scenario.storage,
        prefetch=scenario.prefetch,
        offload=scenario.offload,
        host_mode=tiers.l2_mode,
        scheduler=scenario.scheduler,
        page_ids=scenario.engine.page_ids,
        check_every_steps=scenario.engine.check_every_steps,
        ranks=scenario.ranks.tp,
        writing_ranks=scenario.ranks.writing_ranks(model),
    )
    warnings = [*preset_warnings(scenario.preset), *idle_options(scenario)]
    if model.kind == "mla" and scenario.ranks.tp_lcm_size:
        warnings.append(
            f"ranks.tp_lcm_size is {scenario.ranks.tp_lcm_size} but has no effect: all ranks of "
            f"{model.name} hold the same pages (MLA), so that every server finds them"
        )
    warnings += _idle_l2(scenario, options)
    warnings += _meets_nothing(scenario, options)
    if profile is not None:
        warnings += _beyond_machine(scenario, profile, geometry, options)
    return Resolved(options, tuple(warnings))


def pinned_sizes(scenario: Scenario, options: EngineOptions) -> Scenario:
    """The scenario with every tier in pages, as in `options`: no longer a matter of the machine."""
    pages = {"l1": options.device_pages, "l2": options.host_pages, "l3": options.storage_pages}
    sizes = {name: Size(count, "pages") for name, count in pages.items()}
    tiers = TierOptions(
        options.page_size_tokens, sizes["l1"], sizes["l2"], sizes["l3"],
        l2_mode=options.host_mode,
    )  # fmt: skip
    return msgspec.structs.replace(scenario, tiers=tiers)


def idle_options(scenario: Scenario) -> list[str]:
    """One warning for each option that was set, going by its preset, but cannot change anything."""
    idle = _idle_keys(scenario)
    usual = _preset_values(scenario.preset)
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


def _idle_l2(scenario: Scenario, options: EngineOptions) -> list[str]:
    """A warning where L2 is full of copies of L1 that it may not give up."""
    cache, l1, l2 = options.cache, options.device_pages, options.host_pages
    writes_through = cache.write_policy in ("write_through", "write_through_selective")
    if options.buffers or cache.l2_victims != "not_in_l1" or not 0 < l2 <= l1 or not writes_through:
        return []
    return [
        f"tiers.l2 is {scenario.tiers.l2}: {l2:,} pages, no more than the {l1:,} of L1, and "
        "cache.l2_victims is not_in_l1: once L2 is full of copies of what L1 holds it takes "
        "nothing new, so that it adds next to nothing; make it larger than L1"
    ]


def _meets_nothing(scenario: Scenario, options: EngineOptions) -> list[str]:
    """A warning where a restore has nothing to meet: nothing is computed before it has ended."""
    restore = options.restore
    if scenario.mode == "untimed" or not options.host_pages or restore.policy != "meet":
        return []
    if restore.layerwise or restore.queue_aware:
        return []
    return [
        "restore.policy is meet, and restore.layerwise and restore.queue_aware are false: nothing "
        "is computed while pages are loaded, so that a tier's hit is restored whole or not at all; "
        "set restore.layerwise"
    ]


def left_to_hardware(scenario: Scenario, pcie: PcieProfile) -> list[str]:
    """One sentence on the options of `hw` that were set, for a simulation: it has no use for them.
    No mistake, since a scenario is meant to be run both ways. `pcie`: the machine's link.
    """
    usual = _preset_values(scenario.preset)
    mode = chosen_mode(pcie, scenario.machine.transfer_mode, scenario.hw.transfers)
    simulated = mode == "backend" and scenario.mode == "timed"
    keys = [
        key
        for key in (f"hw.{name}" for name in field_names(type(scenario.hw)))
        if getattr(scenario.hw, key.removeprefix("hw.")) != usual[key]
        and not (key == "hw.transfers" and simulated)
    ]
    if not keys:
        return []
    return [f"{', '.join(keys)}: for hicache run alone, a simulation is the same without"]


def layout_warnings(scenario: Scenario, pcie: PcieProfile) -> list[str]:
    """What a simulation makes of `machine.host_layout`, where that is not what it says. Raises
    InputError for a layout that the way of moving cannot use. `pcie`: the machine's link.
    """
    layout, tiers = scenario.machine.host_layout, scenario.tiers
    if scenario.mode == "untimed" or tiers.l2.is_zero:
        return []
    mode = chosen_mode(pcie, scenario.machine.transfer_mode, scenario.hw.transfers)
    taken = used_layout(layout, mode)
    if taken != layout:
        return [
            f'machine.host_layout is {layout} and machine.transfer_mode "{mode}": taken as '
            f"{taken}, as in SGLang"
        ]
    l3 = "none" if tiers.l3.is_zero else "store" if scenario.machine.store else "disk"
    why = idle_layout(layout, mode, l3)
    if not why or layout == _preset_values(scenario.preset)["machine.host_layout"]:
        return []
    return [f"machine.host_layout is {layout} but has no effect: {why}"]


def real_layout(scenario: Scenario) -> list[str]:
    """For a real run, whose L2 is page-major: a warning where the preset has another layout. Raises
    InputError where somebody set one.
    """
    layout = scenario.machine.host_layout
    if layout == "page_major":
        return []
    if layout != _preset_values(scenario.preset)["machine.host_layout"]:
        raise InputError(
            f"machine.host_layout is {layout}: L2 of a real run has pages in one piece; allowed "
            'here: "page_major"'
        )
    return [
        f"machine.host_layout is {layout}, of preset {scenario.preset}: L2 of a real run is "
        "page_major, so that its copies take other times"
    ]


def _shown(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _idle_keys(scenario: Scenario) -> dict[str, str]:
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


def _preset_values(preset: str) -> dict[str, object]:
    usual: dict[str, object] = {}
    for table, record in TABLES.items():
        defaults = record()
        usual |= {f"{table}.{name}": getattr(defaults, name) for name in field_names(record)}
    return usual | preset_options(preset)


def _room_for_l1(
    scenario: Scenario, profile: MachineMemory | None, geometry: ModelGeometry, page_bytes: int
) -> int:
    if profile is None or profile.memory.device_bytes is None:
        who = (
            f"profile {profile.name} does not say how much memory its GPU has"
            if profile
            else "no profile"
        )
        raise InputError(f"tiers.l1 is auto: {who}; give L1 a size, as in --l1 40GiB")
    device_bytes, fraction = profile.memory.device_bytes.value, scenario.machine.memory_fraction
    room_bytes = _usable_bytes(device_bytes, fraction) - geometry.weight_bytes
    if room_bytes < page_bytes:
        raise InputError(
            f"tiers.l1 is auto: {geometry.name} does not fit on {profile.name}: "
            f"{fraction:g} of {bytes_text(device_bytes)} GPU memory is "
            f"{bytes_text(_usable_bytes(device_bytes, fraction))}, its weights are "
            f"{bytes_text(geometry.weight_bytes)} and one page is {bytes_text(page_bytes)}; "
            "--set ranks.tp=4 splits it among 4 GPUs. For hits alone give L1 a size, as in "
            "--untimed --l1 40GiB"
        )
    return room_bytes // page_bytes


def _usable_bytes(device_bytes: int, fraction: float) -> int:
    return int(device_bytes * fraction)


def _beyond_machine(
    scenario: Scenario, profile: MachineMemory, geometry: ModelGeometry, options: EngineOptions
) -> list[str]:
    warnings: list[str] = []
    memory, page_bytes = profile.memory, options.page_bytes
    if memory.device_bytes is not None:
        usable = _usable_bytes(memory.device_bytes.value, scenario.machine.memory_fraction)
        room_bytes = max(0, usable - geometry.weight_bytes)
        l1_bytes = options.device_pages * page_bytes
        if not room_bytes and scenario.mode == "timed":
            warnings.append(
                f"model.name is {geometry.name}: its weights of "
                f"{bytes_text(geometry.weight_bytes)} do not fit on a GPU of {profile.name}, so "
                "the times are those of no machine; --set ranks.tp splits it among several"
            )
        elif l1_bytes > room_bytes:
            warnings.append(
                f"tiers.l1 is {scenario.tiers.l1}: {bytes_text(l1_bytes)}, but the GPU of "
                f"{profile.name} has {bytes_text(room_bytes)} left after the weights of "
                f"{geometry.name}"
            )
    disk_bytes = None if scenario.machine.store else memory.storage_bytes
    l2, l3, parts = options.host_pages, options.storage_pages, options.writing_ranks
    for key, size, pages, ranks, has, what in (
        ("tiers.l2", scenario.tiers.l2, l2, options.ranks, memory.host_bytes, "host memory"),
        ("tiers.l3", scenario.tiers.l3, l3, parts, disk_bytes, "storage"),
    ):
        a_rank = pages * page_bytes
        if has is not None and ranks * a_rank > has.value:
            node = f" a rank, {bytes_text(ranks * a_rank)} for {ranks} ranks" if ranks > 1 else ""
            warnings.append(
                f"{key} is {size}: {bytes_text(a_rank)}{node}, but {profile.name} has "
                f"{bytes_text(has.value)} of {what}"
            )
    return warnings
