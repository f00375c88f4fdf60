"""The Triton kernels of paged attention, which read K and V where they lie, page by page.

    position n of a request -> page table[n // PAGE] -> slot = page * PAGE + n % PAGE -> its bytes

    store     a program for a few new tokens
    prefill   a program for each (tile of new tokens, KV head, split of the keys)
    decode    a program for each (request, KV head, split of the keys)
    merge     a program for each (token, query head): what its splits found, weighted
    advance   a program for 128 decoding requests: their next token, its position and its slot

The query heads that share a KV head are rows of one tile, so that K and V are read once for all of
them. Softmax is computed as in FlashAttention-2 (arXiv 2307.08691), splits are merged as in
Flash-Decoding. A row that stands for nothing (padding) has a `past` below 0, a tile the chunk -1.

A call of another kernel function, Triton's own included (cdiv, zeros), costs the interpreter thirty
operations: there are few. Refuses to know layers, requests and pools: a kernel gets one layer's
tensors of shape (pages, page_size, kv_heads, head_dim), from `hw.model.paged_attention`.
"""

# pyright: reportArgumentType=false, reportIndexIssue=false, reportCallIssue=false
# pyright: reportOptionalMemberAccess=false, reportAttributeAccessIssue=false
# pyright: reportOperatorIssue=false
# Triton's language is typed for its compiler. Capitals are what Triton's own kernels use for
# constants of a kernel.
# ruff: noqa: N803
from __future__ import annotations

import triton  # isort: skip
import triton.language as tl  # isort: skip


@triton.jit(do_not_specialize=["tokens"])
def store_kernel(
    k_ptr,  # new K, of the pool's type: (tokens, heads, DK), by strides
    v_ptr,
    k_pool_ptr,  # one layer's pages
    v_pool_ptr,
    slots_ptr,  # int32 (tokens,): where each token goes, -1 for nowhere
    k_token_stride,
    k_head_stride,
    v_token_stride,
    v_head_stride,
    tokens,
    HEADS: tl.constexpr,
    HEADS_P2: tl.constexpr,  # ..._P2: the next power of two
    DK: tl.constexpr,
    DK_P2: tl.constexpr,
    DV: tl.constexpr,
    DV_P2: tl.constexpr,
    BLOCK: tl.constexpr,  # tokens of a program
):
    row = tl.arange(0, BLOCK * HEADS_P2)
    token = tl.program_id(0).to(tl.int64) * BLOCK + row // HEADS_P2
    head = row % HEADS_P2
    slot = tl.load(slots_ptr + token, mask=token < tokens, other=-1).to(tl.int64)
    valid = (slot >= 0) & (head < HEADS)
    dk = tl.arange(0, DK_P2)
    dv = tl.arange(0, DV_P2)
    keep_k = valid[:, None] & (dk < DK)[None, :]
    keep_v = valid[:, None] & (dv < DV)[None, :]
    k_at = k_ptr + (token * k_token_stride + head * k_head_stride)[:, None] + dk[None, :]
    v_at = v_ptr + (token * v_token_stride + head * v_head_stride)[:, None] + dv[None, :]
    k = tl.load(k_at, mask=keep_k)
    v = tl.load(v_at, mask=keep_v)
    place = slot * HEADS + head
    tl.store(k_pool_ptr + place[:, None] * DK + dk[None, :], k, mask=keep_k)
    tl.store(v_pool_ptr + place[:, None] * DV + dv[None, :], v, mask=keep_v)


