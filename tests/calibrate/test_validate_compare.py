"""Figures, shares, parts, reasons and limits: every sign and every denominator."""

from __future__ import annotations

from pathlib import Path

import pytest
from by_hand import H200_BY_HAND
from simpy import Environment

from calibrate.validate.compare import Figure, Share, request_errors, shares, ttft_parts
from calibrate.validate.differences import (
    differences,
    explain,
    first_in_time,
    flips_apart,
)
from calibrate.validate.limits import KNOWN, Limits, judge, read_limits
from calibrate.validate.runs import Asked, Played
from calibrate.validate.timing import idle_s, model_errors, predictions, totals
from hicache.errors import InputError
from hicache.operations import Chunk, Completion, Copy, Decode, Prefill
from scenario.load import load_scenario
from scenario.profile import load_profile
from sim.lanes import SimMachine

MS = 1_000_000


def run_of(rows: dict[int, tuple[int, int, int, int]], ttft_ms: dict[int, int], asked=()) -> Played:
    """A run with tokens by source and TTFT of each request."""
    columns = {
        "request": list(rows),
        "prompt_tokens": [sum(tokens) for tokens in rows.values()],
        "arrival_ns": [request * MS for request in rows],
        "queue_ns": [MS] * len(rows),
        "restore_ns": [2 * MS] * len(rows),
        "prefill_ns": [3 * MS] * len(rows),
        "ttft_ns": [ttft_ms[request] * MS for request in rows],
    }
    for place, source in enumerate(("device", "host", "storage", "computed")):
        columns[f"{source}_tokens"] = [tokens[place] for tokens in rows.values()]
    scenario = load_scenario(None, {"trace.path": "none.jsonl"})
    return Played("run", scenario, {}, columns, [], list(asked), {})


def asked_of(request: int, hits: tuple[int, int, int], goal: int, benefit: float) -> Asked:
    reason = "cost" if goal > hits[0] else "recompute_cheaper"
    return Asked(request, 0, *hits, goal, reason, 1.0, 1.0 - benefit, ((0.0, 0.0, 0),) * 3)


def test_errors_are_signed_and_of_the_mean_of_the_runs() -> None:
    figure = Figure((90.0, 110.0), 95.0)
    assert figure.error_percent == pytest.approx(-5.0)
    assert figure.runs_percent == pytest.approx(20.0)
    assert Figure((50.0,), 60.0).error_percent == pytest.approx(20.0)
    assert Figure((50.0,), 60.0).runs_percent is None
    assert Figure((None, None), 1.0).error_percent is None
    assert Figure((0.0,), 1.0).error_percent is None


def test_tokens_are_compared_in_points_of_the_prompts_and_in_percent_of_the_tier() -> None:
    share = Share((400, 420), 390, 1000)
    assert share.points == pytest.approx(-2.0)
    assert share.runs_points == pytest.approx(2.0)
    assert share.figure.error_percent == pytest.approx(100 * (390 - 410) / 410)


def test_requests_are_matched_by_their_number() -> None:
    real = run_of({0: (0, 0, 0, 9), 1: (0, 0, 0, 9)}, {0: 10, 1: 20})
    again = run_of({1: (0, 0, 0, 9), 0: (0, 0, 0, 9)}, {0: 12, 1: 20})
    other = run_of({1: (0, 0, 0, 9), 0: (0, 0, 0, 9)}, {0: 15, 1: 18})
    errors = request_errors([real, again], other)
    assert [(each.request, each.error_ms, each.runs_ms) for each in errors] == [
        (0, 4.0, 2.0),
        (1, -2.0, 0.0),
    ]
    parts = ttft_parts(other)
    assert parts == {"queue": 1.0, "restore": 2.0, "turn": 10.5, "prefill": 3.0}
    assert sum(parts.values()) == pytest.approx(16.5)


def test_a_flip_is_told_from_another_state_and_near_zero_is_listed_apart() -> None:
    rows = {0: (0, 50, 0, 50), 1: (0, 0, 0, 100), 2: (10, 0, 0, 90), 3: (0, 0, 0, 100)}
    asked = [
        asked_of(0, (0, 4, 4), 4, 0.04),
        asked_of(1, (0, 4, 4), 0, -0.5),
        asked_of(2, (1, 4, 4), 1, -0.5),
    ]
    other_rows = {0: (0, 0, 0, 100), 1: (0, 50, 0, 50), 2: (20, 0, 0, 80), 3: (5, 0, 0, 95)}
    other_asked = [
        asked_of(0, (0, 4, 4), 0, -0.2),
        asked_of(1, (0, 4, 4), 4, 0.5),
        asked_of(2, (2, 4, 4), 2, -0.5),
    ]
    ttft = dict.fromkeys(rows, 10)
    real = run_of(rows, ttft, asked)
    again = run_of({**rows, 1: other_rows[1]}, ttft)
    other = run_of(other_rows, ttft, other_asked)
    found = differences([real, again], other)
    kinds = [(each.request, each.kind, each.in_runs) for each in found]
    assert kinds == [
        (0, "near_zero_flip", False), (1, "flip", True), (2, "state", False), (3, "timing", False)
    ]  # fmt: skip
    assert flips_apart(found) == {0}
    first = first_in_time(found, real)
    assert first is not None
    assert first.request == 0
    apart = shares([real, again], other, flips_apart(found))
    assert apart["host"].simulated == 50
    assert apart["host"].hardware == (0, 50)
    assert differences([real], real) == []
    assert explain(asked[0], None)[0] == "state"


