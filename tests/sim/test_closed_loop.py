"""Whole replays of sessions: what later turns hit, and that a record of them replays."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from hicache.errors import InputError
from hicache.record import Record
from scenario.load import load_scenario
from scenario.sessions import by_session
from sim.replay import Outcome, replay
from traces.convert import write
from traces.reader import open_trace
from traces.workloads import WORKLOADS


@pytest.fixture(scope="module")
def multi_turn(tmp_path_factory: pytest.TempPathFactory) -> Path:
    workload = WORKLOADS["multi-turn"]
    options = dataclasses.replace(workload.options(), clients=24, parallel=12, rounds=4, seed=5)
    path = tmp_path_factory.mktemp("trace") / "multi-turn.jsonl"
    write(workload.generate(options), path, "hicache")
    return path


def replayed(path: Path, **options: object) -> Outcome:
    given = {key.replace("__", "."): value for key, value in options.items()}
    return replay(load_scenario(None, {"trace.path": str(path), **given}))


@pytest.mark.parametrize("page", [1, 16, 64, 100])
@pytest.mark.parametrize(
    "limits", [{}, {"load__clients": 5}, {"load__barrier": True}, {"load__rate": 50.0}]
)
def test_with_room_for_all_a_later_turn_hits_all_full_pages_before_it(multi_turn, page, limits):
    columns = replayed(multi_turn, tiers__page_size_tokens=page, **limits).columns
    before: dict[str, int] = {}
    later = 0
    for session, prompt, made, computed, turn in zip(
        *(columns[name] for name in (
            "session", "prompt_tokens", "output_tokens", "computed_tokens", "turn",
        )),
        strict=True,
    ):  # fmt: skip
        if turn:
            later += 1
            assert prompt - computed == (before[session] - 1) // page * page
        before[session] = prompt + made
    assert later == 24 * 3


def test_without_named_answers_a_later_turn_hits_only_the_prompt_before_it(multi_turn, tmp_path):
    blocks = tmp_path / "blocks.jsonl"
    write(open_trace(multi_turn).stream(), blocks, "mooncake", block_tokens=64)
    columns = replayed(blocks, trace__block_tokens=64, tiers__page_size_tokens=64).columns
    before: dict[str, int] = {}
    later = 0
    for session, prompt, computed, turn in zip(
        *(columns[name] for name in ("session", "prompt_tokens", "computed_tokens", "turn")),
        strict=True,
    ):
        if turn:
            later += 1
            assert prompt - computed == before[session]  # whole blocks: 512 and 576 more a turn
        before[session] = prompt
    assert later == 24 * 3


def test_the_trace_says_that_it_is_a_closed_loop_and_the_scenario_may_disagree(multi_turn):
    as_it_says = replayed(multi_turn).summary["load"]
    assert as_it_says["loop"] == "closed"
    assert as_it_says["parallel"] == 12
    assert replayed(multi_turn, load__loop="open").summary["load"]["loop"] == "open"


def test_a_closed_loop_repeats_from_its_record(multi_turn):
    scenario = load_scenario(None, {"trace.path": str(multi_turn), "load.clients": 7})
    first = replay(scenario, record=True)
    record = Record(first.extras["completions.jsonl"].splitlines())
    again = replay(scenario, replay_of=record)
    assert {name: list(values) for name, values in again.columns.items()} == {
        name: list(values) for name, values in first.columns.items()
    }


def test_clients_limit_how_many_are_served_at_once(multi_turn):
    summary = replayed(multi_turn, load__clients=3).summary
    assert summary["max_running_requests"] <= 3
    assert summary["load"]["clients"] == 3
    assert summary["load"]["arrivals"] == "at_once"


def test_a_barrier_with_fewer_clients_than_sessions_is_refused(multi_turn):
    with pytest.raises(InputError, match="all 24 sessions must run at once"):
        replayed(multi_turn, load__clients=3, load__barrier=True)


def test_sessions_add_up(multi_turn):
    outcome = replayed(multi_turn)
    rows = by_session(outcome.columns)
    assert len(rows) == 24
    assert all(row["requests"] == 4 for row in rows)
    for name in ("prompt_tokens", "computed_tokens", "generated_tokens"):
        assert sum(row[name] for row in rows) == sum(outcome.columns[name])
    sessions = outcome.summary["sessions"]
    assert sessions["sessions"] == 24
    assert sessions["most_turns"] == 4
    assert sessions["first_turns"]["cached_tokens"] == 0
    hit = sum(outcome.columns["device_tokens"])
    assert sessions["later_turns"]["cached_tokens"] == hit > 0
    assert all(row["duration_ns"] > row["mean_ttft_ns"] > 0 for row in rows)
