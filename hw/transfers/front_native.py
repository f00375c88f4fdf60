"""The compiled code of `front.py`: where it is, and the structures that it shares with Python.

`scripts/compile_loop.py` (of `make compiled`) makes it into build/native. Refuses to load one whose
structures are not these.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from functools import cache, cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from hw.native_code import FOLDER, loaded, path_of, python_abi

if TYPE_CHECKING:
    from hicache.operations import PageRuns
    from hw.transfers.driver import Direction
    from hw.transfers.kernels import Mover

SOURCE = Path(__file__).with_name("front.c")
# Of staged copies: a scatter that waits for the model's kernels must not hold up DMAs behind it.
BUFFERS = 4
# What front.c calls them -> the driver's calls, in that file's order, by which it says what failed.
CALLS = {
    "copy": "cuMemcpyAsync",
    "copy_rows": "cuMemcpy2DAsync_v2",
    "copy_batch": "cuMemcpyBatchAsync",
    "launch": "cuLaunchKernel",
    "record": "cuEventRecord",
    "wait": "cuStreamWaitEvent",
    "await_": "cuEventSynchronize",
    "elapsed": "cuEventElapsedTime",
    "write": "cuStreamWriteValue32",
    "query": "cuEventQuery",
}
Way = Literal["rows", "staged", "zero_copy"]
WAYS: dict[Way, int] = {"rows": 0, "staged": 1, "zero_copy": 2}
# A definition, `self`, a module.
_NEW_FUNCTION = ctypes.PYFUNCTYPE(
    ctypes.py_object, ctypes.c_void_p, ctypes.py_object, ctypes.c_void_p
)(("PyCFunction_NewEx", ctypes.pythonapi))
DIRECTIONS: dict[Direction, int] = {"h2d": 0, "d2h": 1}


class Kernel(ctypes.Structure):
    """`struct kernel` of front.c: how `hw.transfers.kernels` is launched."""

    _fields_ = (
        ("function", ctypes.c_void_p),
        ("threads", ctypes.c_int64),
        ("shared_bytes", ctypes.c_int64),
        ("rows", ctypes.c_int64),
        ("tiles_each", ctypes.c_int64),
        ("programs", ctypes.c_int64),
        ("word_bytes", ctypes.c_int64),
        ("pool_pages", ctypes.c_int64),
        ("v_start_words", ctypes.c_int64),
    )


class Part(ctypes.Structure):
    """`struct part` of front.c: K, or V, or the latent, in bytes."""

    _fields_ = tuple((name, ctypes.c_int64) for name in ("width", "device", "pitch", "host"))


class Plan(ctypes.Structure):
    """`struct plan` of front.c: one back-end's way, and its kernels once they are compiled."""

    _fields_ = (
        ("way", ctypes.c_int64),
        ("side", ctypes.c_void_p),
        *((name, ctypes.c_int64) for name in (
            "work_address", "chunk_pages", "whole_pages", "head_pages", "tail_pages",
        )),
        ("row_layers", ctypes.c_int64 * 2),
        ("kernel", Kernel * 2),
        ("layer_kernel", Kernel),
    )  # fmt: skip

    @classmethod
    def of(cls, way: Way) -> Plan:
        """A plan of one way."""
        return cls(way=WAYS[way])

    @cached_property
    def at(self) -> int:
        """Its address."""
        return ctypes.addressof(self)

    def learn(self, mover: Mover, *, dense: bool, programs: int = 0) -> None:
        """Take over the kernels that a mover has compiled. programs: at most so many; 0: any."""
        for direction, number in DIRECTIONS.items():
            if not self.kernel[number].function:
                self.kernel[number] = _kernel_of(mover, direction, dense, programs)

    def learn_layers(self, mover: Mover, programs: int) -> None:
        """Likewise the kernel of loads layer by layer."""
        if not self.layer_kernel.function:
            self.layer_kernel = _kernel_of(mover, "h2d", dense=False, programs=programs)

    @property
    def loads_layers(self) -> bool:
        """Whether the front can load layer by layer so; a kernel must have been compiled."""
        return self.way == WAYS["rows"] or bool(self.layer_kernel.function)


def _kernel_of(mover: Mover, direction: Direction, dense: bool, programs: int) -> Kernel:
    found, shape = mover.compiled(direction, dense=dense), mover.shape
    if found is None:
        return Kernel()
    return Kernel(
        found.function, found.threads, found.shared_bytes, shape.rows,
        shape.col_tiles * shape.parts, programs, shape.bits // 8, *mover.pool,
    )  # fmt: skip


