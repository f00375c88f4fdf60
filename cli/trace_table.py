"""The report on a trace as tables for people, made with rich."""

from __future__ import annotations

from collections.abc import Iterator

from rich import box
from rich.console import Console
from rich.table import Table

from traces.report import Ideal, Spread, TraceInfo

LISTED_BAD_ROWS = 5
WIDE = 200


def print_info(info: TraceInfo) -> None:
    """Print the report to standard output."""
    console = Console(highlight=False, markup=False)
    if not console.is_terminal:
        console = Console(highlight=False, markup=False, width=WIDE)
    facts = Table(box=None, show_header=False, pad_edge=False)
    facts.add_column(no_wrap=True)
    facts.add_column(overflow="fold")
    for name, value in _facts(info):
        facts.add_row(name, value)
    console.print(facts)
    console.print(_lengths(info))
    if info.reuse:
        console.print(_reuse(info))
    sharing = info.sharing
    if sharing is not None and sharing.top_prefixes:
        console.print(_prefixes(info))
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
        yield "", f"{info.untimed_requests:,} without a time: they wait for answers"
    if info.sessions:
        outside = info.requests - round(info.turns.total)
        more = f"; {outside:,} requests are of none" if outside else ""
        yield "sessions", f"{info.sessions:,}{more}"
    if info.hints:
        yield "replay hints", ", ".join(f"{name} {value}" for name, value in info.hints.items())
    ideal, pages = info.ideal, info.ideal_pages
    if ideal is None or pages is None:
        yield "ids", "none: no prompt shares anything with another"
        return
    of = f"of {ideal.block_tokens:,} tokens" if ideal.block_tokens else "of any length"
    kind = info.counted
    yield (
        kind,
        f"{ideal.blocks:,} {of} in prompts; "
        f"{info.unique_blocks:,} distinct, named answers included",
    )
    yield "ideal hits", _rates(ideal, kind)
    if (pages.block_tokens, pages.blocks) != (ideal.block_tokens, ideal.blocks):
        yield "", _rates(pages, f"full pages of {pages.block_tokens:,} tokens")
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
            f"{_percent(sharing.used_once)} in blocks of one prompt, "
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


def _reuse(info: TraceInfo) -> Table:
    table = _table("LRU cache for", *(f"{each.part:.0%}" for each in info.reuse))
    unit = "blocks" if info.counted == "blocks" else "pages"
    table.add_row("tokens", *(f"{each.tokens:,}" for each in info.reuse))
    table.add_row(
        f"{unit} of {info.reuse_block_tokens:,} tokens",
        *(f"{each.blocks:,}" for each in info.reuse),
    )
    table.caption = "of the ideal hits"
    table.caption_justify = "left"
    return table


def _prefixes(info: TraceInfo) -> Table:
    assert info.sharing is not None
    table = _table("most repeated prefixes", "requests", "tokens", "of all prompt tokens")
    for number, each in enumerate(info.sharing.top_prefixes, 1):
        share = each.repeated_tokens / info.prompt_tokens.total
        table.add_row(f"{number}", f"{each.requests:,}", f"{each.tokens:,}", _percent(share))
    return table


def _table(*columns: str) -> Table:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
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
