"""A comparison as text for people: verdict, differences with intervals, where they come from."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Any

from sim.compare import Comparison, Contrast
from sim.compare_pairs import by_part, by_prompt, by_source, counts, tokens_by_source
from sim.compare_stats import CONFIDENCE, Difference
from sim.compare_verdict import judgement

MOST_SOURCES = 6
_MARKS = {1: "better", -1: "worse", 0: ""}


def comparison_text(found: Comparison) -> str:
    """All contrasts, one below the other."""
    return "\n".join(_lines(found)) + "\n"


def _lines(found: Comparison) -> Iterator[str]:
    names = [each.name for each in found.study.variants]
    requests = sum(len(leg.rows) for leg in found.legs[:: len(names)])
    mode = "" if found.timed else ", untimed"
    yield f"{', '.join(found.names)}: {requests:,} requests; {' / '.join(names)}{mode}"
    for each in found.contrasts:
        yield ""
        yield from contrast_lines(found, each)
    warnings = list(_warnings(found))
    if warnings:
        yield ""
        yield from warnings


def contrast_lines(found: Comparison, each: Contrast) -> Iterator[str]:
    """One variant against the first, over one trace or all of them."""
    where = f" on {each.trace}" if len(found.names) > 1 else ""
    yield f"{each.other} against {each.base}{where}"
    yield f"  {each.verdict}"
    if each.reason:
        yield f"  {each.reason}"
    yield ""
    yield from aligned(difference_rows(each), indent=2)
    if len(found.names) > 1 and each.trace in found.names:
        return  # where it comes from is told of all traces together
    yield ""
    yield from aligned(_prompt_rows(each, timed=found.timed), indent=2)
    yield ""
    yield from aligned(_source_rows(each, timed=found.timed), indent=2)
    yield ""
    yield f"  {_tokens(each)}"
    if found.timed:
        yield f"  {_parts(each)}"


def _warnings(found: Comparison) -> Iterator[str]:
    """Each warning once, with whom it is about: those that differ in numbers alone are one."""
    kinds: dict[str, tuple[str, list[str]]] = {}
    for leg in found.legs:
        summary: Any = leg.outcome.summary
        for text in summary["warnings"]:
            kind = re.sub(r"[\d,.]+", "", text)
            kinds.setdefault(kind, (text, []))[1].append(leg.variant.name)
    for text, names in kinds.values():
        yield f"warning: {', '.join(dict.fromkeys(names))}: {text}"


def difference_rows(found: Contrast) -> list[tuple[str, ...]]:
    """Header and one row a metric."""
    rows = [("", found.base, found.other, "difference", f"{CONFIDENCE:.0%} interval", "")]
    for each in found.differences:
        digits = 2 if each.metric.unit == "points" else 1 if each.metric.unit == "ms" else 3
        unit = {"points": " %", "ms": " ms", "/s": ""}[each.metric.unit]
        rows.append(
            (
                each.metric.title,
                f"{each.base:,.{digits}f}{unit}", f"{each.other:,.{digits}f}{unit}",
                f"{each.value:+,.{digits}f}", _interval(each, digits), _MARKS[judgement(each)],
            )
        )  # fmt: skip
    gained = counts(found.pairs)
    rows.append(
        ("requests", "", "", f"{gained['gained']:,} gained, {gained['lost']:,} lost",
         f"{gained['same']:,} the same", "")
    )  # fmt: skip
    return rows


def aligned(rows: Sequence[Sequence[str]], *, indent: int = 0) -> Iterator[str]:
    """The rows as lines: the first column to the left, all others to the right."""
    widths = [max(len(row[place]) for row in rows) for place in range(len(rows[0]))]
    for row in rows:
        cells = [
            cell.ljust(width) if place == 0 else cell.rjust(width)
            for place, (cell, width) in enumerate(zip(row, widths, strict=True))
        ]
        yield (" " * indent + "  ".join(cells)).rstrip()


def _interval(found: Difference, digits: int) -> str:
    if found.low is None or found.high is None:
        return "-"
    return f"{found.low:+,.{digits}f} to {found.high:+,.{digits}f}"


def _prompt_rows(found: Contrast, *, timed: bool) -> list[tuple[str, ...]]:
    rows = [("prompt tokens", *_heads(timed=timed))]
    for row in by_prompt(found.pairs, timed=timed):
        label = f"{row['from_tokens']:,} - {row['to_tokens'] - 1:,}"
        rows.append((label, *_cells(row, timed=timed)))
    return rows


def _source_rows(found: Contrast, *, timed: bool) -> list[tuple[str, ...]]:
    rows = [(f"hits down to, {found.base} > {found.other}", *_heads(timed=timed))]
    for row in by_source(found.pairs, timed=timed)[:MOST_SOURCES]:
        rows.append((f"{row['base']} > {row['other']}", *_cells(row, timed=timed)))
    return rows


def _heads(*, timed: bool) -> tuple[str, ...]:
    heads = ("requests", "gained", "lost", "hit tokens")
    return (*heads, "mean TTFT ms", "TTFT in all, s") if timed else heads


def _cells(row: dict[str, Any], *, timed: bool) -> tuple[str, ...]:
    cells = (
        f"{row['requests']:,}", f"{row['gained']:,}", f"{row['lost']:,}",
        f"{row['hit_change_tokens']:+,}",
    )  # fmt: skip
    if not timed:
        return cells
    base, other = row["ttft_mean_ms_base"], row["ttft_mean_ms_other"]
    means = "-" if base is None or other is None else f"{base:,.0f} > {other:,.0f}"
    return (*cells, means, f"{row['ttft_change_s']:+,.1f}")


def _tokens(found: Contrast) -> str:
    parts = [f"{name} {row['change']:+,}" for name, row in tokens_by_source(found.pairs).items()]
    return f"prompt tokens by source: {', '.join(parts)}"


def _parts(found: Contrast) -> str:
    parts = [f"{name} {row['change_ms']:+,.1f}" for name, row in by_part(found.pairs).items()]
    return f"mean TTFT in its parts, ms: {', '.join(parts)}"
