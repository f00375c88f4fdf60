"""Whole engines with a real model: what it computes after hits is what it computes without."""

from __future__ import annotations

from dataclasses import replace

import pytest

pytest.importorskip("transformers")

from fault_runs import DEVICES
from live_runs import replayed  # makes the engine's test helpers importable
from real_tiers import Machine, conversations, halve_hits
from tiny_models import DEVICE, VOCAB, plain_logits, table

# isort: split
import numpy as np
import torch
from engine_runs import assert_at_rest, rows_of

from hw.device import Control, Step, Timing
from hw.model.buffers import Sizes
from hw.model.build import config_of, random_model
from hw.model.device import ModelDevice
from hw.pools import KvLayout

KEYS = table(num_hidden_layers=2, num_key_value_heads=1)


class CheckedModel(ModelDevice):
    """Compares the logits of every step with those of attention without a cache."""

    def __init__(self, pool) -> None:
        self.plain = random_model(config_of(KEYS), DEVICE, torch.float32, 0)
        model = random_model(config_of(KEYS), DEVICE, torch.float32, 0)
        super().__init__(model, pool, Sizes(64, 16, 512), keep_logits="yes")
        self.worst = 0.0
        self.after_hits = 0
        self._seen: set[int] = set()

    def run(self, operation, control: Control, steps: tuple[Step, ...] = ()) -> Timing:
        timing = super().run(operation, control, steps)
        logits, greedy = self.logits(), self.greedy()
        for row, step in enumerate(steps):
            upto = step.past_tokens + max(step.new_tokens, timing.steps)
            wanted = plain_logits(self.plain, np.asarray(step.tokens)[:upto])[-1]
            self.worst = max(self.worst, float((logits[row] - wanted).abs().max()))
            assert greedy[row] == int(wanted.argmax())
            self.after_hits += step.past_tokens > 0 and step.request not in self._seen
            self._seen.add(step.request)
        return timing


@pytest.mark.parametrize("device", DEVICES)
def test_logits_after_hits_in_every_tier_are_those_of_recomputing(tmp_path, device):
    assert DEVICE.type == device
    assert torch.get_float32_matmul_precision() == "highest"  # no TF32
    workload = conversations(turns=3)
    last = replace(workload.calls[-1], gap_ns=50_000_000)
    workload = replace(workload, calls=(*workload.calls, last, last))  # what L1 has still
    layout = KvLayout(
        layers=2, kv_heads=1, head_dim_k=16, head_dim_v=16, page_size_tokens=4, dtype="fp32"
    )
    machine = Machine(workload, tmp_path, layout, CheckedModel)
    copied = machine.copied()
    assert min(copied[each] for each in ("d2h", "h2d", "h2s", "s2h")) >= 3, copied
    assert machine.gpu.after_hits >= 5
    rows = rows_of(machine.engine)
    for tier in ("device", "host", "storage"):
        assert sum(row[f"{tier}_tokens"] > 0 for row in rows) >= 1, tier
    assert machine.gpu.worst <= 1e-4
    assert machine.gpu.plain.config.vocab_size == VOCAB
    assert_at_rest(machine.engine)
    assert rows_of(replayed(workload, machine.lines)) == rows_of(machine.engine)


@pytest.mark.parametrize("device", DEVICES)
def test_and_so_are_those_of_prefills_whose_pages_still_come(tmp_path, device):
    assert DEVICE.type == device
    workload = conversations(turns=2, layerwise=True)
    layout = KvLayout(
        layers=2, kv_heads=1, head_dim_k=16, head_dim_v=16, page_size_tokens=4, dtype="fp32"
    )
    machine = Machine(workload, tmp_path, layout, CheckedModel)
    assert machine.overlapped()
    assert machine.gpu.after_hits >= 2
    assert machine.gpu.worst <= 1e-4
    assert_at_rest(machine.engine)
    assert rows_of(replayed(workload, machine.lines)) == rows_of(machine.engine)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("layerwise", [False, True])
def test_and_so_are_those_of_hits_that_are_loaded_in_part(tmp_path, device, layerwise, monkeypatch):
    assert DEVICE.type == device
    halve_hits(monkeypatch)
    workload = conversations(turns=4, policy="meet", layerwise=layerwise)
    layout = KvLayout(
        layers=2, kv_heads=1, head_dim_k=16, head_dim_v=16, page_size_tokens=4, dtype="fp32"
    )
    machine = Machine(workload, tmp_path, layout, CheckedModel)
    assert machine.engine.metrics.reasons.count("meet") >= 3
    assert bool(machine.overlapped()) == layerwise
    assert machine.gpu.worst <= 1e-4
    assert_at_rest(machine.engine)
    assert rows_of(replayed(workload, machine.lines)) == rows_of(machine.engine)
