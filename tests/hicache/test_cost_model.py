"""The belief, rule by rule, and its lazy learning against one that learns at once."""

from __future__ import annotations

from dataclasses import replace

import pytest
from examples import examples
from hypothesis import given
from hypothesis import strategies as st

from hicache.cost_model import CostModel, Line
from hicache.node import Node
from hicache.options import RestoreOptions
from hicache.restore_policy import make_policy
from hicache.tree import Match

PRIOR = 2.0


def line_of(*samples: tuple[float, float]) -> Line:
    line = Line(PRIOR)
    for size, seconds in samples:
        line.observe(size, seconds)
    return line


def belief(line: Line) -> tuple[float, float]:
    return line.fixed, line.slope


# ---------------------------------------------------------------- one line


def test_before_any_sample_a_line_is_its_prior():
    assert belief(Line(PRIOR)) == (0.0, PRIOR)
    assert Line(PRIOR).estimate(10) == 20.0


def test_equal_sizes_move_the_fixed_part_towards_the_residual_and_leave_the_slope():
    line = line_of((10, 25.0))
    assert belief(line) == (0.2 * 5.0, PRIOR)
    line.observe(10, 25.0)
    assert belief(line) == (pytest.approx(0.8 * 1.0 + 0.2 * 5.0), PRIOR)


def test_a_residual_below_the_prior_counts_as_none():
    line = line_of((10, 25.0), (10, 1.0))
    assert belief(line) == (pytest.approx(0.8 * 1.0), PRIOR)


@pytest.mark.parametrize(
    ("sizes", "varied"),
    [((10, 11), False), ((10, 11.5), True), ((1000, 1050), False), ((1000, 1053), True)],
)
def test_sizes_vary_when_they_spread_over_more_than_one_and_five_percent(sizes, varied):
    line = line_of(*((size, 3.0 * size + 7.0) for size in sizes))
    if varied:
        assert belief(line) == (pytest.approx(7.0), pytest.approx(3.0))
    else:
        assert line.slope == PRIOR


def test_varied_sizes_are_fitted_by_least_squares():
    line = line_of((1, 2.0), (3, 7.0), (5, 9.0))
    # By hand: means 3 and 6; covariance 14, variance 8.
    assert belief(line) == (pytest.approx(6.0 - 1.75 * 3), pytest.approx(1.75))


def test_a_falling_line_becomes_the_mean():
    line = line_of((1, 9.0), (5, 3.0))
    assert belief(line) == (6.0, 0.0)


def test_a_negative_intercept_becomes_a_line_through_nothing():
    line = line_of((2, 1.0), (4, 9.0))
    assert belief(line) == (0.0, pytest.approx((2 * 1.0 + 4 * 9.0) / (4 + 16)))


def test_only_the_last_32_samples_count():
    old = [(size, 100.0 * size) for size in range(1, 50)]
    new = [(size, 3.0 * size + 1.0) for size in range(10, 42)]
    assert belief(line_of(*old, *new)) == (pytest.approx(1.0), pytest.approx(3.0))
    thirty_one = line_of(*old, *new[1:])
    assert thirty_one.slope != pytest.approx(3.0)


def test_a_window_that_no_longer_varies_goes_back_to_the_prior_slope():
    line = line_of((1, 10.0), *[(50, 110.0)] * 31)
    fixed = line.fixed
    assert line.slope != PRIOR
    line.observe(50, 110.0)  # the small one leaves the window
    assert belief(line) == (pytest.approx(0.8 * fixed + 0.2 * 10.0), PRIOR)


class EagerLine:
    """The same rules, carried out at every sample."""

    def __init__(self, prior: float) -> None:
        self.prior = prior
        self.samples: list[tuple[float, float]] = []
        self.fixed, self.slope = 0.0, prior

    def observe(self, size: float, seconds: float) -> None:
        self.samples.append((size, seconds))
        window = self.samples[-32:]
        sizes = [size for size, _ in window]
        if max(sizes) - min(sizes) <= max(1, 0.05 * max(sizes)):
            self.slope = self.prior
            self.fixed = 0.8 * self.fixed + 0.2 * max(0.0, seconds - self.prior * size)
            return
        n = len(window)
        mean_size, mean_seconds = sum(sizes) / n, sum(t for _, t in window) / n
        upper = sum((s - mean_size) * (t - mean_seconds) for s, t in window)
        lower = sum((s - mean_size) ** 2 for s in sizes)
        self.slope = upper / lower
        self.fixed = mean_seconds - self.slope * mean_size
        if self.slope < 0:
            self.fixed, self.slope = mean_seconds, 0.0
        elif self.fixed < 0:
            self.fixed = 0.0
            self.slope = sum(s * t for s, t in window) / sum(s * s for s in sizes)


