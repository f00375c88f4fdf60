"""`hicache trace generate`: a command for each workload, its options made from the workload's own.

An option of a workload is a field of a dataclass, with a default, and a range in a table beside it;
so an option that is added there is an option here.
"""

from __future__ import annotations

from dataclasses import Field, fields
from typing import Any

import click
from typer.core import TyperGroup

from cli.trace_writing import check_out, save
from hicache.errors import InputError
from traces.options import LARGEST_SEED, Allowed
from traces.workloads import WORKLOADS, Workload
from traces.writers import WRITER_NAMES, writer_of

_HELP_NAMES = {"help_option_names": ["-h", "--help"]}
# Options of the command, not of what is generated.
_BLOCK_TOKENS = "block_tokens"


class WorkloadGroup(TyperGroup):
    """The workloads as commands."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Their names."""
        return list(WORKLOADS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """The command that generates one."""
        workload = WORKLOADS.get(cmd_name)
        return None if workload is None else _command(workload)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """`InputError` for a workload that is none."""
        if args and not args[0].startswith("-") and args[0] not in WORKLOADS:
            known = ", ".join(WORKLOADS)
            raise InputError(f"workload is {args[0]!r}: what can be generated is {known}")
        return super().resolve_command(ctx, args)


def _command(workload: Workload) -> click.Command:
    options = [each for each in fields(workload.options) if each.name != _BLOCK_TOKENS]

    def run(out: str, to: str, block_size: int | None, force: bool, **given: Any) -> None:
        values = {each.name: _value(each, given[each.name]) for each in options}
        stream = workload.generate(workload.options(**values))
        writer = writer_of(to, block_tokens=block_size)
        check_out(out, None, force=force)
        save(lambda: stream, writer, out)

    describes = workload.describes
    return click.Command(
        workload.name,
        callback=run,
        context_settings=_HELP_NAMES,
        help=f"{describes[0].upper()}{describes[1:]}.\n\n"
        f"Example: hicache trace generate {workload.name} made.jsonl.gz{_example(options)}",
        short_help=describes,
        params=[
            click.Argument(["out"], metavar="OUT"),
            *(_option(each, workload.ranges[each.name]) for each in options),
            click.Option(
                ["--to"],
                default="hicache",
                metavar="FORMAT",
                help=f"Format of OUT: {', '.join(WRITER_NAMES)}; default hicache, which alone "
                "says which answer a request waits for",
            ),
            click.Option(
                ["--block-size", "--block-tokens", "block_size"],
                type=int,
                metavar="TOKENS",
                help="Tokens of one id of OUT, for mooncake (default 512) and bailian (16)",
            ),
            click.Option(["--force"], is_flag=True, help="Replace OUT if it is there"),
        ],
    )


def _example(options: list[Field[Any]]) -> str:
    if options[0].name == "seed":
        return " --seed 7"
    return f" {_flag(options[0].name)} {options[0].default}"


def _flag(name: str) -> str:
    return f"--{name.replace('_', '-')}"


def _option(option: Field[Any], allowed: Allowed) -> click.Option:
    kind = str(option.type)
    default: Any = option.default
    if kind == "str":
        what = " or ".join(str(word) for word in allowed)
        metavar = "|".join(str(word) for word in allowed)
    else:
        least, most = allowed
        what = f"{_number(least)} to {_number(most)}"
        metavar = "N"
        if kind.startswith("tuple"):
            metavar, what = "N,N,...", f"{what} each"
            default = ",".join(str(each) for each in default)
    click_type = {"int": int, "float": float}.get(kind, str)
    return click.Option(
        [_flag(option.name), option.name],
        type=click_type,
        default=default,
        metavar=metavar,
        help=f"default {default}; {what}",
    )


def _number(value: float | str) -> str:
    if value == LARGEST_SEED:
        return "2^63 - 1"
    return f"{value:,}" if isinstance(value, int) else f"{float(value):,.12g}"


def _value(option: Field[Any], given: Any) -> Any:
    """What was given, of the field's type."""
    if not str(option.type).startswith("tuple"):
        return given
    try:
        return tuple(int(each) for each in given.split(","))
    except ValueError:
        raise InputError(
            f"{option.name} is {given!r}: it must be whole numbers with commas between them"
        ) from None
