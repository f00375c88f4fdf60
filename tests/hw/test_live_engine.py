"""The engine on the live kernel: what must hold of every run holds, and its record repeats it."""

from __future__ import annotations

import threading
import time
from dataclasses import replace
from random import Random

import pytest
from live_runs import LiveRun, completions, replayed

# isort: split
from adversarial_lanes import Fate
from engine_runs import assert_good, counters_of
from examples import examples
from hypothesis import given
from hypothesis import strategies as st
from small_workloads import Workload, random_call, random_workload, workloads

from hicache.errors import ReplayDivergence
from hicache.operations import Decode
from hicache.options import CacheOptions, EngineOptions, RestoreOptions, SchedulerOptions

SEEDS = st.integers(0, 1 << 30)
EVERYTHING = EngineOptions(
    1, 1, 16, 12, 60,
    CacheOptions(eviction_granularity="page", write_backlog_fraction=1.0),
    RestoreOptions("always"),
    SchedulerOptions(output_reserve_fraction=0.0),
    "named",
    1,
)  # fmt: skip


def assert_repeats(run: LiveRun, workload: Workload) -> None:
    """The record, in plain SimPy, makes the same decisions and counts."""
    engine = replayed(workload, run.lines)
    engine.check_integrity()
    again = counters_of(engine)
    for name, value in counters_of(run.engine).items():
        assert again[name] == value, name


@given(workloads, SEEDS)
@examples(120)
def test_a_run_on_an_adversarial_machine_ends_at_rest_and_repeats(workload, seed):
    run = LiveRun(workload, seed)
    assert_good(run)
    assert_repeats(run, workload)


@given(workloads, SEEDS)
@examples(80)
def test_so_does_one_with_injected_faults(workload, seed):
    run = LiveRun(workload, seed, inject=0.3)
    assert_good(run)
    assert_repeats(run, workload)


@given(workloads, SEEDS)
@examples(25)
def test_so_does_one_on_threads(workload, seed):
    run = LiveRun(workload, seed, threads=True, inject=0.2)
    assert_good(run)
    assert_repeats(run, workload)


def busy_workload(seed: int, requests: int = 40) -> Workload:
    rng = Random(seed)
    calls = tuple(random_call(rng) for _ in range(requests))
    return Workload(EVERYTHING, calls, (Fate(300), Fate(2000), Fate(7, setup_ns=3)), ())


def test_faults_happen_and_bursts_are_ended_in_these_runs():
    """Otherwise the tests above show less than they say."""
    failed = slowed = ended = aborted = 0
    for seed in range(12):
        workload = replace(busy_workload(seed), aborts=((500, 3), (4000, 9), (9000, 20)))
        run = LiveRun(workload, seed, inject=0.3)
        assert_good(run)
        assert_repeats(run, workload)
        assert run.faulty is not None
        failed += run.faulty.failed
        slowed += run.faulty.slowed
        aborted += run.engine.metrics.aborted
        for entry in completions(run.lines).values():
            if entry[0] == "done" and isinstance(entry[2], Decode):
                ended += entry[-2] < entry[2].max_steps
    assert min(failed, slowed, ended, aborted) > 10, (failed, slowed, ended, aborted)


def test_faults_show_up_in_the_record_and_a_record_without_them_is_refused():
    workload = busy_workload(1)
    run = LiveRun(workload, 1, inject=0.5)
    failures = [place for place, line in enumerate(run.lines) if "injected fault" in line]
    assert failures
    lines = [line for place, line in enumerate(run.lines) if place != failures[0]]
    # Without its ending the copy stays under way, and so does who waits for it.
    with pytest.raises(ReplayDivergence):
        replayed(workload, lines)


def test_requests_are_aborted_by_another_thread(monkeypatch):
    """A thread that gives up any request at any time, while workers report from theirs."""
    workload = replace(
        busy_workload(3, requests=60),
        fates=(Fate(20_000), Fate(60_000), Fate(200)),
        calls=tuple(
            replace(call, gap_ns=1_000_000, output_tokens=9) for call in busy_workload(3, 60).calls
        ),
    )
    over = threading.Event()
    aborting: list[threading.Thread] = []
    begin = LiveRun.abort_from_outside

    def give_up(run: LiveRun) -> None:
        rng = Random(2)
        while not over.is_set():
            begin(run, rng.randrange(60))
            time.sleep(0.001)

    def start(run: LiveRun, number: int) -> None:
        aborting.append(threading.Thread(target=give_up, args=(run,)))
        aborting[-1].start()

    monkeypatch.setattr(LiveRun, "abort_from_outside", start)
    try:
        run = LiveRun(replace(workload, aborts=((1, 0),)), 3, threads=True)
    finally:
        over.set()
        for thread in aborting:
            thread.join()
    assert run.engine.metrics.aborted > 3
    assert_good(run)
    assert_repeats(run, workload)


def test_the_machines_fate_decides_and_nothing_else():
    """The same fates and the same mischief: the same record."""
    for seed in range(5):
        workload = random_workload(Random(seed))
        assert LiveRun(workload, seed).lines == LiveRun(workload, seed).lines
