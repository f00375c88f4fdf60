"""One Triton kernel that moves pages between the two layouts, in either direction.

                 device pool (L1)                          packed side
        [K/V][layer][page][piece]          [page][layer][K/V][piece]: L2 itself, or a work buffer

It moves words, not numbers: any dtype is bit-exact, and a thread moves 16 bytes at a time where all
pieces are multiples of 16. A tile is ROWS pieces by COLS words; tiles are numbered so that those
next to each other are neighbours on the packed side, which may be behind PCIe. With few programs
each walks over many tiles; with one program a tile the GPU's scheduler spreads them.

On a GPU the kernel is compiled, on CPU memory Triton's interpreter runs it, so both can be had in
one process. The interpreter keeps its state in Triton's own module: one kernel at a time in a
process, whoever launches it, hence INTERPRETER. Addresses go in as numbers: the interpreter would
copy a whole pool onto itself at the end, and with it undo what another thread wrote meanwhile.
"""

# No `from __future__ import annotations`: Triton reads the annotations themselves.
# pyright: reportOperatorIssue=false
# In a kernel numbers, constants and tensors mix as Triton's compiler lets them.
# ruff: noqa: N803  # what a kernel is compiled for is written in capitals, as Triton's users do
import threading
import time
from typing import Any, NamedTuple

import torch
import triton
import triton.language as tl
from triton.runtime.interpreter import InterpretedFunction

from hicache.errors import InputError
from hw.pools import KvLayout

# Held around every kernel that Triton's interpreter runs.
INTERPRETER = threading.RLock()
# A tile is 16 KiB: with 128 threads, 8 loads of 16 bytes each are under way in a thread.
TILE_BYTES = 16 << 10
WARPS = 4


