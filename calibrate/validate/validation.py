"""One validation: runs on hardware and a simulation of the same trace, compared in every way there
is, as one value that the table, the page and validation.json are made from.

Refuses to print, draw or write.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import msgspec
from simpy import Environment

from calibrate.into import parts_measured
from calibrate.validate.causes import Cause, causes, with_measured
from calibrate.validate.compare import (
    Figure,
    RequestError,
    Share,
    errors_summary,
    figures,
    request_errors,
    same_requests,
    shares,
    ttft_parts,
)
from calibrate.validate.differences import (
    Difference,
    differences,
    first_in_time,
    flips_apart,
)
from calibrate.validate.limits import Judged, Limits, as_table, judge
from calibrate.validate.measured_lanes import PARTS
from calibrate.validate.runs import Played, play
from calibrate.validate.timing import (
    ModelError,
    Predicted,
    Total,
    idle_s,
    model_errors,
    predictions,
    totals,
)
from hicache import __version__
from hicache.errors import InputError
from scenario.geometry import load_geometry
from scenario.profile import Profile, load_profile
from scenario.records import Scenario, TransferMode
from sim.lanes import SimMachine

SCHEMA = 1
Truth = Literal["profile", "record"]
# How `hw` moves pages, and the simulated mode that is like it where a profile knows no back-ends.
_MODES: dict[str, TransferMode] = {"staged": "staged", "zero_copy": "kernel", "direct": "dma"}


@dataclass(slots=True)
class Validation:
    """What was found. `hardware` holds one run or two, the later ones with the same scenario."""

    name: str
    truth: Truth
    profile: Profile
    scenario: Scenario
    hardware: list[Played]
    simulated: Played
    figures: dict[str, Figure]
    shares: dict[str, Share]
    # The same without requests whose flip lay near zero.
    shares_apart: dict[str, Share]
    requests: list[RequestError]
    differences: list[Difference]
    predictions: list[Predicted]
    model_errors: dict[str, ModelError]
    totals: list[dict[str, Total]]  # of each run on hardware, then of the simulation
    idle_s: list[float]
    parts: list[dict[str, float]]
    causes: list[Cause] = field(default_factory=list)
    judged: list[Judged] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)

    @property
    def runs(self) -> list[Played]:
        """Those on hardware, then the simulation."""
        return [*self.hardware, self.simulated]

    @property
    def first_difference(self) -> Difference | None:
        """The difference that was admitted first."""
        return first_in_time(self.differences, self.hardware[0])

    @property
    def held(self) -> bool:
        """Whether every limit that was asked for holds."""
        return all(each.held for each in self.judged)


def validate(
    hardware: Sequence[Played],
    scenario: Scenario,
    name: str,
    *,
    truth: Truth = "profile",
    limits: Limits | None = None,
    explains: Literal["causes", "nothing"] = "causes",
) -> Validation:
    """Simulate `scenario`, which is that of the runs but for its machine's profile, and compare.

    `truth` "record": every operation takes in the simulation what it took in the first run.
    `explains`: whether the simulation is repeated for what each part of the device model costs.
    Raises InputError where the runs are not of the same requests.
    """
    first = hardware[0]
    if truth == "record":
        simulated, _ = with_measured(scenario, first, frozenset(PARTS))
    else:
        simulated = play(scenario, "simulated")
    if not same_requests(hardware, simulated):
        raise InputError(
            f"{name}: the runs are not of the same requests; a validation compares runs of one "
            "trace and scenario"
        )
    profile = load_profile(scenario.machine.profile)
    geometry = load_geometry(scenario.model.name).with_kv_dtype(scenario.model.kv_dtype)

    def make_machine(env: Environment) -> SimMachine:
        return SimMachine(env, profile, geometry, **machine_options(scenario))

    found = differences(hardware, simulated)
    predicted = predictions(first.completions, make_machine)
    of_all, apart = shares(hardware, simulated), shares(hardware, simulated, flips_apart(found))
    compared = figures(hardware, simulated)
    runs = [*hardware, simulated]
    return Validation(
        name, truth, profile, scenario, list(hardware), simulated, compared, of_all, apart,
        request_errors(hardware, simulated), found, predicted, model_errors(predicted),
        [totals(run.completions) for run in runs],
        [idle_s(run.completions) for run in runs],
        [ttft_parts(run) for run in runs],
        causes(scenario, list(hardware)) if explains == "causes" else [],
        judge(limits, compared, apart) if limits is not None else [],
        _warnings(scenario, profile, hardware, simulated),
    )  # fmt: skip


def as_the_machine_did(scenario: Scenario) -> Scenario:
    """`scenario` with the transfer mode that is most like what a run on hardware did, which asks
    `hw.transfers` alone: its back-end if the profile has it measured, else the mode of that kind.
    """
    pcie, transfers = load_profile(scenario.machine.profile).pcie, scenario.hw.transfers
    mode = _MODES.get(transfers, scenario.machine.transfer_mode)
    if getattr(pcie.backends, transfers, None) is not None:
        mode = "backend"
    elif mode == "kernel" and (pcie.zero_copy_h2d is None or pcie.zero_copy_d2h is None):
        mode = scenario.machine.transfer_mode
    machine = msgspec.structs.replace(scenario.machine, transfer_mode=mode)
    return msgspec.structs.replace(scenario, machine=machine)


def machine_options(scenario: Scenario) -> dict[str, Any]:
    """What a simulated machine is told besides profile and model, as `sim.replay` does it."""
    return {
        "transfer_mode": scenario.machine.transfer_mode, "backend": scenario.hw.transfers
    }  # fmt: skip


def as_json(found: Validation) -> dict[str, Any]:
    """What validation.json holds: signed errors in percent, times in ms and s, tokens."""
    table: dict[str, Any] = {
        "schema": SCHEMA,
        "version": __version__,
        "name": found.name,
        "truth": found.truth,
        "model": found.simulated.summary["model"],
        "trace": found.simulated.summary["trace"]["name"],
        "requests": found.simulated.summary["requests"],
        "policy": found.scenario.restore.policy,
        "profile": {
            "name": found.profile.name,
            "machine": found.profile.machine,
            "software": found.profile.software,
            "date": found.profile.date,
            "measured_at": measured_at(found.profile),
            "parts_measured_at": parts_measured(found.profile),
        },
        "runs": [
            {
                "machine": run.summary["profile"],
                "measured_at": run.measured_at or None,
                "machine_started_at": run.machine_started_at or None,
                "folder": run.folder or None,
            }
            for run in found.hardware
        ],
    }
    for name, figure in found.figures.items():
        table[f"{name}_error_percent"] = figure.error_percent
    table["runs_difference_percent"] = {
        name: figure.runs_percent for name, figure in found.figures.items()
    }
    table["figures"] = {
        name: {"hardware": list(figure.hardware), "simulated": figure.simulated}
        for name, figure in found.figures.items()
    }
    for key, of_sources in (
        ("tokens_by_source", found.shares),
        ("tokens_by_source_without_near_zero_flips", found.shares_apart),
    ):
        table[key] = {
            source: {
                "hardware": list(share.hardware),
                "simulated": share.simulated,
                "points": share.points,
                "runs_points": share.runs_points,
                "error_percent": share.figure.error_percent,
            }
            for source, share in of_sources.items()
        }
    table["by_request"] = errors_summary(found.requests)
    table["differences"] = [each._asdict() for each in found.differences]
    first = found.first_difference
    table["first_difference"] = first.request if first is not None else None
    table["ttft_parts_ms"] = dict(zip(_names(found), found.parts, strict=True))
    table["time_by_device"] = {
        name: {
            **{kind: total._asdict() for kind, total in of_run.items()},
            "gpu_idle_s": idle,
        }
        for name, of_run, idle in zip(_names(found), found.totals, found.idle_s, strict=True)
    }
    table["device_model"] = {
        kind: {**error._asdict(), "error_percent": error.error_percent}
        for kind, error in found.model_errors.items()
    }
    table["causes"] = [
        {
            "measured": sorted(cause.parts),
            "matched_operations": cause.matched,
            "unmatched_operations": cause.unmatched,
            **{
                f"{name}_error_percent": cause.figures[name].error_percent
                for name in ("ttft_mean", "ttft_p50", "ttft_p90", "ttft_p99", "throughput")
            },
        }
        for cause in found.causes
    ]
    table["limits"] = as_table(found.judged)
    table["held"] = found.held if found.judged else None
    table["warnings"] = found.warnings
    return table


def measured_at(profile: Profile) -> str | None:
    """When the profile's calibration began; None where nobody noted it."""
    return profile.measurement.began if profile.measurement is not None else None


def _names(found: Validation) -> list[str]:
    return [run.name for run in found.runs]


def _warnings(
    scenario: Scenario, profile: Profile, hardware: Sequence[Played], simulated: Played
) -> list[str]:
    warnings: list[str] = []
    facts = profile.measurement.facts if profile.measurement is not None else {"gpu": "some"}
    if "gpu" in facts and any(run.summary.get("profile") == "CPU" for run in hardware):
        warnings.append(
            f"machine: the runs are of a CPU, and {profile.name} is of a GPU; hicache calibrate "
            "--device cpu makes a profile of this one"
        )
    mode, simulated_mode = _MODES.get(scenario.hw.transfers), scenario.machine.transfer_mode
    if simulated_mode not in ("backend", mode):
        measured = "" if profile.pcie.backends is not None else ", which the profile does not know"
        warnings.append(
            f"transfer_mode: the machine moved pages by hw.transfers={scenario.hw.transfers}"
            f"{measured}; they are simulated as machine.transfer_mode={simulated_mode}"
        )
    warnings += [
        warning
        for warning in simulated.summary["warnings"]
        if str(warning).startswith(("outside_range", "overload"))
    ]
    return warnings
