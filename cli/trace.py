"""`hicache trace`: what people do with a trace before they replay it.

A group whose commands are imported when one of them is asked for: `hicache replay` starts no later
because of them.
"""

from __future__ import annotations

import click
import typer
from typer.core import TyperGroup

NAMES = ("info", "convert", "slice", "generate", "anonymize")


class _CommandsOnDemand(TyperGroup):
    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(NAMES)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if args and args[0] not in NAMES and not args[0].startswith("-"):
            from scenario.names import nearest

            ctx.fail(f"No such command {args[0]!r}{nearest(args[0], NAMES)}.")
        return super().resolve_command(ctx, args)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in NAMES:
            return None
        from cli.trace_commands import command

        return command(cmd_name)


trace_app = typer.Typer(
    cls=_CommandsOnDemand,
    no_args_is_help=True,
    rich_markup_mode=None,
)


@trace_app.callback()
def _group() -> None:
    """Look into request traces, convert, cut, generate and anonymize them.

    Formats and commands: docs/traces.md. TRACE is a file, a folder where the format has several
    files, or '-' for standard input; plain, gzip or zstd. OUT ends in .gz or .zst to be compressed.
    """
