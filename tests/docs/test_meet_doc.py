"""docs/meet.md: its example prints what it says, and what it says of it is so."""

from __future__ import annotations

import contextlib
import json
import re
import subprocess
import sys
from itertools import islice
from pathlib import Path
from statistics import fmean
from typing import Any

import pytest

from scenario.load import load_scenario
from sim.replay import replay

REPOSITORY = Path(__file__).resolve().parents[2]
TEXT = (REPOSITORY / "docs" / "meet.md").read_text(encoding="utf-8")


def test_the_example_prints_what_the_page_says() -> None:
    (code,) = re.findall(r"^```python\n(.*?)^```$", TEXT, re.M | re.S)
    output = re.findall(r"^```text\n(.*?)^```$", TEXT, re.M | re.S)[-1]
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=REPOSITORY, capture_output=True, text=True, check=True
    )
    assert done.stdout == output


def test_what_is_said_of_the_example_is_in_it() -> None:
    rows = dict(re.findall(r"^(\w[\w, -]+?) +(\d+ +\d+ +\d+)$", TEXT, re.M))
    shown = {name: [int(each) for each in row.split()] for name, row in rows.items()}
    quiet, busy, fast = ({name: row[column] for name, row in shown.items()} for column in range(3))
    others = ("never", "always", "cost", "cost, layer-wise")
    assert quiet["meet, layer-wise"] < 0.9 * min(quiet[name] for name in others)
    assert fast["meet, layer-wise"] < 1.01 * min(fast[name] for name in others)
    assert busy["cost, queue aware"] < busy["cost"]
    assert busy["meet, layer-wise"] < 0.9 * busy["cost"]
    assert 2 * busy["always"] < busy["cost"], "others wait for what is computed again"
    assert busy["meet, both"] < 0.85 * busy["always"]


def test_knowing_the_queue_helps_cost_by_a_third_in_the_example() -> None:
    rows = dict(re.findall(r"^(\w[\w, -]+?) +\d+ +(\d+) +\d+$", TEXT, re.M))
    assert int(rows["cost, queue aware"]) < 0.7 * int(rows["cost"])


@pytest.mark.xfail(reason="at this one pace it is no help with the profile as it is", strict=True)
def test_knowing_the_queue_helps_meet_in_the_example() -> None:
    rows = dict(re.findall(r"^(\w[\w, -]+?) +\d+ +(\d+) +\d+$", TEXT, re.M))
    busy = {name: int(row) for name, row in rows.items()}
    assert busy["meet, both"] < 0.9 * busy["meet, layer-wise"] < 0.9 * busy["cost"]


@pytest.fixture(scope="module")
def meet_ratios(tmp_path_factory: pytest.TempPathFactory) -> list[float]:
    """Mean TTFT of `meet` with the queue known, as a part of that without, over paces."""
    (code,) = re.findall(r"^```python\n(.*?)^```$", TEXT, re.M | re.S)
    made: dict[str, Any] = {}
    with contextlib.chdir(REPOSITORY):
        exec(code.partition("layerwise, aware")[0], made)
    folder = tmp_path_factory.mktemp("paces")
    (folder / "slow.json").write_text(json.dumps(made["machine"]), encoding="utf-8")
    with open(REPOSITORY / "data" / "agents.jsonl", encoding="utf-8") as rows:
        (folder / "trace.jsonl").write_text("".join(islice(rows, 600)), encoding="utf-8")
    ratios = []
    for pace in (0.8, 0.9, 1.0, 1.1, 1.2):
        ttft_ms = [
            replay(
                load_scenario(
                    None,
                    {
                        "trace.path": str(folder / "trace.jsonl"),
                        "trace.speed": pace,
                        "machine.profile": str(folder / "slow.json"),
                        "tiers.l1": "10GiB",
                        "tiers.l2": "4x",
                        "restore.policy": "meet",
                        "restore.layerwise": True,
                        "restore.queue_aware": aware,
                    },
                )
            ).summary["ttft_ms"]["mean"]
            for aware in (False, True)
        ]
        ratios.append(ttft_ms[1] / ttft_ms[0])
    return ratios


def test_knowing_the_queue_helps_meet_at_all_paces(meet_ratios: list[float]) -> None:
    """By as much as the page says; at one pace alone it may be none."""
    assert 0.905 < min(meet_ratios) < max(meet_ratios) < 1.015


@pytest.mark.xfail(reason="3.8 % in the mean, with the profile as it is", strict=True)
def test_knowing_the_queue_helps_meet_by_a_twentieth_in_the_mean(meet_ratios: list[float]) -> None:
    assert fmean(meet_ratios) < 0.955
