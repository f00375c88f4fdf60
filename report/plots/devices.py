"""Pictures of timeline.json: how busy each device was, and what waited for it.

    operations_of(text)   one row an operation: `track`, `start_ms`, `end_ms`, `bytes`, `tokens`
    states_of(text)       one row a change of a counter: `at_ms`, `counter`, `value`

A result has a timeline when it was made with --timeline.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import numpy as np

from report.plots.style import EDGE, line_style, new_figure, say_empty, styled

if TYPE_CHECKING:
    from matplotlib.figure import Figure

# Of pandas, which has no types that a checker could use.
DataFrame = Any

TRACKS = ("prefill", "decode", "h2d", "d2h", "s2h", "h2s", "lookup")
LABELS = {
    "prefill": "GPU: prefill", "decode": "GPU: decode", "h2d": "L2 > L1", "d2h": "L1 > L2",
    "s2h": "L3 > L2", "h2s": "L2 > L3", "lookup": "L3: look-ups",
}  # fmt: skip
_COUNTERS = {
    "waiting_requests": "requests in the queue",
    "running_requests": "requests running",
    "pending_restores": "restores under way",
    "pending_writes": "writes under way or waiting",
    "write_backlog_pages": "pages waiting for L3",
}
_PREFETCHES = {
    "prefetch_fulfilled_tokens": ("read in time", "#0072B2", ""),
    "prefetch_timed_out_tokens": ("timed out", "#D55E00", "xx"),
    "prefetch_otherwise_lost_tokens": ("not read for another reason", "#DDDDDD", ""),
}
_BINS, _BARS = 120, 24


def operations_of(timeline: str) -> DataFrame:
    """The operations of a timeline.json. Times in ms since the run began."""
    import pandas

    rows: list[dict[str, Any]] = []
    names: dict[int, str] = {}
    for event in json.loads(timeline)["traceEvents"]:
        if event["ph"] == "M" and event["name"] == "thread_name":
            names[event["tid"]] = event["args"]["name"].split(" ")[0]
        elif event["ph"] == "X":
            begin = event["ts"] / 1000
            rows.append(
                {
                    "track": names.get(event["tid"], event["name"]),
                    "start_ms": begin,
                    "end_ms": begin + event["dur"] / 1000,
                    "bytes": event["args"].get("bytes", 0),
                    "tokens": event["args"].get("tokens", 0),
                }
            )
    return pandas.DataFrame(rows, columns=["track", "start_ms", "end_ms", "bytes", "tokens"])


def states_of(timeline: str) -> DataFrame:
    """The counters of a timeline.json, in the order of time."""
    import pandas

    rows = [
        {"at_ms": event["ts"] / 1000, "counter": event["name"], "value": event["args"]["value"]}
        for event in json.loads(timeline)["traceEvents"]
        if event["ph"] == "C"
    ]
    return pandas.DataFrame(rows, columns=["at_ms", "counter", "value"])


def utilisation(operations: DataFrame, name: str = "") -> Figure:
    """The part of the time that the GPU and each direction were busy, over the run, a row each."""
    with styled():
        used = [track for track in TRACKS if (operations["track"] == track).any()]
        figure, grid = new_figure(height=1.0 + 0.75 * max(len(used), 1), rows=max(len(used), 1))
        axes = np.atleast_1d(grid)
        if not used:
            say_empty(axes[0], "no operation")
            return figure
        end = float(operations["end_ms"].max())
        edges = np.linspace(0, max(end, 1e-6), _BINS + 1)
        for place, track in enumerate(used):
            mine = operations[operations["track"] == track]
            busy = busy_shares(mine["start_ms"].to_numpy(), mine["end_ms"].to_numpy(), edges)
            style = line_style(place)
            axes[place].fill_between(edges[:-1] / 1000, 100 * busy, step="post", alpha=0.25,
                                     color=style["color"], linewidth=0)  # fmt: skip
            axes[place].step(edges[:-1] / 1000, 100 * busy, where="post", linewidth=1,
                             color=style["color"])  # fmt: skip
            axes[place].set(ylim=(0, 105), yticks=(0, 50, 100))
            average = float(busy.mean())
            axes[place].set_ylabel(f"{LABELS[track]}\n{average:.0%}", rotation=0, ha="right",
                                   va="center")  # fmt: skip
        axes[0].set_title("Busy, % of the time" + (f", {name}" if name else ""))
        axes[-1].set_xlabel("seconds since the first request")
    return figure


def waiting_over_time(states: DataFrame, name: str = "") -> Figure:
    """What waited over the run: requests, restores, writes, and pages on their way to L3."""
    with styled():
        used = [each for each in _COUNTERS if _values(states, each)[1].any()]
        figure, grid = new_figure(height=1.0 + 0.95 * max(len(used), 1), rows=max(len(used), 1))
        axes = np.atleast_1d(grid)
        if not used:
            say_empty(axes[0], "nothing ever waited")
            return figure
        edges = np.linspace(0, max(float(states["at_ms"].max()), 1e-6), _BINS + 1)
        for place, counter in enumerate(used):
            average, most = spread_over(*_values(states, counter), edges)
            colour = line_style(place)["color"]
            axes[place].fill_between(edges[:-1] / 1000, most, step="post", alpha=0.3, linewidth=0,
                                     color=colour)  # fmt: skip
            axes[place].step(edges[:-1] / 1000, average, where="post", linewidth=1, color=colour)
            axes[place].set_ylim(bottom=0)
            axes[place].set_ylabel(_COUNTERS[counter].replace(" or ", "\nor "), rotation=0,
                                   ha="right", va="center")  # fmt: skip
        axes[0].set_title("What waited (line: average, area: most)" + (f", {name}" if name else ""))
        axes[-1].set_xlabel("seconds since the first request")
    return figure


def prefetches_over_time(states: DataFrame, name: str = "") -> Figure:
    """What became of tokens that L3 had for queued requests: read in time, given up at the
    deadline, or not read for another reason; by when it was decided.
    """
    with styled():
        figure, axes = new_figure()
        parts = {
            label: (*_values(states, counter), colour, hatch)
            for counter, (label, colour, hatch) in _PREFETCHES.items()
        }
        totals = {
            label: values[-1] if len(values) else 0 for label, (_, values, *_) in parts.items()
        }
        if not any(totals.values()):
            say_empty(axes, "nothing was read ahead")
            return figure
        edges = np.linspace(0, max(float(states["at_ms"].max()), 1e-6), _BARS + 1)
        bottom = np.zeros(_BARS)
        for label, (at, values, colour, hatch) in parts.items():
            if not totals[label]:
                continue
            places = np.clip(np.searchsorted(edges, at, side="right") - 1, 0, _BARS - 1)
            heights = np.bincount(places, weights=np.diff(values, prepend=0), minlength=_BARS)
            axes.bar(
                edges[:-1] / 1000, heights, (edges[1] - edges[0]) / 1000, bottom=bottom,
                align="edge", color=colour, hatch=hatch, edgecolor=EDGE, linewidth=0.4,
                label=f"{label} ({totals[label]:,.0f})",
            )  # fmt: skip
            bottom += heights
        axes.set(
            xlabel="seconds since the first request", ylabel="tokens",
            title="Prefetches from L3: tokens" + (f", {name}" if name else ""),
        )  # fmt: skip
        axes.grid(axis="x", visible=False)
        axes.legend()
    return figure


def busy_shares(starts: np.ndarray, ends: np.ndarray, edges: np.ndarray) -> np.ndarray:
    """The part of each bin in which at least one of the intervals was under way.

    `starts`, `ends`: float64 of shape (operations,); `edges`: of shape (bins + 1,), ascending;
    returns shape (bins,), each from 0 to 1.
    """
    if not len(starts):
        return np.zeros(len(edges) - 1)
    order = np.argsort(starts, kind="stable")
    starts, ends = starts[order], np.maximum.accumulate(ends[order])
    # Overlaps count once: an interval begins where the ones before it have ended.
    begins = np.maximum(starts, np.concatenate([[starts[0]], ends[:-1]]))
    busy = np.concatenate([[0.0], np.cumsum(np.maximum(ends - begins, 0))])
    # Busy time up to t: of the intervals that began before t, less what the last has left.
    count = np.searchsorted(begins, edges, side="right")
    last = np.where(count > 0, ends[np.maximum(count - 1, 0)], 0.0)
    upto = busy[count] - np.where(count > 0, np.maximum(last - edges, 0), 0)
    return np.clip(np.diff(upto) / np.diff(edges), 0, 1)


def spread_over(
    at: np.ndarray, values: np.ndarray, edges: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Average over time and maximum, in each bin, of a counter that has `values[i]` from `at[i]` to
    `at[i + 1]`, and 0 before the first; float64 of shape (bins,) each.
    """
    # Also at each edge it has a value: the one before.
    places = np.searchsorted(at, edges, side="right") - 1
    there = np.where(places >= 0, values[np.maximum(places, 0)], 0.0)
    every = np.concatenate([edges, at])
    order = np.argsort(every, kind="stable")
    every, held = every[order], np.concatenate([there, values])[order]
    lengths = np.diff(every, append=edges[-1])
    bins = np.clip(np.searchsorted(edges, every, side="right") - 1, 0, len(edges) - 2)
    sums = np.bincount(bins, weights=held * np.maximum(lengths, 0), minlength=len(edges) - 1)
    most = np.zeros(len(edges) - 1)
    np.maximum.at(most, bins, held)
    return sums / np.diff(edges), most


def _values(states: DataFrame, counter: str) -> tuple[np.ndarray, np.ndarray]:
    mine = states[states["counter"] == counter]
    return mine["at_ms"].to_numpy(float), mine["value"].to_numpy(float)
