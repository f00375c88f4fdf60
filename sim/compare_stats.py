"""Differences between two runs of the same requests, with bootstrap intervals over sessions.

    unit      what is drawn with replacement: a session, with all its requests. Where fewer than
              half of the requests belong to one, runs of consecutive requests take their place
              (about as many runs as each is long), since neighbours share queue and cache.
    draw      the same units for both runs, within each trace apart (so it is paired)
    interval  2.5 % and 97.5 % of the differences of the draws (percentile bootstrap, Efron)

Throughput is a sum over requests, too: each is given the time from the completion before it to its
own, so that the times of all add up to the run. Percentiles are those of the summary: linear
between the closest ranks. Refuses to know what a policy is.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

# Of pandas, which has no types that a checker could use.
DataFrame = Any

CONFIDENCE = 0.95
# Fewer units than this say little about others like them.
FEW_UNITS = 10
_CELLS_AT_ONCE = 4_000_000
_MS = 1e6


class Metric(NamedTuple):
    """One number of a run. `better`: the sign of a difference that one would like to see."""

    key: str
    title: str
    unit: str
    better: int


METRICS = (
    Metric("hit_rate", "hit rate", "points", +1),
    Metric("ttft_mean_ms", "mean TTFT", "ms", -1),
    Metric("ttft_p50_ms", "TTFT p50", "ms", -1),
    Metric("ttft_p90_ms", "TTFT p90", "ms", -1),
    Metric("ttft_p99_ms", "TTFT p99", "ms", -1),
    Metric("tpot_mean_ms", "mean TPOT", "ms", -1),
    Metric("e2e_mean_ms", "mean end to end", "ms", -1),
    Metric("requests_per_s", "requests a second", "/s", +1),
    Metric("output_tokens_per_s", "output tokens a second", "/s", +1),
)
_PERCENTS = {"ttft_p50_ms": 50, "ttft_p90_ms": 90, "ttft_p99_ms": 99}


@dataclass(frozen=True, slots=True)
class Difference:
    """`metric` of both runs. `low`, `high`: its interval, None where one unit allows none."""

    metric: Metric
    base: float
    other: float
    low: float | None
    high: float | None

    @property
    def value(self) -> float:
        """The other run's less the base's."""
        return self.other - self.base

    @property
    def sign(self) -> int:
        """+1 clearly better, -1 clearly worse, 0: its interval holds 0, or there is none."""
        if self.low is None or self.high is None or self.low <= 0 <= self.high:
            return 0
        return self.metric.better * (1 if self.low > 0 else -1)


def completion_gaps_ns(rows: DataFrame) -> np.ndarray:
    """Each request's share of the run's time: from the completion before it (of the first: the
    first arrival) to its own. int64 of shape (requests,); 0 where there was no last token.
    """
    arrivals = rows["arrival_ns"].to_numpy(np.int64)
    took = rows["e2e_ns"].to_numpy(float, na_value=np.nan)
    gaps = np.zeros(len(rows), np.int64)
    ended = np.flatnonzero(~np.isnan(took))
    if len(ended):
        ends = arrivals[ended] + took[ended].astype(np.int64)
        order = np.argsort(ends, kind="stable")
        gaps[ended[order]] = np.diff(ends[order], prepend=arrivals.min())
    return gaps


def units_of(sessions: Sequence[str]) -> tuple[np.ndarray, str]:
    """The unit of each request, int64 of shape (requests,), numbered from 0; and what a unit is."""
    count = len(sessions)
    if 2 * sum(map(bool, sessions)) >= count:
        numbers: dict[Any, int] = {}
        # A request of no session is a unit of its own.
        names = [name or (place,) for place, name in enumerate(sessions)]
        return np.array([numbers.setdefault(name, len(numbers)) for name in names]), "session"
    length = max(1, round(count**0.5))
    return np.arange(count) // length, f"{length} consecutive requests"


def differences(pairs: DataFrame, *, timed: bool, resamples: int, seed: int) -> list[Difference]:
    """Every metric's difference over `pairs` (`sim.compare_pairs`), in the order of METRICS.

    Untimed runs have a hit rate and nothing else. `resamples` draws from `seed`.
    """
    metrics = [each for each in METRICS if timed or each.key == "hit_rate"]
    _, units = np.unique(pairs["unit"].to_numpy(), return_inverse=True)
    whole = np.ones((1, int(units.max()) + 1 if len(units) else 0), np.int64)
    sides = [_Side(pairs, side, units, metrics) for side in ("base", "other")]
    full = [side.values(whole) for side in sides]
    drawn: list[np.ndarray] = []
    if whole.shape[1] > 1:
        for weights in _draws(pairs, units, resamples, seed):
            base, other = (side.values(weights) for side in sides)
            drawn.append(other - base)
    edge = (1 - CONFIDENCE) / 2
    found: list[Difference] = []
    spread = np.concatenate(drawn) if drawn else None
    for place, metric in enumerate(metrics):
        low = high = None
        if spread is not None:
            low, high = (float(each) for each in np.quantile(spread[:, place], (edge, 1 - edge)))
        found.append(
            Difference(metric, float(full[0][0, place]), float(full[1][0, place]), low, high)
        )
    return found


def _draws(pairs: DataFrame, units: np.ndarray, resamples: int, seed: int) -> Iterator[np.ndarray]:
    """How often each unit was drawn: int64 arrays of shape (draws, units), `resamples` in all."""
    random = np.random.Generator(np.random.PCG64(seed))
    traces = pairs["trace"].to_numpy()
    # A unit lies in one trace.
    first = np.zeros(int(units.max()) + 1, np.int64)
    first[units[::-1]] = np.arange(len(units))[::-1]
    _, strata = np.unique(traces[first], return_inverse=True)
    places = [np.flatnonzero(strata == each) for each in range(int(strata.max()) + 1)]
    at_once = max(1, _CELLS_AT_ONCE // max(len(units), 1))
    done = 0
    while done < resamples:
        count = min(at_once, resamples - done)
        weights = np.zeros((count, len(first)), np.int64)
        for place in places:
            chances = np.full(len(place), 1 / len(place))
            weights[:, place] = random.multinomial(len(place), chances, size=count)
        yield weights
        done += count


class _Side:
    """One run's columns, summed over units, and its sorted TTFT."""

    def __init__(
        self, pairs: DataFrame, side: str, units: np.ndarray, metrics: Sequence[Metric]
    ) -> None:
        self._metrics = metrics
        self._units = units
        count = int(units.max()) + 1 if len(units) else 0

        def total(values: np.ndarray) -> np.ndarray:
            return np.bincount(units, weights=values, minlength=count)

        def column(name: str) -> np.ndarray:
            return pairs[f"{name}_{side}"].to_numpy(float, na_value=np.nan)

        def mean(name: str) -> tuple[np.ndarray, np.ndarray]:
            values = column(name) / _MS
            known = ~np.isnan(values)
            return total(np.where(known, values, 0.0)), total(known.astype(float))

        prompts = pairs["prompt_tokens"].to_numpy(float)
        ratios = {"hit_rate": (total(100 * (prompts - column("computed_tokens"))), total(prompts))}
        if len(metrics) > 1:
            for key, name in (("ttft", "ttft_ns"), ("tpot", "tpot_ns"), ("e2e", "e2e_ns")):
                ratios[f"{key}_mean_ms"] = mean(name)
            seconds = total(column("gap_ns") / 1e9)
            ended = (~np.isnan(column("e2e_ns"))).astype(float)
            ratios["requests_per_s"] = (total(ended), seconds)
            ratios["output_tokens_per_s"] = (total(column("generated_tokens")), seconds)
            ttft = column("ttft_ns") / _MS
            order = np.argsort(ttft, kind="stable")  # NaN last
            order = order[: len(ttft) - int(np.isnan(ttft).sum())]
            self._ttft, self._ttft_units = ttft[order], units[order]
        self._ratios = ratios

    def values(self, weights: np.ndarray) -> np.ndarray:
        """The metrics of each draw, float64 of shape (draws, metrics)."""
        values = np.full((len(weights), len(self._metrics)), np.nan)
        for place, metric in enumerate(self._metrics):
            if metric.key in self._ratios:
                above, below = (weights @ each for each in self._ratios[metric.key])
                values[:, place] = np.divide(above, below, out=np.zeros_like(above),
                                             where=below > 0)  # fmt: skip
        wanted = [place for place, each in enumerate(self._metrics) if each.key in _PERCENTS]
        if wanted and len(self._ttft):
            counts = np.cumsum(weights[:, self._ttft_units], axis=1)
            for row, upto in enumerate(counts):
                for place in wanted:
                    percent = _PERCENTS[self._metrics[place].key]
                    values[row, place] = _percentile(self._ttft, upto, percent)
        return values


def _percentile(ordered: np.ndarray, upto: np.ndarray, percent: float) -> float:
    """As `report.rows.percentile` of `ordered` with repetitions, `upto` counted so far."""
    last = int(upto[-1]) - 1
    if last < 0:
        return 0.0
    place = last * percent / 100
    below = int(place)
    ranks = np.searchsorted(upto, [below, min(below + 1, last)], side="right")
    low, high = ordered[ranks]
    return float(low + (high - low) * (place - below))
