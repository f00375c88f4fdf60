"""`hicache preset`: list the presets, show one, compare two, and read a server's arguments."""

from __future__ import annotations

import shlex
from collections.abc import Iterable
from typing import Annotated

import typer

preset_app = typer.Typer(
    no_args_is_help=True, help="Look at presets: named sets of options (docs/scenario.md)."
)


@preset_app.command("list")
def list_presets() -> None:
    """Name every preset."""
    from scenario.preset_lines import list_lines

    _print(list_lines())


@preset_app.command()
def show(name: Annotated[str, typer.Argument(help="A preset, as sglang-0.5.20.")]) -> None:
    """Print every option that a preset sets, as a scenario file; and what it cannot do yet."""
    from scenario.preset_lines import show_lines

    _print(show_lines(name))


@preset_app.command()
def diff(
    one: Annotated[str, typer.Argument(help="A preset.")],
    other: Annotated[str, typer.Argument(help="The one to compare with it.")],
) -> None:
    """Print the options in which two presets differ."""
    from scenario.preset_lines import diff_lines

    _print(diff_lines(one, other))


# Words that begin with dashes are the server's, but for --preset.
@preset_app.command("args", context_settings={"ignore_unknown_options": True})
def args_of(
    arguments: Annotated[
        list[str], typer.Argument(help="The server's arguments, as one text or as they are.")
    ],
    preset: Annotated[
        str | None, typer.Option(help="The server's version, as sglang-0.5.9. [sglang-0.5.20]")
    ] = None,
) -> None:
    """Print the scenario that an SGLang server's arguments mean, to be kept or run.

    Example: hicache preset args "--enable-hierarchical-cache --hicache-ratio 2" > server.toml
    """
    from scenario.sglang_args import read_server_args, scenario_lines

    text = arguments[0] if len(arguments) == 1 else shlex.join(arguments)
    _print(scenario_lines(read_server_args(text, preset)))


def _print(lines: Iterable[str]) -> None:
    for line in lines:
        print(line)
