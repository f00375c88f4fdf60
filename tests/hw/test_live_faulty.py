"""Injected faults of live runs: what the engine is told, when, and what its pages hold then."""

from __future__ import annotations

from random import Random

import pytest
from live_runs import QUEUES, CheckedEnvironment, VirtualMachine

# isort: split
from adversarial_lanes import Fate
from lanes_contract import Watched

from hicache.errors import TransferError
from hicache.operations import Chunk, Completion, Copy, Prefill
from hw.faulty import FaultyLanes
from hw.lanes import LiveLanes
from hw.live import run_live

COPY = Copy("h2d", 1, 4096, 1)
PREFILL = Prefill((Chunk(0, 100, 0),), 100)


def faulty(seed: int = 1, **faults) -> tuple[CheckedEnvironment, FaultyLanes]:
    env = CheckedEnvironment(VirtualMachine(lambda operation: Fate(1000, 0)))
    lanes = LiveLanes(env, {name: env.machine.queue() for name in QUEUES})
    return env, FaultyLanes(env, lanes, Random(seed), **faults)


def test_a_copy_that_fails_has_taken_its_time_and_spoiled_its_target():
    spoiled: list[Copy] = []
    seen_after: list[int] = []
    env, lanes = faulty(fail=1.0, spoil=spoiled.append)
    copies = [Copy("h2d", number, 4096, 1) for number in (1, 2)]
    watched = [Watched(env, lanes.submit(copy)) for copy in copies]
    for each in watched:
        each.pending.callbacks.append(lambda event: seen_after.append(len(spoiled)))
    assert run_live(env)
    assert spoiled == copies
    assert lanes.failed == 2
    assert seen_after[0] >= 1
    for each in watched:
        ((seen_ns, error),) = each.answers
        assert isinstance(error, TransferError)
        assert "injected fault: h2d copy of 4096 bytes" in str(error)
        assert seen_ns > 1000


def test_a_slow_operation_is_finished_when_its_delay_is_over():
    env, lanes = faulty(slow=1.0, slow_ns=50_000)
    watched = [Watched(env, lanes.submit(operation)) for operation in (COPY, PREFILL)]
    assert run_live(env)
    assert lanes.slowed == 2
    rng = Random(1)
    for each in watched:
        rng.random(), rng.random()
        late_ns = rng.randint(1, 50_000)
        done = each.done
        assert done.finished_ns - done.started_ns == pytest.approx(1000 + late_ns, abs=30)
        assert done.stamp_ns == done.finished_ns + 1


def test_steps_never_fail_and_without_faults_nothing_changes():
    env, lanes = faulty(fail=1.0)
    step = Watched(env, lanes.submit(PREFILL))
    assert run_live(env)
    assert isinstance(step.done, Completion)
    env, lanes = faulty()
    copy = Watched(env, lanes.submit(COPY))
    assert run_live(env)
    assert (lanes.failed, lanes.slowed) == (0, 0)
    assert copy.done.finished_ns - copy.done.started_ns == 1000


def test_faults_depend_on_the_seed_and_the_order_of_submissions_only():
    def outcomes(seed: int) -> list[bool]:
        env, lanes = faulty(seed, fail=0.5, slow=0.5)
        watched = [Watched(env, lanes.submit(COPY)) for _ in range(30)]
        assert run_live(env)
        return [each.pending.ok for each in watched]

    assert outcomes(1) == outcomes(1) != outcomes(2)
    assert 5 < sum(outcomes(1)) < 25
