"""A trace that is parsed once for all the scenarios that one process runs over it.

Requests are kept as they were read and handed out as copies, because who serves them writes on
them. Where a trace has more than `MOST_PIECES` requests and runs of pages, nothing of it is kept
and every scenario reads it anew: memory stays bounded however long it is.
"""

from __future__ import annotations

import gc
import os
from collections.abc import Iterator
from typing import Any, cast

from hicache.requests import Request
from scenario.records import Scenario
from traces.cut import Pages
from traces.reader import Trace, open_trace

# Requests and runs together: some 100 MB.
MOST_PIECES = 400_000


class KeptTrace:
    """A `Trace` for one page size and rule, whose later passes come from memory."""

    def __init__(self, trace: Trace) -> None:
        self._trace = trace
        self._kept: list[Request] = []
        self._complete = False
        self._too_long = False
        # Requests and runs that are kept.
        self.pieces = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._trace, name)

    def requests(self, page_size_tokens: int, pages: Pages = "full") -> Iterator[Request]:
        """As `Trace.requests`; after one complete pass nothing is read."""
        if self._complete:
            return map(_copy, self._kept)
        return self._reading(self._trace.requests(page_size_tokens, pages))

    def _reading(self, requests: Iterator[Request]) -> Iterator[Request]:
        kept: list[Request] = []
        pieces = 0
        for request in requests:
            if not self._too_long:
                kept.append(_copy(request))
                pieces += 1 + len(request.prompt_runs)
                if pieces > MOST_PIECES:
                    self._too_long, kept = True, []
            yield request
        if not self._too_long:
            self._kept, self._complete, self.pieces = kept, True, pieces


class KeptTraces:
    """The traces of one process, by all that decides what requests come out of them. One that no
    longer fits beside the newest is forgotten.
    """

    def __init__(self) -> None:
        self._traces: dict[tuple[object, ...], KeptTrace] = {}

    def open(self, scenario: Scenario) -> Trace:
        """The trace of `scenario`, as `scenario.opening` opens it. Raises InputError."""
        options = scenario.trace
        seed = scenario.seed if options.prefix_share else 0
        stat = os.stat(options.path) if os.path.exists(options.path) else None
        key = (
            options, seed, scenario.tiers.page_size_tokens, scenario.cache.pages,
            (stat.st_size, stat.st_mtime_ns) if stat else None,
        )  # fmt: skip
        found = self._traces.pop(key, None)
        if found is None:
            found = KeptTrace(
                open_trace(
                    options.path,
                    block_tokens=options.block_tokens,
                    speed=options.speed,
                    tokenizer=options.tokenizer,
                    on_error=options.on_error,
                    prefixes=options.prefixes(scenario.seed),
                )
            )
        while self._traces and sum(each.pieces for each in self._traces.values()) > MOST_PIECES:
            del self._traces[next(iter(self._traces))]
            gc.unfreeze()  # a cycle that it is in is found again (sim.sweep_pool)
        self._traces[key] = found  # the last one used stands last
        return cast(Trace, found)


def _copy(request: Request) -> Request:
    return Request(
        request.number, request.arrival_ns, request.prompt_tokens, request.output_tokens,
        request.prompt_runs, request.prompt_pages, request.ideal_pages, request.session,
        request.priority, request.output_runs, request.after, request.delay_ns,
        request.cached_tokens,
    )  # fmt: skip
