"""One replay: a scenario's trace through the engine on the simulated machine, from files to
results.

Everything that a run depends on is in the scenario and in the files that it names; the outcome is a
summary, one row a request, and the scenario as resolved. Nothing here prints or writes a result.
"""

from __future__ import annotations

import gc
from dataclasses import dataclass, field, replace

from simpy import Environment

from hicache.engine import Engine
from hicache.errors import InputError, RecordEnded
from hicache.kernel import drain
from hicache.options import EngineOptions, LoadOptions
from hicache.ports import Lanes
from hicache.record import Record, Recorder, ReplayLanes
from hicache.store_contents import StoreContents
from report.outcome import Outcome
from report.rows import Rows
from report.summary import summarise
from report.timeline import TimelineLanes
from scenario.geometry import ModelGeometry
from scenario.opening import open_inputs
from scenario.profile import Profile
from scenario.records import Scenario, dump_toml, record_digest
from scenario.resolve import layout_warnings, left_to_hardware
from scenario.stores import load_store
from sim.fleet import Fleet
from sim.instant import InstantLanes
from sim.interrupt import Interrupt
from sim.lanes import SimMachine
from traces.load import arriving
from traces.reader import Trace
from traces.source import Progress

# Between two looks for Ctrl-C: some hundredths of a second.
EVENTS_AT_ONCE = 1000


@dataclass(slots=True)
class Run:
    """The parts of a replay, put together and not yet started."""

    scenario: Scenario
    options: EngineOptions
    geometry: ModelGeometry
    profile: Profile
    trace: Trace
    env: Environment
    engine: Engine | Fleet
    machine: SimMachine | None
    warnings: tuple[str, ...]
    load: LoadOptions
    timeline: TimelineLanes | None = None
    record_lines: list[str] | None = None
    recorder: Recorder | None = None
    replaying: ReplayLanes | None = None
    interrupted: bool = False
    cut_off: str = ""  # where the record that is replayed ends before the run does
    # What was assumed of the trace's arrivals.
    notes: list[str] = field(default_factory=list)

    @property
    def profile_name(self) -> str:
        """The machine's name in the summary."""
        return self.profile.name

    @property
    def instances(self) -> tuple[Engine, ...]:
        """Every engine of the run."""
        engine = self.engine
        return engine.engines if isinstance(engine, Fleet) else (engine,)

    def execute(self) -> None:
        """Serve the whole trace. Ctrl-C ends it early and keeps what is done, and so does a record
        that was cut off. A second Ctrl-C is a KeyboardInterrupt: then there is no result.
        """
        # The cyclic collector finds next to nothing here.
        collecting = gc.isenabled()
        gc.disable()
        interrupt = Interrupt(self.env)
        try:
            with interrupt:
                self._serve(interrupt)
        except KeyboardInterrupt:
            self.interrupted = True
            if interrupt.given_up:
                raise
            if self.machine is not None:
                self.machine.end_batches()
        except RecordEnded as ended:
            self.interrupted, self.cut_off = True, str(ended)
            self.notes.append(f"cut_off: {ended}")
        finally:
            if collecting:
                gc.enable()
        if self.recorder is not None and not self.interrupted:
            self.recorder.close()

    def _serve(self, interrupt: Interrupt) -> None:
        tiers, cache = self.scenario.tiers, self.scenario.cache
        requests = interrupt.reading(self.trace.requests(tiers.page_size_tokens, cache.pages))
        if self.scenario.mode == "untimed":
            self.engine.serve_untimed(requests)
            return
        load = self.scenario.load
        requests = arriving(
            requests,
            load.shape,
            rate_per_s=load.rate,
            loop=self.load.loop,
            seed=self.scenario.seed,
            notes=self.notes,
        )
        if self.replaying is not None:
            assert isinstance(self.engine, Engine)
            self.replaying.deliver_inputs(self.engine)
        self.engine.serve(requests, self.load, reads_ahead=not self.trace.layout.timed)
        while drain(self.env, EVENTS_AT_ONCE):
            pass
        if self.replaying is not None:
            self.replaying.finish()
        assert self.engine.running == 0, "the run ended with requests under way"

    def outcome(self) -> Outcome:
        """What the run left, after `execute`."""
        rows = Rows(self.engine.metrics)
        summary = summarise(self, rows)
        extras: dict[str, str] = {}
        if self.timeline is not None:
            extras["timeline.json"] = self.timeline.text()
        if self.record_lines is not None:
            extras["completions.jsonl"] = "\n".join(self.record_lines) + "\n"
        text = dump_toml(self.scenario)
        return Outcome(summary, rows.columns(), text, extras, self.interrupted, self.cut_off)


