"""`hicache calibrate`: its options; what it does is in `calibrate.command`."""

from __future__ import annotations

import os
import sys
from typing import Annotated

import typer


def calibrate(
    out: Annotated[
        str, typer.Option(help="The profile to write, a .json file; its journal lies beside it.")
    ] = "profile.json",
    model: Annotated[
        str, typer.Option(help="Model whose steps are timed: a name, or a config.json.")
    ] = "Qwen3-8B",
    device: Annotated[
        str, typer.Option(help="auto, cuda, cpu (the same code, slow), none (disk and memory).")
    ] = "auto",
    disk: Annotated[
        str | None, typer.Option(help="Folder on the disk that L3 will lie on. [temporary folder]")
    ] = None,
    disk_size: Annotated[str, typer.Option(help="Size of the file made there.")] = "4GiB",
    l3_backend: Annotated[
        str, typer.Option(help="How L3 is read and written: as hw.l3_backend of a scenario.")
    ] = "direct",
    page_size: Annotated[
        list[int] | None,
        typer.Option(
            help="Tokens of a page; repeatable: copies are timed in pages of each, all else in "
            "those of the first. [64; with --thorough copies also in 1, 16, 256]"
        ),
    ] = None,
    thorough: Annotated[
        bool, typer.Option("--thorough", help="15 minutes at most, not 3: more points and samples.")
    ] = False,
    budget: Annotated[
        float,
        typer.Option(help="Seconds from the command's begin. [170 of measuring; --thorough: 880]"),
    ] = 0.0,
    only: Annotated[
        list[str] | None,
        typer.Option(
            help="steps, engine, transfers, interference, disk, host, peers or server; "
            "repeatable. [all]"
        ),
    ] = None,
    base: Annotated[
        str, typer.Option(help="Profile from which what is not measured here is taken.")
    ] = "nvidia-h200",
    into: Annotated[
        str | None,
        typer.Option(
            help="Profile that all else is taken from as it is: only what --only names is "
            "measured anew (or added: peers). For a disk that is another one today."
        ),
    ] = None,
    name: Annotated[str, typer.Option(help="Name of the machine. [the file's]")] = "",
    host_memory: Annotated[
        str, typer.Option(help="Host memory, where the system shows less than there is.")
    ] = "",
    server: Annotated[
        str | None,
        typer.Option(help="URL of an OpenAI-compatible server: its prefill and decode are timed."),
    ] = None,
    served_model: Annotated[
        str, typer.Option(help="The model's name at the server. [the first that it lists]")
    ] = "",
    fresh: Annotated[
        bool, typer.Option("--fresh", help="Begin anew, also where a journal is there.")
    ] = False,
    report: Annotated[
        str | None, typer.Option(help="Also write a page of HTML with a plot of each curve.")
    ] = None,
) -> None:
    """Measure this machine and write the profile that a replay takes with --profile.

    Stopped with Ctrl-C or SIGTERM, it writes what is done, and the same command goes on from there.

    Examples: hicache calibrate --model Qwen3-8B --disk /mnt/nvme --out mine.json

    hicache calibrate --only disk --disk /mnt/nvme --into mine.json --out today.json
    """
    from typing import cast

    from calibrate.command import run_calibration
    from calibrate.kit import Device, Options
    from hicache.errors import InputError
    from scenario.sizes import size_bytes

    if device not in ("auto", "cuda", "cpu", "none"):
        raise InputError(f'--device "{device}": it must be auto, cuda, cpu or none')
    if into == "":
        raise InputError("--into: it names no profile")
    sizes = page_size or [64]
    options = Options(
        out=out,
        model=model,
        device=cast("Device", device),
        base=base,
        into=into or "",
        name=name,
        disk=disk,
        disk_bytes=size_bytes("--disk-size", disk_size),
        l3_backend=l3_backend,
        page_size_tokens=sizes[0],
        other_pages=tuple(sizes[1:]),
        effort="thorough" if thorough else "quick",
        budget_s=budget,
        only=tuple(only or ()),
        journal="fresh" if fresh else "resume",
        host_bytes=size_bytes("--host-memory", host_memory) if host_memory else 0,
        command=" ".join(["hicache", *map(_shown, sys.argv[1:])]),
        server=server or "",
        served_model=served_model,
        report=report or "",
    )
    raise typer.Exit(run_calibration(options))


def _shown(argument: str) -> str:
    """An argument for the profile: paths of this machine are nobody's business."""
    if os.sep not in argument or argument.startswith(("http:", "https:")):
        return argument
    key, equals, value = argument.partition("=") if argument.startswith("-") else ("", "", argument)
    return f"{key}{equals}{os.path.basename(value.rstrip(os.sep))}"
