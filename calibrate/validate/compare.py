"""How far a prediction was off: each figure of the runs on hardware beside the simulated one.

    error      = (simulated - hardware) / hardware, signed, in percent; hardware is the mean of
                 its runs
    difference = (second run - first) / hardware: what the machine does not repeat itself

Shares of the prompt tokens are compared in percentage points. Refuses to judge; see
`calibrate.validate.limits`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from calibrate.validate.runs import Played, by_request
from report.rows import spread_ms
from scenario.measurement import quantile

SOURCES = ("device", "host", "storage", "computed")
SPREADS = ("ttft_ms", "tpot_ms", "e2e_ms")
STATISTICS = ("mean", "p50", "p90", "p99")
RATES = ("requests_per_s", "prompt_tokens_per_s", "output_tokens_per_s")


class Figure(NamedTuple):
    """One figure in all runs; None where a run has no such value (no TPOT of one token)."""

    hardware: tuple[float | None, ...]
    simulated: float | None

    @property
    def mean(self) -> float | None:
        """Of the runs on hardware."""
        known = [value for value in self.hardware if value is not None]
        return sum(known) / len(known) if known else None

    @property
    def error_percent(self) -> float | None:
        """Of the simulation, signed; None where there is nothing to divide by."""
        return _percent(self.simulated, self.mean, self.mean)

    @property
    def runs_percent(self) -> float | None:
        """The second run on hardware against the first; None where there is one run."""
        if len(self.hardware) < 2:
            return None
        return _percent(self.hardware[1], self.hardware[0], self.mean)


class Share(NamedTuple):
    """Prompt tokens from one source, of `prompt_tokens` in each run."""

    hardware: tuple[int, ...]
    simulated: int
    prompt_tokens: int

    @property
    def points(self) -> float:
        """Simulated less hardware, in percentage points of the prompt tokens."""
        mean = sum(self.hardware) / len(self.hardware)
        return 100 * (self.simulated - mean) / max(self.prompt_tokens, 1)

    @property
    def runs_points(self) -> float | None:
        """The second run less the first."""
        if len(self.hardware) < 2:
            return None
        return 100 * (self.hardware[1] - self.hardware[0]) / max(self.prompt_tokens, 1)

    @property
    def figure(self) -> Figure:
        """The tokens as they are."""
        return Figure(tuple(map(float, self.hardware)), float(self.simulated))


def figures(hardware: Sequence[Played], simulated: Played) -> dict[str, Figure]:
    """TTFT, TPOT and end to end by mean and percentile (ms), and what was done each second."""
    found: dict[str, Figure] = {}
    for spread in SPREADS:
        for statistic in STATISTICS:
            found[f"{spread.removesuffix('_ms')}_{statistic}"] = Figure(
                tuple(_number(run.summary[spread][statistic]) for run in hardware),
                _number(simulated.summary[spread][statistic]),
            )
    for rate in RATES:
        name = "throughput" if rate == "requests_per_s" else rate.removesuffix("_per_s")
        found[name] = Figure(
            tuple(_number(run.summary["throughput"][rate]) for run in hardware),
            _number(simulated.summary["throughput"][rate]),
        )
    return found


def shares(
    hardware: Sequence[Played], simulated: Played, without: frozenset[int] = frozenset()
) -> dict[str, Share]:
    """Prompt tokens by source; `without` some requests, which still count as prompts."""
    prompts = sum(simulated.columns["prompt_tokens"])
    return {
        source: Share(
            tuple(_tokens(run, source, without) for run in hardware),
            _tokens(simulated, source, without),
            prompts,
        )
        for source in SOURCES
    }


class RequestError(NamedTuple):
    """TTFT of one request, in ms; `runs_ms` is what the two runs on hardware differ in."""

    request: int
    hardware_ms: float
    simulated_ms: float
    runs_ms: float | None

    @property
    def error_ms(self) -> float:
        """Simulated less hardware."""
        return self.simulated_ms - self.hardware_ms


def request_errors(hardware: Sequence[Played], simulated: Played) -> list[RequestError]:
    """TTFT of each request that got a first token in every run, in the order of the trace."""
    times = [by_request(run.columns, "ttft_ns") for run in (*hardware, simulated)]
    errors: list[RequestError] = []
    for request in sorted(times[-1]):
        of_runs = [each.get(request) for each in times]
        known = [value / 1e6 for value in of_runs if value is not None]
        if len(known) < len(of_runs):
            continue
        *real, predicted = known
        between = real[1] - real[0] if len(real) > 1 else None
        errors.append(RequestError(request, sum(real) / len(real), predicted, between))
    return errors


def errors_summary(errors: Sequence[RequestError]) -> dict[str, object]:
    """How far single requests were off, signed and absolute, and how far the two runs were."""
    between = [each.runs_ms for each in errors if each.runs_ms is not None]
    return {
        "compared": len(errors),
        "ttft_error_ms": _spread([each.error_ms for each in errors]),
        "ttft_absolute_error_ms": _spread([abs(each.error_ms) for each in errors]),
        "ttft_absolute_runs_difference_ms": _spread([abs(each) for each in between]),
    }


def ttft_parts(run: Played) -> dict[str, float]:
    """Mean TTFT of a run in its parts, in ms: they add up to it.

    queue: arrival to admission; restore: the wait for pages from below; turn: until its first
    chunk; prefill: first chunk to first token.
    """
    columns = run.columns
    names = ("queue_ns", "restore_ns", "prefill_ns", "ttft_ns")
    sums = dict.fromkeys(("queue", "restore", "turn", "prefill"), 0)
    count = 0
    for queue, restore, prefill, ttft in zip(*(columns[name] for name in names), strict=True):
        if ttft is None:
            continue
        count += 1
        sums["queue"] += queue
        sums["restore"] += restore
        sums["prefill"] += prefill
        sums["turn"] += ttft - queue - restore - prefill
    return {name: total / max(count, 1) / 1e6 for name, total in sums.items()}


def sorted_ttft_ms(run: Played) -> list[float]:
    """All TTFTs of a run, rising."""
    return sorted(each / 1e6 for each in run.columns["ttft_ns"] if each is not None)


def same_requests(hardware: Sequence[Played], simulated: Played) -> bool:
    """Whether all runs served the same requests with the same prompts."""
    of_runs = [
        by_request(run.columns, "prompt_tokens")
        for run in (*hardware, simulated)
    ]  # fmt: skip
    return all(each == of_runs[0] for each in of_runs)


def _tokens(run: Played, source: str, without: frozenset[int]) -> int:
    column = by_request(run.columns, f"{source}_tokens")
    return sum(value for request, value in column.items() if request not in without)


def _number(value: object) -> float | None:
    return float(value) if isinstance(value, int | float) else None


def _percent(value: float | None, base: float | None, of: float | None) -> float | None:
    if value is None or base is None or not of:
        return None
    return 100 * (value - base) / of


def _spread(values: Sequence[float]) -> Mapping[str, Any]:
    """p50, p90, p99 and mean of values that may be negative."""
    if not values:
        return spread_ms([])
    ordered = sorted(values)
    return {
        **{f"p{percent}": quantile(ordered, percent / 100) for percent in (50, 90, 99)},
        "mean": sum(ordered) / len(ordered),
    }
