"""What `hicache replay` and `python -m sim replay` do once their arguments are read."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping, Sequence
from typing import cast

from hicache.errors import InputError
from hicache.record import Record
from report import metrics_export
from report.table import load_rich, print_sessions, print_summary
from scenario.load import load_scenario
from scenario.parquet import ParquetWriter
from scenario.records import Scenario, digest
from scenario.results import SUMMARY, Result, check_target, load_result, write_result
from sim import interval
from sim.replay import replay
from traces.progress import ProgressBar
from traces.reader import short_name

RECORD_NAME = "completions.jsonl"
CUT_OFF = 1
INTERRUPTED = 130


def run_replay(
    scenario_file: str | None,
    overrides: Mapping[str, object],
    *,
    out: str | None = None,
    timeline: bool = False,
    save_record: bool = False,
    record_of: str | None = None,
    show: bool = True,
    by_session: bool = False,
    draws: int = 0,
    notes: Sequence[str] = (),
    prometheus: str | None = None,
) -> int:
    """Replay, write the result folder, print the table. Returns the exit code: 0, 1 where the
    record ended before the run did, 130 where Ctrl-C ended it.

    `record_of`: a result folder whose record of completions takes the place of the simulated
    machine; or what a run that was killed left, a scenario and a record. Raises HiCacheError
    subclasses for what cannot be, KeyboardInterrupt where Ctrl-C came before the first request was
    done, or a second time; nothing is written then. `draws`: replays on machines that the profile
    could be of, for an interval around the prediction (`sim.interval`); 0: none. `notes`: what
    the result must say of where its options come from, among its warnings. `prometheus`: a file for
    its counters under SGLang's names (`report.metrics_export`).
    """
    if draws and record_of is not None:
        raise InputError("--interval: what a record holds is certain; leave --record out")
    replay_of: Record | None = None
    recorded: Result | None = None
    if record_of is not None:
        if not _was_killed(record_of):
            recorded = load_result(record_of)
        scenario_file, replay_of = _recorded(record_of, scenario_file)
    scenario = load_scenario(scenario_file, overrides)
    if draws:
        interval.check(scenario, draws)
    folder = out or default_folder(scenario)
    check_target(folder)
    if prometheus is not None:
        metrics_export.check_place(prometheus)
    # Its child loads pyarrow while the simulation runs.
    with ParquetWriter.start() as writer:
        with ProgressBar("replaying") as progress:
            outcome = replay(
                scenario,
                progress=progress,
                timeline=timeline,
                record=save_record,
                replay_of=replay_of,
            )
        if outcome.interrupted and not (outcome.cut_off or outcome.summary["requests"]):
            raise KeyboardInterrupt  # nothing was done, so there is nothing to keep
        around: list[str] = []
        if draws and not outcome.interrupted:
            found = interval.interval(scenario, outcome.summary, draws)
            outcome.extras["interval.json"] = json.dumps(found, indent=1) + "\n"
            around = interval.interval_lines(found)
        if recorded is not None:  # what the record rests on, the replay rests on
            outcome.summary["estimates"] = recorded.summary.get("estimates", [])
            ended = [f"cut_off: {outcome.cut_off}"] if outcome.cut_off else []
            outcome.summary["warnings"] = recorded.summary.get("warnings", []) + ended
        outcome.summary["warnings"] = [*notes, *cast("list[str]", outcome.summary["warnings"])]
        place = write_result(
            folder,
            outcome.summary,
            outcome.columns,
            outcome.scenario_text,
            extras=outcome.extras,
            writer=writer,
            meanwhile=load_rich if show else None,
        )
    if prometheus is not None:
        metrics_export.write_metrics(prometheus, outcome.summary, outcome.columns)
    if show:
        print_summary(outcome.summary, os.path.relpath(place))
        if by_session:
            print_sessions(outcome.columns)
        for line in around:
            print(line)
    else:
        for warning in cast("list[str]", outcome.summary["warnings"]):
            print(f"warning: {warning}", file=sys.stderr)
        print(os.path.relpath(place))
    if outcome.cut_off:
        print(f"{outcome.cut_off}; the result holds the requests done before", file=sys.stderr)
        return CUT_OFF
    if outcome.interrupted:
        print("interrupted: the result holds the requests that were done", file=sys.stderr)
        return INTERRUPTED
    return 0


def default_folder(scenario: Scenario) -> str:
    """Where a result goes if nobody says: named by the trace and the scenario's digest."""
    path = scenario.trace.path
    name = short_name(path)
    return os.path.join("results", f"{name}-{digest(scenario)[:8]}")


def _was_killed(folder: str) -> bool:
    """Whether this is what a run left that was killed: a record, and no summary."""
    there = set(os.listdir(folder)) if os.path.isdir(folder) else set[str]()
    return RECORD_NAME in there and SUMMARY not in there


def _recorded(folder: str, scenario_file: str | None) -> tuple[str, Record]:
    if scenario_file is not None:
        raise InputError("--record brings its own scenario; leave --scenario out")
    path = os.path.join(folder, RECORD_NAME)
    try:
        with open(path, encoding="utf-8") as lines:
            record = Record(lines, path)
    except OSError as error:
        raise InputError(
            f"{path}: {error.strerror}; a result keeps its record when made with --save-record"
        ) from None
    except UnicodeDecodeError:
        raise InputError(f"{path}: not a record of completions: it is no text") from None
    return os.path.join(folder, "scenario.toml"), record
