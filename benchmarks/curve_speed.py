"""How long `hicache curve` takes, as a whole process, and how its memory grows with the trace.

    python benchmarks/curve_speed.py [TRACE] [--runs 5] [--pages 512,64,1]
        [--kvcache-simulator COMMAND]
    python benchmarks/curve_speed.py --grow 1000000

TRACE is Mooncake's conversation trace, else the shipped one. All variants take turns; medians of
wall and CPU seconds and memory are shown; the last column says whether the median wall of one with
a limit is within it, on 2 cores that do nothing else. `--pages` are the page sizes at which the
curve and the optimum are timed, the first of them also for all else. With the command of
kvcache-simulator (a package of that name; C++, compiled at its first use, which is not counted) its
times stand beside them, for one LRU point and for its whole sweep, and every count of it is
compared with ours. With `--grow` a multi-turn trace of so many requests, and of a half and a
quarter of them, is generated, and goes through the exact curve, the optimum and a sampled curve.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from bench_inputs import CONVERSATION, REPOSITORY, SHIPPED_TRACE

HICACHE = [sys.executable, "-m", "cli.main"]
PAGES = {CONVERSATION.name: "512,64,1"}
# Wall seconds: all capacities; and the optimum at one more.
CURVE_S, OPTIMUM_S = 1.0, 2.0
ROUNDS = 8
# One LRU point of kvcache-simulator: 5,637 blocks of this model.
KV_MODEL, KV_GIB = "glm-5.2", "256"


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument(
        "trace", nargs="?", type=Path,
        default=CONVERSATION if CONVERSATION.exists() else SHIPPED_TRACE,
    )  # fmt: skip
    parser.add_argument("--runs", type=int, default=5, help="of each variant (default 5)")
    parser.add_argument("--pages", default="", help="page sizes, as 512,64,1")
    parser.add_argument("--kvcache-simulator", metavar="COMMAND", default="")
    parser.add_argument("--grow", type=int, default=0, metavar="REQUESTS")
    options = parser.parse_args(arguments)
    if options.grow:
        _grow(options.grow)
        return
    with tempfile.TemporaryDirectory() as folder:
        pages = options.pages or PAGES.get(options.trace.name, "64")
        try:
            sizes = [int(each) for each in pages.split(",")]
        except ValueError:
            parser.error(f"--pages {pages}: it must be page sizes in tokens, as 512,64,1")
        _compare(options.trace, sizes, options.runs, options.kvcache_simulator, Path(folder))


def _compare(trace: Path, pages: Sequence[int], runs: int, simulator: str, folder: Path) -> None:
    out = str(folder / "curve.json")
    variants: dict[str, list[str]] = {}
    limits: dict[str, float] = {}
    page = pages[0]
    for each in pages:
        curve = [*HICACHE, "curve", str(trace), "--page-size", str(each), "--out", out, "--quiet"]
        capacity = str(6000 * 512 // each)
        of_page = "" if each == page else f", pages of {each}"
        named = f"curve, all capacities{of_page}", f"curve and optimum at {capacity} pages{of_page}"
        variants |= {named[0]: curve, named[1]: [*curve, "--optimum", capacity]}
        limits |= {named[0]: CURVE_S, named[1]: OPTIMUM_S}
    curve = variants["curve, all capacities"]
    variants["curve and optimum at 48 more"] = [*curve, "--optimum", "curve"]
    variants["curve, one page in 100"] = [*curve, "--sample", "0.01"]
    if simulator:
        other = [simulator, "run", "--trace", str(trace), "--model", KV_MODEL, "--no-progress"]
        other += ["--block-size", str(page), "--format", "json"]
        point = [*other, "--budgets-gib", KV_GIB, "--policies", "lru"]
        variants["kvcache-simulator, one LRU point"] = point
        variants["kvcache-simulator, its sweep"] = other
        _agree(json.loads(_once(other)[0]), curve, out)
    took: dict[str, list[tuple[float, float, float]]] = {name: [] for name in variants}
    for _ in range(runs):
        for name, command in variants.items():
            took[name].append(_once(command)[1])
    print("| variant | wall s | CPU s | MB | at most s | |\n|---|---:|---:|---:|---:|---|")
    for name, each in took.items():
        wall, cpu, memory = (statistics.median(column) for column in zip(*each, strict=True))
        limit = limits.get(name)
        asked = f"{limit:.1f} | {'met' if wall <= limit else 'MISSED'}" if limit else " | "
        print(f"| {name} | {wall:.2f} | {cpu:.2f} | {memory:.0f} | {asked} |")


def _agree(theirs: dict[str, Any], curve: list[str], out: str) -> None:
    """Compare their LRU and optimum of the last half of the requests with ours, to the token."""
    points = {str(each["cacheBlocks"]): each["results"] for each in theirs["points"]}
    _once([*curve, "--optimum", ",".join(points)])
    ours = json.loads(Path(out).read_text())["optimum"]
    compared = differ = 0
    for row in ours:
        results = points[str(row["capacity_pages"])]
        for name, key in (("lru", "lru"), ("may_bypass", "optimal")):
            compared += 1
            differ += row[name]["last_half"]["hit_tokens"] != results[key]["hitTokens"]
    print(f"kvcache-simulator: {compared} counts of LRU and optimum compared, {differ} differ\n")


def _grow(most: int) -> None:
    print("| requests | variant | CPU s | MB | bytes more a request |\n|---:|---|---:|---:|---:|")
    before: dict[str, tuple[int, float]] = {}
    with tempfile.TemporaryDirectory() as folder:
        for requests in (most // 4, most // 2, most):
            trace = Path(folder) / "trace.jsonl"
            made = [*HICACHE, "trace", "generate", "multi-turn", str(trace), "--force"]
            clients = str(requests // ROUNDS)
            _once([*made, "--clients", clients, "--rounds", str(ROUNDS)])
            curve = [*HICACHE, "curve", str(trace), "--page-size", "64", "--quiet"]
            curve += ["--out", str(Path(folder) / "curve.json")]
            for name, more in (
                ("exact", []), ("exact, optimum", ["--optimum", "100000"]),
                ("one page in 100", ["--sample", "0.01"]),
            ):  # fmt: skip
                _, (_, cpu, memory) = _once([*curve, *more])
                grown = ""
                if name in before:
                    fewer, less = before[name]
                    grown = f"{(memory - less) * 1e6 / (requests - fewer):,.0f}"
                before[name] = requests, memory
                print(f"| {requests:,} | {name} | {cpu:.1f} | {memory:.0f} | {grown} |", flush=True)


def _once(command: list[str]) -> tuple[str, tuple[float, float, float]]:
    """Run it: its output, and wall seconds, CPU seconds and peak memory in MB."""
    began = time.perf_counter()
    child = subprocess.Popen(
        command, cwd=REPOSITORY, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert child.stdout is not None
    assert child.stderr is not None
    said, complained = child.stdout.read(), child.stderr.read()
    _, status, usage = os.wait4(child.pid, 0)
    wall = time.perf_counter() - began
    child.returncode = os.waitstatus_to_exitcode(status)
    if child.returncode:
        raise SystemExit(f"{' '.join(command)}: exit code {child.returncode}: {complained}")
    return said, (wall, usage.ru_utime + usage.ru_stime, usage.ru_maxrss / 1024)


if __name__ == "__main__":
    main()
