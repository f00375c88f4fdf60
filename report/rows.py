"""The rows of a run in the order of the trace, as columns, and the statistics over them.

Plain Python on purpose: importing numpy would cost more than a short run.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Sequence
from operator import itemgetter
from typing import cast

from hicache.metrics import ROW_FIELDS, Metrics
from scenario.columns import Columns

# Columns whose -1 means that there was no such moment.
_NULLABLE = frozenset({"ttft_ns", "e2e_ns", "recorded_tokens"})


class Rows:
    """One row a request that ended, sorted by its place in the trace."""

    def __init__(self, metrics: Metrics) -> None:
        numbers = metrics.column("request")
        order = sorted(range(len(numbers)), key=numbers.__getitem__)
        self._order = order if any(a != b for a, b in enumerate(order)) else None
        self._metrics = metrics
        self._cache: dict[str, array[int]] = {}

    def __len__(self) -> int:
        return len(self._metrics.reasons)

    def column(self, name: str) -> array[int]:
        """One of ROW_FIELDS."""
        if name not in self._cache:
            values = self._metrics.column(name)
            self._cache[name] = array("q", cast("Sequence[int]", self._sorted(values)))
        return self._cache[name]

    def tpot_ns(self) -> list[int | None]:
        """Mean time between two tokens of each request's output; None below two tokens."""
        return [
            (e2e - ttft) // (made - 1) if made > 1 and e2e >= 0 else None
            for e2e, ttft, made in zip(
                self.column("e2e_ns"),
                self.column("ttft_ns"),
                self.column("generated_tokens"),
                strict=True,
            )
        ]

    def columns(self) -> Columns:
        """The columns of requests.parquet."""
        columns: dict[str, Sequence[object]] = {}
        for name in ROW_FIELDS:
            values = self.column(name)
            if name in _NULLABLE and values and min(values) < 0:
                columns[name] = [value if value >= 0 else None for value in values]
            else:
                columns[name] = values
            if name == "ttft_ns":
                columns["tpot_ns"] = self.tpot_ns()
        columns["reason"] = list(self._sorted(self._metrics.reasons))
        columns["session"] = self.sessions()
        columns["turn"] = self.turns()
        return columns  # type: ignore[return-value]

    def sessions(self) -> list[str]:
        """The session of each request; "" belongs to none."""
        return list(cast("Sequence[str]", self._sorted(self._metrics.sessions)))

    def turns(self) -> list[int | None]:
        """The how-manieth request of its session each is, from 0; None outside sessions."""
        seen: dict[str, int] = {}
        turns: list[int | None] = []
        for session in self.sessions():
            if session:
                turns.append(seen.get(session, 0))
                seen[session] = seen.get(session, 0) + 1
            else:
                turns.append(None)
        return turns

    def _sorted(self, values: Sequence[object]) -> Sequence[object]:
        if self._order is None or len(values) < 2:
            return values
        return itemgetter(*self._order)(values)


def spread_ms(values_ns: Sequence[int | None]) -> dict[str, float | None]:
    """p50, p90, p99 (linear between the closest ranks) and the mean of times in ns, as ms.

    None values are left out; without any value all four are None.
    """
    known = known_ns(values_ns)
    if not known:
        return {"p50": None, "p90": None, "p99": None, "mean": None}
    spread: dict[str, float | None] = {
        f"p{percent}": percentile(known, percent) / 1e6 for percent in (50, 90, 99)
    }
    spread["mean"] = sum(known) / len(known) / 1e6
    return spread


def known_ns(values_ns: Iterable[int | None]) -> list[int]:
    """The times that there are, ascending: neither None nor -1."""
    return sorted(value for value in values_ns if value is not None and value >= 0)


def percentile(ordered: Sequence[int], percent: float) -> float:
    """The `percent`-th percentile of sorted values, linear between the closest ranks."""
    place = (len(ordered) - 1) * percent / 100
    below = int(place)
    above = min(below + 1, len(ordered) - 1)
    return ordered[below] + (ordered[above] - ordered[below]) * (place - below)
