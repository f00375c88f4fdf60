"""How much faster a sweep is on several cores than on one.

    python benchmarks/sweep_speed.py [TRACE] [--cells 32] [--cores 2] [--runs 3]

Whole processes, one core and `--cores` in turns; medians. Beside wall seconds stand CPU seconds, of
the command itself and of its workers. They say what an idle machine would do, also on one that is
not: the command's own are taken one after the other, those of the workers on all cores at once.
TRACE is Mooncake's conversation trace, else the shipped one. The cells are four sizes of L2, two
policies and as many speeds as fill them.
Beside them stands a loop of plain Python, alone and on all cores at once: what the machine itself
has to give. The rows of all runs are compared.
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from bench_inputs import CONVERSATION, REPOSITORY, SHIPPED_TRACE

# The command, and what it and its children took, in CPU seconds: the last line.
MEASURED = """
import gc, resource, sys
from cli.main import app
gc.disable()
code = app(sys.argv[1:], standalone_mode=False)
for who in resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN:
    used = resource.getrusage(who)
    print(used.ru_utime + used.ru_stime, end=" ")
raise SystemExit(code)
"""
PAGE = {CONVERSATION.name: 512}
LOOP = "n = 0\nfor i in range(30_000_000): n += i & 7"
GOAL = 1.8


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
    options = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory() as name:
        _compare(options.trace, options.cells, options.cores, options.runs, Path(name))


def _compare(trace: Path, cells: int, cores: int, runs: int, folder: Path) -> None:
    speeds = ",".join(f"{0.25 + 0.05 * step:.2f}" for step in range(max(1, cells // 8)))
    sweep = [
        sys.executable, "-c", MEASURED, "sweep", str(trace), "--quiet", "--fresh",
        "--set", f"tiers.page_size_tokens={PAGE.get(trace.name, 64)}",
        "--grid", f"trace.speed={speeds}", "--grid", "tiers.l2=0,0.5x,1x,2x",
        "--grid", "restore.policy=cost,always",
    ]  # fmt: skip
    took: dict[int, list[float]] = {1: [], cores: []}
    own: dict[int, list[float]] = {1: [], cores: []}
    workers_s: dict[int, list[float]] = {1: [], cores: []}
    loops: dict[int, list[float]] = {1: [], cores: []}
    tables: set[bytes] = set()
    for number in range(runs):
        for workers, walls in took.items():
            out = folder / f"{workers}-{number}.parquet"
            began = time.perf_counter()
            said = _run([*sweep, "--jobs", str(workers), "--out", str(out)])
            walls.append(time.perf_counter() - began)
            *_, mine, theirs = said.split()
            own[workers].append(float(mine))
            workers_s[workers].append(float(theirs))
            tables.add(out.read_bytes())
            loops[workers].append(_loop(workers))
    one, several = (statistics.median(took[workers]) for workers in (1, cores))
    machine = statistics.median(loops[1]) * cores / statistics.median(loops[cores])
    print(f"{cells} scenarios of {trace.name}, {runs} runs of each, medians\n")
    cpu = {workers: statistics.median(each) for workers, each in own.items()}
    shared = {workers: statistics.median(each) for workers, each in workers_s.items()}
    idle = {workers: cpu[workers] + shared[workers] / workers for workers in cpu}
    print("| cores | wall s | CPU s, of the command | of its workers | times one core: wall |"
          " by CPU | a loop of plain Python |")  # fmt: skip
    print("|---:|---:|---:|---:|---:|---:|---:|")
    print(f"| 1 | {one:.1f} | {cpu[1]:.1f} | {shared[1]:.1f} | 1.00 | 1.00 | 1.00 |")
    print(
        f"| {cores} | {several:.1f} | {cpu[cores]:.1f} | {shared[cores]:.1f} | "
        f"{one / several:.2f} | {idle[1] / idle[cores]:.2f} | {machine:.2f} |"
    )
    print(f"\nthe tables are {'the same bytes' if len(tables) == 1 else 'DIFFERENT'}")
    if cores == 2:
        met = "met" if one / several >= GOAL else "MISSED"
        print(f"{GOAL} times one core: {met}")


def _loop(processes: int) -> float:
    began = time.perf_counter()
    children = [subprocess.Popen([sys.executable, "-c", LOOP]) for _ in range(processes)]
    for child in children:
        child.wait()
    return time.perf_counter() - began


def _run(command: list[str]) -> str:
    done = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"{' '.join(command)}: exit code {done.returncode}: {done.stderr}")
    return done.stdout


if __name__ == "__main__":
    main()
