"""The arguments of `hicache plan`. What it does is imported when it is asked for."""

from __future__ import annotations

from typing import Annotated

import typer


def plan(
    trace: Annotated[
        str | None, typer.Argument(metavar="TRACE", help="A trace in any known format, a file.")
    ] = None,
    scenario: Annotated[
        str | None,
        typer.Option(help="Scenario file (TOML) for everything that is not searched."),
    ] = None,
    model: Annotated[
        str | None, typer.Option(help="Model, or a Hugging Face config.json. [Qwen3-8B]")
    ] = None,
    profile: Annotated[
        str | None, typer.Option(help="Machine: a known name or a profile's file. [nvidia-h200]")
    ] = None,
    l1: Annotated[str | None, typer.Option(help="GPU tier. [what the weights leave free]")] = None,
    ttft_p99: Annotated[
        float | None,
        typer.Option(metavar="MS", help="The goal: the cheapest with no longer TTFT p99 is taken."),
    ] = None,
    budget: Annotated[
        str | None,
        typer.Option(
            metavar="SIZE|MONEY",
            help="At most this for L2 and L3 of a node: 200GiB of both together, or with prices a "
            "number.",
        ),
    ] = None,
    price_l2: Annotated[
        float | None, typer.Option(metavar="PRICE", help="Of a GiB of host memory.")
    ] = None,
    price_l3: Annotated[
        float | None, typer.Option(metavar="PRICE", help="Of a GiB of storage.")
    ] = None,
    l2: Annotated[
        str | None,
        typer.Option(
            metavar="SIZE,...",
            help="Sizes of L2 to choose from: 40GiB, or 2x (of L1). [where the curve bends]",
        ),
    ] = None,
    l3: Annotated[
        str | None,
        typer.Option(metavar="SIZE,...", help="Sizes of L3, 0 for none. [where the curve bends]"),
    ] = None,
    page_size: Annotated[
        str | None,
        typer.Option(metavar="TOKENS,...", help="Page sizes to choose from. [16,64,256]"),
    ] = None,
    policy: Annotated[
        str,
        typer.Option(
            metavar="POLICY,...",
            help="Restore policies to choose from, also file.py:Class of your own.",
        ),
    ] = "cost,always",
    ranks: Annotated[
        int | None,
        typer.Option(help="GPUs of a node, each with an L2 and L3 of its own. [ranks.tp]"),
    ] = None,
    host_fraction: Annotated[
        float, typer.Option(help="The part of host memory that L2 may take.")
    ] = 0.9,
    assignments: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=VALUE", help="Any key of docs/scenario.md; repeatable."),
    ] = None,
    out: Annotated[
        str, typer.Option(metavar="FILE.json", help="The plan with all points.")
    ] = "plan.json",
    plot: Annotated[
        str | None, typer.Option(metavar="FILE", help="The front as a picture, .png or .svg.")
    ] = None,
    save_scenario: Annotated[
        str | None,
        typer.Option(metavar="FILE.toml", help="The chosen scenario, for hicache replay or run."),
    ] = None,
    exhaustive: Annotated[
        bool, typer.Option("--exhaustive", help="Simulate every combination, skip none.")
    ] = False,
    jobs: Annotated[
        int | None, typer.Option("--jobs", "-j", help="Simulations at once. [all cores]")
    ] = None,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Print no table.")] = False,
    force: Annotated[
        bool, typer.Option("--force", help="Replace files that this command has not made.")
    ] = False,
) -> None:
    """Size L2 and L3 for a trace and a goal: what to buy, what it brings, and what would not help.

    Reads the trace's hit curve once for each page size, takes from it the sizes at which hits are
    gained, and simulates what the curve leaves open: it says how many of how many. The answer is a
    front of cost and TTFT p99, its knee, the point to take, its memory a rank and a node, and the
    L3 bandwidth from which reading beats computing. Exit code 1: no point meets the goal.

    Example: hicache plan trace.jsonl --ttft-p99 2000 --price-l2 4 --price-l3 0.1 --plot plan.png

    Example: hicache plan trace.jsonl --budget 100GiB --l3 0 --save-scenario best.toml
    """
    from cli.plan_run import PlanArguments, run_plan

    given = PlanArguments(
        trace, scenario, model, profile, l1, ttft_p99, budget, price_l2, price_l3, l2, l3,
        page_size, policy, ranks, host_fraction, assignments or [], out, plot, save_scenario,
        exhaustive, jobs, quiet, force,
    )  # fmt: skip
    raise typer.Exit(run_plan(given))
