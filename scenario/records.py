"""A scenario: all that a run depends on besides the trace's content. One frozen record a table.

The tables `[cache]` to `[scheduler]` are the engine's own options
(`hicache.options`), field for field. Reading files is in `scenario.load`, turning sizes into pages
in `scenario.resolve`.

    preset, mode, seed, instances, router
    [trace]      what is replayed, and how fast
    [load]       what makes requests arrive
    [model]      whose KV cache it is
    [machine]    what it runs on
    [ranks]      how many GPUs share the model             scenario.ranks.RankOptions
    [tiers]      page size and the sizes of L1, L2, L3
    [cache]      what is cached, what leaves first           hicache.options.CacheOptions
    [restore]    when a lower tier is read                   hicache.options.RestoreOptions
    [storage]    what L3 is to the engine                    hicache.options.StorageOptions
    [prefetch]   how a store is read for queued requests     hicache.options.PrefetchOptions
    [offload]    what is written of answers as they are made  hicache.options.OffloadOptions
    [scheduler]  how requests are batched                    hicache.options.SchedulerOptions
    [engine]     how the engine keeps its books
    [hw]         how a real machine is driven
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from types import MappingProxyType
from typing import Any, Literal, get_type_hints

import msgspec

from hicache.errors import InputError
from hicache.options import (
    CacheOptions,
    OffloadOptions,
    PrefetchOptions,
    RestoreOptions,
    RouterName,
    SchedulerOptions,
    StorageOptions,
)
from scenario.host_layout import HostLayout
from scenario.load_table import LoadTable
from scenario.presets import DEFAULT_PRESET
from scenario.ranks import RankOptions
from scenario.sizes import AUTO, TWICE, ZERO, Size
from scenario.toml_values import toml_value
from scenario.transfer_mode import TransferMode
from traces.synthetic_prefixes import Prefixes

Mode = Literal["timed", "untimed"]
MOST_INSTANCES = 1024

KvDtype = Literal["auto", "bf16", "fp16", "fp8"]
StoreKind = Literal["slots", "file", "dynamic"]


class TraceOptions(msgspec.Struct, frozen=True):
    """Which requests, and how fast they come."""

    # Absolute once loaded; "" while no trace was named.
    path: str = ""
    # Tokens of one hash id, for trace formats that do not say; 0: the format's usual number.
    block_tokens: int = 0
    # Times between arrivals, and think times, are divided by it: 2.0 replays twice as fast.
    speed: float = 1.0
    # A Hugging Face tokenizer.json, for formats that hold text. Absolute once loaded.
    tokenizer: str = ""
    # What becomes of malformed rows: an error at the first, or they are left out and counted.
    on_error: Literal["stop", "skip"] = "stop"
    # For traces that have lengths only: the part of each prompt that is made up to be shared within
    # one of so many groups, drawn by Zipf's law from the seed. 0: nothing is shared.
    prefix_share: float = 0.0
    prefix_groups: int = 16
    prefix_zipf: float = 1.0

    def __post_init__(self) -> None:
        if self.block_tokens < 0:
            raise InputError(f"trace.block_tokens is {self.block_tokens}: it must not be negative")
        _above_zero("trace.speed", self.speed)
        if not 0 <= self.prefix_share <= 1:
            raise InputError(
                f"trace.prefix_share is {self.prefix_share}: it must lie between 0 and 1"
            )

    def prefixes(self, seed: int) -> Prefixes | None:
        """The model of shared prefixes that was asked for."""
        if not self.prefix_share:
            return None
        return Prefixes(self.prefix_share, self.prefix_groups, self.prefix_zipf, seed)


class ModelOptions(msgspec.Struct, frozen=True):
    """Whose KV cache it is."""

    # A name of `scenario.geometry.model_names()` or the path of a Hugging Face config.json or its
    # folder.
    name: str = "Qwen3-8B"
    # Of the KV cache. "auto": the model's own.
    kv_dtype: KvDtype = "auto"


class MachineOptions(msgspec.Struct, frozen=True):
    """What it runs on."""

    # The name of a profile or the path of a profile's JSON file.
    profile: str = "nvidia-h200"
    # How pages move between L1 and L2. "backend": as the back-end of hw.transfers was measured,
    # whole operations. "staged": gathered on the GPU, one DMA, and by the CPU where pages lie apart
    # in L2, which hw.transfers "staged" does not. "kernel": GPU threads read and write pinned
    # memory. "dma": one memory copy for each run of pages. "auto": "backend" where the profile has
    # it, else "staged".
    transfer_mode: TransferMode = "auto"
    # How pages lie in L2 (`scenario.host_layout`): differences in cost.
    host_layout: HostLayout = "page_major"
    # The part of GPU memory for weights and L1 (SGLang's mem_fraction_static). The rest is for
    # activations.
    memory_fraction: float = 0.9
    # What L3 lies in. "": the profile's disk. Else the name of a store (`scenario.stores`) or the
    # path of its model's JSON file.
    store: str = ""

    def __post_init__(self) -> None:
        if not 0 < self.memory_fraction <= 1:
            raise InputError(
                f"machine.memory_fraction is {self.memory_fraction}: "
                "it must lie above 0 and be at most 1"
            )


class TierOptions(msgspec.Struct, frozen=True):
    """Tokens of a page, and how much each tier holds."""

    page_size_tokens: int = 64
    # AUTO: what the GPU has left after the weights.
    l1: Size = AUTO
    # A multiple refers to L1. 0 switches the tier off.
    l2: Size = TWICE
    l3: Size = ZERO
    # "down": whole pages. "up_one": one more than that, as SGLang allocates (a size in pages is
    # taken as it is).
    l2_rounding: Literal["down", "up_one"] = "down"
    # "buffer_only": L2 is a buffer between L1 and a store; nothing is kept or hit there.
    l2_mode: Literal["cache", "buffer_only"] = "cache"

    def __post_init__(self) -> None:
        _above_zero("tiers.page_size_tokens", self.page_size_tokens)
        if self.l1.unit == "x":
            raise InputError(f"tiers.l1 is {self.l1}: a multiple of L1 cannot say how large L1 is")
        if self.l1.is_zero:
            raise InputError("tiers.l1 is 0: attention reads L1, so there must be one")
        for key, size in (("tiers.l2", self.l2), ("tiers.l3", self.l3)):
            if size.unit == "auto":
                raise InputError(f'{key} is auto: only L1 has an "auto"; write 2x, 40GiB or 0')
        if self.l2.is_zero and not self.l3.is_zero:
            raise InputError(
                f"tiers.l3 is {self.l3} but tiers.l2 is 0: "
                "pages reach L3 through L2, so an L3 needs an L2"
            )


class BookOptions(msgspec.Struct, frozen=True):
    """How the engine keeps its books, for debugging and for real pools. Untimed hits stay."""

    # "named": allocators hand out page numbers, as real pools need. "counted": they only count, and
    # copies take the time of consecutive pages.
    page_ids: Literal["counted", "named"] = "counted"
    # `check_integrity` after every N-th scheduler step; 0: never.
    check_every_steps: int = 0

    def __post_init__(self) -> None:
        if self.check_every_steps < 0:
            raise InputError(
                f"engine.check_every_steps is {self.check_every_steps}: it must not be negative"
            )


class HwOptions(msgspec.Struct, frozen=True):
    """How `hicache run` carries the scenario out on a real machine; a simulation ignores it."""

    # "model": transformers' code with random or local weights. "synthetic": steps of given times
    # over pages that hold a pattern, which is checked.
    compute: Literal["model", "synthetic"] = "model"
    # A folder with weights (safetensors); "": random ones, from the seed. Absolute once loaded.
    weights: str = ""
    # How pages move between L1 and L2; "auto" times them and picks. machine.transfer_mode "staged"
    # is another way than the "staged" here.
    transfers: Literal["auto", "staged", "zero_copy", "direct"] = "auto"
    # How the L3 file is read and written.
    l3_backend: Literal["auto", "pread", "direct", "io_uring", "io_uring_cached"] = "pread"
    # The L3 file or its folder; "": a temporary file, removed at the end. Absolute once loaded.
    l3_path: str = ""
    # Of each page in L3.
    checksum: Literal["none", "crc32"] = "none"
    # Threads for each direction of L3.
    l3_workers: int = 16
    # What L3 lies in where `storage.index` is "store". "slots": the L3 file, pages by name; gone
    # with the run. "file": a folder in the format of SGLang's store `file`. "dynamic": a class of
    # SGLang's HiCacheStorage interface.
    store: StoreKind = "slots"
    # The folder of "file". Absolute once loaded.
    store_path: str = ""
    # The name under which SGLang serves the model, a part of the names of pages. "": this model's,
    # with a mark where its K and V are not those of its weights.
    store_model: str = ""
    # The order of a page's bytes in "file" and "dynamic": of a server with this layout
    # (--hicache-mem-layout).
    store_layout: Literal["layer_first", "page_first", "page_first_direct", "page_head"] = (
        "page_first"
    )
    # Of "dynamic": MODULE:CLASS. "": what `store_config` says (module_path, class_name).
    store_class: str = ""
    # Of "dynamic": SGLang's extra configuration, JSON text or @ and a file. The file's path is
    # absolute once loaded.
    store_config: str = ""
    # After so many seconds an operation of "file", or a call of "dynamic", has failed.
    store_timeout_s: float = 30.0
    # Pinned host memory at most, in GiB; 0: what the machine has free.
    host_limit_gib: float = 0.0
    # What the engine's thread does until something has ended: "poll" takes a core, and less time.
    waiting: Literal["sleep", "poll"] = "sleep"
    # Seconds after which a device that has shown no sign of life counts as dead.
    watchdog_s: float = 60.0

    def __post_init__(self) -> None:
        _above_zero("hw.l3_workers", self.l3_workers)
        _above_zero("hw.watchdog_s", self.watchdog_s)
        _above_zero("hw.store_timeout_s", self.store_timeout_s)
        if self.host_limit_gib < 0:
            raise InputError(f"hw.host_limit_gib is {self.host_limit_gib}: it must not be negative")


class Scenario(msgspec.Struct, frozen=True):
    """A whole scenario, every value present. Equal scenarios give equal runs of equal traces."""

    preset: str = DEFAULT_PRESET
    # "timed": as on the machine. "untimed": no operation takes time, requests one at a time in file
    # order.
    mode: Mode = "timed"
    seed: int = 0
    # Servers that share L3, each with the machine and the tiers below, and who decides which of
    # them serves a request (`hicache.router`).
    instances: int = 1
    router: RouterName = "round_robin"
    trace: TraceOptions = msgspec.field(default_factory=TraceOptions)
    load: LoadTable = msgspec.field(default_factory=LoadTable)
    model: ModelOptions = msgspec.field(default_factory=ModelOptions)
    machine: MachineOptions = msgspec.field(default_factory=MachineOptions)
    ranks: RankOptions = msgspec.field(default_factory=RankOptions)
    tiers: TierOptions = msgspec.field(default_factory=TierOptions)
    cache: CacheOptions = msgspec.field(default_factory=CacheOptions)
    restore: RestoreOptions = msgspec.field(default_factory=RestoreOptions)
    storage: StorageOptions = msgspec.field(default_factory=StorageOptions)
    prefetch: PrefetchOptions = msgspec.field(default_factory=PrefetchOptions)
    offload: OffloadOptions = msgspec.field(default_factory=OffloadOptions)
    scheduler: SchedulerOptions = msgspec.field(default_factory=SchedulerOptions)
    engine: BookOptions = msgspec.field(default_factory=BookOptions)
    hw: HwOptions = msgspec.field(default_factory=HwOptions)

    def __post_init__(self) -> None:
        if self.seed < 0:
            raise InputError(f"seed is {self.seed}: it must not be negative")
        if not 1 <= self.instances <= MOST_INSTANCES:
            raise InputError(
                f"instances is {self.instances}: it must lie between 1 and {MOST_INSTANCES}"
            )


# The record of each table of the file, in the file's order.
TABLES: dict[str, type] = {
    "trace": TraceOptions,
    "load": LoadTable,
    "model": ModelOptions,
    "machine": MachineOptions,
    "ranks": RankOptions,
    "tiers": TierOptions,
    "cache": CacheOptions,
    "restore": RestoreOptions,
    "storage": StorageOptions,
    "prefetch": PrefetchOptions,
    "offload": OffloadOptions,
    "scheduler": SchedulerOptions,
    "engine": BookOptions,
    "hw": HwOptions,
}


@cache
def value_types() -> Mapping[str, Any]:
    """The type of each dotted key, in the file's order. Resolved once: a sweep asks for it with
    every scenario.
    """
    types = {key: hint for key, hint in get_type_hints(Scenario).items() if key not in TABLES}
    for table, record in TABLES.items():
        types.update({f"{table}.{name}": hint for name, hint in get_type_hints(record).items()})
    return MappingProxyType(types)


def values(scenario: Scenario) -> Iterator[tuple[str, object]]:
    """Each dotted key with its value, in the file's order: the keys without a table first."""
    for name in field_names(Scenario):
        if name not in TABLES:
            yield name, getattr(scenario, name)
    for table, record in TABLES.items():
        part = getattr(scenario, table)
        for name in field_names(record):
            yield f"{table}.{name}", getattr(part, name)


