"""What a plan found: the 99th percentile of TTFT over cost, with the front that no point beats.

`table`: a row a point, `cost` and `ttft_p99_ms`, `label` (what is bought), and `front`, `knee` and
`chosen` (true or false). `plan_table` makes one of what `hicache plan` wrote.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from report.plots.style import EDGE, LINES, new_figure, plain_ticks, say_empty, styled

if TYPE_CHECKING:
    from matplotlib.figure import Figure

# Of pandas, which has no types that a checker could use.
DataFrame = Any

# From here on a logarithm shows more.
WIDE = 5
_MARKS = (("knee", "D", 9), ("chosen", "s", 12))


def ttft_over_cost(
    table: DataFrame, goal_ms: float | None = None, *, unit: str = "GiB", title: str = ""
) -> Figure:
    """Every point that was simulated, the front as a staircase, its knee, what was chosen, and the
    goal.
    """
    with styled():
        figure, axes = new_figure(height=4.0)
        if not len(table):
            say_empty(axes, "nothing was simulated")
            return figure
        front = table[table["front"]].sort_values("cost", kind="stable")
        others = table[~table["front"]]
        axes.plot(
            others["cost"], others["ttft_p99_ms"], "x", color=LINES[5], markersize=5,
            label="simulated",
        )  # fmt: skip
        axes.step(front["cost"], front["ttft_p99_ms"], where="post", color=LINES[0], linewidth=1)
        axes.plot(front["cost"], front["ttft_p99_ms"], "o", color=LINES[0], markersize=5,
                  label="front")  # fmt: skip
        for name, marker, size in _MARKS:
            mine = table[table[name]]
            if len(mine):
                axes.plot(
                    mine["cost"], mine["ttft_p99_ms"], marker, markersize=size,
                    markerfacecolor="none", markeredgecolor=LINES[1], markeredgewidth=1.4,
                    linestyle="", label=name,
                )  # fmt: skip
        if goal_ms is not None:
            axes.axhline(goal_ms, color=EDGE, linestyle=(0, (6, 3)), linewidth=0.9, label="goal")
        for cost, ttft_ms, label in zip(
            front["cost"], front["ttft_p99_ms"], front["label"], strict=True
        ):
            axes.annotate(
                label, (cost, ttft_ms), xytext=(6, 5), textcoords="offset points",
                fontsize="x-small",
            )  # fmt: skip
        if front["ttft_p99_ms"].max() > WIDE * front["ttft_p99_ms"].min():
            axes.set_yscale("log")
        axes.set(xlabel=f"cost of L2 and L3 ({unit})", ylabel="TTFT p99 (ms)", title=title)
        plain_ticks(axes.yaxis)
        axes.margins(x=0.12)
        axes.legend()
    return figure


def plan_table(document: Mapping[str, Any]) -> DataFrame:
    """The points of a plan's document (docs/plan.md)."""
    import pandas

    front = set(document["front"])
    rows = [
        {
            "cost": point["cost"],
            "ttft_p99_ms": point["ttft_ms.p99"],
            "label": f"L2 {point['tiers.l2']}"
            + (f", L3 {point['tiers.l3']}" if point["l3_bytes"] else ""),
            "front": place in front,
            **{name: document[name] == place for name, *_ in _MARKS},
        }
        for place, point in enumerate(document["points"])
    ]
    columns = ["cost", "ttft_p99_ms", "label", "front", "knee", "chosen"]
    return pandas.DataFrame(rows, columns=columns)
