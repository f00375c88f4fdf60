"""A real model on paged KV cache on a GPU: right first, then how fast, against ceilings of the run.

    python benchmarks/hw/model.py --out model.json         everything, under 90 s on an H200
    python benchmarks/hw/model.py --tune --out tune.json   cuts of the attention kernels, no model

Without a GPU only the check runs, by the interpreter. Times of prefills are of the whole blocking
call on the host's clock and medians; of decode steps, between the ends of steps of one burst. A
decode step's bytes are all weights but the input embedding, and the KV cache of its contexts; pages
are random, and where the contexts would not fit into the pool, requests share some.
Exit code 1: something was not right, or a target was missed (`--targets none` only reports).
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import hw  # noqa: F401  # before Triton is imported

# isort: split
import numpy as np
import torch
import torch.nn.functional as F  # noqa: N812
import transformers
import triton

from hicache.operations import Chunk, Decode, PageRuns, Prefill
from hw.device import Control, Step
from hw.model import paged_attention
from hw.model.attention import NAME
from hw.model.buffers import Sizes
from hw.model.build import config_of, make_model, random_model
from hw.model.device import ModelDevice
from hw.model.paged_attention import Heads, Rows, Tuning, tuned_heads
from hw.pools import DevicePool, KvLayout

GPU = torch.cuda.is_available()
DEVICE = torch.device("cuda" if GPU else "cpu")
NOMINAL_HBM_GB_S = 4800.0
DECODE_TARGET = 0.5
GIB = 1 << 30


# Right? -----------------------------------------------------------------------------------------


def check_model(page_size: int, *, layers: int = 2) -> float:
    """A small model in fp32: chunks over a cached prefix, mixed steps and bursts, in pages of any
    order, against attention without a cache. The largest difference of a logit.
    """
    keys = {
        "model_type": "qwen3", "hidden_size": 64, "intermediate_size": 96,
        "num_hidden_layers": layers, "num_attention_heads": 4, "num_key_value_heads": 2,
        "head_dim": 32, "vocab_size": 211, "max_position_embeddings": 2048,
        "tie_word_embeddings": False, "initializer_range": 0.2,
    }  # fmt: skip
    model = random_model(config_of(keys), DEVICE, torch.float32, 1)
    layout = KvLayout(
        layers=layers, kv_heads=2, head_dim_k=32, head_dim_v=32, page_size_tokens=page_size,
        dtype="fp32",
    )  # fmt: skip
    length = 330 if GPU else 44
    each = -(-length // page_size)
    pool = DevicePool(layout, 3 * each + 5, DEVICE)
    pool.k.fill_(float("nan"))  # what was in a page before must not matter
    device = ModelDevice(model, pool, Sizes(512, 8, 4096), keep_logits="yes")
    random = np.random.default_rng(page_size)
    order = random.permutation(pool.pages)
    tokens = [random.integers(0, 211, length, dtype=np.int32) for _ in range(3)]
    expected = [plain_logits(model, each) for each in tokens]
    worst = 0.0

    def step(request: int, past: int, new: int) -> Step:
        pages = order[request * each : (request + 1) * each]
        return Step(request, new, past, tokens[request], tuple((int(page), 1) for page in pages))

    def run(chunks: list[tuple[int, int, int]], decoders: list[tuple[int, int]], steps: int = 1):
        nonlocal worst
        parts = [*(step(*chunk) for chunk in chunks), *(step(r, past, 1) for r, past in decoders)]
        if chunks:
            operation = Prefill(
                tuple(Chunk(r, new, past) for r, past, new in chunks),
                sum(new for *_, new in chunks), len(decoders),
            )  # fmt: skip
        else:
            operation = Decode(len(decoders), 0, steps)
        device.run(operation, Control(), tuple(parts))
        upto = [past + new for _, past, new in chunks] + [past + steps for _, past in decoders]
        wanted = torch.stack(
            [expected[part.request][end - 1] for part, end in zip(parts, upto, strict=True)]
        )
        worst = max(worst, float((device.logits() - wanted).abs().max()))
        assert device.greedy() == wanted.argmax(-1).tolist(), "other greedy tokens"

    far = length - 12
    run([(0, 0, far // 2)], [])
    run([(0, far // 2, far - far // 2), (1, 0, 9)], [])
    run([(1, 9, 17), (2, 0, 5)], [(0, far)])
    run([], [(1, 26), (0, far + 1), (2, 5)], 5)
    device.close()
    assert worst <= 1e-4, f"logits differ by {worst} with pages of {page_size}"
    return worst


def plain_logits(model: torch.nn.Module, tokens: np.ndarray) -> torch.Tensor:
    """Logits at every position by transformers' own eager attention."""
    model.config._attn_implementation = "eager"
    try:
        with torch.no_grad():
            ids = torch.from_numpy(tokens.astype(np.int64)).to(DEVICE)[None]
            return model(input_ids=ids, use_cache=False).logits[0].float()
    finally:
        model.config._attn_implementation = NAME


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


