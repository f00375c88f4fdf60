"""The tables of a report as HTML. Whatever came from a file is escaped."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from typing import Any, NamedTuple

from report.page_inputs import Run

GIB = 1 << 30


class Cell(NamedTuple):
    """A cell: its text, the number to sort by (None: last) if it `sorts` by one, and a class."""

    text: str
    number: float | None = None
    kind: str = ""
    sorts: bool = False


def number_cell(value: float | None, digits: int = 0, kind: str = "") -> Cell:
    """A number, or "-" where there is none."""
    if value is None or value != value:  # noqa: PLR0124
        return Cell("-", None, kind, sorts=True)
    return Cell(f"{value:,.{digits}f}", float(value), kind, sorts=True)


def table(
    caption: str,
    heads: Sequence[str],
    rows: Sequence[Sequence[Cell | str]],
    *,
    sortable_as: str = "",
) -> str:
    """A table in a box of its own that scrolls, and can be reached by keyboard to do so.

    `sortable_as`: an id; headers become buttons then, and a box to filter by stands above.
    """
    label = escape(caption, quote=True)
    extra, box, above = "", "scroll", ""
    if sortable_as:
        extra = (
            f' class="sortable" id="{sortable_as}" data-status="{sortable_as}-status" '
            f'data-filter="{sortable_as}-filter"'
        )
        box = "scroll requests"
        above = (
            f'<div class="tools"><label>show rows with <input type="search" '
            f'id="{sortable_as}-filter" autocomplete="off"></label> '
            f'<span class="muted" role="status" id="{sortable_as}-status"></span></div>\n'
        )
    lines = [
        f'{above}<div class="{box}" role="region" aria-label="{label}" tabindex="0">',
        f"<table{extra}><caption>{escape(caption)}</caption><thead><tr>",
    ]
    for head in heads:
        shown = escape(head)
        if sortable_as:
            lines.append(
                f'<th scope="col" aria-sort="none"><button type="button">{shown}</button></th>'
            )
        else:
            lines.append(f'<th scope="col">{shown}</th>')
    lines.append("</tr></thead><tbody>")
    lines += [_row(row) for row in rows]
    return "\n".join([*lines, "</tbody></table></div>"])


def _row(row: Sequence[Cell | str]) -> str:
    cells: list[str] = []
    for place, each in enumerate(row):
        cell = each if isinstance(each, Cell) else Cell(each)
        attributes = f' class="{cell.kind}"' if cell.kind else ""
        if cell.sorts:
            attributes += f' data-v="{"" if cell.number is None else f"{cell.number:.9g}"}"'
        if place == 0:
            cells.append(f'<th scope="row"{attributes}>{escape(cell.text)}</th>')
        else:
            cells.append(f"<td{attributes}>{escape(cell.text)}</td>")
    return f"<tr>{''.join(cells)}</tr>"


def summary_table(runs: Sequence[Run]) -> str:
    """Every result in a column, totals in rows."""
    rows = [
        [label, *(_summary_cell(run, kind, path) for run in runs)]
        for label, kind, path in _SUMMARY_ROWS
    ]
    rows = [row for row in rows if any(cell.text != "-" for cell in row[1:])]  # pyright: ignore[reportAttributeAccessIssue]
    return table("Totals", ["", *(run.name for run in runs)], rows)


_SUMMARY_ROWS = (
    ("trace", "text", "trace.name"),
    ("model", "text", "model"),
    ("machine", "text", "profile"),
    ("requests", "count", "requests"),
    ("prompt tokens", "count", "prompt_tokens"),
    ("L1, GiB", "gib", "tiers.device.capacity_bytes"),
    ("L2, GiB", "gib", "tiers.host.capacity_bytes"),
    ("L3, GiB", "gib", "tiers.storage.capacity_bytes"),
    ("hit rate by token, %", "percent", "hit_rates.all.tokens.total"),
    ("of it from L1, %", "percent", "hit_rates.all.tokens.device"),
    ("of it from L2, %", "percent", "hit_rates.all.tokens.host"),
    ("of it from L3, %", "percent", "hit_rates.all.tokens.storage"),
    ("ceiling (infinite cache), %", "percent", "hit_rates.all.tokens.ceiling"),
    ("TTFT p50, ms", "ms", "ttft_ms.p50"),
    ("TTFT p90, ms", "ms", "ttft_ms.p90"),
    ("TTFT p99, ms", "ms", "ttft_ms.p99"),
    ("TTFT mean, ms", "ms", "ttft_ms.mean"),
    ("TPOT p50, ms", "ms", "tpot_ms.p50"),
    ("end to end p50, ms", "ms", "e2e_ms.p50"),
    ("requests a second", "rate", "throughput.requests_per_s"),
    ("output tokens a second", "rate", "throughput.output_tokens_per_s"),
    ("GPU busy, %", "percent", "gpu.busy_fraction"),
    ("restores done", "count", "restores.done"),
    ("restores declined by the policy", "count", "restores.policy_skips"),
    ("restores that fell back", "count", "restores.fallbacks"),
    ("loaded L2 > L1, GiB", "gib", "bytes.h2d"),
    ("read L3 > L2, GiB", "gib", "bytes.s2h"),
    ("written L1 > L2, GiB", "gib", "bytes.d2h"),
    ("written L2 > L3, GiB", "gib", "bytes.h2s"),
)


def _summary_cell(run: Run, kind: str, path: str) -> Cell:
    value: Any = run.summary
    for key in path.split("."):
        value = value.get(key) if isinstance(value, Mapping) else None
    if value is None:
        return Cell("-")
    if kind == "text":
        return Cell(str(value))
    if kind == "count":
        return Cell(f"{value:,}")
    if kind == "gib":
        return Cell(f"{value / GIB:,.1f}" if value else "-")
    if kind == "percent":
        return Cell(f"{100 * value:,.2f}")
    return Cell(f"{value:,.{1 if kind == 'ms' else 2}f}")


_REQUEST_HEADS = (
    "request", "session", "arrival s", "prompt tokens", "L1", "L2", "L3", "computed", "queue ms",
    "restore ms", "prefill ms", "TTFT ms", "end to end ms", "why",
)  # fmt: skip


def request_table(runs: Sequence[Run], most: int) -> str:
    """The requests that waited longest for their first token (untimed: that computed most), at most
    `most` of them, in one table for all results.
    """
    heads = [*(("result",) if len(runs) > 1 else ()), *_REQUEST_HEADS]
    each_most = max(1, most // max(len(runs), 1))
    rows: list[list[Cell | str]] = []
    total = 0
    for run in runs:
        order = "ttft_ns" if run.timed else "computed_tokens"
        total += len(run.rows)
        chosen = run.rows.sort_values([order, "request"], ascending=[False, True]).head(each_most)
        for row in chosen.to_dict("records"):
            before: list[Cell | str] = [run.name] if len(runs) > 1 else []
            rows.append([*before, *_request_cells(row, timed=run.timed)])
    by = "TTFT" if all(run.timed for run in runs) else "TTFT, or of most computed tokens"
    caption = f"{len(rows):,} of {total:,} requests"
    if len(rows) < total:
        caption += f", those of longest {by}; all stand in requests.parquet"
    return table(caption, heads, rows, sortable_as="requests-table")


def _request_cells(row: Mapping[Any, Any], *, timed: bool) -> list[Cell]:
    def ms(name: str) -> Cell:
        value = row[name] if timed else None
        return number_cell(None if value is None else float(value) / 1e6, 1)

    return [
        number_cell(row["request"]),
        Cell(str(row["session"] or ""), kind="text"),
        number_cell(float(row["arrival_ns"]) / 1e9 if timed else None, 1),
        number_cell(row["prompt_tokens"]),
        *(number_cell(row[f"{each}_tokens"]) for each in ("device", "host", "storage", "computed")),
        ms("queue_ns"), ms("restore_ns"), ms("prefill_ns"), ms("ttft_ns"), ms("e2e_ns"),
        Cell(str(row["reason"] or ""), kind="text"),
    ]  # fmt: skip


_JUDGED = {0: Cell(""), 1: Cell("better", kind="good"), -1: Cell("worse", kind="bad")}


def study_tables(found: Mapping[str, Any], document: Mapping[str, Any]) -> list[str]:
    """One contrast of a comparison: differences, and where they come from."""
    base, other = found["base"], found["other"]
    timed = document["mode"] == "timed"
    names = {each["key"]: each for each in document["metrics"]}
    rows: list[list[Cell | str]] = []
    for key, each in found["differences"].items():
        unit = names[key]["unit"]
        digits = {"points": 2, "ms": 1}.get(unit, 3)
        low, high = each["low"], each["high"]
        interval = "-" if low is None else f"{low:+,.{digits}f} to {high:+,.{digits}f}"
        rows.append(
            [
                names[key]["title"] + {"points": ", %", "ms": ", ms"}.get(unit, ""),
                number_cell(each["base"], digits), number_cell(each["other"], digits),
                f"{each['difference']:+,.{digits}f}", interval,
                _JUDGED[each["judgement"]],
            ]
        )  # fmt: skip
    percent = f"{document['bootstrap']['confidence']:.0%} interval"
    heads = ["", base, other, "difference", percent, ""]
    draws = document["bootstrap"]["resamples"]
    drawn = f"{draws:,} draws of {found['units']:,} units ({found['unit']})"
    tables = [table(f"Differences; intervals from {drawn}", heads, rows)]
    tables.append(
        table(
            "By prompt length",
            ["prompt tokens", *_change_heads(timed)],
            [
                [f"{row['from_tokens']:,} - {row['to_tokens'] - 1:,}", *_change_cells(row, timed)]
                for row in found["by_prompt"]
            ],
        )
    )
    tables.append(
        table(
            f"By how far down hits reached, under {base} and under {other}",
            ["source", *_change_heads(timed)],
            [
                [f"{row['base']} > {row['other']}", *_change_cells(row, timed)]
                for row in found["by_source"]
            ],
        )
    )
    for word in ("gained", "lost"):
        rows = [_changed_cells(row, base, other) for row in found["most_changed"][word]]
        if rows:
            heads = ["request", "trace", "session", "prompt tokens", f"from, {base}",
                     f"from, {other}", f"TTFT ms, {base}", f"TTFT ms, {other}"]  # fmt: skip
            tables.append(table(f"Requests that {word} most", heads, rows))
    return tables


def _change_heads(timed: bool) -> list[str]:
    heads = ["requests", "gained", "lost", "hit tokens"]
    return [*heads, "mean TTFT ms", "then", "TTFT in all, s"] if timed else heads


def _change_cells(row: Mapping[str, Any], timed: bool) -> list[Cell | str]:
    cells: list[Cell | str] = [
        f"{row['requests']:,}", f"{row['gained']:,}", f"{row['lost']:,}",
        f"{row['hit_change_tokens']:+,}",
    ]  # fmt: skip
    if timed:
        cells += [
            number_cell(row["ttft_mean_ms_base"], 1), number_cell(row["ttft_mean_ms_other"], 1),
            f"{row['ttft_change_s']:+,.1f}",
        ]  # fmt: skip
    return cells


def _changed_cells(row: Mapping[str, Any], base: str, other: str) -> list[Cell | str]:
    def sources(side: Mapping[str, Any]) -> Cell:
        parts = [f"{each} {side[each]:,}" for each in ("L1", "L2", "L3", "computed") if side[each]]
        return Cell(", ".join(parts), kind="text")

    return [
        f"{row['request']:,}", Cell(str(row["trace"]), kind="text"),
        Cell(str(row["session"]), kind="text"), f"{row['prompt_tokens']:,}",
        sources(row["base"]), sources(row["other"]),
        number_cell(row["base"]["ttft_ms"], 1), number_cell(row["other"]["ttft_ms"], 1),
    ]  # fmt: skip
