"""What copies and steps take from each other, against a naive machine that goes ns by ns."""

from __future__ import annotations

from itertools import pairwise
from typing import NamedTuple

import msgspec
import pytest
from by_hand import H200_BY_HAND
from full_profile import with_everything
from hypothesis import given, settings
from hypothesis import strategies as st
from lanes_contract import MIB, Watched, at, play
from simpy import Environment

from hicache.kernel import Pending
from hicache.operations import Chunk, Copy, Decode, Prefill
from scenario.profile import Curve, Interference, Quantity, load_profile
from sim.burst import SHIFT, Burst
from sim.contention import DECODE, IDLE, PREFILL, Contention
from sim.gpu import Gpu
from sim.host import Host
from sim.lanes import SimMachine
from sim.pcie import Link
from sim.ranges import RangeWatch

PLAIN = load_profile(H200_BY_HAND)
FULL = with_everything(PLAIN)


def took(profile, plan):
    env = Environment(0)
    lanes = SimMachine(env, profile, transfer_mode="dma").lanes()
    return [each.done.finished_ns - each.done.started_ns for each in play(env, lanes, plan)]


def test_a_copy_under_a_step_keeps_its_part_and_alone_all_of_it():
    copy, step = Copy("h2d", 1, 512 * MIB, 1), Prefill((Chunk(0, 4096, 0),), 4096)
    (alone,) = took(FULL, [(0, copy)])
    assert took(PLAIN, [(0, copy)]) == [alone]
    _, under = took(FULL, [(0, step), (1_000_000, copy)])
    assert under == pytest.approx(alone / 0.9, rel=1e-4)
    _, later = took(FULL, [(0, step), (10**9, copy)])
    assert later == alone


def test_a_step_under_copies_of_both_ways_keeps_the_product():
    copies = [(0, Copy(way, 1, 2048 * MIB, 1)) for way in ("h2d", "d2h")]
    step = Prefill((Chunk(0, 512, 0),), 512)
    (alone,) = took(FULL, [(0, step)])
    under = took(FULL, [*copies, (1_000_000, step)])[-1]
    assert under == pytest.approx(alone / 0.94 / 0.95, rel=2e-3)
    assert took(FULL, [*copies, (10**9, step)])[-1] == alone


def test_a_burst_beside_copies_is_slower_and_one_alone_is_not():
    burst = Decode(4, 4096, 50)
    (alone,) = took(FULL, [(0, burst)])
    under = took(FULL, [(0, Copy("d2h", 1, 32_768 * MIB, 1)), (1_000_000, burst)])[-1]
    assert under == pytest.approx(alone / 0.97, rel=1e-3)


def test_a_copy_that_ends_midway_gives_a_step_its_speed_back():
    copy, step = Copy("d2h", 1, 1024 * MIB, 1), Prefill((Chunk(0, 4096, 0),), 4096)
    (alone,) = took(FULL, [(0, step)])
    # The copy begins with the step and is over long before it.
    copied, under = took(FULL, [(0, copy), (1, step)])
    assert under - alone == pytest.approx(copied * 50 / 1000, rel=0.05)


