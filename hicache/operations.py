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

from collections.abc import Iterator
from typing import Any, ClassVar, Literal, final

Direction = Literal["d2h", "h2d", "h2s", "s2h"]
DIRECTIONS: tuple[Direction, ...] = ("d2h", "h2d", "h2s", "s2h")
PageRuns = tuple[tuple[int, int], ...]


class ByValue:
    """A record that is compared, shown and unpacked by its `fields`; nobody changes it.

    Written out instead of named tuples: they are made by the ten thousand, and a class with slots
    is made and read faster, most of all where it is compiled.
    """

    __slots__ = ()

    __match_args__: ClassVar[tuple[str, ...]] = ()

    def fields(self) -> tuple[Any, ...]:
        """The values in the order of the constructor's arguments."""
        raise NotImplementedError

    def __iter__(self) -> Iterator[Any]:
        return iter(self.fields())

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, ByValue) or type(other) is not type(self):
            return False
        return self.fields() == other.fields()

    def __hash__(self) -> int:
        return hash(self.fields())

    def __repr__(self) -> str:
        named = zip(self.__match_args__, self.fields(), strict=True)
        return f"{type(self).__name__}({', '.join(f'{name}={value!r}' for name, value in named)})"


@final
class Copy(ByValue):
    """Move `pages` pages of KV cache, `size_bytes` in all, from one tier to the next.

    `extents`: runs that are consecutive at the source and the target at once; 1 where pages are
    only counted. `keys`: runs of page keys, where L3 is a store that is asked by them; its own
    pages then have no numbers. A read brings the leading pages that are there, a write moves those
    that are not there yet: the completion says how many. `rank`: whose part of the pages it is, in
    copies by keys; all others stand for those of every rank.
    """

    __slots__ = ("direction", "extents", "keys", "pages", "rank", "size_bytes", "source", "target")

    __match_args__ = (
        "direction", "pages", "size_bytes", "extents", "source", "target", "keys", "rank",
    )  # fmt: skip

    def __init__(
        self,
        direction: Direction,
        pages: int,
        size_bytes: int,
        extents: int,
        source: PageRuns = (),
        target: PageRuns = (),
        keys: PageRuns = (),
        rank: int = 0,
    ) -> None:
        self.direction: Direction = direction
        self.pages = pages
        self.size_bytes = size_bytes
        self.extents = extents
        self.source = source
        self.target = target
        self.keys = keys
        self.rank = rank

    def fields(self) -> tuple[Any, ...]:
        return (
            self.direction, self.pages, self.size_bytes, self.extents, self.source, self.target,
            self.keys, self.rank,
        )  # fmt: skip


@final
class Lookup(ByValue):
    """Ask the store how many of `pages` pages it has of what `rank` holds of them, from the first
    on: `keys` are runs of their keys. The completion's `answer` says it.
    """

    __slots__ = ("keys", "pages", "rank")

    __match_args__ = ("pages", "keys", "rank")

    def __init__(self, pages: int, keys: PageRuns, rank: int = 0) -> None:
        self.pages = pages
        self.keys = keys
        self.rank = rank

    def fields(self) -> tuple[Any, ...]:
        return self.pages, self.keys, self.rank


@final
class Chunk(ByValue):
    """One request's share of a prefill step."""

    __slots__ = ("new_tokens", "past_tokens", "request")

    __match_args__ = ("request", "new_tokens", "past_tokens")

    def __init__(self, request: int, new_tokens: int, past_tokens: int) -> None:
        self.request = request
        self.new_tokens = new_tokens
        self.past_tokens = past_tokens

    def fields(self) -> tuple[Any, ...]:
        return self.request, self.new_tokens, self.past_tokens


@final
class Prefill(ByValue):
    """One prefill step. With `decode_batch` > 0 it also advances that many requests by one token
    each.

    `load`: the number of the h2d `Copy` under way that brings pages which the step reads, -1 if
    none does. Each layer of the step waits until its part of the pages is there; where the copy
    fails, the step computes nothing that may be used, and may end in a TransferError itself.
    """

    __slots__ = ("chunks", "decode_batch", "decode_context_tokens", "load", "tokens")

    __match_args__ = ("chunks", "tokens", "decode_batch", "decode_context_tokens", "load")

    def __init__(
        self,
        chunks: tuple[Chunk, ...],
        tokens: int,
        decode_batch: int = 0,
        decode_context_tokens: int = 0,
        load: int = -1,
    ) -> None:
        self.chunks = chunks
        self.tokens = tokens
        self.decode_batch = decode_batch
        self.decode_context_tokens = decode_context_tokens
        self.load = load

    def fields(self) -> tuple[Any, ...]:
        return self.chunks, self.tokens, self.decode_batch, self.decode_context_tokens, self.load


