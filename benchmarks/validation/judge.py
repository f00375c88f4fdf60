"""Judges recorded validation runs against a profile, all of them, in one table.

    python benchmarks/validation/judge.py FOLDER --profile h200.json

FOLDER is what `record.py` wrote. Each scenario gets `validation.json` and `validation.html` beside
its runs, and `validation.md` the table of all. Exit code 1 if a limit was missed.

Runs made before `SHARED_UNTIL` had one back-end for both directions of the link: they are judged
with `pcie.backends.at_once` 1, whatever the profile says of a run of today. Runs made before
`SLOWER_UNTIL` had copies that Python enqueued call by call: where they would be judged by
`nvidia-h200`, they are by what that was then, `SLOWER` (without its samples).
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path
from typing import Any, Literal

import msgspec

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from calibrate.validate.command import recorded_runs, write_validation
from calibrate.validate.limits import KNOWN, Limits
from calibrate.validate.runs import Played
from calibrate.validate.validation import Validation, validate
from hicache.errors import HiCacheError
from scenario.profile import Profile, Quantity, dump_profile, load_profile
from scenario.records import Scenario

# When a run got a back-end for each direction (`hw.assembly`), in UTC as runs give their time.
SHARED_UNTIL = "2026-11-30T08:00:00+00:00"
# When copies became one call each (docs/decisions/0019-copies-by-one-call.md), and the profile.
SLOWER_UNTIL = "2026-11-30T22:00:00+00:00"
SHIPPED = "nvidia-h200"
SLOWER = Path(__file__).resolve().parent / "results" / "nvidia-h200-until-2300.json"

COLUMNS = (
    "", "policy", "requests", "TTFT mean", "p90", "p99", "throughput", "L1, L2, L3 points",
    "as measured: TTFT mean", "missed",
)  # fmt: skip


def main() -> int:
    """Returns the exit code."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--profile", help="a known machine or a profile's file; the scenario's own")
    parser.add_argument("--only", nargs="*", default=[], metavar="NAME")
    options = parser.parse_args()
    overrides: dict[str, object] = {}
    if options.profile:
        overrides["machine.profile"] = options.profile
    rows: list[list[str]] = []
    missed = 0
    folders = sorted(path.parent for path in options.folder.glob("*/hw-1"))
    if not folders:
        print(f"error: {options.folder} holds no runs (NAME/hw-1)", file=sys.stderr)
        return 2
    unknown = set(options.only) - {folder.name for folder in folders}
    if unknown:
        names = ", ".join(folder.name for folder in folders)
        print(f"error: --only {', '.join(sorted(unknown))}: there are {names}", file=sys.stderr)
        return 2
    for folder in folders:
        if options.only and folder.name not in options.only:
            continue
        try:
            found = judged(folder, overrides)
        except HiCacheError as error:
            print(f"error: {folder.name}: {error}", file=sys.stderr)
            return 2
        write_validation(str(folder), found)
        missed += not found.held
        rows.append(row(found))
        print("  ".join(rows[-1]), flush=True)
    if not options.only:  # the table is of all
        (options.folder / "validation.md").write_text(table(rows))
    return 1 if missed else 0


def judged(
    folder: Path,
    overrides: dict[str, object],
    explains: Literal["causes", "nothing"] = "causes",
) -> Validation:
    """One scenario's runs. Raises HiCacheError subclasses."""
    runs = [str(path) for path in sorted(folder.glob("hw-*"))]
    hardware, scenario = recorded_runs(None, overrides, runs)
    limits: Limits = KNOWN["saturated" if folder.name.startswith("saturated") else "usual"]
    with tempfile.TemporaryDirectory() as place:
        given = scenario.machine.profile
        scenario = as_it_was_then(scenario, hardware, Path(place))
        if scenario.machine.profile != given:
            print(f"{folder.name}: by {given} as it was when this ran", file=sys.stderr)
        return validate(hardware, scenario, folder.name, limits=limits, explains=explains)


def as_it_was_then(scenario: Scenario, hardware: list[Played], place: Path) -> Scenario:
    """The scenario with the profile of the code that made the runs: of slower copies, and, written
    to `place`, of a link that does one copy at a time.
    """
    latest = max(run.measured_at for run in hardware)
    if any(not run.measured_at for run in hardware) or latest >= SLOWER_UNTIL:
        return scenario
    if scenario.machine.profile == SHIPPED:
        machine = msgspec.structs.replace(scenario.machine, profile=str(SLOWER))
        scenario = msgspec.structs.replace(scenario, machine=machine)
    if latest >= SHARED_UNTIL:
        return scenario
    profile = load_profile(scenario.machine.profile)
    file = place / "profile.json"
    file.write_text(dump_profile(_one_at_once(profile)))
    machine = msgspec.structs.replace(scenario.machine, profile=str(file))
    return msgspec.structs.replace(scenario, machine=machine)


def _one_at_once(profile: Profile) -> Profile:
    """`profile`, of a machine whose runs have one back-end for both directions."""
    if profile.pcie.backends is None:
        return profile
    once = Quantity(provenance="measured", how="a back-end that both directions share", value=1)
    backends = msgspec.structs.replace(profile.pcie.backends, at_once=once)
    pcie = msgspec.structs.replace(profile.pcie, backends=backends)
    return msgspec.structs.replace(profile, pcie=pcie)


def row(found: Validation) -> list[str]:
    """Errors, each with what the two runs differ in."""
    figures = found.figures
    measured = found.causes[-1].figures["ttft_mean"].error_percent
    missed = [each.name for each in found.judged if not each.held]
    return [
        found.name,
        found.scenario.restore.policy,
        str(len(found.requests)),
        *(
            f"{_signed(figures[name].error_percent)} ({_signed(figures[name].runs_percent)})"
            for name in ("ttft_mean", "ttft_p90", "ttft_p99", "throughput")
        ),
        ", ".join(
            f"{found.shares_apart[tier].points:+.2f}" for tier in ("device", "host", "storage")
        ),
        _signed(measured),
        ", ".join(missed) or "-",
    ]


def table(rows: list[list[str]]) -> str:
    """A Markdown table; errors in percent, in brackets the second run against the first."""
    lines: list[list[Any]] = [list(COLUMNS), ["---"] * len(COLUMNS), *rows]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def _signed(value: float | None) -> str:
    return "-" if value is None else f"{value:+.2f}"


if __name__ == "__main__":
    sys.exit(main())
