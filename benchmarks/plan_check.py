"""Whether a plan's answer comes true: `hicache plan`, then a replay of the scenario that it saves.

    python benchmarks/plan_check.py [TRACE ...] [--set KEY=VALUE ...]

Without a trace: Mooncake's conversation trace at a fifth of its pace, where it lies beside this
checkout, and the shipped agents. The table lays the plan's figures of the chosen point beside those
of the replay, and beside its hits what the curve alone had said of them, which decided what was
simulated at all. Exit code 1: a figure of the replay is more than 2 % off the plan's.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from bench_inputs import CONVERSATION, REPOSITORY, SHIPPED_TRACE

HICACHE = [sys.executable, "-m", "cli.main"]
MOST = 0.02
FIGURES = ("cache_hit_rate", "ttft_ms.mean", "ttft_ms.p50", "ttft_ms.p99")


def main(arguments: Sequence[str] | None = None) -> int:
    """Plan, replay and print. Returns the exit code."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("traces", nargs="*", type=Path)
    parser.add_argument("--set", action="append", default=[], dest="assignments")
    parser.add_argument("--l2", help="sizes to choose from, as of hicache plan")
    parser.add_argument("--l3", help="the same")
    options = parser.parse_args(arguments)
    more = [word for each in options.assignments for word in ("--set", each)]
    more += [word for key in ("l2", "l3") if (value := getattr(options, key))
             for word in (f"--{key}", value)]  # fmt: skip
    cases = [(trace, more) for trace in options.traces]
    if not cases and CONVERSATION.exists():
        cases.append((CONVERSATION, ["--set", "trace.speed=0.2", *more]))
    if not options.traces:
        cases.append((SHIPPED_TRACE, more))
    print("| trace | chosen | | plan | replay | off | by the curve |")
    print("|---|---|---|---:|---:|---:|---:|")
    worst = 0.0
    with tempfile.TemporaryDirectory() as name:
        for trace, words in cases:
            worst = max(worst, _checked(trace, words, Path(name)))
    print(f"\nat most {MOST:.0%} off: {'met' if worst <= MOST else 'MISSED'} ({worst:.2%})")
    return int(worst > MOST)


def _checked(trace: Path, words: list[str], folder: Path) -> float:
    """Print a trace's rows; returns the largest share that a figure is off."""
    chosen, scenario = folder / "plan.json", folder / "best.toml"
    plan = ["plan", str(trace), *words, "--price-l2", "4", "--price-l3", "0.1", "--quiet"]
    files = ["--out", str(chosen), "--save-scenario", str(scenario), "--force"]
    _run([*HICACHE, *plan, *files])
    document = json.loads(chosen.read_text())
    point = document["points"][document["chosen"]]
    _run([*HICACHE, "replay", "--scenario", str(scenario), "--quiet", "--out", str(folder / "r")])
    summary: dict[str, Any] = json.loads((folder / "r" / "summary.json").read_text())
    worst = 0.0
    ran = document["simulations"]
    first = (
        trace.stem,
        f"L2 {point['tiers.l2']}, L3 {point['tiers.l3']}, {point['restore.policy']}, page "
        f"{point['tiers.page_size_tokens']} ({ran['ran']} of {ran['of']} simulated)",
    )
    for figure in FIGURES:
        said, found = point[figure], summary
        for part in figure.split("."):
            found = found[part]
        off = abs(found - said) / said if said else float(found != said)
        worst = max(worst, off)
        curve = f"{point['curve_hit_rate']:.4f}" if figure == FIGURES[0] else ""
        print(f"| {first[0]} | {first[1]} | {figure} | {said:,.4f} | {found:,.4f} | {off:.2%} | "
              f"{curve} |", flush=True)  # fmt: skip
        first = ("", "")
    return worst


def _run(command: list[str]) -> None:
    done = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"{' '.join(command)}: exit code {done.returncode}: {done.stderr}")


if __name__ == "__main__":
    raise SystemExit(main())
