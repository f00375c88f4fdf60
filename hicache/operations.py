"""What the engine asks of a machine, and what the machine answers. Plain records, compared by
value.

A page list is written as runs `((first page, count), ...)`: short to compare, to record and to read
back. In modes that count pages without naming them the lists are empty.

        S2H            H2D
    L3 -----> L2 -----> L1        storage (L3), host (L2), device (L1)
       <-----    <-----
        H2S            D2H
"""

from __future__ import annotations

from typing import Literal, NamedTuple

Direction = Literal["d2h", "h2d", "h2s", "s2h"]
DIRECTIONS: tuple[Direction, ...] = ("d2h", "h2d", "h2s", "s2h")
PageRuns = tuple[tuple[int, int], ...]


class Copy(NamedTuple):
    """Move `pages` pages of KV cache, `size_bytes` in all, from one tier to the next."""

    direction: Direction
    pages: int
    size_bytes: int
    # Runs that are consecutive at the source and the target at once; 1 where pages are only
    # counted.
    extents: int
    source: PageRuns = ()
    target: PageRuns = ()


class Chunk(NamedTuple):
    """One request's share of a prefill step."""

    request: int
    new_tokens: int
    past_tokens: int


class Prefill(NamedTuple):
    """One prefill step. With `decode_batch` > 0 it also advances that many requests by one token
    each.
    """

    chunks: tuple[Chunk, ...]
    tokens: int
    decode_batch: int = 0
    decode_context_tokens: int = 0


class Decode(NamedTuple):
    """A burst: up to `max_steps` decode steps of one batch.

    `context_tokens` is the sum of the requests' lengths before the first step; each step adds
    `batch`. The burst ends early, at a step boundary, when the engine asks its lane to
    (`Lanes.end_burst`).
    """

    batch: int
    context_tokens: int
    max_steps: int
    requests: tuple[int, ...] = ()


Operation = Copy | Prefill | Decode


class Completion(NamedTuple):
    """What the machine says of a finished operation. Times in ns on the environment's clock.

    submitted <= started <= finished <= stamp. `setup_ns` is the part of finished - submitted that
    will not recur (first allocation of a work buffer); the cost model does not learn it. `steps`
    and `step_ends_ns` belong to `Decode`: how many steps were done and when each ended.
    """

    number: int
    operation: Operation
    submitted_ns: int
    started_ns: int
    finished_ns: int
    stamp_ns: int
    setup_ns: int = 0
    steps: int = 0
    step_ends_ns: tuple[int, ...] = ()

    @property
    def recurring_ns(self) -> int:
        """What the same operation would take again: enqueue, queue wait, service and its notice."""
        return self.stamp_ns - self.submitted_ns - self.setup_ns
