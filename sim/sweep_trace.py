"""A trace that is parsed once for all the scenarios that one process runs over it, at any speed.

Requests are kept as they were read and handed out as copies, because who serves them writes on
them. Where a trace has more than `MOST_PIECES` requests and runs of pages, nothing of it is kept
and every scenario reads it anew: memory stays bounded however long it is.
"""

from __future__ import annotations

import gc
import os
from array import array
from collections.abc import Iterator
from functools import partial
from typing import Any, cast

import msgspec

from hicache.requests import Request
from scenario.records import Scenario
from traces.cut import Pages
from traces.facts import TraceFacts
from traces.reader import Trace, open_trace
from traces.stream import LONGEST_NS, at_speed

# Requests and runs together: some 100 MB.
MOST_PIECES = 400_000


class _Kept:
    """What is kept of a trace, whatever its speed: requests, their times, and what was found."""

    def __init__(self) -> None:
        self.requests: list[Request] = []
        self.times_ms = array("d")  # two a request: see traces.stream.RequestStream
        self.facts: TraceFacts | None = None  # None: not complete
        self.longest_ms = 0.0
        self.too_long = False
        # Requests and runs that are kept.
        self.pieces = 0
        # The trace at each speed that was asked for.
        self.traces: dict[float, KeptTrace] = {}


class KeptTrace:
    """A `Trace` for one page size and rule, of which nothing is read again once it, or the same
    trace at another speed, has been read to its end.
    """

    def __init__(self, trace: Trace, kept: _Kept) -> None:
        self._trace = trace
        self._kept = kept

    def __getattr__(self, name: str) -> Any:
        return getattr(self._trace, name)

    def requests(self, page_size_tokens: int, pages: Pages = "full") -> Iterator[Request]:
        """As `Trace.requests`; after one complete pass nothing is read."""
        kept, speed = self._kept, self._trace.speed
        # Times that the reader would refuse at this speed it is to refuse.
        if kept.facts is not None and at_speed(kept.longest_ms, speed) <= LONGEST_NS:
            self._trace.facts = kept.facts
            times = iter(kept.times_ms)
            return map(partial(_copy, speed), kept.requests, times, times)
        times_ms = array("d")
        wanted = None if kept.too_long else times_ms
        return self._reading(self._trace.requests(page_size_tokens, pages, wanted), times_ms)

    def _reading(self, requests: Iterator[Request], times_ms: array[float]) -> Iterator[Request]:
        kept, speed = self._kept, self._trace.speed
        copies: list[Request] = []
        pieces = 0
        for request in requests:
            if not kept.too_long:
                copies.append(_copy(speed, request, 0, 0))
                pieces += 1 + len(request.prompt_runs)
                if pieces > MOST_PIECES:
                    kept.too_long, copies = True, []
            yield request
        if not kept.too_long:
            kept.requests, kept.times_ms, kept.pieces = copies, times_ms, pieces
            kept.longest_ms = max(times_ms, default=0.0)
            kept.facts = self._trace.facts


class KeptTraces:
    """The traces of one process, by all that decides what requests come out of them, but for their
    speed. One that no longer fits beside the newest is forgotten.
    """

    def __init__(self) -> None:
        self._kept: dict[tuple[object, ...], _Kept] = {}

    def open(self, scenario: Scenario) -> Trace:
        """The trace of `scenario`, as `scenario.opening` opens it. Raises InputError."""
        options = scenario.trace
        seed = scenario.seed if options.prefix_share else 0
        stat = os.stat(options.path) if os.path.exists(options.path) else None
        key = (
            msgspec.structs.replace(options, speed=1.0), seed, scenario.tiers.page_size_tokens,
            scenario.cache.pages, (stat.st_size, stat.st_mtime_ns) if stat else None,
        )  # fmt: skip
        found = self._kept.pop(key, None) or _Kept()
        trace = found.traces.get(options.speed)
        if trace is None:
            opened = open_trace(
                options.path,
                block_tokens=options.block_tokens,
                speed=options.speed,
                tokenizer=options.tokenizer,
                on_error=options.on_error,
                prefixes=options.prefixes(scenario.seed),
            )
            trace = found.traces[options.speed] = KeptTrace(opened, found)
        while self._kept and sum(each.pieces for each in self._kept.values()) > MOST_PIECES:
            del self._kept[next(iter(self._kept))]
            gc.unfreeze()  # a cycle that it is in is found again (sim.sweep_pool)
        self._kept[key] = found  # the last one used stands last
        return cast(Trace, trace)


def _copy(speed: float, request: Request, since_ms: float, delay_ms: float) -> Request:
    """`request` as it is at `speed`."""
    return Request(
        request.number,
        # One without a time has none at any speed.
        request.arrival_ns if request.arrival_ns < 0 else at_speed(since_ms, speed),
        request.prompt_tokens, request.output_tokens, request.prompt_runs, request.prompt_pages,
        request.ideal_pages, request.session, request.priority, request.output_runs, request.after,
        at_speed(delay_ms, speed), request.cached_tokens,
    )  # fmt: skip
