"""What a server counted beside what was predicted: rows, and these as a table or as JSON.

What only one side knows is shown as unknown on the other. Counts are of the whole scrape, which
should cover the very requests that were replayed: a scrape before and one after.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from typing import Any, NamedTuple

from report.counters import COUNTERS, GAUGES, SPREADS, Counter, Spread
from report.prometheus import (
    Labels,
    Scrape,
    at_rank,
    filtered,
    histogram,
    label_values,
    of_ranks,
    quantile,
    since,
    wanted_labels,
)
from report.rows import known_ns
from scenario.results import Result

QUANTILES = (0.5, 0.9, 0.99)


class Row(NamedTuple):
    """One line. `between`: the edges of a histogram's bucket, where no more than those is known of
    what was measured; the upper one may be infinite.
    """

    name: str
    predicted: float | None
    measured: float | None
    between: tuple[float, float] | None = None

    @property
    def difference(self) -> float | None:
        """Predicted over measured, less 1; None if either is not known, or nothing was measured."""
        if self.predicted is None or not self.measured:
            return None
        return self.predicted / self.measured - 1

    @property
    def fits(self) -> bool | None:
        """Whether the prediction lies in the bucket; None without one."""
        if self.between is None or self.predicted is None:
            return None
        low, high = self.between  # a bucket has its upper edge, and the first one 0, too
        return (low < self.predicted or not low) and self.predicted <= high


class Comparison(NamedTuple):
    """Rows, and sentences on what they are of."""

    rows: list[Row]
    notes: list[str]


def compare(result: Result, later: Scrape, earlier: Scrape | None, labels: list[str]) -> Comparison:
    """The rows for a result and a scrape, less an earlier one; only of series with `labels`
    (NAME=VALUE). Raises InputError for labels that no series has and for counts that fell.
    """
    wanted = wanted_labels(labels)
    scrape = filtered(later, wanted)
    if earlier is not None:
        scrape = since(scrape, earlier, GAUGES)
    summary = result.summary
    notes = [
        f"{len(values)} values of {name} together ({', '.join(values)}); --label picks one"
        for name in ("model_name", "instance", "engine_type", "dp_rank")
        if len(values := label_values(scrape, name)) > 1 and name not in wanted
    ]
    rows = [Row(each.shown, each.predicted(summary), _measured(each, scrape)) for each in COUNTERS]
    rows[6:6] = _rates(summary, scrape)
    for spread in SPREADS:
        rows += _spread_rows(spread, result, scrape)
    asked, served = summary.get("requests"), _total(scrape, "num_requests_total")
    if served is not None and asked != served:
        notes.append(
            f"the server ended {served:,.0f} requests and the replay {asked:,}: counts are not of "
            "the same requests"
        )
    known = [row for row in rows if (row.predicted, row.measured, row.between) != (None,) * 3]
    return Comparison(known, notes)


def table_lines(comparison: Comparison) -> Iterator[str]:
    """The comparison as text."""
    table = [("", "predicted", "measured", "difference")]
    for row in comparison.rows:
        table.append((row.name, _shown(row.predicted), _measured_text(row), _difference_text(row)))
    widths = [max(len(row[column]) for row in table) for column in range(4)]
    for row in table:
        name, *numbers = row
        shown = "  ".join(f"{text:>{widths[at + 1]}}" for at, text in enumerate(numbers))
        yield f"{name:<{widths[0]}}  {shown}".rstrip()
    for note in comparison.notes:
        yield f"note: {note}"


def json_text(comparison: Comparison) -> str:
    """The comparison as JSON; an infinite edge is null."""
    rows: list[dict[str, Any]] = [
        {
            "name": row.name,
            "predicted": row.predicted,
            "measured": row.measured,
            "between": None if row.between is None else [_finite(edge) for edge in row.between],
            "difference": row.difference,
        }
        for row in comparison.rows
    ]
    return json.dumps({"rows": rows, "notes": comparison.notes}, indent=1)


def _measured(counter: Counter, scrape: Scrape) -> float | None:
    series = {
        labels: value
        for labels, value in scrape.series.get(counter.name, {}).items()
        if _has(dict(labels), counter.labels)
    }
    # A counter with such labels, of which this value never came up, is 0.
    if not series:
        return 0.0 if counter.labels and scrape.series.get(counter.name) else None
    return of_ranks(series, counter.ranks)


def _has(labels: dict[str, str], wanted: Labels) -> bool:
    for name, value in wanted:
        has = labels.get(name, "")
        if not (has.startswith(value[:-1]) if value.endswith("*") else has == value):
            return False
    # Other pools than that of the KV cache hold no tokens of ours.
    return labels.get("pool", "kv") == "kv"


def _total(scrape: Scrape, name: str) -> float | None:
    series = scrape.series.get(name)
    return of_ranks(series, "largest") if series else None


def _rates(summary: dict[str, Any], scrape: Scrape) -> list[Row]:
    """Computed tokens and the hit rate; the server's own gauge is of its latest batches only."""
    prompt, cached = _total(scrape, "prompt_tokens_total"), _total(scrape, "cached_tokens_total")
    computed = rate = None
    if prompt:
        computed = prompt - (cached or 0.0)
        rate = (cached or 0.0) / prompt
    return [
        Row("computed tokens", summary.get("computed_tokens"), computed),
        Row("cached over prompt tokens", summary.get("cache_hit_rate"), rate),
    ]


def _spread_rows(spread: Spread, result: Result, scrape: Scrape) -> Iterator[Row]:
    """Quantiles are those of the rows, by the histogram's rule: interpolated ones, as a summary has
    them, may lie in another bucket than the very same times.
    """
    summarised = result.summary.get(spread.key) or {}
    times = known_ns(result.column(spread.column)) if summarised else []
    buckets = histogram(scrape, spread.name)
    for share in QUANTILES:
        predicted = at_rank(times, share) / 1e6 if times else None
        edges = quantile(buckets, share)
        ms = None if edges is None else (edges[0] * 1e3, edges[1] * 1e3)
        yield Row(f"{spread.shown} p{share * 100:g} ms", predicted, None, ms)
    total, count = _total(scrape, f"{spread.name}_sum"), _total(scrape, f"{spread.name}_count")
    mean = None if total is None or not count else total / count * 1e3
    yield Row(f"{spread.shown} mean ms", summarised.get("mean"), mean)


def _finite(edge: float) -> float | None:
    return edge if math.isfinite(edge) else None


def _shown(value: float | None) -> str:
    if value is None:
        return "-"
    return f"{value:,.0f}" if value == int(value) or value >= 1000 else f"{value:.4g}"


def _measured_text(row: Row) -> str:
    if row.between is None:
        return _shown(row.measured)
    low, high = row.between
    return f"over {_shown(low)}" if math.isinf(high) else f"{_shown(low)} .. {_shown(high)}"


def _difference_text(row: Row) -> str:
    if row.fits is not None:
        return "within" if row.fits else "outside"
    if row.predicted is not None and row.predicted == row.measured:
        return "0 %"
    return "-" if row.difference is None else f"{100 * row.difference:+.1f} %"
