"""Users who come back after a while, most of them soon gone: SGLang's `bench_mix.py`.

As many requests as there are clients are always in flight. When one ends, its place is taken by the
user who is due longest, or, if none is, by a new one. How many rounds a user has is drawn by
`round_ratios` (the k-th is the weight of k rounds); the k-th question is around the k-th of
`new_tokens`, uniform within 20 %; an answer and the time until the user is back are drawn from
normal distributions, and are their mean where that gives nothing positive. Nobody shares anything
with another user. Sending stops after the duration.

It models no server: timestamps are those of a server whose answers take a given time, and how many
users come within the duration follows from that. Rows name what they wait for.
Source: github.com/sgl-project/sglang, benchmark/hicache/bench_mix.py and bench_mix.sh. Kept from
there: the standard deviation of 100 is that of tokens and of seconds alike, so that the pauses of
30 s are 30 s in one case of three or four and spread up to some minutes in the others; the last
number of rounds has one more chance than its weight. Not kept: the number of the user in front of
the first question, a token or two; and that a user who is due last of all is queued last but one.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import accumulate

from hicache.errors import InputError
from traces.draws import Draws
from traces.made import MadeRows
from traces.options import LARGEST_SEED, Ranges, check_options
from traces.rows import Row, RowStream
from traces.workloads.turns import PIECES, Turns

# A question has its mean's tokens, give or take this part of them.
SPREAD = 0.2


@dataclass(frozen=True, slots=True)
class MixOptions:
    """What the traffic is like. A bad value is an `InputError` that names the option."""

    seed: int = 1
    # Requests in flight.
    clients: int = 60
    duration_s: float = 600.0
    # For each round: the weight of having just so many, and the mean tokens of its question.
    round_ratios: tuple[int, ...] = (50, 25, 15, 15, 10, 10, 9, 8, 7, 6)
    new_tokens: tuple[int, ...] = (1000, 400, 350, 300, 280, 260, 240, 220, 210, 200)
    output_tokens: int = 100
    output_sigma_tokens: float = 100.0
    # From the end of an answer until the user is due again.
    interval_s: float = 30.0
    interval_sigma_s: float = 100.0
    # How long an answer takes: this, plus this for each output token.
    first_token_ms: float = 500.0
    output_token_ms: float = 20.0

    def __post_init__(self) -> None:
        check_options(self, MIX_RANGES)
        if len(self.round_ratios) != len(self.new_tokens):
            raise InputError(
                f"round_ratios has {len(self.round_ratios)} numbers, but new_tokens "
                f"{len(self.new_tokens)}: both must have one for each round"
            )
        if not sum(self.round_ratios):
            raise InputError("round_ratios are all 0: one must be more")
        if not self.first_token_ms + self.output_token_ms:
            raise InputError("first_token_ms and output_token_ms are both 0: one must be more")


MIX_RANGES: Ranges = {
    "seed": (0, LARGEST_SEED),
    "clients": (1, 100_000),
    "duration_s": (0.001, 1e6),
    "round_ratios": (0, 1_000_000),
    "new_tokens": (1, 1_000_000),
    "output_tokens": (1, 1_000_000),
    "output_sigma_tokens": (0, 1e6),
    "interval_s": (0.001, 1e6),
    "interval_sigma_s": (0, 1e6),
    "first_token_ms": (0, 1e6),
    "output_token_ms": (0, 1e6),
}


def generate(options: MixOptions) -> RowStream:
    """The trace: as many requests as the clients get done in the duration."""
    hints = {
        "workload": "mix",
        "loop": "closed",
        "seed": options.seed,
        "parallel": options.clients,
        "duration_s": options.duration_s,
    }
    return MadeRows(PIECES, lambda: _rows(options), hints)


def _rows(options: MixOptions) -> Iterator[Row]:
    draws, turns = Draws(options.seed), Turns()
    # Times at which requests in flight end, and (time, user) of users who will be back.
    ends = [0.0] * options.clients
    due: list[tuple[float, int]] = []
    # Rounds to come of each user, by the next one's place, and the pause before it.
    rounds: list[int] = []
    asked: list[int] = []
    pause_ms: list[int] = []
    while True:
        now_ms = heapq.heappop(ends)
        if now_ms > options.duration_s * 1000:
            return
        if due and due[0][0] < now_ms:
            _, user = heapq.heappop(due)
        else:
            user = len(rounds)
            rounds.append(_num_rounds(draws, options.round_ratios))
            asked.append(0)
            pause_ms.append(0)
        mean = options.new_tokens[asked[user]]
        least, most = max(1, round(mean * (1 - SPREAD))), max(1, round(mean * (1 + SPREAD)))
        question = least + draws.below(most - least + 1)
        output = _positive(draws, options.output_tokens, options.output_sigma_tokens)
        yield turns.ask(user, question, output, round(now_ms), delay_ms=pause_ms[user])
        ends_ms = now_ms + options.first_token_ms + output * options.output_token_ms
        heapq.heappush(ends, ends_ms)
        asked[user] += 1
        if asked[user] < rounds[user]:
            mean_ms, sigma_ms = 1000 * options.interval_s, 1000 * options.interval_sigma_s
            pause_ms[user] = _positive(draws, mean_ms, sigma_ms)
            heapq.heappush(due, (ends_ms + pause_ms[user], user))
        else:
            turns.forget(user)


def _num_rounds(draws: Draws, ratios: tuple[int, ...]) -> int:
    """Up to and with the sum of the weights, so that the last has one more chance."""
    drawn = draws.below(sum(ratios) + 1)
    for index, weights in enumerate(accumulate(ratios)):
        if drawn < weights:
            return index + 1
    return len(ratios)


def _positive(draws: Draws, mean: float, sigma: float) -> int:
    """A whole number from a normal distribution, or its mean where that is not positive."""
    drawn = int(draws.normal(mean, sigma))
    return drawn if drawn > 0 else max(1, round(mean))
