"""`python -m calibrate [OPTIONS]` and `python -m calibrate validate SCENARIO`, without the command.

The options are those of `hicache calibrate` and `hicache validate`, by the same names.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from typing import Any, get_args

from calibrate.command import run_calibration
from calibrate.kit import PROBES, Device, Options
from hicache.errors import HiCacheError, InputError
from scenario.load import parse_assignments
from scenario.sizes import size_bytes


def main(arguments: Sequence[str] | None = None) -> int:
    """Read the arguments and do it; returns the exit code."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    try:
        if given[:1] == ["validate"]:
            return _validate(given[1:])
        return run_calibration(_options(given))
    except HiCacheError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2


def _options(given: list[str]) -> Options:
    usual = Options(out="profile.json")
    parser = argparse.ArgumentParser(
        prog="python -m calibrate", description="Measure this machine and write its profile."
    )
    parser.add_argument("--out", default=usual.out, help="the profile to write, a .json file")
    parser.add_argument("--model", default=usual.model, help="a name, or a config.json")
    parser.add_argument("--device", default=usual.device, choices=get_args(Device))
    parser.add_argument("--disk", help="folder on the disk that L3 will lie on")
    parser.add_argument("--disk-size", default="4GiB", help="of the file made there")
    parser.add_argument("--l3-backend", default=usual.l3_backend, help="as hw.l3_backend")
    parser.add_argument("--page-size", type=int, action="append", help="tokens; repeatable")
    parser.add_argument("--thorough", action="store_true", help="15 minutes at most, not 3")
    parser.add_argument(
        "--budget", type=float, default=usual.budget_s, help="seconds, from the begin"
    )
    parser.add_argument("--only", action="append", default=[], help=", ".join(PROBES))
    parser.add_argument("--base", default=usual.base, help="profile for what is not measured")
    parser.add_argument("--into", help="profile whose parts are renewed")
    parser.add_argument("--name", default=usual.name, help="of the machine")
    parser.add_argument("--host-memory", default="", help="where the system shows less")
    parser.add_argument("--server", default=usual.server, help="URL of an OpenAI-compatible server")
    parser.add_argument("--served-model", default=usual.served_model)
    parser.add_argument("--fresh", action="store_true", help="begin anew")
    parser.add_argument("--report", default=usual.report, help="a page of HTML")
    read: Any = parser.parse_args(given)
    if read.into == "":
        raise InputError("--into: it names no profile")
    page_sizes = read.page_size or [usual.page_size_tokens]
    return Options(
        out=read.out,
        model=read.model,
        device=read.device,
        base=read.base,
        into=read.into or "",
        name=read.name,
        disk=read.disk,
        disk_bytes=size_bytes("--disk-size", read.disk_size),
        l3_backend=read.l3_backend,
        page_size_tokens=page_sizes[0],
        other_pages=tuple(page_sizes[1:]),
        effort="thorough" if read.thorough else "quick",
        budget_s=read.budget,
        only=tuple(read.only),
        journal="fresh" if read.fresh else "resume",
        host_bytes=size_bytes("--host-memory", read.host_memory) if read.host_memory else 0,
        command=_command(read),
        server=read.server,
        served_model=read.served_model,
        report=read.report,
    )


def _command(read: Any) -> str:
    """What was asked, for the profile; paths of this machine are nobody's business."""
    words = [f"python -m calibrate --model {read.model}", *(f"--only {each}" for each in read.only)]
    return " ".join([*words, *["--thorough"] * read.thorough])


def _validate(given: list[str]) -> int:
    from calibrate.validate.command import run_validate

    parser = argparse.ArgumentParser(
        prog="python -m calibrate validate",
        description="Run a scenario on this machine, simulate it, and compare.",
    )
    parser.add_argument("scenario", nargs="?", help="scenario file (TOML)")
    parser.add_argument("--device", default="cuda", choices=("cuda", "cpu"))
    parser.add_argument("--profile", help="machine to predict with")
    parser.add_argument("--truth", default="profile", choices=("profile", "record"))
    parser.add_argument("--runs", action="append", default=[], metavar="FOLDER")
    parser.add_argument("--limits", help="usual, saturated or a TOML file")
    parser.add_argument(
        "--set", action="append", default=[], metavar="KEY=VALUE", dest="assignments"
    )
    parser.add_argument("--out", help="folder")
    parser.add_argument("--no-causes", action="store_true", help="no repeated simulations")
    read: Any = parser.parse_args(given)
    overrides = dict(parse_assignments(read.assignments))
    if read.profile is not None:
        overrides["machine.profile"] = read.profile
    return run_validate(
        read.scenario, overrides, device=read.device, truth=read.truth, runs=read.runs,
        limits=read.limits, out=read.out, explains="nothing" if read.no_causes else "causes",
    )  # fmt: skip


if __name__ == "__main__":
    sys.exit(main())
