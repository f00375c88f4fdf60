"""Every value of a profile matters: half a bandwidth, twice a latency moves the matching total.

The keys are enumerated from the profile itself, so that a new field without an entry here, or
without effect, fails.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import pairwise
from typing import Any

import msgspec
import pytest
from by_hand import H200_BY_HAND
from full_profile import with_everything
from lanes_contract import MIB, Watched, play
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
# With all that a profile may hold.
PROFILES["everything"] = with_everything(load_profile(H200_BY_HAND))
MOST_POINTS = 3  # of one curve that are changed: those between are of the same kind
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


def bursts(profile: Profile) -> int:
    """Bursts of every batch up to what was sampled."""
    curve = profile.gpu.dense_decode
    batches = [x for x, _ in curve.points] if curve else []
    return total_ns(profile, apart([Decode(batch, batch * 2048, 3) for batch in batches]))


def cut_burst(profile: Profile) -> int:
    """A burst that is asked to end in its middle."""
    env = Environment(0)
    lanes = SimMachine(env, profile).lanes()
    burst = Watched(env, lanes.submit(Decode(1, 1024, 50)))
    env.run(until=60_000_000)
    lanes.end_burst(burst.pending)
    env.run()
    return burst.done.finished_ns


def backend_copies(name: str, direction: Any, extents: int) -> Callable[[Profile], int]:
    """Operations of one measured back-end, at the sizes of its samples and in pages of its own."""

    def total(profile: Profile) -> int:
        assert profile.pcie.backends is not None
        backend = getattr(profile.pcie.backends, name)
        way: Any = direction.removesuffix("_scattered")
        plan = apart(
            [
                Copy(way, size // backend.page_bytes, size, extents)
                for size in sizes(getattr(backend, direction))
            ]
        )
        return total_ns(profile, plan, "backend", backend=name)

    return total


def paged_copies(name: str, way: str) -> Callable[[Profile], int]:
    """The same in pages of the sizes that were sampled, a run for each size, and between samples: a
    single page is one piece, wherever it lies.
    """

    def total(profile: Profile) -> int:
        assert profile.pcie.backends is not None
        surface = getattr(getattr(profile.pcie.backends, name).by_page, way)
        direction: Any = way.removesuffix("_scattered")
        counts: dict[int, list[int]] = {}
        for page, size, _ in surface.points:
            counts.setdefault(page, []).append(size // page)
        taken = 0
        for page, sampled in counts.items():
            plan = apart(
                [
                    Copy(direction, pages, pages * page, pages if way != direction else 1)
                    for pages in (*sampled, *((a + b) // 2 for a, b in pairwise(sampled)))
                ]
            )
            taken += total_ns(profile, plan, "backend", backend=name)
        return taken

    return total


def backend_duplex(name: str) -> Callable[[Profile], int]:
    both: Plan = [(0, Copy(direction, 1, 1024 * MIB, 1)) for direction in ("h2d", "d2h")]
    return lambda profile: total_ns(profile, both, "backend", backend=name)


def both_ways(profile: Profile) -> int:
    """Two copies a way at the same time, by a measured back-end."""
    both: Plan = [(0, Copy(direction, 1, 1024 * MIB, 1)) for direction in ("h2d", "d2h")]
    return total_ns(profile, both, "backend", backend="direct")


def beside(first: Operation, second: Operation) -> Callable[[Profile], int]:
    """What the second takes that is submitted while the first goes on."""

    def total(profile: Profile) -> int:
        env = Environment(0)
        lanes = SimMachine(env, profile, transfer_mode="dma").lanes()
        done = play(env, lanes, [(0, first), (5_000_000, second)])[1].done
        return done.finished_ns - done.submitted_ns

    return total


def reads_in_turn(profile: Profile) -> int:
    """Small reads behind a large one, which gives way to them if they run at once."""
    plan: Plan = [(0, Copy("s2h", 1, 512 * MIB, 1)), (1, Copy("s2h", 1, MIB, 1))]
    return total_ns(profile, plan)


def duplex(profile: Profile) -> int:
    both: Plan = [(0, Copy(direction, 1, 1024 * MIB, 1)) for direction in ("h2d", "d2h")]
    return total_ns(profile, both)


def disk(profile: Profile, direction: Any, surface: Surface) -> int:
    """For each sample: as many operations of its block size at once."""
    plan: Plan = []
    for number, (block, concurrent, _) in enumerate(surface.points):
        plan += [(number * FAR_NS, Copy(direction, 1, block, 1))] * concurrent
    return total_ns(profile, plan, disk_workers=16)


def first_write(profile: Profile) -> int:
    """Slots that nobody wrote before, named."""
    return total_ns(profile, [(0, Copy("h2s", 8, 64 * MIB, 1, ((0, 8),), ((0, 8),)))])


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
    "gpu.dense_decode": bursts,
    "gpu.steps_ahead": cut_burst,
    "pcie.h2d": lambda p: total_ns(p, copies("h2d", sizes(p.pcie.h2d))),
    "pcie.d2h": lambda p: total_ns(p, copies("d2h", sizes(p.pcie.d2h))),
    "pcie.duplex_bytes_per_s": duplex,
    "pcie.backends.at_once": both_ways,
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
    "host.engine.burst_ns": bursts,
    "host.restore_overhead": lambda p: total_ns(p, copies("h2d", sizes(p.host.restore_overhead))),
    "host.copy_threads": scattered,
    "host.copy_bytes_per_s": scattered,
    "disk.read_bytes_per_s": lambda p: disk(p, "s2h", p.disk.read_bytes_per_s),
    "disk.write_bytes_per_s": lambda p: disk(p, "h2s", p.disk.write_bytes_per_s),
    "disk.read_latency_ns": lambda p: total_ns(p, copies("s2h", [MIB])),
    "disk.write_latency_ns": lambda p: total_ns(p, copies("h2s", [MIB])),
    "disk.workers": lambda p: four_reads(p) + read_and_write(p),
    "disk.mixed_permille": read_and_write,
    "disk.each_way": reads_in_turn,
    "disk.read_share_permille": read_and_write,
    "disk.first_write_permille": first_write,
}
STEPS: dict[str, Operation] = {
    "prefill": Prefill((Chunk(0, 4096, 0),), 4096),
    "decode": Decode(4, 4096, 20),
}
for _step, _operation in STEPS.items():
    for _way in ("h2d", "d2h"):
        _copy = Copy(_way, 1, 1024 * MIB, 1)  # type: ignore[arg-type]
        TOTALS[f"interference.{_way}_under_{_step}_permille"] = beside(_operation, _copy)
        TOTALS[f"interference.{_step}_under_{_way}_permille"] = beside(_copy, _operation)
for _name in ("auto", "staged", "zero_copy", "direct"):
    _key = f"pcie.backends.{_name}"
    TOTALS[f"{_key}.duplex_bytes_per_s"] = backend_duplex(_name)
    for _way in ("h2d", "d2h"):
        TOTALS[f"{_key}.{_way}"] = backend_copies(_name, _way, 1)
        TOTALS[f"{_key}.{_way}_scattered"] = backend_copies(_name, f"{_way}_scattered", 8)
        for _paged in (_way, f"{_way}_scattered"):
            TOTALS[f"{_key}.by_page.{_paged}"] = paged_copies(_name, _paged)
# What takes from one and gives to another, or counts.
EITHER_WAY = (
    "gpu.model", "disk.workers", "disk.each_way", "disk.read_share_permille",
    "pcie.backends.at_once",
)  # fmt: skip
# Room, and where it is: no time depends on it.
NO_TIME = ("memory.device_bytes", "memory.host_bytes", "memory.storage_bytes")
# More of it is faster: halved, not doubled.
HALVED = (
    "pcie.duplex_bytes_per_s", "host.copy_threads", "host.copy_bytes_per_s",
    "disk.read_bytes_per_s", "disk.write_bytes_per_s", "disk.workers", "disk.mixed_permille",
    "disk.read_share_permille", "disk.first_write_permille", "pcie.backends.at_once",
    *(key for key in TOTALS if key.startswith("interference.")),
    *(f"pcie.backends.{name}.duplex_bytes_per_s" for name in ("auto", "staged", "zero_copy",
                                                              "direct")),
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
                if point[-1] and not number % (len(value.points) // MOST_POINTS + 1):
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


def _unused(field: str, profile: Profile) -> bool:
    """A run whose directions take turns has no duplex, and no less than one copy at a time."""
    at_once = profile.pcie.backends and profile.pcie.backends.at_once
    alone = at_once is not None and at_once.value == 1
    return alone and field.startswith("pcie.backends.") and field.endswith(("duplex_bytes_per_s",
                                                                            "at_once"))  # fmt: skip


@pytest.mark.parametrize("name", PROFILES)
def test_every_value_moves_the_matching_total(name):
    profile = PROFILES[name]
    before: dict[str, int] = {}
    tried = 0
    for key, mutant in mutants(profile):
        field = "gpu.model" if key.startswith("gpu.model.") else key.partition("[")[0]
        if field in NO_TIME or _unused(field, profile):
            continue
        total = TOTALS[field]
        if field not in before:
            before[field] = total(profile)
        after = total(mutant)
        if field in EITHER_WAY:
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
        "interference": "gpu.dense",
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
