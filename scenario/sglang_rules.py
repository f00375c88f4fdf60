"""SGLang's HiCache, rule by rule: which options say it, and with which value in which version.

Facts, read from SGLang's published packages 0.5.9, 0.5.20 and 0.5.23. A rule whose options this
version of HiCache Lab lacks is kept here all the same: a preset sets what there is, and says what
is missing (`scenario.presets`). Nothing here is pretended, and nothing here is executed.
"""

from __future__ import annotations

from typing import NamedTuple

Value = str | int | float | bool
# Its values in the three versions, oldest first.
ByVersion = tuple[Value, Value, Value]

SGLANG_VERSIONS = ("0.5.9", "0.5.20", "0.5.23")
SGLANG_PRESETS = tuple(f"sglang-{version}" for version in SGLANG_VERSIONS)
DEFAULT_SGLANG = "sglang-0.5.20"


class Rule(NamedTuple):
    """`says`: the rule, in a sentence. `options`: the keys that the presets set for it. `needs`:
    further keys, or `key=value`, without which it cannot be had; a scenario sets those.
    """

    says: str
    options: dict[str, ByVersion]
    needs: tuple[str, ...] = ()


def _same(value: Value) -> ByVersion:
    return (value, value, value)


RULES: dict[str, Rule] = {
    "match": Rule(
        "whole pages, at most prompt - 1 tokens hit; prompt and answer are cached",
        {
            "cache.pages": _same("full"),
            "cache.hit_cap": _same("last_token_computed"),
            "cache.outputs": _same("cached"),
        },
    ),
    "touch": Rule(
        "a lookup and an insert touch node by node, parents first, also one that is then split",
        {"cache.touch": _same("walked")},
    ),
    "eviction": Rule(
        "leaves go first, whole nodes, by --radix-eviction-policy",
        {"cache.eviction": _same("lru"), "cache.eviction_granularity": _same("node")},
    ),
    "write through": Rule(
        "what is inserted is copied to L2 at once, one copy after the other, then to L3, however "
        "much is waiting",
        {
            "cache.write_policy": _same("write_through"),
            "cache.write_at": _same("prefill"),
            "cache.writes_in_flight": _same(1),
            "cache.merge_writes_tokens": _same(0),
            "cache.write_backlog_fraction": _same(1.0),
        },
    ),
    "write selectively": Rule(
        "--hicache-write-policy write_through_selective: from the second insert on",
        {"cache.write_after_hits": _same(0)},
        ("cache.write_policy=write_through_selective",),
    ),
    "write back": Rule(
        "--hicache-write-policy write_back: only what L1 evicts is copied, and the eviction waits",
        {},
        ("cache.write_policy=write_back",),
    ),
    "hit count": Rule(
        "hits are counted at inserts: of the prompt, and of prompt and answer at the end (0.5.23: "
        "each node once a request); never under write_back, and not where a node adopts "
        "recomputed pages",
        {"cache.hit_counting": ("insert", "insert", "request")},
    ),
    "prompt first": Rule(
        "at the end a request's prompt gets its priority and one more, its answer the priority",
        {"cache.prompt_priority_step": (0, 1, 1)},
    ),
    "nodes": Rule(
        "what one insert adds is one node, also where it is several runs of consecutive pages",
        {"cache.node_boundaries": _same("insert")},
    ),
    "write by node": Rule(
        "each node is one copy; it is not written while its parent is neither root nor in L2",
        {"cache.write_unit": _same("node")},
    ),
    "L1 shortfall": Rule(
        "how much L1 evicts for an allocation: 0.5.9 all that is asked for, later what is missing",
        {"cache.l1_eviction_amount": ("request", "shortfall", "shortfall")},
    ),
    "load-back room": Rule(
        "a load-back for which not all is free has L1 evict as much as is loaded, or (0.5.23) what "
        "is missing",
        {"cache.load_eviction_amount": ("request", "request", "shortfall")},
    ),
    "L2 shortfall": Rule(
        "L2 evicts all that is asked for as soon as something is missing",
        {"cache.l2_eviction_amount": _same("request")},
    ),
    "L2 victims": Rule(
        "only what has left L1 can leave L2 (0.5.23 with write_back: duplicates of L1 first)",
        {"cache.l2_victims": _same("not_in_l1")},
        ("cache.l2_victims=duplicates_first",),
    ),
    "load-back": Rule(
        "a hit in L2 of 10 tokens or more is loaded, all of it or nothing; prefill waits for it "
        "layer by layer",
        {
            "restore.policy": _same("threshold"),
            "restore.threshold_tokens": _same(10),
            "restore.layerwise": _same(True),
        },
    ),
    "load-back in batches": Rule(
        "loads that wait together are one copy, which begins with the prefill step that needs it",
        {"restore.merge_loads": _same(True), "restore.start": _same("prefill")},
    ),
    "I/O back-end": Rule(
        "--hicache-io-backend kernel: GPU threads read and write pinned memory",
        {"machine.transfer_mode": _same("kernel")},
    ),
    "layout": Rule(
        "--hicache-mem-layout, as a difference in cost",
        {"machine.host_layout": ("layer_first", "page_first", "page_first")},
    ),
    "L2 size": Rule(
        "--hicache-ratio 2, of L1's tokens, rounded down to pages and one more",
        {"tiers.l2": _same("2x"), "tiers.l2_rounding": _same("up_one")},
    ),
    "L3 is asked": Rule(
        "L3 is a store, asked by chained page hash: the tree does not know what it holds",
        {"storage.index": _same("store")},
    ),
    "prefetch": Rule(
        "a queued request asks L3 for what follows its hit, 128 pages a query, and reads it into "
        "L2 with one worker, 128 pages a batch; under 256 tokens it is left",
        {
            "prefetch.mode": _same("queued"),
            "prefetch.threshold_tokens": _same(256),
            "prefetch.query_batch_pages": _same(128),
            "prefetch.read_batch_pages": _same(128),
            "prefetch.workers": _same(1),
        },
    ),
    "prefetch stop": Rule(
        "--hicache-storage-prefetch-policy, with the seconds of timeout (0: no maximum)",
        {
            "prefetch.stop": ("best_effort", "timeout", "timeout"),
            "prefetch.timeout_base_s": (1.0, 2.0, 2.0),
            "prefetch.timeout_per_ki_token_s": (0.25, 0.1, 0.1),
            "prefetch.timeout_max_s": (0.0, 30.0, 30.0),
        },
    ),
    "prefetch limit": Rule(
        "declined while this part of L2 (0.5.9: of what L2 has beyond L1) is being read into",
        {
            "prefetch.limit": ("host_less_device", "host", "host"),
            "prefetch.limit_fraction": (0.8, 0.5, 0.5),
        },
    ),
    "prefetch room": Rule(
        "L2 pages are taken for what hits, or a shorter part of it (0.5.9: before L3 is asked)",
        {
            "prefetch.allocate": ("before_lookup", "after_lookup", "after_lookup"),
            "prefetch.shortfall": ("revoke", "trim", "trim"),
            "prefetch.publish": ("turn", "done", "done"),
        },
    ),
    "buffer-only": Rule(
        "--hicache-host-memory-mode cache (buffer_only: L2 is a staging buffer for L3)",
        {"tiers.l2_mode": _same("cache")},
        ("tiers.l2_mode=buffer_only",),
    ),
    "ranks": Rule(
        "--tp-size: sizes per rank, all ranks agree by the minimum, MLA is written by one",
        {},
        ("ranks.tp", "ranks.tp_lcm_size"),
    ),
    "decode offload": Rule(
        "--disaggregation-decode-enable-offload-kvcache: a decode server writes what it makes to "
        "L3, by stride (0: a page)",
        {"offload.decode": _same(False), "offload.stride_tokens": _same(0)},
    ),
    "attach": Rule(
        "L3 is attached and detached at run time, when idle (0: it is there from the start, and "
        "stays)",
        {"storage.attach_s": _same(0.0), "storage.detach_s": _same(0.0)},
    ),
}
