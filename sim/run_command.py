"""What `hicache replay` and `python -m sim replay` do once their arguments are read."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from typing import cast

from hicache.errors import InputError
from hicache.record import Record
from report.table import load_rich, print_sessions, print_summary
from scenario.load import load_scenario
from scenario.parquet import ParquetWriter
from scenario.records import Scenario, digest
from scenario.results import Result, check_target, load_result, write_result
from sim.replay import replay
from traces.progress import ProgressBar
from traces.reader import short_name

RECORD_NAME = "completions.jsonl"
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
) -> int:
    """Replay, write the result folder, print the table. Returns the exit code.

    `record_of`: a result folder whose record of completions takes the place of the simulated
    machine. Raises HiCacheError subclasses for what cannot be; nothing is written then.
    """
    replay_of: Record | None = None
    recorded: Result | None = None
    if record_of is not None:
        recorded = load_result(record_of)
        scenario_file, replay_of = _recorded(record_of, scenario_file)
    scenario = load_scenario(scenario_file, overrides)
    folder = out or default_folder(scenario)
    check_target(folder)
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
        if recorded is not None:  # what the record rests on, the replay rests on
            outcome.summary["estimates"] = recorded.summary.get("estimates", [])
            outcome.summary["warnings"] = recorded.summary.get("warnings", [])
        place = write_result(
            folder,
            outcome.summary,
            outcome.columns,
            outcome.scenario_text,
            extras=outcome.extras,
            writer=writer,
            meanwhile=load_rich if show else None,
        )
    if show:
        print_summary(outcome.summary, os.path.relpath(place))
        if by_session:
            print_sessions(outcome.columns)
    else:
        for warning in cast("list[str]", outcome.summary["warnings"]):
            print(f"warning: {warning}", file=sys.stderr)
        print(os.path.relpath(place))
    if outcome.interrupted:
        print("interrupted: the result holds the requests that were done", file=sys.stderr)
        return INTERRUPTED
    return 0


def default_folder(scenario: Scenario) -> str:
    """Where a result goes if nobody says: named by the trace and the scenario's digest."""
    path = scenario.trace.path
    name = short_name(path)
    return os.path.join("results", f"{name}-{digest(scenario)[:8]}")


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
    return os.path.join(folder, "scenario.toml"), record
