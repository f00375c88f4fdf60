"""A curve's study as a picture (`report.plots.capacity`), in a file. Refuses to compute."""

from __future__ import annotations

from typing import TYPE_CHECKING

from report.plots import capacity
from report.plots.style import save
from sim.curve_study import CurveStudy

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def draw_curve(study: CurveStudy, page_bytes: int | None = None) -> Figure:
    """The curve, the optimum where it is known, and the ceiling.

    With `page_bytes`, the KV of one page, capacities are in GiB.
    """
    document = {**study.document, "page_bytes": page_bytes} if page_bytes else study.document
    return capacity.draw_curve(document)


def save_curve(study: CurveStudy, path: str, page_bytes: int | None = None) -> None:
    """Draw, and write a .png or .svg. `OSError` if that cannot be done."""
    save(draw_curve(study, page_bytes), path, "hicache curve")
