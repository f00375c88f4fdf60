"""What operations took on the machine, looked up for the operations of a simulation.

An operation of the simulated run gets the duration of the recorded one of its kind and subject, in
order: a prefill step that of the same chunks, a step of a burst that of the same requests at the
same context, a copy that of the same direction and size. Where the schedules have parted there is
no such operation: then it takes what the device model says, times what the model was off at the
recorded one most like it. Refuses to know requests and tiers: it sees operations.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict, deque
from collections.abc import Callable, Iterator, Sequence
from heapq import heappop, heappush
from typing import NamedTuple, TypeVar

from hicache.operations import Completion, Copy, Decode, Direction, Operation, Prefill
from sim.step_model import StepModel

T = TypeVar("T")


class Took(NamedTuple):
    """What a recorded operation took: before its device began though it was free, and then."""

    wait_ns: int
    service_ns: int


class Like(NamedTuple):
    """A recorded step and what the device model says of it. `place`: where it lies among others."""

    place: float
    ratio: float
    wait_ns: int


class MeasuredTimes:
    """The durations of a record. `steps`: the device model, for what the record does not hold."""

    def __init__(self, completions: Sequence[Completion], steps: StepModel) -> None:
        self._model = steps
        self.matched = 0
        self.unmatched = 0
        self._prefills: dict[object, deque[Took]] = defaultdict(deque)
        self._decodes: dict[tuple[tuple[int, ...], int], Took] = {}
        self._copies: dict[object, deque[Took]] = defaultdict(deque)
        self._like_prefill: list[Like] = []
        self._like_decode: dict[int, list[Like]] = defaultdict(list)
        self._like_copy: dict[Direction, list[tuple[int, Took]]] = defaultdict(list)
        for done, wait_ns in with_waits(completions):
            self._keep(done, wait_ns)
        self._like_prefill.sort()
        for steps_of_batch in self._like_decode.values():
            steps_of_batch.sort()
        for copies in self._like_copy.values():
            copies.sort()

    def _keep(self, done: Completion, wait_ns: int) -> None:
        operation, took_ns = done.operation, done.finished_ns - done.started_ns
        if type(operation) is Prefill:
            took = Took(wait_ns, took_ns)
            self._prefills[operation.chunks].append(took)
            ratio = took_ns / max(self._model.prefill_ns(operation), 1)
            self._like_prefill.append(Like(_work(operation), ratio, wait_ns))
        elif type(operation) is Decode:
            context, began_ns = operation.context_tokens, done.started_ns
            for ended_ns in done.step_ends_ns:
                took = Took(wait_ns, ended_ns - began_ns)
                self._decodes.setdefault((operation.requests, context), took)
                said_ns = max(self._model.decode_ns(operation.batch, context), 1)
                like = Like(context, took.service_ns / said_ns, wait_ns)
                self._like_decode[operation.batch].append(like)
                context, began_ns, wait_ns = context + operation.batch, ended_ns, 0
        elif type(operation) is Copy:
            took = Took(wait_ns, took_ns)
            self._copies[operation.direction, operation.size_bytes].append(took)
            self._like_copy[operation.direction].append((operation.size_bytes, took))

    def prefill(self, operation: Prefill) -> Took:
        """A prefill step."""
        found = self._taken(self._prefills, operation.chunks)
        if found is not None:
            return found
        said_ns = self._model.prefill_ns(operation)
        like = _nearest(self._like_prefill, _work(operation), _place)
        return Took(0, said_ns) if like is None else Took(like.wait_ns, int(said_ns * like.ratio))

    def decode(self, batch: int, context_tokens: int, requests: tuple[int, ...]) -> Took:
        """One step of a burst; its wait counts where it is the burst's first."""
        found = self._decodes.get((requests, context_tokens)) if requests else None
        if found is not None:
            self.matched += 1
            return found
        self.unmatched += 1
        said_ns = self._model.decode_ns(batch, context_tokens)
        if not self._like_decode:
            return Took(0, said_ns)
        nearest_batch = min(self._like_decode, key=lambda each: (abs(each - batch), each))
        like = _nearest(self._like_decode[nearest_batch], context_tokens, _place)
        assert like is not None
        return Took(like.wait_ns, max(1, int(said_ns * like.ratio)))

    def copy(self, operation: Copy) -> Took | None:
        """A copy; None if the record holds none of its direction."""
        found = self._taken(self._copies, (operation.direction, operation.size_bytes))
        if found is not None:
            return found
        like = _nearest(self._like_copy[operation.direction], operation.size_bytes, _size)
        if like is None:
            return None
        size_bytes, took = like
        return Took(took.wait_ns, took.service_ns * operation.size_bytes // max(size_bytes, 1))

    def _taken(self, known: dict[object, deque[Took]], key: object) -> Took | None:
        waiting = known.get(key)
        if not waiting:
            self.unmatched += 1
            return None
        self.matched += 1
        return waiting.popleft()


def with_waits(completions: Sequence[Completion]) -> Iterator[tuple[Completion, int]]:
    """Each completion in the order of submission, with how long it waited though its device had a
    place for it: launching, notices, the host's threads.
    """
    places = at_once(completions)
    ends: dict[str, list[int]] = {device: [0] * count for device, count in places.items()}
    for done in sorted(completions, key=lambda each: each.number):
        device = device_of(done.operation)
        ready_ns = max(done.submitted_ns, heappop(ends[device]))
        yield done, max(0, done.started_ns - ready_ns)
        heappush(ends[device], done.finished_ns)


def at_once(completions: Sequence[Completion]) -> dict[str, int]:
    """How many operations each device was seen to serve at the same time."""
    most: dict[str, int] = {}
    running: dict[str, list[int]] = defaultdict(list)
    for done in sorted(completions, key=lambda each: (each.started_ns, each.number)):
        device = device_of(done.operation)
        ends = running[device]
        while ends and ends[0] <= done.started_ns:
            heappop(ends)
        heappush(ends, done.finished_ns)
        most[device] = max(most.get(device, 1), len(ends))
    return most


def device_of(operation: Operation) -> str:
    """The queue that serves it: "gpu", or a copy's direction."""
    return operation.direction if type(operation) is Copy else "gpu"


def _work(operation: Prefill) -> float:
    """Where a prefill step lies among others: by its tokens, then by its past."""
    past = sum(chunk.past_tokens for chunk in operation.chunks)
    return operation.tokens + past * 1e-3


def _place(like: Like) -> float:
    return like.place


def _size(like: tuple[int, Took]) -> float:
    return like[0]


def _nearest(ordered: Sequence[T], place: float, place_of: Callable[[T], float]) -> T | None:
    """The one of `ordered` (by place) that lies closest to `place`; None if there is none."""
    after = bisect_left(ordered, place, key=place_of)
    around = ordered[max(0, after - 1) : after + 1]
    return min(around, key=lambda each: abs(place_of(each) - place)) if around else None
