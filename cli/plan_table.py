"""A plan as text for people: the front as a table, made with rich, and what it means in lines."""

from __future__ import annotations

import os
import shlex
from collections.abc import Iterator, Mapping
from typing import Any

from scenario.sizes import bytes_text
from sim.own_policy import KEYS, is_own

GIB = 1 << 30
MOST_POINTS = 40


def print_plan(document: Mapping[str, Any]) -> None:
    """Print the front, the choice and the reasons."""
    from rich import box
    from rich.markup import escape
    from rich.table import Table

    from report.console import table_console

    console = table_console()
    table = Table(
        box=box.SIMPLE_HEAD, title=escape(_title(document)), title_justify="left", pad_edge=False
    )
    table.add_column("")
    for name in ("L2", "L3"):
        table.add_column(name, justify="right")
    table.add_column("policy")
    for name in ("page", "cost", "TTFT p99 ms", "p50 ms", "hit", "L3 hit", "requests/s"):
        table.add_column(name, justify="right")
    points = document["points"]
    for place in document["front"][:MOST_POINTS]:
        table.add_row(*map(escape, _row(document, place, points[place])))
    console.print(table)
    for line in lines_of(document):
        console.print(escape(line), soft_wrap=True)


def _title(document: Mapping[str, Any]) -> str:
    trace = document["trace"]
    cut = ", INTERRUPTED" if document["interrupted"] else ""
    return (
        f"{os.path.basename(trace['path'])}: {trace['requests']:,} requests, {document['model']} "
        f"on {document['machine']}; cost in {document['goals']['cost_unit']}{cut}"
    )


def _row(document: Mapping[str, Any], place: int, point: Mapping[str, Any]) -> list[str]:
    marks = [name for name in ("chosen", "knee") if document[name] == place]
    return [
        ", ".join(marks), point["tiers.l2"], point["tiers.l3"],
        point["restore.policy"] if point["l2_bytes"] else "-",
        str(point["tiers.page_size_tokens"]), f"{point['cost']:,.6g}",
        f"{point['ttft_ms.p99']:,.0f}", f"{point['ttft_ms.p50']:,.0f}",
        f"{point['cache_hit_rate']:.2%}", f"{point['hit_rates.all.tokens.storage']:.2%}",
        f"{point['throughput.requests_per_s']:,.3g}",
    ]  # fmt: skip


def lines_of(document: Mapping[str, Any]) -> Iterator[str]:
    """What the plan says besides its front."""
    ran, of = document["simulations"]["ran"], document["simulations"]["of"]
    yield f"{ran} of {of} combinations were simulated; " + (
        "; ".join(f"{count}: {reason}" for reason, count in _skipped(document)) or "none skipped"
    )
    if document["chosen"] is None:
        yield f"no plan: {document['chosen_because']}"
    else:
        yield f"chosen: {document['chosen_because']}"
        yield _command(document)
    yield _memory(document)
    yield from _break_even(document["break_even"])
    for refused in document["sizes"]["refused"]:
        yield f"refused: {refused['reason']}"
    for each in document["failed"]:
        yield f"failed: {each['tiers.l2']} + {each['tiers.l3']}: {each['error']}"
    for warning in document["warnings"]:
        yield f"warning: {warning}"


def _skipped(document: Mapping[str, Any]) -> Iterator[tuple[str, int]]:
    yield from document["simulations"]["skipped"].items()


def _command(document: Mapping[str, Any]) -> str:
    point = document["points"][document["chosen"]]
    trace = os.path.relpath(document["trace"]["path"])
    flags = {
        "tiers.l2": "--l2", "tiers.l3": "--l3", "restore.policy": "--policy",
        "tiers.page_size_tokens": "--page-size",
    }  # fmt: skip
    options = {**document["options"], **{key: point[key] for key in flags}}
    # A replay takes no class of the user's; a sweep of one scenario does.
    if any(is_own(options.get(key)) for key in KEYS):
        words = ["hicache", "sweep", trace]
        words += [document["scenario"]] if document["scenario"] else []
        flags = {}
    else:
        words = ["hicache", "replay", trace]
        words += ["--scenario", document["scenario"]] if document["scenario"] else []
    for key, value in options.items():
        words += [flags[key], str(value)] if key in flags else ["--set", f"{key}={value}"]
    return f"repeat it: {shlex.join(words)}"


def _memory(document: Mapping[str, Any]) -> str:
    memory, ranks = document["memory"], document["ranks"]
    node = (
        f"; a node of {ranks} ranks {bytes_text(memory['host_per_node_bytes'])} and "
        f"{bytes_text(memory['storage_per_node_bytes'])}"
        if ranks > 1
        else ""
    )
    return (
        f"a rank takes {bytes_text(memory['host_per_rank_bytes'])} of host memory and "
        f"{bytes_text(memory['storage_per_rank_bytes'])} of storage beside an L1 of "
        f"{bytes_text(memory['l1_per_rank_bytes'])}{node}; the machine has "
        f"{bytes_text(memory['machine_host_bytes'])} of host memory"
    )


def _break_even(found: Mapping[str, Any] | None) -> Iterator[str]:
    if found is None:
        yield "L3: nothing comes again that L1 and L2 do not hold, so there is nothing to read"
        return
    machine = found["machine_bytes_per_s"] / GIB
    if found["bytes_per_s"] is None:
        yield "L3: computing is faster than reading, however fast the disk"
        return
    single = found["of_requests_bytes_per_s"]
    spread = " to ".join(
        f"{single[part] / GIB:,.3g}" if single[part] is not None else "any"
        for part in ("p10", "p90")
    )
    yield (
        f"L3 breaks even at {found['bytes_per_s'] / GIB:,.3g} GiB/s of reading (requests: {spread})"
        f", of {found['tokens']:,} tokens that only an L3 of {found['l3']} holds; this machine "
        f"reads them at {machine:,.3g} GiB/s, which pays for "
        f"{found['pays_share_of_tokens']:.0%} of them"
    )
