"""Runs made on a GPU, repeated here without one: the same operations, and the same totals."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest

from hicache.record import Record
from scenario.load import load_scenario
from scenario.results import summary_text
from sim.replay import replay

REPOSITORY = Path(__file__).resolve().parents[2]
RUNS = sorted(REPOSITORY.glob("benchmarks/hw/results/*/*/completions.jsonl.gz"))
# What the machine alone knows, or says of itself.
OF_THE_MACHINE = {"profile", "engine_us_per_operation", "warnings", "estimates", "version"}


@pytest.mark.parametrize("path", RUNS, ids=[path.parent.name for path in RUNS])
def test_a_recorded_run_repeats_to_the_same_totals(path: Path) -> None:
    lines = gzip.decompress(path.read_bytes()).decode().splitlines()
    scenario = load_scenario(path.parent / "scenario.toml")
    again = json.loads(summary_text(replay(scenario, replay_of=Record(lines)).summary))
    recorded = json.loads((path.parent / "summary.json").read_text())
    for key, value in recorded.items():
        if key not in OF_THE_MACHINE:
            assert again[key] == value, key


def test_there_are_runs_of_a_real_model_and_of_checked_pages() -> None:
    kept = {"agents-8b", "agents-synthetic", "conversation-8b", "one_token_layerwise"}
    assert {path.parent.name for path in RUNS} >= kept
