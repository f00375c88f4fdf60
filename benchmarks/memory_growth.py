"""How the memory of a study grows with its trace: curve, replays and a sweep of many requests.

    python benchmarks/memory_growth.py [--requests 1000000] [--only curve,sweep]

A generated multi-turn trace of so many requests, and one of a quarter of them; each command is a
process of its own. Memory is the peak of the largest process (a sweep's workers included); growth
is what three quarters of the requests add to it.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from bench_inputs import REPOSITORY

HICACHE = [sys.executable, "-m", "cli.main"]
ROUNDS = 8
# The peak of the command and of all processes that it starts, in KiB.
PEAK = (
    "import resource, subprocess, sys; subprocess.run(sys.argv[1:], check=True); "
    "print(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss)"
)
COMMANDS = {
    "curve": ["curve", "--page-size", "64", "--out", "c.json"],
    "untimed": ["replay", "--untimed", "--quiet", "--l3", "0", "--out", "u"],
    "replay": ["replay", "--quiet", "--l2", "100GiB", "--out", "r"],
    "sweep": ["sweep", "--quiet", "--fresh", "--set", "mode=untimed", "--grid", "tiers.l2=0,2x",
              "--jobs", "2", "--out", "s.parquet"],
}  # fmt: skip


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("--requests", type=int, default=1_000_000)
    parser.add_argument("--only", default=",".join(COMMANDS), help="of " + ", ".join(COMMANDS))
    options = parser.parse_args(arguments)
    names = options.only.split(",")
    unknown = next((name for name in names if name not in COMMANDS), None)
    if unknown is not None:
        parser.error(f"--only {unknown}: it must be of {', '.join(COMMANDS)}")
    with tempfile.TemporaryDirectory() as name:
        _measure(options.requests, names, Path(name))


def _measure(most: int, names: Sequence[str], folder: Path) -> None:
    print("| | requests | wall s | MB | bytes a request more |\n|---|---:|---:|---:|---:|")
    before: dict[str, float] = {}
    counts = [most // 4, most]
    for requests in counts:
        trace = folder / f"{requests}.jsonl"
        made = ["trace", "generate", "multi-turn", str(trace)]
        _run(
            [*HICACHE, *made, "--clients", str(requests // ROUNDS), "--rounds", str(ROUNDS)], folder
        )
        for name in names:
            verb, *rest = COMMANDS[name]
            began = time.perf_counter()
            said = _run([sys.executable, "-c", PEAK, *HICACHE, verb, str(trace), *rest], folder)
            took, peak = time.perf_counter() - began, int(said.split()[-1]) * 1024
            more = (peak - before[name]) / (most - counts[0]) if name in before else None
            before[name] = peak
            shown = "" if more is None else f"{more:,.0f}"
            print(
                f"| {name} | {requests:,} | {took:.1f} | {peak / 1e6:.0f} | {shown} |", flush=True
            )


def _run(command: list[str], folder: Path) -> str:
    done = subprocess.run(
        command, cwd=folder, capture_output=True, text=True, check=False,
        env={**os.environ, "PYTHONPATH": str(REPOSITORY)},
    )  # fmt: skip
    if done.returncode:
        raise SystemExit(f"{' '.join(command)}: exit code {done.returncode}: {done.stderr}")
    return done.stdout


if __name__ == "__main__":
    main()
