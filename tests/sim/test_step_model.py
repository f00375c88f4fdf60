"""Steps: equal to the samples there, monotone between them; bursts add up to their steps."""

from __future__ import annotations

from itertools import pairwise

import msgspec
import pytest
from by_hand import H200_BY_HAND
from hypothesis import given, settings
from hypothesis import strategies as st
from lanes_contract import Watched, at
from simpy import Environment

from hicache.operations import Chunk, Decode, Prefill
from scenario.profile import load_profile
from sim.burst import SHIFT, Burst
from sim.curves import Line, line, monotone
from sim.lanes import SimMachine
from sim.ranges import Outside, RangeWatch
from sim.step_model import step_model

PROFILE = load_profile(H200_BY_HAND)
GPU = PROFILE.gpu
STEPS = step_model(GPU)
assert GPU.dense is not None
assert GPU.attention_prefill is not None
assert GPU.attention_decode is not None
PREFILL = {(new, past): ns for new, past, ns in GPU.attention_prefill.points}
DECODE = {(batch, context): ns for batch, context, ns in GPU.attention_decode.points}
DENSE = line(GPU.dense.points)
# Samples that are out of order with a neighbour: the model takes the middle.
NOISY = {(64, 0), (512, 0)}
NOISY_DECODE = {(1, 1024), (1, 4096), (4, 1024), (4, 4096), (16, 1024)}


def prefill_ns(new: int, past: int, steps=STEPS) -> int:
    return steps.prefill_ns(Prefill((Chunk(0, new, past),), new))


@pytest.mark.parametrize("new_past", [key for key in PREFILL if key not in NOISY])
def test_prefill_equals_the_samples(new_past):
    new, past = new_past
    assert prefill_ns(new, past) == round(DENSE(new) + PREFILL[new_past])


def test_noisy_prefill_samples_are_replaced_by_their_middle():
    middle = (PREFILL[64, 0] + PREFILL[512, 0]) / 2
    assert prefill_ns(64, 0) == round(DENSE(64) + middle)
    assert prefill_ns(512, 0) == round(DENSE(512) + middle)


@pytest.mark.parametrize("batch_context", [key for key in DECODE if key not in NOISY_DECODE])
def test_decode_equals_the_samples(batch_context):
    batch, context = batch_context
    assert STEPS.decode_ns(batch, batch * context) == round(DENSE(batch) + DECODE[batch_context])


@pytest.mark.parametrize("batch_context", sorted(NOISY_DECODE))
def test_noisy_decode_samples_stay_near(batch_context):
    batch, context = batch_context
    attention_ns = STEPS.decode_ns(batch, batch * context) - DENSE(batch)
    assert attention_ns == pytest.approx(DECODE[batch_context], rel=0.25)


def test_dense_equals_the_samples_where_they_rise():
    assert GPU.dense is not None
    for tokens, ns in GPU.dense.points:
        if tokens not in (32, 64):
            assert DENSE(tokens) == ns


tokens = st.integers(1, 8192)
pasts = st.integers(0, 130_000)


@given(new=tokens, past=pasts, more=st.integers(1, 5000))
@settings(max_examples=150, deadline=None)
def test_more_tokens_never_take_less(new, past, more):
    assert prefill_ns(new, past) <= prefill_ns(new + more, past)
    assert prefill_ns(new, past) <= prefill_ns(new, past + more)


@given(batch=st.integers(1, 300), context=st.integers(1, 130_000), more=st.integers(1, 9000))
@settings(max_examples=150, deadline=None)
def test_more_context_or_requests_never_decode_faster(batch, context, more):
    step = STEPS.decode_ns(batch, batch * context)
    assert step <= STEPS.decode_ns(batch, batch * context + more)
    assert step <= STEPS.decode_ns(batch + 1, (batch + 1) * context)


def test_one_token_after_a_full_hit_costs_a_row_of_decode():
    for past in (0, 5000, 100_000):
        assert prefill_ns(1, past) == pytest.approx(STEPS.decode_ns(1, max(1, past)), rel=0.01)
        assert prefill_ns(1, past) < prefill_ns(64, past)