@triton.jit
def _walk(
    q,  # (BLOCK_M, DK_P2)
    k_head_ptr,  # one layer's pages, from this KV head on
    v_head_ptr,
    table_ptr,  # this request's pages
    low,  # positions low <= n < high; low is a multiple of BLOCK_N
    high,
    last,  # int32 (BLOCK_M,): the last position that a row sees
    scale,
    top,  # (BLOCK_M,): largest score so far, base 2
    total,  # (BLOCK_M,): sum of weights so far
    acc,  # (BLOCK_M, DV_P2): weighted sum so far
    HEADS: tl.constexpr,
    DK: tl.constexpr,
    DK_P2: tl.constexpr,
    DV: tl.constexpr,
    DV_P2: tl.constexpr,
    PAGE: tl.constexpr,
    BLOCK_N: tl.constexpr,
    OPERAND: tl.constexpr,  # element type of what is multiplied
    MASKED: tl.constexpr,  # whether some row does not see some position of low .. high
):
    dk = tl.arange(0, DK_P2)
    dv = tl.arange(0, DV_P2)
    within = tl.arange(0, BLOCK_N)
    for start in range(low, high, BLOCK_N):
        n = start + within
        if PAGE % BLOCK_N == 0:
            page = tl.load(table_ptr + start // PAGE).to(tl.int64)
            slot = page * PAGE + start % PAGE + within
        elif MASKED:
            page = tl.load(table_ptr + n // PAGE, mask=n < high, other=0).to(tl.int64)
            slot = page * PAGE + n % PAGE
        else:
            page = tl.load(table_ptr + n // PAGE).to(tl.int64)
            slot = page * PAGE + n % PAGE
        k_at = k_head_ptr + slot[:, None] * (HEADS * DK) + dk[None, :]
        v_at = v_head_ptr + slot[:, None] * (HEADS * DV) + dv[None, :]
        # What lies behind `high` may be anything, also NaN, which a weight of 0 would not undo.
        if MASKED:
            k = tl.load(k_at, mask=(n < high)[:, None] & (dk < DK)[None, :], other=0.0)
            v = tl.load(v_at, mask=(n < high)[:, None] & (dv < DV)[None, :], other=0.0)
        elif DK == DK_P2 and DV == DV_P2:
            k = tl.load(k_at)
            v = tl.load(v_at)
        else:
            k = tl.load(k_at, mask=(dk < DK)[None, :], other=0.0)
            v = tl.load(v_at, mask=(dv < DV)[None, :], other=0.0)
        score = tl.dot(q, tl.trans(k.to(OPERAND)), input_precision="ieee") * scale
        if MASKED:
            seen = (n[None, :] <= last[:, None]) & (n < high)[None, :]
            score = tl.where(seen, score, float("-inf"))
        new_top = tl.maximum(top, tl.max(score, 1))
        # A row that has seen nothing yet has a top of -inf: -inf - -inf would be NaN.
        base = tl.where(new_top == float("-inf"), 0.0, new_top)
        weight = tl.math.exp2(score - base[:, None])
        shrink = tl.math.exp2(top - base)
        total = total * shrink + tl.sum(weight, 1)
        acc = acc * shrink[:, None]
        acc = tl.dot(weight.to(OPERAND), v.to(OPERAND), acc, input_precision="ieee")
        top = new_top
    return top, total, acc


@triton.jit
def _finish(
    top,
    total,
    acc,
    token,  # int64 (BLOCK_M,): row of the output
    head,  # (BLOCK_M,): query head
    valid,
    split,
    out_ptr,  # (tokens, Q_HEADS, DV)
    part_ptr,  # float32 (tokens, Q_HEADS, SPLITS, DV)
    weight_ptr,  # float32 (tokens, Q_HEADS, SPLITS): log2 of the sum of exp2 of the scores
    Q_HEADS: tl.constexpr,
    DV: tl.constexpr,
    DV_P2: tl.constexpr,
    SPLITS: tl.constexpr,
):
    """Write a tile: to the output, or for `merge_kernel`."""
    dv = tl.arange(0, DV_P2)
    keep = valid[:, None] & (dv < DV)[None, :]
    some = tl.where(total > 0.0, total, 1.0)  # 1 where nothing was seen
    acc = acc / some[:, None]
    row = token * Q_HEADS + head
    if SPLITS == 1:
        at = out_ptr + row[:, None] * DV + dv[None, :]
        tl.store(at, acc.to(out_ptr.dtype.element_ty), mask=keep)
    else:
        row = row * SPLITS + split
        tl.store(part_ptr + row[:, None] * DV + dv[None, :], acc, mask=keep)
        weight = tl.where(total > 0.0, top + tl.math.log2(some), float("-inf"))
        tl.store(weight_ptr + row, weight, mask=valid)


@triton.jit
def prefill_kernel(
    q_ptr,  # (tokens, Q_HEADS, DK), by strides
    k_pool_ptr,
    v_pool_ptr,
    out_ptr,
    part_ptr,
    weight_ptr,
    tile_chunk_ptr,  # int32 (tiles,): the chunk of a tile, -1 for none
    tile_first_ptr,  # int32 (tiles,): its first token within the chunk
    past_ptr,  # int32 (chunks,)
    new_ptr,  # int32 (chunks,): new tokens
    query_ptr,  # int32 (chunks,): where its tokens begin in q
    start_ptr,  # int32 (chunks,): where its pages begin in the table
    table_ptr,  # int32: page tables, one after the other
    scale,
    q_token_stride,
    q_head_stride,
    Q_HEADS: tl.constexpr,
    HEADS: tl.constexpr,
    GROUP: tl.constexpr,  # query heads of a KV head
    GROUP_P2: tl.constexpr,
    DK: tl.constexpr,
    DK_P2: tl.constexpr,
    DV: tl.constexpr,
    DV_P2: tl.constexpr,
    PAGE: tl.constexpr,
    BLOCK_M: tl.constexpr,  # rows of a tile: BLOCK_M // GROUP_P2 tokens
    BLOCK_N: tl.constexpr,
    SPLITS: tl.constexpr,
    OPERAND: tl.constexpr,
):
    tile = tl.program_id(0)
    kv_head = tl.program_id(1)
    split = tl.program_id(2)
    chunk = tl.load(tile_chunk_ptr + tile)
    if chunk >= 0:
        first = tl.load(tile_first_ptr + tile)
        past = tl.load(past_ptr + chunk)
        new = tl.load(new_ptr + chunk)
        query = tl.load(query_ptr + chunk).to(tl.int64)
        table = table_ptr + tl.load(start_ptr + chunk)
        row = tl.arange(0, BLOCK_M)
        token = first + row // GROUP_P2
        member = row % GROUP_P2
        head = kv_head * GROUP + member
        valid = (token < new) & (member < GROUP)
        dk = tl.arange(0, DK_P2)
        q_at = q_ptr + (query + token)[:, None] * q_token_stride
        q_at += head[:, None] * q_head_stride + dk[None, :]
        q = tl.load(q_at, mask=valid[:, None] & (dk < DK)[None, :], other=0.0).to(OPERAND)

        end = past + tl.minimum(first + BLOCK_M // GROUP_P2, new)
        width = (end + BLOCK_N * SPLITS - 1) // (BLOCK_N * SPLITS) * BLOCK_N
        low = split * width
        high = tl.minimum(low + width, end)
        # Up to here every row sees every position: no masks.
        open_to = tl.minimum(high, (past + first + 1) // BLOCK_N * BLOCK_N)
        open_to = tl.maximum(open_to, low)
        last = past + token
        top = tl.full((BLOCK_M,), float("-inf"), tl.float32)
        total = tl.full((BLOCK_M,), 0.0, tl.float32)
        acc = tl.full((BLOCK_M, DV_P2), 0.0, tl.float32)
        k_head = k_pool_ptr + kv_head * DK
        v_head = v_pool_ptr + kv_head * DV
        top, total, acc = _walk(
            q, k_head, v_head, table, low, open_to, last, scale, top, total, acc,
            HEADS, DK, DK_P2, DV, DV_P2, PAGE, BLOCK_N, OPERAND, False,
        )  # fmt: skip
        top, total, acc = _walk(
            q, k_head, v_head, table, open_to, high, last, scale, top, total, acc,
            HEADS, DK, DK_P2, DV, DV_P2, PAGE, BLOCK_N, OPERAND, True,
        )  # fmt: skip
        _finish(
            top, total, acc, query + token, head, valid, split, out_ptr, part_ptr, weight_ptr,
            Q_HEADS, DV, DV_P2, SPLITS,
        )  # fmt: skip


@triton.jit
def decode_kernel(
    q_ptr,  # (rows, Q_HEADS, DK), by strides
    k_pool_ptr,
    v_pool_ptr,
    out_ptr,
    part_ptr,
    weight_ptr,
    past_ptr,  # int32 (rows,): tokens before the new one; below 0 for nothing
    start_ptr,  # int32 (rows,): where its pages begin in the table
    table_ptr,
    scale,
    q_token_stride,
    q_head_stride,
    Q_HEADS: tl.constexpr,
    HEADS: tl.constexpr,
    GROUP: tl.constexpr,
    DK: tl.constexpr,
    DK_P2: tl.constexpr,
    DV: tl.constexpr,
    DV_P2: tl.constexpr,
    PAGE: tl.constexpr,
    BLOCK_M: tl.constexpr,  # at least GROUP, and what a dot takes
    BLOCK_N: tl.constexpr,
    SPLITS: tl.constexpr,
    OPERAND: tl.constexpr,
):
    token = tl.program_id(0).to(tl.int64)
    kv_head = tl.program_id(1)
    split = tl.program_id(2)
    past = tl.load(past_ptr + token)
    end = tl.maximum(past + 1, 0)
    table = table_ptr + tl.load(start_ptr + token)
    member = tl.arange(0, BLOCK_M)
    head = kv_head * GROUP + member
    valid = member < GROUP
    dk = tl.arange(0, DK_P2)
    q_at = q_ptr + token * q_token_stride + head[:, None] * q_head_stride + dk[None, :]
    q = tl.load(q_at, mask=valid[:, None] & (dk < DK)[None, :], other=0.0).to(OPERAND)

    width = (end + BLOCK_N * SPLITS - 1) // (BLOCK_N * SPLITS) * BLOCK_N
    low = split * width
    high = tl.minimum(low + width, end)
    open_to = tl.maximum(high // BLOCK_N * BLOCK_N, low)
    last = past + tl.full((BLOCK_M,), 0, tl.int32)
    top = tl.full((BLOCK_M,), float("-inf"), tl.float32)
    total = tl.full((BLOCK_M,), 0.0, tl.float32)
    acc = tl.full((BLOCK_M, DV_P2), 0.0, tl.float32)
    k_head = k_pool_ptr + kv_head * DK
    v_head = v_pool_ptr + kv_head * DV
    top, total, acc = _walk(
        q, k_head, v_head, table, low, open_to, last, scale, top, total, acc,
        HEADS, DK, DK_P2, DV, DV_P2, PAGE, BLOCK_N, OPERAND, False,
    )  # fmt: skip
    top, total, acc = _walk(
        q, k_head, v_head, table, open_to, high, last, scale, top, total, acc,
        HEADS, DK, DK_P2, DV, DV_P2, PAGE, BLOCK_N, OPERAND, True,
    )  # fmt: skip
    _finish(
        top, total, acc, token + tl.full((BLOCK_M,), 0, tl.int64), head, valid, split,
        out_ptr, part_ptr, weight_ptr, Q_HEADS, DV, DV_P2, SPLITS,
    )  # fmt: skip


@triton.jit
def merge_kernel(
    part_ptr,
    weight_ptr,
    out_ptr,
    Q_HEADS: tl.constexpr,
    DV: tl.constexpr,
    DV_P2: tl.constexpr,
    SPLITS: tl.constexpr,  # a power of two
):
    row = tl.program_id(0).to(tl.int64) * Q_HEADS + tl.program_id(1)
    split = tl.arange(0, SPLITS)
    dv = tl.arange(0, DV_P2)
    weight = tl.load(weight_ptr + row * SPLITS + split)
    top = tl.max(weight, 0)
    weight = tl.math.exp2(weight - tl.where(top == float("-inf"), 0.0, top))
    at = part_ptr + (row * SPLITS + split)[:, None] * DV + dv[None, :]
    part = tl.load(at, mask=(dv < DV)[None, :], other=0.0)
    total = tl.sum(weight, 0)
    mean = tl.sum(part * weight[:, None], 0) / tl.where(total > 0.0, total, 1.0)
    tl.store(out_ptr + row * DV + dv, mean.to(out_ptr.dtype.element_ty), mask=dv < DV)


@triton.jit(do_not_specialize=["rows"])
def advance_kernel(
    past_ptr,  # int32 (rows,): one less than the tokens before the step, in and out
    done_ptr,  # int32 (rows,): steps done, in and out
    start_ptr,
    table_ptr,
    given_ptr,  # int32 (steps, rows): the tokens that the steps take
    id_ptr,  # int32 (rows,): this step's tokens, out
    position_ptr,  # out
    slot_ptr,  # out
    rows,
    PAGE: tl.constexpr,
    BLOCK: tl.constexpr,
):
    row = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mine = row < rows
    past = tl.load(past_ptr + row, mask=mine, other=-2)
    done = tl.load(done_ptr + row, mask=mine, other=0)
    active = past >= -1
    past = tl.where(active, past + 1, past)
    position = tl.where(active, past, 0)
    start = tl.load(start_ptr + row, mask=mine, other=0)
    page = tl.load(table_ptr + start + position // PAGE, mask=mine & active, other=0)
    slot = tl.where(active, page * PAGE + position % PAGE, -1)
    token = tl.load(given_ptr + done * rows + row, mask=mine & active, other=0)
    tl.store(id_ptr + row, token, mask=mine)
    tl.store(position_ptr + row, position, mask=mine)
    tl.store(slot_ptr + row, slot, mask=mine)
    tl.store(past_ptr + row, past, mask=mine)
    tl.store(done_ptr + row, done + 1, mask=mine)
