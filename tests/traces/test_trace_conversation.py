"""Mooncake's conversation trace gives the published and golden numbers."""

from __future__ import annotations

import json
from itertools import accumulate

import pytest
from trace_helpers import CONVERSATION, REPOSITORY, NaiveCeiling, needs_conversation

from traces.reader import open_trace

GOLDEN = REPOSITORY.parent / "shared" / "goldens" / "mooncake_conversation.json"

pytestmark = needs_conversation


def test_golden_ceiling() -> None:
    golden = json.loads(GOLDEN.read_text())
    trace = open_trace(CONVERSATION)
    requests = list(trace.requests(512, "partial"))
    facts = trace.facts
    assert (facts.requests, facts.blocks, facts.unique_blocks) == (12_031, 288_500, 182_790)
    assert facts.requests == golden["requests"]
    assert facts.unique_blocks == golden["unique_blocks"]
    assert facts.ideal_pages == golden["infinite"]["hit_blocks"] == 105_710
    assert facts.ideal_tokens / facts.prompt_tokens == golden["infinite"]["token_hit_rate"]
    half = golden["last_half_token_weighted"]
    last = requests[len(requests) // 2 :]
    assert sum(r.prompt_tokens for r in last) == half["total_tokens"]
    hit_tokens = sum(min(r.ideal_pages * 512, r.prompt_tokens) for r in last)
    assert hit_tokens == half["ceiling_hit_tokens"]
    assert facts.warnings == []
    assert facts.duration_s == 3536.999


def test_full_pages_and_the_cap() -> None:
    requests = open_trace(CONVERSATION).requests(512, "full")
    assert sum(min(r.ideal_pages, (r.prompt_tokens - 1) // 512) for r in requests) == 105_592


def test_page_keys_are_block_ids_times_pages_per_block() -> None:
    with CONVERSATION.open() as file:
        for request, line in zip(open_trace(CONVERSATION).requests(64), file, strict=True):
            if request.number % 100 == 0:
                row = json.loads(line)
                keys = [id_ * 8 + index for id_ in row["hash_ids"] for index in range(8)]
                found = [k for first, n in request.prompt_runs for k in range(first, first + n)]
                assert found == keys[: row["input_length"] // 64]
    starts = list(accumulate((r.arrival_ns for r in open_trace(CONVERSATION).requests(512)), max))
    assert starts[0] == 0
    assert starts[-1] == 3_536_999 * 10**6


@pytest.mark.parametrize(("page", "pages"), [(64, "full"), (128, "partial")])
def test_ceiling_against_the_naive_one(page: int, pages: str) -> None:
    naive = NaiveCeiling(512, page, pages)
    trace = open_trace(CONVERSATION)
    with CONVERSATION.open() as file:
        for request, line in zip(trace.requests(page, pages), file, strict=False):  # type: ignore[arg-type]
            if request.number == 150:
                break
            row = json.loads(line)
            ids, tokens = row["hash_ids"], row["input_length"]
            assert request.ideal_pages == naive.ideal_pages(ids, tokens)


def test_a_slice_whose_ids_start_anywhere_has_the_same_ceiling_as_renumbered(tmp_path) -> None:
    rows = [json.loads(line) for line in CONVERSATION.read_text().splitlines()[5000:7000]]
    names: dict[int, int] = {}
    for name in ("as it is", "renumbered"):
        lines = [json.dumps(row) for row in rows]
        (tmp_path / name).write_text("\n".join(lines))
        for row in rows:
            row["hash_ids"] = [names.setdefault(id_, len(names)) for id_ in row["hash_ids"]]
    first, second = (
        [(r.ideal_pages, r.prompt_runs) for r in open_trace(tmp_path / name).requests(64)]
        for name in ("as it is", "renumbered")
    )
    assert first == second
