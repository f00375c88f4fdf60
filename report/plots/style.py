"""The one style of all pictures, and how a figure becomes a file or a piece of a page.

Readable in print, in grey and by the colour-blind: what is told apart by colour is told apart by
line style, marker or hatch, too, and every line has a contrast of at least 3 to white (WCAG 2.2,
1.4.11). The same figure gives the same bytes. matplotlib is imported where something is drawn, and
no window is ever opened.
"""

from __future__ import annotations

import io
import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from matplotlib.figure import Figure

MADE_BY = "hicache"
# As docs/print.mplstyle, which is not installed.
STYLE: dict[str, Any] = {
    "axes.spines.top": False, "axes.spines.right": False, "axes.grid": True, "axes.axisbelow": True,
    "axes.titlesize": "medium", "axes.titlelocation": "left", "axes.labelsize": "small",
    "grid.color": "#DDDDDD", "grid.linewidth": 0.6, "hatch.linewidth": 0.5,
    "legend.frameon": False, "legend.fontsize": "small", "lines.linewidth": 1.6,
    "xtick.labelsize": "small", "ytick.labelsize": "small", "font.size": 10,
    "svg.fonttype": "none", "figure.dpi": 130, "savefig.dpi": 130,
}  # fmt: skip
# Dark enough for lines on white; from Okabe and Ito, and Tol where theirs are too light.
LINES = ("#0072B2", "#D55E00", "#008060", "#000000", "#AA3377", "#6B6B6B")
DASHES = ("-", "--", "-.", ":", (0, (5, 1, 1, 1, 1, 1)), (0, (8, 2)))
MARKERS = ("o", "s", "^", "D", "v", "x")
# Where a prompt's tokens come from, nearest first: fills, told apart by hatches as well.
SOURCES = ("device", "host", "storage", "computed")
SOURCE_LABELS = ("L1 device", "L2 host", "L3 storage", "computed")
SOURCE_COLOURS = ("#0072B2", "#56B4E9", "#009E73", "#DDDDDD")
HATCHES = ("", "///", "\\\\\\\\", "")
EDGE = "#333333"
NS_PER_MS, NS_PER_S = 1e6, 1e9


@contextmanager
def styled() -> Iterator[None]:
    """The style, for whatever is drawn or saved inside."""
    import matplotlib

    with matplotlib.rc_context(STYLE):  # pyright: ignore[reportArgumentType]
        yield


def new_figure(width: float = 6.4, height: float = 3.6, rows: int = 1) -> tuple[Figure, Any]:
    """A figure that belongs to no window, and its axes (an array of them for several rows)."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), layout="constrained")
    return figure, figure.subplots(rows, 1, sharex=True)


def plain_ticks(axis: Any) -> None:
    """1,000 and not 10^3, on a logarithmic axis."""
    axis.set_major_formatter(lambda value, _place: f"{value:,.10g}")


def line_style(place: int) -> dict[str, Any]:
    """Colour and dashes of the `place`-th line of a figure."""
    return {"color": LINES[place % len(LINES)], "linestyle": DASHES[place % len(DASHES)]}


def say_empty(axes: Any, text: str) -> None:
    """Say in words why there is nothing to see."""
    axes.text(0.5, 0.5, text, ha="center", va="center", transform=axes.transAxes, color=EDGE)
    axes.set(xticks=[], yticks=[])
    axes.grid(visible=False)


def save(figure: Figure, path: str, made_by: str = MADE_BY) -> None:
    """Write a .png or .svg that says which command made it. `OSError` where that cannot be done."""
    import matplotlib

    kind = path.rpartition(".")[2]
    metadata: dict[str, str | None] = {"Software": made_by}
    if kind == "svg":
        metadata = {"Creator": made_by, "Date": None}
    with styled(), matplotlib.rc_context({"svg.hashsalt": MADE_BY}):
        figure.savefig(path, format=kind, metadata=metadata)


def svg_element(figure: Figure, name: str, title: str) -> str:
    """The figure as an SVG element to be put into a page, with `title` for those who cannot see it.

    `name` goes before every id in it, so that many of them make one valid page.
    """
    from html import escape

    import matplotlib

    text = io.StringIO()
    with styled(), matplotlib.rc_context({"svg.hashsalt": MADE_BY}):
        figure.savefig(text, format="svg", metadata={"Creator": None, "Date": None, "Format": None,
                                                     "Type": None})  # fmt: skip
    element = re.sub(r"^.*?(?=<svg)", "", text.getvalue(), count=1, flags=re.DOTALL)
    element = re.sub(r"<metadata>.*?</metadata>", "", element, flags=re.DOTALL)
    element = re.sub(r'\bid="([^"]+)"', rf'id="{name}-\1"', element)
    element = re.sub(r"url\(#([^)]+)\)", rf"url(#{name}-\1)", element)
    element = re.sub(r'xlink:href="#([^"]+)"', rf'xlink:href="#{name}-\1"', element)
    shown = escape(title)
    return re.sub(
        r"<svg ([^>]*)>",
        rf'<svg role="img" aria-label="{_raw(shown)}" \1><title>{_raw(shown)}</title>',
        element, count=1,
    )  # fmt: skip


def _raw(text: str) -> str:
    """`text` for the right side of a substitution."""
    return text.replace("\\", r"\\")
