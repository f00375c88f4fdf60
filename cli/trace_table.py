"""The report on a trace as tables for people, made with rich."""

from __future__ import annotations

import io
from collections.abc import Iterator

from rich import box
from rich.console import Console
from rich.table import Table

from scenario.geometry import ModelGeometry
from traces.report import Ideal, Spread, TraceInfo

LISTED_BAD_ROWS = 5
WIDE = 200


def print_info(info: TraceInfo, geometry: ModelGeometry | None = None) -> None:
    """Print the report to standard output; with `geometry`, caches also in GiB of its KV."""
    console = Console(highlight=False, markup=False)
    if console.is_terminal:
        _print(console, info, geometry)
        return
    # Tables are padded: a file or a pipe gets their lines without the blanks at the end.
    padded = io.StringIO()
    _print(Console(file=padded, highlight=False, markup=False, width=WIDE), info, geometry)
    print("\n".join(line.rstrip() for line in padded.getvalue().splitlines()))


def _print(console: Console, info: TraceInfo, geometry: ModelGeometry | None) -> None:
    facts = Table(box=None, show_header=False, pad_edge=False)
    facts.add_column(no_wrap=True)
    facts.add_column(overflow="fold")
    for name, value in _facts(info):
        facts.add_row(name, value)
    console.print(facts)
    tables = [_lengths(info)]
    if info.reuse:
        tables.append(_reuse(info, geometry))
    sharing = info.sharing
    if sharing is not None and sharing.top_prefixes:
        tables.append(_prefixes(info))
    for table in tables:
        console.print()
        console.print(table)
    if info.looks_wrong or info.notes or info.listed_bad_rows:
        console.print()
    for name, lines in (("looks wrong", info.looks_wrong), ("note", info.notes)):
        for line in lines:
            console.print(f"{name}: {line}", soft_wrap=True)
    for line in info.listed_bad_rows[:LISTED_BAD_ROWS]:
        console.print(f"left out: {line}", soft_wrap=True)


def _facts(info: TraceInfo) -> Iterator[tuple[str, str]]:
    yield "trace", "standard input" if info.path == "-" else info.path
    yield "format", info.format
    yield "sha256", info.sha256
    rate = ""
    if info.duration_s:
        rate = (
            f" in {_duration(info.duration_s)}: {info.mean_rate_per_s:,.3g} a second on average, "
            f"{info.peak_requests_per_minute:,} in the busiest minute"
        )
    yield "requests", f"{info.requests:,}{rate}"
    if info.untimed_requests:
        yield "", f"{info.untimed_requests:,} without a time, {_waiting(info)}"
    if info.sessions:
        outside = info.requests - round(info.turns.total)
        more = f"; {outside:,} requests are of none" if outside else ""
        yield "sessions", f"{info.sessions:,}{more}"
    hints = dict(info.hints)
    if first_day := hints.pop("first_day", None):
        yield "first day", str(first_day)
    if hints:
        yield "replay hints", ", ".join(f"{name} {value}" for name, value in hints.items())
    ideal, pages = info.ideal, info.ideal_pages
    if ideal is None or pages is None:
        yield "ids", "none: no prompt shares anything with another"
        return
    of = f"of {ideal.block_tokens:,} tokens" if ideal.block_tokens else "of any length"
    kind = info.counted
    yield (
        kind,
        f"{ideal.blocks:,} {of} in prompts; in prompts and named answers "
        f"{info.unique_blocks:,} distinct ones",
    )
    yield "ideal hits", _rates(ideal, kind)
    if (pages.block_tokens, pages.blocks) != (ideal.block_tokens, ideal.blocks):
        of = f"full pages of {pages.block_tokens:,} tokens"
        same = f"{pages.hit_rate_tokens:.4f}" == f"{ideal.hit_rate_tokens:.4f}"
        yield "", f"{pages.hit_rate_blocks:.4f} of {of}" if same else _rates(pages, of)
    recorded = info.recorded
    if recorded is not None:
        yield (
            "recorded hits",
            f"{recorded.hit_rate_tokens:.4f} of tokens, as {recorded.requests:,} requests say "
            f"(their ideal: {recorded.ideal_hit_rate_tokens:.4f})",
        )
    sharing = info.sharing
    if sharing is not None:
        yield (
            "prompt tokens",
            f"{_percent(sharing.used_once)} in {_unit(info)} of one prompt, "
            f"{_percent(sharing.used_2_to_9_times)} of 2 to 9, "
            f"{_percent(sharing.used_10_times_or_more)} of 10 or more, "
            f"{_percent(sharing.without_id)} in none",
        )
        if sharing.common_prefix_tokens:
            yield "", f"all prompts start with the same {sharing.common_prefix_tokens:,} tokens"


