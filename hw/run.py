"""One run on a real machine: a scenario's trace through the same engine, from files to results.

    prepare -> LiveRun.execute -> LiveRun.outcome, LiveRun.close          `run_scenario` does all

The engine, the recorder and the requests are those of a simulation; lanes and environment are live.
The record of completions is always kept: it is what makes the run repeatable elsewhere. A run that
a device or anything else brings to an early end keeps what was done until then.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from itertools import chain

import msgspec

from hicache.engine import Engine
from hicache.errors import InputError
from hicache.options import EngineOptions, LoadOptions
from hicache.ports import Lanes
from hicache.record import Recorder
from hicache.requests import Request
from hw.assembly import Assembly, DeviceName, Told
from hw.core import own_core
from hw.interrupt import Interrupt
from hw.journal import RECORD, Journal
from hw.lanes import LiveLanes
from hw.live import LiveEnvironment, run_live
from hw.machine import ThreadMachine
from hw.steps import StepsOf
from hw.stores.opening import idle_store_keys
from hw.workers import Patience, WorkQueue
from report.outcome import Outcome
from report.rows import Rows
from report.run import Machine
from report.summary import summarise
from scenario.geometry import ModelGeometry
from scenario.opening import Inputs, open_inputs
from scenario.records import Scenario, dump_toml, record_digest
from scenario.resolve import pinned_sizes, real_layout
from traces.load import arriving
from traces.reader import Trace
from traces.source import Progress

# What stands between the engine's record and the lanes: nothing, or faults that a test injects.
Port = Callable[[LiveEnvironment, Lanes], Lanes]
MakeAssembly = Callable[[Scenario, EngineOptions, ModelGeometry, DeviceName, Told], Assembly]


@dataclass(slots=True)
class LiveRun:
    """A run put together, and what `report` wants to know of it once it has ended."""

    scenario: Scenario
    options: EngineOptions
    geometry: ModelGeometry
    profile_name: str
    trace: Trace
    engine: Engine
    warnings: tuple[str, ...]
    load: LoadOptions
    env: LiveEnvironment
    queues: Sequence[WorkQueue]
    lanes: LiveLanes
    recorder: Recorder
    lines: list[str]
    assembly: Assembly
    machine: Machine | None = None
    notes: list[str] = field(default_factory=list)
    interrupted: bool = False

    @property
    def instances(self) -> tuple[Engine, ...]:
        """Every engine of the run: one."""
        return (self.engine,)

    def execute(self) -> None:
        """Serve the whole trace. Ctrl-C ends it early and keeps what is done.

        Whatever it raises ended the run, with nothing under way on a device that still answers:
        DeviceError where a device broke, InputError for a trace that turns out to be wrong.
        """
        interrupt = Interrupt(self.env.machine)
        collecting = gc.isenabled()
        gc.disable()
        try:
            reads_ahead = not self.trace.layout.timed
            self.engine.serve(
                interrupt.reading(self._requests()), self.load, reads_ahead=reads_ahead
            )
            with own_core() if self.scenario.hw.waiting == "poll" else nullcontext():
                self.interrupted = not run_live(self.env, self.lanes, interrupt=interrupt)
        except BaseException as error:
            self.interrupted = True
            self.notes.append(f"broke_off: the run ended early: {error}")
            raise
        finally:
            if collecting:
                gc.enable()
        if not self.interrupted:
            self.recorder.close()

    def outcome(self) -> Outcome:
        """What the run left, after `execute`, however that ended."""
        rows = Rows(self.engine.metrics)
        summary = summarise(self, rows)
        summary["engine_us_per_operation"] = self.env.engine_ns_per_operation / 1000
        if self.assembly.store is not None:
            summary["store"] = self.assembly.store.summary()
        extras = {RECORD: "\n".join(self.lines) + "\n"}
        text = dump_toml(self.scenario)
        return Outcome(summary, rows.columns(), text, extras, self.interrupted)

    def close(self) -> None:
        """Wait for what is under way, and let go of devices and memory; but not of what a device
        that no longer answers may still write to.
        """
        try:
            self.lanes.close()
        finally:
            if not any(queue.stuck for queue in self.queues):
                self.assembly.close()

    def _requests(self) -> Iterable[Request]:
        table = self.scenario.load
        trace = self.trace.requests(self.options.page_size_tokens, self.scenario.cache.pages)
        return arriving(
            self.assembly.reading(trace),
            table.shape,
            rate_per_s=table.rate,
            loop=self.load.loop,
            seed=self.scenario.seed,
            notes=self.notes,
        )


def prepare(
    scenario: Scenario,
    *,
    device: DeviceName = "cuda",
    progress: Progress | None = None,
    tell: Told = print,
    journal: Journal | None = None,
    assemble: MakeAssembly = Assembly,
    port: Port | None = None,
) -> LiveRun:
    """Read what `scenario` names and put the run together; to be closed.

    Pages have numbers here (`engine.page_ids`), and the tiers' sizes are written into the
    scenario in pages, so that a replay of the record needs nothing of this machine. Raises
    InputError for what the user gave that cannot be, DeviceError where a device broke.
    """
    scenario, inputs = _settled(scenario, progress)
    geometry, _, options, warnings, trace, load = inputs
    warnings = (*warnings, *real_layout(scenario), *idle_store_keys(scenario.hw, options))
    assembly = assemble(scenario, options, geometry, device, tell)
    try:
        if journal is not None:
            journal.begin(dump_toml(scenario))
    except BaseException:
        for each in chain.from_iterable(assembly.queues.values()):  # which no queue closes yet
            each.close()
        assembly.close()
        raise
    machine = ThreadMachine(waiting=scenario.hw.waiting)
    env = LiveEnvironment(machine)
    store = assembly.store
    queues: dict[str, WorkQueue] = {}
    for name, devices in assembly.queues.items():
        slack_s = store.slack_s if store is not None and name in store.queues else 0.0
        patience = Patience(base_s=scenario.hw.watchdog_s + slack_s)
        queues[name] = WorkQueue(name, devices, machine, patience)
    steps_of = StepsOf(assembly.tokens_of)
    lanes = LiveLanes(env, queues, steps_of, assembly.loads)
    lines: list[str] = []
    write = lines.append
    if journal is not None:
        machine.guard(journal.flush)
        write = _both(lines.append, journal.write)
    outer = port(env, lanes) if port is not None else lanes
    recorder = Recorder(env, outer, write, record_digest(scenario))
    env.at_turns_end(recorder.put_off())
    engine = Engine(env, recorder, options)
    env.at_turns_end(engine.metrics.put_off())
    steps_of.engine = engine
    return LiveRun(
        scenario, options, geometry, assembly.name, trace, engine, warnings, load, env,
        tuple(queues.values()), lanes, recorder, lines, assembly,
    )  # fmt: skip


def run_scenario(
    scenario: Scenario,
    *,
    device: DeviceName = "cuda",
    progress: Progress | None = None,
    tell: Told = print,
    journal: Journal | None = None,
    keep: Callable[[Outcome], object] | None = None,
) -> Outcome:
    """Carry `scenario` out on this machine and return what came of it; see `prepare`.

    `journal` gets the record while it grows. A run that does not come to its end raises what ended
    it; `keep` is given what it did before, if it did anything, while the devices (which may be
    beyond closing) are still open.
    """
    run = prepare(scenario, device=device, progress=progress, tell=tell, journal=journal)
    try:
        run.execute()
    except Exception as error:
        if not run.env.operations:
            if journal is not None:
                journal.discard()
        elif keep is not None:
            try:
                keep(run.outcome())
            except Exception as another:  # the one that ended the run is the one to be raised
                error.add_note(f"what was done until then could not be kept: {another!r}")
        raise
    finally:
        run.close()
    return run.outcome()


def _both(
    first: Callable[[str], object], second: Callable[[str], object]
) -> Callable[[str], object]:
    def write(line: str) -> None:
        first(line)
        second(line)

    return write


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