def field_names(record: type) -> tuple[str, ...]:
    """The fields of one of our records or of the engine's options, in order."""
    if issubclass(record, msgspec.Struct):
        return record.__struct_fields__
    return tuple(record.__dataclass_fields__)


def dump_toml(scenario: Scenario) -> str:
    """The scenario as a TOML text: every value, no comments, always in the same order.

    `load_scenario` reads it back as an equal scenario from any folder, because its paths are
    absolute.
    """
    return toml_text(scenario, ("", *TABLES))


def toml_text(scenario: Scenario, tables: Sequence[str]) -> str:
    """The named tables of the scenario as a TOML text; "" stands for the keys without a table."""
    blocks: dict[str, list[str]] = {table: [f"[{table}]"] if table else [] for table in tables}
    for key, value in values(scenario):
        table, _, name = key.rpartition(".")
        if table in blocks:
            blocks[table].append(f"{name} = {toml_value(value)}")
    return "\n\n".join("\n".join(lines) for lines in blocks.values()) + "\n"


def digest(scenario: Scenario) -> str:
    """The SHA-256 of `dump_toml(scenario)`, 64 hexadecimal digits: tells scenarios apart."""
    import hashlib

    return hashlib.sha256(dump_toml(scenario).encode()).hexdigest()


# Where files lie; and what may be named by a file.
_PLACES = (
    "trace.path", "trace.tokenizer", "hw.weights", "hw.l3_path", "hw.store_path", "hw.store_config",
)  # fmt: skip
_NAMES = ("model.name", "machine.profile", "machine.store")
# Defaults that changed since the first records were made: for these it is as it was.
_FORMER = {"machine.transfer_mode": "staged"}


def record_digest(scenario: Scenario) -> str:
    """The digest of what a record belongs to: what the scenario sets, but for where files lie.

    So a record replays on another machine, and in a later version, whose new options have the value
    under which everything is as before. What the engine does is compared in any case.
    """
    import hashlib

    usual = dict(values(Scenario())) | _FORMER
    lines: list[str] = []
    for key, value in values(scenario):
        if key not in _PLACES and value != usual[key]:
            shown = str(value).rsplit("/", 1)[-1] if key in _NAMES else value
            lines.append(f"{key} = {toml_value(shown)}")
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()


def _above_zero(key: str, value: float) -> None:
    if not value > 0:
        raise InputError(f"{key} is {value}: it must be greater than 0")
