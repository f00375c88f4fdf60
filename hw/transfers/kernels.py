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
import ctypes
import struct
import threading
import time
from typing import Any, NamedTuple

import triton
import triton.language as tl
from triton.runtime.interpreter import InterpretedFunction

from hicache.errors import InputError
from hw.pools import DevicePool, KvLayout
from hw.transfers.driver import Direction
from hw.transfers.queues import CudaQueue, Listed, Queue

# Held around every kernel that Triton's interpreter runs.
INTERPRETER = threading.RLock()
# A tile is 16 KiB: with 128 threads, 8 loads of 16 bytes each are under way in a thread.
TILE_BYTES = 16 << 10
WARPS = 4
_INT32 = (1 << 31) - 1


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


class Mover:
    """The kernel over one device pool, for one thread at a time. All that is the same at every call
    is worked out once: to launch a kernel through Triton takes longer than to gather a page.
    """

    def __init__(self, pool: DevicePool, shape: Tiling | None = None, warps: int = WARPS) -> None:
        self.shape = shape or tiling(pool.layout)
        self._layers = pool.layout.layers
        self._warps = warps
        self._device_address = pool.address
        self.pool = (pool.pages, self._layers * pool.pages * self.shape.k_words)
        self._word_bytes = self.shape.bits // 8
        self._compiled: dict[tuple[bool, bool, bool], _Compiled | None] = {}

    def compiled(self, direction: Direction, *, dense: bool) -> "_Compiled | None":
        """The version for packed pages 0 .. count - 1, or by their list; None: not compiled yet."""
        return self._compiled.get((direction == "h2d", dense, True))

    def move(
        self,
        direction: Direction,
        queue: Queue,
        device_pages: Listed,
        packed_pages: Listed | None,
        *,
        packed_address: int,
        packed_stride_bytes: int,
        part: tuple[int, int] | None = None,
        layers: tuple[int, int] | None = None,
        programs: int | None = None,
    ) -> int:
        """Launch the kernel on a queue (on CPU memory: run it). Returns what will not recur of the
        call's time, in ns: compiling.

        part: (first, count) of the lists, all by default; packed_pages None: pages 0 .. count - 1
        of the packed side. layers: (first, count). packed_address: of layer 0 of the packed side's
        page 0, also where that side has fewer layers. programs: at most so many; None: one for each
        tile.
        """
        first, count = part or (0, device_pages.pages)
        layer_first, layer_count = layers or (0, self._layers)
        if count == 0 or layer_count == 0:
            return 0
        packed = packed_pages or device_pages
        tiles = self.shape.tiles(count * layer_count)
        if programs is None or programs > tiles:
            programs = tiles
        numbers = (
            first, count, layer_first, layer_count, *self.pool,
            packed_stride_bytes // self._word_bytes,
        )  # fmt: skip
        addresses = (self._device_address, packed_address)
        # Triton compiles for the size of the numbers it sees; of these one may have either.
        kind = (direction == "h2d", packed_pages is None, packed_address > _INT32)
        known = self._compiled.get(kind)
        if known is not None and isinstance(queue, CudaQueue):
            known.launch(
                queue, programs, (*addresses, device_pages.address, packed.address, *numbers, 0, 0)
            )
            return 0
        arguments = (*addresses, device_pages.tensor(), packed.tensor(), *numbers)
        constants = {
            "TO_DEVICE": kind[0], "DENSE": kind[1], "BITS": self.shape.bits,
            "VECTOR": self.shape.vector, "K_WORDS": self.shape.k_words,
            "V_WORDS": self.shape.v_words, "PARTS": self.shape.parts, "ROWS": self.shape.rows,
            "COLS": self.shape.cols, "COL_TILES": self.shape.col_tiles,
        }  # fmt: skip
        if not isinstance(queue, CudaQueue):
            with INTERPRETER:
                _interpreted[(programs,)](*arguments, **constants)
            return 0
        if isinstance(_compiled, InterpretedFunction):
            raise InputError("TRITON_INTERPRET is set: the interpreter cannot reach a GPU's memory")
        start_ns = time.monotonic_ns()
        with queue.running():
            kernel = _compiled[(programs,)](*arguments, **constants, num_warps=self._warps)
        if kind in self._compiled:
            return 0
        self._compiled[kind] = _Compiled.of(kernel, self._warps)
        return time.monotonic_ns() - start_ns


class _Compiled:
    """A compiled version of the kernel, launched without Triton's launcher."""

    def __init__(self, kernel: Any, warps: int, letters: list[str]) -> None:
        """letters: the arguments' types, as `struct` names them."""
        self._kernel = kernel  # keeps the code loaded
        self.function: int = kernel.function
        self.shared_bytes: int = kernel.metadata.shared
        self.threads = 32 * warps
        # Each argument at its own alignment, as in C; the driver reads them when it is called.
        self._packing = struct.Struct("".join(letters))
        self._buffer = ctypes.create_string_buffer(self._packing.size)
        start = ctypes.addressof(self._buffer)
        ends = [struct.calcsize("".join(letters[: place + 1])) for place in range(len(letters))]
        self._places = (ctypes.c_void_p * len(letters))(
            *[
                start + end - struct.calcsize(letter)
                for end, letter in zip(ends, letters, strict=True)
            ]
        )

    @classmethod
    def of(cls, kernel: Any, warps: int) -> "_Compiled | None":
        """None where a Triton release has other arguments than those this file knows of: then
        Triton launches, and it only takes longer.
        """
        kinds = [kind for kind in kernel.src.signature.values() if kind != "constexpr"]
        known = {"i32": "i", "i64": "q", "*i32": "Q"}
        if not set(kinds) <= set(known) or getattr(kernel.metadata, "global_scratch_size", 0):
            return None
        # At the end two addresses of scratch memory, which this kernel has no use for.
        return cls(kernel, warps, [known[kind] for kind in kinds] + ["Q", "Q"])

    def launch(self, queue: CudaQueue, programs: int, arguments: tuple[int, ...]) -> None:
        self._packing.pack_into(self._buffer, 0, *arguments)
        queue.driver.launch(
            self.function, programs, self.threads, self.shared_bytes, queue.handle, self._places
        )
