"""Results as one page of HTML that needs nothing else: verdicts, tables, plots, the scenario.

No network (a content policy in the page forbids it), no fonts or scripts from elsewhere, plots as
SVG in the page. It can be read on a phone, printed, and used by keyboard alone. The same results
give the same bytes. Refuses to run or to compute what a summary says.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping
from html import escape
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from report.page_inputs import Inputs, Run
from report.page_style import CSS, SCRIPT
from report.page_tables import request_table, study_tables, summary_table
from report.plots import belief, capacity, devices
from report.plots import requests as plots
from report.plots.style import svg_element

if TYPE_CHECKING:
    from matplotlib.figure import Figure

MADE_BY = "hicache report 1"
MOST_ROWS = 1000
_POLICY = "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; img-src data:"
_SECTIONS = {
    "verdicts": "Comparison", "totals": "Totals", "plots": "Plots", "requests": "Requests",
    "doubts": "Before you believe it", "repeat": "To repeat it",
}  # fmt: skip


def page(found: Inputs, title: str, most_rows: int = MOST_ROWS) -> str:
    """The page. `most_rows`: of the table of requests."""
    sections = {
        "verdicts": list(_studies(found)),
        "totals": [summary_table(found.runs)] if found.runs else [],
        "plots": list(_figures(found)),
        "requests": [request_table(found.runs, most_rows)] if found.runs else [],
        "doubts": list(_doubts(found)),
        "repeat": list(_repeat(found)),
    }
    used = {name: parts for name, parts in sections.items() if parts}
    links = "".join(f'<li><a href="#{name}">{_SECTIONS[name]}</a></li>' for name in used)
    body = [
        '<a class="skip" href="#content">Skip to the content</a>',
        f"<header><h1>{escape(title)}</h1>{''.join(_about(found))}",
        f'<nav aria-label="On this page"><ul>{links}</ul></nav></header>',
        '<main id="content">',
    ]
    for name, parts in used.items():
        body.append(f'<section aria-labelledby="{name}"><h2 id="{name}">{_SECTIONS[name]}</h2>')
        body += [*parts, "</section>"]
    body.append("</main>")
    script = f"<script>{SCRIPT}</script>" if found.runs else ""
    return (
        f'<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f'<meta name="generator" content="{MADE_BY}">'
        f"<title>{escape(title)}</title><style>{CSS}</style></head>\n<body>\n"
        + "\n".join(body)
        + f"\n{script}</body></html>\n"
    )


def _about(found: Inputs) -> Iterator[str]:
    lines: list[str] = []
    for run in found.runs:
        summary = run.summary
        untimed = "" if run.timed else ", untimed"
        cut = ", INTERRUPTED" if summary["interrupted"] else ""
        lines.append(
            f"{summary['trace']['name']}: {summary['requests']:,} requests, {summary['model']} on "
            f"{summary['profile']}, pages of {summary['page_size_tokens']:,} tokens{untimed}{cut}"
        )
    for line in dict.fromkeys(lines):
        yield f'<p class="muted">{escape(line)}</p>'


def _studies(found: Inputs) -> Iterator[str]:
    for document, _ in found.studies:
        for each in document["comparisons"]:
            where = f", {each['trace']}" if len(document["traces"]) > 1 else ""
            yield f"<h3>{escape(each['other'])} against {escape(each['base'])}{escape(where)}</h3>"
            yield f'<p class="verdict">{escape(each["verdict"])}</p>'
            if each["reason"]:
                yield f"<p>{escape(each['reason'])}</p>"
            yield (
                f"<p>Of {each['requests']:,} requests {each['gained']:,} gained, {each['lost']:,} "
                f"lost, {each['same']:,} stayed the same.</p>"
            )
            yield from study_tables(each, document)


def _figures(found: Inputs) -> Iterator[str]:
    yield '<div class="figures">'
    any_drawn = False
    for place, (caption, figure) in enumerate(_drawn(found)):
        any_drawn = True
        yield f"<figure>{svg_element(figure, f'f{place}', caption)}"
        yield f"<figcaption>{escape(caption)}</figcaption></figure>"
    yield "</div>" if any_drawn else "</div><p>There is nothing to draw.</p>"


def _drawn(found: Inputs) -> Iterator[tuple[str, Figure]]:
    """Each picture with a sentence that says what it shows."""
    for document in found.curves:
        caption = "Hits of a cache of every size, and of each result's largest tier"
        yield caption, capacity.draw_curve(document, _points(found, document))
    for name, runs in _by_trace(found).items():
        of = f" of {name}" if len(_by_trace(found)) > 1 else ""
        rows = {run.name: run.rows for run in runs}
        ceiling = runs[0].summary["hit_rates"]["all"]["tokens"]["ceiling"]
        yield f"Prompt tokens by source{of}", plots.tokens_by_source(rows, ceiling)
        timed = {run.name: run.rows for run in runs if run.timed}
        if timed:
            yield f"Distribution of the time to first token{of}", plots.ttft_distribution(timed)
            yield f"Time to first token by prompt length{of}", plots.ttft_by_prompt(timed)
    for document, _ in found.studies:
        for each in document["comparisons"]:
            import pandas

            yield (
                f"Requests that gained and lost, {each['other']} against {each['base']}, "
                f"{each['trace']}",
                plots.changes_by_prompt(
                    pandas.DataFrame(each["by_prompt"]), each["base"], each["other"]
                ),
            )
    for run in found.runs:
        if not run.timed:
            continue
        name = run.name
        yield f"Prompt tokens by source over time, {name}", plots.sources_over_time(run.rows, name)
        if (run.rows["reason"] != "").any():
            yield f"What became of hits below L1, {name}", plots.restores_over_time(run.rows, name)
        yield (
            f"Where the slowest requests spent their time, {name}",
            plots.request_timeline(run.rows),
        )
        if run.timeline is not None:
            operations = devices.operations_of(run.timeline)
            yield f"How busy each device was, {name}", devices.utilisation(operations, name)
            states = devices.states_of(run.timeline)
            if len(states):
                yield f"What waited, {name}", devices.waiting_over_time(states, name)
            if (states["counter"] == "prefetch_fulfilled_tokens").any():
                drawn = devices.prefetches_over_time(states, name)
                yield f"What became of prefetches from L3, {name}", drawn
    for each in found.learned:
        title = f"{each.summary.get('name', '')}: belief against {each.summary.get('profile', '')}"
        settled = each.summary.get("settled_at_decision")
        yield (
            "The cost model's belief over the truth, and what its choices lost",
            belief.belief_against_truth(each.decisions, title, settled),
        )


def _by_trace(found: Inputs) -> dict[str, list[Run]]:
    """Runs of one trace belong into one picture."""
    groups: dict[str, list[Run]] = {}
    for run in found.runs:
        groups.setdefault(run.summary["trace"]["name"], []).append(run)
    return groups


def _points(found: Inputs, document: Mapping[str, Any]) -> Any:
    """Where the results lie in a curve's picture: by the largest of their tiers."""
    import pandas

    rows: list[dict[str, Any]] = []
    for run in found.runs:
        summary = run.summary
        if summary["page_size_tokens"] != document["page_size_tokens"]:
            continue
        if summary["trace"]["sha256"] != document["trace"]["sha256"]:
            continue
        pages = max(each["capacity_pages"] for each in summary["tiers"].values())
        unit = document["page_bytes"] / capacity.GIB if document.get("page_bytes") else 1.0
        hit = 100 * summary["hit_rates"]["all"]["pages"]["total"]
        rows.append(
            {"series": run.name, "kind": "points", "capacity": pages * unit, "hit_percent": hit}
        )
    return pandas.DataFrame(rows, columns=list(capacity.COLUMNS))


