"""Checked rows of block ids become requests, from whatever format. It trusts its rows.

Arrival times count from the first request: `arrival_ns = round((timestamp - first) * 1e6 / speed)`.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Annotated, NamedTuple

import msgspec

from hicache.errors import InputError
from hicache.requests import Request
from traces.blocks import PageCutter, Pages
from traces.facts import TraceFacts

LARGEST_ID = (1 << 62) - 1
MOST_TOKENS = (1 << 31) - 1


class BlockRow(msgspec.Struct, gc=False):
    """One request of a format with block ids. Names are Mooncake's; time is in milliseconds."""

    timestamp: int | float
    input_length: Annotated[int, msgspec.Meta(ge=1, le=MOST_TOKENS)]
    output_length: Annotated[int, msgspec.Meta(ge=0, le=MOST_TOKENS)]
    hash_ids: list[Annotated[int, msgspec.Meta(ge=0, le=LARGEST_ID)]]


class Batch(NamedTuple):
    """Some consecutive rows, and the line that each was on."""

    rows: list[BlockRow]
    lines: Sequence[int]


@dataclass(frozen=True, slots=True)
class ReadPlan:
    """How a trace is to be read. Checked when it is made, except for what depends on the format."""

    page_size_tokens: int
    pages: Pages = "full"
    block_tokens: int = 512
    # Arrivals come this many times as fast as in the trace.
    speed: float = 1.0

    def __post_init__(self) -> None:
        check_speed(self.speed)


def check_speed(speed: float) -> None:
    """`InputError` unless a trace can be replayed at `speed`."""
    if not (math.isfinite(speed) and 1e-6 <= speed <= 1e6):
        raise InputError(f"speed is {speed}: it must lie between 0.000001 and 1,000,000")


def requests_of(
    batches: Iterable[Batch], plan: ReadPlan, facts: TraceFacts, cutter: PageCutter
) -> Iterator[Request]:
    """Yield the requests of `batches` in order and keep `facts` up to date, batch by batch."""
    cut, keys = cutter.cut, cutter.keys
    page_size_tokens, block_tokens, speed = plan.page_size_tokens, plan.block_tokens, plan.speed
    number = 0
    start_ms: int | float = 0
    unchained = False
    for rows, lines in batches:
        if not number:
            start_ms = facts.first_timestamp_ms = rows[0].timestamp
        first_number = number
        prompt_pages = ideal_pages = ideal_tokens = 0
        requests: list[Request] = []
        for row in rows:
            tokens, ids = row.input_length, row.hash_ids
            runs, pages, ideal = cut(tokens, ids)
            requests.append(
                Request(
                    number,
                    round((row.timestamp - start_ms) * 1e6 / speed),
                    tokens,
                    row.output_length,
                    runs,
                    pages,
                    ideal,
                )
            )
            if keys.unchained and not unchained:
                unchained = True
                facts.warnings.append(
                    f"line {lines[number - first_number]}: an id follows another id than before, "
                    "so ids are not prefix-chained; blocks are told apart by their whole prefix"
                )
            number += 1
            prompt_pages += pages
            ideal_pages += ideal
            ideal_tokens += min(ideal * page_size_tokens, tokens)
            if len(ids) * block_tokens < tokens:
                facts.requests_without_tail_id += 1
        facts.requests = number
        lengths = [row.input_length for row in rows]
        facts.prompt_tokens += sum(lengths)
        facts.longest_prompt_tokens = max(facts.longest_prompt_tokens, *lengths)
        facts.output_tokens += sum([row.output_length for row in rows])
        facts.blocks += sum([len(row.hash_ids) for row in rows])
        facts.unique_blocks = keys.unique_blocks
        facts.prompt_pages += prompt_pages
        facts.ideal_pages += ideal_pages
        facts.ideal_tokens += ideal_tokens
        facts.last_timestamp_ms = rows[-1].timestamp
        yield from requests
    if facts.requests_without_tail_id:
        facts.warnings.append(
            f"{facts.requests_without_tail_id} of {facts.requests} requests have no id for their "
            "partly filled last block; its tokens are always computed"
        )
