"""`hicache run` on the CPU: a whole run through pools, transfers, a file and a device, and its
record replayed in plain SimPy to the same rows.
"""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import pytest

pytest.importorskip("torch")

from real_tiers import halve_hits

# isort: split
from hicache.errors import InputError
from hicache.operations import Prefill
from hicache.record import Record
from hw.run import run_scenario
from scenario.load import load_scenario
from sim.replay import replay
from traces.convert import write
from traces.workloads import WORKLOADS

CONFIG = {
    "model_type": "qwen3", "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2,
    "num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 16, "vocab_size": 256,
    "max_position_embeddings": 4096, "tie_word_embeddings": True, "attention_bias": False,
    "torch_dtype": "float32",
}  # fmt: skip


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A model's configuration and six conversations, small enough for an interpreter."""
    (tmp_path / "config.json").write_text(json.dumps(CONFIG))
    workload = WORKLOADS["multi-turn"]
    options = dataclasses.replace(
        workload.options(), clients=6, parallel=3, rounds=3, request_tokens=60,
        question_tokens=30, output_tokens=5,
    )  # fmt: skip
    write(workload.generate(options), tmp_path / "trace.jsonl", "hicache")
    return tmp_path


def scenario_of(folder: Path, **options: object):
    given = {key.replace("__", "."): value for key, value in options.items()}
    return load_scenario(
        None,
        {
            "trace.path": str(folder / "trace.jsonl"),
            "trace.speed": 50.0,
            "model.name": str(folder / "config.json"),
            "tiers.page_size_tokens": 16,
            "tiers.l1": "30pages",
            "tiers.l2": "45pages",
            "tiers.l3": "200pages",
            "restore.policy": "always",
            "scheduler.chunk_tokens": 64,
            "scheduler.max_running_requests": 4,
            "hw.compute": "synthetic",
            "hw.transfers": "direct",
            **given,
        },
    )


LAYERWISE = {"restore__layerwise": True, "hw__waiting": "poll"}
MEETS = {**LAYERWISE, "restore__policy": "meet", "restore__queue_aware": True}
HALVES = {**LAYERWISE, "restore__policy": "meet"}


@pytest.mark.parametrize("options", [{"hw__l3_backend": "direct"}, LAYERWISE, MEETS, HALVES])
def test_a_run_checks_every_page_and_its_record_replays(
    folder: Path, options, monkeypatch: pytest.MonkeyPatch
) -> None:
    if options is HALVES:
        halve_hits(monkeypatch)
    scenario = scenario_of(folder, hw__checksum="crc32", **options)
    done = run_scenario(scenario, device="cpu", tell=lambda _line: None)
    summary = done.summary
    assert summary["requests"] == 18
    assert summary["bytes"]["d2h"] > 0
    assert summary["bytes"]["h2d"] > 0
    assert summary["bytes"]["h2s"] > 0
    (folder / "scenario.toml").write_text(done.scenario_text)
    record = Record(done.extras["completions.jsonl"].splitlines())
    steps = [entry[2] for entry in record.endings.values() if isinstance(entry[2], Prefill)]
    assert any(step.load >= 0 for step in steps) == (options.get("restore__layerwise", False))
    assert record.complete
    if options is HALVES:
        assert "meet" in done.columns["reason"]
    again = replay(load_scenario(folder / "scenario.toml"), replay_of=record)
    assert {name: list(values) for name, values in again.columns.items()} == {
        name: list(values) for name, values in done.columns.items()
    }


def test_without_a_gpu_cuda_is_refused(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    with pytest.raises(InputError, match="no CUDA GPU here"):
        run_scenario(scenario_of(folder), device="cuda", tell=lambda _line: None)


def test_an_untimed_scenario_is_refused(folder: Path) -> None:
    with pytest.raises(InputError, match="mode is untimed"):
        run_scenario(scenario_of(folder, mode="untimed"), device="cpu", tell=lambda _line: None)


def test_a_scenario_of_several_ranks_is_refused(folder: Path) -> None:
    with pytest.raises(InputError, match=r"ranks\.tp is 2: a real run is of one GPU; allowed: 1"):
        run_scenario(scenario_of(folder, ranks__tp=2), device="cpu", tell=lambda _line: None)


@pytest.mark.parametrize(("key", "value"), [("pages", "partial"), ("hit_cap", "none")])
def test_rules_that_no_real_machine_can_follow_are_refused(folder: Path, key, value) -> None:
    scenario = scenario_of(folder, cache__outputs="dropped", **{f"cache__{key}": value})
    with pytest.raises(InputError, match=f"cache.{key} is {value}"):
        run_scenario(scenario, device="cpu", tell=lambda _line: None)
