"""Rows of requests grouped by their session, in plain Python: a replay does not import pandas."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

SUMMED = (
    "prompt_tokens", "device_tokens", "host_tokens", "storage_tokens", "computed_tokens",
    "generated_tokens",
)  # fmt: skip


def by_session(columns: Mapping[str, Sequence[Any]]) -> list[dict[str, Any]]:
    """One row a session, in the order of their first requests; requests of none are left out.

    Columns: `session`, `requests`, the sums of `SUMMED`, `cache_hit_rate` (of prompt tokens),
    `mean_ttft_ns` (None if no request had a first token), and from the first arrival to the last
    token `duration_ns` (None if none ended).
    """
    places: dict[str, list[int]] = {}
    for place, session in enumerate(columns["session"]):
        if session:
            places.setdefault(session, []).append(place)
    rows: list[dict[str, Any]] = []
    for session, mine in places.items():
        row: dict[str, Any] = {"session": session, "requests": len(mine)}
        for name in SUMMED:
            values = columns[name]
            row[name] = sum(values[place] for place in mine)
        prompt = row["prompt_tokens"]
        row["cache_hit_rate"] = 1 - row["computed_tokens"] / prompt if prompt else 0.0
        first = [ns for place in mine if (ns := columns["ttft_ns"][place]) is not None]
        row["mean_ttft_ns"] = sum(first) / len(first) if first else None
        arrivals = columns["arrival_ns"]
        ends = [
            arrivals[place] + ns for place in mine if (ns := columns["e2e_ns"][place]) is not None
        ]
        row["duration_ns"] = max(ends) - min(arrivals[place] for place in mine) if ends else None
        rows.append(row)
    return rows
