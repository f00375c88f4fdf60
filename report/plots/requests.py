"""Pictures of requests.parquet: TTFT, tokens by source, what became of restores, one request.

Each function takes the rows of one result (`Result.requests()`), or several under their names, and
returns a Figure. Times in the rows are ns. Refuses to compute what a summary says.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from report.plots.style import (
    DASHES,
    EDGE,
    HATCHES,
    LINES,
    MARKERS,
    NS_PER_MS,
    NS_PER_S,
    SOURCE_COLOURS,
    SOURCE_LABELS,
    SOURCES,
    line_style,
    new_figure,
    plain_ticks,
    say_empty,
    styled,
)

if TYPE_CHECKING:
    from matplotlib.figure import Figure

# Of pandas, which has no types that a checker could use.
DataFrame = Any

# Bars over time: enough to see a change, few enough to see each.
BINS = 24
_UNIT_S = ((7200, 3600, "hours"), (180, 60, "minutes"), (0, 1, "seconds"))
_BELOW = {"gained": ("gained", LINES[2], ""), "lost": ("lost", LINES[1], "///")}
_OUTCOMES = {
    "restored": (("cost", "meet", "always", "threshold"), LINES[0], ""),
    "probes": (("probe",), "#56B4E9", "///"),
    "declined": (("recompute_cheaper", "below_threshold", "never"), "#DDDDDD", ""),
    "failed or timed out": (("restore_failed",), LINES[1], "xx"),
}


def ttft_distribution(results: Mapping[str, DataFrame]) -> Figure:
    """The distribution of TTFT of each result: the share of requests that waited no longer."""
    with styled():
        figure, axes = new_figure()
        shown = 0
        for place, (name, rows) in enumerate(results.items()):
            times = np.sort(_known(rows, "ttft_ns")) / NS_PER_MS
            if len(times):
                shown += 1
                shares = np.arange(1, len(times) + 1) / len(times)
                axes.step(times, shares, where="post", label=name, **line_style(place))
        if not shown:
            say_empty(axes, "no request has a time to first token")
            return figure
        axes.set(
            xscale="log", ylim=(0, 1), xlabel="TTFT (ms)", ylabel="share of requests",
            title="Time to first token",
        )  # fmt: skip
        plain_ticks(axes.xaxis)
        axes.legend(loc="lower right")
    return figure


def ttft_by_prompt(results: Mapping[str, DataFrame]) -> Figure:
    """TTFT over the prompt's length, in powers of two: the median, and bars from p10 to p90."""
    with styled():
        figure, axes = new_figure()
        buckets: set[int] = set()
        count = max(len(results), 1)
        for place, (name, rows) in enumerate(results.items()):
            rows = rows[rows["ttft_ns"].notna()]
            powers = _powers(rows)
            points: list[tuple[float, float, float, float]] = []
            for power in sorted(set(powers.tolist())):
                times = rows["ttft_ns"].to_numpy(float)[powers == power] / NS_PER_MS
                low, middle, high = np.percentile(times, (10, 50, 90))
                points.append((power + (place - (count - 1) / 2) * 0.6 / count, low, middle, high))
                buckets.add(power)
            if points:
                x, low, middle, high = (np.array(each) for each in zip(*points, strict=True))
                axes.errorbar(
                    x, middle, [middle - low, high - middle], fmt=MARKERS[place % len(MARKERS)],
                    color=LINES[place % len(LINES)], linestyle=DASHES[place % len(DASHES)],
                    linewidth=1, elinewidth=1, capsize=3, markersize=5, label=name,
                )  # fmt: skip
        if not buckets:
            say_empty(axes, "no request has a time to first token")
            return figure
        ticks = sorted(buckets)
        axes.set(
            yscale="log", xlabel="prompt tokens", ylabel="TTFT (ms)",
            title="Time to first token by prompt length (median, p10 to p90)",
        )  # fmt: skip
        axes.set_xticks(ticks, [_bucket(each) for each in ticks])
        plain_ticks(axes.yaxis)
        axes.legend()
    return figure


