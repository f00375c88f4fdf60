"""`hicache run`: reads the scenario, runs it, writes the result, prints the table."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from typing import cast

from hw.assembly import DeviceName
from hw.run import run_scenario
from report.table import print_summary
from scenario.load import load_scenario
from scenario.results import check_target, write_result
from traces.progress import ProgressBar
from traces.reader import short_name

INTERRUPTED = 130


def run_live_scenario(
    scenario_file: str,
    overrides: Mapping[str, object],
    *,
    device: DeviceName,
    out: str | None = None,
    show: bool = True,
) -> int:
    """Returns the exit code. Raises HiCacheError subclasses; nothing is written then."""
    scenario = load_scenario(scenario_file, overrides)
    folder = out or os.path.join("results", f"run-{short_name(scenario.trace.path)}")
    check_target(folder)

    def tell(line: str) -> None:
        print(line, file=sys.stderr, flush=True)

    with ProgressBar("running") as progress:
        outcome = run_scenario(scenario, device=device, progress=progress, tell=tell)
    place = write_result(
        folder, outcome.summary, outcome.columns, outcome.scenario_text, extras=outcome.extras
    )
    if show:
        print_summary(outcome.summary, os.path.relpath(place))
    else:
        for warning in cast("list[str]", outcome.summary["warnings"]):
            print(f"warning: {warning}", file=sys.stderr)
        print(os.path.relpath(place))
    if outcome.interrupted:
        print("interrupted: the result holds the requests that were done", file=sys.stderr)
        return INTERRUPTED
    return 0
