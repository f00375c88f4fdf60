"""From scenario, machine and model to the engine's options: sizes become pages, doubts warnings.

A size that cannot be is an InputError with the numbers; one that can be but surprises (host memory
that the machine does not have, an option that changes nothing here) is a warning that goes into the
result.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, Protocol

import msgspec

from hicache.errors import InputError
from hicache.options import EngineOptions
from scenario.geometry import ModelGeometry
from scenario.host_layout import idle_layout, used_layout
from scenario.idle import idle_options, preset_values
from scenario.presets import preset_warnings
from scenario.ranks import rank_geometry
from scenario.records import Scenario, TierOptions, field_names
from scenario.sizes import Size, bytes_text
from scenario.transfer_mode import ALIKE, chosen_mode

if TYPE_CHECKING:
    from scenario.profile import PcieProfile


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
    """On the options of `hw` that were set, for a simulation, one sentence: it has no use for them.
    No mistake, since a scenario is meant to be run both ways. And one on copies that are simulated
    in another way than a run's are made and were measured. `pcie`: the machine's link.
    """
    usual = preset_values(scenario.preset)
    apart = _other_copies(scenario, pcie)
    mode = chosen_mode(pcie, scenario.machine.transfer_mode, scenario.hw.transfers)
    simulated = mode == "backend" and scenario.mode == "timed"
    keys = [
        key
        for key in (f"hw.{name}" for name in field_names(type(scenario.hw)))
        if getattr(scenario.hw, key.removeprefix("hw.")) != usual[key]
        and not (key == "hw.transfers" and (simulated or apart))
    ]
    if not keys:
        return apart
    return [f"{', '.join(keys)}: for hicache run alone, a simulation is the same without", *apart]


def _other_copies(scenario: Scenario, pcie: PcieProfile) -> list[str]:
    mode, named = scenario.machine.transfer_mode, scenario.hw.transfers
    if scenario.mode == "untimed" or scenario.tiers.l2.is_zero or mode in ("auto", "backend"):
        return []
    if named in ("auto", ALIKE.get(mode)) or getattr(pcie.backends, named, None) is None:
        return []
    how = ", in which a CPU gathers pages that lie apart in L2" if mode == "staged" else ""
    return [
        f'machine.transfer_mode is "{mode}"{how}: copies of hw.transfers "{named}" are others; as '
        'they were measured, "auto" simulates them'
    ]


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
    if not why or layout == preset_values(scenario.preset)["machine.host_layout"]:
        return []
    return [f"machine.host_layout is {layout} but has no effect: {why}"]


def real_layout(scenario: Scenario) -> list[str]:
    """For a real run, whose L2 is page-major: a warning where the preset has another layout. Raises
    InputError where somebody set one.
    """
    layout = scenario.machine.host_layout
    if layout == "page_major":
        return []
    if layout != preset_values(scenario.preset)["machine.host_layout"]:
        raise InputError(
            f"machine.host_layout is {layout}: L2 of a real run has pages in one piece; allowed "
            'here: "page_major"'
        )
    return [
        f"machine.host_layout is {layout}, of preset {scenario.preset}: L2 of a real run is "
        "page_major, so that its copies take other times"
    ]


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