def _doubts(found: Inputs) -> Iterator[str]:
    for run in found.runs:
        warnings, estimates = run.summary["warnings"], run.summary["estimates"]
        if not warnings and not estimates:
            continue
        yield f"<h3>{escape(run.name)}</h3>"
        for warning in warnings:
            yield f'<p class="warning">{escape(warning)}</p>'
        if estimates:
            yield "<p>Not measured, but estimated:</p><ul>"
            for each in estimates:
                yield f"<li><code>{escape(each['key'])}</code>: {escape(each['how'])}</li>"
            yield "</ul>"


def _repeat(found: Inputs) -> Iterator[str]:
    for number, (_, text) in enumerate(found.studies):
        name = "compare.toml" if len(found.studies) == 1 else f"compare-{number + 1}.toml"
        yield from _file(name, text, f"hicache compare --file {name}")
    for run in found.runs:
        name = "".join(each if each.isalnum() or each in "-._" else "_" for each in run.name)
        file = f"{name}.toml"
        command = f"hicache replay --scenario {shlex.quote(file)}"
        yield from _file(file, run.result.scenario_text, command)


def _file(name: str, text: str, command: str) -> Iterator[str]:
    data = f"data:text/plain;charset=utf-8,{quote(text)}"
    yield f"<details><summary>{escape(name)}</summary>"
    said = f"<code>{escape(command)}</code>"
    yield f"<p>Save it and say {said}; its trace must lie where it says.</p>"
    yield f'<p><a download="{escape(name, quote=True)}" href="{data}">save {escape(name)}</a></p>'
    yield (
        f'<pre tabindex="0" role="region" aria-label="{escape(name, quote=True)}">'
        f"{escape(text)}</pre></details>"
    )