def test_causal_attention_grows_with_pairs_of_tokens():
    # Between samples at 2048 and 8192 new tokens without a past: half the way is a quarter of the
    # square, not half of the rise.
    attention_ns = prefill_ns(4096, 0) - DENSE(4096)
    assert attention_ns == pytest.approx(
        PREFILL[2048, 0] + 0.2 * (PREFILL[8192, 0] - PREFILL[2048, 0])
    )


def test_several_chunks_pay_one_launch_floor_and_are_counted():
    steps = step_model(GPU)
    floor = min(*PREFILL.values(), *DECODE.values())
    chunks = (Chunk(0, 2048, 0), Chunk(1, 2048, 8192), Chunk(2, 2048, 2048))
    expected = floor + sum(PREFILL[new, past] - floor for _, new, past in chunks)
    assert steps.prefill_ns(Prefill(chunks, 3 * 2048)) == round(DENSE(3 * 2048) + expected)
    assert steps.joint_prefills == 1
    # A decode batch that rides along adds its attention and its tokens.
    mixed = Prefill(chunks[:1], 2048, 64, 64 * 16384)
    expected = floor + PREFILL[2048, 0] - floor + DECODE[64, 16384] - floor
    assert steps.prefill_ns(mixed) == round(DENSE(2048 + 64) + expected)
    assert steps.joint_prefills == 2


def test_questions_beyond_the_samples_are_counted():
    watch = RangeWatch()
    steps = step_model(GPU, watch)
    prefill_ns(8192, 122_880, steps)
    steps.decode_ns(64, 64 * 16_384)
    steps.decode_ns(1, 122_880)
    steps.decode_ns(5, 5 * 1024)
    assert watch.outside_range() == ()
    prefill_ns(9000, 0, steps)
    prefill_ns(10, 200_000, steps)
    prefill_ns(10, 150_000, steps)
    steps.decode_ns(128, 128 * 2000)
    steps.decode_ns(5, 5 * 66_000)
    steps.burst(1, 10, 5)
    assert watch.outside_range() == (
        Outside("tokens of a step", 1, 9000, 8192),
        Outside("new tokens of a prefill chunk", 1, 9000, 8192),
        Outside("past tokens of a prefill chunk", 2, 200_000, 122_880),
        Outside("requests of a decode step", 1, 128, 64),
        Outside("mean context of a decode step", 1, 66_000, 65_536),
        Outside("mean context of a decode step", 1, 10, 1024),
    )


