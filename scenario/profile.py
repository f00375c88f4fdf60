"""A machine profile: what a machine's parts take for their work, and how each number is known.

Profiles are data (JSON, sizes in bytes, times in ns). The simulated machine is built from one,
`calibrate` writes one. This module says what a profile holds and reads it; it computes no time.

    gpu    what a step takes: dense + attention, or one curve over the tokens recomputed
    pcie   L1 <-> L2, each direction alone and both together; gather and scatter; zero-copy kernels
    host   the engine's own time for an operation; threads that copy where pages lie scattered
    disk   L2 <-> L3 by block size and operations at once; latency; workers

Provenance of a value: `measured` on this machine; `published` by somebody else; `inferred` from
such numbers, `how` says from which; `estimate`: nobody measured it, a result that rests on it says
so.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator
from typing import Any, Literal, NamedTuple

import msgspec

from hicache.errors import InputError

SCHEMA = 1
Provenance = Literal["measured", "published", "inferred", "estimate"]


class Sourced(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Anything that says where it comes from."""

    provenance: Provenance
    # In words: what was measured, who published it, from what it was inferred, on what the estimate
    # rests.
    how: str


class Quantity(Sourced, frozen=True, kw_only=True):
    """One number, in the unit that ends the field's name: `_bytes`, `_ns`, `_bytes_per_s`."""

    value: int


class Curve(Sourced, frozen=True, kw_only=True):
    """Samples `[x, y]`, x strictly increasing. Between them it is a straight line."""

    points: tuple[tuple[int, int], ...]


class Surface(Sourced, frozen=True, kw_only=True):
    """Samples `[x1, x2, y]`, in increasing order of (x1, x2)."""

    points: tuple[tuple[int, int, int], ...]


