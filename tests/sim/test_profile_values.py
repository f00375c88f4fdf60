"""Every value of a profile matters: half a bandwidth, twice a latency moves the matching total.

The keys are enumerated from the profile itself, so that a new field without an entry here, or
without effect, fails.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import msgspec
import pytest
from lanes_contract import MIB, play
from simpy import Environment

from hicache.operations import Chunk, Copy, Decode, Operation, Prefill
from scenario.geometry import load_geometry
from scenario.profile import (
    Curve,
    Profile,
    Quantity,
    SampledModel,
    Surface,
    load_profile,
    profile_names,
    sourced,
)
from sim.lanes import SimMachine

Plan = list[tuple[int, Operation]]
PROFILES = {name: load_profile(name) for name in profile_names()}
FAR_NS = 10**12  # between operations that must not meet


def total_ns(profile: Profile, plan: Plan, mode: Any = "dma", **machine: Any) -> int:
    """The sum of what the operations of a plan took."""
    env = Environment(0)
    lanes = SimMachine(env, profile, transfer_mode=mode, **machine).lanes()
    return sum(each.done.finished_ns - each.done.submitted_ns for each in play(env, lanes, plan))


def apart(operations: list[Operation]) -> Plan:
    return [(number * FAR_NS, operation) for number, operation in enumerate(operations)]


def copies(direction: Any, sizes: Iterator[int] | list[int], extents: int = 1) -> Plan:
    return apart([Copy(direction, 1, size, extents) for size in sizes])


def sizes(curve: Curve | None) -> list[int]:
    return [] if curve is None else [x for x, _ in curve.points if x]


def steps(profile: Profile) -> int:
    gpu = profile.gpu
    operations: list[Operation] = []
    for tokens in sizes(gpu.dense) + sizes(gpu.prefill):
        operations.append(Prefill((Chunk(0, tokens, 0),), tokens))
    for new, past, _ in gpu.attention_prefill.points if gpu.attention_prefill else ():
        operations.append(Prefill((Chunk(0, new, past),), new))
    for batch, context, _ in gpu.attention_decode.points if gpu.attention_decode else ():
        operations.append(Decode(batch, batch * context, 3))
    return total_ns(profile, apart(operations))


def duplex(profile: Profile) -> int:
    both: Plan = [(0, Copy(direction, 1, 1024 * MIB, 1)) for direction in ("h2d", "d2h")]
    return total_ns(profile, both)


def disk(profile: Profile, direction: Any, surface: Surface) -> int:
    """For each sample: as many operations of its block size at once."""
    plan: Plan = []
    for number, (block, concurrent, _) in enumerate(surface.points):
        plan += [(number * FAR_NS, Copy(direction, 1, block, 1))] * concurrent
    return total_ns(profile, plan, disk_workers=16)


def four_reads(profile: Profile) -> int:
    return total_ns(profile, [(0, Copy("s2h", 1, 64 * MIB, 1))] * 4)


def read_and_write(profile: Profile) -> int:
    both: Plan = [(0, Copy(direction, 1, 64 * MIB, 1)) for direction in ("s2h", "h2s")]
    return total_ns(profile, both)


def scattered(profile: Profile) -> int:
    """CPU copies with every sampled number of threads, and with the profile's."""
    plan = copies("h2d", [64 * MIB], extents=8)
    threads = [None, *(x for x, _ in profile.host.copy_bytes_per_s.points)]
    return sum(total_ns(profile, plan, "staged", copy_threads=each) for each in threads)


def other_model(profile: Profile) -> int:
    """Steps of a model that was not sampled, with a part above every floor: each ratio matters."""
    env = Environment(0)
    geometry = load_geometry("Qwen3-30B-A3B")
    lanes = SimMachine(env, profile, geometry).lanes()
    plan = apart([Prefill((Chunk(0, 3000, 9000),), 3000), Decode(4, 40_000, 5)])
    return sum(each.done.finished_ns - each.done.started_ns for each in play(env, lanes, plan))


