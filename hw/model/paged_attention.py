"""Launches of the paged-attention kernels: how they are cut, and for whom.

Sizes of launches and of work buffers follow the tokens and requests of a step, never its contexts.
Refuses to know layers, requests and pools: a function gets one layer's tensors of shape
(pages, page_size, kv_heads, head_dim), contiguous, and `Rows` that say what each query is.
"""

# pyright: reportArgumentType=false, reportIndexIssue=false, reportCallIssue=false
# A kernel's launch is not typed.
from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
import triton.language as tl

from hw.interpreter import launching
from hw.model import kernels

LOG2_E = 1.4426950408889634
INACTIVE = -2  # the `past` of a decode row that stands for nothing
NO_CHUNK = -1  # the chunk of a tile that stands for nothing
_TYPES = {torch.float32: tl.float32, torch.float16: tl.float16, torch.bfloat16: tl.bfloat16}


class Tuning(NamedTuple):
    """How a kernel is cut: rows and keys of a tile, warps, stages of its pipeline."""

    block_m: int
    block_n: int
    warps: int
    stages: int


def _power_of_two(number: int) -> int:
    return 1 << max(number - 1, 0).bit_length()


@dataclass(frozen=True, slots=True)
class Heads:
    """The shape of a model's attention, page size included, and how its kernels are cut.

    `programs`: how many programs a launch should have at least, where splitting the keys gives
    them.
    """

    q_heads: int
    kv_heads: int
    head_dim_k: int
    head_dim_v: int
    page_size: int
    programs: int
    prefill: Tuning
    decode: Tuning

    @property
    def group(self) -> int:
        """Query heads of a KV head."""
        return self.q_heads // self.kv_heads

    @property
    def tile_tokens(self) -> int:
        """New tokens of one prefill tile."""
        return max(1, self.prefill.block_m // _power_of_two(self.group))

    def prefill_splits(self, tokens: int) -> int:
        """Splits for a prefill of so many tokens, padding included: a few on a long past would keep
        few multiprocessors busy. A power of two up to 8.
        """
        return self._splits(self.programs // 4, -(-tokens // self.tile_tokens), 8)

    def decode_splits(self, rows: int) -> int:
        """Splits for a decode batch: a power of two up to 64."""
        return self._splits(self.programs, rows, 64)

    def _splits(self, wanted: int, units: int, most: int) -> int:
        each = wanted // max(1, units * self.kv_heads)
        return min(most, 1 << max(each.bit_length() - 1, 0))


def tuned_heads(
    q_heads: int,
    kv_heads: int,
    head_dim_k: int,
    head_dim_v: int,
    page_size: int,
    device: torch.device,
    dtype: torch.dtype,
) -> Heads:
    """Heads with the cut that suits the device: tuned on an H200 for 16-bit elements and heads of
    128; large tiles for the interpreter, to which a program is as dear whatever it holds.
    """
    group = _power_of_two(q_heads // kv_heads)
    if device.type == "cpu":
        prefill, decode, programs = Tuning(64, 64, 4, 1), Tuning(16, 64, 4, 1), 1
    else:
        programs = 8 * torch.cuda.get_device_properties(device).multi_processor_count
        if dtype.itemsize > 2:  # no tensor cores: what the registers hold
            prefill, decode = Tuning(32, 32, 8, 1), Tuning(16, 32, 8, 1)
        elif max(head_dim_k, head_dim_v) > 128:
            prefill, decode = Tuning(64, 64, 8, 2), Tuning(16, 32, 4, 2)
        else:
            prefill, decode = Tuning(128, 64, 8, 3), Tuning(16, 64, 4, 3)
    prefill = prefill._replace(block_m=max(prefill.block_m, group))
    decode = decode._replace(block_m=max(decode.block_m, group))
    return Heads(
        q_heads, kv_heads, head_dim_k, head_dim_v, page_size, programs, prefill, decode
    )  # fmt: skip


class Rows(NamedTuple):
    """int32 tensors that say what the rows of q are; see the kernels' arguments.

    The tile arrays have one entry for each tile, the chunk arrays one for each chunk, the decode
    arrays one for each decoding request.
    """

    tile_chunk: torch.Tensor
    tile_first: torch.Tensor
    chunk_past: torch.Tensor
    chunk_new: torch.Tensor
    chunk_query: torch.Tensor
    chunk_start: torch.Tensor
    decode_past: torch.Tensor
    decode_start: torch.Tensor
    table: torch.Tensor


def _dot_width(dim: int) -> int:
    return max(16, _power_of_two(dim))


def store(
    heads: Heads,
    k: torch.Tensor,
    v: torch.Tensor,
    k_pool: torch.Tensor,
    v_pool: torch.Tensor,
    slots: torch.Tensor,
) -> None:
    """Put new K and V, of shape (tokens, kv_heads, head_dim), into their slots."""
    if k.dtype != k_pool.dtype:  # PyTorch rounds to fp8, on every device in the same way
        k, v = k.to(k_pool.dtype), v.to(v_pool.dtype)
    tokens = k.shape[0]
    block = 64 if k.device.type == "cpu" else 2
    assert k.stride(2) == v.stride(2) == 1
    with launching(k.device):
        kernels.store_kernel[(-(-tokens // block),)](
            k, v, k_pool, v_pool, slots, k.stride(0), k.stride(1), v.stride(0), v.stride(1), tokens,
            HEADS=heads.kv_heads, HEADS_P2=_power_of_two(heads.kv_heads),
            DK=heads.head_dim_k, DK_P2=_power_of_two(heads.head_dim_k),
            DV=heads.head_dim_v, DV_P2=_power_of_two(heads.head_dim_v),
            BLOCK=block, num_warps=4,
        )  # fmt: skip


def prefill(
    heads: Heads,
    q: torch.Tensor,
    k_pool: torch.Tensor,
    v_pool: torch.Tensor,
    rows: Rows,
    scale: float,
    out: torch.Tensor,
) -> None:
    """Attention of the chunks' tokens over all before them and themselves, `store` being done.

    q: (tokens, q_heads, head_dim_k). out: (tokens, q_heads, head_dim_v), contiguous; rows that no
    tile covers stay as they are, or get rubbish.
    """
    tokens, tiles = q.shape[0], rows.tile_chunk.shape[0]
    splits = heads.prefill_splits(tokens)
    part, weight = _split_buffers(heads, tokens, splits, q.device)
    block_m, block_n, warps, stages = heads.prefill
    assert q.stride(2) == 1
    assert out.is_contiguous()
    with launching(q.device):
        kernels.prefill_kernel[(tiles, heads.kv_heads, splits)](
            q, k_pool, v_pool, out, part, weight, rows.tile_chunk, rows.tile_first,
            rows.chunk_past, rows.chunk_new, rows.chunk_query, rows.chunk_start, rows.table,
            scale * LOG2_E, q.stride(0), q.stride(1), Q_HEADS=heads.q_heads, HEADS=heads.kv_heads,
            GROUP=heads.group, GROUP_P2=_power_of_two(heads.group),
            DK=heads.head_dim_k, DK_P2=_dot_width(heads.head_dim_k),
            DV=heads.head_dim_v, DV_P2=_dot_width(heads.head_dim_v), PAGE=heads.page_size,
            BLOCK_M=block_m, BLOCK_N=block_n, SPLITS=splits, OPERAND=_operand(q),
            num_warps=warps, num_stages=stages,
        )  # fmt: skip
        _merge(heads, tokens, splits, part, weight, out)


def decode(
    heads: Heads,
    q: torch.Tensor,
    k_pool: torch.Tensor,
    v_pool: torch.Tensor,
    rows: Rows,
    scale: float,
    out: torch.Tensor,
) -> None:
    """Attention of one new token of each request, `store` being done. Shapes: see `prefill`; rows
    that stand for nothing get 0.
    """
    batch = q.shape[0]
    splits = heads.decode_splits(batch)
    part, weight = _split_buffers(heads, batch, splits, q.device)
    block_m, block_n, warps, stages = heads.decode
    assert q.stride(2) == 1
    assert out.is_contiguous()
    with launching(q.device):
        kernels.decode_kernel[(batch, heads.kv_heads, splits)](
            q, k_pool, v_pool, out, part, weight, rows.decode_past, rows.decode_start, rows.table,
            scale * LOG2_E, q.stride(0), q.stride(1), Q_HEADS=heads.q_heads, HEADS=heads.kv_heads,
            GROUP=heads.group, DK=heads.head_dim_k, DK_P2=_dot_width(heads.head_dim_k),
            DV=heads.head_dim_v, DV_P2=_dot_width(heads.head_dim_v), PAGE=heads.page_size,
            BLOCK_M=block_m, BLOCK_N=block_n, SPLITS=splits, OPERAND=_operand(q),
            num_warps=warps, num_stages=stages,
        )  # fmt: skip
        _merge(heads, batch, splits, part, weight, out)


def advance(
    heads: Heads,
    rows: Rows,
    done: torch.Tensor,
    given: torch.Tensor,
    ids: torch.Tensor,
    positions: torch.Tensor,
    slots: torch.Tensor,
) -> None:
    """Go on to the next decode step: `rows.decode_past` and `done` count one up, and `ids`,
    `positions` and `slots`, int32 tensors of shape (rows,), become that step's. `given`: int32
    (steps, rows), flat.
    """
    batch = ids.shape[0]
    block = 128
    with launching(ids.device):
        kernels.advance_kernel[(-(-batch // block),)](
            rows.decode_past, done, rows.decode_start, rows.table, given, ids, positions, slots,
            batch, PAGE=heads.page_size, BLOCK=block, num_warps=4,
        )  # fmt: skip


def _operand(q: torch.Tensor) -> Any:
    """The type that the kernels multiply in: that of q, but for Triton's interpreter, which takes
    the bits of a bfloat16 for a number, float32.
    """
    return tl.float32 if q.device.type == "cpu" else _TYPES[q.dtype]


def _split_buffers(
    heads: Heads, tokens: int, splits: int, device: torch.device
) -> tuple[torch.Tensor, torch.Tensor]:
    """Room for what the splits find: its size depends on the launch's programs, not on contexts."""
    rows = tokens * heads.q_heads * splits if splits > 1 else 0
    part = torch.empty(max(1, rows * heads.head_dim_v), dtype=torch.float32, device=device)
    return part, torch.empty(max(1, rows), dtype=torch.float32, device=device)


def _merge(
    heads: Heads,
    tokens: int,
    splits: int,
    part: torch.Tensor,
    weight: torch.Tensor,
    out: torch.Tensor,
) -> None:
    if splits > 1:
        kernels.merge_kernel[(tokens, heads.q_heads)](
            part, weight, out, Q_HEADS=heads.q_heads, DV=heads.head_dim_v,
            DV_P2=_power_of_two(heads.head_dim_v), SPLITS=splits,
            num_warps=4 if splits >= 16 else 1,
        )  # fmt: skip