@given(
    batch=st.integers(1, 80),
    context=st.integers(1, 125_000),
    odd=st.integers(0, 50),
    steps=st.integers(1, 6000),
)
@settings(max_examples=100, deadline=None)
def test_a_burst_adds_up_to_its_steps(batch, context, odd, steps):
    total = batch * context + odd
    burst = STEPS.burst(batch, total, steps)
    ends = burst.ends_ns(steps, 0)
    assert len(ends) == steps
    for step in {1, 2, steps // 3 + 1, steps // 2 + 1, steps}:
        if step <= steps:
            assert burst.end_ns(step) == ends[step - 1]
    # Each step takes what `decode_ns` says, to rounding: the slope of a step is kept to 1/1024 ns.
    for step in {0, 1, steps // 2, steps - 1}:
        if step < steps:
            took = ends[step] - (ends[step - 1] if step else 0)
            assert abs(took - STEPS.decode_ns(batch, total + step * batch)) <= 2 + steps / 1024


@given(
    pieces=st.lists(
        st.tuples(st.integers(1, 90), st.integers(1, 50), st.integers(0, 20)),
        min_size=1,
        max_size=4,
    ),
    start=st.integers(0, 10**13),
)
@settings(max_examples=80, deadline=None)
def test_the_list_of_ends_and_the_single_answers_agree(pieces, start):
    built, done, base = [], 0, 0
    for count, first_ns, more_ns in pieces:
        first, more = first_ns << SHIFT, more_ns << (SHIFT - 1)
        built.append((done, base, first, more))
        base += count * first + (count * (count - 1) // 2) * more
        done += count
    burst = Burst(built, done)
    ends = burst.ends_ns(done, start)
    assert ends == tuple(start + burst.end_ns(step + 1) for step in range(done))
    assert burst.ends_ns(done // 2, start) == ends[: done // 2]
    for elapsed in {0, 1, *(end - start + off for end in ends[::13] for off in (-1, 0, 1))}:
        expected = next((n + 1 for n, end in enumerate(ends) if end - start >= elapsed), done)
        assert burst.step_at(elapsed) == expected


def test_a_burst_can_be_ended_at_every_boundary():
    decode = Decode(4, 4 * 4090, 30)

    def run(wish_ns: int | None):
        env = Environment(0)
        lanes = SimMachine(env, PROFILE).lanes()
        burst = Watched(env, lanes.submit(decode))
        after = Watched(env, lanes.submit(Prefill((Chunk(0, 1, 0),), 1)))
        if wish_ns is not None:
            at(env, wish_ns, lambda: lanes.end_burst(burst.pending))
        env.run()
        assert after.done.started_ns == burst.done.finished_ns
        return burst.done

    whole = run(None)
    assert whole.steps == 30
    assert all(one < other for one, other in pairwise(whole.step_ends_ns))
    for number, end_ns in enumerate(whole.step_ends_ns):
        for wish_ns, steps in (
            (end_ns - 1, number + 1),
            (end_ns, number + 1),
            (end_ns + 1, number + 2),
        ):
            done = run(wish_ns)
            assert done.steps == min(steps, 30)
            assert done.step_ends_ns == whole.step_ends_ns[: done.steps]
            assert done.finished_ns == done.step_ends_ns[-1]


def test_a_machine_known_by_its_recompute_curve_alone():
    gpu = load_profile("mini-group-a").gpu
    watch = RangeWatch()
    steps = step_model(gpu, watch)
    assert gpu.prefill is not None
    for tokens, ns in gpu.prefill.points:
        assert prefill_ns(tokens, 0, steps) == prefill_ns(tokens, 9999, steps) == ns
        assert steps.decode_ns(tokens, 10**6) == ns
        assert steps.burst(tokens, 10, 7).end_ns(7) == 7 * ns
    assert watch.outside_range() == ()
    prefill_ns(4000, 0, steps)
    assert watch.outside_range() == (Outside("tokens of a step", 1, 4000, 3500),)


def test_one_row_of_samples_is_enough():
    gpu = msgspec.structs.replace(
        GPU,
        attention_prefill=msgspec.structs.replace(GPU.attention_prefill, points=((1, 0, 5000),)),
        attention_decode=msgspec.structs.replace(GPU.attention_decode, points=((1, 0, 5000),)),
    )
    steps = step_model(gpu)
    assert prefill_ns(64, 100, steps) == round(DENSE(64) + 5000)
    assert steps.decode_ns(3, 100) == round(DENSE(3) + 5000)


@given(
    samples=st.dictionaries(
        st.tuples(st.integers(0, 5), st.integers(0, 5)), st.integers(0, 100), min_size=1
    )
)
@settings(max_examples=80, deadline=None)
def test_repaired_samples_never_go_down(samples):
    places = list(samples)
    heights = monotone(places, list(samples.values()))
    for place, height in zip(places, heights, strict=True):
        for other, its_height in zip(places, heights, strict=True):
            if place[0] <= other[0] and place[1] <= other[1]:
                assert height <= its_height
    again = monotone(places, heights)
    assert again == heights


def test_a_line_goes_on_beyond_its_ends_but_not_below_nothing():
    rising = Line([10, 20, 40], [5.0, 15.0, 25.0])
    assert [rising(x) for x in (0, 5, 10, 15, 20, 30, 40, 60)] == [0, 0, 5, 10, 15, 20, 25, 35]
    assert Line([3], [7.0])(100) == 7.0
