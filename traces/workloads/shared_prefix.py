"""Groups of requests with one system prompt each: SGLang's "generated-shared-prefix" data set.

    [system prompt of the group][question of its own]  -> answer

Groups are equally large, or popular by zipf's law: the k-th with weight 1 / k**zipf. The requests
of all groups come in random order. Nobody waits for another's answer.
Source: github.com/sgl-project/sglang, `python -m sglang.bench_serving --dataset-name
generated-shared-prefix` (defaults of its options --gsp-num-groups and so on). Its own rate is
without limit; here requests come at a rate.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import accumulate

from traces.draws import Draws
from traces.made import MadeRows
from traces.options import LARGEST_SEED, Ranges, check_options
from traces.rows import Row, RowStream
from traces.workloads.turns import PIECES


@dataclass(frozen=True, slots=True)
class SharedPrefixOptions:
    """What the traffic is like. A bad value is an `InputError` that names the option."""

    seed: int = 1
    groups: int = 64
    # On average, if groups are not equally popular.
    requests_per_group: int = 16
    system_prompt_tokens: int = 2048
    question_tokens: int = 128
    output_tokens: int = 256
    popularity: str = "uniform"
    zipf: float = 1.0
    arrival: str = "poisson"
    rate_per_s: float = 16.0

    def __post_init__(self) -> None:
        check_options(self, SHARED_PREFIX_RANGES)


SHARED_PREFIX_RANGES: Ranges = {
    "seed": (0, LARGEST_SEED),
    "groups": (1, 1_000_000),
    "requests_per_group": (1, 1_000_000),
    "system_prompt_tokens": (1, 10_000_000),
    "question_tokens": (1, 10_000_000),
    "output_tokens": (1, 1_000_000),
    "popularity": ("uniform", "zipf"),
    "zipf": (0, 10),
    "arrival": ("poisson", "uniform"),
    "rate_per_s": (0.001, 1e6),
}


def generate(options: SharedPrefixOptions) -> RowStream:
    """The trace: groups * requests_per_group requests."""
    hints = {
        "workload": "shared-prefix",
        "seed": options.seed,
        "arrival": options.arrival,
        "rate_per_s": options.rate_per_s,
    }
    return MadeRows(PIECES, lambda: _rows(options), hints)


def _rows(options: SharedPrefixOptions) -> Iterator[Row]:
    draws = Draws(options.seed)
    tokens = [options.system_prompt_tokens, options.question_tokens]
    now_ms = 0.0
    for number, group in enumerate(_groups(options, draws)):
        question = options.groups + 2 * number
        yield Row(
            sum(tokens),
            options.output_tokens,
            round(now_ms),
            [group, question],
            tokens,
            [question + 1],
            [options.output_tokens],
        )
        now_ms += draws.interval(options.arrival, 1000 / options.rate_per_s)


def _groups(options: SharedPrefixOptions, draws: Draws) -> Iterator[int]:
    """The group of each request."""
    count = options.groups * options.requests_per_group
    if options.popularity == "uniform":
        order = [number % options.groups for number in range(count)]
        draws.shuffle(order)
        yield from order
    else:
        ranks = range(1, options.groups + 1)
        shares = list(accumulate(1 / rank**options.zipf for rank in ranks))
        for _ in range(count):
            yield bisect_left(shares, draws.uniform() * shares[-1])
