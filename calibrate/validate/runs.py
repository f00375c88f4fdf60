"""A run taken apart: its rows, its operations, and what its policy was asked and said.

A run on hardware is repeated from its record in plain SimPy, which gives back every decision, so
that both kinds of run are looked at with the same eyes:

    result folder --record--> ReplayLanes --+
                                            +--> Engine --> rows, completions, choices
    scenario, profile ----> SimMachine -----+

Refuses to compare; see `calibrate.validate.compare`.
"""

# pyright: reportPrivateUsage=false
# The policy is asked for a request that stands at the head of the scheduler's queue.
from __future__ import annotations

import gzip
import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from hicache.cost_model import SAFETY, CostModel
from hicache.engine import Engine
from hicache.errors import InputError
from hicache.kernel import Pending
from hicache.operations import Completion, Decode, Operation
from hicache.ports import Lanes
from hicache.record import Record, Recorder
from hicache.requests import Request
from hicache.restore_policy import FROM_HOST, FROM_STORAGE, Choice, Policy
from hicache.tree import Match
from report.outcome import Outcome
from scenario.load import load_scenario
from scenario.records import Scenario
from scenario.results import load_result
from sim.replay import Run, prepare

RECORD_NAME = "completions.jsonl"


class Asked(NamedTuple):
    """What a policy was asked about a request, and said. Hits in pages, times in seconds.

    `recompute_s` and `restore_s` are what was believed then of the pages between the L1 hit and the
    deepest one; `restore_s` has the cost policy's margin in it. `lines` are the beliefs themselves:
    (seconds, seconds per token or byte, samples seen) of prefill, H2D and S2H.
    """

    request: int
    at_ns: int
    device: int
    host: int
    storage: int
    goal: int
    reason: str
    recompute_s: float
    restore_s: float
    lines: tuple[tuple[float, float, int], ...]

    @property
    def relative_benefit(self) -> float:
        """The believed gain of restoring, as a part of recomputing."""
        if self.recompute_s <= 0:
            return -1.0
        return (self.recompute_s - self.restore_s) / self.recompute_s


@dataclass(slots=True)
class Played:
    """A run that was looked at. `asked` is in order; a request may be asked about again.

    `endings`: (operation, ns) of every burst that was asked to end, when it first was.
    """

    name: str
    scenario: Scenario
    summary: dict[str, Any]
    columns: dict[str, list[Any]]
    completions: list[Completion]
    asked: list[Asked]
    endings: dict[int, int]
    # Of a run on hardware: when it was made, and its machine started, if the result says so.
    measured_at: str = ""
    machine_started_at: str = ""
    folder: str = ""
    notes: list[str] = field(default_factory=list)

    def first_asked(self) -> dict[int, Asked]:
        """What was said of each request that was asked about, the last time before its start."""
        return {each.request: each for each in self.asked}


def play(
    scenario: Scenario,
    name: str,
    *,
    record: Record | None = None,
    lanes_of: Callable[[Run], Lanes] | None = None,
    policy_of: Callable[[Engine, Policy], Policy] | None = None,
) -> Played:
    """Run `scenario` on the simulated machine, or from `record`, and take the run apart.

    `lanes_of`: other lanes for the simulated machine. `policy_of`: another policy, from the engine
    and its own. Raises InputError for what cannot be.
    """
    run = prepare(scenario, record=record is None, replay_of=record)
    if lanes_of is not None:
        _reroute(run, lanes_of(run))
    engine = run.engine
    if not isinstance(engine, Engine):
        raise InputError(f"instances is {scenario.instances}: this is a comparison of one engine")
    if scenario.ranks.tp > 1:
        raise InputError(f"ranks.tp is {scenario.ranks.tp}: this is a comparison of one GPU")
    if policy_of is not None:
        follow(engine, policy_of(engine, engine.policy))
    asked: list[Asked] = []
    follow(engine, listening(engine, engine.policy, asked.append))
    endings = Endings(engine)
    run.execute()
    if run.interrupted:
        raise KeyboardInterrupt
    outcome = run.outcome()
    if record is None:
        assert run.record_lines is not None
        record = Record(run.record_lines)
    columns = {key: list(values) for key, values in outcome.columns.items()}
    return Played(
        name, scenario, outcome.summary, columns, completions_of(record), asked, endings.asked
    )


def follow(engine: Engine, policy: Policy) -> None:
    """Let `engine` ask `policy` from now on: for policies that are no option of the engine's."""
    engine.policy = policy
    engine.scheduler.admission.policy = policy


def asked_about(engine: Engine) -> Request:
    """The request that the engine is asking its policy about."""
    run = engine.scheduler.admission.queue.head()
    assert run is not None, "a policy is asked about a request that waits"
    return run.request