samples = st.tuples(
    st.one_of(st.sampled_from([100, 101, 103]), st.integers(1, 5000)), st.integers(0, 20000)
)


@given(
    st.lists(
        st.one_of(
            samples,
            samples,
            st.tuples(samples, st.integers(2, 50)),  # the same sample, many times
            st.integers(1, 5000),  # an estimate in between
        ),
        max_size=60,
    )
)
@examples(200)
def test_learning_when_asked_is_learning_at_once(calls):
    lazy, eager = Line(PRIOR), EagerLine(PRIOR)
    seen = 0

    def agree(size: int) -> None:
        assert lazy.estimate(size) == pytest.approx(eager.fixed + eager.slope * size, rel=1e-9)
        assert lazy.fixed == pytest.approx(eager.fixed, rel=1e-9, abs=1e-9)
        assert lazy.slope == pytest.approx(eager.slope, rel=1e-9, abs=1e-12)
        assert lazy.fixed >= 0
        assert lazy.slope >= 0

    for call in calls:
        if isinstance(call, int):
            agree(call)
            continue
        (size, seconds), times = call if isinstance(call[0], tuple) else (call, 1)
        for _ in range(times):
            lazy.observe(float(size), float(seconds))
            eager.observe(size, seconds)
        seen += times
    agree(1000)
    assert lazy.seen == seen


def test_what_nobody_asked_about_is_bounded_and_not_lost():
    lazy, eager = Line(PRIOR), EagerLine(PRIOR)
    for turn in range(10_000):
        seconds = 300.0 + turn % 7
        lazy.observe(100, seconds)
        eager.observe(100, seconds)
    assert lazy.fixed == pytest.approx(eager.fixed)


# ---------------------------------------------------------------- all lines


BYTES = 1000
GIB = 1 << 30


def model(**options: float) -> CostModel:
    return CostModel(RestoreOptions(**options), BYTES)


def test_the_priors():
    belief = model()
    assert belief.recompute_seconds(1000) == pytest.approx(50e-6 * 1000)
    assert belief.transfer_seconds("d2h", GIB) == pytest.approx(1 / 12)
    assert belief.transfer_seconds("h2d", GIB) == pytest.approx(1 / 12)
    assert belief.transfer_seconds("h2s", GIB) == pytest.approx(1 / 3)
    assert belief.transfer_seconds("s2h", GIB) == pytest.approx(1 / 3)
    other = model(
        prior_recompute_us_per_token=10.0, prior_host_gib_per_s=2.0, prior_storage_gib_per_s=0.5
    )
    assert other.recompute_seconds(1000) == pytest.approx(0.01)
    assert other.transfer_seconds("h2d", GIB) == pytest.approx(0.5)
    assert other.transfer_seconds("s2h", GIB) == pytest.approx(2.0)


def test_reads_and_writes_are_learned_apart():
    belief = model()
    belief.copies["h2s"].observe(GIB, 0.9)
    assert belief.transfer_seconds("s2h", GIB) == pytest.approx(1 / 3)
    assert belief.transfer_seconds("h2s", GIB) > 0.4


def test_loads_borrow_what_write_backs_have_shown_until_they_have_samples():
    belief = model()
    belief.copies["d2h"].observe(GIB, 0.9)
    borrowed = belief.transfer_seconds("d2h", GIB)
    assert borrowed > 1 / 12
    assert belief.transfer_seconds("h2d", GIB) == borrowed
    belief.copies["h2d"].observe(GIB, 0.1)
    own = 0.2 * (0.1 - 1 / 12) + 1 / 12
    assert belief.transfer_seconds("h2d", GIB) == pytest.approx(own)
    assert belief.transfer_seconds("d2h", GIB) == borrowed


