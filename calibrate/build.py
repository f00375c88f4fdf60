"""From what was measured to a profile that a simulation can use, with a base for what was not.

    measured series --fits--> values "measured", each with its spread; the fits with their errors
    base profile ---------> values that were not measured here: "estimate", from that machine

So every profile loads and replays: one without a GPU, one that was stopped half-way, one of a
server. The result of a replay lists the estimates it rests on. Refuses to mix two models' steps:
the GPU's part is measured as a whole or comes from the base as a whole.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import msgspec

from calibrate.build_host import build_disk, build_host
from calibrate.build_link import build_link
from calibrate.build_peers import peer_fits
from calibrate.fits import report
from calibrate.gpu_fit import Graphs, fit_gpu
from calibrate.ground import LIMITS, Ground, noise_permille
from calibrate.session import Measured
from scenario.geometry import ModelGeometry
from scenario.measurement import Fit, Measurement
from scenario.profile import (
    SCHEMA,
    GpuProfile,
    Interference,
    Memory,
    Profile,
    Quantity,
    SampledModel,
)

_BESIDE = {
    "copy_h2d": ("prefill", "decode"),
    "copy_d2h": ("prefill", "decode"),
    "prefill": ("h2d", "d2h"),
    "decode": ("h2d", "d2h"),
}


class Told(NamedTuple):
    """What a profile says besides its numbers."""

    name: str
    machine: str
    software: str
    date: str
    source: str


class Built(NamedTuple):
    """A profile, and what was taken from the base for want of samples, by part."""

    profile: Profile
    borrowed: tuple[str, ...]


def build_profile(
    measured: Measured,
    told: Told,
    base: Profile,
    geometry: ModelGeometry,
    measurement: Measurement,
    memory: Memory,
    graphs: Graphs = Graphs(),  # noqa: B008  # immutable
) -> Built:
    """The profile of what was measured.

    `geometry`: of the model whose steps were timed. `measurement`: without series and fits, which
    are put in here. Where a server was timed, the GPU's part is that server's.
    """
    ground = Ground(measured, base, geometry, graphs)
    profile = Profile(
        schema=SCHEMA,
        name=told.name,
        machine=told.machine,
        software=told.software,
        date=told.date,
        source=told.source,
        memory=memory,
        gpu=build_gpu(ground),
        pcie=build_link(ground),
        host=build_host(ground),
        disk=build_disk(ground),
        interference=build_interference(ground),
        measurement=msgspec.structs.replace(
            measurement,
            missing=(*measured.missing, *(f"{key}: from {base.name}" for key in ground.borrowed)),
            series=tuple(measured.series.values()),
            fits=(*ground.fits, *peer_fits(measured)),
        ),
    )
    return Built(profile, tuple(ground.borrowed))


def build_gpu(ground: Ground) -> GpuProfile:
    """Dense and attention from whole steps."""
    samples = ground.measured.samples
    source = "server" if ground.server else "steps"
    how = (
        f"times to first token and between tokens of a server of {ground.geometry.name}"
        if ground.server
        else f"whole steps of {ground.geometry.name} through the model of a run"
    )
    fit = fit_gpu(
        SampledModel.of(ground.geometry, "measured", "the model whose steps were timed"),
        samples(f"{source}.prefill"), samples(f"{source}.decode"), samples(f"{source}.joint"),
        ground.graphs, how,
    )  # fmt: skip
    if fit is None:
        return ground.borrow_all(ground.base.gpu, "gpu")
    for key, series, errors in (
        ("gpu.dense, gpu.attention_prefill", f"{source}.prefill", fit.prefill),
        ("gpu: several requests in a prefill", f"{source}.joint", fit.joint),
        ("gpu.dense_decode, gpu.attention_decode", f"{source}.decode", fit.decode),
    ):
        if series not in ground.measured.series:
            continue
        kind = "whole = dense + attention" + (
            ", dense in steps of the graphs' sizes" if ground.graphs.prefill_tokens else ""
        )
        if fit.left_out and errors is not fit.joint:
            kind += f"; left out as disturbed: {', '.join(map(str, fit.left_out))}"
        ground.fits.append(report(key, (series,), kind, errors, LIMITS["steps"]))
    if ground.server:
        return fit.gpu
    ahead = Quantity(
        provenance="measured",
        how="a burst's next step is launched while one runs (hw.clock.run_burst)",
        value=1,
    )
    return msgspec.structs.replace(fit.gpu, steps_ahead=ahead)


def build_interference(ground: Ground) -> Interference | None:
    """The parts of their own speed that copies and steps keep beside each other."""
    values: dict[str, Quantity] = {}
    for what, others in _BESIDE.items():
        alone = ground.measured.samples(f"interference.{what}.alone")
        for other in others:
            under = ground.measured.samples(f"interference.{what}.{other}")
            if not alone or not under:
                return ground.base.interference and ground.borrow_all(
                    ground.base.interference, "interference"
                )
            kept = round(1000 * alone[0].median_ns / under[0].median_ns)
            name = f"{what.removeprefix('copy_')}_under_{other}_permille"
            values[name] = Quantity(
                provenance="measured",
                how=f"{what.replace('_', ' ')} alone, and while {other} goes on",
                value=max(1, min(1000, kept)),
                spread_permille=max(noise_permille(alone[0]), noise_permille(under[0])),
            )
    return Interference(**values)


def misfits(fits: Sequence[Fit]) -> list[Fit]:
    """Those that do not fit."""
    return [each for each in fits if each.verdict.startswith("does not")]
