"""What is in a trace: against counts by hand, a naive LRU, the cutters, published numbers."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from recorded_helpers import REAL_TRACES, needs_real_traces
from row_traces import made, traces
from trace_helpers import CONVERSATION, REPOSITORY, line, needs_conversation, write_lines

from hicache.errors import InputError
from traces.block_keys import BlockKeys
from traces.convert import write
from traces.doubts import Clock
from traces.info import trace_info
from traces.reader import open_trace
from traces.report import Spread, TraceInfo, spread
from traces.reuse import Reuse
from traces.rows import Layout, Row

GOLDEN = REPOSITORY.parent / "shared" / "goldens" / "mooncake_conversation.json"

# --- Reuse, against a stack that is searched

contexts = st.lists(
    st.tuples(st.lists(st.integers(0, 2), max_size=7), st.integers(0, 7)), min_size=1, max_size=12
)


def places(given: Sequence[tuple[list[int], int]]) -> tuple[list[int], Counter[tuple[int, ...]]]:
    """Places of all hits of prompts, and how many prompts have each block."""
    stack: list[tuple[int, ...]] = []
    found: list[int] = []
    uses: Counter[tuple[int, ...]] = Counter()
    for ids, prompt_blocks in given:
        path = [tuple(ids[: end + 1]) for end in range(len(ids))]
        found += [stack.index(block) + 1 for block in path[:prompt_blocks] if block in stack]
        uses.update(path[:prompt_blocks])
        stack = path + [block for block in stack if block not in path]
    return found, uses


def counted(given: Sequence[tuple[list[int], int]]) -> Reuse:
    keys, reuse = BlockKeys(), Reuse()
    for ids, prompt_blocks in given:
        reuse.add(keys.number(ids)[0], prompt_blocks)
    return reuse


@settings(max_examples=300, deadline=None)
@given(contexts)
def test_hits_of_every_size_are_those_of_a_naive_lru_stack(
    given: list[tuple[list[int], int]],
) -> None:
    reuse = counted(given)
    found, uses = places(given)
    assert reuse.hits == len(found)
    for blocks in range(len(found) + 20):
        assert reuse.hits_within(blocks) == sum(place <= blocks for place in found)
    wanted = list(range(len(found) + 1))
    assert reuse.blocks_for(wanted) == [0, *sorted(found)]
    # Of the blocks with so many prompts at such a depth there are as many.
    by_naive = Counter((count, len(block)) for block, count in uses.items())
    by_stretch: Counter[tuple[int, int]] = Counter()
    for each in reuse.shared():
        depths = range(each.depth_blocks - each.blocks + 1, each.depth_blocks + 1)
        by_stretch.update((each.prompts, depth) for depth in depths)
    assert by_stretch == by_naive


@needs_conversation
@pytest.mark.skipif(not GOLDEN.exists(), reason="the golden counts are not beside this checkout")
def test_hits_are_the_golden_counts_of_leaf_lru() -> None:
    golden = json.loads(GOLDEN.read_text())["leaf_lru_hit_blocks"]
    keys, reuse = BlockKeys(), Reuse()
    for rows, _ in open_trace(CONVERSATION).stream().batches():
        for row in rows:
            reuse.add(keys.number(row.hash_ids)[0], len(row.hash_ids))
    assert len(golden) == 12
    for blocks, hits in golden.items():
        assert reuse.hits_within(10**9 if blocks == "inf" else int(blocks)) == hits


# --- The whole report


def info_of(path: Path, **options: Any) -> TraceInfo:
    page_size = options.pop("page_size", None)
    return trace_info(open_trace(path, **options), page_size)


def test_a_small_trace_counted_by_hand(tmp_path: Path) -> None:
    path = write_lines(
        tmp_path / "t",
        [
            line([0, 1], 1000, 0, 10),
            line([0, 2, 3], 1536, 30_000, 0),
            line([0, 2, 3], 1536, 30_000, 20),
            line([0, 2], 900, 120_000, 30),
            line([4], 600, 130_000, 40),
        ],
    )
    info = info_of(path, page_size=512)
    assert (info.format, info.requests, info.untimed_requests) == ("mooncake", 5, 0)
    assert (info.duration_s, info.mean_rate_per_s, info.peak_requests_per_minute) == (
        130,
        1 / 26,
        3,
    )
    assert (info.sessions, info.turns.count, info.think_s, info.recorded) == (0, 0, None, None)
    assert info.prompt_tokens == Spread(5, 5572, 1114.4, 1000, 1536, 1536, 1536)
    assert info.output_tokens == Spread(5, 100, 20, 20, 40, 40, 40)
    assert (info.counted, info.unique_blocks, info.reuse_block_tokens) == ("blocks", 5, 512)
    assert info.ideal is not None
    # Known: 0 of the second, all of the third, all of the fourth (600 tokens, but one id).
    assert (info.ideal.blocks, info.ideal.hit_blocks, info.ideal.hit_rate_blocks) == (11, 6, 6 / 11)
    assert info.ideal.hit_rate_tokens == (512 + 1536 + 900) / 5572
    assert info.ideal_pages is not None
    assert (info.ideal_pages.blocks, info.ideal_pages.hit_blocks) == (9, 5)
    # Most recent first: 0 | 1; then 0 2 3 | 1; the hits are at places 1, 1 2 3, 1 2.
    assert [each.blocks for each in info.reuse] == [1, 1, 2, 3]
    assert [each.tokens for each in info.reuse] == [512, 512, 1024, 1536]
    sharing = info.sharing
    assert sharing is not None
    # 1 has 488 tokens, 4 has 512; 0 is in four prompts, 2 and 3 in three (once with 388) and two.
    assert sharing.used_once == (488 + 512) / 5572
    assert sharing.used_2_to_9_times == (4 * 512 + 2 * 512 + 388 + 2 * 512) / 5572
    assert (sharing.used_10_times_or_more, sharing.common_prefix_tokens) == (0, 0)
    assert sharing.without_id == pytest.approx(88 / 5572)
    assert sharing.repeated_prompts == 1
    assert [(each.requests, each.tokens) for each in sharing.top_prefixes] == [
        (4, 512), (3, 1024), (2, 1536),
    ]  # fmt: skip
    assert info.looks_wrong == [
        "zero outputs: 1 of 5 requests have no output token",
        "no id to the end: 1 of 5 prompts have tokens behind their last id (a partly filled last "
        "block, most often), which never hit and are always computed",
        "duplicates: whole earlier prompts are repeated by 1 of 5 requests",
    ]
    assert json.loads(json.dumps(info.as_dict()))["prompt_tokens"]["p99"] == 1536


def test_what_all_prompts_start_with_is_no_longer_than_the_shortest(tmp_path: Path) -> None:
    path = write_lines(tmp_path / "t", [line([0, 1], 600), line([0, 1], 600)])
    sharing = info_of(path).sharing
    assert sharing is not None
    assert (sharing.common_prefix_tokens, sharing.used_2_to_9_times) == (600, 1)


@settings(max_examples=150, deadline=None)
@given(traces(), st.sampled_from([1, 2, 4]))
def test_the_report_agrees_with_what_a_replay_is_told(
    tmp_path_factory: pytest.TempPathFactory, trace: Any, page: int
) -> None:
    layout, rows = trace
    path = tmp_path_factory.mktemp("t") / "t"
    write(made(layout, rows), path)
    opened = open_trace(path)
    if layout.block_tokens > 1:
        page = layout.block_tokens
    info = trace_info(opened, page)
    list(opened.requests(page))
    facts = opened.facts
    assert (info.requests, info.sha256) == (facts.requests, facts.sha256)
    assert info.prompt_tokens.total == facts.prompt_tokens
    assert info.output_tokens.total == facts.output_tokens
    if not layout.has_ids:
        assert info.ideal is info.sharing is None
        return
    assert info.ideal is not None
    assert info.ideal_pages is not None
    assert (info.ideal.blocks, info.ideal.hit_blocks) == (facts.blocks, facts.ideal_blocks)
    assert info.ideal_pages.blocks == facts.prompt_pages
    assert info.ideal_pages.hit_blocks == facts.ideal_pages
    assert info.unique_blocks == facts.unique_blocks
    sharing = info.sharing
    assert sharing is not None
    parts = (sharing.used_once, sharing.used_2_to_9_times, sharing.used_10_times_or_more)
    assert sum(parts) + sharing.without_id == pytest.approx(1)
    assert min(*parts, sharing.without_id) >= 0
    whole = Counter((tuple(row.hash_ids), tuple(row.lengths or ())) for row in rows)
    named = [row for row in rows if sum(row.lengths or [row.input_length]) == row.input_length]
    if len(named) == len(rows) and layout.block_tokens <= 1:
        assert sharing.repeated_prompts == len(rows) - len(whole)
    if info.reuse:
        last = info.reuse[-1]
        assert last.tokens == last.blocks * page > 0


def test_an_answer_that_an_earlier_prompt_goes_on_with_is_counted_once(tmp_path: Path) -> None:
    rows = [
        Row(3, 0, 0, [5, 6], [2, 1]),
        Row(2, 2, 0, [5], [2], output_ids=[6, 7], output_lengths=[1, 1]),
        Row(3, 0, 0, [5, 6], [2, 1]),
    ]
    write(made(Layout(0), rows), tmp_path / "t")
    sharing = info_of(tmp_path / "t", page_size=1).sharing
    assert sharing is not None
    assert (sharing.used_once, sharing.used_2_to_9_times, sharing.without_id) == (0, 1, 0)


def test_tokens_and_pieces_are_counted_in_pages(tmp_path: Path) -> None:
    path = tmp_path / "t"
    rows = [
        {"prompt": [*range(20), n], "prompt_len": 21, "output_len": 1, "timestamp": n}
        for n in (0, 1, 0)
    ]
    path.write_text("".join(f"{json.dumps(each)}\n" for each in rows))
    assert info_of(path).reuse_block_tokens == 64
    info = info_of(path, page_size=16)
    assert (info.counted, info.reuse_block_tokens) == ("pages", 16)
    assert info.sharing is not None
    # The last prompt is the first; the second has the same page, but another tail.
    assert info.sharing.repeated_prompts == 1
    assert info.sharing.without_id == pytest.approx(5 / 21)
    assert info_of(path, page_size=21).sharing.repeated_prompts == 1  # type: ignore[union-attr]
    pieces = info_of(REPOSITORY / "data" / "agents.jsonl", page_size=64)
    assert pieces.ideal_pages is not None
    assert pieces.ideal_pages.block_tokens == 64


def test_think_times_sessions_and_recorded_hits(tmp_path: Path) -> None:
    path = tmp_path / "t"
    lines = [
        '{"hicache_trace":1,"block_tokens":4,"hints":{"loop":"closed"}}',
        '{"input_length":8,"output_length":4,"timestamp":0,"session":"a","ids":[0,1],'
        '"answer_ids":[2],"cached_tokens":0}',
        '{"input_length":16,"output_length":4,"session":"a","after":0,"delay":500,'
        '"append_ids":[3],"cached_tokens":8}',
        '{"input_length":4,"output_length":4,"timestamp":60000,"ids":[9]}',
    ]
    path.write_text("".join(f"{each}\n" for each in lines))
    info = info_of(path)
    assert (info.requests, info.untimed_requests, info.sessions) == (3, 1, 1)
    assert (info.turns.mean, info.turns.max, info.hints) == (2, 2, {"loop": "closed"})
    assert info.think_s == Spread(1, 0.5, 0.5, 0.5, 0.5, 0.5, 0.5)
    recorded = info.recorded
    assert recorded is not None
    assert (recorded.requests, recorded.prompt_tokens, recorded.cached_tokens) == (2, 24, 8)
    # The answer's block was full, so its KV but for one token was there: 3 blocks of the second.
    assert (recorded.hit_rate_tokens, recorded.ideal_hit_rate_tokens) == (8 / 24, 12 / 24)


def test_malformed_rows_are_errors_or_listed(tmp_path: Path) -> None:
    path = write_lines(tmp_path / "t", [line([0], 512), line([0, 1], 512), "{", line([0], 512)])
    with pytest.raises(InputError, match="line 3: the JSON is cut off"):
        info_of(path)
    info = info_of(path, on_error="skip")
    assert (info.requests, info.bad_rows) == (2, 2)
    assert sorted(each.split(",")[0].split(":")[0] for each in info.listed_bad_rows) == [
        "line 2", "line 3",
    ]  # fmt: skip
    assert "malformed: 2 rows were left out" in info.looks_wrong
    only = write_lines(tmp_path / "u", [line([0, 1], 512)])
    with pytest.raises(InputError, match="the trace is empty: not one request in it; 1 malformed"):
        info_of(only, on_error="skip")
    with pytest.raises(InputError, match="page size 100 does not divide"):
        info_of(path, page_size=100, on_error="skip")


# --- What looks wrong


def wrong(tmp_path: Path, times: Sequence[float]) -> list[str]:
    lines = [line([n], 10, time, 3) for n, time in enumerate(times)]
    found = info_of(write_lines(tmp_path / "t", lines)).looks_wrong
    return [each for each in found if not each.startswith("nothing shared")]


def test_times_in_steps_are_seen_also_where_the_clock_jitters(tmp_path: Path) -> None:
    exact = [n // 2 * 1000 for n in range(20)]
    assert wrong(tmp_path, exact) == [
        "coarse times: they come in steps of 1 s, with up to 2 requests at one time; a replay sees "
        "these as bursts"
    ]
    jitter = [n // 3 * 3000 + (n // 3 % 4 == 0) for n in range(60)]
    assert "steps of 3 s, with up to 3" in wrong(tmp_path, jitter)[0]
    assert "steps of 250 ms" in wrong(tmp_path, [n // 2 * 250 for n in range(20)])[0]
    # One request at a time is no burst; and times that are no multiples of anything are fine.
    assert wrong(tmp_path, [n * 1000 for n in range(20)]) == []
    assert wrong(tmp_path, [n * n * 131.071 for n in range(40)]) == []
    assert wrong(tmp_path, [0] * 20) == ["all at once: 20 requests have the same time"]


def test_times_in_another_unit_are_seen(tmp_path: Path) -> None:
    found = wrong(tmp_path, [n * 1.25 for n in range(20)])
    assert len(found) == 1
    assert found[0].startswith("unit of times: 842 requests a second; are these seconds")
    found = wrong(tmp_path, [n * 4_000_000 + n % 3 for n in range(20)])
    assert len(found) == 1
    assert "one request in 3,800 s; are these milliseconds" in found[0]


def test_a_clock_without_times_says_nothing() -> None:
    clock = Clock()
    clock.take(None)
    assert (clock.requests, clock.duration_s, clock.tick_ms) == (0, 0, 0)


def test_nothing_shared_is_said(tmp_path: Path) -> None:
    path = write_lines(tmp_path / "t", [line([n], 512, n * 997) for n in range(12)])
    info = info_of(path)
    assert info.reuse == ()
    assert info.looks_wrong == [
        "nothing shared: no prompt starts as an earlier one does, by a whole block"
    ]


def test_quantiles_are_numbers_that_are_there() -> None:
    assert spread([]) == Spread()
    assert spread([7]) == Spread(1, 7, 7, 7, 7, 7, 7)
    assert spread(range(100, 0, -1)) == Spread(100, 5050, 50.5, 50, 90, 99, 100)


# --- The published traces, without any option

RATES = {
    "mooncake_conversation.jsonl": ("mooncake", 12_031, "0.3664", "0.3736", "0.3745"),
    "ragpulse": ("ragpulse", 7_106, "0.1796", "0.3143", "0.3176"),
    "ragpulse/0_trace.jsonl": ("ragpulse", 7_106, "0.1796", "0.3143", "0.3176"),
    "sharegpt_tokens/sharegpt-llama-3.1-8b-300-sps10.jsonl": (
        "token-ids", 300, "0.0762", "0.0734", "0.0762",
    ),
    "weka_claude_code": ("weka", 1_322, "0.9552", "0.9549", "0.9552"),
}  # fmt: skip


@needs_real_traces
@pytest.mark.parametrize("path", RATES)
def test_ideal_rates_of_the_published_traces(path: str) -> None:
    format_name, requests, blocks, tokens, pages = RATES[path]
    info = info_of(REAL_TRACES / path)
    assert (info.format, info.requests) == (format_name, requests)
    assert info.ideal is not None
    assert info.ideal_pages is not None
    assert f"{info.ideal.hit_rate_blocks:.4f}" == blocks
    assert f"{info.ideal.hit_rate_tokens:.4f}" == tokens
    assert f"{info.ideal_pages.hit_rate_blocks:.4f}" == pages


@needs_real_traces
def test_what_the_published_traces_are_known_for() -> None:
    azure = info_of(REAL_TRACES / "azure2023" / "AzureLLMInferenceTrace_code.csv")
    assert (azure.format, azure.requests, azure.ideal) == ("azure", 8_819, None)
    mooncake = info_of(CONVERSATION)
    assert round(mooncake.duration_s) == 3537
    assert mooncake.sharing is not None
    assert mooncake.sharing.repeated_prompts == 118
    assert mooncake.sharing.common_prefix_tokens == 512
    assert mooncake.unique_blocks == 182_790
    assert mooncake.looks_wrong[0].startswith(
        "coarse times: they come in steps of 3 s, with up to 28 requests at one time"
    )
    assert [each.blocks for each in mooncake.reuse] == [4282, 8295, 17830, 31435]
