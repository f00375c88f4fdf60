"""How long the presets take beside the default, without and with an L3, and how much more they do.

    python benchmarks/preset_speed.py [TRACE] [--runs 5] [--page-size 64]
    python benchmarks/preset_speed.py --smoke        one quick run of everything, no target

Every run is a whole process, from the start of Python to the written result, and they take turns.
TRACE is Mooncake's conversation trace, at half speed. Judged are the medians of
CPU seconds, the command's and its children's, which move less than wall seconds on a machine that
others use: each preset against the default with the same tiers. Exit code 1: one took more than
`GOAL` times as long. Beside it stands what was asked of a replay in such pages, `GOAL` times.

A preset may do more because its rules say so: SGLang's write a prompt and its answer apart, each
node by itself, to L3 in batches of 128 pages, and ask for every request what L3 has. So the work is
counted, too, in one more run of each: operations (copies, lookups, GPU steps and bursts; of writes
in a row that nobody sees begin and end, those that somebody met), events of the simulation, pages
moved, requests that got pages from L3. `an operation` is the ratio of times over the ratio of
operations. It explains, and is not judged.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from bench_inputs import CONVERSATION, SHIPPED_TRACE, WHERE_IT_IS, head

from scenario.load import load_scenario
from scenario.presets import DEFAULT_PRESET
from scenario.sglang_rules import SGLANG_PRESETS
from sim.replay import prepare

GOAL = 1.3
# Seconds that were asked of a replay, by tokens of a page (NOTES.md, "What was asked for").
ASKED_S = {512: 2.0, 64: 2.5, 1: 4.0}
L3 = {"without L3": "0", "with L3": "10x"}
TIERS = {"trace.speed": 0.5, "tiers.l2": "2x"}
SMOKE_REQUESTS = 300


@dataclass
class Case:
    """One preset with one set of tiers, what its runs took, and what a run does."""

    preset: str
    l3: str
    page_size_tokens: int
    cpu_s: list[float] = field(default_factory=list)
    wall_s: list[float] = field(default_factory=list)
    operations: int = 0
    events: int = 0
    moved_pages: int = 0
    from_l3: int = 0

    def options(self, trace: Path) -> dict[str, object]:
        """As dotted keys."""
        pages = {"tiers.page_size_tokens": self.page_size_tokens}
        given = {"preset": self.preset, "trace.path": str(trace), "tiers.l3": self.l3}
        return given | pages | TIERS


def main(arguments: Sequence[str] | None = None) -> int:
    """Run everything, print the table; returns the exit code."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("trace", nargs="?", type=Path, default=CONVERSATION)
    parser.add_argument("--runs", type=int, default=5, help="runs of each command (default 5)")
    parser.add_argument("--page-size", type=int, default=64, help="tokens of a page (default 64)")
    parser.add_argument("--smoke", action="store_true", help="the shipped trace's first requests")
    options = parser.parse_args(arguments)
    if not options.smoke and not options.trace.exists():
        print(WHERE_IT_IS, file=sys.stderr)
        return 2
    cases = [
        Case(name, l3, options.page_size)
        for l3 in L3.values()
        for name in (DEFAULT_PRESET, *SGLANG_PRESETS)
    ]
    with tempfile.TemporaryDirectory(prefix="hicache-bench-") as made:
        trace, runs = options.trace.resolve(), options.runs
        if options.smoke:
            trace, runs = head(SHIPPED_TRACE, SMOKE_REQUESTS, Path(made)), 1
        for _ in range(runs):
            for case in cases:
                _measure(case, trace, Path(made))
        for case in cases:
            _count(case, trace)
    judged = not options.smoke and options.trace == CONVERSATION
    print(table(cases, judged=judged))
    return 1 if judged and any(_ratio(case, cases) > GOAL for case in cases) else 0


def _measure(case: Case, trace: Path, folder: Path) -> None:
    """One run of the command; raises if it fails."""
    command = [str(Path(sys.executable).with_name("hicache")), "replay", "--quiet"]
    command += ["--out", str(folder / "out")]
    for key, value in case.options(trace).items():
        command += ["--set", f"{key}={value}"]
    said = folder / "said"
    began = time.perf_counter()
    with said.open("w") as errors:  # warnings, in the main
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=errors)
        _, status, used = os.wait4(process.pid, 0)
    took_s = time.perf_counter() - began
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise RuntimeError(
            f"{' '.join(command)} ended with code {process.returncode}: {said.read_text()}"
        )
    case.wall_s.append(took_s)
    case.cpu_s.append(used.ru_utime + used.ru_stime)


def _count(case: Case, trace: Path) -> None:
    """What a run does, in one more of them."""
    run = prepare(load_scenario(None, case.options(trace)))
    assert run.machine is not None
    run.execute()
    metrics = run.engine.metrics
    copies = metrics.directions.values()
    # The numbers of operations, and of events, are given in order.
    case.operations = next(run.machine.numbers)
    case.events = next(run.env._eid)
    case.moved_pages = sum(each.pages for each in copies)
    case.from_l3 = sum(tokens > 0 for tokens in metrics.column("storage_tokens"))


def _default_of(case: Case, cases: Sequence[Case]) -> Case:
    return next(each for each in cases if (each.preset, each.l3) == (DEFAULT_PRESET, case.l3))


def _ratio(case: Case, cases: Sequence[Case]) -> float:
    default = _default_of(case, cases)
    return statistics.median(case.cpu_s) / statistics.median(default.cpu_s)


def table(cases: Sequence[Case], *, judged: bool) -> str:
    """The table, as Markdown; with verdicts if `judged`."""
    rows = [
        ["preset", "tiers", "CPU s", "min", "wall s", "CPU times the default", "wall times",
         "operations", "times", "an operation", "events", "pages moved", "requests from L3"],
    ]  # fmt: skip
    asked_s = ASKED_S.get(cases[0].page_size_tokens, 0.0) * GOAL
    if judged:
        rows[0] += [f"at most {GOAL}", f"wall at most {asked_s:.2f} s" if asked_s else "asked s"]
    rows.append(["---", "---", *["---:"] * (len(rows[0]) - 2)])
    names = {l3: name for name, l3 in L3.items()}
    for case in cases:
        default = _default_of(case, cases)
        ratio, more = _ratio(case, cases), case.operations / default.operations
        wall_s = statistics.median(case.wall_s)
        row = [
            case.preset, names[case.l3], f"{statistics.median(case.cpu_s):.2f}",
            f"{min(case.cpu_s):.2f}", f"{wall_s:.2f}", f"{ratio:.2f}",
            f"{wall_s / statistics.median(default.wall_s):.2f}", f"{case.operations:,}",
            f"{more:.2f}", f"{ratio / more:.2f}", f"{case.events:,}", f"{case.moved_pages:,}",
            f"{case.from_l3:,}",
        ]  # fmt: skip
        if judged:
            row.append("met" if ratio <= GOAL else "MISSED")
            row.append("-" if not asked_s else "met" if wall_s <= asked_s else "MISSED")
        rows.append(row)
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


if __name__ == "__main__":
    sys.exit(main())