def test_a_step_that_begins_midway_slows_a_copy_from_then_on():
    copy, step = Copy("d2h", 1, 1024 * MIB, 1), Decode(4, 4096, 50)
    (alone,) = took(FULL, [(0, copy)])
    under, _ = took(FULL, [(0, copy), (alone // 2, step)])
    assert under - alone == pytest.approx(alone / 2 * (1000 / 930 - 1), rel=0.04)


def test_the_ends_of_a_burst_s_steps_follow_its_paces():
    env = Environment(0)
    lanes = SimMachine(env, FULL, transfer_mode="dma").lanes()
    burst = Decode(4, 4096, 50)
    before, copy = play(env, lanes, [(0, burst), (100_000_000, Copy("h2d", 1, 4096 * MIB, 1))])
    ends = before.done.step_ends_ns
    began_ns, over_ns = copy.done.started_ns, copy.done.finished_ns
    assert ends[-1] == before.done.finished_ns > over_ns
    steps = list(pairwise(ends))
    beside = [end - begin for begin, end in steps if began_ns <= begin and end <= over_ns]
    alone = [end - begin for begin, end in steps if end <= began_ns or over_ns <= begin]
    assert len(beside) > 5
    assert len(beside) + len(alone) >= len(steps) - 2
    assert min(beside) > 1.03 * max(alone)


@pytest.mark.parametrize("moment_ns", [60_000_000, 130_000_000])
def test_a_slowed_burst_that_is_cut_ends_at_a_boundary(moment_ns):
    env = Environment(0)
    lanes = SimMachine(env, FULL, transfer_mode="dma").lanes()
    at(env, 30_000_000, lambda: lanes.submit(Copy("d2h", 1, 2048 * MIB, 1)))
    burst = Watched(env, lanes.submit(Decode(4, 4096, 50)))
    at(env, moment_ns, lambda: lanes.end_burst(burst.pending))
    env.run()
    ends = burst.done.step_ends_ns
    # The step under way and, as the profile says, one more.
    assert ends[-3] < moment_ns <= ends[-2]
    assert burst.done.steps == len(ends) < 50


class Job(NamedTuple):
    """A copy or a step that is ready at a time and takes so much alone."""

    what: str
    ready_ns: int
    work_ns: int


class _Steps:
    """A step model of which tokens are ns, and so is a burst's context."""

    joint_prefills = 0

    def prefill_ns(self, step):
        return step.tokens

    def decode_ns(self, batch, context_tokens):
        return context_tokens

    def burst(self, batch, context_tokens, max_steps):
        return Burst(((0, 0, context_tokens << SHIFT, 0),), max_steps)


def parts_of(values: list[int]) -> Interference:
    names = [
        *(f"{way}_under_{step}_permille" for step in STEPS for way in WAYS),
        *(f"{step}_under_{way}_permille" for step in STEPS for way in WAYS),
    ]
    made = [Quantity(provenance="estimate", how="a test", value=value) for value in values]
    return Interference(**dict(zip(names, made, strict=True)))


WAYS, STEPS = ("h2d", "d2h"), ("prefill", "decode")


def ends_of(jobs: list[Job], parts: Interference, duplex: int) -> list[int]:
    curve = Curve(provenance="estimate", how="a test", points=((0, 0), (1000, 1000)))
    rate = Quantity(provenance="estimate", how="a test", value=duplex * 10**6)
    pcie = msgspec.structs.replace(
        PLAIN.pcie, h2d=curve, d2h=curve, duplex_bytes_per_s=rate, gather_scatter=None
    )
    env = Environment(0)
    contention = Contention(parts)
    link = Link(env, pcie, Host(PLAIN.host, RangeWatch()), contention=contention)
    gpu = Gpu(env, _Steps(), link=link, contention=contention)
    watched: list[Watched] = []
    for number, job in enumerate(jobs):
        pending: Pending = Pending(env, number, 0)
        watched.append(Watched(env, pending))
        if job.what in WAYS:
            link.submit(pending, Copy(job.what, 1, job.work_ns, 1), job.ready_ns)  # type: ignore[arg-type]
        elif job.what == "prefill":
            gpu.submit(pending, Prefill((Chunk(0, job.work_ns, 0),), job.work_ns), job.ready_ns)
        else:
            gpu.submit(pending, Decode(1, job.work_ns, 1), job.ready_ns)
    env.run()
    return [each.done.finished_ns for each in watched]


def naive_ends(jobs: list[Job], parts: Interference, duplex: int) -> list[int]:
    queues = {
        queue: [number for number, job in enumerate(jobs) if job.what in kinds]
        for queue, kinds in (("h2d", ("h2d",)), ("d2h", ("d2h",)), ("gpu", STEPS))
    }
    left = [job.work_ns * 1000.0 for job in jobs]
    ends: dict[int, int] = {}
    now = 0
    while len(ends) < len(jobs):
        on: dict[str, str] = {}
        for queue, waiting in queues.items():
            while waiting and left[waiting[0]] <= 0.0:
                ends[waiting.pop(0)] = now
            if waiting and jobs[waiting[0]].ready_ns <= now:
                on[queue] = jobs[waiting[0]].what
        for queue, what in on.items():
            speed = 1000.0
            if queue == "gpu":
                for way in WAYS:
                    if way in on:
                        speed *= getattr(parts, f"{what}_under_{way}_permille").value / 1000
            else:
                speed *= duplex / 1000 if len(on) - ("gpu" in on) == 2 else 1
                if "gpu" in on:
                    speed *= getattr(parts, f"{what}_under_{on['gpu']}_permille").value / 1000
            left[queues[queue][0]] -= speed
        now += 1
    return [ends[number] for number in range(len(jobs))]


jobs = st.lists(
    st.builds(
        Job, st.sampled_from([*WAYS, *STEPS]), st.integers(0, 1500), st.integers(1, 900)
    ),
    min_size=1, max_size=7,
)  # fmt: skip


@given(jobs=jobs, kept=st.lists(st.integers(400, 1000), min_size=8, max_size=8),
       duplex=st.integers(500, 1000))  # fmt: skip
@settings(max_examples=100, deadline=None)
def test_link_and_gpu_agree_with_a_naive_machine(jobs, kept, duplex):
    parts = parts_of(kept)
    found, expected = ends_of(jobs, parts, duplex), naive_ends(jobs, parts, duplex)
    # Speeds are whole thousandths, and each change of speed may round a ns away.
    for end, naive in zip(found, expected, strict=True):
        assert end == pytest.approx(naive, rel=4e-3, abs=3 * len(jobs) + 2)


def test_both_directions_beside_a_step_keep_the_product():
    contention = Contention(parts_of([900, 910, 920, 930, 940, 950, 960, 970]))
    assert contention.step_speed(PREFILL, 1, 1) == 940 * 950 // 1000
    assert contention.step_speed(DECODE, 0, 1) == 970
    assert contention.step_speed(IDLE, 1, 1) == 1000
