"""Sampling, fits of one curve, and what hardware cannot do."""

from __future__ import annotations

from itertools import pairwise
from math import comb
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from calibrate.fits import fit_curve, quantile, slope_through
from calibrate.machine import doubts, link_bytes_per_s, look
from calibrate.sampling import Disturbed, Exhausted, Rule, median_interval, sample
from hicache.errors import InputError
from scenario.measurement import Sample
from sim.curves import line


class Clock:
    """Moves by what each sample takes."""

    def __init__(self) -> None:
        self.now_s = 0.0

    def __call__(self) -> float:
        return self.now_s

    def acting(self, times, step_s=0.01):
        values = iter(times)

        def act() -> int:
            self.now_s += step_s
            value = next(values)
            if isinstance(value, Exception):
                raise value
            return value

        return act


def test_steady_times_need_six_samples():
    clock = Clock()
    found = sample(clock.acting([999, *[1000] * 100]), 10, clock)
    assert found.ns == (1000,) * 6
    assert found.width == 0
    assert found.note == ""


def test_noisy_times_are_repeated_until_the_interval_is_narrow():
    clock, random = Clock(), Random(1)
    times = [round(random.gauss(100_000, 6000)) for _ in range(500)]
    found = sample(clock.acting(times), 100, clock, Rule(most=400))
    assert 10 < len(found.ns) < 400
    assert found.width <= 0.03
    assert median_interval(found.ns).median == pytest.approx(100_000, rel=0.03)


def test_it_ends_with_its_time_and_says_so():
    clock, random = Clock(), Random(2)
    times = [round(random.uniform(50_000, 150_000)) for _ in range(500)]
    found = sample(clock.acting(times), 0.2, clock)
    assert len(found.ns) in (19, 20)
    assert clock.now_s == pytest.approx(0.2, abs=0.011)
    assert "%, 3 % wanted" in found.note
    assert found.width > 0.03


def test_slow_points_get_at_least_a_few_samples_and_say_how_sure_that_is():
    clock = Clock()
    found = sample(clock.acting([1, 10, 11, 12, 13], step_s=1.0), 1.5, clock)
    assert found.ns == (10, 11, 12)
    assert found.note == "3 samples in the time there was: their range, 75 % sure"


def test_what_no_hardware_can_do_is_rejected_and_counted():
    clock = Clock()
    times = [100, 100, 40, 100, 30, *[100] * 10]
    found = sample(
        clock.acting(times), 10, clock, floor_ns=50, floor_reason="the link can carry the bytes"
    )
    assert found.ns == (100,) * 6
    assert found.note == "2 samples rejected: faster than the link can carry the bytes"
    with pytest.raises(InputError, match="faster than the link: 40 ns, at least 50 are needed"):
        sample(clock.acting([40] * 200), 10, clock, floor_ns=50, floor_reason="the link")


def test_disturbed_samples_are_taken_again_but_not_for_ever():
    clock = Clock()
    busy = Disturbed("busy")
    found = sample(clock.acting([100, busy, 100, busy, *[100] * 9]), 10, clock)
    assert found.ns == (100,) * 6
    assert found.note == "2 disturbed samples rejected: busy"
    with pytest.raises(InputError, match="9 samples were disturbed: busy"):
        sample(clock.acting([100, *[busy] * 50]), 10, clock)


def test_disturbed_samples_do_not_outlast_the_time():
    clock = Clock()
    found = sample(clock.acting([100, 100, *[Disturbed("busy")] * 9], step_s=1), 1.5, clock)
    assert found.ns == (100,)
    assert found.note.endswith("1 disturbed samples rejected: busy")
    assert clock.now_s == 3


def test_what_there_is_has_to_do_when_no_more_can_be_had():
    clock = Clock()
    gone = Exhausted("all were taken")
    found = sample(clock.acting([1, 100, 120, 140, gone]), 10, clock)
    assert found.ns == (100, 120, 140)
    assert found.note.startswith("3 samples in the time there was")
    assert found.note.endswith("; no more samples: all were taken")
    for times in ([gone], [1, gone]):
        with pytest.raises(InputError, match="all were taken"):
            sample(clock.acting(times), 10, clock)