def tokens_by_source(results: Mapping[str, DataFrame], ceiling: float | None = None) -> Figure:
    """Prompt tokens by where they came from, in % of all, a bar for each result. `ceiling`: the
    share that an infinite cache would hit, as a dashed line.
    """
    with styled():
        figure, axes = new_figure(height=1.5 + 0.55 * max(len(results), 1))
        names = list(results)
        left = np.zeros(len(names))
        for source, label, colour, hatch in _sources():
            counts = [results[name][f"{source}_tokens"].sum() for name in names]
            asked = [max(results[name]["prompt_tokens"].sum(), 1) for name in names]
            shares = 100 * np.array(counts, float) / np.array(asked, float)
            axes.barh(
                names, shares, left=left, label=label, color=colour, hatch=hatch, edgecolor=EDGE,
                linewidth=0.5, height=0.65,
            )  # fmt: skip
            left += shares
        title = "Prompt tokens by source"
        if ceiling is not None:
            axes.axvline(100 * ceiling, color="black", linestyle="--", linewidth=1)
            title += f" (dashed: the ceiling, {100 * ceiling:.1f} %)"
        axes.set(xlabel="% of prompt tokens", xlim=(0, 100), title=title)
        axes.invert_yaxis()
        axes.grid(axis="y", visible=False)
        _legend_below(figure, axes)
    return figure


def sources_over_time(rows: DataFrame, name: str = "") -> Figure:
    """Prompt tokens by source over the time of arrival, in % of those that arrived then."""
    with styled():
        figure, axes = new_figure()
        if not len(rows):
            say_empty(axes, "no request")
            return figure
        starts, width, unit, places = _bins(rows["arrival_ns"].to_numpy(float))
        totals = np.zeros((len(SOURCES), len(starts)))
        for row, source in enumerate(SOURCES):
            tokens = rows[f"{source}_tokens"].to_numpy(float)
            totals[row] = np.bincount(places, weights=tokens, minlength=len(starts))
        asked = totals.sum(axis=0)
        bottom = np.zeros(len(starts))
        for row, (_, label, colour, hatch) in enumerate(_sources()):
            shares = 100 * np.divide(totals[row], asked, out=np.zeros_like(asked), where=asked > 0)
            axes.bar(
                starts, shares, width, bottom=bottom, align="edge", label=label, color=colour,
                hatch=hatch, edgecolor=EDGE, linewidth=0.3,
            )  # fmt: skip
            bottom += shares
        axes.set(
            xlabel=f"{unit} since the first request", ylabel="% of prompt tokens", ylim=(0, 100),
            title=_titled("Prompt tokens by source over time", name),
        )  # fmt: skip
        axes.grid(axis="x", visible=False)
        _legend_below(figure, axes)
    return figure


def restores_over_time(rows: DataFrame, name: str = "") -> Figure:
    """What became of hits below L1 over the time of arrival: restored, probed, declined, failed."""
    with styled():
        figure, axes = new_figure()
        below = rows[rows["reason"] != ""]
        if not len(below):
            say_empty(axes, "no request had a hit below L1 to decide about")
            return figure
        starts, width, unit, places = _bins(rows["arrival_ns"].to_numpy(float))
        reasons = rows["reason"].to_numpy(dtype=object)
        known = {reason for chosen, _, _ in _OUTCOMES.values() for reason in chosen}
        # A policy of the user's own has its own words for why it restores.
        fetched = (rows["host_tokens"] + rows["storage_tokens"]).to_numpy() > 0
        bottom = np.zeros(len(starts))
        for label, (chosen, colour, hatch) in _OUTCOMES.items():
            mine = np.isin(reasons, chosen)
            if label in ("restored", "declined"):
                other = (reasons != "") & (reasons != "aborted") & ~np.isin(reasons, list(known))
                mine |= other & (fetched if label == "restored" else ~fetched)
            counts = np.bincount(places[mine], minlength=len(starts)).astype(float)
            if not counts.any():
                continue
            axes.bar(
                starts, counts, width, bottom=bottom, align="edge", color=colour, hatch=hatch,
                edgecolor=EDGE, linewidth=0.4, label=f"{label} ({int(counts.sum()):,})",
            )  # fmt: skip
            bottom += counts
        axes.set(
            xlabel=f"{unit} since the first request", ylabel="requests",
            title=_titled("Hits below L1: what became of them", name),
        )  # fmt: skip
        axes.grid(axis="x", visible=False)
        _legend_below(figure, axes)
    return figure


def changes_by_prompt(table: DataFrame, base: str, other: str) -> Figure:
    """Requests that gained and lost, by prompt length. `table`: rows of `by_prompt` in
    compare.json, with `from_tokens`, `gained`, `lost`, `same`.
    """
    with styled():
        figure, axes = new_figure()
        powers = np.log2(table["from_tokens"].to_numpy(float)).round().astype(int)
        at = np.arange(len(powers))
        for word, side in (("gained", 1), ("lost", -1)):
            label, colour, hatch = _BELOW[word]
            counts = side * table[word].to_numpy(float)
            axes.bar(at, counts, 0.7, color=colour, hatch=hatch, edgecolor=EDGE, linewidth=0.5,
                     label=f"{label} ({int(abs(counts.sum())):,})")  # fmt: skip
        axes.axhline(0, color=EDGE, linewidth=0.8)
        axes.set_xticks(at, [_bucket(each) for each in powers])
        axes.yaxis.set_major_formatter(lambda value, _place: f"{abs(value):,.0f}")
        axes.set(
            xlabel="prompt tokens", ylabel="lost  |  gained",
            title=f"Requests that gained and lost, {other} against {base}",
        )  # fmt: skip
        axes.grid(axis="x", visible=False)
        axes.legend()
    return figure


