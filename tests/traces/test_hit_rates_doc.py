"""docs/hit-rates.md is executed: every number in it is computed from the trace and compared."""

from __future__ import annotations

import json
import re
from itertools import groupby

import pytest
from trace_helpers import CONVERSATION, REPOSITORY, needs_conversation

from hicache.requests import Request
from traces.blocks import Pages
from traces.reader import open_trace

DOC = REPOSITORY / "docs" / "hit-rates.md"


def read(page: int, pages: Pages) -> list[Request]:
    return list(open_trace(CONVERSATION).requests(page, pages))


def cached_tokens(requests: list[Request], page: int, cap: int) -> int:
    """`cap` 1: the last token is computed. Whole pages only, if the requests have only those."""
    return sum(min(r.ideal_pages * page, r.prompt_tokens - cap) for r in requests)


def capped_full_pages(requests: list[Request], page: int) -> int:
    return sum(min(r.ideal_pages, (r.prompt_tokens - 1) // page) for r in requests)


def blind_tick_tokens() -> int:
    rows = [json.loads(line) for line in CONVERSATION.read_text().splitlines()]
    seen: set[int] = set()
    hit_tokens = 0
    for _, tick in groupby(rows, key=lambda row: row["timestamp"]):
        batch = list(tick)
        for row in batch:
            known = next((i for i, id_ in enumerate(row["hash_ids"]) if id_ not in seen), None)
            blocks = len(row["hash_ids"]) if known is None else known
            hit_tokens += min(blocks * 512, row["input_length"] - 1)
        for row in batch:
            seen.update(row["hash_ids"])
    return hit_tokens


@pytest.fixture(scope="module")
def computed() -> dict[str, tuple[int, int]]:
    """For each key of the table: (hits, of)."""
    partial = read(512, "partial")
    last = partial[len(partial) // 2 :]
    full = read(512, "full")
    tokens = sum(r.prompt_tokens for r in partial)
    blocks = sum(r.prompt_pages for r in partial)
    hit_tokens = cached_tokens(partial, 512, 0)
    full_hits = capped_full_pages(full, 512)
    return {
        "block": (sum(r.ideal_pages for r in partial), blocks),
        "token": (hit_tokens, tokens),
        "token_cap": (cached_tokens(partial, 512, 1), tokens),
        "block_half": (sum(r.ideal_pages for r in last), sum(r.prompt_pages for r in last)),
        "token_half": (cached_tokens(last, 512, 0), sum(r.prompt_tokens for r in last)),
        "page_full": (full_hits, sum(r.prompt_pages for r in full)),
        "page_full_of_blocks": (full_hits, blocks),
        "token_full": (full_hits * 512, tokens),
        "token_full_64": (capped_full_pages(read(64, "full"), 64) * 64, tokens),
        "token_full_1": (capped_full_pages(read(1, "full"), 1), tokens),
        "token_tick": (blind_tick_tokens(), tokens),
        "token_with_output": (hit_tokens, tokens + sum(r.output_tokens for r in partial)),
        "request_any": (sum(r.ideal_pages > 0 for r in partial), len(partial)),
    }


def table() -> dict[str, tuple[int, int, str]]:
    rows = re.findall(
        r"^\| `(\w+)` \|[^|]*\| ([\d,]+) \| ([\d,]+) \| (\.\d{4}) \|$",
        DOC.read_text(),
        re.MULTILINE,
    )
    return {
        key: (int(hits.replace(",", "")), int(of.replace(",", "")), rate)
        for key, hits, of, rate in rows
    }


@needs_conversation
def test_the_table_of_the_worked_example(computed: dict[str, tuple[int, int]]) -> None:
    stated = table()
    assert list(stated) == list(computed)
    for key, (hits, of) in computed.items():
        assert stated[key] == (hits, of, f"{hits / of:.4f}"[1:]), key


@needs_conversation
def test_every_number_in_the_text_is_one_of_the_computed(
    computed: dict[str, tuple[int, int]],
) -> None:
    trace = open_trace(CONVERSATION)
    requests = list(trace.requests(512, "partial"))
    facts = trace.facts
    known = {number for pair in computed.values() for number in pair}
    known |= {facts.requests, facts.blocks, facts.unique_blocks}
    known |= {facts.prompt_tokens, facts.output_tokens}
    text = DOC.read_text()
    numbers = {int(n.replace(",", "")) for n in re.findall(r"\d{1,3}(?:,\d{3})+", text)}
    assert numbers == known - {n for n in known if n < 1000}

    whole = [r for r in requests if r.ideal_pages == r.prompt_pages]
    assert f"{len(whole)} prompts are exact repeats" in text
    assert computed["block"][0] - computed["page_full"][0] == len(whole) == 118
    mean = sum(min(r.ideal_pages * 512 / r.prompt_tokens, 1) for r in requests) / len(requests)
    rates = {f"{hits / of:.4f}"[1:] for hits, of in computed.values()} | {f"{mean:.4f}"[1:]}
    assert set(re.findall(r"(?<!\d)\.\d{4}", text)) == rates


def test_the_definitions_name_the_options_that_exist() -> None:
    """The doc's words for options are those of `CacheOptions`."""
    from typing import get_args, get_type_hints

    from hicache.options import CacheOptions

    hints = get_type_hints(CacheOptions)
    text = DOC.read_text()
    for name in ("pages", "hit_cap"):
        for value in get_args(hints[name]):
            assert f"**{value}**" in text
