"""What a run says of itself: each warning appears where it should, and a contradiction is an
error.
"""

from __future__ import annotations

import json

import pytest

from report.checks import SelfCheckError, run_checks
from report.rows import Rows
from scenario.load import load_scenario
from sim.replay import prepare
from traces.convert import write
from traces.made import MadeRows
from traces.rows import Layout, Row


def run_of(tmp_path, rows, **overrides):
    trace = tmp_path / "trace.jsonl"
    keys = ("timestamp", "input_length", "output_length", "hash_ids")
    trace.write_text("".join(json.dumps(dict(zip(keys, row, strict=True))) + "\n" for row in rows))
    options = {
        "trace.path": str(trace),
        "tiers.page_size_tokens": 512,
        "tiers.l1": "40pages",
        "tiers.l2": "0",
        **overrides,
    }
    run = prepare(load_scenario(None, options))
    run.execute()
    return run


def apart(count, step_ms, blocks=10):
    """Prompts of their own, `step_ms` apart, then all of them once more."""
    prompts = [[p * blocks + b for b in range(blocks)] for p in range(count)]
    return [
        (place * step_ms, blocks * 512, 2, ids) for place, ids in enumerate([*prompts, *prompts])
    ]


def warnings_of(run):
    return {each.split(":")[0]: each for each in run_checks(run, Rows(run.engine.metrics))}


def test_seconds_taken_for_milliseconds_are_noticed(tmp_path):
    assert "timestamps_unit" in warnings_of(run_of(tmp_path, apart(10, 3)))
    assert "timestamps_unit" not in warnings_of(run_of(tmp_path, apart(10, 3000)))


def test_a_queue_that_only_grows_is_noticed_and_a_speed_is_suggested(tmp_path):
    said = warnings_of(run_of(tmp_path, apart(40, 50)))["overload"]
    assert "--speed" in said
    assert "overload" not in warnings_of(run_of(tmp_path, apart(40, 5000)))


def test_at_a_rate_a_lower_rate_is_suggested(tmp_path):
    said = warnings_of(run_of(tmp_path, apart(40, 50), **{"load.rate": 20.0}))["overload"]
    assert "--rate" in said
    assert "--speed" not in said


def test_prompts_longer_than_the_models_context_are_counted(tmp_path):
    rows = [(0, 512 * 90, 2, list(range(90))), (1, 512, 2, [200])]
    said = warnings_of(run_of(tmp_path, rows, **{"tiers.l1": "400pages"}))["context_length"]
    assert "1 of 2 requests are longer than the 40,960 tokens" in said
    assert "context_length" not in warnings_of(run_of(tmp_path, rows[1:]))


def test_a_trace_of_lengths_is_not_told_that_its_tiers_are_idle(tmp_path):
    trace = tmp_path / "azure.csv"
    trace.write_text(
        "TIMESTAMP,ContextTokens,GeneratedTokens\n"
        "2023-11-16 18:17:03.9799600,4808,10\n2023-11-16 18:17:04.0319569,3180,8\n"
    )
    run = prepare(load_scenario(None, {"trace.path": str(trace)}))
    run.execute()
    outcome = run.outcome()
    assert outcome.summary["trace"]["has_ids"] is False
    warnings = outcome.summary["warnings"]
    assert not any("idle_tier" in warning for warning in warnings)
    assert "lengths only" in warnings[0]


@pytest.mark.parametrize(
    ("l1", "l2", "part"),
    [("400pages", "2x", "never had to evict"), ("40pages", "1x", "no larger than L1")],
)
def test_a_tier_that_served_nothing_is_named_with_the_reason(tmp_path, l1, l2, part):
    said = warnings_of(run_of(tmp_path, apart(10, 3000), **{"tiers.l1": l1, "tiers.l2": l2}))
    assert "L2" in said["idle_tier"]
    assert part in said["idle_tier"]


def test_a_tier_that_serves_is_not_called_idle(tmp_path):
    run = run_of(tmp_path, apart(10, 3000), **{"tiers.l2": "10x", "restore.policy": "always"})
    assert run.engine.metrics.cached_pages[1] > 0
    assert "idle_tier" not in warnings_of(run)


def test_what_lies_outside_the_measured_range_is_said(tmp_path):
    run = run_of(tmp_path, [(0, 512 * 300, 2, list(range(300)))], **{"tiers.l1": "400pages"})
    said = run_checks(run, Rows(run.engine.metrics))
    assert any("past tokens of a prefill chunk lay beyond" in each for each in said)


