"""Sizes into pages on a machine, and what the user is warned of."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
from by_hand import H200_BY_HAND

from hicache.errors import InputError
from scenario.geometry import load_geometry
from scenario.idle import idle_keys, idle_options
from scenario.load import load_scenario
from scenario.profile import load_profile
from scenario.records import TABLES, field_names, value_types
from scenario.resolve import Resolved, left_to_hardware, pinned_sizes, resolve
from scenario.transfer_mode import chosen_mode

GIB = 2**30


@dataclass(frozen=True)
class Number:
    value: int


@dataclass(frozen=True)
class Memory:
    device_bytes: Number | None = Number(141 * GIB)
    host_bytes: Number | None = Number(512 * GIB)
    storage_bytes: Number | None = Number(2048 * GIB)


@dataclass(frozen=True)
class Machine:
    name: str = "box"
    memory: Memory = Memory()


def run(
    overrides: dict[str, object] | None = None,
    machine: Machine | None = Machine(),
    model: str = "qwen3-8b",
) -> Resolved:
    return resolve(load_scenario(None, overrides), machine, load_geometry(model))


def test_l1_is_what_the_gpu_has_left_after_the_weights() -> None:
    options, warnings = run()
    room = int(141 * GIB * 0.9) - 16_381_470_720
    page = 64 * 147_456
    assert options.device_pages == room // page
    assert options.host_pages == 2 * options.device_pages
    assert options.storage_pages == 0
    assert options.page_bytes == page
    assert options.bytes_per_token == 147_456
    assert warnings == ()


def test_a_real_profile_fits() -> None:
    profile = load_profile("nvidia-h200")
    options, warnings = resolve(load_scenario(None), profile, load_geometry("qwen3-8b"))
    room = int(profile.memory.device_bytes.value * 0.9) - 16_381_470_720
    assert options.device_pages == room // options.page_bytes
    assert all(each.startswith("tiers.l2 is 2x: ") for each in warnings)


def test_a_smaller_part_of_memory_and_a_smaller_kv_type() -> None:
    whole = run().options
    part = run({"machine.memory_fraction": 0.5}).options
    assert part.device_pages < whole.device_pages / 2 + 1
    fp8 = run({"model.kv_dtype": "fp8"}).options
    assert fp8.bytes_per_token == 147_456 // 2
    assert fp8.device_pages in (2 * whole.device_pages, 2 * whole.device_pages + 1)


def test_sizes_given_in_every_way() -> None:
    options = run(
        {"tiers.l1": "1000pages", "tiers.l2": "640_000tokens", "tiers.l3": "9GiB"}
    ).options
    assert options.device_pages == 1000
    assert options.host_pages == 10_000
    assert options.storage_pages == 9 * GIB // (64 * 147_456)


def test_the_engine_gets_the_other_options_as_they_are() -> None:
    scenario = load_scenario(
        None, {"restore.policy": "never", "engine.page_ids": "named", "engine.check_every_steps": 9}
    )
    options = resolve(scenario, Machine(), load_geometry("qwen3-8b")).options
    assert options.cache is scenario.cache
    assert options.restore is scenario.restore
    assert options.scheduler is scenario.scheduler
    assert (options.page_ids, options.check_every_steps) == ("named", 9)


def test_a_model_that_does_not_fit_is_an_error_with_the_numbers() -> None:
    with pytest.raises(InputError) as caught:
        run(model="llama-3.1-70b")
    message = str(caught.value)
    for part in ("Llama-3.1-70B does not fit on box", "0.9 of 141 GiB", "131.4 GiB", "--l1 40GiB"):
        assert part in message
    options, warnings = run({"tiers.l1": "40GiB"}, model="llama-3.1-70b")
    assert options.device_pages == 40 * GIB // (64 * 327_680)
    assert warnings == (
        "model.name is Llama-3.1-70B: its weights of 131.4 GiB do not fit on a GPU of box, so "
        "the times are those of no machine; --set ranks.tp splits it among several",
    )


def test_without_a_machine_l1_must_be_given() -> None:
    with pytest.raises(InputError, match=r"tiers\.l1 is auto: no profile; give L1 a size"):
        run(machine=None)
    with pytest.raises(InputError, match="profile box does not say how much memory its GPU has"):
        run(machine=Machine(memory=Memory(device_bytes=None)))
    assert run({"tiers.l1": "5pages"}, machine=None).options.host_pages == 10


def test_more_than_the_machine_has_is_a_warning_with_the_numbers() -> None:
    _, warnings = run({"tiers.l2": "600GiB", "tiers.l3": "3TiB"})
    assert warnings == (
        "tiers.l2 is 600GiB: 600 GiB, but box has 512 GiB of host memory",
        "tiers.l3 is 3TiB: 3 TiB, but box has 2 TiB of storage",
    )
    unknown = Machine(memory=Memory(host_bytes=None, storage_bytes=None))
    assert run({"tiers.l2": "600GiB", "tiers.l3": "3TiB"}, unknown).warnings == ()


@pytest.mark.parametrize("key", ["tiers.l1", "tiers.l2", "tiers.l3"])
def test_less_than_a_page_is_an_error(key: str) -> None:
    with pytest.raises(InputError, match=f"{key} is 1MB: less than one page"):
        run({key: "1MB"})


def test_pinned_sizes_give_the_same_run_without_the_machine() -> None:
    scenario = load_scenario(None, {"tiers.l3": "10x"})
    geometry = load_geometry("qwen3-8b")
    options = resolve(scenario, Machine(), geometry).options
    pinned = pinned_sizes(scenario, options)
    assert str(pinned.tiers.l1) == f"{options.device_pages}pages"
    assert resolve(pinned, None, geometry).options == options
    off = load_scenario(None, {"tiers.l2": "0"})
    options = resolve(off, Machine(), geometry).options
    assert resolve(pinned_sizes(off, options), None, geometry).options == options


@pytest.mark.parametrize(
    ("overrides", "warning"),
    [
        (
            {"restore.threshold_tokens": 99},
            "restore.threshold_tokens is 99 but has no effect: restore.policy is cost",
        ),
        (
            {"restore.policy": "always", "restore.probe_every": 4},
            "restore.probe_every is 4 but has no effect: restore.policy is always, so nothing is "
            "estimated",
        ),
        (
            {"restore.policy": "never", "restore.queue_aware": True},
            "restore.queue_aware is true but has no effect: restore.policy is never, so nothing is "
            "estimated",
        ),
        (
            {"cache.write_policy": "none"},
            "tiers.l2 is 2x but has no effect: cache.write_policy is none, so nothing is ever "
            "written below L1",
        ),
        (
            {"tiers.l2": 0, "restore.overlap": False},
            "restore.overlap is false but has no effect: tiers.l2 is 0, so there is no tier below "
            "L1",
        ),
        (
            {"cache.write_backlog_fraction": 0.1},
            "cache.write_backlog_fraction is 0.1 but has no effect: tiers.l3 is 0",
        ),
        (
            {"mode": "untimed", "restore.probe_every": 4},
            "restore.probe_every is 4 but has no effect: mode is untimed, so no operation takes "
            "time and requests run one at a time",
        ),
        (
            {"mode": "untimed", "restore.policy": "always"},
            "restore.policy is always but has no effect: mode is untimed, so no operation takes "
            "time and requests run one at a time: every restore pays, as under cost and always",
        ),
        (
            {"mode": "untimed", "trace.speed": 0.5},
            "trace.speed is 0.5 but has no effect: mode is untimed, so no operation takes time and "
            "requests run one at a time",
        ),
    ],
)
def test_an_option_without_effect_is_a_warning(overrides: dict[str, object], warning: str) -> None:
    assert idle_options(load_scenario(None, overrides)) == [warning]
    assert run(overrides).warnings == (warning,)


def test_a_restore_that_has_nothing_to_meet_is_a_warning() -> None:
    meet = {"restore.policy": "meet"}
    (warning,) = run(meet).warnings
    assert warning.startswith("restore.policy is meet, and restore.layerwise and restore.queue_aw")
    for more in ({"restore.layerwise": True}, {"restore.queue_aware": True}):
        assert run(meet | more).warnings == ()


@pytest.mark.parametrize(
    "overrides",
    [
        {},
        {"preset": "block-lru", "mode": "untimed", "tiers.l2": 0},
        {"restore.policy": "threshold", "restore.threshold_tokens": 99},
        {"restore.probe_every": 3},
        {"restore.policy": "meet", "restore.probe_every": 3, "restore.queue_aware": True},
        {"mode": "untimed", "restore.policy": "threshold", "restore.threshold_tokens": 99},
        {"mode": "untimed", "restore.policy": "never"},
        {"tiers.l3": "10x", "cache.write_backlog_fraction": 0.1},
    ],
)
def test_options_with_effect_are_not_warned_of(overrides: dict[str, object]) -> None:
    assert idle_options(load_scenario(None, overrides)) == []


def test_what_only_a_real_machine_uses_is_one_note() -> None:
    scenario = load_scenario(None, {"hw.checksum": "crc32", "hw.transfers": "direct"})
    assert idle_options(scenario) == []
    said = "hw.transfers, hw.checksum: for hicache run alone, a simulation is the same without"
    link = load_profile(H200_BY_HAND).pcie
    assert left_to_hardware(scenario, link) == [said]
    assert left_to_hardware(load_scenario(None), link) == []
    modelled = {"machine.transfer_mode": "backend", "hw.transfers": "direct"}
    assert left_to_hardware(load_scenario(None, modelled), link) == []
    measured = load_profile("nvidia-h200").pcie
    assert left_to_hardware(scenario, measured) == [said.removeprefix("hw.transfers, ")]


@pytest.mark.parametrize(
    ("mode", "transfers", "warned"),
    [
        ("staged", "staged", True),
        ("staged", "direct", True),
        ("kernel", "direct", True),
        ("dma", "direct", False),
        ("kernel", "zero_copy", False),
        ("auto", "staged", False),
        ("backend", "staged", False),
        ("staged", "auto", False),  # nobody asked for a back-end
    ],
)
def test_copies_of_a_back_end_that_are_simulated_in_another_way_are_a_warning(
    mode: str, transfers: str, warned: bool
) -> None:
    given: dict[str, object] = {"machine.transfer_mode": mode, "hw.transfers": transfers}
    measured, by_hand = load_profile("nvidia-h200").pcie, load_profile(H200_BY_HAND).pcie
    said = left_to_hardware(load_scenario(None, given), measured)
    how = ", in which a CPU gathers pages that lie apart in L2" if mode == "staged" else ""
    warning = (
        f'machine.transfer_mode is "{mode}"{how}: copies of hw.transfers "{transfers}" are others; '
        'as they were measured, "auto" simulates them'
    )
    assert (warning in said) == warned
    assert len(said) == (1 if transfers != "auto" and mode not in ("auto", "backend") else 0)
    # Where it was not measured, or nothing moves or takes time, there is nothing to tell apart.
    usual = "hw.transfers: for hicache run alone, a simulation is the same without"
    if warned:
        assert left_to_hardware(load_scenario(None, given), by_hand) == [usual]
        for more in ({"mode": "untimed"}, {"tiers.l2": 0}):
            assert left_to_hardware(load_scenario(None, given | more), measured) == [usual]


@pytest.mark.parametrize("transfers", ["auto", "staged", "zero_copy", "direct"])
def test_auto_takes_a_measured_back_end_and_is_staged_without(transfers: str) -> None:
    measured, by_hand = load_profile("nvidia-h200").pcie, load_profile(H200_BY_HAND).pcie
    assert chosen_mode(measured, "auto", transfers) == "backend"
    assert chosen_mode(by_hand, "auto", transfers) == "staged"
    for mode in ("backend", "staged", "kernel", "dma"):
        assert chosen_mode(by_hand, mode, transfers) == mode


def test_the_rules_about_idle_options_name_keys_that_exist() -> None:
    for overrides in (
        {"mode": "untimed", "restore.policy": "never", "cache.write_policy": "none"},
        {"restore.policy": "always", "tiers.l2": 0},
    ):
        assert set(idle_keys(load_scenario(None, overrides))) <= set(value_types())


def test_every_table_is_a_frozen_record_with_defaults() -> None:
    for record in TABLES.values():
        made = record()
        with pytest.raises(AttributeError):
            setattr(made, field_names(record)[0], None)


@pytest.mark.parametrize(
    ("overrides", "said"),
    [
        ({"seed": 7}, "seed is 7 but has no effect"),
        ({"cache.eviction": "priority"}, "cache.eviction is priority but has no effect"),
        (
            {"machine.memory_fraction": 0.5, "tiers.l1": "40GiB"},
            "machine.memory_fraction is 0.5 but has no effect",
        ),
        (
            {"machine.transfer_mode": "dma", "tiers.l2": "0"},
            "machine.transfer_mode is dma but has no effect",
        ),
    ],
)
def test_what_cannot_change_this_replay_is_said(overrides: dict[str, object], said: str) -> None:
    warnings = idle_options(load_scenario(None, overrides))
    assert any(each.startswith(said) for each in warnings), warnings


@pytest.mark.parametrize(
    "overrides",
    [
        {"machine.memory_fraction": 0.5},
        {"machine.transfer_mode": "dma"},
        {"cache.eviction": "lfu"},
    ],
)
def test_what_changes_this_replay_is_not_called_idle(overrides: dict[str, object]) -> None:
    assert not idle_options(load_scenario(None, overrides))


@pytest.mark.parametrize(
    ("l2", "down", "up_one"),
    [("6400tokens", 100, 101), ("6401tokens", 100, 101), ("1.5x", 150, 151),
     ("100pages", 100, 100), ("0", 0, 0)],
)  # fmt: skip
def test_l2_may_have_one_page_more_as_in_sglang(l2: str, down: int, up_one: int) -> None:
    options: dict[str, object] = {"tiers.l1": "100pages", "tiers.l2": l2}
    assert run(options).options.host_pages == down
    assert run(options | {"tiers.l2_rounding": "up_one"}).options.host_pages == up_one


def test_an_l2_that_can_take_nothing_new_is_said() -> None:
    options: dict[str, object] = {"tiers.l1": "100pages", "cache.l2_victims": "not_in_l1"}
    small = run(options | {"tiers.l2": "100pages"})
    assert [each for each in small.warnings if each.startswith("tiers.l2 is 100pages: 100 pages")]
    assert not run(options | {"tiers.l2": "101pages"}).warnings
    assert not run({"tiers.l1": "100pages", "tiers.l2": "100pages"}).warnings
