"""A plan as a picture: cost against the 99th percentile of TTFT, with the front, knee and goal."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

STYLE = os.path.join(
    os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "docs", "print.mplstyle"
)
# From here on a logarithm shows more.
WIDE = 5
_FRONT, _OTHER, _CHOSEN = "#0072B2", "#999999", "#D55E00"


def save_plan(document: Mapping[str, Any], path: str) -> None:
    """Draw `document` (`sim.plan_document`) to `path`, .png or .svg. Raises OSError."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    style = [STYLE] if os.path.exists(STYLE) else []
    with plt.style.context([*style, {"svg.hashsalt": "hicache"}]):
        figure, axes = plt.subplots(figsize=(6.4, 4.0))
        _draw(document, axes)
        figure.savefig(path, metadata={"Date": None} if path.endswith(".svg") else None)
        plt.close(figure)


def _draw(document: Mapping[str, Any], axes: Any) -> None:
    points, front = document["points"], document["front"]
    others = [place for place in range(len(points)) if place not in front]

    def at(places: list[int]) -> tuple[list[float], list[float]]:
        return (
            [points[place]["cost"] for place in places],
            [points[place]["ttft_ms.p99"] for place in places],
        )

    axes.plot(*at(others), "x", color=_OTHER, markersize=5, label="simulated")
    axes.step(*at(front), where="post", color=_FRONT, linestyle="-", linewidth=1.0)
    axes.plot(*at(front), "o", color=_FRONT, markersize=5, linestyle="", label="front")
    for name, marker, size in (("knee", "D", 9), ("chosen", "s", 12)):
        place = document[name]
        if place is not None:
            axes.plot(
                *at([place]), marker, markersize=size, markerfacecolor="none",
                markeredgecolor=_CHOSEN, markeredgewidth=1.4, linestyle="", label=name,
            )  # fmt: skip
    goal = document["goals"]["ttft_p99_ms"]
    if goal is not None:
        axes.axhline(goal, color="black", linestyle=(0, (6, 3)), linewidth=0.9, label="goal")
    for place in front:
        point = points[place]
        axes.annotate(
            f"L2 {point['tiers.l2']}" + (f", L3 {point['tiers.l3']}" if point["l3_bytes"] else ""),
            (point["cost"], point["ttft_ms.p99"]), xytext=(6, 5), textcoords="offset points",
            fontsize="x-small",
        )  # fmt: skip
    name = os.path.basename(document["trace"]["path"])
    times = at(front)[1]
    axes.set(
        yscale="log" if max(times) > WIDE * min(times) else "linear",
        xlabel=f"cost of L2 and L3 ({document['goals']['cost_unit']})",
        ylabel="TTFT p99 (ms)",
        title=f"{name}: {document['model']} on {document['machine']}",
    )
    axes.margins(x=0.12)
    axes.legend()
