"""How long `hicache replay` takes, as a whole process, and how much memory.

    python benchmarks/replay_speed.py [TRACE] [--runs 5]
    python benchmarks/replay_speed.py --smoke        one quick run of everything, no targets

Every command is a fresh process, from the start of Python to the written result. Time is wall time;
memory is the peak resident size, the child that writes the rows included: the sum of what the
kernel counts as each process's peak (elsewhere than on Linux: the largest of them). The
commands take turns, so that a slow minute of the machine falls on all of them, and before each one
a fixed loop of plain Python is timed: `loops` is the command's median divided by the loop's, and
changes when this project gets slower, not when the machine does. Exit code 1: a target was missed.

This process stays small on purpose: a child's peak counts its parent's size before the exec.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, field
from heapq import heappop, heappush
from pathlib import Path

from bench_inputs import (
    CONVERSATION,
    SHIPPED_TRACE,
    WHERE_IT_IS,
    fast_disk_profile,
    head,
    repeated,
)

MODEL = ("--model", "qwen3-8b", "--profile", "nvidia-h200", "--l2", "2x", "--l3", "10x")
TIMES = 4
# Between two looks at a running command; as exact as the times can be.
POLL_S = 0.005
SMOKE_REQUESTS = 300


@dataclass
class Case:
    """One command. `target_s` and `target_mb`: at most so much, for the conversation trace on two
    cores.
    """

    name: str
    arguments: tuple[str, ...]
    target_s: float | None = None
    target_mb: float | None = None
    seconds: list[float] = field(default_factory=list)
    peak_mb: float = 0.0

    @property
    def median_s(self) -> float:
        return statistics.median(self.seconds)


def cases(trace: Path, fast_disk: Path, longer: Path) -> list[Case]:
    """The commands, with the targets that are theirs."""
    made = []
    for page, seconds, megabytes in ((512, 2.0, 150), (64, 2.5, 150), (1, 4.0, 350)):
        paged = (*MODEL, "--page-size", str(page))
        cost = (str(trace), *paged, "--policy", "cost")
        always = (
            str(trace), *paged, "--policy", "always", "--speed", "0.5",
            "--profile", str(fast_disk),
        )  # fmt: skip
        made += [
            Case(f"cost, page {page}", cost, seconds, megabytes),
            Case(f"cost, page {page}, speed 0.5", (*cost, "--speed", "0.5"), seconds, megabytes),
            Case(f"always, page {page}, fast disk, speed 0.5", always, seconds, megabytes),
        ]
    page_512 = (*MODEL, "--page-size", "512", "--policy", "cost")
    made += [
        Case("untimed, page 512", (str(trace), *page_512, "--untimed"), 0.5),
        Case(_longer_name(), (str(longer), *page_512)),
    ]
    return made


def _longer_name() -> str:
    return f"cost, page 512, trace {TIMES} times"


def main() -> int:
    """Run everything, print the table; returns the exit code."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("trace", nargs="?", type=Path, default=CONVERSATION)
    parser.add_argument("--runs", type=int, default=5, help="runs of each command (default 5)")
    parser.add_argument("--only", default="", help="only the commands with this text in their name")
    parser.add_argument("--smoke", action="store_true", help="the shipped trace's first requests")
    options = parser.parse_args()
    if not options.smoke and not options.trace.exists():
        print(WHERE_IT_IS, file=sys.stderr)
        return 2
    with tempfile.TemporaryDirectory(prefix="hicache-bench-") as made:
        folder = Path(made)
        trace, runs = options.trace.resolve(), options.runs
        if options.smoke:
            trace, runs = head(SHIPPED_TRACE, SMOKE_REQUESTS, folder), 1
        every = cases(trace, fast_disk_profile(folder), repeated(trace, TIMES, folder))
        chosen = [case for case in every if options.only in case.name]
        loop_s: list[float] = []
        for _ in range(runs):
            for case in chosen:
                loop_s.append(calibrate())
                _measure(case, folder)
    print(table(chosen, loop_s, judged=not options.smoke and trace == CONVERSATION))
    missed = [] if options.smoke else [case for case in chosen if _misses(case, chosen)]
    return 1 if missed and trace == CONVERSATION else 0


