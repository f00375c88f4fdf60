"""The engine's options: plain frozen records, checked where they are made. A preset is a named set
of them.

Nothing here reads a file; `scenario` decodes these records and names the key of a bad value.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from hicache.errors import InputError

EvictionName = Literal["lru", "lfu", "fifo", "filo", "mru", "slru", "priority"]
EVICTION_NAMES: tuple[EvictionName, ...] = (
    "lru", "lfu", "fifo", "filo", "mru", "slru", "priority",
)  # fmt: skip


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
    write_policy: Literal["write_through", "none"] = "write_through"
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
        _positive("cache.writes_in_flight", self.writes_in_flight)
        _not_negative("cache.merge_writes_tokens", self.merge_writes_tokens)
        _fraction("cache.write_backlog_fraction", self.write_backlog_fraction)


@dataclass(frozen=True, slots=True)
class RestoreOptions:
    """When a hit below L1 is brought back, and what is believed before anything was measured."""

    # "cost": when the cost model expects a gain. "threshold": from `threshold_tokens` on. "always",
    # "never".
    policy: Literal["cost", "always", "never", "threshold"] = "cost"
    threshold_tokens: int = 256
    # True: restores of queued requests run under decode. False: the engine waits for each restore.
    overlap: bool = True
    # Every N-th refusal of the cost policy is restored all the same, so that a slow first sample
    # cannot stop sampling for ever. 0: never.
    probe_every: int = 0
    prior_recompute_us_per_token: float = 50.0
    prior_host_gib_per_s: float = 12.0
    prior_storage_gib_per_s: float = 3.0

    def __post_init__(self) -> None:
        _not_negative("restore.threshold_tokens", self.threshold_tokens)
        _not_negative("restore.probe_every", self.probe_every)
        _positive("restore.prior_recompute_us_per_token", self.prior_recompute_us_per_token)
        _positive("restore.prior_host_gib_per_s", self.prior_host_gib_per_s)
        _positive("restore.prior_storage_gib_per_s", self.prior_storage_gib_per_s)


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

    def __post_init__(self) -> None:
        _positive("page_size_tokens", self.page_size_tokens)
        _positive("bytes_per_token", self.bytes_per_token)
        _positive("device_pages", self.device_pages)
        _not_negative("host_pages", self.host_pages)
        _not_negative("storage_pages", self.storage_pages)
        _not_negative("check_every_steps", self.check_every_steps)
        if self.storage_pages and not self.host_pages:
            raise InputError(
                f"storage_pages is {self.storage_pages} but host_pages is 0: "
                "pages reach L3 through L2, so an L3 needs an L2"
            )

    @property
    def page_bytes(self) -> int:
        """Bytes of one page of KV cache."""
        return self.page_size_tokens * self.bytes_per_token


def _positive(key: str, value: float) -> None:
    if not value > 0:
        raise InputError(f"{key} is {value}: it must be greater than 0")


def _not_negative(key: str, value: float) -> None:
    if not value >= 0:
        raise InputError(f"{key} is {value}: it must not be negative")


def _fraction(key: str, value: float) -> None:
    if not 0 <= value <= 1:
        raise InputError(f"{key} is {value}: it must lie between 0 and 1")
