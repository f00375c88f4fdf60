"""Whole engines with a real model: what it computes after hits is what it computes without."""

from __future__ import annotations

import pytest

pytest.importorskip("transformers")

from live_runs import replayed  # makes the engine's test helpers importable
from real_tiers import Machine, conversations
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


def test_logits_after_hits_in_every_tier_are_those_of_recomputing(tmp_path):
    workload = conversations(turns=3)
    layout = KvLayout(
        layers=2, kv_heads=1, head_dim_k=16, head_dim_v=16, page_size_tokens=4, dtype="fp32"
    )
    machine = Machine(workload, tmp_path, layout, CheckedModel)
    copied = machine.copied()
    assert min(copied[each] for each in ("d2h", "h2d", "h2s", "s2h")) >= 3, copied
    assert machine.gpu.after_hits >= 5
    assert machine.gpu.worst <= 1e-4
    assert machine.gpu.plain.config.vocab_size == VOCAB
    assert_at_rest(machine.engine)
    assert rows_of(replayed(workload, machine.lines)) == rows_of(machine.engine)
