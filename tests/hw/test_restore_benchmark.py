"""The benchmark of restoring beside computing runs on a tiny model, whole; and how it judges."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("transformers")

REPOSITORY = Path(__file__).resolve().parents[2]
BENCHMARKS = REPOSITORY / "benchmarks/hw"
sys.path.insert(0, str(BENCHMARKS))

from make_slice import sliced  # noqa: E402
from restore_policies import judged  # noqa: E402

ROW = {"tokens": 350}


def test_the_slice_that_is_committed_keeps_its_rule():
    lines = (BENCHMARKS / "conversation-300.jsonl").read_text().splitlines()
    rows = [json.loads(line) for line in lines]
    assert len(rows) == 300
    assert max(row["input_length"] for row in rows) <= 8192
    assert all(len(row["hash_ids"]) == -(-row["input_length"] // 512) for row in rows)
    times = [row["timestamp"] for row in rows]
    assert times == sorted(times)
    assert times[0] == 0


def test_a_slice_takes_short_prompts_in_order_and_cuts_answers():
    trace = [
        json.dumps({"timestamp": 100 * i, "input_length": n, "output_length": 9, "hash_ids": [i]})
        for i, n in enumerate((9000, 10, 8193, 8192, 20, 30))
    ]
    rows = [json.loads(line) for line in sliced(trace, requests=3)]
    assert [(row["timestamp"], row["input_length"]) for row in rows] == [
        (0, 10), (200, 8192), (300, 20),
    ]  # fmt: skip
    assert {row["output_length"] for row in rows} == {3}


def test_choices_are_judged_by_the_last_ones_that_were_not_probes():
    late = ["recompute_cheaper", "probe", "cost", "cost", "probe", "cost", "cost"]
    made = judged(ROW, "L2", late, 0.020, 0.010)
    assert (made["chosen"], made["right"], made["choices_until_right"]) == ("restore", True, 1)
    made = judged(ROW, "L2", late, 0.010, 0.020)
    assert (made["chosen"], made["right"], made["choices_until_right"]) == ("restore", False, 5)
    made = judged(ROW, "L2", late, 0.0100, 0.0101)
    assert made["near"]
    assert made["right"], "neither side is wrong where both take as long"
    made = judged(ROW, "L2", ["cost", "recompute_cheaper"], 0.020, 0.010)
    assert (made["chosen"], made["right"]) == ("both", False)


def test_a_row_in_which_nothing_lay_below_l1_has_chosen_nothing():
    made = judged(ROW, "L2", ["", "", "cost", ""], 0.0100, 0.0101)
    assert (made["chosen"], made["right"]) == ("both", False)
    assert judged(ROW, "L2", ["", ""], 0.02, 0.01)["chosen"] == "nothing"


@pytest.mark.extended
def test_the_benchmark_measures_every_part(tmp_path):
    out, folder = tmp_path / "out.json", tmp_path / "disk"
    folder.mkdir()
    command = [sys.executable, BENCHMARKS / "restore_or_recompute.py", "--device", "cpu", "--tiny"]
    done = subprocess.run(
        [*command, "--folder", folder, "--out", out, "--budget", "300"],
        capture_output=True,
        text=True,
        check=False,
        timeout=200,
        env=os.environ | {"HICACHE_COMPILED": "0"},
    )
    assert done.returncode == 0, done.stderr
    result = json.loads(out.read_text())
    assert [row["tokens"] for row in result["rows"]] == [14, 30]
    assert all(row["recompute_s"] > 0 and min(row["read_s"].values()) > 0 for row in result["rows"])
    assert len(result["choices"]) == len(result["mixed"]) == 2
    for each in result["choices"] + result["mixed"]:
        assert set(each["reasons"]) <= {"cost", "probe", "recompute_cheaper"}, "no hit below L1"
    assert len(result["rotating"]) == 1
    assert result["skipped"] == []
    assert list(folder.iterdir()) == []