def test_write_backs_do_not_borrow():
    belief = model()
    belief.copies["h2d"].observe(GIB, 0.9)
    assert belief.transfer_seconds("d2h", GIB) == pytest.approx(1 / 12)


@given(st.integers(1, 10_000), st.lists(st.integers(1, 10**9), max_size=3))
@examples(50)
def test_the_benefit_is_recompute_less_a_tenth_more_than_the_copies(tokens, times):
    belief = model()
    for direction, took_ns in zip(("d2h", "s2h", "h2d"), times, strict=False):
        belief.copies[direction].observe(5000, took_ns * 1e-9)
    compute = belief.recompute_seconds(tokens)
    load = belief.transfer_seconds("h2d", tokens * BYTES)
    read = belief.transfer_seconds("s2h", tokens * BYTES)
    assert belief.benefit_seconds(tokens, ("h2d",)) == pytest.approx(compute - 1.1 * load)
    both = belief.benefit_seconds(tokens, ("s2h", "h2d"))
    assert both == pytest.approx(compute - 1.1 * (read + load))


# ---------------------------------------------------------------- policies


def hits(device: int, host: int, storage: int) -> Match:
    return Match(Node(0, 1, None, 0, 0), max(device, host, storage), device, host, storage)


def policy(name: str, belief: CostModel | None = None, page: int = 4, **options: int):
    chosen = RestoreOptions(name, **options)  # type: ignore[arg-type]
    return make_policy(chosen, page, belief if belief is not None else CostModel(chosen, BYTES))


def test_always_takes_all_and_never_nothing():
    assert policy("always")(hits(1, 5, 3)) == (5, "always")
    assert policy("always")(hits(1, 3, 5)) == (5, "always")
    assert policy("never")(hits(1, 3, 5)) == (1, "never")


@pytest.mark.parametrize(("goal", "taken"), [(4, False), (5, True), (9, True)])
def test_a_threshold_counts_tokens_beyond_the_l1_hit(goal, taken):
    choice = policy("threshold", threshold_tokens=16)(hits(1, goal, 0))
    assert choice == ((goal, "threshold") if taken else (1, "below_threshold"))


def cost_belief(recompute_us: float, host: float, storage: float) -> CostModel:
    return model(
        prior_recompute_us_per_token=recompute_us,
        prior_host_gib_per_s=host,
        prior_storage_gib_per_s=storage,
    )


@given(
    st.tuples(st.integers(0, 9), st.integers(0, 9), st.integers(0, 9)),
    st.sampled_from([0.001, 0.05, 1.0, 50.0]),
    st.sampled_from([0.01, 0.05, 1.0]),
    st.sampled_from([0.01, 0.05, 1.0]),
)
@examples(200)
def test_cost_takes_the_tier_with_the_largest_gain(depths, recompute_us, host, storage):
    belief = cost_belief(recompute_us, host, storage)
    n1, n2, n3 = depths
    gains = {n1: 0.0}
    if n2 > n1:
        gains[n2] = belief.benefit_seconds((n2 - n1) * 4, ("h2d",))
    if n3 > max(n1, n2):
        gains[n3] = belief.benefit_seconds((n3 - n1) * 4, ("s2h", "h2d"))
    goal, reason = policy("cost", belief)(hits(*depths))
    assert gains[goal] == max(gains.values())
    assert reason == ("cost" if goal > n1 else "recompute_cheaper")


def test_every_nth_refusal_is_a_probe():
    belief = cost_belief(0.001, 0.01, 0.01)
    choose = policy("cost", belief, probe_every=3)
    reasons = [choose(hits(0, 2, 4)).reason for _ in range(7)]
    assert reasons == ["recompute_cheaper", "recompute_cheaper", "probe"] * 2 + [
        "recompute_cheaper"
    ]
    assert choose(hits(0, 2, 4)) == (0, "recompute_cheaper")
    assert choose(hits(0, 2, 4)) == (4, "probe")
    never = policy("cost", belief)
    assert {never(hits(0, 2, 4)).reason for _ in range(50)} == {"recompute_cheaper"}


def test_options_are_checked_where_they_are_made():
    options = RestoreOptions()
    for name in (
        "prior_recompute_us_per_token",
        "prior_host_gib_per_s",
        "prior_storage_gib_per_s",
    ):
        with pytest.raises(Exception, match=name):
            replace(options, **{name: 0.0})