class Ground(ctypes.Structure):
    """`struct front` of front.c."""

    _fields_ = (
        *((name, ctypes.c_void_p) for name in CALLS),
        ("batch_has_fail_index", ctypes.c_int64),
        *((name, ctypes.c_void_p) for name in ("queue", "begin", "end", "listed")),
        ("there", ctypes.c_void_p * BUFFERS),
        ("free", ctypes.c_void_p * BUFFERS),
        ("word", ctypes.c_int64),
        ("layered", ctypes.c_void_p),
        *((name, ctypes.c_int64) for name in (
            "device_pages", "host_pages", "pages_per_chunk", "page_bytes", "device_address",
            "host_address", "layers", "layer_bytes", "parts",
        )),
        ("part", Part * 2),
        *((name, ctypes.c_int64) for name in (
            "list_room", "list_host", "list_device",
        )),
        *((name, ctypes.c_int64) for name in (
            "pages", "extents", "device_ns", "code", "failed_call",
        )),
        ("plan", ctypes.c_void_p),
        *((name, ctypes.c_int64) for name in ("turn", "load", "loaded")),
        ("room", ctypes.c_int64),
        ("runs", ctypes.c_int64 * 2),
        ("list", ctypes.c_void_p),
        ("extent_room", ctypes.c_int64),
        ("extent", ctypes.c_void_p),
        ("piece_room", ctypes.c_int64),
        ("pieces", ctypes.c_void_p),
        ("picks", ctypes.c_void_p),
    )  # fmt: skip


def library_path(folder: Path = FOLDER) -> Path:
    """Where the library of these very sources, for this Python, is or would be."""
    return path_of(SOURCE, folder, python_abi())


class Library:
    """The compiled code, its calls declared."""

    def __init__(self, path: Path) -> None:
        """Raises OSError for what does not load, or is made for another layout of `Ground`."""
        self.path = str(path)
        # Reading tuples takes the interpreter's lock, moving pages lets go of it.
        locked = ctypes.PyDLL(str(path))
        self.read = locked.front_read
        self.read.argtypes = [ctypes.c_void_p, ctypes.py_object, ctypes.py_object]
        self.remember = locked.front_remember
        self.remember.restype = None
        self.remember.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int, ctypes.c_int]
        self._method = ctypes.addressof(ctypes.c_char.in_dll(locked, "front_method"))
        library = ctypes.CDLL(str(path))
        self.run: Callable[[int, int, int], int] = library.front_run
        library.front_run.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int]
        self.free = library.front_free
        self.free.argtypes = [ctypes.c_void_p]
        self.begin_load = library.front_begin_load
        self.begin_load.restype = ctypes.c_int64
        self.load_layers = library.front_load_layers
        self.finish_load = library.front_finish_load
        self.fail_load = library.front_fail_load
        self.fail_load.restype = None
        self.has_layer = library.front_has_layer
        self.wait_layer = library.front_wait_layer
        numbers = [ctypes.c_int64, ctypes.c_int64]
        for call, types in (
            (self.begin_load, []),
            (self.load_layers, [ctypes.c_void_p]),
            (self.finish_load, []),
            (self.fail_load, [ctypes.c_int64]),
            (self.has_layer, numbers),
            (self.wait_layer, [*numbers, ctypes.c_void_p]),
        ):
            call.argtypes = [ctypes.c_void_p, *types]
        sizes = (library.front_size, library.front_plan_size)
        for each in sizes:
            each.restype = ctypes.c_int64
        if [each() for each in sizes] != [ctypes.sizeof(Ground), ctypes.sizeof(Plan)]:
            raise OSError(f"{path.name}: another layout than front.py's")

    def copier(self, at: int) -> Callable[[PageRuns, PageRuns, int, int, bool], int]:
        """`front_call` for the front at this address. Neither is kept alive by it."""
        return _NEW_FUNCTION(self._method, at, None)


def open_library(path: Path) -> Library:
    """The library at `path`. Raises OSError."""
    return Library(path)


@cache
def library() -> Library | None:
    """The library, if it was made and may be used here. One that does not load is said, once."""
    return loaded("copies: the compiled front", library_path, open_library)