@pytest.mark.parametrize(
    ("error", "runs", "held"),
    [(2.9, 0.1, True), (3.1, 0.1, False), (3.1, 1.6, True), (-3.1, 0.1, False), (-3.1, -1.6, True)],
)
def test_a_limit_gives_way_to_twice_what_the_machine_does_not_repeat(error, runs, held) -> None:
    half = runs / 2
    figure = Figure((100 - half, 100 + half), 100 + error)
    (judged,) = judge(Limits(ttft_mean=3.0), {"ttft_mean": figure}, {})
    assert judged.held is held
    assert judged.allowed == pytest.approx(max(3.0, 2 * abs(runs)))


def test_a_value_that_there_is_not_misses_its_limit() -> None:
    (judged,) = judge(Limits(tpot_mean=3.0), {"tpot_mean": Figure((None,), None)}, {})
    assert not judged.held


def test_tokens_are_judged_by_points_and_by_tier() -> None:
    of_sources = {"host": Share((1000,), 1020, 100_000), "computed": Share((500,), 900, 100_000)}
    judged = judge(Limits(tokens_points=0.1, tokens_tier=1.0), {}, of_sources)
    assert [(each.name, each.held) for each in judged] == [
        ("tokens_host", True), ("tokens_host_tier", False), ("tokens_computed", False)
    ]  # fmt: skip


def test_limits_come_by_name_or_from_a_file(tmp_path: Path) -> None:
    assert read_limits("usual") is KNOWN["usual"]
    file = tmp_path / "limits.toml"
    file.write_text("ttft_mean = 5\n")
    assert read_limits(str(file)) == Limits(ttft_mean=5.0)
    for text, error in (
        ("ttft_men = 5\n", "unknown key ttft_men"),
        ("ttft_mean = -1\n", "ttft_mean is -1.0: a limit must be greater than 0"),
        ('ttft_mean = "a"\n', "limits.toml"),
    ):
        file.write_text(text)
        with pytest.raises(InputError, match=error):
            read_limits(str(file))
    with pytest.raises(InputError, match="no known limits"):
        read_limits("usuall")


def done(number, operation, submitted, started, finished, ends=()) -> Completion:
    return Completion(
        number, operation, submitted, started, finished, finished, 0, len(ends), tuple(ends)
    )


def test_time_is_told_apart_by_kind_and_the_model_is_asked_about_the_same_operations() -> None:
    machine = SimMachine(Environment(0), load_profile(H200_BY_HAND), transfer_mode="dma")
    prefill = Prefill((Chunk(0, 2048, 0),), 2048)
    takes = machine.steps.prefill_ns(prefill)
    burst = machine.steps.burst(2, 2048, 10)
    start = 3 * takes
    ends = tuple(start + 2 * burst.end_ns(step) for step in range(1, 6))
    record = [
        done(0, prefill, 0, takes, 3 * takes),
        done(1, Decode(2, 2048, 10), 3 * takes, start, ends[-1], ends),
        done(2, Copy("h2d", 1, 1 << 28, 1), 0, 0, MS),
        done(3, prefill, ends[-1] + 7, ends[-1] + 7, ends[-1] + 7 + takes),
    ]
    by_kind = totals(record)
    assert by_kind["prefill"].wait_s == pytest.approx(takes / 1e9)
    assert by_kind["prefill"].service_s == pytest.approx(3 * takes / 1e9)
    assert list(by_kind) == ["prefill", "decode", "h2d"]
    assert idle_s(record) == pytest.approx(7e-9)

    def make_machine(env: Environment) -> SimMachine:
        return SimMachine(env, load_profile(H200_BY_HAND), transfer_mode="dma")

    found = predictions(record, make_machine)
    errors = model_errors(found)
    assert found[0].error_percent == pytest.approx(-50, abs=0.01)
    assert found[1].error_percent == pytest.approx(-50, abs=0.01)
    assert found[3].error_percent == pytest.approx(0, abs=0.01)
    assert errors["prefill"].error_percent == pytest.approx(-100 / 3, abs=0.01)
    assert errors["h2d"].predicted_s == pytest.approx(0.0049, rel=0.01)
