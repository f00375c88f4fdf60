"""The Triton kernels of the synthetic device: bytes that follow from a token's seed, and time.

    word w of plane p (K or V of a layer) of a token = mix(seed of the token, p, w)

Words are written and compared as integers: any dtype is bit-exact, and no number is ever made of
them. Refuses to know what a seed stands for.
"""

# pyright: reportArgumentType=false, reportIndexIssue=false, reportCallIssue=false
# pyright: reportAttributeAccessIssue=false, reportOperatorIssue=false
# Triton's language is typed for its compiler; its kernels write constants in capitals.
# ruff: noqa: N803
from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def _pattern(seed, plane, word, WORDS: tl.constexpr):
    """uint32 of shape (tokens, words). The mixing is that of Wellons' lowbias32."""
    x = (word + plane * WORDS).to(tl.uint32)[None, :] * 2654435761
    x = x ^ seed[:, None]
    x = (x ^ (x >> 16)) * 2146121005
    x = (x ^ (x >> 15)) * 2221713035
    return x ^ (x >> 16)


@triton.jit(do_not_specialize=["tokens", "v_start", "k_pitch", "v_pitch"])
def pattern_kernel(
    pool_ptr,  # the L1 pool as words
    seeds_ptr,  # int32 (tokens,)
    slots_ptr,  # int32 (tokens,): page * page_size + place within the page
    wrong_ptr,  # int32 (tokens,): words that differ, counted up
    tokens,
    layers,
    v_start,  # words from the pool's start to its V
    k_pitch,  # words from K of one layer to K of the next
    v_pitch,
    K_WORDS: tl.constexpr,  # of a token in a layer
    V_WORDS: tl.constexpr,  # 0 without V
    WORDS_P2: tl.constexpr,
    BLOCK: tl.constexpr,  # tokens of a program
    CHECK: tl.constexpr,  # compare instead of write
):
    row = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    plane = tl.program_id(1)
    mine = row < tokens
    seed = tl.load(seeds_ptr + row, mask=mine, other=0).to(tl.uint32)
    slot = tl.load(slots_ptr + row, mask=mine, other=0).to(tl.int64)
    word = tl.arange(0, WORDS_P2)
    if plane < layers:
        start = slot * K_WORDS + plane.to(tl.int64) * k_pitch
        keep = mine[:, None] & (word < K_WORDS)[None, :]
    else:
        start = slot * V_WORDS + v_start + (plane - layers).to(tl.int64) * v_pitch
        keep = mine[:, None] & (word < V_WORDS)[None, :]
    at = pool_ptr + start[:, None] + word[None, :]
    value = _pattern(seed, plane, word, WORDS_P2).to(pool_ptr.dtype.element_ty)
    if CHECK:
        there = tl.load(at, mask=keep, other=0)
        wrong = tl.sum(((there != value) & keep).to(tl.int32), 1)
        tl.atomic_add(wrong_ptr + row, wrong, mask=mine & (wrong > 0))
    else:
        tl.store(at, value, mask=keep)


@triton.jit
def stamp_kernel(at_ptr):  # int64 (1,): the GPU's time in ns, out
    now = tl.inline_asm_elementwise(
        "mov.u64 $0, %globaltimer;", "=l", [], dtype=tl.int64, is_pure=False, pack=1
    )
    tl.store(at_ptr, now)


@triton.jit(do_not_specialize=["duration_ns"])
def spin_kernel(
    at_ptr,  # int64 (1,): the GPU's time at which the work began; when it ended, out
    duration_ns,
):
    end = tl.load(at_ptr) + duration_ns
    now = end - 1
    while now < end:
        now = tl.inline_asm_elementwise(
            "mov.u64 $0, %globaltimer;", "=l", [], dtype=tl.int64, is_pure=False, pack=1
        )
    tl.store(at_ptr, now)
