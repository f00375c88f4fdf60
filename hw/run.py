"""One run on a real machine: a scenario's trace through the same engine, from files to results.

The engine, the recorder and the requests are those of a simulation; lanes and environment are live.
The record of completions is always kept: it is what makes the run repeatable elsewhere.
"""

from __future__ import annotations

import gc
from dataclasses import dataclass, field

import msgspec

from hicache.engine import Engine
from hicache.errors import InputError
from hicache.options import EngineOptions, LoadOptions
from hicache.record import Recorder
from hw.assembly import Assembly, DeviceName, Told
from hw.interrupt import Interrupt
from hw.lanes import LiveLanes
from hw.live import LiveEnvironment, run_live
from hw.machine import ThreadMachine
from hw.steps import StepsOf
from hw.workers import Patience, WorkQueue
from report.outcome import Outcome
from report.rows import Rows
from report.run import Machine
from report.summary import summarise
from scenario.geometry import ModelGeometry
from scenario.opening import Inputs, open_inputs
from scenario.records import Scenario, dump_toml, record_digest
from scenario.resolve import pinned_sizes
from traces.load import arriving
from traces.reader import Trace
from traces.source import Progress


@dataclass(slots=True)
class LiveRun:
    """A run that has ended, for `report`."""

    scenario: Scenario
    options: EngineOptions
    geometry: ModelGeometry
    profile_name: str
    trace: Trace
    engine: Engine
    warnings: tuple[str, ...]
    load: LoadOptions
    machine: Machine | None = None
    notes: list[str] = field(default_factory=list)
    interrupted: bool = False


def run_scenario(
    scenario: Scenario,
    *,
    device: DeviceName = "cuda",
    progress: Progress | None = None,
    tell: Told = print,
) -> Outcome:
    """Carry `scenario` out on this machine and return what came of it.

    Pages have numbers here (`engine.page_ids`), and the tiers' sizes are written into the
    scenario in pages, so that a replay of the record needs nothing of this machine. Raises
    InputError for what the user gave that cannot be, DeviceError where a device broke.
    """
    scenario, run_inputs = _settled(scenario, progress)
    geometry, _, options, warnings, trace, load = run_inputs
    assembly = Assembly(scenario, options, geometry, device, tell)
    machine = ThreadMachine()
    env = LiveEnvironment(machine)
    patience = Patience(base_s=scenario.hw.watchdog_s)
    queues = {
        name: WorkQueue(name, devices, machine, patience)
        for name, devices in assembly.queues.items()
    }
    steps_of = StepsOf(assembly.tokens_of)
    lanes = LiveLanes(env, queues, steps_of)
    lines: list[str] = []
    recorder = Recorder(env, lanes, lines.append, record_digest(scenario))
    engine = Engine(env, recorder, options)
    steps_of.engine = engine
    run = LiveRun(scenario, options, geometry, assembly.name, trace, engine, warnings, load)
    table = scenario.load
    interrupt = Interrupt(machine)
    requests = arriving(
        trace.requests(options.page_size_tokens, scenario.cache.pages),
        table.shape,
        rate_per_s=table.rate,
        loop=load.loop,
        seed=scenario.seed,
        notes=run.notes,
    )
    collecting = gc.isenabled()
    gc.disable()
    try:
        engine.serve(interrupt.reading(requests), load, reads_ahead=not trace.layout.timed)
        run.interrupted = not run_live(env, lanes, interrupt=interrupt)
    finally:
        if collecting:
            gc.enable()
        try:
            lanes.close()
        finally:
            assembly.close()
    if not run.interrupted:
        recorder.close()
    rows = Rows(engine.metrics)
    summary = summarise(run, rows)
    summary["engine_us_per_operation"] = env.engine_ns_per_operation / 1000
    extras = {"completions.jsonl": "\n".join(lines) + "\n"}
    return Outcome(summary, rows.columns(), dump_toml(scenario), extras, run.interrupted)


def _settled(scenario: Scenario, progress: Progress | None) -> tuple[Scenario, Inputs]:
    """The scenario with named pages and sizes in pages, and its inputs."""
    if scenario.mode == "untimed":
        raise InputError("mode is untimed: a real machine takes time; use hicache replay")
    for key, value in (("pages", "partial"), ("hit_cap", "none")):
        if getattr(scenario.cache, key) == value:
            raise InputError(
                f"cache.{key} is {value}: on a real machine every request computes its last token "
                "into pages of its own; use hicache replay"
            )
    named = msgspec.structs.replace(scenario.engine, page_ids="named")
    scenario = msgspec.structs.replace(scenario, engine=named)
    inputs = open_inputs(scenario, progress)
    return pinned_sizes(scenario, inputs.options), inputs
