"""The simulated, the faulty and the instant lanes keep to the contract; what each adds to it."""

from __future__ import annotations

import subprocess
import sys
from itertools import count
from random import Random

import pytest
from by_hand import H200_BY_HAND
from lanes_contract import MIB, LanesContract, Watched, play
from simpy import Environment

from hicache.errors import InputError, TransferError
from hicache.operations import DIRECTIONS, Chunk, Copy, Decode, Prefill
from scenario.profile import load_profile
from sim.faulty import FaultyLanes
from sim.instant import InstantLanes
from sim.lanes import SimMachine

PROFILE = load_profile(H200_BY_HAND)


class TestSimLanes(LanesContract):
    def make_lanes(self, env):
        return SimMachine(env, PROFILE).lanes()


class TestKernelLanes(LanesContract):
    def make_lanes(self, env):
        return SimMachine(env, PROFILE, transfer_mode="kernel").lanes()


class TestPublishedMachineLanes(LanesContract):
    def make_lanes(self, env):
        return SimMachine(env, load_profile("mini-group-b"), transfer_mode="dma").lanes()


class TestInstantLanes(LanesContract):
    takes_time = False

    def make_lanes(self, env):
        return InstantLanes(env)


class TestFaultyLanes(LanesContract):
    """Copies fail and operations are late half of the time."""

    def make_lanes(self, env):
        inner = SimMachine(env, PROFILE).lanes()
        return FaultyLanes(env, inner, Random(7), fail=0.5, slow=0.5, slow_ns=30_000_000)

    def test_a_late_burst_keeps_its_steps_in_time(self):
        env = Environment(0)
        inner = SimMachine(env, PROFILE).lanes()
        burst = Watched(env, FaultyLanes(env, inner, Random(1), slow=1.0).submit(Decode(1, 99, 3)))
        env.run()
        assert burst.done.step_ends_ns[-1] < burst.done.finished_ns < burst.done.stamp_ns


class TestFaultlessLanes(LanesContract):
    def make_lanes(self, env):
        return FaultyLanes(env, SimMachine(env, PROFILE).lanes(), Random(0))


def test_faults_over_instant_lanes_end_a_tick_later():
    env = Environment(0)
    lanes = FaultyLanes(env, InstantLanes(env), Random(0), fail=1.0)
    copy, step = Copy("h2d", 1, MIB, 1), Prefill((Chunk(0, 1, 0),), 1)
    failed, done = play(env, lanes, [(0, copy), (0, step)])
    ((seen_ns, error),) = failed.answers
    assert seen_ns == 1
    assert isinstance(error, TransferError)
    assert error.args == ("injected fault: h2d copy of 1048576 bytes, operation 0",)
    assert done.done.operation == step


def test_late_copies_end_out_of_order():
    env = Environment(0)
    inner = SimMachine(env, PROFILE).lanes()
    lanes = FaultyLanes(env, inner, Random(3), slow=0.5, slow_ns=1_000_000_000)
    seen: list[int] = []
    for _ in range(20):
        pending = lanes.submit(Copy("h2d", 1, MIB, 1))
        assert pending.callbacks is not None
        pending.callbacks.append(lambda event: seen.append(event.number))
    env.run()
    assert sorted(seen) == list(range(20)) != seen


def test_lanes_of_one_machine_number_together_and_share_the_disk_alone():
    def ends(engines: int, direction) -> list[int]:
        env = Environment(0)
        machine = SimMachine(env, PROFILE)
        all_lanes = [machine.lanes() for _ in range(engines)]
        watched = [
            Watched(env, lanes.submit(Copy(direction, 1, 64 * MIB, 1))) for lanes in all_lanes
        ]
        env.run()
        assert [each.done.number for each in watched] == list(range(engines))
        return [each.done.finished_ns for each in watched]

    for direction in DIRECTIONS:
        (alone,) = ends(1, direction)
        both = ends(2, direction)
        if direction in ("s2h", "h2s"):
            assert min(both) > 1.8 * alone
        else:
            assert both == [alone, alone]


