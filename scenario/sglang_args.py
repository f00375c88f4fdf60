"""What the arguments of an SGLang server mean here: options of a scenario, over the preset of the
server's version.

    text -> parse_arguments -> {name: values} -> options by dotted key, and what must be said

Corrections that SGLang makes by itself (a layout that its I/O back-end cannot use) are made here,
too, and said. What this version cannot do is said, and refused where another cache would be
simulated than the one that was asked for. Arguments that do not concern the cache are left out.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import NamedTuple

from hicache.errors import InputError
from scenario.geometry import load_geometry
from scenario.load import read_toml
from scenario.sglang_config import FLAG as EXTRA_CONFIG
from scenario.sglang_config import Extra, read_extra_config
from scenario.sglang_flags import ORIGIN, parse_arguments
from scenario.sglang_rules import DEFAULT_SGLANG, SGLANG_PRESETS, SGLANG_VERSIONS
from scenario.sglang_server import ServerReader
from scenario.stores import STORES
from scenario.toml_values import toml_value

# Of `--hicache-storage-backend`; L3 has no end unless somebody says how large it is.
UNLIMITED = "100x"
_STORES = {
    "0.5.9": "file mooncake hf3fs nixl aibrix dynamic eic",
    "0.5.20": "file sim mooncake npu_memcache hf3fs nixl aibrix dynamic eic simm mori shm",
    "0.5.23": "file sim mooncake npu_memcache hf3fs nixl aibrix dynamic eic simm mori shm "
    "tensorcast seaweedfs",
}
_EVICTIONS = {
    "0.5.9": "lru lfu", "0.5.20": "lru lfu slru priority", "0.5.23": "lru lfu slru priority tlru",
}  # fmt: skip
_OFFLOAD = "--disaggregation-decode-enable-offload-kvcache"
_LAYOUTS = "layer_first page_first page_first_direct page_first_kv_split page_head"


class ServerArgs(NamedTuple):
    """What was read: options by dotted key, over `preset`. `notes`: corrections, and what is not as
    on the server, a sentence each. `ignored`: arguments that do not concern the cache.
    """

    preset: str
    options: dict[str, object]
    notes: tuple[str, ...]
    ignored: tuple[str, ...]


def read_server_args(text: str, preset: str | None = None) -> ServerArgs:
    """The scenario that the arguments mean. `preset`: the server's version; None: 0.5.20. Raises
    InputError for what the server would refuse, and for what would be another cache here.
    """
    name = preset or DEFAULT_SGLANG
    if name not in SGLANG_PRESETS:
        raise InputError(
            f"{ORIGIN}: preset is {name!r}: the arguments are those of one of "
            f"{', '.join(SGLANG_PRESETS)}"
        )
    version = SGLANG_VERSIONS[SGLANG_PRESETS.index(name)]
    reader = _Reader(version, parse_arguments(text, version))
    reader.read()
    ignored = tuple(each for each in reader.given if each not in reader.used)
    return ServerArgs(name, reader.options, tuple(reader.notes), ignored)


def with_server_args(
    text: str, scenario_file: str | None, overrides: Mapping[str, object]
) -> tuple[dict[str, object], tuple[str, ...]]:
    """`overrides` over what the arguments mean, and what the result must say. The version is that
    of the preset which the overrides or else the scenario file name.
    """
    preset = overrides.get("preset")
    if preset is None and scenario_file is not None:
        preset = read_toml(scenario_file).get("preset")
    args = read_server_args(text, None if preset is None else str(preset))
    notes = [f"sglang: {note}" for note in args.notes]
    if args.ignored:
        notes.append(f"sglang: without a part in the cache: {', '.join(args.ignored)}")
    return {"preset": args.preset, **args.options, **overrides}, tuple(notes)


def scenario_lines(args: ServerArgs) -> Iterator[str]:
    """The same as a scenario file, what must be said as comments."""
    for note in args.notes:
        yield f"# {note}"
    if args.ignored:
        yield f"# without a part in the cache: {', '.join(args.ignored)}"
    yield f'preset = "{args.preset}"'
    tables: dict[str, list[str]] = {}
    for key, value in args.options.items():
        table, _, field = key.rpartition(".")
        tables.setdefault(table, []).append(f"{field} = {toml_value(value)}")
    yield from tables.pop("", ())
    for table, lines in tables.items():
        yield ""
        yield f"[{table}]"
        yield from lines


class _Reader(ServerReader):
    """Turns arguments into options."""

    layout = ""

    def read(self) -> None:
        """All of it, in the order of what follows from what."""
        self.read_model()
        self.read_scheduler()
        self.read_page_size()
        ranks = self.read_ranks()
        if self.is_set("--disable-radix-cache"):
            raise InputError(
                f"{ORIGIN}: --disable-radix-cache: without a prefix cache there is nothing to hit"
            )
        self.choose("--radix-eviction-policy", "cache.eviction", _EVICTIONS[self.version])
        if self.is_set("--enable-hierarchical-cache"):
            self._host()
            self._storage(ranks)
        elif self.is_set(_OFFLOAD) and "--hicache-storage-backend" in self.given:
            self._decode_server(ranks)
        else:
            self._without_hicache()
        if self.is_set(_OFFLOAD):
            self.put("offload.decode", True, _OFFLOAD)
        self.say_what_is_missing()

    # ------------------------------------------------------------------ L2

    def _host(self) -> None:
        self._size()
        store = self.choice("--hicache-storage-backend", _STORES[self.version])
        mode = self.choice("--hicache-host-memory-mode", "cache buffer_only") or "cache"
        policy = self.choice(
            "--hicache-write-policy", "write_back write_through write_through_selective"
        )
        if mode == "buffer_only":
            policy = self._buffer_only(store, policy)
        if policy is not None:
            self.demand("cache.write_policy", policy, f"--hicache-write-policy {policy}")
        if policy == "write_back" and self.version == "0.5.23":
            self.put("cache.l2_victims", "duplicates_first", "--hicache-write-policy write_back")
        self._layout(store)

    def _size(self) -> None:
        size_gb = self.whole("--hicache-size", least=0)
        ratio = self.number("--hicache-ratio")
        if size_gb:
            self.options["tiers.l2"] = f"{size_gb}GB"
            if ratio is not None:
                self.notes.append(f"--hicache-size {size_gb}: overrides --hicache-ratio {ratio}")
        elif ratio is not None:
            if self.version == "0.5.9" and ratio < 1:
                raise InputError(
                    f"{ORIGIN}: --hicache-ratio {ratio}: SGLang 0.5.9 does not start with an L2 "
                    "smaller than L1"
                )
            self.options["tiers.l2"] = f"{ratio:f}x"

    def _buffer_only(self, store: str | None, policy: str | None) -> str | None:
        if store is None:
            raise InputError(
                f"{ORIGIN}: --hicache-host-memory-mode buffer_only needs a "
                "--hicache-storage-backend: host memory is only a staging buffer"
            )
        if policy == "write_back":
            if self.version == "0.5.20":
                raise InputError(
                    f"{ORIGIN}: --hicache-host-memory-mode buffer_only: SGLang 0.5.20 does not "
                    "start with --hicache-write-policy write_back"
                )
            self.notes.append("buffer_only: write_back becomes write_through, as in SGLang")
            policy = "write_through"
        if "tiers.l2" not in self.options:
            self.options["tiers.l2"] = "1.2x"
        self.demand("tiers.l2_mode", "buffer_only", "--hicache-host-memory-mode buffer_only")
        return policy

    def _layout(self, store: str | None) -> None:
        """I/O back-end and layout, with the corrections that the server makes, in its order."""
        io = self.choice("--hicache-io-backend", "direct kernel kernel_ascend") or "kernel"
        usual = "layer_first" if self.version == "0.5.9" else "page_first"
        layout = self.choice("--hicache-mem-layout", _LAYOUTS) or usual
        if layout == "page_first_direct" and io == "kernel":
            io = "direct"
            self.notes.append(
                "--hicache-mem-layout page_first_direct: the I/O back-end kernel cannot use it: "
                "it becomes direct, as in SGLang"
            )
        if (
            self.version == "0.5.9" and io == "kernel"
            and self.given.get("--decode-attention-backend") == ["fa3"]
        ):  # fmt: skip
            io = "direct"
            self.notes.append(
                "--decode-attention-backend fa3: SGLang 0.5.9 does not combine it with the I/O "
                "back-end kernel: it becomes direct"
            )
        if layout == "page_first" and io == "direct":
            layout = "page_first_direct"
            self.notes.append(
                "--hicache-io-backend direct: it cannot use the layout page_first: it becomes "
                "page_first_direct, as in SGLang"
            )
        if layout == "layer_first" and store in ("mooncake", "npu_memcache"):
            layout = {"direct": "page_first_direct", "kernel": "page_first"}.get(io, layout)
            self.notes.append(
                f"--hicache-storage-backend {store}: it cannot use the layout layer_first: it "
                f"becomes {layout}, as in SGLang"
            )
        if io == "kernel_ascend":
            self.notes.append("--hicache-io-backend kernel_ascend: simulated as kernel")
        self.options["machine.transfer_mode"] = "dma" if io == "direct" else "kernel"
        self.layout = layout
        if not self.put("machine.host_layout", layout, "") and layout != usual:
            self.not_here.append(f"layout {layout} (machine.host_layout)")

    # ------------------------------------------------------------------ L3

    def _decode_server(self, ranks: int) -> None:
        """A decode server that offloads has a staging pool and a store, and nothing else of
        HiCache.
        """
        self._size()
        self._layout(self.choice("--hicache-storage-backend", _STORES[self.version]))
        self._storage(ranks)
        self.put("tiers.l2_mode", "buffer_only", "")
        self.put("cache.write_policy", "none", "")
        self.notes.append(
            f"{_OFFLOAD} without --enable-hierarchical-cache: L2 is its staging pool, and only "
            "what it offloads is written; the prompts are computed here, too"
        )

    def _retries(self) -> None:
        for name, key in (
            ("--hicache-storage-prefetch-retry-max-attempts", "prefetch.retries"),
            ("--hicache-storage-prefetch-retry-poll-interval", "prefetch.retry_passes"),
        ):
            count = self.whole(name, least=0)
            if count is not None:
                self.put(key, count, f"{name} {count}")

    def _storage(self, ranks: int) -> None:
        store = self.text("--hicache-storage-backend")
        stop = self.choice("--hicache-storage-prefetch-policy", "best_effort wait_complete timeout")
        text = self.text(EXTRA_CONFIG)
        extra = read_extra_config(text, self.version) if text else Extra({}, None, {}, ())
        self.notes += extra.notes
        if store is None:
            if stop or text:
                self.notes.append(
                    "no --hicache-storage-backend: there is no L3, and its arguments have no effect"
                )
            self.options["tiers.l3"] = "0"
            return
        if store == "dynamic":
            lacking = [
                k for k in ("backend_name", "module_path", "class_name") if k not in extra.store
            ]
            if lacking:
                raise InputError(
                    f"{ORIGIN}: --hicache-storage-backend dynamic: {EXTRA_CONFIG} lacks "
                    f"{', '.join(lacking)}"
                )
        self._l3_size(store, extra, ranks)
        if store in STORES:
            self.put("machine.store", store, "")
        elif store != "file":
            self.notes.append(
                f"--hicache-storage-backend {store}: its times are not modelled: L3 is the "
                "profile's disk; machine.store takes a model of yours"
            )
        self._retries()
        if stop is not None:
            self.put("prefetch.stop", stop, f"--hicache-storage-prefetch-policy {stop}")
        page = self.options["tiers.page_size_tokens"]
        threshold = extra.options.get("prefetch.threshold_tokens")
        if isinstance(threshold, int) and isinstance(page, int) and threshold < page:
            self.notes.append(
                f"prefetch_threshold {threshold}: a page is the least: it becomes {page}"
            )
            extra.options["prefetch.threshold_tokens"] = page
        self._head_shards(extra.options, ranks)
        for key, value in extra.options.items():
            self.put(key, value, f"{EXTRA_CONFIG} ({key.partition('.')[2]})")

    def _head_shards(self, options: dict[str, object], ranks: int) -> None:
        """SGLang cuts heads for servers of another size in one layout only."""
        shards = options.get("ranks.tp_lcm_size")
        if not isinstance(shards, int):
            return
        if shards % ranks:
            raise InputError(
                f"{ORIGIN}: {EXTRA_CONFIG}: tp_lcm_size is {shards}: SGLang does not start unless "
                f"it is a multiple of --tp-size, {ranks}"
            )
        if shards and self.layout != "page_head":
            self.notes.append(
                f"tp_lcm_size {shards}: without effect in SGLang but with --hicache-mem-layout "
                f"page_head; the layout is {self.layout}"
            )
            del options["ranks.tp_lcm_size"]

    def _l3_size(self, store: str, extra: Extra, ranks: int) -> None:
        size = extra.l3
        if size is not None and store == "mooncake" and ranks > 1 and self._writes_once():
            # Every rank brings its segment, and one rank's pages may fill them all.
            size = type(size)(size.digits * ranks, size.unit, size.decimals)
        if size is None:
            self.notes.append(
                f"--hicache-storage-backend {store}: no limit was given: L3 is taken as "
                f"{UNLIMITED} L1; --l3 says how large it is"
            )
        self.options["tiers.l3"] = UNLIMITED if size is None else size

    def _writes_once(self) -> bool:
        """Whether one rank writes what all hold alike, as far as the model is known."""
        name = self.options.get("model.name")
        try:
            return name is not None and load_geometry(str(name)).kind == "mla"
        except InputError:  # said when the scenario is used
            return False

    def _without_hicache(self) -> None:
        idle = sorted(name for name in self.given if "hicache" in name)
        self.used.update(idle)
        if idle:
            self.notes.append(
                f"no --enable-hierarchical-cache: there is no L2 and no L3, and {', '.join(idle)} "
                f"{'has' if len(idle) == 1 else 'have'} no effect"
            )
        self.options["tiers.l2"] = "0"
        self.options["tiers.l3"] = "0"
