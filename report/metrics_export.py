"""A prediction in Prometheus' text format under SGLang's names: what the server's /metrics would
give at the end of the run, for the dashboards that people have.

Counters that this version cannot predict are left out.
"""

from __future__ import annotations

import os
from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from hicache.errors import InputError
from report.counters import COUNTERS, EDGES_S, SPREADS, TOKEN_EDGES_S, Spread
from report.prometheus import sample_line
from report.rows import known_ns


def check_place(path: str) -> None:
    """Raises InputError where a file could not be written, before a long run."""
    folder = os.path.dirname(os.path.abspath(path))
    if not os.path.isdir(folder):
        raise InputError(f"--prometheus {path}: no such folder: {folder}")
    if os.path.isdir(path):
        raise InputError(f"--prometheus {path}: it is a folder")


def write_metrics(path: str, summary: Mapping[str, Any], columns: Mapping[str, Any]) -> None:
    """Write the file, whole or not at all. Raises InputError where it cannot be."""
    text = "\n".join(metrics_lines(summary, columns)) + "\n"
    unfinished = f"{path}.{os.getpid()}.unfinished"
    try:
        with open(unfinished, "w", encoding="utf-8") as opened:
            opened.write(text)
        os.replace(unfinished, path)
    except OSError as error:
        raise InputError(f"--prometheus {path}: {error.strerror}") from None


def metrics_lines(summary: Mapping[str, Any], columns: Mapping[str, Any]) -> Iterator[str]:
    """The lines: `columns` are those of requests.parquet."""
    labels = {"model_name": str(summary["model"])}
    said = ""
    for counter in COUNTERS:
        value = counter.predicted(summary)
        # The sum of a histogram whose buckets are not known is no metric of its own.
        if value is None or counter.name.endswith("_sum"):
            continue
        name = f"sglang:{counter.name}"
        if name != said:
            yield f"# HELP {name} {counter.help}"
            yield f"# TYPE {name} {counter.kind}"
            said = name
        more = {key: text.rstrip("*") for key, text in counter.labels}
        yield sample_line(name, labels | more, value)
    yield "# HELP sglang:cache_hit_rate Hit tokens over prompt tokens, of the whole run."
    yield "# TYPE sglang:cache_hit_rate gauge"
    yield sample_line("sglang:cache_hit_rate", labels, float(summary["cache_hit_rate"]))
    if summary["mode"] == "timed":
        for spread in SPREADS:
            yield from _histogram(spread, labels, columns[spread.column])


def _histogram(spread: Spread, labels: dict[str, str], times_ns: Sequence[Any]) -> Iterator[str]:
    edges = TOKEN_EDGES_S if spread.key == "tpot_ms" else EDGES_S
    known = known_ns(times_ns)
    name = f"sglang:{spread.name}"
    yield f"# HELP {name} {spread.help}"
    yield f"# TYPE {name} histogram"
    for edge in edges:
        below = bisect_left(known, int(edge * 1e9) + 1)
        yield sample_line(f"{name}_bucket", labels | {"le": f"{edge:g}"}, below)
    yield sample_line(f"{name}_bucket", labels | {"le": "+Inf"}, len(known))
    yield sample_line(f"{name}_count", labels, len(known))
    yield sample_line(f"{name}_sum", labels, sum(known) / 1e9)