def test_numbers_can_come_from_outside():
    env = Environment(0)
    numbers = count(5)
    first = SimMachine(env, PROFILE, numbers=numbers).lanes()
    second = InstantLanes(env, numbers)
    step = Prefill((Chunk(0, 1, 0),), 1)
    assert [lanes.submit(step).number for lanes in (first, second, first)] == [5, 6, 7]


def test_engine_time_is_serial_and_delays_what_comes_later():
    env = Environment(0)
    lanes = SimMachine(env, PROFILE).lanes()
    engine = PROFILE.host.engine
    copies = [Watched(env, lanes.submit(Copy("s2h", 1, MIB, 1))) for _ in range(2)]
    step = Watched(env, lanes.submit(Prefill((Chunk(0, 1, 0),), 1)))
    env.run()
    issue = engine.s2h_ns.value
    assert [each.done.started_ns for each in copies] == [issue, 2 * issue]
    assert step.done.started_ns == 2 * issue + engine.step_ns.value


@pytest.mark.parametrize("direction", ["h2d", "d2h"])
def test_scattered_host_pages_cost_a_cpu_copy_in_staged_mode_only(direction):
    def took_ns(mode, extents: int, threads: int | None = None) -> int:
        env = Environment(0)
        machine = SimMachine(env, PROFILE, transfer_mode=mode, copy_threads=threads)
        (copy,) = play(env, machine.lanes(), [(0, Copy(direction, 8, 64 * MIB, extents))])
        return copy.done.finished_ns - copy.done.started_ns

    assert took_ns("kernel", 8) == took_ns("kernel", 1)
    assert took_ns("dma", 8) > took_ns("dma", 1)
    rates = dict(PROFILE.host.copy_bytes_per_s.points)
    for threads in (1, 4, 16):
        copy_ns = round(64 * MIB * 1e9 / rates[threads])
        assert took_ns("staged", 8, threads) == took_ns("staged", 1) + copy_ns


def test_a_transfer_mode_that_was_not_sampled_is_refused():
    with pytest.raises(InputError, match='transfer_mode is "kernel"'):
        SimMachine(Environment(0), load_profile("mini-group-a"), transfer_mode="kernel").lanes()
    with pytest.raises(InputError, match="disk_workers is 0"):
        SimMachine(Environment(0), PROFILE, disk_workers=0)


SCRIPT = """
from random import Random
from lanes_contract import play
from simpy import Environment
from hicache.operations import *
from scenario.profile import load_profile
from sim.faulty import FaultyLanes
from sim.lanes import SimMachine
rng, env = Random(1), Environment(0)
lanes = SimMachine(env, load_profile("nvidia-h200")).lanes()
lanes = FaultyLanes(env, lanes, rng, fail=0.1, slow=0.1)
plan = []
for _ in range(300):
    when = rng.randrange(10**9)
    size = rng.randrange(1, 1 << 28)
    plan.append((when, Copy(rng.choice(DIRECTIONS), 9, size, rng.randrange(1, 9))))
    plan.append((when, Decode(3, rng.randrange(3, 90_000), rng.randrange(1, 90))))
print([each.answers for each in play(env, lanes, plan)])
"""


def test_a_run_does_not_depend_on_the_hash_seed(pytestconfig):
    outputs = []
    for seed in ("0", "1"):
        environment = {
            "PYTHONHASHSEED": seed,
            "PYTHONPATH": f"{pytestconfig.rootpath}:{pytestconfig.rootpath / 'tests'}",
        }
        done = subprocess.run(
            [sys.executable, "-c", SCRIPT], env=environment, capture_output=True, check=True
        )
        outputs.append(done.stdout)
    assert len(outputs[0]) > 10_000
    assert outputs[0] == outputs[1]
