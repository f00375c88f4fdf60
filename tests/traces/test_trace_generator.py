"""The generator: the same bytes each time, Mooncake's numbering, and what its options promise."""

from __future__ import annotations

import gzip
import json
import re
import statistics
from collections import OrderedDict
from dataclasses import fields, replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from trace_helpers import REPOSITORY, NaiveCeiling

from hicache.errors import InputError
from scenario.load import load_scenario
from sim.replay import replay
from traces.generator import RANGES, AgentOptions, AgentTraffic, write_trace
from traces.reader import open_trace

SHIPPED = REPOSITORY / "data" / "agents.jsonl"
SHORT = AgentOptions(hours=0.05, turns_mean=8)


def text_of(options: AgentOptions) -> bytes:
    return b"".join(AgentTraffic(options).lines())


def test_the_shipped_trace_is_what_the_command_writes() -> None:
    assert text_of(AgentOptions()) == SHIPPED.read_bytes()


def test_a_seed_gives_the_same_bytes_and_another_seed_others(tmp_path: Path) -> None:
    text = text_of(SHORT)
    assert text_of(SHORT) == text
    assert text_of(replace(SHORT, seed=2)) != text
    for name in ("a.jsonl", "a.jsonl.gz", "b.jsonl.gz"):
        assert write_trace(SHORT, tmp_path / name) == text.count(b"\n")
    assert (tmp_path / "a.jsonl").read_bytes() == text
    packed = (tmp_path / "a.jsonl.gz").read_bytes()
    assert gzip.decompress(packed) == text
    assert packed == (tmp_path / "b.jsonl.gz").read_bytes()
    assert packed[3:8] == bytes(5), "no name and no time in the header"
    assert sorted(p.name for p in tmp_path.iterdir()) == ["a.jsonl", "a.jsonl.gz", "b.jsonl.gz"]


@settings(max_examples=8, deadline=None)
@given(
    seed=st.integers(0, 1 << 40),
    system_prompts=st.integers(1, 5),
    system_prompt_median_tokens=st.integers(1, 4000),
    block_tokens=st.sampled_from([16, 100, 512]),
    longest=st.integers(3000, 20_000),
)
def test_what_is_generated_reads_back(
    tmp_path_factory: pytest.TempPathFactory,
    seed: int,
    system_prompts: int,
    system_prompt_median_tokens: int,
    block_tokens: int,
    longest: int,
) -> None:
    options = replace(
        SHORT,
        seed=seed,
        system_prompts=system_prompts,
        system_prompt_median_tokens=system_prompt_median_tokens,
        block_tokens=block_tokens,
        longest_prompt_tokens=longest,
    )
    traffic = AgentTraffic(options)
    if not traffic.turns:
        return
    path = tmp_path_factory.mktemp("trace") / "t.jsonl"
    write_trace(options, path)
    trace = open_trace(path, block_tokens=block_tokens)
    page = block_tokens // 4
    requests = list(trace.requests(page))
    assert [(r.prompt_tokens, r.output_tokens) for r in requests] == [
        (turn.prompt_tokens, turn.output_tokens) for turn in traffic.turns
    ]
    assert trace.facts.warnings == []
    assert max(turn.prompt_tokens for turn in traffic.turns) <= longest
    naive = NaiveCeiling(block_tokens, page, "full")
    next_id = 0
    for request, line in zip(requests, path.read_text().splitlines(), strict=True):
        ids = json.loads(line)["hash_ids"]
        assert request.ideal_pages == naive.ideal_pages(ids, request.prompt_tokens)
        new = [id_ for id_ in ids if id_ >= next_id]
        assert new == list(range(next_id, next_id + len(new))), "numbered in order of appearance"
        next_id += len(new)


