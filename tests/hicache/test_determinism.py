"""The same scenario gives the same bytes: twice, and under another hash seed."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from engine_runs import Run, counters_of
from examples import examples
from hash_seed_run import digest
from hypothesis import given
from small_workloads import workloads

SCRIPT = Path(__file__).with_name("hash_seed_run.py")


@given(workloads)
@examples(40)
def test_two_runs_are_equal(workload):
    first, second = Run(workload, recorded=True), Run(workload, recorded=True)
    assert first.lines == second.lines
    assert counters_of(first.engine) == counters_of(second.engine)


def test_the_hash_seed_changes_nothing():
    children = [
        subprocess.Popen(
            [sys.executable, str(SCRIPT)],
            env={**os.environ, "PYTHONHASHSEED": seed},
            cwd=SCRIPT.parents[2],
            stdout=subprocess.PIPE,
            text=True,
        )
        for seed in ("0", "1")
    ]
    digests = {child.communicate()[0].strip() for child in children}
    assert digests == {digest()}
