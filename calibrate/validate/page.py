"""A validation as one page of HTML that needs nothing else: tables, and plots as inline SVG.

The same validation gives the same bytes. Imports matplotlib; refuses to compute.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from html import escape
from typing import TYPE_CHECKING, Any

from calibrate.validate.compare import sorted_ttft_ms
from calibrate.validate.table import headline, notes, sections
from calibrate.validate.timing import KINDS
from calibrate.validate.validation import Validation
from report.plots.style import new_figure, styled, svg_element

if TYPE_CHECKING:
    from matplotlib.figure import Figure

MOST_DIFFERENCES = 200
# Okabe and Ito, as every plot of this project.
_COLOURS = ("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#56B4E9", "#D55E00")
_CSS = """
body { font: 15px/1.45 system-ui, sans-serif; margin: 2em auto; max-width: 64em; padding: 0 1em; }
table { border-collapse: collapse; margin: 0.4em 0 1.6em; }
th, td { padding: 0.15em 0.8em; text-align: right; font-variant-numeric: tabular-nums; }
th { border-bottom: 1px solid #888; font-weight: 600; }
th:first-child, td:first-child { text-align: left; }
td.text { text-align: left; }
figure { display: inline-block; margin: 0 1em 1em 0; }
svg { max-width: 100%; height: auto; }
.missed { color: #b00020; font-weight: 600; }
"""


def page(found: Validation) -> str:
    """The page."""
    body = [f"<h1>{escape(found.name)}</h1>", f"<p>{escape(headline(found))}</p>"]
    for title, header, rows in sections(found):
        if rows:
            body += [f"<h2>{escape(title or 'figures')}</h2>", _table(header, rows)]
    with styled():
        drawn = [(draw(found), (draw.__doc__ or "").split(":")[0].strip()) for draw in _PLOTS]
    body.append("<h2>plots</h2>")
    for place, (figure, title) in enumerate(drawn):
        body.append(f"<figure>{svg_element(figure, f'f{place}', title)}</figure>")
    body += ["<h2>tokens from other sources</h2>", *_differences(found)]
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        f"<title>{escape(found.name)}: validation</title><style>{_CSS}</style></head>\n<body>\n"
        + "\n".join(body)
        + "\n</body></html>\n"
    )


def draw_times(found: Validation) -> Figure:
    """How TTFT is distributed, in every run."""
    figure, axes = _figure()
    for place, run in enumerate(found.runs):
        times = sorted_ttft_ms(run)
        shares = [(rank + 1) / len(times) for rank in range(len(times))]
        last = place == len(found.runs) - 1
        axes.step(
            times, shares, where="post", label=run.name, color=_COLOURS[5 if last else place],
            linestyle="--" if last else "-", linewidth=1.6,
        )  # fmt: skip
    axes.set_xscale("log")
    axes.set(xlabel="TTFT, ms", ylabel="share of the requests", title="TTFT")
    axes.legend()
    return figure


def draw_requests(found: Validation) -> Figure:
    """TTFT of each request, simulated over hardware."""
    figure, axes = _figure()
    real = [each.hardware_ms for each in found.requests]
    axes.scatter(
        real, [each.simulated_ms for each in found.requests], s=9, color=_COLOURS[0], alpha=0.7
    )
    if real:
        ends = [min(real), max(real)]
        axes.plot(ends, ends, color="#888888", linewidth=1)
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.set(
        xlabel="on hardware, ms (mean of its runs)", ylabel="simulated, ms",
        title="TTFT of each request",
    )  # fmt: skip
    return figure


def draw_model(found: Validation) -> Figure:
    """The device model on the machine's own operations: predicted over measured."""
    figure, axes = _figure()
    for place, kind in enumerate(KINDS):
        of_kind = [each for each in found.predictions if each.kind == kind]
        if of_kind:
            axes.scatter(
                [each.measured_ns / 1e6 for each in of_kind],
                [each.predicted_ns / each.measured_ns for each in of_kind],
                s=8, alpha=0.6, color=_COLOURS[place], label=kind,
            )  # fmt: skip
    axes.axhline(1.0, color="#888888", linewidth=1)
    axes.set_xscale("log")
    axes.set(
        xlabel="measured, ms", ylabel="predicted / measured", title="each operation's duration"
    )
    axes.legend(ncols=2)
    return figure


def draw_parts(found: Validation) -> Figure:
    """Mean TTFT in its parts."""
    figure, axes = _figure()
    names = [run.name for run in found.runs]
    left = [0.0] * len(names)
    for place, part in enumerate(found.parts[0]):
        widths = [run[part] for run in found.parts]
        axes.barh(names, widths, left=left, color=_COLOURS[place], label=part, height=0.6)
        left = [before + width for before, width in zip(left, widths, strict=True)]
    axes.invert_yaxis()
    axes.set(xlabel="ms", title="mean TTFT in its parts")
    axes.legend(ncols=2)
    return figure


_PLOTS: tuple[Callable[[Validation], Figure], ...] = (
    draw_times, draw_requests, draw_model, draw_parts,
)  # fmt: skip


def _figure() -> tuple[Figure, Any]:
    return new_figure(5.4, 3.6)


def _table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = ["<table><tr>", *(f"<th>{escape(name)}</th>" for name in header), "</tr>"]
    for row in rows:
        cells = (
            f'<td class="missed">{escape(cell)}</td>'
            if cell == "MISSED"
            else f"<td>{escape(cell)}</td>"
            for cell in row
        )
        lines.append("<tr>" + "".join(cells) + "</tr>")
    return "\n".join([*lines, "</table>"])


def _differences(found: Validation) -> list[str]:
    lines = [f"<p>{escape(line)}</p>" for line in notes(found) if not line.startswith("  ")]
    if not found.differences:
        return lines
    lines.append(
        "<table><tr><th>request</th><th>kind</th><th>hardware: L1, L2, L3, computed</th>"
        "<th>simulated</th><th>the runs differ</th><th>why</th></tr>"
    )
    for each in found.differences[:MOST_DIFFERENCES]:
        real, other = (", ".join(f"{n:,}" for n in t) for t in (each.hardware, each.simulated))
        runs = "" if each.in_runs is None else "yes" if each.in_runs else "no"
        lines.append(
            f"<tr><td>{each.request}</td><td>{each.kind}</td><td>{real}</td><td>{other}</td>"
            f'<td>{runs}</td><td class="text">{escape(each.reason)}</td></tr>'
        )
    lines.append("</table>")
    if len(found.differences) > MOST_DIFFERENCES:
        lines.append(f"<p>{len(found.differences) - MOST_DIFFERENCES} more in validation.json</p>")
    return lines
