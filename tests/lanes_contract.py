"""What every `hicache.ports.Lanes` keeps to, as a mixin: inherit it and give `make_lanes`."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from simpy import Environment
from simpy.events import Event

from hicache.errors import TransferError
from hicache.kernel import Pending
from hicache.operations import DIRECTIONS, Chunk, Completion, Copy, Decode, Operation, Prefill
from hicache.ports import Lanes
from sim.timer import Timer

MIB = 1 << 20
# A test that several classes inherit runs on several kinds of lanes, as it should.
INHERITED = settings(deadline=None, suppress_health_check=[HealthCheck.differing_executors])


class Watched:
    """A pending operation and what became of it, and when."""

    def __init__(self, env: Environment, pending: Pending[Completion]) -> None:
        self.env = env
        self.pending = pending
        self.answers: list[tuple[int, object]] = []
        if pending.callbacks is None:
            self.answers.append((int(env.now), pending.value))
        else:
            pending.callbacks.append(self._seen)

    def _seen(self, event: Event) -> None:
        event._defused = True
        self.answers.append((int(self.env.now), event._value))

    @property
    def done(self) -> Completion:
        ((_, answer),) = self.answers
        assert isinstance(answer, Completion)
        return answer


def at(env: Environment, time_ns: int, act) -> None:
    """Call `act()` at `time_ns`."""
    Timer(env, time_ns - int(env.now), [lambda event: act()])


def play(env: Environment, lanes: Lanes, plan: list[tuple[int, Operation]]) -> list[Watched]:
    """Submit each operation at its time, run to the end; the operations in order of submission."""
    watched: list[Watched] = []
    for time_ns, operation in sorted(plan, key=lambda entry: entry[0]):
        at(env, time_ns, lambda each=operation: watched.append(Watched(env, lanes.submit(each))))
    env.run()
    return watched


operations = st.one_of(
    st.builds(
        Copy,
        st.sampled_from(DIRECTIONS),
        st.just(4),
        st.integers(1, 64 * MIB),
        st.integers(1, 4),
    ),
    st.builds(
        lambda new, past: Prefill((Chunk(0, new, past),), new),
        st.integers(1, 4096),
        st.integers(0, 20_000),
    ),
    st.builds(
        lambda batch, context, steps: Decode(batch, batch * context, steps),
        st.integers(1, 40),
        st.integers(1, 20_000),
        st.integers(1, 60),
    ),
)
plans = st.lists(st.tuples(st.integers(0, 20_000_000), operations), min_size=1, max_size=12)


class PlannedLanesContract:
    """What holds of any plan of operations. Inherit, and give `make_lanes`, or `play` where lanes
    must know the plan, and `make_environment` where time is not SimPy's. `takes_time`: whether
    operations last longer than nothing.
    """

    takes_time = True

    def make_environment(self) -> Environment:
        return Environment(0)

    def make_lanes(self, env: Environment) -> Lanes:
        raise NotImplementedError

    def play(self, env: Environment, plan: list[tuple[int, Operation]]) -> list[Watched]:
        return play(env, self.make_lanes(env), plan)

    @given(plan=plans)
    @settings(INHERITED, max_examples=25)
    def test_every_operation_is_answered_once_and_in_its_own_time(self, plan):
        env = self.make_environment()
        watched = self.play(env, plan)
        in_order = [operation for _, operation in sorted(plan, key=lambda entry: entry[0])]
        for number, (each, operation) in enumerate(zip(watched, in_order, strict=True)):
            assert each.pending.number == number
            ((seen_ns, answer),) = each.answers
            if isinstance(answer, TransferError):
                assert isinstance(operation, Copy)
                continue
            assert isinstance(answer, Completion)
            assert (answer.number, answer.operation) == (number, operation)
            assert answer.submitted_ns == each.pending.submitted_ns
            assert answer.submitted_ns <= answer.started_ns <= answer.finished_ns <= answer.stamp_ns
            assert answer.stamp_ns == seen_ns
            steps = operation.max_steps if isinstance(operation, Decode) else 0
            assert answer.steps == len(answer.step_ends_ns) == steps
            if steps:
                ends = (answer.started_ns, *answer.step_ends_ns)
                assert all(a < b or not self.takes_time for a, b in pairwise(ends))
                assert answer.step_ends_ns[-1] <= answer.finished_ns

    @given(plan=plans)
    @settings(INHERITED, max_examples=10)
    def test_the_same_plan_gives_the_same_answers(self, plan):
        runs = []
        for _ in range(2):
            env = self.make_environment()
            watched = self.play(env, plan)
            runs.append([repr(each.answers) for each in watched])
        assert runs[0] == runs[1]


class LanesContract(PlannedLanesContract):
    """The same, and what holds of lanes that make their completions themselves."""

    @pytest.mark.parametrize(
        "operation",
        [
            *(Copy(direction, 1, MIB, 1) for direction in DIRECTIONS),
            Prefill((Chunk(0, 100, 0),), 100),
            Decode(2, 2000, 5),
        ],
    )
    def test_nothing_is_a_completion_before_the_device_is_done(self, operation):
        env = self.make_environment()
        pending = self.make_lanes(env).submit(operation)
        assert pending.triggered == (not self.takes_time)
        while self.takes_time and not pending.triggered:
            before_ns = env.now
            env.step()
        if self.takes_time:
            # Posted at the instant at which the device is done and seen later, or concluded at the
            # instant at which it is to be seen.
            assert env.now > 0
            assert before_ns <= env.now
            answer = pending._value
            if isinstance(answer, Completion):
                assert answer.finished_ns <= env.now <= answer.stamp_ns
                assert (pending.callbacks is None) == (env.now == answer.stamp_ns)
            else:
                assert pending.callbacks is not None

    def test_a_burst_ends_at_a_step_boundary_when_it_is_asked_to(self):
        ends = self._burst_ends()
        env = self.make_environment()
        lanes = self.make_lanes(env)
        burst = Watched(env, lanes.submit(Decode(4, 4000, 50)))
        if not self.takes_time:
            lanes.end_burst(burst.pending)
            assert burst.done.steps == 50
            return
        wish_ns = (ends[6] + ends[7]) // 2
        at(env, wish_ns, lambda: lanes.end_burst(burst.pending))
        at(env, wish_ns + 1, lambda: lanes.end_burst(burst.pending))  # asking twice changes nothing
        env.run()
        assert burst.done.step_ends_ns == ends[:8]
        lanes.end_burst(burst.pending)  # nor does asking once it is over
        env.run()
        assert len(burst.answers) == 1

    def test_a_burst_that_waits_is_ended_after_one_step(self):
        env = self.make_environment()
        lanes = self.make_lanes(env)
        lanes.submit(Prefill((Chunk(0, 2000, 0),), 2000))
        burst = Watched(env, lanes.submit(Decode(4, 4000, 50)))
        lanes.end_burst(burst.pending)
        env.run()
        assert burst.done.steps == (1 if self.takes_time else 50)

    @pytest.mark.parametrize("moment", ["at once", "when the load is over"])
    def test_a_prefill_may_name_a_load_and_is_answered_like_any_other(self, moment):
        env = self.make_environment()
        lanes = self.make_lanes(env)
        load = Watched(env, lanes.submit(Copy("h2d", 4, 64 * MIB, 1)))
        operation = Prefill((Chunk(0, 100, 400),), 100, load=load.pending.number)
        steps: list[Watched] = []

        def submit(event: object = None) -> None:
            steps.append(Watched(env, lanes.submit(operation)))

        if moment == "at once" or load.pending.callbacks is None:
            submit()
        else:
            load.pending.callbacks.append(submit)
        env.run()
        ((_, answer),) = steps[0].answers
        if isinstance(answer, TransferError):  # as the load, or in its stead
            return
        assert isinstance(answer, Completion)
        assert answer.operation == operation
        assert answer.submitted_ns <= answer.started_ns <= answer.finished_ns <= answer.stamp_ns

    def _burst_ends(self) -> tuple[int, ...]:
        env = self.make_environment()
        burst = Watched(env, self.make_lanes(env).submit(Decode(4, 4000, 50)))
        env.run()
        return burst.done.step_ends_ns