@pytest.mark.parametrize("threshold_tokens", [0, 2500, 10_000])
def test_untimed_declines_what_the_timed_engine_declines(tmp_path, threshold_tokens):
    """Prompts of 2 to 8 blocks, so far apart that they never meet: the same hits and reasons."""
    prompts = [[100 * p + b for b in range(2 + p % 7)] for p in range(12)]
    rows = [
        (place * 60_000, 512 * len(ids) + 10, 2, [*ids, 10_000 + place])
        for place, ids in enumerate([*prompts, *prompts[::-1], *prompts])
    ]
    options = {
        **TIERED, "tiers.l1": "20pages", "restore.policy": "threshold",
        "restore.threshold_tokens": threshold_tokens,
    }  # fmt: skip
    seen = []
    for mode in ("timed", "untimed"):
        run = run_of(tmp_path, rows, **options, mode=mode)
        rows_of = Rows(run.engine.metrics)
        hits = [list(rows_of.column(f"{tier}_tokens")) for tier in ("device", "host", "computed")]
        declined = [reason == "below_threshold" for reason in run.engine.metrics.reasons]
        seen.append((hits, declined, run.engine.metrics.policy_skips))
    assert seen[0] == seen[1]
    hits, declined, skips = seen[0]
    assert skips == sum(declined)
    assert any(hits[1]) == (threshold_tokens < 10_000)
    assert any(declined) == (threshold_tokens > 0)


TIERED = {"tiers.l2": "10x", "restore.policy": "always"}
WITH_L3 = {**TIERED, "tiers.l2": "45pages", "tiers.l3": "20x"}
KERNEL = {"machine.transfer_mode": "kernel"}


@pytest.mark.parametrize(
    ("options", "tiers"),
    [
        (TIERED, "L2"),
        ({**TIERED, "machine.transfer_mode": "dma"}, "L2"),
        (WITH_L3, "L2 and L3"),
        ({**WITH_L3, **KERNEL}, "L3"),
        ({**TIERED, **KERNEL}, ""),
        ({**WITH_L3, "engine.page_ids": "named"}, ""),
        ({**TIERED, "mode": "untimed"}, ""),
        ({"tiers.l2": "0"}, ""),
    ],
)
def test_a_run_that_counts_pages_says_that_it_takes_them_as_consecutive(tmp_path, options, tiers):
    """Wherever the place of a page has a price, and nowhere else."""
    run = run_of(tmp_path, apart(10, 3000), **options)
    said = {each["key"]: each["how"] for each in run.outcome().summary["estimates"]}
    if not tiers:
        assert "engine.page_ids" not in said
        return
    assert said["engine.page_ids"].startswith(f"pages of {tiers} are taken as consecutive")
    assert "--set engine.page_ids=named" in said["engine.page_ids"]


@pytest.mark.parametrize(
    ("check", "tamper"),
    [
        ("reuse_above_ceiling", lambda m: m.cached_pages.__setitem__(0, 10_000)),
        ("bytes_moved", lambda m: setattr(m.directions["d2h"], "size_bytes", 1)),
        ("bytes_moved", lambda m: m.cached_pages.__setitem__(1, m.cached_pages[1] + 1)),
        ("tokens_by_source", lambda m: m.rows.__setitem__(4, m.rows[4] + 1)),
    ],
)
def test_a_run_that_contradicts_itself_is_an_error_with_the_checks_name(tmp_path, check, tamper):
    run = run_of(tmp_path, apart(10, 3000), **{"tiers.l2": "10x", "restore.policy": "always"})
    tamper(run.engine.metrics)
    with pytest.raises(SelfCheckError, match=check):
        run_checks(run, Rows(run.engine.metrics))


def test_an_answer_that_comes_before_the_prompt_that_has_it_is_no_contradiction(tmp_path):
    # In the file, request 1 asks for pages that later are the answer of request 2; in the closed
    # loop it thinks so long that they are there before it.
    rows = [
        Row(16, 17, 0, [0], [16], [1], [17], session="a"),
        Row(66, 1, 1, [0, 1, 2, 3], [16, 17, 17, 16], session="a", after=0, delay=1e6),
        Row(33, 17, 1e5, [0, 1], [16, 17], [2], [17], session="b"),
    ]
    path = tmp_path / "trace.jsonl"
    write(MadeRows(Layout(0), lambda: rows, {"loop": "closed"}), path, "hicache")
    options = {"trace.path": str(path), "tiers.page_size_tokens": 8, "tiers.l1": "100pages"}
    run = prepare(load_scenario(None, options))
    run.execute()
    facts, hit = run.trace.facts, sum(run.engine.metrics.cached_pages)
    assert facts.ideal_pages < hit <= facts.ideal_pages + facts.known_answer_pages
    assert "reuse_above_ceiling" not in warnings_of(run)
    facts.known_answer_pages = 0
    with pytest.raises(SelfCheckError, match="reuse_above_ceiling"):
        run_checks(run, Rows(run.engine.metrics))
