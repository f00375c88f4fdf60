"""Differences and their intervals: exact on the whole, and right about what was drawn."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

from sim.compare_stats import (
    METRICS,
    Metric,
    _percentile,
    completion_gaps_ns,
    differences,
    units_of,
)


def pairs_of(base_ms: np.ndarray, other_ms: np.ndarray, unit: np.ndarray) -> pd.DataFrame:
    """Pairs of one trace in which only TTFT differs."""
    count = len(base_ms)
    table = pd.DataFrame({"trace": ["t"] * count, "unit": unit, "prompt_tokens": [1000] * count})
    for side, times in (("base", base_ms), ("other", other_ms)):
        table[f"ttft_ns_{side}"] = times * 1e6
        table[f"e2e_ns_{side}"] = times * 2e6
        table[f"tpot_ns_{side}"] = 1e6
        table[f"computed_tokens_{side}"] = 400
        table[f"generated_tokens_{side}"] = 10
        table[f"gap_ns_{side}"] = 10**9
    return table


@pytest.mark.parametrize("percent", [0, 1, 50, 90, 99, 100])
def test_a_percentile_of_repetitions_is_numpys(percent: int) -> None:
    random = np.random.default_rng(percent)
    for _ in range(20):
        values = np.sort(random.exponential(size=random.integers(1, 40)))
        weights = random.integers(0, 4, len(values))
        if weights.sum():
            expected = np.percentile(np.repeat(values, weights), percent)
            assert _percentile(values, np.cumsum(weights), percent) == pytest.approx(expected)


def test_the_gaps_between_completions_add_up_to_the_run() -> None:
    rows = pd.DataFrame({"arrival_ns": [100, 0, 50], "e2e_ns": [20, 500, None]})
    gaps = completion_gaps_ns(rows)
    # Ends at 120 and at 500; the third has none.
    assert gaps.tolist() == [120, 380, 0]


def test_units_are_sessions_where_half_of_the_requests_have_one() -> None:
    units, kind = units_of(["a", "b", "a", ""])
    assert (units.tolist(), kind) == ([0, 1, 0, 2], "session")
    units, kind = units_of(["a", "", "", "", "", "", "", "", ""])
    assert (units.tolist(), kind) == ([0, 0, 0, 1, 1, 1, 2, 2, 2], "3 consecutive requests")


def test_the_interval_covers_the_truth_about_as_often_as_it_says() -> None:
    """Sessions have a mean of their own, so that intervals over requests would be far too small."""
    random = np.random.default_rng(5)
    covered = spread = 0
    runs = 60
    unit = np.repeat(np.arange(60), 5)
    for run in range(runs):
        of_session = random.normal(10, 8, 60)[unit]
        base = random.normal(200, 20, 300)
        other = base + of_session + random.normal(0, 1, 300)
        found = differences(pairs_of(base, other, unit), timed=True, resamples=300, seed=run)
        mean = next(each for each in found if each.metric.key == "ttft_mean_ms")
        assert mean.low is not None
        assert mean.high is not None
        assert mean.value == pytest.approx(np.mean(other - base))
        covered += mean.low <= 10 <= mean.high
        spread += mean.high - mean.low
    assert 0.87 <= covered / runs <= 1
    # 2 * 1.96 * 8 / sqrt(60), had each session its mean.
    assert spread / runs == pytest.approx(4.05, rel=0.15)


def test_pairs_that_do_not_differ_have_an_interval_of_nothing() -> None:
    times = np.random.default_rng(1).exponential(100, 100)
    table = pairs_of(times, times, np.arange(100))
    for each in differences(table, timed=True, resamples=100, seed=0):
        assert (each.value, each.low, each.high, each.sign) == (0, 0, 0, 0)


def test_one_unit_allows_no_interval_and_is_not_called_a_difference() -> None:
    times = np.arange(1.0, 11)
    table = pairs_of(times, times * 2, np.zeros(10, int))
    for each in differences(table, timed=True, resamples=100, seed=0):
        assert (each.low, each.high, each.sign) == (None, None, 0)


def test_lower_times_and_higher_rates_are_better() -> None:
    times = np.random.default_rng(2).exponential(100, 400)
    table = pairs_of(times, times * 0.5, np.arange(400))
    table["computed_tokens_other"] = 100
    table["gap_ns_other"] = 5 * 10**8
    found = differences(table, timed=True, resamples=200, seed=0)
    assert [each.metric for each in found] == list(METRICS)
    assert {each.metric.key: each.sign for each in found} == {
        each.key: 0 if each.key == "tpot_mean_ms" else 1 for each in METRICS
    }
    assert [each.metric for each in differences(table, timed=False, resamples=100, seed=0)] == [
        Metric("hit_rate", "hit rate", "points", +1)
    ]


def test_the_same_seed_draws_the_same_and_chunks_do_not_matter(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    random = np.random.default_rng(3)
    table = pairs_of(random.exponential(9, 90), random.exponential(9, 90), np.arange(90) // 3)
    whole = differences(table, timed=True, resamples=150, seed=7)
    monkeypatch.setattr("sim.compare_stats._CELLS_AT_ONCE", 90 * 7)
    assert differences(table, timed=True, resamples=150, seed=7) == whole
    assert differences(table, timed=True, resamples=150, seed=8) != whole


def test_each_trace_keeps_its_share_in_every_draw() -> None:
    """Two traces a thousandfold apart: were they mixed, the interval would show it."""
    base = np.array([1.0] * 50 + [1000.0] * 50)
    table = pairs_of(base, base * 2, np.arange(100))
    table["trace"] = ["fast"] * 50 + ["slow"] * 50
    mean = differences(table, timed=True, resamples=100, seed=0)[1]
    assert (mean.low, mean.high) == (pytest.approx(500.5), pytest.approx(500.5))