def listening(engine: Engine, policy: Policy, hear: Callable[[Asked], object]) -> Policy:
    """`policy`, with everything that it says told to `hear`."""
    page = engine.options.page_size_tokens
    belief: CostModel = engine.belief

    def choose(hits: Match) -> Choice:
        deepest = max(hits.host, hits.storage)
        tokens = (deepest - hits.device) * page
        way = FROM_STORAGE if hits.storage > hits.host else FROM_HOST
        size_bytes = tokens * belief.bytes_per_token
        recompute_s = belief.recompute_seconds(tokens)
        restore_s = SAFETY * sum(belief.transfer_seconds(each, size_bytes) for each in way)
        # Without samples of its own H2D is believed to be like D2H (`CostModel`).
        down = belief.copies["h2d"] if belief.copies["h2d"].seen else belief.copies["d2h"]
        lines = tuple(
            (line.fixed, line.slope, line.seen)
            for line in (belief.prefill, down, belief.copies["s2h"])
        )
        choice = policy(hits)
        hear(
            Asked(
                asked_about(engine).number, int(engine.env.now), hits.device, hits.host,
                hits.storage, choice.goal, choice.reason, recompute_s, restore_s, lines,
            )
        )  # fmt: skip
        return choice

    return choose


class Endings:
    """Lanes between an engine's decode steps and its own, which hear when a burst is to end."""

    def __init__(self, engine: Engine) -> None:
        self._env = engine.env
        self._inner = engine.scheduler.decode.lanes
        self.asked: dict[int, int] = {}
        engine.scheduler.decode.lanes = self

    def submit(self, operation: Operation) -> Pending[Completion]:
        """See `hicache.ports.Lanes`."""
        return self._inner.submit(operation)

    def end_burst(self, pending: Pending[Completion]) -> None:
        """See `hicache.ports.Lanes`."""
        self.asked.setdefault(pending.number, int(self._env.now))
        self._inner.end_burst(pending)


def steps_ahead(run: Played) -> list[int]:
    """Of each burst that was cut while it ran: steps that it did after the one under way."""
    ahead: list[int] = []
    for done in run.completions:
        operation, asked_ns = done.operation, run.endings.get(done.number)
        if type(operation) is not Decode or asked_ns is None:
            continue
        if asked_ns > done.started_ns and done.steps < operation.max_steps:
            ahead.append(max(0, sum(end >= asked_ns for end in done.step_ends_ns) - 1))
    return ahead


def load_run(
    folder: str | os.PathLike[str], name: str, moved: Mapping[str, object] | None = None
) -> Played:
    """The run in a result folder of `hicache run`, repeated from its record.

    `moved`: options that say where its trace lies now.

    Raises InputError for a folder that holds no record, and RecordError for one that does not
    belong to its scenario.
    """
    result = load_result(folder)
    place = os.fspath(folder)
    scenario = load_scenario(os.path.join(result.folder, "scenario.toml"), moved)
    record = read_record(result.folder, place)
    if not record.complete:
        raise InputError(f"{place}: the run was cut off; a validation compares whole runs")
    played = play(scenario, name, record=record)
    played.folder = place
    played.measured_at = str(result.summary.get("measured_at") or "")
    played.machine_started_at = str(result.summary.get("machine_started_at") or "")
    for key in ("profile", "warnings", "engine_us_per_operation"):
        if key in result.summary:
            played.summary[key] = result.summary[key]
    return played


def live_run(outcome: Outcome, scenario: Scenario, name: str, measured_at: str) -> Played:
    """A run that has just been made. `scenario`: as it was settled for the machine."""
    lines = outcome.extras[RECORD_NAME].splitlines()
    played = play(scenario, name, record=Record(lines, name))
    played.measured_at = measured_at
    played.machine_started_at = str(outcome.summary.get("machine_started_at") or "")
    for key in ("profile", "warnings", "engine_us_per_operation"):
        if key in outcome.summary:
            played.summary[key] = outcome.summary[key]
    return played


def read_record(folder: str, shown: str) -> Record:
    """The record in a result folder, plain or .gz. Raises InputError."""
    for ending in ("", ".gz"):
        path = os.path.join(folder, RECORD_NAME + ending)
        if os.path.exists(path):
            try:
                return Record(_lines(path), os.path.join(shown, RECORD_NAME + ending))
            except (OSError, EOFError, UnicodeDecodeError) as error:
                raise InputError(f"{path}: {error}") from None
    raise InputError(f"{shown}: holds no {RECORD_NAME}; a result of hicache run does")


def _lines(path: str) -> Iterator[str]:
    if path.endswith(".gz"):
        with gzip.open(path, "rt", encoding="utf-8") as packed:
            yield from packed
    else:
        with open(path, encoding="utf-8") as opened:
            yield from opened


def completions_of(record: Record) -> list[Completion]:
    """The operations of a record that went well, by number."""
    done: list[Completion] = []
    for number, entry in sorted(record.endings.items()):
        if entry[0] == "done":
            _, _, operation, submitted, started, finished, stamp, setup, steps, ends = entry
            done.append(
                Completion(
                    number, operation, submitted, started, finished, stamp, setup, steps,
                    tuple(ends),
                )
            )  # fmt: skip
    return done


def _reroute(run: Run, lanes: Lanes) -> None:
    """Put other lanes under a run that was prepared, inside its recorder."""
    assert isinstance(run.recorder, Recorder)
    run.recorder._inner = lanes


def by_request(columns: dict[str, list[Any]], name: str) -> dict[int, Any]:
    """A column by request number."""
    return dict(zip(columns["request"], columns[name], strict=True))
