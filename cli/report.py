"""The arguments of `hicache report`, and what it does with them."""

from __future__ import annotations

from typing import Annotated

import typer


def report(
    results: Annotated[
        list[str],
        typer.Argument(
            metavar="RESULT...",
            help="Result folders, comparisons, curve files of hicache curve, folders of hicache "
            "learning.",
        ),
    ],
    out: Annotated[
        str | None, typer.Option(metavar="FILE", help="The page. [beside RESULT, with .html]")
    ] = None,
    title: Annotated[str, typer.Option(show_default=False, help="Its title.")] = "",
    rows: Annotated[int, typer.Option(help="Requests in its table, at most.")] = 1000,
    force: Annotated[
        bool, typer.Option("--force", help="Replace a file that hicache report did not make.")
    ] = False,
) -> None:
    """Write one page of HTML that needs no network: tables, plots, requests, the scenario.

    Requests can be sorted and filtered; it can be read on a phone and used by keyboard. What was
    replayed with --timeline has device utilisation and backlog, too. docs/report.md

    Example: hicache report results/mine results/lfu --out report.html
    """
    from cli.report_run import run_report

    raise typer.Exit(run_report(results, out=out, title=title, rows=rows, replaces=force))
