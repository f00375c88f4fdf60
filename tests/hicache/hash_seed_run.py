"""Prints a digest of some runs; `test_determinism` starts it under different hash seeds."""

from __future__ import annotations

from hashlib import sha256
from random import Random

from engine_runs import Run, counters_of
from small_workloads import random_workload

RUNS = 40


def digest(runs: int = RUNS) -> str:
    """Of the rows and counters of some random workloads, in order."""
    found = sha256()
    for seed in range(runs):
        run = Run(random_workload(Random(seed)), recorded=True)
        found.update(run.engine.metrics.rows.tobytes())
        found.update(repr(counters_of(run.engine)).encode())
        found.update("\n".join(run.lines).encode())
    return found.hexdigest()


if __name__ == "__main__":
    print(digest())
