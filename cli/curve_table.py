"""A curve's study as text for people. Plain, so that a command of half a second stays one."""

from __future__ import annotations

import os
from collections.abc import Iterator
from math import ceil
from typing import Any

from scenario.sizes import bytes_text
from sim.curve_study import CurveStudy

PARTS = (0.25, 0.5, 0.75, 0.9, 0.99, 1)


def curve_text(study: CurveStudy, page_bytes: int | None = None) -> str:
    """All of the study but the curve itself; with `page_bytes`, capacities in GiB, too."""
    return "\n".join(_lines(study, page_bytes)) + "\n"


def _lines(study: CurveStudy, page_bytes: int | None) -> Iterator[str]:
    document = study.document
    trace, page, asked = document["trace"], document["page_size_tokens"], document["prompt_pages"]
    name = "standard input" if trace["path"] == "-" else os.path.basename(trace["path"])
    cut = ", INTERRUPTED" if study.interrupted else ""
    yield (
        f"{name}: {_number(trace['requests'], 'request')}{cut}, {_number(asked, 'page')} of "
        f"{page:,} tokens; one LRU tier, {document['method']}"
    )
    yield ""
    rows = [("hits", "of pages", "capacity", "")]
    for capacity, label in _places(study):
        hits = study.curve.pages_at(capacity)
        rows.append(
            (f"{hits:,}", _percent(hits, asked), f"{capacity:,}{_in_bytes(capacity, page_bytes)}",
             label)
        )  # fmt: skip
    if len(rows) == 1:
        rows.append(
            ("0", _percent(0, asked), "", "nothing comes again: no cache of any size helps")
        )
    yield from _aligned(rows)
    yield (
        f"the largest request takes {_number(document['largest_request_pages'], 'page')}: a replay "
        "needs an L1 of no less"
    )
    yield from _optimum(document, page_bytes)
    if "tiers" in document:
        yield ""
        yield _tiers(document["tiers"], asked)
    for warning in document["warnings"]:
        yield f"warning: {warning}"


def _places(study: CurveStudy) -> list[tuple[int, str]]:
    curve = study.curve
    places = [(each["capacity_pages"], "asked for") for each in study.document["at"]]
    most = curve.hit_pages[-1]
    if most:
        for part in PARTS:
            label = "all that can be hit" if part == 1 else f"{part:.0%} of all that can be hit"
            places.append((curve.capacity_for(ceil(part * most)), label))
    return sorted(places)


def _optimum(document: dict[str, Any], page_bytes: int | None) -> Iterator[str]:
    for each in document.get("optimum", []):
        capacity, lru, best = each["capacity_pages"], each["lru"], each["may_bypass"]
        insert = each["must_insert"]
        forced = (
            f"{100 * insert['hit_rate_pages']:.2f} for one that must insert"
            if insert
            else "its largest request does not fit, so none can insert all"
        )
        yield ""
        yield (
            f"{capacity:,} pages{_in_bytes(capacity, page_bytes)}: LRU gets "
            f"{100 * lru['hit_rate_pages']:.2f} of the {100 * best['hit_rate_pages']:.2f} points "
            f"that can be had ({forced})"
        )
        yield from _aligned(
            [("", "hit pages", "hit tokens", "of tokens", "last half, tokens", "")]
            + [
                (name, f"{row['hit_pages']:,}", f"{row['hit_tokens']:,}",
                 f"{100 * row['hit_rate_tokens']:.2f} %",
                 f"{row['last_half']['hit_tokens']:,}", "")
                for name, row in (
                    ("LRU", lru), ("optimum, may bypass", best), ("optimum, must insert", insert)
                )
                if row
            ]
        )  # fmt: skip


def _tiers(tiers: dict[str, Any], asked: int) -> str:
    sizes = " + ".join(f"{each:,}" for each in tiers["capacity_pages"])
    if tiers["relation"] == "other":
        best = tiers["together"]
        return (
            f"tiers of {sizes} pages, whatever their policy: at most {best['hit_pages']:,} hits, "
            f"{100 * best['hit_rate_pages']:.2f} % of pages (a bound: the optimum in "
            f"{tiers['as_one_of_pages']:,} pages)"
        )
    parts = ", ".join(
        f"L{number} {hits:,} ({_percent(hits, asked)})"
        for number, hits in enumerate(tiers["hit_pages"], 1)
    )
    return (
        f"{tiers['relation']} tiers of {sizes} pages ({tiers['kind']}): {parts}; together "
        f"{_percent(tiers['hit_pages_together'], asked)}, as one tier of "
        f"{tiers['as_one_of_pages']:,} pages"
    )


def _number(count: int, noun: str) -> str:
    return f"{count:,} {noun}{'' if count == 1 else 's'}"


def _in_bytes(pages: int, page_bytes: int | None) -> str:
    return f" ({bytes_text(pages * page_bytes)})" if page_bytes else ""


def _percent(hits: int, asked: int) -> str:
    return f"{100 * hits / max(1, asked):.2f} %"


def _aligned(rows: list[tuple[str, ...]]) -> Iterator[str]:
    """Columns to the right, but for the last, and the first where it is of words."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    words = not rows[0][0]
    for row in rows:
        first = row[0].ljust(widths[0]) if words else row[0].rjust(widths[0])
        middle = [cell.rjust(width) for cell, width in zip(row[1:-1], widths[1:-1], strict=True)]
        yield "  ".join((first, *middle, row[-1])).rstrip()
