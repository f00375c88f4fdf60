"""The attention kernels alone, at a real model's shapes: right, how fast, and how to cut them.

Over several layers' pools in turn, so that nothing is in the GPU's L2; ceilings are what PyTorch's
own copy and matrix product reach.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial

import hw  # noqa: F401  # before Triton is imported

# isort: split
import numpy as np
import torch
import torch.nn.functional as F  # noqa: N812
import triton

from hw.model import paged_attention
from hw.model.paged_attention import Heads, Rows, Tuning, tuned_heads

GPU = torch.cuda.is_available()


DEVICE = torch.device("cuda" if GPU else "cpu")


GIB = 1 << 30


class Kernels:
    """The kernels alone, on pages as they are in Qwen3-8B, over several layers' pools."""

    def __init__(self, page_size: int, tokens: int, layers: int) -> None:
        self.heads = tuned_heads(32, 8, 128, 128, page_size, DEVICE, torch.bfloat16)
        pages = -(-tokens // page_size)
        shape = (layers, pages, page_size, 8, 128)
        self.layers = layers
        self.k = torch.randn(shape, device=DEVICE, dtype=torch.bfloat16)
        self.v = torch.randn(shape, device=DEVICE, dtype=torch.bfloat16)
        self.table = torch.randperm(pages, device=DEVICE).int()

    def prefill(self, parts: Sequence[tuple[int, int]], heads: Heads | None = None):
        """(q, out, act): `act(layer)` attends; `parts` are (new, past) of chunks."""
        heads = heads or self.heads
        size = heads.page_size
        tiles = [
            (number, first)
            for number, (new, _) in enumerate(parts)
            for first in range(0, new, heads.tile_tokens)
        ]
        tiles.sort(key=lambda tile: -(parts[tile[0]][1] + tile[1]))
        new, past = [each for each, _ in parts], [each for _, each in parts]
        counts = [-(-(a + b) // size) for a, b in parts]
        nothing = int32([])
        rows = Rows(
            int32([a for a, _ in tiles]), int32([b for _, b in tiles]), int32(past), int32(new),
            int32(np.cumsum([0, *new[:-1]])), int32(np.cumsum([0, *counts[:-1]])),
            nothing, nothing, self.table,
        )  # fmt: skip
        q = torch.randn(sum(new), 32, 128, device=DEVICE, dtype=torch.bfloat16)
        out = torch.empty_like(q)

        def act(layer: int) -> None:
            paged_attention.prefill(heads, q, self.k[layer], self.v[layer], rows, 128**-0.5, out)

        return q, out, act

    def decode(self, lengths: Sequence[int], heads: Heads | None = None):
        """The same for decode; `lengths` with the new token."""
        heads = heads or self.heads
        counts = [-(-length // heads.page_size) for length in lengths]
        starts = np.cumsum([0, *counts[:-1]]) % max(1, len(self.table) - max(counts) + 1)
        rows = Rows(
            *(int32([]),) * 6, int32([each - 1 for each in lengths]), int32(starts), self.table
        )
        q = torch.randn(len(lengths), 32, 128, device=DEVICE, dtype=torch.bfloat16)
        out = torch.empty_like(q)

        def act(layer: int) -> None:
            paged_attention.decode(heads, q, self.k[layer], self.v[layer], rows, 128**-0.5, out)

        return q, out, act, starts

    def context(self, start: int, length: int) -> tuple[torch.Tensor, torch.Tensor]:
        """K and V of a request in layer 0, float32 (heads, tokens, dim)."""
        size = self.heads.page_size
        place = torch.arange(length, device=DEVICE)
        slots = self.table[start + place // size].long() * size + place % size
        return tuple(  # pyright: ignore[reportReturnType]
            each[0].flatten(0, 1)[slots].float().transpose(0, 1) for each in (self.k, self.v)
        )


def check_kernels(page_size: int) -> float:
    """bf16 at a real model's shapes against float32 attention; the largest difference."""
    kernels = Kernels(page_size, 60_000, 1)
    worst = 0.0
    parts = [(350, 8192), (1000, 0), (64, 3000), (1, 500)]
    q, out, act = kernels.prefill(parts)
    act(0)
    at, start = 0, 0
    for new, past in parts:
        k, v = kernels.context(start, past + new)
        mask = torch.arange(past + new, device=DEVICE)[None] <= (
            past + torch.arange(new, device=DEVICE)[:, None]
        )
        worst = max(worst, difference(q[at : at + new], k, v, mask, out[at : at + new]))
        at, start = at + new, start + -(-(past + new) // page_size)
    lengths = [1, 777, 4096, 16_000, 63, 64, 65]
    q, out, act, starts = kernels.decode(lengths)
    act(0)
    for row, length in enumerate(lengths):
        k, v = kernels.context(int(starts[row]), length)
        worst = max(worst, difference(q[row : row + 1], k, v, None, out[row : row + 1]))
    assert worst <= 2e-2, f"attention differs by {worst} with pages of {page_size}"
    return worst


def difference(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, mask, out: torch.Tensor) -> float:
    """Of `out` from exact attention of bf16 inputs."""
    score = torch.einsum("nhgd,hmd->hgnm", q.float().unflatten(1, (8, 4)), k) * 128**-0.5
    if mask is not None:
        score.masked_fill_(~mask, float("-inf"))
    wanted = torch.einsum("hgnm,hmd->nhgd", score.softmax(-1), v).flatten(1, 2)
    return float((out.float() - wanted).abs().max())


def int32(values) -> torch.Tensor:
    return torch.tensor(np.asarray(values), dtype=torch.int32, device=DEVICE)


def kernel_ms(act: Callable[[int], None], layers: int, rounds: int = 3) -> float:
    """Median time of a launch, over layers in turn, so that nothing is in the GPU's L2."""
    for layer in range(min(2, layers)):
        act(layer)
    times = []
    for _ in range(rounds):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        torch.cuda._sleep(2_000_000)  # the host gets ahead, so that launches do not count
        begin.record()
        for layer in range(layers):
            act(layer)
        end.record()
        end.synchronize()
        times.append(begin.elapsed_time(end) / layers)
    return statistics.median(times)


def ceilings() -> dict[str, float]:
    """Bandwidth of the GPU's memory, and of its arithmetic, as PyTorch reaches them."""
    source = torch.randn(2 * GIB, device=DEVICE, dtype=torch.bfloat16)
    target = torch.empty_like(source)
    size = source.nbytes
    words = source.view(torch.int32)
    a = torch.randn(8192, 8192, device=DEVICE, dtype=torch.bfloat16)
    product = torch.empty_like(a)
    copy_ms = kernel_ms(lambda layer: target.copy_(source), 5)
    read_ms = kernel_ms(lambda layer: words.sum(dtype=torch.int32), 5)
    product_ms = kernel_ms(lambda layer: torch.mm(a, a, out=product), 5)
    return {
        "copy_gb_s": 2 * size / copy_ms / 1e6,
        "read_gb_s": size / read_ms / 1e6,
        "matmul_tflop_s": 2 * 8192**3 / product_ms / 1e9,
    }


def kernel_rows(copy_gb_s: float) -> list[dict]:
    """Attention alone: prefill against PyTorch's own where that can do it, decode's bandwidth."""
    rows = []
    for page_size in (16, 1):
        kernels = Kernels(page_size, 32 * 4096, 6)
        shapes = ((350, 0), (350, 8192), (2048, 0), (2048, 8192), (8192, 0))
        for new, past in shapes if page_size == 16 else shapes[3:4]:
            _, _, act = kernels.prefill([(new, past)])
            row: dict = {"kernel": "prefill", "page": page_size, "new": new, "past": past}
            row["ms"] = kernel_ms(act, kernels.layers)
            pairs = new * past + new * (new + 1) / 2
            row["tflop_s"] = 4 * 32 * 128 * pairs / row["ms"] / 1e9
            if not past:
                q, k, v = (
                    torch.randn(1, heads, new, 128, device=DEVICE, dtype=torch.bfloat16)
                    for heads in (32, 8, 8)
                )
                row["sdpa_ms"] = kernel_ms(partial(sdpa, q, k, v), 6)
            rows.append(row)
        decodes = ((1, 4096), (1, 16_384), (8, 4096), (32, 1024), (32, 4096))
        for batch, context in decodes if page_size == 16 else decodes[-1:]:
            _, _, act, _ = kernels.decode([context] * batch)
            row = {"kernel": "decode", "page": page_size, "batch": batch, "context": context}
            row["ms"] = kernel_ms(act, kernels.layers)
            row["gb_s"] = batch * context * 2 * 8 * 128 * 2 / row["ms"] / 1e6
            row["of_copy"] = row["gb_s"] / copy_gb_s
            rows.append(row)
        del kernels
    return rows


def sdpa(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, layer: int) -> None:
    """PyTorch's own attention, on K and V that lie in one piece."""
    F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)


def tune(copy_gb_s: float) -> list[dict]:
    """Other cuts of the kernels, on shapes that matter; the best first."""
    rows: list[dict] = []
    kernels = Kernels(16, 32 * 4096, 4)
    prefill_cuts = [(128, 64, 8, 3), (128, 64, 8, 2), (128, 128, 8, 2), (64, 64, 4, 3),
                    (64, 128, 4, 2), (128, 32, 8, 3), (64, 64, 4, 2)]  # fmt: skip
    for cut in prefill_cuts:
        heads = replace(kernels.heads, prefill=Tuning(*cut))
        for new, past in ((350, 8192), (8192, 0)):
            row: dict = {"kernel": "prefill", "cut": cut, "new": new, "past": past}
            rows.append(row | _attempt(lambda: kernels.prefill([(new, past)], heads)[2], kernels))  # noqa: B023
    decode_cuts = [(16, 64, 4, 3), (16, 64, 4, 4), (16, 32, 4, 4), (16, 128, 4, 2), (16, 128, 8, 3),
                   (16, 32, 2, 4), (16, 64, 2, 3)]  # fmt: skip
    for cut in decode_cuts:
        heads = replace(kernels.heads, decode=Tuning(*cut))
        for batch, context in ((1, 16_384), (32, 4096)):
            row = {"kernel": "decode", "cut": cut, "batch": batch, "context": context}
            row |= _attempt(lambda: kernels.decode([context] * batch, heads)[2], kernels)  # noqa: B023
            if row["ms"]:
                gb_s = batch * context * 2 * 8 * 128 * 2 / row["ms"] / 1e6
                row |= {"gb_s": gb_s, "of_copy": gb_s / copy_gb_s}
            rows.append(row)
    for programs in (264, 528, 1056, 2112, 4224):
        heads = replace(kernels.heads, programs=programs)
        for batch, context in ((1, 16_384), (32, 4096)):
            row = {"kernel": "decode", "programs": programs, "batch": batch, "context": context}
            row |= _attempt(lambda: kernels.decode([context] * batch, heads)[2], kernels)  # noqa: B023
            rows.append(row)
    return sorted(rows, key=lambda row: (row["kernel"], row.get("new", 0), row.get("batch", 0),
                                         row["ms"] or 1e9))  # fmt: skip


def _attempt(make: Callable[[], Callable[[int], None]], kernels: Kernels) -> dict:
    try:
        return {"ms": kernel_ms(make(), kernels.layers)}
    except (triton.OutOfResources, RuntimeError) as error:
        return {"ms": None, "error": str(error)[:80]}
