"""The run for Perfetto (ui.perfetto.dev): a track for prefill, decode, each direction, look-ups.

Lanes that pass everything on and keep when each operation was served. Operations that overlap in
one direction get a track of their own: "h2s", "h2s 2", ... Whenever one ends, the engine's queues
are looked at: they become counters.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import cast

from simpy import Environment
from simpy.events import Event

from hicache.engine import Engine
from hicache.kernel import Pending
from hicache.operations import Completion, Copy, Lookup, Operation, Prefill
from hicache.ports import Lanes

_TRACKS = ("prefill", "decode", "h2d", "d2h", "s2h", "h2s", "lookup")
# Counters, as `TimelineLanes` looks at them; docs/result.md says what each counts. The last three
# only where L3 is read ahead of restores.
COUNTERS = (
    "waiting_requests", "running_requests", "pending_restores", "pending_writes",
    "write_backlog_pages",
)  # fmt: skip
PREFETCH_COUNTERS = (
    "prefetch_fulfilled_tokens", "prefetch_timed_out_tokens", "prefetch_otherwise_lost_tokens",
)  # fmt: skip


class TimelineLanes:
    """Keeps what the inner lanes did."""

    def __init__(self, env: Environment, inner: Lanes) -> None:
        self._env = env
        self._inner = inner
        self._done: list[Completion] = []
        self._engine: Engine | None = None
        self._states: list[tuple[int, ...]] = []

    def watch(self, engine: Engine) -> None:
        """Look at the queues of `engine`, whose lanes these are, whenever an operation ends."""
        self._engine = engine

    def submit(self, operation: Operation) -> Pending[Completion]:
        """Pass `operation` on and keep its completion."""
        pending = self._inner.submit(operation)
        callbacks = cast("list[Callable[[Event], None]] | None", pending.callbacks)
        if callbacks is not None:
            callbacks.append(self._keep)
        return pending

    def end_burst(self, pending: Pending[Completion]) -> None:
        """Pass the request on."""
        self._inner.end_burst(pending)

    def text(self) -> str:
        """The timeline as Trace Event JSON; times in microseconds."""
        events: list[dict[str, object]] = []
        ends: dict[str, list[int]] = {name: [] for name in _TRACKS}
        tracks: dict[tuple[str, int], int] = {}
        for done in sorted(self._done, key=lambda each: (each.started_ns, each.number)):
            name, arguments = _described(done)
            track = _place(ends[name], done)
            number = tracks.setdefault((name, track), len(tracks) + 1)
            events.append(
                {
                    "name": name,
                    "ph": "X",
                    "ts": done.started_ns / 1000,
                    "dur": (done.finished_ns - done.started_ns) / 1000,
                    "pid": 1,
                    "tid": number,
                    "args": arguments,
                }
            )
        self._look()  # what the last operation left
        events += self._counters()
        head: list[dict[str, object]] = []
        for (name, track), number in tracks.items():
            label = name if not track else f"{name} {track + 1}"
            head += _named(number, label, _TRACKS.index(name) * 100 + track)
        body = ",\n".join(json.dumps(event, separators=(",", ":")) for event in [*head, *events])
        return f'{{"displayTimeUnit":"ms","traceEvents":[\n{body}\n]}}\n'

    def _keep(self, event: Event) -> None:
        if event.ok:
            self._done.append(cast(Completion, event.value))
        self._look()

    def _look(self) -> None:
        engine = self._engine
        if engine is not None:
            scheduler, transfers = engine.scheduler, engine.transfers
            state = (
                int(self._env.now), scheduler.waiting, scheduler.running,
                transfers.restores_pending, transfers.writes_pending, transfers.backlog_pages,
            )  # fmt: skip
            if scheduler.prefetcher is not None:
                metrics = engine.metrics
                lost = metrics.prefetch_unfulfilled_tokens
                timed_out = lost["deadline"]
                others = sum(lost.values()) - timed_out
                state = (*state, metrics.prefetch_fulfilled_tokens, timed_out, others)
            self._states.append(state)

    def _counters(self) -> list[dict[str, object]]:
        """An event for each change of a counter; of several at one time, the last."""
        events: list[dict[str, object]] = []
        names = (*COUNTERS, *PREFETCH_COUNTERS)
        for place, name in enumerate(names[: len(self._states[0]) - 1] if self._states else (), 1):
            last = -1
            by_time = {state[0]: state[place] for state in self._states}
            for now_ns, value in by_time.items():
                if value != last:
                    last = value
                    events.append(
                        {"name": name, "ph": "C", "ts": now_ns / 1000, "pid": 1,
                         "args": {"value": value}}
                    )  # fmt: skip
        return events


def _described(done: Completion) -> tuple[str, dict[str, object]]:
    operation = done.operation
    if type(operation) is Copy:
        return operation.direction, {"pages": operation.pages, "bytes": operation.size_bytes}
    if type(operation) is Prefill:
        requests = [chunk.request for chunk in operation.chunks]
        return "prefill", {"tokens": operation.tokens, "requests": requests}
    if type(operation) is Lookup:
        return "lookup", {"pages": operation.pages}
    return "decode", {"batch": operation.batch, "steps": done.steps}  # type: ignore[union-attr]


def _place(ends: list[int], done: Completion) -> int:
    for track, end in enumerate(ends):
        if end <= done.started_ns:
            ends[track] = done.finished_ns
            return track
    ends.append(done.finished_ns)
    return len(ends) - 1


def _named(number: int, label: str, order: int) -> list[dict[str, object]]:
    return [
        {"name": "thread_name", "ph": "M", "pid": 1, "tid": number, "args": {"name": label}},
        {
            "name": "thread_sort_index",
            "ph": "M",
            "pid": 1,
            "tid": number,
            "args": {"sort_index": order},
        },
    ]
