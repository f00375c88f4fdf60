"""A machine that launches decode steps ahead ends a burst so many steps later."""

from __future__ import annotations

import msgspec
import pytest
from by_hand import H200_BY_HAND
from lanes_contract import Watched, at
from simpy import Environment

from hicache.operations import Completion, Decode
from scenario.profile import Quantity, load_profile
from sim.lanes import SimMachine

STEPS = 30


def cut(steps_ahead: int | None, *wishes_ns: int) -> Completion:
    """A burst that is asked to end, and how it ended."""
    profile = load_profile(H200_BY_HAND)
    if steps_ahead is not None:
        ahead = Quantity(provenance="measured", how="made up", value=steps_ahead)
        gpu = msgspec.structs.replace(profile.gpu, steps_ahead=ahead)
        profile = msgspec.structs.replace(profile, gpu=gpu)
    env = Environment(0)
    lanes = SimMachine(env, profile).lanes()
    burst = Watched(env, lanes.submit(Decode(4, 4096, STEPS)))
    for wish_ns in wishes_ns:
        at(env, wish_ns, lambda: lanes.end_burst(burst.pending))
    env.run()
    return burst.done


@pytest.mark.parametrize("ahead", [None, 0, 1, 3])
def test_a_burst_does_the_steps_that_are_launched_already(ahead: int | None) -> None:
    whole = cut(ahead)
    assert whole.steps == STEPS
    more = ahead or 0
    for number, end_ns in enumerate(whole.step_ends_ns[:-1]):
        done = cut(ahead, end_ns + 1)  # while step number + 2 runs
        assert done.steps == min(number + 2 + more, STEPS)
        assert done.step_ends_ns == whole.step_ends_ns[: done.steps]


def test_a_burst_that_has_not_begun_ends_after_one_step() -> None:
    whole = cut(1)
    assert whole.started_ns > 0  # the engine takes time to launch it
    assert cut(1, 0).steps == 1
    assert cut(1, whole.started_ns).steps == 1
    assert cut(1, whole.started_ns + 1).steps == 2


def test_asking_again_changes_nothing() -> None:
    whole = cut(1)
    first, later = whole.step_ends_ns[2] + 1, whole.step_ends_ns[3] + 1
    assert cut(1, first, later) == cut(1, first)