# How fast? --------------------------------------------------------------------------------------


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


class Model:
    """Qwen3-8B with random weights on a pool that takes what memory is left."""

    def __init__(self, name: str, page_size: int) -> None:
        torch.cuda.empty_cache()
        start = time.monotonic()
        self.model = make_model(name, DEVICE, torch.bfloat16)
        self.made_s = time.monotonic() - start
        config = self.model.config
        self.layout = KvLayout(
            layers=config.num_hidden_layers, kv_heads=config.num_key_value_heads,
            head_dim_k=config.head_dim, head_dim_v=config.head_dim, page_size_tokens=page_size,
            dtype="bf16",
        )  # fmt: skip
        free, _ = torch.cuda.mem_get_info()
        pages = min(600_000 // page_size, (free - 16 * GIB) // self.layout.page_bytes)
        self.pool = DevicePool(self.layout, pages, DEVICE)
        for layer in range(self.layout.layers):
            self.pool.k[layer].normal_()
            self.pool.v[layer].normal_()
        sizes = Sizes(16_384, 64, 64 * (16_384 + 64) // page_size + 64)
        self.device = ModelDevice(self.model, self.pool, sizes, name=name)
        self.random = np.random.default_rng(0)
        tied = config.tie_word_embeddings
        lookup = 0 if tied else self.model.model.embed_tokens.weight.nbytes
        self.weight_bytes = sum(each.nbytes for each in self.model.parameters()) - lookup
        parameters = self.weight_bytes // 2
        head = config.vocab_size * config.hidden_size
        self.flops_per_token = 2 * (parameters - head)
        self.flops_per_pair = 4 * config.num_attention_heads * config.head_dim * self.layout.layers
        self.vocab = config.vocab_size

    def step(self, request: int, past: int, new: int, upto: int) -> Step:
        """A request in random pages."""
        pages = -(-upto // self.layout.page_size_tokens)
        chosen = self.random.permutation(self.pool.pages)[:pages]
        runs: PageRuns = tuple((int(page), 1) for page in chosen)
        tokens = self.random.integers(0, self.vocab, upto, dtype=np.int32)
        return Step(request, new, past, tokens, runs)

    @contextmanager
    def eager(self) -> Iterator[None]:
        """Without CUDA graphs."""
        graphs, self.device._graphs = self.device._graphs, None
        try:
            yield
        finally:
            self.device._graphs = graphs

    def prefill(self, new: int, past: int, decoders: tuple[Step, ...] = ()) -> dict:
        """Median of the blocking call, ms."""
        steps = (self.step(0, past, new, past + new), *decoders)
        context = sum(each.past_tokens for each in decoders)
        operation = Prefill((Chunk(0, new, past),), new, len(decoders), context)
        times, device_times, setup_ns = [], [], 0
        for repeat in range(4 if new > 4000 else 6):
            start = time.perf_counter()
            timing = self.device.run(operation, Control(), steps)
            took = (time.perf_counter() - start) * 1e3
            setup_ns += timing.setup_ns
            if repeat:
                times.append(took)
                device_times.append((timing.finished_ns - timing.started_ns) / 1e6)
        ms = statistics.median(times)
        pairs = new * past + new * (new + 1) / 2
        flops = self.flops_per_token * new + self.flops_per_pair * pairs
        return {
            "new": new, "past": past, "decoders": len(decoders), "ms": ms,
            "device_ms": statistics.median(device_times), "setup_ms": setup_ns / 1e6,
            "tflop_s": flops / ms / 1e9,
        }  # fmt: skip

    def decode(self, batch: int, context: int, steps: int = 16) -> dict:
        """Median time between ends of steps."""
        parts = tuple(self.step(row, context, 1, context + steps) for row in range(batch))
        operation = Decode(batch, batch * context, steps)
        setup_ns = self.device.run(operation, Control(), parts).setup_ns
        ends = self.device.run(operation, Control(), parts).step_ends_ns
        ms = float(np.median(np.diff(ends))) / 1e6
        kv_bytes = batch * (context + steps / 2) * self.layout.page_bytes
        moved = self.weight_bytes + kv_bytes / self.layout.page_size_tokens
        return {
            "batch": batch, "context": context, "ms": ms, "setup_ms": setup_ns / 1e6,
            "gb_s": moved / ms / 1e6,
        }  # fmt: skip


def model_rows(model: Model, limits: dict[str, float]) -> tuple[list[dict], list[dict]]:
    """Prefills and decode steps of the whole model, as graphs and eager."""
    prefills: list[dict] = []
    for past in (0, 8192):
        for new in (64, 350, 512, 1000, 2000, 3500, 8000, 16_000):
            row = model.prefill(new, past)
            graphed = new <= 1024
            with model.eager():
                other = model.prefill(new, past) if graphed else row
            row["eager_ms"] = other["ms"]
            row["graph_ms"] = row.pop("ms") if graphed else None
            row["of_matmul"] = row["tflop_s"] / limits["matmul_tflop_s"]
            prefills.append(row)
    riders = tuple(model.step(row + 1, 2048, 1, 2050) for row in range(16))
    row = model.prefill(512, 2048, riders)
    with model.eager():
        row["eager_ms"] = model.prefill(512, 2048, riders)["ms"]
    row["graph_ms"] = row.pop("ms")
    prefills.append(row)
    decodes: list[dict] = []
    for context in (1024, 4096, 16_000):
        for batch in (1, 8, 32, 64):
            row = model.decode(batch, context)
            row["of_nominal"] = row["gb_s"] / NOMINAL_HBM_GB_S
            row["of_copy"] = row["gb_s"] / limits["copy_gb_s"]
            if context == 4096 and batch in (1, 32):
                with model.eager():
                    row["eager_ms"] = model.decode(batch, context, 8)["ms"]
            decodes.append(row)
    return prefills, decodes


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


# Output -----------------------------------------------------------------------------------------


def show(title: str, rows: Sequence[dict]) -> None:
    """A table of what the rows have."""
    print(f"\n{title}")
    names = list(dict.fromkeys(name for row in rows for name in row))
    texts = [[_text(row.get(name)) for name in names] for row in rows]
    widths = [max(len(name), *(len(text[i]) for text in texts)) for i, name in enumerate(names)]
    print("  ".join(name.rjust(width) for name, width in zip(names, widths, strict=True)))
    for text in texts:
        print("  ".join(each.rjust(width) for each, width in zip(text, widths, strict=True)))


def _text(value: object) -> str:
    if value is None:
        return "-"
    return f"{value:.3f}" if isinstance(value, float) else str(value)


def main() -> int:
    """Run what the command line asks for; the exit code."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--out", help="JSON file for the results")
    parser.add_argument("--tune", action="store_true", help="try other cuts of the kernels")
    parser.add_argument("--model", default="Qwen3-8B")
    parser.add_argument("--page-size", type=int, default=16)
    parser.add_argument("--targets", choices=("check", "none"), default="check")
    options = parser.parse_args()
    start = time.monotonic()
    result: dict = {
        "command": " ".join(sys.argv),
        "date": datetime.now(UTC).date().isoformat(),
        "machine": torch.cuda.get_device_name() if GPU else "CPU, Triton's interpreter",
        "versions": {each.__name__: each.__version__ for each in (torch, triton, transformers)},
    }
    missed: list[str] = []
    if not options.tune:
        sizes = (1, 16) if GPU else (3,)
        right = {f"model, fp32, pages of {size}": check_model(size) for size in sizes}
        if GPU:
            right |= {f"kernels, bf16, pages of {size}": check_kernels(size) for size in (16, 64)}
        result["largest_difference"] = right
        show("right: largest difference", [right])
        result["check_s"] = time.monotonic() - start
    if GPU:
        limits = result["ceilings"] = ceilings()
        show("ceilings", [limits])
        if options.tune:
            result["tune"] = tune(limits["copy_gb_s"])
            show("cuts", result["tune"])
        else:
            result["kernels"] = kernel_rows(limits["copy_gb_s"])
            show("attention kernels, one layer", result["kernels"])
            model = Model(options.model, options.page_size)
            prefills, decodes = model_rows(model, limits)
            result |= {"prefill": prefills, "decode": decodes, "model_made_s": model.made_s}
            show(f"prefill, {options.model}", prefills)
            show(f"decode, {options.model}", decodes)
            print(f"\n{model.device.graphs} graphs; model made in {model.made_s:.1f} s")
            for row in decodes:
                wanted = row["batch"] == 32 and row["context"] == 4096
                if wanted and row["of_nominal"] < DECODE_TARGET:
                    missed.append(
                        f"decode of 32 at 4,096: {row['of_nominal']:.2f} of HBM's 4.8 TB/s"
                    )
    result["missed"] = missed
    result["took_s"] = time.monotonic() - start
    print(f"took {result['took_s']:.0f} s; missed: {', '.join(missed) or 'nothing'}")
    if options.out:
        Path(options.out).write_text(json.dumps(result, indent=1) + "\n")
    return 1 if missed and options.targets == "check" else 0


if __name__ == "__main__":
    sys.exit(main())