def request_timeline(rows: DataFrame, numbers: list[int] | None = None) -> Figure:
    """What each of some requests spent its time on, from its arrival to its last token, in ms.

    `numbers`: which ones; else those ten that waited longest for their first token.
    """
    with styled():
        timed = rows[rows["ttft_ns"].notna() & (rows["ttft_ns"] > 0)]
        if numbers is None:
            chosen = timed.sort_values(["ttft_ns", "request"], ascending=[False, True]).head(10)
        else:
            chosen = timed.set_index("request", drop=False).reindex(numbers).dropna(
                subset=["ttft_ns"]
            )  # fmt: skip
        figure, axes = new_figure(height=1.4 + 0.3 * max(len(chosen), 1))
        if not len(chosen):
            say_empty(axes, "no such request has a time to first token")
            return figure
        labels = [f"request {int(each)}" for each in chosen["request"]]
        parts = request_parts(chosen)
        left = np.zeros(len(chosen))
        for place, name in enumerate(parts.columns):
            widths = parts[name].to_numpy(float)
            axes.barh(
                labels, widths, left=left, label=name, height=0.65, edgecolor=EDGE, linewidth=0.4,
                color=("#FFFFFF", "#56B4E9", "#E69F00", "#0072B2", "#DDDDDD")[place],
                hatch=("", "///", "\\\\\\\\", "", "")[place],
            )  # fmt: skip
            left += widths
        axes.invert_yaxis()
        axes.grid(axis="y", visible=False)
        axes.set(xlabel="ms since its arrival", title="Where requests spent their time")
        _legend_below(figure, axes)
    return figure


def request_parts(rows: DataFrame) -> DataFrame:
    """ms that each request spent in the queue, on its restore, waiting for the GPU behind it, in
    its prefill, and from its first to its last token; one row a request, index kept.
    """
    import pandas

    known = rows[["queue_ns", "restore_ns", "prefill_ns"]].to_numpy(float)
    first = rows["ttft_ns"].to_numpy(float, na_value=np.nan)
    last = rows["e2e_ns"].to_numpy(float, na_value=np.nan)
    waited = np.maximum(first - known.sum(axis=1), 0)
    decode = np.nan_to_num(np.maximum(last - first, 0))
    values = np.column_stack([known[:, 0], known[:, 1], waited, known[:, 2], decode]) / NS_PER_MS
    names = ["queue", "restore", "wait for the GPU", "prefill", "decode"]
    return pandas.DataFrame(values, columns=names, index=rows.index)


def _sources() -> Any:
    return zip(SOURCES, SOURCE_LABELS, SOURCE_COLOURS, HATCHES, strict=True)


def _known(rows: DataFrame, name: str) -> np.ndarray:
    return rows[name].dropna().to_numpy(float)


def _powers(rows: DataFrame) -> np.ndarray:
    prompts = np.maximum(rows["prompt_tokens"].to_numpy(float), 1)
    return np.floor(np.log2(prompts)).astype(int)


def _bucket(power: int) -> str:
    def short(tokens: int) -> str:
        return f"{tokens // 1024}k" if tokens >= 1024 else f"{tokens}"

    return f"{short(2**power)}-{short(2 ** (power + 1))}"


def _bins(times_ns: np.ndarray) -> tuple[np.ndarray, float, str, np.ndarray]:
    """Starts and width of the bins in `unit`, and the bin of each time."""
    begin, end = float(times_ns.min()), float(times_ns.max())
    length_s = max((end - begin) / NS_PER_S, 1e-3)
    scale, unit = next((scale, unit) for least, scale, unit in _UNIT_S if length_s >= least)
    width = length_s / scale / BINS
    places = ((times_ns - begin) / NS_PER_S / scale / width).astype(int)
    return np.arange(BINS) * width, width, unit, np.minimum(places, BINS - 1)


def _legend_below(figure: Any, axes: Any) -> None:
    handles, labels = axes.get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=min(len(labels), 5))


def _titled(title: str, name: str) -> str:
    return f"{title}, {name}" if name else title
