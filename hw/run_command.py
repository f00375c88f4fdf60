"""`hicache run`: reads the scenario, runs it, writes the result, prints the table.

While it runs the record is written beside the result (`hw.journal`), and a run that a device brings
to an early end still writes a result, of the requests that were done: nothing is lost.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from typing import cast

from hicache.errors import DeviceError, HiCacheError
from hw.assembly import DeviceName
from hw.journal import Journal
from hw.run import run_scenario
from report.outcome import Outcome
from report.table import print_summary
from scenario.load import load_scenario
from scenario.results import check_target, write_result
from traces.progress import ProgressBar
from traces.reader import short_name

BROKE_OFF = 1
INTERRUPTED = 130


def run_live_scenario(
    scenario_file: str,
    overrides: Mapping[str, object],
    *,
    device: DeviceName,
    out: str | None = None,
    show: bool = True,
) -> int:
    """Returns the exit code: 0, 1 where a device ended the run early, 130 where Ctrl-C did.

    Raises HiCacheError subclasses for what else went wrong. Whatever ends the run, what it did is
    in the result, or its record in the journal's folder, and a line on stderr says where.
    """
    scenario = load_scenario(scenario_file, overrides)
    folder = out or os.path.join("results", f"run-{short_name(scenario.trace.path)}")
    check_target(folder)
    journal = Journal(folder, _tell)

    def write(outcome: Outcome) -> str:
        place = write_result(
            folder, outcome.summary, outcome.columns, outcome.scenario_text, extras=outcome.extras
        )
        journal.discard()
        return place

    def keep(outcome: Outcome) -> None:
        try:
            place = write(outcome)
        except HiCacheError as error:  # the error that ended the run is the one to be raised
            _tell(f"no result can be written: {error}")
        else:
            _tell(f"{os.path.relpath(place)} holds the requests that were done, and the record")

    try:
        with ProgressBar("running") as progress:
            outcome = run_scenario(
                scenario, device=device, progress=progress, tell=_tell, journal=journal, keep=keep
            )
        place = write(outcome)
    except DeviceError as error:
        print(f"hicache: error: {error}", file=sys.stderr)
        return BROKE_OFF
    finally:
        journal.close()
        if journal.folder:
            left = os.path.relpath(journal.folder)
            _tell(f"{left} holds the record so far: hicache replay --record {left} repeats it")
    _show(outcome, place, show=show)
    if outcome.interrupted:
        print("interrupted: the result holds the requests that were done", file=sys.stderr)
        return INTERRUPTED
    return 0


def _show(outcome: Outcome, place: str, *, show: bool) -> None:
    if show:
        print_summary(outcome.summary, os.path.relpath(place))
        return
    for warning in cast("list[str]", outcome.summary["warnings"]):
        print(f"warning: {warning}", file=sys.stderr)
    print(os.path.relpath(place))


def _tell(line: str) -> None:
    print(line, file=sys.stderr, flush=True)
