"""The attention kernels against attention written down plainly; whether a GPU could run them."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest

import hw  # before Triton is imported

pytest.importorskip("triton")

import numpy as np
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from hw.model import paged_attention
from hw.model.paged_attention import INACTIVE, NO_CHUNK, Heads, Rows, Tuning, tuned_heads

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
EXAMPLES = 5 if DEVICE.type == "cpu" else 25
TYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
TOLERANCE = {"fp32": 2e-5, "bf16": 3e-2, "fp16": 4e-3}


def plain(q, k, v, past: int, scale: float):
    """Causal attention of (tokens, heads, dim) in float64."""
    q, k, v = (each.double() for each in (q, k, v))
    group = q.shape[1] // k.shape[1]
    k, v = k.repeat_interleave(group, 1), v.repeat_interleave(group, 1)
    score = torch.einsum("nhd,mhd->hnm", q, k) * scale
    place = torch.arange(k.shape[0], device=q.device)
    unseen = place[None, :] > past + place[: q.shape[0], None]
    weight = score.masked_fill(unseen, float("-inf")).softmax(-1)
    return torch.einsum("hnm,mhd->nhd", weight, v)


class Pages:
    """One layer's pools, full of NaN, and requests in random pages of them."""

    def __init__(self, heads: Heads, lengths: list[int], dtype, pool_dtype, seed: int) -> None:
        random = np.random.default_rng(seed)
        torch.manual_seed(seed)
        size, kv_heads = heads.page_size, heads.kv_heads
        counts = [-(-length // size) for length in lengths]
        order = random.permutation(sum(counts) + 2)
        self.heads = heads
        nothing = torch.full((len(order), size, kv_heads, heads.head_dim_k), float("nan"))
        self.k_pool = nothing.to(DEVICE, pool_dtype)
        nothing = torch.full((len(order), size, kv_heads, heads.head_dim_v), float("nan"))
        self.v_pool = nothing.to(DEVICE, pool_dtype)
        self.table = _int32(order)
        self.starts = [sum(counts[:number]) for number in range(len(counts))]
        self.k = [_random(length, kv_heads, heads.head_dim_k, dtype) for length in lengths]
        self.v = [_random(length, kv_heads, heads.head_dim_v, dtype) for length in lengths]
        self.slots = []
        for start, length in zip(self.starts, lengths, strict=True):
            place = np.arange(length)
            self.slots.append(_int32(order[start + place // size] * size + place % size))

    def store(self, request: int, first: int, count: int) -> None:
        part = slice(first, first + count)
        paged_attention.store(
            self.heads, self.k[request][part], self.v[request][part], self.k_pool, self.v_pool,
            self.slots[request][part],
        )  # fmt: skip

    def kept(self, request: int, upto: int):
        """K and V of a request as the pool can hold them."""
        there = (each[request][:upto] for each in (self.k, self.v))
        return (each.to(self.k_pool.dtype).to(each.dtype) for each in there)


def _int32(values) -> torch.Tensor:
    return torch.tensor(np.asarray(values), dtype=torch.int32, device=DEVICE)


def _random(tokens: int, heads: int, dim: int, dtype) -> torch.Tensor:
    return torch.randn(tokens, heads, dim, device=DEVICE).to(dtype)


shapes = st.sampled_from([(2, 2, 16, 16), (6, 2, 24, 16), (7, 1, 8, 8), (4, 1, 16, 40)])
dtypes = st.sampled_from(("fp32", "bf16", "fp16"))


def cut(shape, page_size: int, tuning: Tuning | None, dtype) -> Heads:
    if tuning is None:
        return tuned_heads(*shape, page_size, DEVICE, dtype)
    return Heads(*shape, page_size, 32, tuning, tuning._replace(block_m=16))


tunings = st.sampled_from((None, Tuning(16, 16, 4, 2), Tuning(32, 16, 4, 1)))
page_sizes = st.sampled_from((1, 2, 3, 7, 16, 32, 64, 128))


@given(
    parts=st.lists(st.tuples(st.integers(0, 60), st.integers(1, 40)), min_size=1, max_size=3),
    shape=shapes,
    page_size=page_sizes,
    tuning=tunings,
    dtype=dtypes,
    fp8=st.booleans(),
    seed=st.integers(0, 99),
)
@settings(deadline=None, max_examples=EXAMPLES)
def test_prefill_is_attention(parts, shape, page_size, tuning, dtype, fp8, seed):
    """`parts`: (past, new) of each chunk."""
    kind = TYPES[dtype]
    heads = cut(shape, page_size, tuning, kind)
    lengths = [past + new for past, new in parts]
    pool = Pages(heads, lengths, kind, torch.float8_e4m3fn if fp8 else kind, seed)
    new = [count for _, count in parts]
    for request, length in enumerate(lengths):
        pool.store(request, 0, length)
    tiles = [
        (c, first) for c, count in enumerate(new) for first in range(0, count, heads.tile_tokens)
    ]
    tiles.append((NO_CHUNK, 0))
    starts = np.cumsum([0, *new[:-1]])
    nothing = _int32([])
    rows = Rows(
        _int32([chunk for chunk, _ in tiles]), _int32([first for _, first in tiles]),
        _int32([past for past, _ in parts]), _int32(new), _int32(starts), _int32(pool.starts),
        nothing, nothing, pool.table,
    )  # fmt: skip
    # Strides as transformers gives them: heads outside, tokens inside.
    q = _random(heads.q_heads, sum(new), heads.head_dim_k, kind).transpose(0, 1)
    out = torch.full((sum(new), heads.q_heads, heads.head_dim_v), 7.0, device=DEVICE, dtype=kind)
    paged_attention.prefill(heads, q, pool.k_pool, pool.v_pool, rows, 0.25, out)
    for request, (past, count) in enumerate(parts):
        part = slice(int(starts[request]), int(starts[request]) + count)
        k, v = pool.kept(request, past + count)
        wanted = plain(q[part], k, v, past, 0.25)
        assert (out[part] - wanted).abs().max() <= TOLERANCE[dtype]


@given(
    lengths=st.lists(st.integers(1, 90), min_size=1, max_size=4),
    shape=shapes,
    page_size=page_sizes,
    tuning=tunings,
    dtype=dtypes,
    fp8=st.booleans(),
    seed=st.integers(0, 99),
)
@settings(deadline=None, max_examples=EXAMPLES)
def test_decode_is_attention(lengths, shape, page_size, tuning, dtype, fp8, seed):
    kind = TYPES[dtype]
    heads = cut(shape, page_size, tuning, kind)
    pool = Pages(heads, lengths, kind, torch.float8_e4m3fn if fp8 else kind, seed)
    for request, length in enumerate(lengths):
        pool.store(request, 0, length)
    batch = len(lengths) + 1
    nothing = _int32([])
    rows = Rows(
        *(nothing,) * 6,
        _int32([*(length - 1 for length in lengths), INACTIVE]),
        _int32([*pool.starts, 0]),
        pool.table,
    )
    q = _random(batch, heads.q_heads, heads.head_dim_k, kind)
    out = torch.full((batch, heads.q_heads, heads.head_dim_v), 7.0, device=DEVICE, dtype=kind)
    paged_attention.decode(heads, q, pool.k_pool, pool.v_pool, rows, 0.25, out)
    for request, length in enumerate(lengths):
        k, v = pool.kept(request, length)
        wanted = plain(q[request : request + 1], k, v, length - 1, 0.25)
        assert (out[request] - wanted).abs().max() <= TOLERANCE[dtype]
    assert not out[-1].any()


@given(
    page_size=page_sizes,
    length=st.integers(1, 70),
    fp8=st.booleans(),
    seed=st.integers(0, 99),
)
@settings(deadline=None, max_examples=EXAMPLES)
def test_store_writes_its_slots_and_no_other(page_size, length, fp8, seed):
    heads = cut((6, 3, 24, 16), page_size, None, torch.bfloat16)
    kind = torch.float8_e4m3fn if fp8 else torch.bfloat16
    pool = Pages(heads, [length], torch.bfloat16, kind, seed)
    before = pool.k_pool.clone().view(torch.uint8), pool.v_pool.clone().view(torch.uint8)
    slots = pool.slots[0].clone()
    slots[length // 2] = -1  # padding
    pool.slots[0], kept = slots, slots[slots >= 0].long()
    pool.store(0, 0, length)
    for values, there, was in zip(
        (pool.k, pool.v), (pool.k_pool, pool.v_pool), before, strict=True
    ):
        flat = there.flatten(0, 1)
        wanted = values[0][slots >= 0].to(kind)
        assert torch.equal(flat[kept].view(torch.uint8), wanted.view(torch.uint8))
        others = torch.ones(len(flat), dtype=torch.bool, device=DEVICE)
        others[kept] = False
        assert torch.equal(flat[others].view(torch.uint8), was.flatten(0, 1)[others])


def test_splits_follow_programs_and_never_contexts():
    heads = Heads(32, 8, 128, 128, 16, 1056, Tuning(128, 64, 8, 3), Tuning(16, 64, 4, 3))
    assert [heads.decode_splits(rows) for rows in (1, 8, 32, 64, 256)] == [64, 16, 4, 2, 1]
    assert [heads.prefill_splits(tokens) for tokens in (1, 64, 256, 350, 512, 2048)] == [
        8,
        8,
        4,
        2,
        2,
        1,
    ]
    assert heads.tile_tokens == 32


SPILLS = """
import hw, triton, sys
import triton.language as tl
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource, compile
from hw.model import kernels
constants = dict(Q_HEADS=32, HEADS=8, GROUP=4, GROUP_P2=4, DK=128, DK_P2=128, DV=128, DV_P2=128,
                 PAGE=16, BLOCK_N=64, OPERAND=tl.bfloat16)
for kernel, block_m, warps, splits in (
    (kernels.prefill_kernel, 128, 8, 1), (kernels.decode_kernel, 16, 4, 4),
):
    given = {k: v for k, v in (constants | dict(BLOCK_M=block_m, SPLITS=splits)).items()
             if k in kernel.arg_names}
    types = {name: "constexpr" if name in given else
             "*bf16" if name in ("q_ptr", "k_pool_ptr", "v_pool_ptr", "out_ptr") else
             "*fp32" if name in ("part_ptr", "weight_ptr") else
             "*i32" if name.endswith("_ptr") else "fp32" if name == "scale" else "i32"
             for name in kernel.arg_names}
    place = kernel.arg_names.index
    aligned = {(place(name),): [["tt.divisibility", 16]] for name in types
               if name.endswith(("_ptr", "_stride"))}
    source = ASTSource(kernel, types, {(place(k),): v for k, v in given.items()}, aligned)
    built = compile(source, target=GPUTarget("cuda", 90, 32),
                    options={"num_warps": warps, "num_stages": 3})
    ptx = built.asm["ptx"]
    print(kernel.__name__, "cubin" in built.asm, built.metadata.shared,
          "cp.async" in ptx, "wgmma.mma_async" in ptx, "mma.sync" in ptx)
"""


@pytest.mark.skipif(
    importlib.util.find_spec("triton.backends.nvidia") is None, reason="Triton without NVIDIA's"
)
def test_the_kernels_compile_for_a_gpu_and_use_its_tensor_cores(tmp_path):
    """Also where there is none: Triton brings the assembler."""
    environment = os.environ | {
        "TRITON_INTERPRET": "0",
        "TRITON_CACHE_DIR": str(tmp_path),
        "PYTHONPATH": str(Path(hw.__file__).parent.parent),
    }
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", SPILLS],
        env=environment, capture_output=True, text=True, check=False, timeout=120,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    prefill, decode = (line.split() for line in done.stdout.splitlines())
    shared_of_an_sm = 227 << 10
    assert prefill[:2] == ["prefill_kernel", "True"]
    assert prefill[3:] == ["True", "True", "False"]
    assert int(prefill[2]) <= shared_of_an_sm // 2  # two programs to a multiprocessor
    assert decode[:2] == ["decode_kernel", "True"]
    assert decode[3:] == ["True", "False", "True"]
    assert int(decode[2]) <= shared_of_an_sm // 4
