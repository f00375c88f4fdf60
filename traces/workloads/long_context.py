"""Long documents with several questions each, as SGLang's `bench_long_context.py` asks of LooGLE.

    [document, some 24,000 tokens][question]  -> short answer

All questions to all documents come in random order at a rate; each stands alone (no question
follows from an answer). That benchmark runs at 24, 16, 12, 8, 4, 2 and 1 requests a second, with at
most 24 in flight. "documents" asks all questions of one document before the next, as the
shared-prefix run of its `bench_serving.py`.
Sources: github.com/sgl-project/sglang, benchmark/hicache (rates, order, number of requests); LooGLE
(arXiv 2311.04939: documents of over 24,000 tokens). How long questions and answers are, and how
lengths spread, is set here.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from traces.draws import Draws
from traces.made import MadeRows
from traces.options import LARGEST_SEED, Ranges, check_options
from traces.rows import Row, RowStream
from traces.workloads.turns import PIECES


@dataclass(frozen=True, slots=True)
class LongContextOptions:
    """What the traffic is like. A bad value is an `InputError` that names the option.

    A `median` and its `sigma` are those of a lognormal distribution; sigma 0 always gives the
    median.
    """

    seed: int = 1
    documents: int = 32
    questions_per_document: int = 8
    document_median_tokens: float = 24_000.0
    document_sigma: float = 0.3
    question_median_tokens: float = 30.0
    question_sigma: float = 0.4
    output_median_tokens: float = 40.0
    output_sigma: float = 0.8
    arrival: str = "poisson"
    rate_per_s: float = 24.0
    order: str = "random"

    def __post_init__(self) -> None:
        check_options(self, LONG_CONTEXT_RANGES)


LONG_CONTEXT_RANGES: Ranges = {
    "seed": (0, LARGEST_SEED),
    "documents": (1, 1_000_000),
    "questions_per_document": (1, 1_000_000),
    "document_median_tokens": (1, 1e7),
    "document_sigma": (0, 2),
    "question_median_tokens": (1, 1e6),
    "question_sigma": (0, 2),
    "output_median_tokens": (1, 1e6),
    "output_sigma": (0, 2),
    "arrival": ("poisson", "uniform"),
    "rate_per_s": (0.001, 1e6),
    "order": ("random", "documents"),
}

# Requests in flight at most, in the published benchmark.
PARALLEL = 24


def generate(options: LongContextOptions) -> RowStream:
    """The trace: documents * questions_per_document requests."""
    hints = {
        "workload": "long-context",
        "seed": options.seed,
        "parallel": PARALLEL,
        "arrival": options.arrival,
        "rate_per_s": options.rate_per_s,
    }
    return MadeRows(PIECES, lambda: _rows(options), hints)


def _rows(options: LongContextOptions) -> Iterator[Row]:
    draws = Draws(options.seed)
    documents = [
        draws.tokens(options.document_median_tokens, options.document_sigma)
        for _ in range(options.documents)
    ]
    order = [
        each for each in range(options.documents) for _ in range(options.questions_per_document)
    ]
    if options.order == "random":
        draws.shuffle(order)
    now_ms = 0.0
    for number, document in enumerate(order):
        question = draws.tokens(options.question_median_tokens, options.question_sigma)
        output = draws.tokens(options.output_median_tokens, options.output_sigma)
        piece = options.documents + 2 * number
        yield Row(
            documents[document] + question,
            output,
            round(now_ms),
            [document, piece],
            [documents[document], question],
            [piece + 1],
            [output],
        )
        now_ms += draws.interval(options.arrival, 1000 / options.rate_per_s)