@final
class Decode(ByValue):
    """A burst: up to `max_steps` decode steps of one batch.

    `context_tokens` is the sum of the requests' lengths before the first step; each step adds
    `batch`. The burst ends early, at a step boundary, when the engine asks its lane to
    (`Lanes.end_burst`).
    """

    __slots__ = ("batch", "context_tokens", "max_steps", "requests")

    __match_args__ = ("batch", "context_tokens", "max_steps", "requests")

    def __init__(
        self, batch: int, context_tokens: int, max_steps: int, requests: tuple[int, ...] = ()
    ) -> None:
        self.batch = batch
        self.context_tokens = context_tokens
        self.max_steps = max_steps
        self.requests = requests

    def fields(self) -> tuple[Any, ...]:
        return self.batch, self.context_tokens, self.max_steps, self.requests


Operation = Copy | Prefill | Decode | Lookup


@final
class Completion(ByValue):
    """What the machine says of a finished operation. Times in ns on the environment's clock.

    submitted <= started <= finished <= stamp. `setup_ns` is the part of finished - submitted that
    will not recur (first allocation of a work buffer); the cost model does not learn it. `steps`
    and `step_ends_ns` belong to `Decode`: how many steps were done and when each ended. `steps` is
    the `answer`, in pages, of a `Lookup` and of a `Copy` by keys.
    """

    __slots__ = (
        "finished_ns", "number", "operation", "setup_ns", "stamp_ns", "started_ns", "step_ends_ns",
        "steps", "submitted_ns",
    )  # fmt: skip

    __match_args__ = (
        "number", "operation", "submitted_ns", "started_ns", "finished_ns", "stamp_ns", "setup_ns",
        "steps", "step_ends_ns",
    )  # fmt: skip

    def __init__(
        self,
        number: int,
        operation: Operation,
        submitted_ns: int,
        started_ns: int,
        finished_ns: int,
        stamp_ns: int,
        setup_ns: int = 0,
        steps: int = 0,
        step_ends_ns: tuple[int, ...] = (),
    ) -> None:
        self.number = number
        self.operation = operation
        self.submitted_ns = submitted_ns
        self.started_ns = started_ns
        self.finished_ns = finished_ns
        self.stamp_ns = stamp_ns
        self.setup_ns = setup_ns
        self.steps = steps
        self.step_ends_ns = step_ends_ns

    def fields(self) -> tuple[Any, ...]:
        return (
            self.number, self.operation, self.submitted_ns, self.started_ns, self.finished_ns,
            self.stamp_ns, self.setup_ns, self.steps, self.step_ends_ns,
        )  # fmt: skip

    def ended(self, finished_ns: int, stamp_ns: int) -> Completion:
        """The same operation, finished at another time."""
        return Completion(
            self.number, self.operation, self.submitted_ns, self.started_ns, finished_ns, stamp_ns,
            self.setup_ns, self.steps, self.step_ends_ns,
        )  # fmt: skip

    @property
    def answer(self) -> int:
        """Of a `Lookup`: how many leading pages the store has. Of a read by keys: how many leading
        pages came; of a write: how many were moved, since the store had the others.
        """
        return self.steps

    @property
    def recurring_ns(self) -> int:
        """What the same operation would take again: enqueue, queue wait, service and its notice."""
        return self.stamp_ns - self.submitted_ns - self.setup_ns


@final
class Batches(ByValue):
    """What equal writes to a store, one after the other, came to: how many, of how many pages, how
    many of these were moved because the store had them not, and the sums of their times in ns
    (`hicache.metrics.DirectionStats`).
    """

    __slots__ = ("batches", "moved", "pages", "queue_ns", "recurring_ns", "service_ns")

    __match_args__ = ("batches", "pages", "moved", "queue_ns", "service_ns", "recurring_ns")

    def __init__(
        self,
        batches: int,
        pages: int,
        moved: int,
        queue_ns: int,
        service_ns: int,
        recurring_ns: int,
    ) -> None:
        self.batches = batches
        self.pages = pages
        self.moved = moved
        self.queue_ns = queue_ns
        self.service_ns = service_ns
        self.recurring_ns = recurring_ns

    def fields(self) -> tuple[Any, ...]:
        return (
            self.batches, self.pages, self.moved, self.queue_ns, self.service_ns,
            self.recurring_ns,
        )  # fmt: skip