def prepare(
    scenario: Scenario,
    *,
    progress: Progress | None = None,
    timeline: bool = False,
    record: bool = False,
    replay_of: Record | None = None,
    profile: Profile | None = None,
    trace: Trace | None = None,
) -> Run:
    """Read what `scenario` names and put the run together.

    `timeline`: keep the run for Perfetto. `record`: keep every completion. `replay_of`: take the
    completions from a record instead of the simulated machine. `profile`: in place of the one that
    the scenario names. `trace`: the scenario's, where it is open already. Raises InputError for
    whatever the user gave that cannot be.
    """
    geometry, named, options, warnings, trace, load = open_inputs(scenario, progress, trace)
    profile = profile or named
    if scenario.mode == "untimed" and (record or timeline or replay_of is not None):
        raise InputError(
            "mode is untimed: nothing takes time, so there are no completions to record or replay "
            "and no timeline; leave out --untimed, or else --save-record, --record and --timeline"
        )
    if replay_of is None:
        warnings = (
            *warnings,
            *layout_warnings(scenario, profile.pcie),
            *left_to_hardware(scenario, profile.pcie),
        )
    if scenario.instances > 1 and (record or timeline or replay_of is not None):
        raise InputError(
            f"instances is {scenario.instances}: a record and a timeline are those of one engine; "
            "leave out --save-record, --record and --timeline, or set instances to 1"
        )
    env = Environment(0)
    contents: list[StoreContents] = []
    if options.has_store:
        parts = scenario.ranks.store_parts(geometry)
        contents = [StoreContents(options.storage_pages) for _ in range(parts)]
    machine: SimMachine | None = None
    replaying: ReplayLanes | None = None
    lanes: Lanes
    if replay_of is not None:
        if replay_of.scenario and replay_of.scenario != record_digest(scenario):
            raise InputError(f"{replay_of.source} was recorded of another scenario")
        lanes = replaying = ReplayLanes(env, replay_of)
    elif scenario.mode == "untimed":
        lanes = InstantLanes(env)
    else:
        machine = SimMachine(
            env,
            profile,
            geometry,
            transfer_mode=scenario.machine.transfer_mode,
            host_layout=scenario.machine.host_layout,
            kv_parts=1 if geometry.kind == "mla" else 2,
            backend=scenario.hw.transfers,
            keeps_step_ends=record,
            store=load_store(scenario.machine.store) if scenario.machine.store else None,
            contents=contents or None,
            ranks=options.ranks,
            writing_ranks=options.writing_ranks,
            page_bytes=options.page_bytes,
        )
        lanes = machine.lanes()
    keeper = TimelineLanes(env, lanes) if timeline else None
    lanes = keeper or lanes
    lines: list[str] | None = [] if record else None
    recorder: Recorder | None = None
    if lines is not None:
        lanes = recorder = Recorder(env, lanes, lines.append, record_digest(scenario))
    engine = first = Engine(env, lanes, options)
    if keeper is not None:
        keeper.watch(first)
    if scenario.instances > 1:
        others = [
            Engine(env, machine.lanes() if machine else lanes, replace(options, instance=number))
            for number in range(1, scenario.instances)
        ]
        engine = Fleet(env, [first, *others], scenario.router, contents[0] if contents else None)
    return Run(
        scenario, options, geometry, profile, trace, env, engine, machine, warnings, load, keeper,
        lines, recorder, replaying,
    )  # fmt: skip


def replay(
    scenario: Scenario,
    *,
    progress: Progress | None = None,
    timeline: bool = False,
    record: bool = False,
    replay_of: Record | None = None,
    profile: Profile | None = None,
) -> Outcome:
    """Replay `scenario` and return what came of it; see `prepare` for the arguments."""
    run = prepare(
        scenario, progress=progress, timeline=timeline, record=record, replay_of=replay_of,
        profile=profile,
    )  # fmt: skip
    run.execute()
    return run.outcome()
