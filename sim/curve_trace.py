"""One pass over a trace for its hit-rate curves: what each prompt asks for, and who asked before.

Requests are looked up and inserted one at a time in file order, as in an untimed replay. Nothing is
simulated; nothing of a prompt's pages is kept but what `traces.reuse` keeps. Ctrl-C ends the
pass between two requests, and what was read until then is a trace of its own.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

from hicache.errors import InputError
from hicache.holdings import FIRST_PRIVATE_KEY
from hicache.requests import KeyRuns, Request, answer_runs
from sim.curve_points import Shortfall
from traces.ctrl_c import CtrlC
from traces.cut import Runs, add_run
from traces.reader import Trace
from traces.reuse import HitPlaces


@dataclass(frozen=True, slots=True)
class CurveRules:
    """What is a page, what may hit and what is cached: the options of a scenario's [cache].

    The defaults are those of the preset block-lru.
    """

    page_size_tokens: int
    pages: Literal["full", "partial"] = "partial"
    hit_cap: Literal["last_token_computed", "none"] = "none"
    outputs: Literal["cached", "dropped"] = "dropped"

    def __post_init__(self) -> None:
        for name, allowed in (
            ("pages", ("full", "partial")),
            ("hit_cap", ("last_token_computed", "none")),
            ("outputs", ("cached", "dropped")),
        ):
            value = getattr(self, name)
            if value not in allowed:
                raise InputError(f"{name} is {value!r}: it must be {' or '.join(allowed)}")
        if self.outputs == "cached" and self.pages == "partial":
            raise InputError(
                "outputs is cached while pages is partial: an output goes on in the page that its "
                "prompt left partly filled; set pages to full"
            )

    @property
    def exact(self) -> bool:
        """Whether a replay gives the very numbers of the curve, at every capacity.

        Else the replay needs room for a page that it gives back: one that is not filled, or that it
        turns out to hold already. So it hits what the curve has at its capacity, or at one page
        less, or something between.
        """
        whole = self.pages == "partial" or self.page_size_tokens == 1
        return whole and self.hit_cap == "none" and self.outputs == "dropped"


class Taker(Protocol):
    """What is handed the contexts of a trace, one after the other."""

    def take(self, runs: KeyRuns, may_hit_pages: int) -> int:
        """Take the next context: runs of its page keys, of which the first `may_hit_pages` are
        looked up. Return how many of these were known.
        """
        ...


class ExactReuse:
    """Takes all pages of all contexts."""

    def __init__(self) -> None:
        self.reuse = HitPlaces()

    def take(self, runs: KeyRuns, may_hit_pages: int) -> int:
        """Take the next context."""
        known = self.reuse.hits
        self.reuse.add(runs, may_hit_pages)
        return self.reuse.hits - known


@dataclass(slots=True)
class TraceUses:
    """What one pass found. Arrays have one number for each request.

    `held_pages` are what a request leaves in the cache: its prompt, and its answer where answers
    are cached. Summed over all requests: `may_hit_pages` are looked up, and an infinite cache finds
    no more than `ideal_pages` of them.
    """

    rules: CurveRules
    prompt_pages: array[int]
    prompt_tokens: array[int]
    held_pages: array[int]
    may_hit_pages: int
    ideal_pages: int
    # For exact passes only: the last pages of prompts that were found whole.
    shortfalls: list[Shortfall]
    interrupted: bool

    @property
    def requests(self) -> int:
        """Requests that were read."""
        return len(self.prompt_pages)


def read_uses(trace: Trace, rules: CurveRules, takers: Sequence[Taker]) -> TraceUses:
    """Hand every context of `trace` to each of `takers`.

    `InputError` for whatever is wrong with the trace, and for one without requests.
    """
    uses = TraceUses(rules, array("q"), array("q"), array("q"), 0, 0, [], interrupted=False)
    exact = next((each for each in takers if isinstance(each, ExactReuse)), None)
    capped = rules.hit_cap == "last_token_computed"
    cached = rules.outputs == "cached"
    page = rules.page_size_tokens
    private_key = FIRST_PRIVATE_KEY
    with _UntilInterrupted() as interrupt:
        for request in interrupt.reading(trace.requests(page, rules.pages)):
            pages, tokens = request.prompt_pages, request.prompt_tokens
            may_hit = pages
            if capped and pages and pages * page >= tokens:
                may_hit -= 1
            runs, held = request.prompt_runs, pages
            if cached and request.output_tokens > 1:
                held = max(held, (tokens + request.output_tokens - 1) // page)
                if held > pages:
                    runs = _with_answer(request, held - pages, private_key)
                    private_key += held - pages + 1
            for taker in takers:
                known = taker.take(runs, may_hit)
                if taker is not exact or exact is None or not pages or known < pages:
                    continue
                if pages * page > tokens:
                    last = exact.reuse.hit_runs.end_places[-1] - 1
                    missing = pages * page - tokens
                    uses.shortfalls.append(Shortfall(last, missing, uses.requests))
            uses.prompt_pages.append(pages)
            uses.prompt_tokens.append(tokens)
            uses.held_pages.append(held)
            uses.may_hit_pages += may_hit
            uses.ideal_pages += min(may_hit, request.ideal_pages)
    uses.interrupted = interrupt.asked
    if not uses.requests:
        if uses.interrupted:
            raise KeyboardInterrupt
        raise InputError(f"{trace.shown}: the trace is empty: not one request in it")
    return uses


def _with_answer(request: Request, answer_pages: int, private_key: int) -> Runs:
    """Runs of a prompt and of the pages behind it, joined where they go on from each other."""
    joined: Runs = []
    for first, count in (*request.prompt_runs, *answer_runs(request, answer_pages, private_key)):
        add_run(joined, first, count)
    return joined


class _UntilInterrupted(CtrlC):
    """Ctrl-C between two requests ends the pass; while a request is read, at once."""

    def reading(self, requests: Iterator[Request]) -> Iterator[Request]:
        """The requests, until Ctrl-C."""
        while not self.asked:
            self.reading_now = True
            try:
                request = next(requests, None)
            except KeyboardInterrupt:
                self.asked = True
                return
            finally:
                self.reading_now = False
            if request is None:
                return
            yield request