@given(st.lists(st.integers(1, 10**9), min_size=1, max_size=60))
def test_the_interval_holds_the_median_and_its_probability_is_the_binomials(values):
    found = median_interval(values)
    assert found.low <= found.median <= found.high
    assert min(values) <= found.low
    count = len(values)
    if count >= 6:
        assert found.confidence >= 0.95
        rank = 0  # the widest part that may be cut off on each side
        while 1 - 2 * sum(comb(count, k) for k in range(rank + 1)) / 2**count >= 0.95:
            rank += 1
        assert found.low == sorted(values)[rank - 1]


def test_the_interval_covers_the_true_median_as_often_as_it_says():
    random, hits = Random(3), 0
    for _ in range(600):
        found = median_interval([round(random.expovariate(1e-6)) for _ in range(15)])
        hits += found.low <= 693_147 <= found.high  # ln 2
    assert hits / 600 > 0.93


# ---------------------------------------------------------------------- fits


def samples(of, fits, checks=()):
    rows = [(x, "fit") for x in fits] + [(x, "check") for x in checks]
    return [Sample(at=(x,), ns=(round(of(x)),) * 3, role=role) for x, role in rows]


def test_a_line_is_found_to_be_affine():
    found = fit_curve(samples(lambda x: 5000 + 3 * x, (10, 1000, 100_000), (400, 30_000)))
    assert found.kind == "affine"
    assert len(found.points) == 2
    assert line(found.points).at(20_000) == pytest.approx(65_000, rel=0.001)
    assert found.errors is not None
    assert found.errors.p95 < 0.001


def test_a_curve_that_bends_keeps_its_samples():
    def bends(x: float) -> float:
        return 20_000 + max(0, x - 50_000) * 2.0

    found = fit_curve(
        samples(bends, (1000, 10_000, 50_000, 200_000, 800_000), (30_000, 100_000, 400_000))
    )
    assert found.kind in ("straight", "bent")
    through = line(found.points)
    for x in (1000, 10_000, 50_000, 200_000, 800_000):
        assert through.at(x) == pytest.approx(bends(x), rel=0.001)
    assert found.errors is not None
    assert found.errors.median < 0.03


def test_a_smooth_curve_is_bent():
    found = fit_curve(samples(lambda x: x**1.7, (100, 1000, 4000, 10_000), (300, 2000, 7000)))
    assert found.kind == "bent"
    assert found.errors is not None
    assert found.errors.median < 0.05


@given(st.lists(st.integers(1, 10**6), min_size=2, max_size=9, unique=True), st.integers(0, 99))
@settings(deadline=None, max_examples=60)
def test_no_fit_ever_goes_down(xs, seed):
    random = Random(seed)
    noisy = [
        Sample(at=(x,), ns=(round(1000 + x * random.uniform(0.5, 1.5)),), role=role)
        for x, role in zip(sorted(xs), ("fit", "fit", *("check", "fit") * 5), strict=False)
    ]
    found = fit_curve(noisy)
    assert all(a[0] < b[0] and a[1] <= b[1] for a, b in pairwise(found.points))


def test_terms_are_never_negative():
    assert slope_through([1, 2, 3], [30, 20, 10])[1] == 0
    fixed, slope = slope_through([10, 20, 40], [1, 12, 34])
    assert fixed == 0
    assert slope > 0
    assert quantile([1.0, 2.0, 10.0], 0.5) == 2.0


@pytest.mark.parametrize(
    ("generation", "width", "gb_s"), [(3, 16, 15.75), (4, 16, 31.5), (5, 16, 63.0), (2, 8, 4.0)]
)
def test_what_a_link_can_carry(generation, width, gb_s):
    assert link_bytes_per_s(generation, width) / 1e9 == pytest.approx(gb_s, rel=0.001)
    assert link_bytes_per_s(99, 16) == 0


def test_other_work_on_the_machine_is_told():
    assert doubts(0.4, 2, 0) == doubts(8.0, 16, 10) == ()
    assert doubts(1.1, 2, 0) == ("other work runs here, a load of 1.1 on 2 cores",)
    assert doubts(0.0, 2, 93) == ("other work runs on the GPU, which is 93 % busy",)
    assert "when it began" in look("none").facts["load"]
