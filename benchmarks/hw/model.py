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
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import hw  # noqa: F401  # before Triton is imported

# isort: split
import numpy as np
import torch
import transformers
import triton
from model_kernels import DEVICE, GIB, GPU, ceilings, check_kernels, kernel_rows, tune

from hicache.operations import Chunk, Decode, PageRuns, Prefill
from hw.device import Control, Step
from hw.model.attention import NAME
from hw.model.buffers import Sizes
from hw.model.build import config_of, make_model, random_model
from hw.model.device import ModelDevice
from hw.model.graphs import Buckets
from hw.pools import DevicePool, KvLayout
from hw.transfers.driver import Driver
from hw.transfers.layerwise import LayerLoad
from hw.transfers.queues import make_queue

NOMINAL_HBM_GB_S = 4800.0
DECODE_TARGET = 0.5


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


# How fast? --------------------------------------------------------------------------------------


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
        queue = make_queue(DEVICE, Driver())
        load = LayerLoad(self.layout.layers)  # one that has come
        load.begin(queue)
        for _ in range(load.layers):
            load.loaded()
        load.end(lambda: None, 0)
        load.finish()
        self.device.loads_of = lambda number: load.wait_layer
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

    def prefill(self, new: int, past: int, decoders: tuple[Step, ...] = (), load: int = -1) -> dict:
        """Median of the blocking call, ms. load: 0 for one whose layers wait, if for nothing."""
        steps = (self.step(0, past, new, past + new), *decoders)
        context = sum(each.past_tokens for each in decoders)
        operation = Prefill((Chunk(0, new, past),), new, len(decoders), context, load)
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
    """Prefills and decode steps of the whole model, as graphs, as graphs in parts between which
    layers wait, and eager.
    """
    prefills: list[dict] = []
    for past in (0, 8192):
        for new in (64, 350, 512, 1000, 2000, 3500, 8000, 16_000):
            row = model.prefill(new, past)
            graphed = new <= 1024
            with model.eager():
                other = model.prefill(new, past) if graphed else row
            row["eager_ms"] = other["ms"]
            row["graph_ms"] = row.pop("ms") if graphed else None
            in_parts = new <= max(Buckets().waiting_tokens)
            row["parts_ms"] = model.prefill(new, past, load=0)["ms"] if in_parts else None
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