def test_a_turn_repeats_all_full_blocks_of_the_turn_before() -> None:
    traffic = AgentTraffic(SHORT)
    blocks_of: dict[int, list[int]] = {}
    shared = 0
    last_tokens: dict[int, int] = {}
    for turn, line in zip(traffic.turns, traffic.lines(), strict=True):
        ids = json.loads(line)["hash_ids"]
        full = ids[: turn.prompt_tokens // 512]
        if before := blocks_of.get(turn.session):
            assert full[: len(before)] == before
            shared += len(before)
            assert turn.prompt_tokens > last_tokens[turn.session]
        blocks_of[turn.session] = full
        last_tokens[turn.session] = turn.prompt_tokens
    assert shared > 100
    # Sessions of one system prompt share its full blocks and no other.
    for a, first in blocks_of.items():
        for b, second in blocks_of.items():
            common = sum(1 for x, y in zip(first, second, strict=False) if x == y)
            rank = traffic.system_prompt_of[a]
            if rank != traffic.system_prompt_of[b]:
                assert common == 0
            elif a != b:
                assert common == traffic.system_prompt_tokens[rank] // 512


def test_options_mean_what_they_say() -> None:
    options = AgentOptions(seed=5, hours=10, turns_mean=6, longest_prompt_tokens=10_000_000)
    traffic = AgentTraffic(options)
    sessions = len(traffic.system_prompt_of)
    assert sessions / 10 == pytest.approx(400, rel=0.05)
    assert len(traffic.turns) / sessions == pytest.approx(6, rel=0.05)
    assert statistics.median(t.output_tokens for t in traffic.turns) == pytest.approx(120, rel=0.05)
    counts = [traffic.system_prompt_of.count(rank) for rank in range(16)]
    assert counts[0] / counts[1] == pytest.approx(2, rel=0.15)
    flat = AgentTraffic(replace(options, hours=0.5, output_sigma=0, system_prompt_sigma=0))
    assert {turn.output_tokens for turn in flat.turns} == {120}
    assert set(flat.system_prompt_tokens) == {6000}


def test_every_option_has_a_range_and_is_in_the_readme() -> None:
    readme = (REPOSITORY / "data" / "README.md").read_text()
    assert list(RANGES) == [each.name for each in fields(AgentOptions)]
    for each in fields(AgentOptions):
        assert f"| `--{each.name.replace('_', '-')}` | {each.default} |" in readme


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("hours", 0, "hours is 0: it must lie between 0.001 and 10000"),
        ("hours", float("nan"), "hours is nan: it must be a number"),
        ("sessions_per_hour", float("inf"), "sessions_per_hour is inf: it must be a number"),
        ("seed", -1, "seed is -1"),
        ("seed", 1.5, "seed is 1.5: it must be a whole number"),
        ("seed", True, "seed is True: it must be a whole number"),
        ("system_prompts", 0, "system_prompts is 0"),
        ("person_fraction", 1.1, "person_fraction is 1.1: it must lie between 0 and 1"),
        ("tool_sigma", -0.1, "tool_sigma is -0.1"),
        ("turns_mean", 0.5, "turns_mean is 0.5"),
        ("output_median_tokens", "9", "output_median_tokens is '9': it must be a number"),
    ],
)
def test_bad_options(name: str, value: object, message: str) -> None:
    with pytest.raises(InputError) as caught:
        AgentOptions(**{name: value})  # type: ignore[arg-type]
    assert str(caught.value).startswith(message)


def test_nothing_is_left_behind_when_it_cannot_write(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="cannot be written: No such file or directory"):
        write_trace(SHORT, tmp_path / "none" / "t.jsonl")
    (tmp_path / "folder").mkdir()
    with pytest.raises(InputError, match="cannot be written"):
        write_trace(SHORT, tmp_path / "folder")
    with pytest.raises(InputError, match="gives no request with seed 1: make either larger"):
        write_trace(replace(SHORT, sessions_per_hour=0.01), tmp_path / "t.jsonl")
    assert [p.name for p in tmp_path.iterdir()] == ["folder"]


def leaf_lru_token_hit_rate(prompts: list[tuple[int, list[int]]], capacity_blocks: int) -> float:
    """Full pages of 512, at most prompt - 1 tokens. Touched last to first, LRU is leaf LRU."""
    cached: OrderedDict[int, None] = OrderedDict()
    hit_tokens = 0
    for tokens, ids in prompts:
        hit = 0
        while hit < len(ids) and ids[hit] in cached:
            hit += 1
        hit_tokens += 512 * min(hit, (tokens - 1) // 512)
        for id_ in reversed(ids):
            cached[id_] = None
            cached.move_to_end(id_)
        while len(cached) > capacity_blocks:
            cached.popitem(last=False)
    return hit_tokens / sum(tokens for tokens, _ in prompts)


def test_the_readme_says_what_each_size_of_cache_hits() -> None:
    readme = (REPOSITORY / "data" / "README.md").read_text()
    rows = re.findall(r"^\| ([\d,]+|any number) \|[^|]*\| (0\.\d+) \|$", readme, re.MULTILINE)
    assert len(rows) == 6
    prompts = []
    for line in SHIPPED.read_text().splitlines():
        row = json.loads(line)
        tokens = row["input_length"]
        prompts.append((tokens, row["hash_ids"][: tokens // 512]))
    for room, rate in rows:
        tokens = 10**9 if room == "any number" else int(room.replace(",", ""))
        # The engine's own rules, and beside it a cache that keeps no answers and evicts by page.
        options = {
            "trace.path": str(SHIPPED), "mode": "untimed", "tiers.page_size_tokens": 512,
            "tiers.l1": f"{tokens}tokens", "tiers.l2": "0", "tiers.l3": "0",
        }  # fmt: skip
        summary = replay(load_scenario(None, options)).summary
        assert f"{summary['cache_hit_rate']:.3f}" == rate
        assert float(rate) == pytest.approx(
            leaf_lru_token_hit_rate(prompts, tokens // 512), abs=0.01
        )
    assert (
        "hicache replay data/agents.jsonl --untimed --page-size 512 --l1 750000tokens --l2 0 --l3 0"
        in readme
    )
    assert f"{len(prompts):,} requests" in readme
