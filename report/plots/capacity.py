"""The hit rate over the capacity: a curve of every size, single policies on it, and the bounds.

`hit_rate_over_capacity` takes a table with a row a point: `series` (what it is called), `kind`
("curve" or "points"), `capacity`, `hit_percent`, and `low_percent` and `high_percent`, the band
around an estimate (NaN: none). `curve_table` makes one of what `hicache curve` wrote.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from report.plots.style import (
    DASHES,
    EDGE,
    LINES,
    MARKERS,
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

GIB = 1 << 30
MOST_POINTS = 600
COLUMNS = ("series", "kind", "capacity", "hit_percent", "low_percent", "high_percent")
_OPTIMA = (("may_bypass", "optimum, may bypass"), ("must_insert", "optimum, must insert"))


def hit_rate_over_capacity(
    table: DataFrame,
    ceiling_percent: float | None = None,
    *,
    unit: str = "GiB",
    title: str = "Hit rate over capacity",
    hits: str = "hits, % of prompt tokens",
) -> Figure:
    """Curves and points of `table`, and the ceiling, which no cache of any size exceeds."""
    with styled():
        figure, axes = new_figure(height=3.8)
        if not len(table):
            say_empty(axes, "no capacity was looked at")
            return figure
        for place, (name, rows) in enumerate(table.groupby("series", sort=False)):
            rows = rows.sort_values("capacity", kind="stable")
            style: dict[str, Any] = line_style(place)
            if (rows["kind"] == "points").all():
                # The marker tells what the line style cannot of a single point.
                style = {
                    "color": LINES[place % len(LINES)], "linestyle": DASHES[place % len(DASHES)],
                    "marker": MARKERS[place % len(MARKERS)], "markersize": 4, "linewidth": 1.2,
                }  # fmt: skip
            axes.plot(rows["capacity"], rows["hit_percent"], label=str(name), **style)
            banded = rows.dropna(subset=["low_percent"]) if "low_percent" in rows else rows[:0]
            if len(banded):
                axes.fill_between(
                    banded["capacity"], banded["low_percent"], banded["high_percent"], alpha=0.2,
                    linewidth=0, color=style["color"], label="two standard errors",
                )  # fmt: skip
        if ceiling_percent is not None:
            axes.axhline(ceiling_percent, color=EDGE, linestyle=(0, (6, 3)), linewidth=0.9)
            axes.annotate(
                f"ceiling {ceiling_percent:.1f} %", (0.01, ceiling_percent),
                xycoords=("axes fraction", "data"), xytext=(0, -10), textcoords="offset points",
                fontsize="small", color=EDGE,
            )  # fmt: skip
        axes.set(
            xscale="log", ylim=(0, None), xlabel=f"capacity ({unit})", ylabel=hits, title=title
        )
        plain_ticks(axes.xaxis)
        axes.legend(loc="lower right")
    return figure


def curve_table(document: Mapping[str, Any]) -> DataFrame:
    """The LRU curve and both optima of a curve's document (docs/curves.md), by page.

    Capacities are in GiB where the document has `page_bytes`, else in pages. The curve is looked at
    in at most `MOST_POINTS` places, evenly spread over their logarithms.
    """
    import pandas

    asked = max(1, document["prompt_pages"])
    unit = document["page_bytes"] / GIB if document.get("page_bytes") else 1.0
    capacities = np.array(document["capacity_pages"], float)
    hits = np.array(document["hit_pages"], float)
    errors = document.get("standard_error_pages")
    places = _places(capacities, hits, sampled=errors is not None)
    rows: dict[str, list[Any]] = {name: [] for name in COLUMNS}

    def add(series: str, kind: str, at: np.ndarray, found: np.ndarray, band: Any = None) -> None:
        rows["series"] += [series] * len(at)
        rows["kind"] += [kind] * len(at)
        rows["capacity"] += (at * unit).tolist()
        rows["hit_percent"] += (100 * found / asked).tolist()
        for name, sign in (("low_percent", -2), ("high_percent", 2)):
            edge = found + sign * band if band is not None else np.full(len(at), np.nan)
            rows[name] += (100 * edge / asked).tolist()

    band = None if errors is None else np.interp(places, capacities, np.array(errors, float))
    add("LRU", "curve", places, np.interp(places, capacities, hits), band)
    for key, label in _OPTIMA:
        points = sorted(_optimum(document, key).items())
        if points:
            at, found = (np.array(each, float) for each in zip(*points, strict=True))
            add(label, "points", at, found)
    return pandas.DataFrame(rows)


def draw_curve(document: Mapping[str, Any], more: DataFrame | None = None) -> Figure:
    """A curve's document as a picture. `more`: rows of single policies, in the same units."""
    import pandas

    table = curve_table(document)
    if more is not None and len(more):
        table = pandas.concat([table, more], ignore_index=True)
    page = document["page_size_tokens"]
    trace = document["trace"]
    name = "standard input" if trace["path"] == "-" else trace["path"].rpartition("/")[2]
    cut = ", interrupted" if document["interrupted"] else ""
    return hit_rate_over_capacity(
        table,
        100 * document["hit_pages_all"] / max(1, document["prompt_pages"]),
        unit="GiB" if document.get("page_bytes") else f"pages of {page:,} tokens",
        title=f"{name}: {trace['requests']:,} requests, {document['method']}{cut}",
        hits="hits, % of prompt pages",
    )


def lines_over_capacity(table: DataFrame, *, unit: str = "GiB", title: str = "") -> Figure:
    """Times over the capacity: columns `capacity`, and one for each line, in ms."""
    with styled():
        figure, axes = new_figure()
        for place, name in enumerate(each for each in table.columns if each != "capacity"):
            axes.plot(
                table["capacity"], table[name], label=name, marker=MARKERS[place % len(MARKERS)],
                markersize=5, **line_style(place),
            )  # fmt: skip
        axes.set(yscale="log", xlabel=f"capacity ({unit})", ylabel="ms",
                 title=title or "Time to first token over capacity")  # fmt: skip
        axes.set_xlim(left=0)
        plain_ticks(axes.yaxis)
        axes.legend()
    return figure


def _optimum(document: Mapping[str, Any], key: str) -> dict[int, int]:
    """Hit pages by capacity, of single capacities and of the optimum's own curve."""
    found: dict[int, int] = {}
    for row in document.get("optimum", ()):
        if row[key] is not None:
            found[row["capacity_pages"]] = row[key]["hit_pages"]
    curve = document.get("optimum_curve")
    if curve:
        pairs = zip(curve["capacity_pages"], curve[f"hit_pages_{key}"], strict=True)
        found |= {at: hits for at, hits in pairs if hits is not None and hits >= 0}
    return found


def _places(capacities: np.ndarray, hits: np.ndarray, *, sampled: bool) -> np.ndarray:
    """Where to look at the curve: from its first hit to twice the last capacity that matters."""
    if not len(hits) or not hits[-1]:
        return np.array([1.0])
    # An estimate says nothing of caches smaller than what one sampled page stands for.
    place = 1 if sampled else int(np.argmax(hits > 0))
    first, last = max(capacities[place], 1.0), float(capacities[-1])
    return np.unique(np.geomspace(first, 2 * last, MOST_POINTS).round())
