"""What a scenario names, opened and checked: model, machine, trace, and the engine's options.

The same in both modes, so that what one refuses the other refuses, too.
"""

from __future__ import annotations

from typing import NamedTuple

from hicache.errors import InputError
from hicache.options import EngineOptions, LoadOptions
from scenario.geometry import ModelGeometry, load_geometry
from scenario.profile import Profile, load_profile
from scenario.records import Scenario
from scenario.resolve import resolve
from traces.reader import Trace, open_trace
from traces.source import Progress


class Inputs(NamedTuple):
    """All of them. `geometry` has the scenario's KV dtype; `warnings` are sentences."""

    geometry: ModelGeometry
    profile: Profile
    options: EngineOptions
    warnings: tuple[str, ...]
    trace: Trace
    load: LoadOptions


def open_inputs(
    scenario: Scenario, progress: Progress | None = None, trace: Trace | None = None
) -> Inputs:
    """Open what `scenario` names; `trace`: its trace, where it is open already. Raises InputError
    for whatever the user gave that cannot be.
    """
    if not scenario.trace.path:
        raise InputError("no trace was given: name a file, or trace.path in the scenario")
    geometry = load_geometry(scenario.model.name)
    profile = load_profile(scenario.machine.profile)
    options, warnings = resolve(scenario, profile, geometry)
    if scenario.cache.pages == "partial" and scenario.cache.outputs == "cached":
        raise InputError(
            "cache.outputs is cached while cache.pages is partial: an output goes on in the page "
            'that its prompt left partly filled; set cache.outputs to "dropped"'
        )
    trace = trace or open_trace(
        scenario.trace.path,
        block_tokens=scenario.trace.block_tokens,
        speed=scenario.trace.speed,
        progress=progress,
        tokenizer=scenario.trace.tokenizer,
        on_error=scenario.trace.on_error,
        prefixes=scenario.trace.prefixes(scenario.seed),
    )
    return Inputs(
        geometry.with_kv_dtype(scenario.model.kv_dtype),
        profile,
        options,
        warnings,
        trace,
        scenario.load.limits(trace.hints),
    )
