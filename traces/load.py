"""When requests arrive, if not as the trace says: all at once, or at a rate drawn from a seed.

Only arrivals by the clock are changed. A request that waits for an answer keeps waiting for it:
always in a closed loop, and where it has no time of its own also in an open one.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal

from hicache.errors import InputError
from hicache.requests import Request
from traces.draws import Draws
from traces.stream import LONGEST_NS, YEAR_NS

Arrivals = Literal["trace", "at_once", "poisson", "uniform"]


def arriving(
    requests: Iterator[Request],
    arrivals: Arrivals,
    *,
    rate_per_s: float = 0,
    loop: Literal["open", "closed"] = "open",
    seed: int = 0,
    notes: list[str] | None = None,
) -> Iterator[Request]:
    """Yield `requests` with the arrival times asked for, in the same order.

    "trace": as they are; a request with neither a time nor a predecessor arrives at 0. "at_once":
    all at 0. "poisson": gaps are exponential with mean 1 / `rate_per_s`. "uniform": gaps are
    uniform between 0 and 2 / `rate_per_s` (SGLang's bench_multiturn.py means the same by both). In
    a closed loop the rate is that of first turns, so of sessions.

    Where a trace has sessions but does not say which answer a turn waits for, a closed loop lets it
    wait for the session's turn before it, and think for as long as lay between their arrivals.
    `notes` gets a sentence for what was assumed, once all requests are out. InputError where a
    request would come after more than ten years.
    """
    draws = Draws(seed)
    mean_ns = 1e9 / rate_per_s if rate_per_s else 0.0
    clock_ns = 0.0
    chained = without_time = waiting = 0
    latest: dict[str, tuple[int, int]] = {}  # of a session: its last request, and when it came
    for request in requests:
        if loop == "closed" and request.session:
            before = latest.get(request.session)
            latest[request.session] = (request.number, request.arrival_ns)
            if request.after < 0 and before is not None:
                chained += 1
                request.after, came_ns = before
                if came_ns >= 0 and request.arrival_ns > came_ns:
                    request.delay_ns = request.arrival_ns - came_ns
        if request.after >= 0 and (loop == "closed" or request.arrival_ns < 0):
            waiting += 1
            yield request
            continue
        if arrivals == "trace":
            if request.arrival_ns < 0:
                without_time += 1
                request.arrival_ns = 0
        elif arrivals == "at_once":
            request.arrival_ns = 0
        else:
            gap_ns = (
                draws.exponential(mean_ns)
                if arrivals == "poisson"
                else 2 * mean_ns * draws.uniform()
            )
            clock_ns += gap_ns
            if clock_ns > LONGEST_NS:
                raise InputError(
                    f"load.rate is {rate_per_s:g} a second: request {request.number} (counted from "
                    f"0) would come {clock_ns / YEAR_NS:,.0f} years after the start, and no trace "
                    f"may last more than {LONGEST_NS // YEAR_NS}"
                )
            request.arrival_ns = int(clock_ns)
        yield request
    if notes is None:
        return
    if loop == "closed" and not waiting:
        notes.append(
            "load.loop is closed but no request waits for another: the trace has no sessions, so "
            "that only limits of clients or requests change anything"
        )
    if chained:
        notes.append(
            f"{chained:,} turns wait for the turn before them in their session, and think for as "
            "long as lay between the arrivals: the trace does not say what they wait for"
        )
    if without_time:
        notes.append(
            f"{without_time:,} requests have no time and wait for no answer: they arrive at once, "
            "at 0; --rate spreads them"
        )
