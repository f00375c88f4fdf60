"""Live lanes keep to the contract of all lanes: on a clock of the test's own, and with threads."""

from __future__ import annotations

import time
from itertools import pairwise
from random import Random

import pytest
from live_runs import CheckedEnvironment, PacedDevice, VirtualMachine, thread_lanes

# isort: split
from adversarial_lanes import Fate
from hypothesis import given, settings
from lanes_contract import INHERITED, LanesContract, PlannedLanesContract, Watched, at, plans
from live_runs import QUEUES

from hicache.operations import Decode
from hw.faulty import FaultyLanes
from hw.lanes import LiveLanes
from hw.machine import ThreadMachine


def virtual_lanes(env: CheckedEnvironment) -> LiveLanes:
    return LiveLanes(env, {name: env.machine.queue() for name in QUEUES})


class TestVirtualLanes(LanesContract):
    """Everything is on time."""

    def make_environment(self):
        return CheckedEnvironment(VirtualMachine(lambda operation: Fate(1000, 0)))

    def make_lanes(self, env):
        return virtual_lanes(env)


class TestAdversarialVirtualLanes(PlannedLanesContract):
    """Nothing is on time."""

    def make_environment(self):
        fates = Random(5)
        return CheckedEnvironment(
            VirtualMachine(
                lambda operation: Fate(fates.randint(0, 9000), fates.choice([0, 40, 90_000]),
                                       fails=fates.random() < 0.2),
                Random(4),
            )
        )  # fmt: skip

    def make_lanes(self, env):
        return virtual_lanes(env)


class TestFaultyLiveLanes(PlannedLanesContract):
    def make_environment(self):
        return CheckedEnvironment(VirtualMachine(lambda operation: Fate(1000, 3), Random(8)))

    def make_lanes(self, env):
        return FaultyLanes(env, virtual_lanes(env), Random(1), fail=0.3, slow=0.3)


class UntilAsked(PacedDevice):
    """A burst goes on past its eighth step only once it was asked to end."""

    def run(self, operation, control, steps=()):
        self._control, self._left = control, 8
        return super().run(operation, control, steps)

    def pause(self, operation):
        self._left -= 1
        give_up = time.monotonic() + 20
        while self._left < 0 and not self._control.ending and time.monotonic() < give_up:
            time.sleep(1e-4)
        time.sleep(1e-5)


class TestThreadLanes(LanesContract):
    """Real threads; what depends on the time an operation takes is said in other words."""

    device = PacedDevice

    @pytest.fixture(autouse=True)
    def _close(self):
        self.opened: list[LiveLanes] = []
        yield
        self.close_all()

    def close_all(self):
        while self.opened:
            self.opened.pop().close()

    def make_environment(self):
        return CheckedEnvironment(ThreadMachine())

    def make_lanes(self, env):
        self.opened.append(thread_lanes(env, self.device))
        return self.opened[-1]

    def play(self, env, plan):
        watched = super().play(env, plan)
        self.close_all()
        return watched

    @given(plan=plans)
    @settings(INHERITED, max_examples=5)
    def test_the_same_plan_gives_the_same_answers(self, plan):
        runs = [self.play(self.make_environment(), plan) for _ in range(2)]
        answers = [
            [(each.done.number, each.done.operation, each.done.steps) for each in watched]
            for watched in runs
        ]
        assert answers[0] == answers[1]

    def test_a_burst_ends_at_a_step_boundary_when_it_is_asked_to(self):
        self.device = UntilAsked
        env = self.make_environment()
        lanes = self.make_lanes(env)
        burst = Watched(env, lanes.submit(Decode(4, 4000, 50)))
        asked: list[int] = []

        def ask():
            lanes.end_burst(burst.pending)
            asked.append(env.machine.now_ns())

        at(env, 5_000_000, ask)
        at(env, 5_000_001, lambda: lanes.end_burst(burst.pending))  # twice changes nothing
        env.run()
        ends = burst.done.step_ends_ns
        assert burst.done.steps == len(ends) <= 9
        assert all(a < b for a, b in pairwise(ends))
        assert all(end <= asked[0] for end in ends[:-1])
        assert burst.done.finished_ns >= ends[-1]
        lanes.end_burst(burst.pending)  # nor does asking once it is over
        env.run()
        assert len(burst.answers) == 1
