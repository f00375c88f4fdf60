"""Requests that come at once: what they share is computed once, and none starves for want of
room.
"""

from __future__ import annotations

import json

from scenario.load import load_scenario
from sim.replay import replay


def summary_of(tmp_path, rows, **overrides):
    trace = tmp_path / "trace.jsonl"
    keys = ("timestamp", "input_length", "output_length", "hash_ids")
    trace.write_text("".join(json.dumps(dict(zip(keys, row, strict=True))) + "\n" for row in rows))
    options = {"trace.path": str(trace), "tiers.page_size_tokens": 512, "tiers.l2": "0"}
    return replay(load_scenario(None, {**options, **overrides})).summary


def test_a_burst_that_shares_a_prefix_computes_it_once(tmp_path):
    """All are admitted together; each looks once more when it is its turn."""
    shared = list(range(16))
    rows = [(0, 17 * 512, 20, [*shared, 1000 + number]) for number in range(100)]
    at_once = summary_of(tmp_path, rows)
    tokens = at_once["hit_rates"]["all"]["tokens"]
    assert tokens["hit"] > 0.97 * tokens["ceiling_hit"]
    one_by_one = summary_of(tmp_path, rows, **{"scheduler.max_running_requests": 4})
    assert at_once["ttft_ms"]["p50"] < one_by_one["ttft_ms"]["p50"]


def test_the_same_prompt_ten_times_at_once(tmp_path):
    rows = [(0, 4096, 2, list(range(8))) for _ in range(10)]
    said = summary_of(tmp_path, rows, **{"scheduler.chunk_tokens": 4096})
    assert said["cached_pages_total"]["device"] == 9 * 7


def test_requests_that_need_a_page_at_once_do_not_push_each_other_out_for_ever(tmp_path):
    """Seven pages are one too few; it was 437 retractions before whole pages were looked at."""
    rows = [(0, 300, 300, [0]), (0, 300, 300, [1]), (0, 1400, 800, [2, 3, 4])]
    said = summary_of(tmp_path, rows, **{"tiers.l1": "7pages"})
    assert said["requests"] == 3
    assert 1 <= said["retractions"] <= 5
    assert said["recomputed_tokens"] < 10_000
