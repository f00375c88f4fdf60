"""A prefill whose layers compute as they arrive: the closed form against one that walks the layers,
and whole lanes with shared bandwidth.
"""

from __future__ import annotations

from itertools import pairwise

import msgspec
import pytest
from by_hand import H200_BY_HAND
from hypothesis import given
from hypothesis import strategies as st
from lanes_contract import MIB, Watched, at
from simpy import Environment

from hicache.operations import Chunk, Copy, Prefill
from scenario.profile import load_profile
from sim.lanes import SimMachine
from sim.layered import Trail

PROFILE = load_profile(H200_BY_HAND)
LAYERS = PROFILE.gpu.model.layers
LOAD = Copy("h2d", 64, 512 * MIB, 1)


def walked_ns(corners, start: float, compute: float, layers: int, size: int) -> float:
    """Layer after layer: each begins when the one before is done and its group is there."""
    whole, now = corners[0][1], float(start)
    for layer in range(layers):
        left = whole * (1 - min((layer // size + 1) * size, layers) / layers)
        for (t0, l0), (t1, l1) in pairwise(corners):
            if l1 <= left:
                there = t0 if l0 <= left else t0 + (l0 - left) * (t1 - t0) / (l0 - l1)
                break
        now = max(now, there) + compute / layers
    return now


@given(
    st.lists(
        st.tuples(st.integers(1, 9999), st.integers(9999, 99_999_999)), min_size=1, max_size=5
    ),
    st.integers(0, 30_000),
    st.integers(1, 60_000),
    st.integers(1, 40),
    st.integers(1, 12),
)
def test_the_closed_form_is_what_walking_the_layers_gives(pieces, start, compute, layers, groups):
    whole = sum(work for _, work in pieces)
    corners = [(0, whole)]
    for took, work in pieces:
        corners.append((corners[-1][0] + took, corners[-1][1] - work))
    trail = Trail(whole)
    for corner in corners:
        trail.mark(*corner)
    end = trail.end_ns(start, compute, layers, groups)
    size = -(-layers // min(groups, layers))
    assert end == pytest.approx(walked_ns(corners, start, compute, layers, size), abs=4)


def ends(plan, mode: str = "kernel") -> list[Watched]:
    """What comes of each (time, operation)."""
    env = Environment(0)
    lanes = SimMachine(env, PROFILE, transfer_mode=mode).lanes()
    watched: list[Watched] = []

    def submit(operation) -> None:
        watched.append(Watched(env, lanes.submit(operation)))

    for at_ns, operation in plan:
        at(env, at_ns, lambda operation=operation: submit(operation))
    env.run()
    return watched


def prefill(tokens: int, load: int = -1) -> Prefill:
    return Prefill((Chunk(0, tokens, 4096),), tokens, load=load)


def took_ns(operation, mode: str = "kernel") -> int:
    (each,) = ends([(0, operation)], mode)
    return each.done.finished_ns - each.done.started_ns


@pytest.mark.parametrize("tokens", [16, 500, 8192])
@pytest.mark.parametrize("mode", ["kernel", "dma", "staged"])
def test_the_larger_of_load_and_computing_decides_and_one_layer_of_the_other(mode, tokens):
    load, step = ends([(0, LOAD), (0, prefill(tokens, load=0))], mode)
    compute = took_ns(prefill(tokens), mode)
    loaded = load.done.finished_ns - load.done.started_ns
    took = step.done.finished_ns - load.done.started_ns
    groups = 12 if mode == "staged" else LAYERS
    longer, shorter = max(loaded, compute), min(loaded, compute)
    assert longer + shorter / LAYERS * 0.9 < took < longer + shorter / groups * 1.1 + 200_000
    assert step.done.finished_ns > load.done.finished_ns


def test_a_load_that_is_over_already_holds_nobody_up():
    load, step = ends([(0, LOAD), (50_000_000, prefill(500, load=0))])
    assert load.done.finished_ns < 50_000_000
    assert step.done.finished_ns - step.done.started_ns == took_ns(prefill(500))


def test_a_step_that_waits_its_turn_looks_at_the_load_when_it_begins():
    before, load, step = ends([(0, prefill(100)), (1, LOAD), (2, prefill(16, load=1))])
    compute = took_ns(prefill(16))
    alone = step.done.finished_ns - step.done.started_ns
    assert step.done.started_ns >= before.done.finished_ns
    assert alone >= compute
    assert step.done.finished_ns >= load.done.finished_ns + compute // LAYERS


def test_traffic_the_other_way_slows_the_load_and_so_the_step():
    alone = ends([(0, LOAD), (0, prefill(16, load=0))])[1].done.finished_ns
    store = Copy("d2h", 64, 512 * MIB, 1)
    load, step, _ = ends([(0, LOAD), (0, prefill(16, load=0)), (1_000_000, store)])
    assert step.done.finished_ns > alone
    assert step.done.finished_ns >= load.done.finished_ns + took_ns(prefill(16)) // LAYERS


def test_the_next_step_begins_when_the_waiting_one_has_ended():
    _, first, second = ends([(0, LOAD), (0, prefill(16, load=0)), (1, prefill(16))])
    assert second.done.started_ns >= first.done.finished_ns


def test_a_slower_link_makes_for_a_later_end():
    slower = msgspec.structs.replace(
        PROFILE.pcie,
        zero_copy_h2d=msgspec.structs.replace(
            PROFILE.pcie.zero_copy_h2d,
            points=tuple((size, 2 * ns) for size, ns in PROFILE.pcie.zero_copy_h2d.points),
        ),
    )
    env = Environment(0)
    machine = SimMachine(env, msgspec.structs.replace(PROFILE, pcie=slower), transfer_mode="kernel")
    lanes = machine.lanes()
    lanes.submit(LOAD)
    step = Watched(env, lanes.submit(prefill(16, load=0)))
    env.run()
    usual = ends([(0, LOAD), (0, prefill(16, load=0))])[1].done.finished_ns
    assert step.done.finished_ns > 1.8 * usual
