"""The summary as one table for people, made with rich."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

GIB = 1 << 30
_NAMES = {"device": "L1 device", "host": "L2 host", "storage": "L3 storage"}
_DROPS = {
    "host_pressure": "had no room in L2",
    "storage_pressure": "had no room in L3",
    "write_backlog": "found too much waiting for L3",
    "transfer_failed": "were lost with a failed copy",
    "write_through_unbacked_eviction": "left L1 before they were anywhere else",
}
_ARROWS = {"d2h": "L1 > L2", "h2d": "L2 > L1", "h2s": "L2 > L3", "s2h": "L3 > L2"}


def load_rich() -> None:
    """Import what `print_summary` needs: a twelfth of a second that can be spent while others
    work.
    """
    from rich import box, console, table  # noqa: F401


def print_summary(summary: Mapping[str, Any], folder: str | None = None) -> None:
    """Print the table, the warnings and where the result lies, to standard output."""
    from rich import box
    from rich.table import Table

    from report.console import table_console

    console = table_console()
    narrow = console.width < 105
    table = Table(box=box.SIMPLE_HEAD, title=_title(summary), title_justify="left", pad_edge=False)
    table.add_column("")
    names = ("tokens", "of prompt", "of pages", "last half", "capacity", "evicted")
    shown = [0, 1, 2, 6] if narrow else range(len(names) + 1)
    for place in shown[1:]:
        table.add_column(names[place - 1], justify="right", no_wrap=True)
    for row in _source_rows(summary):
        table.add_row(*(row[place] for place in shown))
    console.print(table)
    if summary["mode"] == "timed":
        console.print(_times(summary, Table(box=box.SIMPLE_HEAD, pad_edge=False)))
    moved = [(name, each) for name, each in summary["transfers"].items() if each["operations"]]
    if moved:
        console.print(_transfers(moved, Table(box=box.SIMPLE_HEAD, pad_edge=False)))
    for line in _lines(summary):
        console.print(line, soft_wrap=True)
    for warning in summary["warnings"]:
        console.print(f"[yellow]warning:[/] {_plain(warning)}", soft_wrap=True)
    if summary["estimates"]:
        count = len(summary["estimates"])
        console.print(
            f"{count} inputs {'is an estimate' if count == 1 else 'are estimates'}, not measured: "
            "see summary.json",
            soft_wrap=True,
        )
    if folder:
        console.print(f"result: {_plain(folder)}", soft_wrap=True)


def print_sessions(columns: Mapping[str, Any], most: int = 10) -> None:
    """Print the sessions with the most prompt tokens, to standard output."""
    from rich import box
    from rich.console import Console
    from rich.table import Table

    from scenario.sessions import by_session

    rows = by_session(columns)
    console = Console(highlight=False)
    if not rows:
        console.print("the trace has no sessions")
        return
    title = "sessions, by prompt tokens"
    if len(rows) > most:
        title = f"the {most} of {len(rows):,} sessions with the most prompt tokens"
    table = Table(box=box.SIMPLE_HEAD, title=title, title_justify="left", pad_edge=False)
    table.add_column("session")
    for name in ("requests", "prompt tokens", "hit", "mean TTFT ms"):
        table.add_column(name, justify="right")
    rows.sort(key=lambda row: -row["prompt_tokens"])
    for row in rows[:most]:
        first = row["mean_ttft_ns"]
        table.add_row(
            _plain(row["session"]), f"{row['requests']:,}", f"{row['prompt_tokens']:,}",
            _percent(row["cache_hit_rate"]), _ms(first / 1e6 if first else None),
        )  # fmt: skip
    console.print(table)


def _title(summary: Mapping[str, Any]) -> str:
    trace = summary["trace"]
    speed = f", speed {trace['speed']:g}" if trace["speed"] != 1 else ""
    speed += _load(summary["load"])
    untimed = ", untimed" if summary["mode"] == "untimed" else ""
    cut = ", INTERRUPTED" if summary["interrupted"] else ""
    return _plain(
        f"{trace['name']}: {summary['requests']:,} requests, {summary['prompt_tokens']:,} prompt "
        f"tokens, {summary['model']} on {summary['profile']}, "
        f"page {summary['page_size_tokens']}{speed}{untimed}{cut}"
    )


def _load(load: Mapping[str, Any]) -> str:
    parts: list[str] = []
    if load["rate_per_s"]:
        parts.append(f"{load['arrivals']} {load['rate_per_s']:g}/s")
    elif load["arrivals"] == "at_once":
        parts.append("all at once")
    if load["loop"] == "closed":
        parts.append("closed loop")
        if load["clients"]:
            parts.append(f"{load['clients']:,} clients")
        if load["parallel"]:
            parts.append(f"{load['parallel']:,} in parallel")
        if load["barrier"]:
            parts.append("barrier")
    return "".join(f", {part}" for part in parts)


def _source_rows(summary: Mapping[str, Any]) -> list[tuple[str, ...]]:
    rates, rows = summary["hit_rates"], []
    if not summary["trace"]["has_ids"]:
        computed = f"{summary['prompt_tokens']:,}"
        return [
            ("computed", computed, "100.00 %", "", "", "", ""),
            ("hit: unknown, the trace has lengths only", "", "", "", "", "", ""),
        ]
    tokens, pages = rates["all"]["tokens"], rates["all"]["pages"]
    half = rates["last_half"]["tokens"]
    for tier, label in _NAMES.items():
        size = summary["tiers"][tier]
        rows.append(
            (
                label, f"{summary['cached_tokens_total'][tier]:,}", _percent(tokens[tier]),
                _percent(pages[tier]), _percent(half[tier]),
                f"{size['capacity_bytes'] / GIB:,.1f} GiB" if size["capacity_pages"] else "-",
                f"{summary['evicted_tokens_total'][tier]:,}",
            )
        )  # fmt: skip
    prompt = summary["prompt_tokens"]
    computed = summary["computed_tokens"]
    rows.append(
        ("computed", f"{computed:,}", _percent(computed / prompt if prompt else 0), "", "", "", "")
    )
    rows.append(
        ("hit", f"{tokens['hit']:,}", _percent(tokens["total"]), _percent(pages["total"]),
         _percent(half["total"]), "", "")
    )  # fmt: skip
    rows.append(
        ("ceiling (infinite cache)", f"{tokens['ceiling_hit']:,}", _percent(tokens["ceiling"]),
         _percent(pages["ceiling"]), _percent(half["ceiling"]), "", "")
    )  # fmt: skip
    return rows


def _times(summary: Mapping[str, Any], table: Any) -> Any:
    table.add_column("ms")
    for name in ("p50", "p90", "p99", "mean"):
        table.add_column(name, justify="right")
    for label, key in (
        ("TTFT", "ttft_ms"), ("  of it in the queue", "queue_ms"), ("TPOT", "tpot_ms"),
        ("end to end", "e2e_ms"),
    ):  # fmt: skip
        spread = summary[key]
        table.add_row(label, *(_ms(spread[name]) for name in ("p50", "p90", "p99", "mean")))
    return table


def _transfers(moved: list[tuple[str, Any]], table: Any) -> Any:
    table.add_column("moved")
    for name in ("operations", "GiB", "GiB/s", "mean ms", "failed"):
        table.add_column(name, justify="right")
    for name, each in moved:
        rate, end_to_end = each.get("gib_per_s"), each.get("mean_end_to_end_ms")
        table.add_row(
            f"{_ARROWS[name]} ({name})", f"{each['operations']:,}", f"{each['bytes'] / GIB:,.1f}",
            f"{rate:.2f}" if rate else "-", _ms(end_to_end), f"{each['failed']:,}",
        )  # fmt: skip
    return table


def _ranks(sizes: Mapping[str, Any]) -> str:
    parts = [
        f"{_NAMES[tier]} {sizes[f'{tier}_per_rank_bytes'] / GIB:,.1f} GiB, "
        f"{sizes[f'{tier}_per_node_bytes'] / GIB:,.1f} GiB"
        for tier in ("host", "storage")
        if sizes[f"{tier}_per_rank_bytes"]
    ]
    node = f"; a rank and a node have {'; '.join(parts)}" if parts else ""
    return f"sizes and bytes are those of one of {sizes['tp']} ranks{node}"


def _lines(summary: Mapping[str, Any]) -> list[str]:
    lines: list[str] = []
    if "ranks" in summary:
        lines.append(_ranks(summary["ranks"]))
    if summary["mode"] == "timed":
        rate, gpu = summary["throughput"], summary["gpu"]
        lines.append(
            f"{rate['requests_per_s']:.3g} requests/s, {rate['prompt_tokens_per_s']:,.0f} prompt "
            f"and {rate['output_tokens_per_s']:,.0f} output tokens/s over "
            f"{rate['duration_s']:,.0f} s; GPU busy {gpu['busy_fraction']:.0%}"
        )
    restores = summary["restores"]
    if restores["done"] or restores["policy_skips"] or restores["fallbacks"]:
        hidden = (
            f", {restores['under_decode_seconds'] / restores['seconds']:.0%} of their time under "
            "decode"
            if restores["seconds"]
            else ""
        )
        lines.append(
            f"restores: {restores['done']:,} done{hidden}, {restores['policy_skips']:,} declined "
            f"by the policy, {restores['joined']:,} joined, {restores['fallbacks']:,} fell back"
        )
    dropped = {k: v for k, v in summary["hicache_dropped_tokens_total"].items() if v}
    if dropped:
        parts = ", ".join(f"{tokens:,} {_DROPS[reason]}" for reason, tokens in dropped.items())
        lines.append(f"tokens that went no further down: {parts}")
    if summary["retractions"]:
        lines.append(f"retractions: {summary['retractions']:,}")
    sessions = summary["sessions"]
    if sessions:
        first, later = sessions["first_turns"], sessions["later_turns"]
        lines.append(
            f"sessions: {sessions['sessions']:,} of up to {sessions['most_turns']:,} turns; hit "
            f"{_percent(first['cache_hit_rate'])} of first turns, "
            f"{_percent(later['cache_hit_rate'])} of later ones"
        )
    recorded = summary["recorded_hits"]
    if recorded:
        lines.append(
            f"recorded server: hit {_percent(recorded['recorded_hit_rate'])} of the prompt tokens "
            f"of {recorded['requests']:,} requests, predicted "
            f"{_percent(recorded['predicted_hit_rate'])}; the same for "
            f"{recorded['same_requests']:,}, on average "
            f"{recorded['mean_absolute_difference_tokens']:,.1f} tokens apart"
        )
    return lines


def _percent(share: float) -> str:
    return f"{100 * share:.2f} %"


def _ms(value: float | None) -> str:
    if value is None:
        return "-"
    return f"{value:,.0f}" if value >= 1000 else f"{value:.3g}"


def _plain(text: str) -> str:
    return text.replace("[", r"\[")