def calibrate() -> float:
    """Seconds of a fixed loop that does what the simulator does most: dict, heap, attributes,
    ints.
    """

    class Box:
        __slots__ = ("value",)

        def __init__(self, value: int) -> None:
            self.value = value

    began = time.perf_counter()
    heap: list[tuple[int, int]] = []
    boxes: dict[int, Box] = {}
    state = 1
    for number in range(100_000):
        state = state * 1103515245 + 12345 & 0x7FFFFFFF
        box = boxes.get(state & 1023)
        if box is None:
            box = boxes[state & 1023] = Box(0)
        box.value += number
        heappush(heap, (state, number))
        if len(heap) > 100:
            heappop(heap)
    return time.perf_counter() - began


def engine() -> str:
    """Which form of the engine the commands run: "compiled engine" or "interpreted engine"."""
    version = subprocess.run([_command(), "--version"], capture_output=True, text=True, check=True)
    return version.stdout.strip().partition("(")[2].rstrip(")")


def _command() -> str:
    return str(Path(sys.executable).with_name("hicache"))


def _measure(case: Case, folder: Path) -> None:
    """One run of the command; raises if it fails."""
    command = [_command(), "replay", *case.arguments]
    command += ["--out", str(folder / "out"), "--quiet"]
    peaks: dict[int, int] = {}
    ended = 0
    began = time.perf_counter()
    said = folder / "said"
    with said.open("w") as errors:  # warnings, in the main: shown if the command fails
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=errors)
    while not ended:
        _note_peaks(process.pid, peaks)
        time.sleep(POLL_S)
        ended, status, usage = os.wait4(process.pid, os.WNOHANG)
    took_s = time.perf_counter() - began
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise RuntimeError(
            f"{' '.join(command)} ended with code {process.returncode}: {said.read_text()}"
        )
    case.seconds.append(took_s)
    # Linux counts in KiB, macOS in bytes.
    largest = usage.ru_maxrss * (1 if sys.platform == "darwin" else 1024)
    case.peak_mb = max(case.peak_mb, max(largest, sum(peaks.values())) / 1e6)


def _note_peaks(pid: int, peaks: dict[int, int]) -> None:
    """Keep the peak in bytes that the kernel shows of a process and of its children, on Linux.

    It only grows, so that looking now and then misses no more than the last moments.
    """
    try:
        status = Path(f"/proc/{pid}/status").read_text()
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    except OSError:
        return  # it has ended, or this is no Linux
    _, found, rest = status.partition("VmHWM:")
    if found:
        peaks[pid] = int(rest.split()[0]) * 1024
    for child in children:
        _note_peaks(int(child), peaks)


def _target_s(case: Case, chosen: list[Case]) -> float | None:
    if case.name != _longer_name():
        return case.target_s
    once = [each.median_s for each in chosen if each.name == "cost, page 512"]
    return once[0] * 4.5 if once else None


def _misses(case: Case, chosen: list[Case]) -> bool:
    seconds, megabytes = _target_s(case, chosen), case.target_mb
    slow = seconds is not None and case.median_s > seconds
    return slow or (megabytes is not None and case.peak_mb > megabytes)


def table(chosen: list[Case], loop_s: list[float], *, judged: bool) -> str:
    """The table, as Markdown; with targets and verdicts if `judged`."""
    loop = statistics.median(loop_s)
    heads = ["command", "median s", "min s", "loops", "peak MB"]
    heads += ["at most s", "at most MB", ""] if judged else []
    rows = [heads, ["---", *["---:"] * (len(heads) - 1)]]
    for case in chosen:
        row = [
            case.name, f"{case.median_s:.2f}", f"{min(case.seconds):.2f}",
            f"{case.median_s / loop:.1f}", f"{case.peak_mb:.0f}",
        ]  # fmt: skip
        if judged:
            seconds = _target_s(case, chosen)
            row += [
                "" if seconds is None else f"{seconds:.1f}",
                "" if case.target_mb is None else f"{case.target_mb:.0f}",
                "MISSED" if _misses(case, chosen) else "met",
            ]
        rows.append(row)
    lines = [f"| {' | '.join(row)} |" for row in rows]
    spread = f"median {loop:.3f} s, {min(loop_s):.3f} to {max(loop_s):.3f} s"
    lines += ["", f"Python {sys.version.split()[0]}, {engine()}; the fixed loop: {spread}"]
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())
