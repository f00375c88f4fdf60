"""The arguments of `hicache sweep`. What it does is imported when it is asked for."""

from __future__ import annotations

from typing import Annotated

import typer


def sweep(
    inputs: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="TRACE|SCENARIO.toml ...",
            help="Traces in any known format, and scenario files; every scenario is run over every "
            "trace.",
        ),
    ] = None,
    grid: Annotated[
        list[str] | None,
        typer.Option(
            metavar="KEY=V1,V2,...",
            help="Values of an option; repeatable, and all combinations are run. Keys and values "
            "are those of --set: docs/scenario.md. restore.policy and cache.eviction may be "
            "file.py:Class of your own.",
        ),
    ] = None,
    assignments: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=VALUE", help="An option of all scenarios; repeatable."),
    ] = None,
    out: Annotated[
        str, typer.Option(metavar="FILE.parquet", help="One row a scenario.")
    ] = "sweep.parquet",
    folders: Annotated[
        str | None,
        typer.Option(
            metavar="FOLDER",
            help="Also write each scenario's whole result, in a folder of its own.",
        ),
    ] = None,
    jobs: Annotated[
        int | None,
        typer.Option("--jobs", "-j", help="Scenarios at once on this machine. [all cores]"),
    ] = None,
    ray: Annotated[
        str | None,
        typer.Option(
            metavar="ADDRESS",
            help="Run on a Ray cluster: HOST:PORT, auto (the one on this machine) or local (made "
            "for this sweep). The results are the same.",
        ),
    ] = None,
    fresh: Annotated[
        bool, typer.Option("--fresh", help="Run all again, also what is done already.")
    ] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="List the scenarios and run none.")
    ] = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Print no table.")] = False,
    force: Annotated[
        bool, typer.Option("--force", help="Replace a file that this command has not made.")
    ] = False,
) -> None:
    """Replay many scenarios on all cores and write their figures into one table.

    What is done is kept: after Ctrl-C, or after a crash, the same command goes on where it was; a
    larger grid runs only what is new. Columns are the options that were varied and the main keys of
    summary.json: docs/sweep.md.

    Example: hicache sweep trace.jsonl --grid tiers.l2=0,1x,2x --grid restore.policy=cost,always

    Example: hicache sweep a.toml b.toml --grid trace.speed=0.5,1,2 --out speeds.parquet --jobs 2
    """
    from cli.sweep_run import SweepArguments, run_sweep

    given = SweepArguments(
        inputs or [], grid or [], assignments or [], out, folders, jobs, ray, fresh, dry_run, quiet,
        force,
    )  # fmt: skip
    raise typer.Exit(run_sweep(given))
