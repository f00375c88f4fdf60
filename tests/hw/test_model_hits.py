"""A small model in fp32: what it says after hits in L1, L2 and L3 is what it says when everything
is computed, to 1e-4 in every logit of every step, and token for token where it goes on by itself.

Unlike in runs, answers are not teacher-forced here: each token is the likeliest one after what was
said before it, so that one wrong page would change all that follows.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

import hw  # noqa: F401  # before Triton is imported

pytest.importorskip("transformers")

import numpy as np
import torch
from fault_runs import DEVICES
from tiny_models import VOCAB, table

from hicache.operations import Chunk, Decode, PageRuns, Prefill
from hw.device import Control, Step
from hw.model.buffers import Sizes
from hw.model.build import config_of, random_model
from hw.model.device import ModelDevice
from hw.pools import DevicePool, HostPool, KvLayout
from hw.storage.file_store import FileStore
from hw.transfers.auto import make_backend
from hw.transfers.driver import Driver

TOLERANCE = 1e-4
PAGE = 4
PROMPT = 23  # 5 full pages and a part of one
HIT_PAGES = 5
MODELS = {
    "qwen3": table(),
    "llama": {
        "model_type": "llama", "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2,
        "num_attention_heads": 2, "num_key_value_heads": 2, "head_dim": 16, "vocab_size": VOCAB,
        "max_position_embeddings": 4096, "tie_word_embeddings": True, "initializer_range": 0.2,
    },
}  # fmt: skip


@pytest.fixture(autouse=True)
def exact_products() -> Iterator[None]:
    """fp32 means fp32: no TF32 on a GPU."""
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("highest")
    yield
    torch.set_float32_matmul_precision(before)


class Tiers:
    """A model on three tiers. Nothing in them is what a request wrote, unless it was put there."""

    def __init__(self, folder: Path, device: str, model: str, transfers: str) -> None:
        config = config_of(MODELS[model])
        layout = KvLayout(
            layers=2, kv_heads=config.num_key_value_heads, head_dim_k=16, head_dim_v=16,
            page_size_tokens=PAGE, dtype="fp32",
        )  # fmt: skip
        driver = Driver(0) if device == "cuda" else None
        self.pool = DevicePool(layout, 64, device)
        self.host = HostPool(layout, 40, driver)
        self.backend = make_backend(transfers, self.pool, self.host, driver)  # type: ignore[arg-type]
        self.store = FileStore(
            folder, 60, self.host.page_bytes, self.host, workers=2, checksum="crc32"
        )
        weights = random_model(config, torch.device(device), torch.float32, 3)
        self.model = ModelDevice(weights, self.pool, Sizes(64, 4, 256), keep_logits="yes")
        self.answer_tokens = 12 if device == "cuda" else 4  # an interpreter takes its time
        self.random = np.random.default_rng(5)
        self.prompt = self.random.integers(0, VOCAB, PROMPT, dtype=np.int32)
        self.forget(self.pool.data)

    def close(self) -> None:
        self.model.close()
        self.backend.close()
        self.store.close()
        self.host.close()

    def forget(self, memory: torch.Tensor) -> None:
        """Fill with NaN, in every dtype: what is read without being written shows."""
        memory.fill_(0xFF)

    def needed(self) -> int:
        """Pages of the prompt and its answer."""
        return -(-(PROMPT + self.answer_tokens) // PAGE)

    def pages(self, count: int, of: int = 64) -> list[int]:
        return [int(page) for page in self.random.permutation(of)[:count]]

    def answer(self, pages: list[int], hit_pages: int) -> tuple[torch.Tensor, list[int]]:
        """The rest of the prompt, then the answer: logits of shape (tokens, VOCAB), and tokens."""
        tokens = self.prompt
        past = hit_pages * PAGE
        logits: list[torch.Tensor] = []
        said: list[int] = []
        while past < PROMPT:
            new = min(13, PROMPT - past)
            operation = Prefill((Chunk(0, new, past),), new)
            self.model.run(operation, Control(), (self.step(tokens, new, past, pages),))
            past += new
        for number in range(self.answer_tokens):
            logits.append(self.model.logits()[0].cpu())
            said += self.model.greedy()
            if number == self.answer_tokens - 1:
                break
            tokens = np.append(tokens, np.int32(said[-1]))
            operation = Decode(1, past, 1, (0,))
            self.model.run(operation, Control(), (self.step(tokens, 1, past, pages),))
            past += 1
        return torch.stack(logits), said

    def step(self, tokens: np.ndarray, new: int, past: int, pages: list[int]) -> Step:
        return Step(0, new, past, tokens, runs(pages))


def runs(pages: list[int]) -> PageRuns:
    return tuple((page, 1) for page in pages)


@pytest.fixture(
    params=[
        pytest.param(("cpu", "qwen3", "direct"), marks=DEVICES[0].marks),
        *(
            pytest.param(("cuda", model, transfers), marks=DEVICES[1].marks)
            for model in MODELS
            for transfers in ("staged", "zero_copy", "direct")
        ),
    ],
    ids="-".join,
)
def tiers(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Tiers]:
    made = Tiers(tmp_path, *request.param)
    yield made
    made.close()


def test_hits_in_every_tier_answer_as_computing_everything_does(tiers: Tiers) -> None:
    first = tiers.pages(tiers.needed())
    wanted, said = tiers.answer(first, 0)
    assert len(set(said)) > 1, "an answer that says one thing only shows little"
    cached = first[:HIT_PAGES]

    def check(pages: list[int]) -> None:
        logits, again = tiers.answer(pages, HIT_PAGES)
        assert again == said
        assert float((logits - wanted).abs().max()) <= TOLERANCE

    # L1: the cached pages, and others for what is new.
    others = [page for page in tiers.pages(64) if page not in first]
    check(cached + others[: tiers.needed() - HIT_PAGES])
    # L2: stored in any order, L1 forgotten, loaded into other pages.
    in_host = tiers.pages(HIT_PAGES, 40)
    tiers.backend.copy("d2h", runs(cached), runs(in_host))
    tiers.forget(tiers.pool.data)
    pages = tiers.pages(tiers.needed())
    tiers.backend.copy("h2d", runs(in_host), runs(pages[:HIT_PAGES]))
    check(pages)
    # L3: written, L1 and L2 forgotten, read into other pages and loaded.
    slots = tiers.pages(HIT_PAGES, 60)
    tiers.store.write(runs(in_host), runs(slots))
    tiers.forget(tiers.pool.data)
    tiers.forget(tiers.host.data)
    in_host, pages = tiers.pages(HIT_PAGES, 40), tiers.pages(tiers.needed())
    tiers.store.read(runs(slots), runs(in_host))
    tiers.backend.copy("h2d", runs(in_host), runs(pages[:HIT_PAGES]))
    check(pages)
    # Everything computed again, elsewhere, in other chunks.
    tiers.forget(tiers.pool.data)
    logits, again = tiers.answer(tiers.pages(tiers.needed()), 0)
    assert again == said
    assert float((logits - wanted).abs().max()) <= TOLERANCE


def test_one_page_that_is_another_changes_the_answer(tiers: Tiers) -> None:
    """Otherwise the test above shows nothing. (Two pages that only changed places would not: keys
    know their positions.)
    """
    first = tiers.pages(tiers.needed())
    wanted, _ = tiers.answer(first, 0)
    in_host = tiers.pages(HIT_PAGES, 40)
    tiers.backend.copy("d2h", runs(first[:HIT_PAGES]), runs(in_host))
    tiers.backend.copy("h2d", runs(in_host[2:3]), runs(first[4:5]))
    logits, _ = tiers.answer(first, HIT_PAGES)
    assert float((logits - wanted).abs().max()) > 100 * TOLERANCE
