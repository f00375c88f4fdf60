"""The report on a trace: plain numbers with their units. It reads and prints nothing."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True)
class Spread:
    """Some numbers: how many, their sum, and how they spread (quantiles are ones of them)."""

    count: int = 0
    total: float = 0
    mean: float = 0
    p50: float = 0
    p90: float = 0
    p99: float = 0
    max: float = 0


@dataclass(frozen=True, slots=True)
class Ideal:
    """What a cache without bounds hits, of blocks (or pages) and of all prompt tokens."""

    # Tokens of a block; 0: of any length.
    block_tokens: int
    # Of all prompts, and of those the ones that hit.
    blocks: int
    hit_blocks: int
    hit_rate_blocks: float
    hit_rate_tokens: float


@dataclass(frozen=True, slots=True)
class Needed:
    """The least LRU cache with a part of the ideal's hits."""

    part: float
    blocks: int
    tokens: int


@dataclass(frozen=True, slots=True)
class Prefix:
    """What some prompts start with. `repeated_tokens`: of what only these share, all but once."""

    requests: int
    tokens: int
    repeated_tokens: int


@dataclass(frozen=True, slots=True)
class Sharing:
    """Of all prompt tokens, those in blocks that so many prompts have. The four sum to 1."""

    used_once: float
    used_2_to_9_times: float
    used_10_times_or_more: float
    without_id: float
    # What all prompts start with.
    common_prefix_tokens: int
    repeated_prompts: int
    top_prefixes: tuple[Prefix, ...]


@dataclass(frozen=True, slots=True)
class Recorded:
    """What the server that was recorded found in its cache, over the requests that say it."""

    requests: int
    prompt_tokens: int
    cached_tokens: int
    hit_rate_tokens: float
    # What the ideal is for the same requests.
    ideal_hit_rate_tokens: float


@dataclass(slots=True)
class TraceInfo:
    """The report. None where the trace does not say it."""

    path: str
    format: str
    sha256: str = ""
    requests: int = 0
    # Rows without a timestamp: when they come follows from answers.
    untimed_requests: int = 0
    # Of those, the ones that wait for another's answer; the others come when the replay says.
    waiting_requests: int = 0
    duration_s: float = 0
    mean_rate_per_s: float = 0
    peak_requests_per_minute: int = 0
    sessions: int = 0
    turns: Spread = field(default_factory=Spread)
    prompt_tokens: Spread = field(default_factory=Spread)
    output_tokens: Spread = field(default_factory=Spread)
    think_s: Spread | None = None
    # What `ideal` counts: "blocks" of one size, "pieces" of any length, "pages" of token ids.
    counted: str = ""
    ideal: Ideal | None = None
    ideal_pages: Ideal | None = None
    # Distinct blocks of prompts and of named answers: what a cache without bounds holds in the end.
    unique_blocks: int = 0
    # Tokens of the blocks in `reuse` and `sharing`.
    reuse_block_tokens: int = 0
    reuse: tuple[Needed, ...] = ()
    sharing: Sharing | None = None
    recorded: Recorded | None = None
    # How the trace says that it is meant to be replayed (`traces.made.Hints`).
    hints: dict[str, Any] = field(default_factory=dict)
    looks_wrong: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    bad_rows: int = 0
    listed_bad_rows: list[str] = field(default_factory=list)

    def as_dict(self) -> dict[str, Any]:
        """The same as plain values, for JSON."""
        return asdict(self)


def spread(numbers: Sequence[int | float]) -> Spread:
    """How `numbers` spread; the quantile q is the least of them that a part of q is not above."""
    if not numbers:
        return Spread()
    ordered = sorted(numbers)
    count, total = len(ordered), sum(ordered)
    p50, p90, p99 = (ordered[math.ceil(part * count) - 1] for part in (0.5, 0.9, 0.99))
    return Spread(count, total, total / count, p50, p90, p99, ordered[-1])
