"""Small transformers on paged pools, and what they must compute: plain attention, no cache."""

from __future__ import annotations

import hw  # noqa: F401  # before Triton is imported
from hw.device import Control, Step
from hw.model.attention import NAME
from hw.model.buffers import Sizes
from hw.model.build import config_of, random_model
from hw.model.device import ModelDevice
from hw.model.paged_attention import Heads, Tuning
from hw.pools import TORCH_DTYPES, DevicePool, KvLayout

import numpy as np  # isort: skip
import torch  # isort: skip

from hicache.operations import Chunk, Decode, Prefill  # isort: skip

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
VOCAB = 97
QWEN3 = {
    "model_type": "qwen3", "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2,
    "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16, "vocab_size": VOCAB,
    "max_position_embeddings": 4096, "tie_word_embeddings": False, "initializer_range": 0.2,
}  # fmt: skip


def table(**changes: object) -> dict[str, object]:
    """A config.json's keys."""
    return QWEN3 | changes


def small_tiles(q_heads: int, kv_heads: int, dim: int, page_size: int, programs: int = 8) -> Heads:
    """Cut so that short contexts have several tiles and splits."""
    tuning = Tuning(16, 16, 4, 1)
    return Heads(q_heads, kv_heads, dim, dim, page_size, programs, tuning, tuning)


class Bench:
    """A model device, requests with tokens and pages, and the logits that plain attention gives."""

    def __init__(
        self,
        keys: dict[str, object],
        page_size: int,
        pages: int,
        dtype: str = "fp32",
        sizes: Sizes = Sizes(256, 16, 4096),  # noqa: B008
        seed: int = 0,
        heads: Heads | None = None,
        **options,
    ) -> None:
        config = config_of(keys)
        self.model = random_model(config, DEVICE, TORCH_DTYPES[dtype], seed)
        dim = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
        layout = KvLayout(
            layers=config.num_hidden_layers,
            kv_heads=config.num_key_value_heads,
            head_dim_k=dim,
            head_dim_v=dim,
            page_size_tokens=page_size,
            dtype=dtype,
        )
        self.pool = DevicePool(layout, pages, DEVICE)
        # What was there before must not matter, whatever it was.
        self.pool.k.fill_(float("nan"))
        self.pool.v.fill_(float("nan"))
        self.device = ModelDevice(
            self.model, self.pool, sizes, keep_logits="yes", heads=heads, **options
        )
        self.random = np.random.default_rng(seed)
        self.free = [int(page) for page in self.random.permutation(pages)]
        self.tokens: list[np.ndarray] = []
        self.pages: list[list[int]] = []
        self.expected: list[torch.Tensor] = []

    def add(self, length: int, like: int = -1, shared_tokens: int = 0) -> int:
        """A request of `length` tokens, which may begin with those of another, in its pages."""
        size = self.pool.layout.page_size_tokens
        tokens = self.random.integers(0, VOCAB, length, dtype=np.int32)
        pages: list[int] = []
        if shared_tokens:
            assert shared_tokens % size == 0
            tokens[:shared_tokens] = self.tokens[like][:shared_tokens]
            pages = self.pages[like][: shared_tokens // size]
        while len(pages) * size < length:
            pages = [*pages, self.free.pop()]
        self.tokens.append(tokens)
        self.pages.append(pages)
        self.expected.append(plain_logits(self.model, tokens))
        return len(self.tokens) - 1

    def step(self, request: int, past: int, new: int) -> Step:
        pages = tuple((page, 1) for page in self.pages[request])
        return Step(request, new, past, self.tokens[request], pages)

    def prefill(
        self,
        *chunks: tuple[int, int, int],
        decoders: tuple[tuple[int, int], ...] = (),
        load: int = -1,
    ):
        """Chunks (request, past, new), and decoders (request, past); checks every answer."""
        operation = Prefill(
            tuple(Chunk(request, new, past) for request, past, new in chunks),
            sum(new for _, _, new in chunks),
            len(decoders),
            sum(past for _, past in decoders),
            load,
        )
        steps = [self.step(*chunk) for chunk in chunks]
        steps += [self.step(request, past, 1) for request, past in decoders]
        timing = self.device.run(operation, Control(), tuple(steps))
        self.check([(step.request, step.past_tokens + step.new_tokens) for step in steps])
        return timing

    def decode(self, steps: int, *decoders: tuple[int, int], control: Control | None = None):
        """A burst of requests (request, past); checks the answers of its last step."""
        numbers = tuple(request for request, _ in decoders)
        context = sum(past for _, past in decoders)
        operation = Decode(len(decoders), context, steps, numbers)
        parts = tuple(self.step(request, past, 1) for request, past in decoders)
        timing = self.device.run(operation, control or Control(), parts)
        self.check([(request, past + timing.steps) for request, past in decoders])
        return timing

    def check(self, lengths: list[tuple[int, int]], tolerance: float = 1e-4) -> None:
        """The last step's logits, for requests whose length is now so much."""
        wanted = torch.stack([self.expected[request][upto - 1] for request, upto in lengths])
        got = self.device.logits()
        assert got.shape == wanted.shape
        worst = float((got - wanted).abs().max())
        assert worst <= tolerance, (worst, lengths)
        assert self.device.greedy() == wanted.argmax(-1).tolist(), lengths


def plain_logits(model: torch.nn.Module, tokens: np.ndarray) -> torch.Tensor:
    """Logits at every position by transformers' own eager attention."""
    config = model.config
    config._attn_implementation = "eager"
    try:
        with torch.no_grad():
            ids = torch.from_numpy(tokens.astype(np.int64)).to(DEVICE)[None]
            return model(input_ids=ids, use_cache=False).logits[0].float()
    finally:
        config._attn_implementation = NAME