class Memory(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Room, as the operating system shows it. How much of it a run may use, the scenario says."""

    device_bytes: Quantity
    host_bytes: Quantity
    # None: not known, so that nothing is warned about.
    storage_bytes: Quantity | None = None


class SampledModel(Sourced, frozen=True, kw_only=True):
    """The model whose steps were sampled, in the names of `scenario.geometry.ModelGeometry`."""

    name: str
    layers: int
    parameter_count: int
    active_parameter_count: int
    weight_bytes: int
    kv_bytes_per_token: int
    dense_flops_per_token: int
    attention_flops_per_pair: int


class GpuProfile(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a step takes. Either the three parts `dense` and `attention_*`, or `prefill` alone."""

    model: SampledModel
    # [tokens in the step, ns]: everything but attention.
    dense: Curve | None = None
    # [new tokens, tokens before them, ns], one request, all layers.
    attention_prefill: Surface | None = None
    # [batch, context tokens of each request, ns], one new token a request, all layers.
    attention_decode: Surface | None = None
    # [tokens computed, ns]: a whole prefill step, for machines of which no more is known.
    prefill: Curve | None = None


class PcieProfile(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Transfers between L1 and L2. Curves: [bytes, ns] of one, the other direction idle."""

    # Memory copies of pinned memory.
    h2d: Curve
    d2h: Curve
    # Each way while both directions are busy.
    duplex_bytes_per_s: Quantity
    # Staged mode: the kernel that packs pages before D2H, or unpacks them after H2D. None: part of
    # h2d, d2h.
    gather_scatter: Curve | None = None
    # Kernel mode: GPU threads that read or write pinned memory. None: not known, the mode cannot be
    # used.
    zero_copy_h2d: Curve | None = None
    zero_copy_d2h: Curve | None = None


class EngineTimes(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Time of the engine's one thread for an operation, before its device can begin."""

    d2h_ns: Quantity
    h2d_ns: Quantity
    h2s_ns: Quantity
    s2h_ns: Quantity
    # For a prefill step, and once for a decode burst: its later steps are launched ahead of the
    # GPU.
    step_ns: Quantity


class HostProfile(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What the host adds."""

    engine: EngineTimes
    # [bytes of an H2D copy, ns more of engine time], where published points imply it.
    restore_overhead: Curve | None = None
    # Threads that gather or scatter host pages which are not consecutive, and what n of them move:
    # [threads, bytes/s].
    copy_threads: Quantity
    copy_bytes_per_s: Curve


class DiskProfile(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Transfers between L2 and L3.

    Surfaces are [block bytes, operations at once, bytes/s of all together].
    """

    read_bytes_per_s: Surface
    write_bytes_per_s: Surface
    # Once for an operation, before its first byte.
    read_latency_ns: Quantity
    write_latency_ns: Quantity
    # Operations at once; more wait.
    workers: Quantity
    # While reads and writes run at once, the device does this many thousandths of its work.
    mixed_permille: Quantity


class Profile(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One machine."""

    schema: int
    name: str
    machine: str
    software: str
    date: str
    source: str
    memory: Memory
    gpu: GpuProfile
    pcie: PcieProfile
    host: HostProfile
    disk: DiskProfile

    def estimates(self) -> tuple[Estimate, ...]:
        """Every value that nobody measured or published, in the profile's order."""
        return tuple(
            Estimate(key, value.how)
            for key, value in sourced(self)
            if value.provenance == "estimate"
        )


class Estimate(NamedTuple):
    """A value that results rest on though nobody measured it: its key, and how it was made."""

    key: str
    how: str


def sourced(part: msgspec.Struct, prefix: str = "") -> Iterator[tuple[str, Sourced]]:
    """Every value below `part` that has a provenance, with its dotted key, in declared order."""
    for name in part.__struct_fields__:
        value = getattr(part, name)
        if isinstance(value, Sourced):
            yield prefix + name, value
        elif isinstance(value, msgspec.Struct):
            yield from sourced(value, f"{prefix}{name}.")


def profile_names() -> list[str]:
    """The machines that are known by name."""
    return sorted(
        entry.removesuffix(".json") for entry in os.listdir(_FOLDER) if entry.endswith(".json")
    )


def load_profile(name_or_path: str | os.PathLike[str]) -> Profile:
    """The profile of a known machine, or that of a JSON file.

    A name may be in any case. What ends in `.json` or begins as paths do is a path. Raises
    InputError for an unknown name, with those there are, and for a file that cannot be read or is
    no profile, with the key, its value and what is allowed.
    """
    given = os.fspath(name_or_path)
    name = given.strip().lower()
    names = profile_names()
    if name in names:
        file = os.path.join(_FOLDER, f"{name}.json")
    elif name.endswith(".json") or given.startswith(("/", "./", "../", "~")):
        file = os.path.expanduser(given)
    else:
        from scenario.names import nearest

        raise InputError(
            f"machine.profile is {given!r}: no known machine{nearest(name, names)}; known are "
            f"{', '.join(names)}; for another give the path of its profile, a .json file"
        )
    try:
        with open(file, "rb") as opened:
            text = opened.read()
    except OSError as error:
        raise InputError(f"{file}: {error.strerror}") from None
    return decode_profile(text, file)


def decode_profile(text: bytes, place: str) -> Profile:
    """The profile that a JSON text holds; `place` names it in errors. Raises InputError."""
    from scenario.profile_check import check_profile, explain

    try:
        raw: Any = msgspec.json.decode(text)
    except msgspec.DecodeError as error:
        raise InputError(f"{place}: not valid JSON: {error}") from None
    if not isinstance(raw, dict):
        raise InputError(f"{place}: not a table of keys and values")
    if raw.get("schema") != SCHEMA:
        raise InputError(
            f"{place}: schema is {raw.get('schema')!r}: this version reads schema {SCHEMA}"
        )
    try:
        profile = msgspec.convert(raw, Profile)
    except msgspec.ValidationError as error:
        raise InputError(f"{place}: {explain(str(error), raw)}") from None
    check_profile(profile, place)
    return profile


def dump_profile(profile: Profile) -> str:
    """The profile as JSON text, a sample to a line; `decode_profile` reads back an equal one."""
    text = json.dumps(msgspec.to_builtins(profile), indent=1, ensure_ascii=False)
    text = re.sub(r'\n *"[^"]*": null,?', "", text)
    text = re.sub(r",(\n *})", r"\1", text)
    return (
        re.sub(r"\[\s*(\d[\d,\s]*?)\s*\]", lambda row: f"[{' '.join(row[1].split())}]", text) + "\n"
    )


_FOLDER = os.path.join(os.path.dirname(os.path.abspath(__file__)), "profiles")
