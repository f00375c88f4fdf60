"""How fast traces are read and cut into pages, and how much memory a long one takes.

    python benchmarks/trace_speed.py [TRACE] [--long-blocks 94000000] [--runs 3]

TRACE (Mooncake's conversation trace, else the shipped one) goes through the reader at pages of 512,
64 and 1 tokens. With `--long-blocks` an agent trace of so many blocks is made as it is read: a
session document of kv-cache-tester, piped into a child, so that no file is needed. Times are CPU
seconds of one core; in each run all sizes take turns, and medians are shown.
"""

from __future__ import annotations

import argparse
import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from bench_inputs import CONVERSATION, SHIPPED_TRACE

REPOSITORY = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(REPOSITORY))

from traces.reader import open_trace  # noqa: E402

PAGES = (512, 64, 1)
# A made agent's prompt grows by so many blocks of 64 tokens a turn, and begins anew after so many
# turns, as when its context is compacted.
NEW_BLOCKS = 300
TURNS = 10


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument(
        "trace", nargs="?", type=Path,
        default=CONVERSATION if CONVERSATION.exists() else SHIPPED_TRACE,
    )  # fmt: skip
    parser.add_argument("--runs", type=int, default=3, help="of each page size (default 3)")
    parser.add_argument("--long-blocks", type=int, default=0, help="blocks of a made agent trace")
    parser.add_argument("--read-pipe", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.read_pipe:
        _read_pipe()
        return
    print("| page | requests | requests/s of a core |\n|---:|---:|---:|")
    took: dict[int, list[float]] = {page: [] for page in PAGES}
    requests = 0
    for _ in range(options.runs):
        for page in PAGES:
            began = time.process_time()
            requests = sum(1 for _ in open_trace(options.trace).requests(page))
            took[page].append(time.process_time() - began)
    for page in PAGES:
        print(f"| {page} | {requests:,} | {requests / statistics.median(took[page]):,.0f} |")
    if options.long_blocks:
        print(_long(options.long_blocks))


def _long(blocks: int) -> str:
    rounds = max(1, blocks // (NEW_BLOCKS * TURNS * (TURNS + 1) // 2))
    command = [sys.executable, __file__, "--read-pipe"]
    child = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert child.stdin is not None
    assert child.stdout is not None
    with child.stdin as pipe:
        pipe.write('{"id":"made","block_size":64,"requests":[')
        for turn in range(rounds * TURNS):
            first = turn // TURNS * NEW_BLOCKS * TURNS
            count = (turn % TURNS + 1) * NEW_BLOCKS
            ids = ",".join(map(str, range(first, first + count)))
            pipe.write(
                f'{"," if turn else ""}{{"t":{turn * 2}.5,"type":"s","in":{count * 64},'
                f'"out":200,"hash_ids":[{ids}],"api_time":1.0,"think_time":1.0}}'
            )
        pipe.write("]}")
    said = child.stdout.read()
    if child.wait():
        raise SystemExit(child.returncode)
    return said.strip()


def _read_pipe() -> None:
    began = time.process_time()
    trace = open_trace("-")
    requests = sum(1 for _ in trace.requests(64))
    seconds = time.process_time() - began
    facts = trace.facts
    peak_mb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(
        f"agent trace: {requests:,} requests, {facts.blocks:,} blocks, {facts.unique_blocks:,} "
        f"unique: {facts.blocks / seconds:,.0f} blocks/s of a core, peak {peak_mb:.0f} MB"
    )


if __name__ == "__main__":
    main()