def _move_pages(
    device_address,  # int: where the device pool begins
    packed_address,  # int: where layer 0 of page 0 of the packed side would begin
    device_pages,  # *int32 (first + count,): page numbers in the device pool
    packed_pages,  # *int32 (first + count,): page numbers on the packed side, unless DENSE
    first,  # int: where in both lists this part begins
    count,  # int: pages to move
    layer_first,  # int: the first layer to move
    layer_count,  # int: layers to move
    pool_pages,  # int: pages of the device pool
    v_start,  # int, words: from the pool's start to its V pieces
    packed_stride,  # int, words: from one page of the packed side to the next
    TO_DEVICE: tl.constexpr,  # load (packed -> device) or store
    DENSE: tl.constexpr,  # the packed side's pages are 0 .. count - 1
    BITS: tl.constexpr,  # of a word: 8, 16, 32, 64
    VECTOR: tl.constexpr,  # words that every offset is a multiple of
    K_WORDS: tl.constexpr,  # words of a K piece
    V_WORDS: tl.constexpr,  # words of a V piece, 0 without V
    PARTS: tl.constexpr,  # 2: K and V; 1: the latent
    ROWS: tl.constexpr,  # pieces of a tile
    COLS: tl.constexpr,  # words of a tile's row
    COL_TILES: tl.constexpr,  # tiles side by side that cover the longer piece
):
    if BITS == 64:
        word = tl.int64
    elif BITS == 32:
        word = tl.int32
    elif BITS == 16:
        word = tl.int16
    else:
        word = tl.int8
    device = tl.cast(device_address, tl.int64).to(tl.pointer_type(word))
    packed = tl.cast(packed_address, tl.int64).to(tl.pointer_type(word))
    device = tl.multiple_of(device, VECTOR * BITS // 8)
    packed = tl.multiple_of(packed, VECTOR * BITS // 8)
    pieces = count * layer_count
    tiles = (pieces + ROWS - 1) // ROWS * COL_TILES * PARTS
    for tile in range(tl.program_id(0), tiles, tl.num_programs(0)):
        part = (tile // COL_TILES) % PARTS
        piece = tile // (COL_TILES * PARTS) * ROWS + tl.arange(0, ROWS)
        inside = piece < pieces
        place = first + piece // layer_count
        layer = (layer_first + piece % layer_count).to(tl.int64)
        device_page = tl.load(device_pages + place, mask=inside, other=0).to(tl.int64)
        if DENSE:
            packed_page = (piece // layer_count).to(tl.int64)
        else:
            packed_page = tl.load(packed_pages + place, mask=inside, other=0).to(tl.int64)
        if PARTS == 1 or K_WORDS == V_WORDS:
            words = K_WORDS
        else:
            words = K_WORDS + part * (V_WORDS - K_WORDS)
        device_row = (layer * pool_pages + device_page) * words
        packed_row = packed_page * packed_stride + layer * (K_WORDS + V_WORDS)
        if PARTS == 2:  # a term that is always 0 would fold away, and the hint below with it
            device_row += part * v_start
            packed_row += part * K_WORDS
        # Every term is a multiple of VECTOR; said here, since not all of them are constants.
        device_row = tl.multiple_of(device_row, VECTOR)
        packed_row = tl.multiple_of(packed_row, VECTOR)
        col = tile % COL_TILES * COLS + tl.arange(0, COLS)
        mask = inside[:, None] & (col < words)[None, :]
        at_device = device + (device_row[:, None] + col[None, :])
        at_packed = packed + (packed_row[:, None] + col[None, :])
        if TO_DEVICE:
            tl.store(at_device, tl.load(at_packed, mask=mask), mask=mask)
        else:
            tl.store(at_packed, tl.load(at_device, mask=mask), mask=mask)


# These change from call to call: no version of the kernel for each kind of value.
_RUNTIME = [
    "device_address", "packed_address", "device_pages", "packed_pages", "first", "count",
    "layer_first", "layer_count", "pool_pages", "v_start", "packed_stride",
]  # fmt: skip
_compiled: Any = triton.jit(do_not_specialize=_RUNTIME, do_not_specialize_on_alignment=_RUNTIME)(
    _move_pages
)
_interpreted: Any = InterpretedFunction(_move_pages)
# The versions of the kernel that this process has launched before.
_launched: set[object] = set()


class Tiling(NamedTuple):
    """How the kernel cuts a layout's pieces: a word's bits, words in a vector, and the tile."""

    bits: int
    vector: int
    k_words: int
    v_words: int
    rows: int
    cols: int

    def tiles(self, pieces: int) -> int:
        """How many tiles `pieces` pieces are, K and V counted as one."""
        return -(-pieces // self.rows) * self.col_tiles * self.parts

    @property
    def parts(self) -> int:
        """K and V, or the latent alone."""
        return 2 if self.v_words else 1

    @property
    def col_tiles(self) -> int:
        """Tiles side by side that cover the longer piece."""
        return -(-max(self.k_words, self.v_words) // self.cols)


def tiling(layout: KvLayout, tile_bytes: int = TILE_BYTES) -> Tiling:
    """The widest words that divide every piece, and rows that waste little on short pieces."""
    sizes = [layout.k_bytes, *([layout.v_bytes] if layout.v_bytes else [])]
    word = next(size for size in (8, 4, 2, 1) if all(each % size == 0 for each in sizes))
    vector = 16 // word if all(each % 16 == 0 for each in sizes) else 1
    k_words, v_words = layout.k_bytes // word, layout.v_bytes // word
    widths = [size // word for size in sizes]
    tile_words = tile_bytes // word
    cols = tile_words
    # The widest power of two that leaves at most an eighth of the lanes idle; at least 128 bytes.
    while cols > 128 // word and any(-(-each // cols) * cols > each * 1.125 for each in widths):
        cols //= 2
    return Tiling(word * 8, vector, k_words, v_words, tile_words // cols, cols)


def move_pages(
    layout: KvLayout,
    shape: Tiling,
    *,
    device_address: int,
    packed_address: int,
    device_pages: torch.Tensor,
    packed_pages: torch.Tensor | None,
    count: int,
    pool_pages: int,
    packed_stride_bytes: int,
    to_device: bool,
    first: int = 0,
    layers: tuple[int, int] | None = None,
    programs: int | None = None,
    warps: int = WARPS,
) -> int:
    """Launch the kernel on the current stream (on CPU memory: run it). Returns what will not recur
    of the call's time, in ns: compiling.

    device_pages, packed_pages: int32 tensors on the device, of which [first, first + count) are
    moved; packed_pages None: pages 0 .. count - 1 of the packed side. layers: (first, count).
    packed_address: of layer 0 of the packed side's page 0, also where that side has fewer layers.
    programs: at most so many; None: one for each tile.
    """
    layer_first, layer_count = layers or (0, layout.layers)
    if count == 0 or layer_count == 0:
        return 0
    word = shape.bits // 8
    tiles = shape.tiles(count * layer_count)
    arguments = (
        device_address,
        packed_address,
        device_pages,
        device_pages if packed_pages is None else packed_pages,
        first,
        count,
        layer_first,
        layer_count,
        pool_pages,
        layout.layers * pool_pages * shape.k_words,
        packed_stride_bytes // word,
    )
    constants = {
        "TO_DEVICE": to_device,
        "DENSE": packed_pages is None,
        "BITS": shape.bits,
        "VECTOR": shape.vector,
        "K_WORDS": shape.k_words,
        "V_WORDS": shape.v_words,
        "PARTS": shape.parts,
        "ROWS": shape.rows,
        "COLS": shape.cols,
        "COL_TILES": shape.col_tiles,
    }
    grid = (tiles if programs is None else min(tiles, programs),)
    if device_pages.device.type == "cpu":
        with INTERPRETER:
            _interpreted[grid](*arguments, **constants)
        return 0
    if isinstance(_compiled, InterpretedFunction):
        raise InputError("TRITON_INTERPRET is set: the interpreter cannot reach a GPU's memory")
    version = (shape, packed_pages is None, to_device, warps, device_pages.device)
    start_ns = time.monotonic_ns()
    _compiled[grid](*arguments, **constants, num_warps=warps)
    if version in _launched:
        return 0
    _launched.add(version)
    return time.monotonic_ns() - start_ns
