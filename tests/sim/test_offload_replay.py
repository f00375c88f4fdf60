"""Decode offload in whole replays: what is written sooner, and what the options say of it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from scenario.load import load_scenario
from sim.replay import prepare, replay


@pytest.fixture(scope="module")
def trace(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Ten long answers, one after the other begun."""
    path = tmp_path_factory.mktemp("trace") / "answers.jsonl"
    rows = [
        {
            "timestamp": 400 * place, "input_length": 1024, "output_length": 1500,
            "hash_ids": [10 * place, 10 * place + 1],
        }
        for place in range(10)
    ]  # fmt: skip
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def options_with(trace: Path, **changed: Any) -> dict[str, object]:
    options = {
        "preset": "sglang-0.5.20", "trace.path": str(trace), "tiers.l1": "400pages",
        "tiers.l2": "600pages", "tiers.l3": "5000pages", "engine.check_every_steps": 10,
    }  # fmt: skip
    return options | {key.replace("__", "."): value for key, value in changed.items()}


@pytest.mark.parametrize("index", ["store", "tree"])
def test_a_replay_writes_while_it_decodes(trace: Path, index: str) -> None:
    shown: dict[int, dict[str, Any]] = {}
    changed = {} if index == "store" else {"storage__index": "tree", "prefetch__mode": "restore"}
    for stride in (0, 640, -1):  # -1: off
        offload = {"offload__decode": stride >= 0, "offload__stride_tokens": max(0, stride)}
        scenario = load_scenario(None, options_with(trace, **changed, **offload))
        shown[stride] = dict(replay(scenario).summary)
    for summary in shown.values():
        cached = sum(summary["cached_tokens_total"].values())
        assert cached + summary["computed_tokens"] == summary["prompt_tokens"]
    # All of every answer goes to L3 in the end; the strides make more, smaller copies of it.
    assert len({summary["backuped_tokens_total"] for summary in shown.values()}) == 1
    page, long, off = (shown[stride]["transfers"]["h2s"]["operations"] for stride in (0, 640, -1))
    assert page > 5 * long > 5 * off / 2 > 0
    assert shown[0]["offloaded_tokens"] >= 10 * 1408
    assert shown[640]["offloaded_tokens"] >= 10 * 640
    assert "offloaded_tokens" not in shown[-1]


def test_the_same_again_is_the_same(trace: Path) -> None:
    scenario = load_scenario(None, options_with(trace, offload__decode=True))
    assert json.dumps(replay(scenario).summary) == json.dumps(replay(scenario).summary)


def test_an_abort_under_way_leaves_the_engine_at_rest(trace: Path) -> None:
    scenario = load_scenario(None, options_with(trace, offload__decode=True))
    run = prepare(scenario)
    engine = run.instances[0]
    for number in range(10):
        timer = run.env.timeout(int(1e9) + number * 777_777_777)
        timer.callbacks.append(lambda _, number=number: engine.abort(number))  # type: ignore[union-attr]
    run.execute()
    engine.check_integrity()
    assert engine.metrics.aborted > 3
    status = engine.status()
    assert status["pending_writes"] == status["write_backlog_pages"] == 0
    assert all(not tier["private_or_arriving_pages"] for tier in status["tiers"].values())


@pytest.mark.parametrize(
    ("changed", "why"),
    [
        ({"tiers__l3": "0"}, "tiers.l3 is 0"),
        ({"cache__outputs": "dropped"}, "cache.outputs is dropped"),
        ({"mode": "untimed"}, "mode is untimed"),
    ],
)
def test_where_it_cannot_change_anything_it_is_said(
    trace: Path, changed: dict[str, Any], why: str
) -> None:
    given = options_with(trace, offload__decode=True, **changed)
    warnings = " ".join(map(str, replay(load_scenario(None, given)).summary["warnings"]))  # type: ignore[call-overload]
    assert f"offload.decode is true but has no effect: {why}" in warnings


def test_a_write_policy_of_none_still_offloads(trace: Path) -> None:
    given = options_with(trace, offload__decode=True, cache__write_policy="none")
    summary: dict[str, Any] = dict(replay(load_scenario(None, given)).summary)
    assert summary["backuped_tokens_total"] >= 10 * (1024 + 1408)
    assert not [each for each in summary["warnings"] if "nothing is ever written" in each]
