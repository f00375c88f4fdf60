"""The arguments of `hicache compare`. What it does is imported when it is asked for."""

from __future__ import annotations

from typing import Annotated

import typer


def compare(
    traces: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="TRACE...",
            show_default=False,
            help="One or several traces in any known format, plain, .gz or .zst.",
        ),
    ] = None,
    variants: Annotated[
        list[str] | None,
        typer.Option(
            "--variant",
            metavar="NAME:KEY=VALUE,...",
            help="A variant: any keys of docs/scenario.md, or scenario=FILE; repeatable. The first "
            "variant is what others are compared with.",
        ),
    ] = None,
    policies: Annotated[
        list[str] | None,
        typer.Option(
            "--policy",
            metavar="POLICY",
            help="A variant with this restore policy: cost, meet, always, never, "
            "threshold, or module:Class of your own; repeatable.",
        ),
    ] = None,
    evictions: Annotated[
        list[str] | None,
        typer.Option(
            "--eviction",
            metavar="STRATEGY",
            help="A variant with this eviction: lru, lfu, fifo, filo, mru, slru, priority, or "
            "module:Class of your own; repeatable.",
        ),
    ] = None,
    file: Annotated[
        str | None,
        typer.Option("--file", metavar="TOML", help="The whole comparison from a file."),
    ] = None,
    scenario: Annotated[
        str | None, typer.Option(help="Scenario file (TOML) that all variants begin with.")
    ] = None,
    model: Annotated[str | None, typer.Option(help="Model of all variants. [Qwen3-8B]")] = None,
    profile: Annotated[
        str | None, typer.Option(help="Machine of all variants. [nvidia-h200]")
    ] = None,
    page_size: Annotated[int | None, typer.Option(help="Tokens of a page. [64]")] = None,
    l1: Annotated[str | None, typer.Option(help="GPU tier of all variants.")] = None,
    l2: Annotated[str | None, typer.Option(help="Host memory tier. [2x]")] = None,
    l3: Annotated[str | None, typer.Option(help="Storage tier. [0]")] = None,
    speed: Annotated[float | None, typer.Option(help="Arrival times are divided by it.")] = None,
    untimed: Annotated[
        bool, typer.Option("--untimed", help="Hits only: no operation takes time.")
    ] = False,
    assignments: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=VALUE", help="Any key, for all variants; repeatable."),
    ] = None,
    out: Annotated[str | None, typer.Option(help="Folder. [results/compare-TRACE]")] = None,
    plots: Annotated[
        bool, typer.Option("--plots", help="Also the figures, as PNG in OUT/plots.")
    ] = False,
    timeline: Annotated[
        bool,
        typer.Option("--timeline", help="Keep each run's timeline: device utilisation, backlog."),
    ] = False,
    resamples: Annotated[int, typer.Option(help="Draws that an interval is made from.")] = 2000,
    seed: Annotated[int, typer.Option(help="Seed of these draws.")] = 0,
    quiet: Annotated[
        bool, typer.Option("--quiet", "-q", help="Print the verdicts and the folder only.")
    ] = False,
) -> None:
    """Replay traces under two or more variants and say what differs, by how much, and where.

    Requests are paired one by one. Differences of hit rate, TTFT and throughput come with 95 %
    bootstrap intervals over sessions. docs/compare.md; a policy of your own: docs/write-a-policy.md

    Example: hicache compare trace.jsonl --policy cost --policy always --l3 10x --plots
    """
    from cli.compare_run import CompareArguments, run_compare

    code = run_compare(
        CompareArguments(
            traces=traces or [], variants=variants or [], policies=policies or [],
            evictions=evictions or [], file=file, scenario=scenario, model=model, profile=profile,
            page_size=page_size, l1=l1, l2=l2, l3=l3, speed=speed, untimed=untimed,
            assignments=assignments or [], out=out, plots=plots, timeline=timeline,
            resamples=resamples, seed=seed, quiet=quiet,
        )
    )  # fmt: skip
    raise typer.Exit(code)
