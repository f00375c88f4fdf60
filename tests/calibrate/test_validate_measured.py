"""Measured durations in the simulator: what is left of the error is the schedule's."""

from __future__ import annotations

from pathlib import Path

import pytest
from by_hand import H200_BY_HAND
from made_up_runs import machine_in, run_in, scenario_of, trace_in
from simpy import Environment

from calibrate.validate.causes import causes, with_measured
from calibrate.validate.compare import figures
from calibrate.validate.measured import MeasuredTimes, with_waits
from calibrate.validate.measured_lanes import PARTS, MeasuredLanes
from calibrate.validate.runs import Played, load_run, play, steps_ahead
from hicache.operations import Chunk, Completion, Copy, Decode, Prefill
from sim.lanes import SimMachine


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("runs")


@pytest.fixture(scope="module")
def hardware(folder: Path) -> Played:
    """A machine that is 30 % slower than the profile says, and launches a step ahead."""
    machine = machine_in(folder, "truth", slower=1.3, steps_ahead=1, disk=0.6)
    scenario = scenario_of(trace_in(folder), machine)
    return load_run(run_in(folder / "hw", scenario), "hardware")


@pytest.fixture(scope="module")
def predicted(folder: Path, hardware: Played):
    return scenario_of(folder / "trace.jsonl", H200_BY_HAND)


def test_a_run_is_repeated_from_its_record(hardware: Played) -> None:
    assert hardware.measured_at == "2026-01-02T03:04:05+00:00"
    cached = hardware.summary["cached_tokens_total"]
    assert min(cached["device"], cached["host"], cached["storage"]) > 0
    assert len(hardware.completions) > 100
    assert hardware.endings
    assert {each.reason for each in hardware.asked} == {"always"}


def test_steps_ahead_are_seen_in_a_record(hardware: Played, predicted) -> None:
    assert set(steps_ahead(hardware)) == {1}
    assert set(steps_ahead(play(predicted, "sim"))) == {0}


def test_with_everything_measured_the_schedule_is_that_of_the_machine(
    hardware: Played, predicted
) -> None:
    alone = figures([hardware], play(predicted, "sim"))
    assert alone["ttft_mean"].error_percent < -10
    everything, lanes = with_measured(predicted, hardware, frozenset(PARTS))
    found = figures([hardware], everything)
    for name, figure in found.items():
        assert figure.error_percent == pytest.approx(0, abs=1.0), name
    assert everything.summary["cached_tokens_total"] == hardware.summary["cached_tokens_total"]
    assert lanes.times.matched > 0


def test_each_part_alone_brings_the_prediction_closer_or_leaves_it(
    hardware: Played, predicted
) -> None:
    found = causes(predicted, [hardware])
    errors = {cause.parts: cause.figures["ttft_mean"].error_percent for cause in found}
    alone = figures([hardware], play(predicted, "sim"))["ttft_mean"].error_percent
    assert errors[frozenset({"prefill"})] > alone
    assert abs(errors[frozenset(PARTS)]) < 1
    assert len(found) == len(PARTS) + 1
    assert found[-1].name == "everything as measured"


def done(number, operation, submitted, started, finished, ends=()) -> Completion:
    return Completion(
        number, operation, submitted, started, finished, finished, 0, len(ends), tuple(ends)
    )


def test_operations_are_matched_by_kind_and_subject_in_order() -> None:
    steps = SimMachine(Environment(0), _profile()).steps
    first = Prefill((Chunk(1, 100, 0),), 100)
    other = Prefill((Chunk(2, 100, 0),), 100)
    read = Copy("s2h", 1, 1 << 20, 1)
    record = [
        done(0, first, 0, 10, 1010),
        done(1, other, 1010, 1020, 5020),
        done(2, first, 5020, 5030, 7030),
        done(3, Decode(2, 300, 3, (1, 2)), 7030, 7050, 7950, (7350, 7650, 7950)),
        done(4, read, 0, 5, 205),
        done(5, read, 100, 205, 605),
    ]
    times = MeasuredTimes(record, steps)
    assert [times.prefill(first).service_ns for _ in range(2)] == [1000, 2000]
    assert times.prefill(other).service_ns == 4000
    # A step in the middle of a burst is known by who decodes and how far they are.
    assert times.decode(2, 302, (1, 2)) == (0, 300)
    assert times.decode(2, 300, (1, 2)) == (20, 300)
    assert [times.copy(read) for _ in range(2)] == [(5, 200), (0, 400)]
    assert times.unmatched == 0
    # What the record does not hold is like the nearest that it holds.
    assert times.copy(Copy("s2h", 1, 2 << 20, 1)).service_ns in (400, 800)
    assert times.copy(Copy("h2s", 1, 1 << 20, 1)) is None
    like = times.prefill(Prefill((Chunk(9, 100, 0),), 100))
    assert like.service_ns in (1000, 2000, 4000)
    assert times.unmatched == 3


def test_waiting_for_a_busy_device_is_no_wait() -> None:
    copy = Copy("h2d", 1, 1, 1)
    record = [done(0, copy, 0, 10, 100), done(1, copy, 20, 100, 200), done(2, copy, 30, 230, 300)]
    assert [wait for _, wait in with_waits(record)] == [10, 0, 30]


def test_measured_copies_go_one_at_a_time() -> None:
    env = Environment(0)
    copy = Copy("h2d", 1, 1000, 1)
    record = [done(0, copy, 0, 5, 105), done(1, copy, 105, 110, 310)]
    lanes = MeasuredLanes(env, SimMachine(env, _profile()), record, frozenset({"copies"}))
    pending = [lanes.submit(copy) for _ in range(2)]
    env.run()
    times = [(each.value.started_ns, each.value.finished_ns) for each in pending]
    assert times == [(5, 105), (110, 310)]
    assert [each.number for each in pending] == [0, 1]


def _profile():
    from scenario.profile import load_profile

    return load_profile(H200_BY_HAND)