def _rates(ideal: Ideal, of: str) -> str:
    return f"{ideal.hit_rate_blocks:.4f} of {of}, {ideal.hit_rate_tokens:.4f} of all prompt tokens"


def _lengths(info: TraceInfo) -> Table:
    table = _table("", "mean", "p50", "p90", "p99", "max", "total")
    rows: list[tuple[str, Spread | None]] = [
        ("prompt tokens", info.prompt_tokens),
        ("output tokens", info.output_tokens),
        ("turns a session", info.turns if info.sessions else None),
        ("think time, s", info.think_s),
    ]
    for name, spread in rows:
        if spread is not None:
            numbers = (spread.mean, spread.p50, spread.p90, spread.p99, spread.max, spread.total)
            table.add_row(name, *map(_number, numbers))
    return table


def _waiting(info: TraceInfo) -> str:
    if info.waiting_requests == info.untimed_requests:
        return "all of which wait for an answer"
    return f"{info.waiting_requests:,} of which wait for an answer"


def _unit(info: TraceInfo) -> str:
    """What `reuse` and `sharing` count."""
    return "blocks" if info.counted == "blocks" else "pages"


def _reuse(info: TraceInfo, geometry: ModelGeometry | None) -> Table:
    parts = (f"{each.part:.0%}" for each in info.reuse)
    table = _table("LRU cache for a part of the ideal hits", *parts)
    table.add_row("tokens", *(f"{each.tokens:,}" for each in info.reuse))
    table.add_row(
        f"{_unit(info)} of {info.reuse_block_tokens:,} tokens",
        *(f"{each.blocks:,}" for each in info.reuse),
    )
    if geometry is not None:
        of_token = geometry.kv_bytes_per_token
        sizes = (_number(each.tokens * of_token / (1 << 30)) for each in info.reuse)
        table.add_row(f"GiB of {geometry.name}'s KV", *sizes)
    return table


def _prefixes(info: TraceInfo) -> Table:
    assert info.sharing is not None
    table = _table("most repeated prefixes", "requests", "tokens", "of all prompt tokens")
    for number, each in enumerate(info.sharing.top_prefixes, 1):
        share = each.repeated_tokens / info.prompt_tokens.total
        table.add_row(f"{number}", f"{each.requests:,}", f"{each.tokens:,}", _percent(share))
    return table


def _table(*columns: str) -> Table:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False)
    for index, name in enumerate(columns):
        table.add_column(name, justify="right" if index else "left", no_wrap=True)
    return table


def _percent(part: float) -> str:
    return f"{100 * part:.1f} %"


def _number(number: float) -> str:
    if number >= 100 or number == int(number):
        return f"{number:,.0f}"
    return f"{number:.3g}"


def _duration(seconds: float) -> str:
    if seconds < 120:
        return f"{seconds:,.3g} s"
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 120:
        return f"{minutes} min {rest} s"
    hours, minutes = divmod(minutes, 60)
    if hours < 48:
        return f"{hours} h {minutes} min"
    days, hours = divmod(hours, 24)
    return f"{days} days {hours} h"
