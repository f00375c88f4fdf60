"""What `hicache validate` and `python -m calibrate validate` do once their arguments are read.

OUT/validation.json   every number, signed
OUT/validation.html   one page, needs nothing else
OUT/hw-1, OUT/hw-2    the results of the runs that were made, with their records
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Literal, cast

from calibrate.validate.limits import Limits, read_limits
from calibrate.validate.page import page
from calibrate.validate.runs import Played, live_run, load_run
from calibrate.validate.table import print_validation
from calibrate.validate.validation import (
    Truth,
    Validation,
    as_json,
    as_the_machine_did,
    validate,
)
from hicache.errors import InputError
from scenario.load import load_scenario
from scenario.records import Scenario, dump_toml
from scenario.results import check_target, summary_text, write_result

if TYPE_CHECKING:
    from hw.assembly import DeviceName

JSON_NAME, PAGE_NAME = "validation.json", "validation.html"
MISSED = 1
RUNS = 2
# What may differ between the scenario of the runs and the one that is simulated, and where its
# trace lies now.
_OF_THE_SIMULATION = ("machine.profile", "machine.transfer_mode", "trace.path")


def run_validate(
    scenario_file: str | None,
    overrides: Mapping[str, object],
    *,
    device: str = "cuda",
    truth: str = "profile",
    runs: Sequence[str] = (),
    limits: str | None = None,
    out: str | None = None,
    show: Literal["table", "folder"] = "table",
    explains: Literal["causes", "nothing"] = "causes",
) -> int:
    """Validate, write the folder, print. Returns the exit code: 1 if a limit was missed, else 0.

    `runs`: result folders of earlier runs, which take the place of running; their own scenario is
    simulated, and `overrides` may name another profile and transfer mode only. Raises HiCacheError
    subclasses for what cannot be; nothing but the runs' results is written then.
    """
    if truth not in ("profile", "record"):
        raise InputError(f'--truth is "{truth}": it must be profile or record')
    asked: Limits | None = read_limits(limits) if limits is not None else None
    if runs:
        hardware, simulated = recorded_runs(scenario_file, overrides, runs)
        name = _name_of(runs[0])
        folder = out or os.path.join("results", f"validate-{name}")
        check_folder(folder)
    else:
        if scenario_file is None:
            raise InputError("no scenario was given: name a file, or earlier runs with --runs")
        simulated = load_scenario(scenario_file, overrides)
        name = _name_of(scenario_file)
        folder = out or os.path.join("results", f"validate-{name}")
        check_folder(folder)
        hardware, simulated = live_runs(simulated, device, folder)
        simulated = _for_simulation(simulated, overrides)
    found = validate(
        hardware, simulated, name, truth=cast(Truth, truth), limits=asked, explains=explains
    )
    write_validation(folder, found)
    if show == "table":
        print_validation(found, os.path.relpath(folder))
    else:
        print(os.path.relpath(folder))
    if not found.held:
        missed = ", ".join(each.name for each in found.judged if not each.held)
        print(f"missed: {missed}", file=sys.stderr)
        return MISSED
    return 0


def recorded_runs(
    scenario_file: str | None, overrides: Mapping[str, object], folders: Sequence[str]
) -> tuple[list[Played], Scenario]:
    """The runs in result folders, and the scenario to simulate. Raises InputError."""
    if scenario_file is not None:
        raise InputError("--runs brings its own scenario; leave SCENARIO out")
    if len(folders) > RUNS:
        raise InputError(f"--runs was given {len(folders)} times: one run or two are compared")
    for key in overrides:
        if key not in _OF_THE_SIMULATION:
            raise InputError(
                f"command line: {key} cannot be changed for runs that were made: only "
                f"{', '.join(_OF_THE_SIMULATION)} can"
            )
    names = ["hardware"] if len(folders) == 1 else ["run 1", "run 2"]
    moved = {key: value for key, value in overrides.items() if key == "trace.path"}
    played = [load_run(folder, name, moved) for folder, name in zip(folders, names, strict=True)]
    texts = [dump_toml(run.scenario) for run in played]
    if any(text != texts[0] for text in texts):
        raise InputError(f"{folders[0]} and {folders[1]} were made of different scenarios")
    scenario = load_scenario(os.path.join(folders[0], "scenario.toml"), overrides)
    return played, _for_simulation(scenario, overrides)


def _for_simulation(scenario: Scenario, overrides: Mapping[str, object]) -> Scenario:
    return scenario if "machine.transfer_mode" in overrides else as_the_machine_did(scenario)


def live_runs(scenario: Scenario, device: str, folder: str) -> tuple[list[Played], Scenario]:
    """Run `scenario` twice on this machine; the results go into `folder`. Raises InputError."""
    if device not in ("cuda", "cpu"):
        raise InputError(f'--device is "{device}": it must be cuda or cpu')
    try:
        from calibrate.validate.hardware import ModelKeeper, measure
    except ImportError as error:
        raise InputError(
            f"hicache validate runs on hardware, which needs {error.name}: pip install "
            "'hicache-lab[hw]'; or give earlier runs with --runs"
        ) from None
    keeper = ModelKeeper()
    played: list[Played] = []
    for number in range(1, RUNS + 1):
        print(f"run {number} of {RUNS} on hardware", file=sys.stderr, flush=True)
        place = os.path.join(folder, f"hw-{number}")
        measured = measure(
            scenario, device=cast("DeviceName", device), keeper=keeper,
            tell=lambda line: print(line, file=sys.stderr, flush=True),
        )  # fmt: skip
        outcome = measured.outcome
        os.makedirs(folder, exist_ok=True)
        write_result(
            place, outcome.summary, outcome.columns, outcome.scenario_text, extras=outcome.extras
        )
        run = live_run(outcome, measured.scenario, f"run {number}", measured.measured_at)
        run.folder = os.path.relpath(place)
        played.append(run)
    return played, played[0].scenario


def check_folder(folder: str) -> None:
    """Raises InputError if a validation cannot be written there; ask before long runs."""
    if os.path.lexists(folder) and not os.path.isdir(folder):
        raise InputError(f"{folder} is a file; a validation is a folder")
    known = {JSON_NAME, PAGE_NAME, *(f"hw-{number}" for number in range(1, RUNS + 1))}
    if os.path.isdir(folder):
        foreign = sorted(set(os.listdir(folder)) - known)
        if foreign:
            raise InputError(
                f"{folder} holds {foreign[0]}, which belongs to no validation; choose another "
                "folder or empty it"
            )
    for number in range(1, RUNS + 1):
        check_target(os.path.join(folder, f"hw-{number}"))


def write_validation(folder: str, found: Validation) -> None:
    """Write validation.json and the page. Raises InputError where that cannot be."""
    texts = {JSON_NAME: summary_text(as_json(found)), PAGE_NAME: page(found)}
    try:
        os.makedirs(folder, exist_ok=True)
        for name, text in texts.items():
            path = os.path.join(folder, name)
            with open(f"{path}.tmp", "w", encoding="utf-8") as opened:
                opened.write(text)
            os.replace(f"{path}.tmp", path)
    except OSError as error:
        raise InputError(f"{folder}: {error.strerror or error}") from None


def _name_of(path: str) -> str:
    """A short name: of a scenario's file, or of the folder that holds a run."""
    whole = os.path.basename(os.path.abspath(path))
    if whole.startswith("hw-"):
        whole = os.path.basename(os.path.dirname(os.path.abspath(path)))
    return whole.removesuffix(".toml")
