"""SGLang's counters and what of a result stands beside each: one table for the comparison and for
the export.

A counter that this version has no value for has none: it is shown as unknown, never as 0.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Literal, NamedTuple

Summary = Mapping[str, Any]
Ranks = Literal["largest", "sum"]


class Counter(NamedTuple):
    """`name` without `sglang:`. `labels`: those that the series must have; a value that ends in *
    stands for all that begin so. `predicted`: of a summary, None where it is not known. `ranks`:
    what the values of several ranks are together.
    """

    name: str
    kind: Literal["counter", "gauge"]
    help: str
    predicted: Callable[[Summary], float | None]
    labels: tuple[tuple[str, str], ...] = ()
    ranks: Ranks = "largest"

    @property
    def shown(self) -> str:
        """Name and labels for people."""
        inner = ",".join(f"{key}={value.rstrip('*')}" for key, value in self.labels)
        return f"{self.name}{{{inner}}}" if inner else self.name


def _at(*path: str) -> Callable[[Summary], float | None]:
    """The number at this path of a summary; None if there is none."""

    def read(summary: Summary) -> float | None:
        value: Any = summary
        for key in path:
            if not isinstance(value, Mapping):
                return None
            value = value.get(key)
        return value if isinstance(value, (int, float)) else None

    return read


def _of_all_ranks(name: str) -> Callable[[Summary], float | None]:
    """A number of a summary that is one rank's, of all ranks."""
    one, ranks = _at(name), _at("ranks", "tp")

    def read(summary: Summary) -> float | None:
        value = one(summary)
        return None if value is None else value * (ranks(summary) or 1)

    return read


def _cached(tier: str, label: str) -> Counter:
    return Counter(
        "cached_tokens_total", "counter", "Cached prompt tokens by source.",
        _at("cached_tokens_total", tier), (("cache_source", label),),
    )  # fmt: skip


UNFULFILLED = (
    "below_threshold", "host_capacity", "device_capacity", "storage_transfer", "deadline",
    "rate_limited", "dropped",
)  # fmt: skip
_UNFULFILLED_NAME = "storage_prefetch_unfulfilled_tokens_total"
_DROPPED_NAME = "hicache_dropped_tokens_total"

COUNTERS: tuple[Counter, ...] = (
    Counter("num_requests_total", "counter", "Requests that ended.", _at("requests")),
    Counter("prompt_tokens_total", "counter", "Prompt tokens.", _at("prompt_tokens")),
    Counter("generation_tokens_total", "counter", "Output tokens.", _at("output_tokens")),
    _cached("device", "device"),
    _cached("host", "host"),
    _cached("storage", "storage*"),
    Counter(
        "evicted_tokens_total", "counter", "Tokens that had to leave L1.",
        _at("evicted_tokens_total", "device"),
    ),
    Counter(
        "load_back_tokens_total", "counter", "Tokens from L2 to L1.", _at("load_back_tokens_total")
    ),
    Counter(
        "load_back_bytes_total", "counter", "Bytes from L2 to L1.",
        _of_all_ranks("load_back_bytes_total"), ranks="sum",
    ),
    Counter(
        "load_back_duration_seconds_sum", "counter", "Time of these copies.",
        _at("transfers", "h2d", "service_s"),
    ),
    Counter(
        "hicache_backup_tokens_total", "counter", "Tokens from L1 to L2.",
        _at("hicache_backup_tokens_total"),
    ),
    Counter(
        "hicache_backup_bytes_total", "counter", "Bytes from L1 to L2.",
        _of_all_ranks("hicache_backup_bytes_total"), ranks="sum",
    ),
    Counter(
        "hicache_backup_duration_seconds_sum", "counter", "Time of these copies.",
        _at("transfers", "d2h", "service_s"),
    ),
    *(
        Counter(
            _DROPPED_NAME, "counter", "Tokens that left L1 without a copy in L2.",
            _at(_DROPPED_NAME, reason), (("reason", reason),),
        )
        for reason in ("host_pressure", "write_through_unbacked_eviction")
    ),
    Counter(
        "backuped_tokens_total", "counter", "Tokens from L2 to L3.", _at("backuped_tokens_total")
    ),
    Counter(
        "prefetched_tokens_total", "counter", "Tokens from L3 to L2.",
        _at("prefetched_tokens_total"),
    ),
    Counter(
        "storage_prefetch_hit_tokens_total", "counter", "Tokens that L3 said it holds.",
        _at("storage_prefetch_hit_tokens_total"),
    ),
    *(
        Counter(
            _UNFULFILLED_NAME, "counter", "Of them, not made use of.",
            _at(_UNFULFILLED_NAME, reason), (("reason", reason),),
        )
        for reason in UNFULFILLED
    ),
    Counter(
        "hicache_host_used_tokens", "gauge", "Tokens in L2 (at the end).",
        _at("hicache_host_used_tokens"),
    ),
    Counter(
        "hicache_host_total_tokens", "gauge", "Tokens that L2 has room for.",
        _at("hicache_host_total_tokens"),
    ),
)  # fmt: skip
GAUGES = frozenset({each.name for each in COUNTERS if each.kind == "gauge"} | {"cache_hit_rate"})


class Spread(NamedTuple):
    """A histogram of SGLang's, in seconds, and the spread of a summary (ms) that says the same;
    `column`: of requests.parquet, in ns.
    """

    name: str
    shown: str
    key: str
    column: str
    help: str


SPREADS = (
    Spread("time_to_first_token_seconds", "TTFT", "ttft_ms", "ttft_ns", "Time to first token."),
    Spread("queue_time_seconds", "queue", "queue_ms", "queue_ns", "Time in the queue."),
    Spread(
        "request_time_per_output_token_seconds", "TPOT", "tpot_ms", "tpot_ns",
        "Time per output token of a request.",
    ),
    Spread("e2e_request_latency_seconds", "end to end", "e2e_ms", "e2e_ns", "Whole requests."),
)  # fmt: skip
# SGLang's bucket edges for times of requests.
EDGES_S = (
    0.1, 0.2, 0.4, 0.6, 0.8, 1.0, 2.0, 4.0, 6.0, 8.0, 10.0, 20.0, 40.0, 60.0, 80.0, 100.0, 200.0,
    400.0, 600.0, 1200.0, 1800.0, 2400.0,
)  # fmt: skip
# And for times between tokens.
TOKEN_EDGES_S = (
    0.002, 0.004, 0.006, 0.008, 0.01, 0.015, 0.02, 0.025, 0.03, 0.035, 0.04, 0.06, 0.08, 0.1, 0.2,
    0.4, 0.6, 0.8, 1.0, 2.0, 4.0, 6.0, 8.0,
)  # fmt: skip
