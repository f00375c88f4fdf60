"""The engine's options: plain frozen records, checked where they are made. A preset is a named set
of them.

Nothing here reads a file; `scenario` decodes these records and names the key of a bad value.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from hicache.errors import InputError
from hicache.option_checks import fraction as _fraction
from hicache.option_checks import not_negative as _not_negative
from hicache.option_checks import positive as _positive
from hicache.option_checks import watermarks as _watermarks
from hicache.store_options import OffloadOptions, StorageOptions

EvictionName = Literal[
    "lru", "lfu", "fifo", "filo", "mru", "slru", "priority", "gdsf", "s3fifo", "arc",
]  # fmt: skip
EVICTION_NAMES: tuple[EvictionName, ...] = (
    "lru", "lfu", "fifo", "filo", "mru", "slru", "priority", "gdsf", "s3fifo", "arc",
)  # fmt: skip


# Who decides which of several engines serves a request (`hicache.router`).
RouterName = Literal["round_robin", "least_loaded", "cache_aware"]


@dataclass(frozen=True, slots=True)
class CacheOptions:
    """What is cached, where it goes and what leaves first."""

    # "full": only whole pages are cached. "partial": a prompt's last, partly filled page is cached
    # too, and is hit only by a prompt that names the same content for it.
    pages: Literal["full", "partial"] = "full"
    # "last_token_computed": at most prompt - 1 tokens can hit, as in every server. "none": all of
    # it can.
    hit_cap: Literal["last_token_computed", "none"] = "last_token_computed"
    # Whether a finished request's output (all but its last token) is cached behind its prompt.
    outputs: Literal["cached", "dropped"] = "cached"
    eviction: EvictionName = "lru"
    # "node": whole leaves until the shortfall is covered. "page": exactly the shortfall, from the
    # leaf's tail.
    eviction_granularity: Literal["node", "page"] = "node"
    # How much goes as soon as something is missing. "shortfall": what is missing. "request": as
    # much as was asked for, whatever is free.
    l1_eviction_amount: Literal["shortfall", "request"] = "shortfall"
    l2_eviction_amount: Literal["shortfall", "request"] = "shortfall"
    # The same of L1, where a load from L2 asks for it ("request": as much as is loaded).
    load_eviction_amount: Literal["shortfall", "request"] = "shortfall"
    # "any": whatever no child in L2 needs. "not_in_l1": only what L1 does not hold; who asks for
    # more gets nothing, and what could go is gone. "duplicates_first": copies of what L1 holds,
    # oldest first (`hicache.duplicates`), then as "not_in_l1".
    l2_victims: Literal["any", "not_in_l1", "duplicates_first"] = "any"
    # What counts as used by a lookup or an insert. "matched": what matched, all of it at one time.
    # "walked", as in SGLang: each node at a time of its own, parents first; one that matched in
    # part is used as a whole before it is cut, and its upper half is a node made now.
    touch: Literal["matched", "walked"] = "matched"
    # What goes, is written and is counted as one. "run": consecutive page keys. "insert", as in
    # SGLang: all that one insert has added, however many runs that is, until a path ends or
    # branches off inside it.
    node_boundaries: Literal["run", "insert"] = "run"
    # Eviction ahead of need, before each step: from the high mark on, in parts of the tier in use,
    # down to the low one. 0: never.
    l1_high_watermark: float = 0.0
    l1_low_watermark: float = 0.0
    l2_high_watermark: float = 0.0
    l2_low_watermark: float = 0.0
    # For "gdsf": a page behind so many tokens takes twice as long to compute as the first one.
    gdsf_doubling_tokens: int = 32768
    # For "priority": by how much a request that has ended with an answer raises its prompt above
    # itself and its answer. SGLang from 0.5.20 on: 1.
    prompt_priority_step: int = 0
    # What a hit is that "lfu", "slru" and the write policies count. "request": each node that a
    # request leaves or finds, once. "insert", as SGLang up to 0.5.20: once when its prompt is
    # computed and once more when it has ended, but not where pages come back that had left L1.
    hit_counting: Literal["request", "insert"] = "request"
    # When L2 gets a copy. "write_through": of all that is cached. "write_through_selective": of
    # what was hit as often as `write_after_hits` says (`hicache.write_rules`). "write_back": of
    # what L1 evicts, before it goes (`hicache.write_back`); hits are not counted then.
    write_policy: Literal["write_through", "write_through_selective", "write_back", "none"] = (
        "write_through"
    )
    # Hits from which on a node is written. 0: 1 under write_through, 2 under
    # write_through_selective (3 in old versions of SGLang).
    write_after_hits: int = 0
    # "path": what a request has and L2 lacks is one copy. "node": each node is one, parents first;
    # where one gets no room, nothing behind it is tried.
    write_unit: Literal["path", "node"] = "path"
    # When: "finish" writes prompt and output in one operation (until then L1 keeps them pinned
    # anyway); "prefill" writes the prompt as soon as it is computed, and the output at the end.
    write_at: Literal["finish", "prefill"] = "finish"
    # Copies in flight in each writing direction; what waits behind them is joined into one
    # operation of at most `merge_writes_tokens` tokens (0: never joined).
    writes_in_flight: int = 2
    merge_writes_tokens: int = 65536
    # A write to L3 that would have to wait is declined if the pages waiting would then exceed this
    # part of L2: a slow disk must not pin all of L2. 1 switches the limit off.
    write_backlog_fraction: float = 0.5

    def __post_init__(self) -> None:
        for tier in ("l1", "l2"):
            _watermarks(
                f"cache.{tier}",
                getattr(self, f"{tier}_high_watermark"),
                getattr(self, f"{tier}_low_watermark"),
            )
        _positive("cache.gdsf_doubling_tokens", self.gdsf_doubling_tokens)
        _not_negative("cache.prompt_priority_step", self.prompt_priority_step)
        _not_negative("cache.write_after_hits", self.write_after_hits)
        _positive("cache.writes_in_flight", self.writes_in_flight)
        _not_negative("cache.merge_writes_tokens", self.merge_writes_tokens)
        _fraction("cache.write_backlog_fraction", self.write_backlog_fraction)

    @property
    def least_write_hits(self) -> int:
        """Hits from which on a node is written under `write_policy`."""
        return self.write_after_hits or (2 if self.write_policy == "write_through_selective" else 1)


@dataclass(frozen=True, slots=True)
class RestoreOptions:
    """When a hit below L1 is brought back, and what is believed before anything was measured."""

    # "cost": when the cost model expects a gain. "meet": as much of it as is loaded while the rest
    # is computed. "threshold": from `threshold_tokens` on. "always", "never".
    policy: Literal["cost", "meet", "always", "never", "threshold"] = "cost"
    threshold_tokens: int = 256
    # True: restores of queued requests run under decode. False: the engine waits for each restore.
    overlap: bool = True
    # True: a request is prefilled while its pages still come from L2, each layer as soon as its
    # part of them is there. False: prefill begins when all of them are.
    layerwise: bool = False
    # When a load from L2 begins. "admission": when its request is admitted (and what L3 has is in
    # L2); it runs under decode. "prefill": with the prefill step that needs it; nobody decodes
    # meanwhile. With `layerwise` that step goes on beside it.
    start: Literal["admission", "prefill"] = "admission"
    # True: the loads that begin together (with one prefill step, or one round of admission) are one
    # copy.
    merge_loads: bool = False
    # True: "cost" and "meet" count what is in front of a request: copies under way, and prompts
    # that wait to be computed. False: they compare as if it were alone.
    queue_aware: bool = False
    # Every N-th refusal of "cost" and "meet" is restored all the same, so that a slow first sample
    # cannot stop sampling for ever. 0: never.
    probe_every: int = 0
    prior_recompute_us_per_token: float = 50.0
    prior_host_gib_per_s: float = 12.0
    prior_storage_gib_per_s: float = 3.0

    def __post_init__(self) -> None:
        _not_negative("restore.threshold_tokens", self.threshold_tokens)
        _not_negative("restore.probe_every", self.probe_every)
        if self.layerwise and not self.overlap:
            raise InputError(
                "restore.layerwise is true and restore.overlap false: an engine that waits for "
                "each restore prefills nothing meanwhile; allowed: one of the two"
            )
        if self.start == "prefill" and not self.overlap:
            raise InputError(
                "restore.start is prefill and restore.overlap false: an engine that waits for each "
                "restore would wait for one that begins when it goes on; allowed: one of the two"
            )
        _positive("restore.prior_recompute_us_per_token", self.prior_recompute_us_per_token)
        _positive("restore.prior_host_gib_per_s", self.prior_host_gib_per_s)
        _positive("restore.prior_storage_gib_per_s", self.prior_storage_gib_per_s)


@dataclass(frozen=True, slots=True)
class PrefetchOptions:
    """How L3 is read (`hicache.prefetch`). All but `mode` belong to "queued"."""

    # "restore": by the restore of a request. "queued": into L2, while a request is in the queue.
    mode: Literal["restore", "queued"] = "restore"
    # What is worth a question, or a read; at least a page.
    threshold_tokens: int = 256
    # When a request's turn has come and its prefetch is not over. "best_effort": it ends.
    # "wait_complete": the request waits, those behind it do not. "timeout": it waits until
    # min(max, base + per_ki_token * tokens / 1024) has passed since it was queued (max 0: none).
    stop: Literal["best_effort", "wait_complete", "timeout"] = "wait_complete"
    timeout_base_s: float = 2.0
    timeout_per_ki_token_s: float = 0.1
    timeout_max_s: float = 30.0
    # Pages of one question, and of one read or write.
    query_batch_pages: int = 128
    read_batch_pages: int = 128
    # Reads at once.
    workers: int = 1
    # Nothing more is asked for while so much is: this part of L2, or of what L2 has beyond L1.
    limit: Literal["host", "host_less_device"] = "host"
    limit_fraction: float = 0.5
    # When L2 pages are taken: for what L3 has, or for all that is asked for.
    allocate: Literal["after_lookup", "before_lookup"] = "after_lookup"
    # Too little room in L2: a shorter part is read, or nothing.
    shortfall: Literal["trim", "revoke"] = "trim"
    # When what has come may be hit: when the read is done, or when the turn of its request comes.
    publish: Literal["done", "turn"] = "done"
    # How often one that was declined, or found too little, is tried again, and after how many
    # passes of admission.
    retries: int = 0
    retry_passes: int = 8

    def __post_init__(self) -> None:
        for name in (
            "threshold_tokens", "timeout_base_s", "timeout_per_ki_token_s", "timeout_max_s",
            "retries",
        ):  # fmt: skip
            _not_negative(f"prefetch.{name}", getattr(self, name))
        for name in ("query_batch_pages", "read_batch_pages", "workers", "retry_passes"):
            _positive(f"prefetch.{name}", getattr(self, name))
        _fraction("prefetch.limit_fraction", self.limit_fraction)


@dataclass(frozen=True, slots=True)
class SchedulerOptions:
    """How requests are batched."""

    max_running_requests: int = 256
    # Tokens of one prefill step; longer prompts are computed in chunks (SGLang's
    # chunked_prefill_size).
    chunk_tokens: int = 8192
    # True: a prefill step also advances the requests that decode. False: prefill goes first, on its
    # own.
    mixed_chunk: bool = False
    # The part of the outputs still to come for which admission keeps room (SGLang's
    # new_token_ratio). Too little room ends in retractions.
    output_reserve_fraction: float = 0.3

    def __post_init__(self) -> None:
        _positive("scheduler.max_running_requests", self.max_running_requests)
        _positive("scheduler.chunk_tokens", self.chunk_tokens)
        _fraction("scheduler.output_reserve_fraction", self.output_reserve_fraction)


@dataclass(frozen=True, slots=True)
class LoadOptions:
    """What makes a request arrive (`hicache.arrivals`)."""

    # "open": its time, whatever became of earlier ones. "closed": a later turn of a session comes
    # when the answer before it has ended and its think time has passed.
    loop: Literal["open", "closed"] = "open"
    # Sessions at once in a closed loop: the next one begins when one has ended. 0: no limit.
    clients: int = 0
    # Requests under way at once in a closed loop; what is due waits at the client. 0: no limit.
    parallel: int = 0
    # In a closed loop: no session's next turn comes before every session has had this one.
    barrier: bool = False

    def __post_init__(self) -> None:
        _not_negative("clients", self.clients)
        _not_negative("parallel", self.parallel)
        if self.loop == "open":
            for key, value in (("clients", self.clients), ("parallel", self.parallel)):
                if value:
                    raise InputError(f"{key} is {value}: it limits a closed loop, and loop is open")
            if self.barrier:
                raise InputError("barrier is set: it holds a closed loop up, and loop is open")


@dataclass(frozen=True, slots=True)
class EngineOptions:
    """Everything the engine must know besides the requests. Capacities in pages; 0 switches a tier
    off.
    """

    page_size_tokens: int
    bytes_per_token: int
    device_pages: int
    host_pages: int = 0
    storage_pages: int = 0
    cache: CacheOptions = field(default_factory=CacheOptions)
    restore: RestoreOptions = field(default_factory=RestoreOptions)
    scheduler: SchedulerOptions = field(default_factory=SchedulerOptions)
    # "named": allocators hand out page numbers, as real pools need. "counted": they only count.
    page_ids: Literal["counted", "named"] = "counted"
    # `check_integrity` after every N-th scheduler step; 0: never.
    check_every_steps: int = 0
    storage: StorageOptions = field(default_factory=StorageOptions)
    prefetch: PrefetchOptions = field(default_factory=PrefetchOptions)
    offload: OffloadOptions = field(default_factory=OffloadOptions)
    # "buffer_only": L2 is a buffer between L1 and a store; nothing is kept or hit there
    # (`hicache.staged_writes`, `hicache.staged_reads`).
    host_mode: Literal["cache", "buffer_only"] = "cache"
    # Its number among the engines that share a store: pages that no prompt names must not have the
    # same keys in two of them.
    instance: int = 0
    # Tensor-parallel ranks, each with its part of every page: sizes and bytes are those of one. And
    # how many of them write L3: one, where all hold the same (MLA).
    ranks: int = 1
    writing_ranks: int = 1

    def __post_init__(self) -> None:
        _positive("page_size_tokens", self.page_size_tokens)
        _positive("bytes_per_token", self.bytes_per_token)
        _positive("device_pages", self.device_pages)
        _not_negative("host_pages", self.host_pages)
        _not_negative("storage_pages", self.storage_pages)
        _not_negative("check_every_steps", self.check_every_steps)
        _not_negative("instance", self.instance)
        _positive("ranks", self.ranks)
        assert self.writing_ranks in (1, self.ranks), "one rank writes L3, or every one does"
        if self.storage_pages and not self.host_pages:
            raise InputError(
                f"storage_pages is {self.storage_pages} but host_pages is 0: "
                "pages reach L3 through L2, so an L3 needs an L2"
            )
        if (self.storage.index == "store") != (self.prefetch.mode == "queued"):
            raise InputError(
                f"storage.index is {self.storage.index} and prefetch.mode {self.prefetch.mode}: a "
                "store is read by prefetches of queued requests, and the tree's own L3 by "
                'restores; allowed: "store" with "queued", or "tree" with "restore"'
            )
        if self.buffers:
            _check_buffer(self)

    @property
    def has_store(self) -> bool:
        """Whether L3 is a store that is asked by page key."""
        return self.storage.index == "store" and self.storage_pages > 0

    @property
    def buffers(self) -> bool:
        """Whether L2 is only a buffer."""
        return self.host_mode == "buffer_only"

    @property
    def capacities(self) -> tuple[int, int, int]:
        """Pages of L1, L2 and L3 that the tree keeps account of: nothing of a store."""
        storage_pages = self.storage_pages if self.storage.index == "tree" else 0
        return (self.device_pages, self.host_pages, storage_pages)

    @property
    def offload_pages(self) -> int:
        """Pages of a stride of an answer that is written while it is made; 0: none is."""
        cached = self.cache.outputs == "cached"
        if not self.offload.decode or not self.storage_pages or not cached:
            return 0
        return max(1, self.offload.stride_tokens // self.page_size_tokens)

    @property
    def capped_page_tokens(self) -> int:
        """Tokens of a page where a prompt's last token is never hit (`cache.hit_cap`); 0 where all
        of a prompt may be.
        """
        return self.page_size_tokens if self.cache.hit_cap == "last_token_computed" else 0

    @property
    def page_bytes(self) -> int:
        """Bytes of one page of KV cache."""
        return self.page_size_tokens * self.bytes_per_token


def _check_buffer(options: EngineOptions) -> None:
    other = ""
    if not options.storage_pages:
        other = "tiers.l3 is 0"
    elif options.storage.index == "tree":
        other = "storage.index is tree"
    elif options.cache.write_policy == "write_back":
        other = "cache.write_policy is write_back"
    if other:
        raise InputError(
            f"tiers.l2_mode is buffer_only and {other}: host memory is then a buffer in front of a "
            'store, which is written through; allowed: "cache", or an L3 with storage.index = '
            '"store" and another cache.write_policy than "write_back"'
        )
