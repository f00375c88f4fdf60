"""How much faster a sweep is on several cores than on one, and how its memory grows with the trace.

    python benchmarks/sweep_speed.py [TRACE] [--cells 32] [--cores 2] [--runs 3]
    python benchmarks/sweep_speed.py --grow 1000000

Whole processes, one core and `--cores` in turns; medians of wall seconds, and of CPU seconds, whose
ratio is what more workers cost (what a machine that is not idle can still show). TRACE is
Mooncake's conversation trace, else the shipped one. The cells are four sizes of L2, two policies
and as many speeds as fill them.
Beside them stands a loop of plain Python, alone and on all cores at once: what the machine itself
has to give. The rows of all runs are compared. With `--grow` a multi-turn trace of so many
requests, and of a half and a quarter of them, goes through an untimed sweep of two cells; memory is
that of the largest process.
"""

from __future__ import annotations

import argparse
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from bench_inputs import CONVERSATION, REPOSITORY, SHIPPED_TRACE

HICACHE = [sys.executable, "-m", "cli.main"]
PAGE = {CONVERSATION.name: 512}
LOOP = "n = 0\nfor i in range(30_000_000): n += i & 7"
GOAL = 1.8
ROUNDS = 8


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument(
        "trace", nargs="?", type=Path,
        default=CONVERSATION if CONVERSATION.exists() else SHIPPED_TRACE,
    )  # fmt: skip
    parser.add_argument("--cells", type=int, default=32, help="a multiple of 8 (default 32)")
    parser.add_argument("--cores", type=int, default=2)
    parser.add_argument("--runs", type=int, default=3, help="of each (default 3)")
    parser.add_argument("--grow", type=int, default=0, metavar="REQUESTS")
    options = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory() as name:
        if options.grow:
            _grow(options.grow, Path(name))
        else:
            _compare(options.trace, options.cells, options.cores, options.runs, Path(name))


def _compare(trace: Path, cells: int, cores: int, runs: int, folder: Path) -> None:
    speeds = ",".join(f"{0.25 + 0.05 * step:.2f}" for step in range(max(1, cells // 8)))
    sweep = [
        *HICACHE, "sweep", str(trace), "--quiet", "--fresh",
        "--set", f"tiers.page_size_tokens={PAGE.get(trace.name, 64)}",
        "--grid", f"trace.speed={speeds}", "--grid", "tiers.l2=0,0.5x,1x,2x",
        "--grid", "restore.policy=cost,always",
    ]  # fmt: skip
    took: dict[int, list[float]] = {1: [], cores: []}
    spent: dict[int, list[float]] = {1: [], cores: []}
    loops: dict[int, list[float]] = {1: [], cores: []}
    tables: set[bytes] = set()
    for _ in range(runs):
        for workers, walls in took.items():
            out = folder / f"{workers}.parquet"
            began, cpu = time.perf_counter(), _cpu_s()
            _run([*sweep, "--jobs", str(workers), "--out", str(out)])
            walls.append(time.perf_counter() - began)
            spent[workers].append(_cpu_s() - cpu)
            tables.add(out.read_bytes())
            loops[workers].append(_loop(workers))
    one, several = (statistics.median(took[workers]) for workers in (1, cores))
    machine = statistics.median(loops[1]) * cores / statistics.median(loops[cores])
    print(f"{cells} scenarios of {trace.name}, {runs} runs of each, medians\n")
    cpu_one, cpu_several = (statistics.median(spent[workers]) for workers in (1, cores))
    print("| cores | wall s | CPU s | times one core | a loop of plain Python |")
    print("|---:|---:|---:|---:|---:|")
    print(f"| 1 | {one:.1f} | {cpu_one:.1f} | 1.00 | 1.00 |")
    print(f"| {cores} | {several:.1f} | {cpu_several:.1f} | {one / several:.2f} | {machine:.2f} |")
    print(f"\nthe tables are {'the same bytes' if len(tables) == 1 else 'DIFFERENT'}")
    if cores == 2:
        met = "met" if one / several >= GOAL else "MISSED"
        print(f"{GOAL} times one core: {met}")


def _cpu_s() -> float:
    """CPU seconds of all children that have ended, and of theirs."""
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


def _loop(processes: int) -> float:
    began = time.perf_counter()
    children = [subprocess.Popen([sys.executable, "-c", LOOP]) for _ in range(processes)]
    for child in children:
        child.wait()
    return time.perf_counter() - began


def _grow(most: int, folder: Path) -> None:
    print("| requests | wall s | MB of the largest process |\n|---:|---:|---:|")
    for requests in (most // 4, most // 2, most):
        trace = folder / "trace.jsonl"
        made = [*HICACHE, "trace", "generate", "multi-turn", str(trace), "--force"]
        _run([*made, "--clients", str(requests // ROUNDS), "--rounds", str(ROUNDS)])
        began = time.perf_counter()
        # A process of its own, so that the largest of its children is known.
        inner = (
            "import resource, subprocess, sys; subprocess.run(sys.argv[1:], check=True); "
            "print(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss)"
        )
        sweep = [
            *HICACHE, "sweep", str(trace), "--quiet", "--fresh", "--set", "mode=untimed",
            "--grid", "tiers.l2=0,2x", "--out", str(folder / "s.parquet"),
        ]  # fmt: skip
        said = _run([sys.executable, "-c", inner, *sweep])
        memory = int(said.split()[-1]) / 1024
        print(f"| {requests:,} | {time.perf_counter() - began:.1f} | {memory:.0f} |", flush=True)


def _run(command: list[str]) -> str:
    done = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"{' '.join(command)}: exit code {done.returncode}: {done.stderr}")
    return done.stdout


if __name__ == "__main__":
    main()
