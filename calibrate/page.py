"""One page of HTML of a profile: what it rests on, how well its curves hold, and their plots.

It needs no network: figures are in it, as SVG. Two pages of the same profile are the same bytes.
"""

from __future__ import annotations

from html import escape

from calibrate.plots import plots
from calibrate.profile_text import notes, percent_text, value_text
from report.plots.style import svg_element
from scenario.profile import Profile, sourced

_STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; margin: 2rem auto; max-width: 62rem; padding: 0 1rem;
       color: #222; }
table { border-collapse: collapse; margin: 1rem 0; font-size: 13px; }
td, th { padding: .2rem .6rem; border-bottom: 1px solid #ddd; text-align: left;
         vertical-align: top; }
.bad { color: #b00020; } .plots { display: flex; flex-wrap: wrap; gap: 1rem; }
figure { margin: 0; width: 30rem; } figure svg { width: 100%; height: auto; }
figcaption { font-size: 13px; color: #555; }
"""


def page(profile: Profile) -> str:
    """The page."""
    measurement = profile.measurement
    parts = [
        "<!doctype html>\n<html lang='en'><head><meta charset='utf-8'>",
        f"<title>{escape(profile.name)}</title><style>{_STYLE}</style></head><body>",
        f"<h1>{escape(profile.name)}</h1>",
        f"<p>{escape(profile.machine)}<br>{escape(profile.software)}; {escape(profile.date)}; "
        f"{escape(profile.source)}</p>",
    ]
    if measurement is not None:
        facts = [(name, fact) for name, fact in measurement.facts.items()]
        facts += [("command", measurement.command), ("began", measurement.began)]
        facts.append(("took", f"{measurement.duration_s} s"))
        parts.append(_table(("", ""), facts))
        parts.append("<h2>How well the curves hold</h2>")
        parts.append(_fits(profile))
        said = notes(measurement)
        if said:
            items = "".join(f"<li>{escape(f'{where}: {note}')}</li>" for note, where in said)
            parts.append(f"<h2>Of the samples</h2><ul>{items}</ul>")
        if measurement.missing:
            missing = "".join(f"<li>{escape(each)}</li>" for each in measurement.missing)
            parts.append(f"<h2>Not measured</h2><ul>{missing}</ul>")
    parts.append("<h2>Plots</h2><p>Dots made the curve, rings were held out of it.</p>")
    parts.append("<div class='plots'>")
    for plot in plots(profile):
        parts.append(
            f"<figure>{svg_element(plot.figure, plot.name, plot.title)}"
            f"<figcaption>{escape(plot.title)}</figcaption></figure>"
        )
    parts.append("</div><h2>Every value</h2>")
    rows = [
        (key, value.provenance, value_text(key, value), value.how)
        for key, value in sourced(profile)
    ]
    parts.append(_table(("key", "known by", "value", "how"), rows))
    parts.append("</body></html>\n")
    return "\n".join(parts)


def _fits(profile: Profile) -> str:
    assert profile.measurement is not None
    rows = ["<table><tr><th>fit</th><th>kind</th><th>held out</th><th>median error</th>"
            "<th>p95</th><th>verdict</th></tr>"]  # fmt: skip
    for fit in profile.measurement.fits:
        bad = " class='bad'" if fit.verdict.startswith("does not") else ""
        cells = (fit.key, fit.kind, str(fit.held_out), percent_text(fit.median_error_permille),
                 percent_text(fit.p95_error_permille), fit.verdict)  # fmt: skip
        rows.append(f"<tr{bad}>" + "".join(f"<td>{escape(each)}</td>" for each in cells) + "</tr>")
    return "\n".join([*rows, "</table>"])


def _table(header: tuple[str, ...], rows: list[tuple[str, ...]]) -> str:
    head = "".join(f"<th>{escape(each)}</th>" for each in header)
    lines = [f"<table><tr>{head}</tr>"]
    for row in rows:
        lines.append("<tr>" + "".join(f"<td>{escape(each)}</td>" for each in row) + "</tr>")
    return "\n".join([*lines, "</table>"])