# Which total a value must move.
TOTALS: dict[str, Callable[[Profile], int]] = {
    "gpu.model": other_model,
    "gpu.dense": steps,
    "gpu.prefill": steps,
    "gpu.attention_prefill": steps,
    "gpu.attention_decode": steps,
    "pcie.h2d": lambda p: total_ns(p, copies("h2d", sizes(p.pcie.h2d))),
    "pcie.d2h": lambda p: total_ns(p, copies("d2h", sizes(p.pcie.d2h))),
    "pcie.duplex_bytes_per_s": duplex,
    "pcie.gather_scatter": lambda p: total_ns(
        p, copies("d2h", sizes(p.pcie.gather_scatter)), "staged"
    ),
    "pcie.zero_copy_h2d": lambda p: total_ns(
        p, copies("h2d", sizes(p.pcie.zero_copy_h2d)), "kernel"
    ),
    "pcie.zero_copy_d2h": lambda p: total_ns(
        p, copies("d2h", sizes(p.pcie.zero_copy_d2h)), "kernel"
    ),
    "host.engine.d2h_ns": lambda p: total_ns(p, copies("d2h", [MIB])),
    "host.engine.h2d_ns": lambda p: total_ns(p, copies("h2d", [MIB])),
    "host.engine.h2s_ns": lambda p: total_ns(p, copies("h2s", [MIB])),
    "host.engine.s2h_ns": lambda p: total_ns(p, copies("s2h", [MIB])),
    "host.engine.step_ns": steps,
    "host.restore_overhead": lambda p: total_ns(p, copies("h2d", sizes(p.host.restore_overhead))),
    "host.copy_threads": scattered,
    "host.copy_bytes_per_s": scattered,
    "disk.read_bytes_per_s": lambda p: disk(p, "s2h", p.disk.read_bytes_per_s),
    "disk.write_bytes_per_s": lambda p: disk(p, "h2s", p.disk.write_bytes_per_s),
    "disk.read_latency_ns": lambda p: total_ns(p, copies("s2h", [MIB])),
    "disk.write_latency_ns": lambda p: total_ns(p, copies("h2s", [MIB])),
    "disk.workers": four_reads,
    "disk.mixed_permille": read_and_write,
}
# Room, and where it is: no time depends on it.
NO_TIME = ("memory.device_bytes", "memory.host_bytes", "memory.storage_bytes")
# More of it is faster: halved, not doubled.
HALVED = (
    "pcie.duplex_bytes_per_s", "host.copy_threads", "host.copy_bytes_per_s",
    "disk.read_bytes_per_s", "disk.write_bytes_per_s", "disk.workers", "disk.mixed_permille",
)  # fmt: skip


def with_value(part: msgspec.Struct, key: str, value: object) -> Any:
    """The struct with the value at a dotted key replaced."""
    name, _, rest = key.partition(".")
    if rest:
        value = with_value(getattr(part, name), rest, value)
    return msgspec.structs.replace(part, **{name: value})


def mutants(profile: Profile) -> Iterator[tuple[str, Profile]]:
    """Each number of a profile on its own, halved or doubled. A 0 adds nothing: left out."""
    for key, value in sourced(profile):
        factor = 0.5 if key in HALVED else 2
        if isinstance(value, Quantity) and value.value:
            changed = msgspec.structs.replace(value, value=int(value.value * factor))
            yield key, with_value(profile, key, changed)
        elif isinstance(value, Curve | Surface):
            for number, point in enumerate(value.points):
                if point[-1]:
                    points = list(value.points)
                    points[number] = (*point[:-1], int(point[-1] * factor))
                    changed = msgspec.structs.replace(value, points=tuple(points))
                    yield f"{key}[{number}]", with_value(profile, key, changed)
        elif isinstance(value, SampledModel):
            for name in value.__struct_fields__:
                number = getattr(value, name)
                if isinstance(number, int):
                    # Never more active parameters than there are.
                    number = number // 2 if name == "active_parameter_count" else number * 2
                    changed = msgspec.structs.replace(value, **{name: number})
                    yield f"{key}.{name}", with_value(profile, key, changed)


@pytest.mark.parametrize("name", PROFILES)
def test_every_value_moves_the_matching_total(name):
    profile = PROFILES[name]
    before: dict[str, int] = {}
    tried = 0
    for key, mutant in mutants(profile):
        field = "gpu.model" if key.startswith("gpu.model.") else key.partition("[")[0]
        if field in NO_TIME:
            continue
        total = TOTALS[field]
        if field not in before:
            before[field] = total(profile)
        after = total(mutant)
        if field in ("gpu.model", "disk.workers"):
            if key.endswith((".layers", ".kv_bytes_per_token", ".attention_flops_per_pair")):
                assert (after != before[field]) == (profile.gpu.prefill is None), key
            else:
                assert after != before[field], key
        else:
            assert after > before[field], key
        tried += 1
    assert tried > (100 if name == "nvidia-h200" else 20)


@pytest.mark.parametrize("name", PROFILES)
def test_a_value_moves_no_total_of_another_part(name):
    profile = PROFILES[name]
    apart_from = {
        "gpu": "pcie.h2d",
        "pcie": "disk.read_bytes_per_s",
        "disk": "gpu.dense",
        "host": None,
    }
    before = {key: TOTALS[key](profile) for key in apart_from.values() if key}
    for key, mutant in mutants(profile):
        other = apart_from.get(key.partition(".")[0])
        if other:
            assert TOTALS[other](mutant) == before[other], key


def test_no_entry_is_stale():
    keys = {key for profile in PROFILES.values() for key, _ in sourced(profile)}
    assert set(TOTALS) <= keys
    assert set(HALVED) <= set(TOTALS)
