"""What a comparison comes to, in one sentence, and the group of requests that it comes from.

Only differences whose interval leaves 0 out and which are at least half a percent (of the hit rate:
a tenth of a point) are spoken of as such. A hit rate is no end in itself: in a timed comparison it
is told and not judged. Refuses to weigh one aim against another: what is better here and worse
there is called a trade.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from sim.compare_stats import CONFIDENCE, FEW_UNITS, Difference

LEAST_SHARE, LEAST_POINTS = 0.005, 0.1
_JUDGED = (
    "ttft_mean_ms", "ttft_p50_ms", "ttft_p99_ms", "tpot_mean_ms", "e2e_mean_ms",
    "output_tokens_per_s",
)  # fmt: skip


def judgement(found: Difference) -> int:
    """+1 better, -1 worse, 0 neither clearly, nor by as much as would matter."""
    if found.metric.unit == "points":
        least = LEAST_POINTS
    else:
        least = LEAST_SHARE * abs(found.base)
    return found.sign if abs(found.value) >= least else 0


def verdict(base: str, other: str, found: Sequence[Difference], units: int, unit: str) -> str:
    """One sentence on `other` against `base`."""
    by_key = {each.metric.key: each for each in found}
    timed = len(found) > 1
    judged = [by_key[key] for key in _JUDGED if key in by_key] or list(found)
    better = [each for each in judged if judgement(each) > 0]
    worse = [each for each in judged if judgement(each) < 0]
    hits = f"; hit rate {_points(by_key['hit_rate'])}" if timed else ""
    if better and worse:
        said = f"{other} against {base} is a trade: {_list(better)}, but {_list(worse)}{hits}"
    elif better:
        said = f"{other} is better than {base}: {_list(better)}{hits}"
    elif worse:
        said = f"{other} is worse than {base}: {_list(worse)}{hits}"
    else:
        first = judged[0]
        around = "" if first.low is None else f" ({_interval(first)})"
        said = f"no clear difference between {other} and {base}: {_told(first)}{around}{hits}"
    if units < FEW_UNITS:
        said += (
            f"; of only {units} {'unit' if units == 1 else 'units'} ({unit}), so take it with care"
        )
    return said + "."


def reason(table: Sequence[Mapping[str, Any]], base: str, other: str, *, timed: bool) -> str:
    """The group of `by_source` that the difference mostly comes from, as a sentence; "" if there is
    no difference.
    """
    key = "ttft_change_s" if timed else "hit_change_tokens"
    total = sum(abs(row[key]) for row in table)
    if not total:
        return ""
    row = table[0]
    found = (
        f"{_found(row['base'])} under both"
        if row["base"] == row["other"]
        else f"{_found(row['base'])} under {base} and {_then(row['other'])} under {other}"
    )
    change = (
        f"{row[key]:+,.1f} s of TTFT in all, {row['ttft_mean_ms_base']:,.1f} to "
        f"{row['ttft_mean_ms_other']:,.1f} ms on average"
        if timed
        else f"{row[key]:+,} hit tokens"
    )
    return (
        f"Largest part ({abs(row[key]) / total:.0%} of all changes): {row['requests']:,} requests "
        f"{found}: {change}; {row['gained']:,} gained, {row['lost']:,} lost."
    )


def change_text(found: Difference) -> str:
    """The difference with its sign and unit."""
    if found.metric.unit == "points":
        return f"{found.value:+.2f} points"
    shown = f"{found.value:+,.{_digits(found)}f} {found.metric.unit}"
    if not found.base:
        return shown
    return f"{shown} ({100 * found.value / found.base:+.1f} %)"


def _told(found: Difference) -> str:
    return f"{found.metric.title} {change_text(found)}"


def _points(found: Difference) -> str:
    return change_text(found) if abs(found.value) >= 0.005 else "the same"


def _list(found: Sequence[Difference]) -> str:
    parts = [_told(each) for each in found]
    # The first one carries its interval: a sentence with six of them is none.
    parts[0] += f" ({_interval(found[0])})"
    return ", ".join(parts[:-1]) + " and " + parts[-1] if len(parts) > 1 else parts[0]


def _interval(found: Difference) -> str:
    assert found.low is not None
    assert found.high is not None
    digits = 2 if found.metric.unit == "points" else _digits(found)
    return f"{CONFIDENCE:.0%} interval {found.low:+,.{digits}f} to {found.high:+,.{digits}f}"


def _digits(found: Difference) -> int:
    """Three significant digits of the larger of both values."""
    size = max(abs(found.base), abs(found.other))
    return 0 if size >= 1000 else 1 if size >= 10 else 2 if size >= 1 else 3


def _found(place: str) -> str:
    return "with no hit" if place == "computed" else f"with hits down to {place}"


def _then(place: str) -> str:
    return "none" if place == "computed" else f"down to {place}"
