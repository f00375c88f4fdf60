"""`hicache validate` and `hicache learning`: parse, call, print."""

from __future__ import annotations

from typing import Annotated

import typer


def validate(
    scenario: Annotated[
        str | None,
        typer.Argument(help="Scenario file (TOML): docs/scenario.md. Left out with --runs."),
    ] = None,
    device: Annotated[
        str, typer.Option(help="cuda, or cpu: the same code on CPU tensors, slow. [cuda]")
    ] = "cuda",
    profile: Annotated[
        str | None, typer.Option(help="Machine to predict with: a known name or a profile's file.")
    ] = None,
    truth: Annotated[
        str,
        typer.Option(
            help="profile, or record: measured durations in place of predicted ones. [profile]"
        ),
    ] = "profile",
    runs: Annotated[
        list[str] | None,
        typer.Option(
            metavar="FOLDER",
            help="Result of an earlier hicache run; once or twice, no run is made.",
        ),
    ] = None,
    limits: Annotated[
        str | None,
        typer.Option(help="Judge: usual, saturated or a TOML file; exit code 1 if one is missed."),
    ] = None,
    assignments: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=VALUE", help="Any key of docs/scenario.md; repeatable."),
    ] = None,
    out: Annotated[str | None, typer.Option(help="Folder. [results/validate-NAME]")] = None,
    causes: Annotated[
        bool,
        typer.Option(
            "--causes/--no-causes",
            help="Repeat the simulation to say what each part of the profile costs. [yes]",
        ),
    ] = True,
    quiet: Annotated[
        bool, typer.Option("--quiet", "-q", help="Print the folder, no table.")
    ] = False,
) -> None:
    """Run a scenario twice on this machine, simulate it once, and say how far off that is.

    Prints a table and writes validation.json and validation.html (docs/validation.md). With --runs
    it compares results that were made before, here or elsewhere.

    Example: hicache validate scenario.toml --profile h200.json --limits usual
    """
    from calibrate.validate.command import run_validate
    from scenario.load import parse_assignments

    overrides = parse_assignments(assignments or [])
    if profile is not None:
        overrides["machine.profile"] = profile
    code = run_validate(
        scenario,
        overrides,
        device=device,
        truth=truth,
        runs=runs or (),
        limits=limits,
        out=out,
        show="folder" if quiet else "table",
        explains="causes" if causes else "nothing",
    )
    raise typer.Exit(code)


def learning(
    source: Annotated[
        str, typer.Argument(help="Scenario file (TOML), or the result folder of a hicache run.")
    ],
    profile: Annotated[
        str | None, typer.Option(help="The truth: a known machine or a profile's file.")
    ] = None,
    assignments: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=VALUE", help="Any key of docs/scenario.md; repeatable."),
    ] = None,
    out: Annotated[str | None, typer.Option(help="Folder. [results/learning-NAME]")] = None,
    quiet: Annotated[
        bool, typer.Option("--quiet", "-q", help="Print the folder, no table.")
    ] = False,
) -> None:
    """Show what the cost model learned: its belief against the profile's truth over a run.

    Also its regret against a policy that knows the truth, and how many samples it took until its
    choices were right. Writes learning.json, learning.csv and learning.png (docs/validation.md).

    Example: hicache learning data/demo.toml --profile h200.json
    """
    from calibrate.learning_command import run_learning
    from scenario.load import parse_assignments

    overrides = parse_assignments(assignments or [])
    if profile is not None:
        overrides["machine.profile"] = profile
    code = run_learning(source, overrides, out=out, show="folder" if quiet else "table")
    raise typer.Exit(code)
