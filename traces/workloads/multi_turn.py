"""Clients that talk in rounds, all alike: SGLang's `benchmark/hicache/bench_multiturn.py`.

    round 1   [question 512]                                     -> answer 64
    round 2   [question 512][answer 64][question 512]            -> answer 64 ...

A sender takes one of the clients that are ready (in random order), sends its turn unless too many
requests are in flight, and pauses for a random time. A client is ready again when its answer has
ended; with a barrier, when all answers of the round have. Each next prompt is the last one, its
answer and a new question; no two clients share anything.

It models no server: timestamps are those of a server whose answers take a given time. Rows name
what they wait for, so that a closed-loop replay puts its own times in their place. Two things are
simpler than there: a sender with nothing to send waits for just that, not for one more pause, and
looks at once when a request ends, not every 50 ms.
Source: github.com/sgl-project/sglang, benchmark/hicache/bench_multiturn.py (defaults of its options
and of its run over several rates, the first of which is 16).
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator
from dataclasses import dataclass

from traces.draws import Draws
from traces.made import MadeRows
from traces.options import LARGEST_SEED, Ranges, check_options
from traces.rows import Row, RowStream
from traces.workloads.turns import PIECES, Turns


@dataclass(frozen=True, slots=True)
class MultiTurnOptions:
    """What the traffic is like. A bad value is an `InputError` that names the option."""

    seed: int = 1
    clients: int = 256
    # Requests in flight at most.
    parallel: int = 128
    rounds: int = 5
    # The first question, and each later one.
    request_tokens: int = 512
    question_tokens: int = 512
    output_tokens: int = 64
    # The sender's pauses: exponential, or uniform between 0 and twice their mean.
    arrival: str = "poisson"
    rate_per_s: float = 16.0
    # Which of the clients that are ready comes first.
    order: str = "random"
    # "rounds": no client starts a round before all have ended the one before.
    barrier: str = "none"
    # From the end of an answer to when the client is ready.
    think_s: float = 0.0
    # How long an answer takes: this, plus this for each output token.
    first_token_ms: float = 500.0
    output_token_ms: float = 20.0

    def __post_init__(self) -> None:
        check_options(self, MULTI_TURN_RANGES)


MULTI_TURN_RANGES: Ranges = {
    "seed": (0, LARGEST_SEED),
    "clients": (1, 1_000_000),
    "parallel": (1, 1_000_000),
    "rounds": (1, 10_000),
    "request_tokens": (1, 10_000_000),
    "question_tokens": (1, 10_000_000),
    "output_tokens": (1, 1_000_000),
    "arrival": ("poisson", "uniform"),
    "rate_per_s": (0.001, 1e6),
    "order": ("random", "fifo"),
    "barrier": ("none", "rounds"),
    "think_s": (0, 1e6),
    "first_token_ms": (0, 1e6),
    "output_token_ms": (0, 1e6),
}


def generate(options: MultiTurnOptions) -> RowStream:
    """The trace: clients * rounds requests."""
    hints = {
        "workload": "multi-turn",
        "loop": "closed",
        "seed": options.seed,
        "clients": options.clients,
        "parallel": options.parallel,
        "arrival": options.arrival,
        "rate_per_s": options.rate_per_s,
        "barrier": options.barrier,
    }
    return MadeRows(PIECES, lambda: _rows(options), hints)


def _rows(options: MultiTurnOptions) -> Iterator[Row]:
    turns = Turns()
    delay_ms = round(options.think_s * 1000)
    for now_ms, client, number in _sends(options, Draws(options.seed)):
        question = options.question_tokens if number else options.request_tokens
        yield turns.ask(client, question, options.output_tokens, round(now_ms), delay_ms=delay_ms)
        if number == options.rounds - 1:
            turns.forget(client)


def _sends(options: MultiTurnOptions, draws: Draws) -> Iterator[tuple[float, int, int]]:
    """(time in ms, client, round) of each request, in order."""
    answer_ms = options.first_token_ms + options.output_tokens * options.output_token_ms
    pause_ms = 1000 / options.rate_per_s
    rounds_asked = [0] * options.clients
    ready = list(range(options.clients))
    at_barrier: list[int] = []
    # (time, number of the event, client, whether its answer ends; else it is ready again).
    events: list[tuple[float, int, int, bool]] = []
    in_flight = num_events = 0
    now_ms = 0.0
    while True:
        while events and events[0][0] <= now_ms:
            at_ms, _, client, ends = heapq.heappop(events)
            if ends:
                in_flight -= 1
                if rounds_asked[client] < options.rounds:
                    num_events += 1
                    again = (at_ms + options.think_s * 1000, num_events, client, False)
                    heapq.heappush(events, again)
            elif options.barrier == "none":
                ready.append(client)
            else:
                at_barrier.append(client)
                if len(at_barrier) == options.clients:
                    ready, at_barrier = at_barrier, ready
        if ready and in_flight < options.parallel:
            client = ready.pop(draws.below(len(ready)) if options.order == "random" else 0)
            yield now_ms, client, rounds_asked[client]
            rounds_asked[client] += 1
            in_flight += 1
            num_events += 1
            heapq.heappush(events, (now_ms + answer_ms, num_events, client, True))
            now_ms += draws.interval(options.arrival, pause_ms)
        elif events:
            now_ms = max(now_ms, events[0][0])
        else:
            return
