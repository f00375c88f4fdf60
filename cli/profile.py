"""`hicache profile`: show a machine's profile, compare two, plot its curves, fit them again."""

from __future__ import annotations

from typing import Annotated

import typer

profile_app = typer.Typer(
    no_args_is_help=True, help="Look at machine profiles: a known name, or a .json file."
)


@profile_app.command()
def show(
    profile: Annotated[str, typer.Argument(help="A known machine, or a profile's file.")],
) -> None:
    """Print every value of a profile, how it is known, and how well its curves hold."""
    from calibrate.profile_text import show_lines
    from scenario.profile import load_profile

    for line in show_lines(load_profile(profile)):
        print(line)


@profile_app.command()
def diff(
    one: Annotated[str, typer.Argument(help="A known machine, or a profile's file.")],
    other: Annotated[str, typer.Argument(help="The one to compare with it.")],
) -> None:
    """Print where two profiles differ, in percent of the first."""
    from calibrate.profile_text import diff_lines
    from scenario.profile import load_profile

    for line in diff_lines(load_profile(one), load_profile(other)):
        print(line)


@profile_app.command()
def plot(
    profile: Annotated[str, typer.Argument(help="A known machine, or a profile's file.")],
    out: Annotated[
        str, typer.Option(help="A page (.html), or a folder for one PNG a curve.")
    ] = "profile.html",
) -> None:
    """Plot each curve: samples, fit, and what the hardware allows."""
    from calibrate.plot_files import write_plots
    from scenario.profile import load_profile

    print(write_plots(load_profile(profile), out))


@profile_app.command()
def refit(
    profile: Annotated[str, typer.Argument(help="A known machine, or a profile's file.")],
    out: Annotated[str, typer.Option(help="The profile to write, a .json file; may be the same.")],
    model: Annotated[
        str, typer.Option(help="Model of its steps, a name or a config.json. [as it says]")
    ] = "",
) -> None:
    """Fit a profile's curves again from its raw samples, by this version's fits.

    Example: hicache profile refit mine.json --out mine.json
    """
    from calibrate.command import write_profile
    from calibrate.refit import refit as fitted_again
    from calibrate.refit import refit_lines
    from hicache.errors import InputError
    from scenario.profile import load_profile

    if not out.endswith(".json"):
        raise InputError(f"--out {out}: a profile is a .json file")
    before = load_profile(profile)
    built = fitted_again(before, profile, model)
    write_profile(built.profile, out)
    for line in refit_lines(before, built):
        print(line)
    print(f"profile: {out}")
