"""A plan's document as a picture (`report.plots.plan`), in a file. Refuses to compute."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from report.plots.plan import plan_table, ttft_over_cost
from report.plots.style import save

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def draw_plan(document: Mapping[str, Any]) -> Figure:
    """Cost against TTFT, with the front, its knee, the choice and the goal."""
    name = os.path.basename(document["trace"]["path"])
    return ttft_over_cost(
        plan_table(document),
        document["goals"]["ttft_p99_ms"],
        unit=document["goals"]["cost_unit"],
        title=f"{name}: {document['model']} on {document['machine']}",
    )


def save_plan(document: Mapping[str, Any], path: str) -> None:
    """Draw, and write a .png or .svg that says which command made it. Raises OSError."""
    save(draw_plan(document), path, "hicache plan")
