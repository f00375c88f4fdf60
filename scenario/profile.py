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

Schema 2 adds what a calibration finds: `measurement`, a value's spread, whole back-ends of
transfers, decode steps apart from prefill, and what GPU and link do to each other. A file of schema
1 is read as one that knows nothing of these.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import msgspec

from hicache.errors import InputError
from scenario.measurement import Measurement

if TYPE_CHECKING:
    from scenario.geometry import ModelGeometry

SCHEMA = 2
Provenance = Literal["measured", "published", "inferred", "estimate"]


class Sourced(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Anything that says where it comes from."""

    provenance: Provenance
    # In words: what was measured, who published it, from what it was inferred, on what the estimate
    # rests.
    how: str


class Valued(Sourced, frozen=True, kw_only=True, omit_defaults=True):
    """A number or a curve, and how far what was measured lies around it."""

    # One standard deviation of the value around what was measured, in thousandths of it; 0: not
    # known.
    spread_permille: int = 0


class Quantity(Valued, frozen=True, kw_only=True):
    """One number, in the unit that ends the field's name: `_bytes`, `_ns`, `_bytes_per_s`."""

    value: int


class Curve(Valued, frozen=True, kw_only=True):
    """Samples `[x, y]`, x strictly increasing. Between them it is a straight line."""

    points: tuple[tuple[int, int], ...]


class Surface(Valued, frozen=True, kw_only=True):
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

    @classmethod
    def of(cls, geometry: ModelGeometry, provenance: Provenance, how: str) -> SampledModel:
        """The model of that shape."""
        shape = {
            name: getattr(geometry, name)
            for name in cls.__struct_fields__
            if name not in Sourced.__struct_fields__
        }
        return cls(provenance=provenance, how=how, **shape)


class GpuProfile(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a step takes. Either the three parts `dense` and `attention_*`, or `prefill` alone."""

    model: SampledModel
    # [tokens in the step, ns]: everything but attention.
    dense: Curve | None = None
    # [new tokens, tokens before them, ns], one request, all layers.
    attention_prefill: Surface | None = None
    # [batch, context tokens of each request, ns], one new token a request, all layers.
    attention_decode: Surface | None = None
    # [batch, ns]: a decode step without its attention. None: as `dense` of so many tokens.
    dense_decode: Curve | None = None
    # [tokens computed, ns]: a whole prefill step, for machines of which no more is known.
    prefill: Curve | None = None
    # Tensor-parallel ranks of which each sample is one's step, all-reduces included, of a whole
    # `model`. None: 1.
    ranks: Quantity | None = None
    # Decode steps that are launched before the one under way ends: a burst that is asked to end
    # does so many more. None: 0.
    steps_ahead: Quantity | None = None


class PagedCopies(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Operations in pages of other sizes than a back-end's curves have: [page bytes, bytes, ns].

    All four hold the same sizes of pages.
    """

    h2d: Surface
    d2h: Surface
    h2d_scattered: Surface
    d2h_scattered: Surface

    def sizes(self) -> tuple[int, ...]:
        """Those of the pages, ascending."""
        return tuple(sorted({page for page, _, _ in self.h2d.points}))


class BackendCopies(
    msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True
):
    """Whole operations of one transfer back-end, as a run calls it. Curves: [bytes, ns]."""

    # Pages that are consecutive on both sides.
    h2d: Curve
    d2h: Curve
    # The same bytes in pages of `page_bytes`, none of which lies beside another.
    h2d_scattered: Curve
    d2h_scattered: Curve
    page_bytes: int
    # Each way while both directions are busy with scattered pages.
    duplex_bytes_per_s: Quantity
    # The same in pages of other sizes. None: only those of `page_bytes` were measured.
    by_page: PagedCopies | None = None


class Backends(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """By the names of `hw.transfers`. None: not measured."""

    auto: BackendCopies | None = None
    staged: BackendCopies | None = None
    zero_copy: BackendCopies | None = None
    direct: BackendCopies | None = None
    # Operations of both directions that a run has under way at once: 1 where they share one
    # back-end and wait for each other. None: 2.
    at_once: Quantity | None = None


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
    # Whole operations of the back-ends of a real run, for transfer mode "backend".
    backends: Backends | None = None


class EngineTimes(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Time of the engine's one thread for an operation, before its device can begin."""

    d2h_ns: Quantity
    h2d_ns: Quantity
    h2s_ns: Quantity
    s2h_ns: Quantity
    # For a prefill step, and once for a decode burst: its later steps are launched ahead of the
    # GPU.
    step_ns: Quantity
    # For a decode burst, if it differs.
    burst_ns: Quantity | None = None


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
    # Operations of one direction at once; more wait. None: as many as there are workers.
    each_way: Quantity | None = None
    # Of what the disk does while a read and a write share it, what the read gets. None: half.
    read_share_permille: Quantity | None = None
    # What a write of slots that were never written keeps of the speed of writing them again. None:
    # all of it.
    first_write_permille: Quantity | None = None


class Interference(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Thousandths of its own speed that one keeps while the other goes on."""

    h2d_under_prefill_permille: Quantity
    h2d_under_decode_permille: Quantity
    d2h_under_prefill_permille: Quantity
    d2h_under_decode_permille: Quantity
    prefill_under_h2d_permille: Quantity
    prefill_under_d2h_permille: Quantity
    decode_under_h2d_permille: Quantity
    decode_under_d2h_permille: Quantity


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
    # What copies and steps do to each other. None: nothing.
    interference: Interference | None = None
    # What a calibration saw; None: the values were put together by hand.
    measurement: Measurement | None = None

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


def load_profile(name_or_path: str | os.PathLike[str], key: str = "machine.profile") -> Profile:
    """The profile of a known machine, or that of a JSON file. `key`: where it was given.

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
            f"{key} is {given!r}: no known machine{nearest(name, names)}; known are "
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
    _migrate(raw, place)
    try:
        profile = msgspec.convert(raw, Profile)
    except msgspec.ValidationError as error:
        raise InputError(f"{place}: {explain(str(error), raw)}") from None
    check_profile(profile, place)
    return profile


def _migrate(raw: dict[str, Any], place: str) -> None:
    """Bring a decoded file to this version's schema, or refuse it with an InputError."""
    schema = raw.get("schema")
    if schema == 1:  # all that schema 2 has more may be left out
        raw["schema"] = SCHEMA
    elif schema != SCHEMA:
        newer = isinstance(schema, int) and schema > SCHEMA
        raise InputError(
            f"{place}: schema is {schema!r}: this version reads schemas 1 and {SCHEMA}"
            + ("; a later version of hicache-lab wrote it" if newer else "")
        )


def dump_profile(profile: Profile) -> str:
    """The profile as JSON text, a sample to a line; `decode_profile` reads back an equal one."""
    text = json.dumps(_bare(msgspec.to_builtins(profile)), indent=1, ensure_ascii=False)
    return (
        re.sub(r"\[\s*(\d[\d,\s]*?)\s*\]", lambda row: f"[{' '.join(row[1].split())}]", text) + "\n"
    )


def _bare(value: Any) -> Any:
    """Without what is left out: None, no spread, nothing to note."""
    if isinstance(value, dict):
        return {
            key: _bare(part)
            for key, part in value.items()
            if part is not None
            and not (key in ("spread_permille", "width_permille", "limit_permille") and part == 0)
            and not (key == "note" and part == "")
        }
    if isinstance(value, list | tuple):
        return [_bare(part) for part in value]
    return value


_FOLDER = os.path.join(os.path.dirname(os.path.abspath(__file__)), "profiles")
