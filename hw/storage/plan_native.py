"""`plan` by one call into C (plan.c) for each part of the lists: for operations in place.

Nobody reads while the first part is planned, and the caller does not while the others are. After an
operation that went through the caches once, 25 calls of numpy take 0.3 ms until the first read may
begin, a hundredth of reading a GiB, and all lists of 64 KiB pages 4 ms of one core of 16. The C
makes the same rows at a fraction of that. What it does not take (no tuples of pairs, a page that
there is not, lists of different lengths) is left to `plan`, which takes it or says what is wrong.

Made by `scripts/compile_loop.py` (of `make compiled`) into build/native, and never in the way.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path

import numpy as np

from hicache.operations import PageRuns
from hw.native_code import FOLDER, loaded, path_of, python_abi
from hw.storage.plan import ROUND_BYTES, SMALLEST_REQUEST_BYTES, Requests

SOURCE = Path(__file__).with_name("plan.c")
# Of a page list that is planned first: little, since nobody reads meanwhile, and enough
# for all threads until they are woken and the next part is planned.
FIRST_RUNS = 256
UNEQUAL, NO_ROOM = -2, -3  # of plan.c


class Shape(ctypes.Structure):
    """`struct shape` of plan.c."""

    _fields_ = tuple(
        (name, ctypes.c_int64)
        for name in (
            "slots", "pages", "page_bytes",
            "at_once", "smallest_bytes", "round_bytes", "largest_bytes",
        )
    )  # fmt: skip


def library_path(folder: Path = FOLDER) -> Path:
    """Where the library of these very sources, for this Python, is or would be."""
    return path_of(SOURCE, folder, python_abi())


def open_library(path: Path) -> ctypes.PyDLL:
    """The library at `path`, its function declared. Raises OSError."""
    library = ctypes.PyDLL(str(path))  # it looks at Python's objects: with the interpreter's lock
    pointer, number, list_ = ctypes.c_void_p, ctypes.c_int64, ctypes.py_object
    library.plan.restype = number
    library.plan.argtypes = [pointer, list_, list_, *[number] * 4, pointer, number]
    return library


@cache
def library() -> ctypes.PyDLL | None:
    """The library, if it was made and may be used here. One that does not load is said, once."""
    return loaded("L3 file: the compiled plan", library_path, open_library)


class NativePlan:
    """Of operations on one file and one memory."""

    def __init__(
        self, library: ctypes.PyDLL, slots: int, pages: int, page_bytes: int, at_once: int,
        request_bytes: int, otherwise: Callable[[PageRuns, PageRuns, int], Iterator[Requests]],
    ) -> None:  # fmt: skip
        """`slots`, `pages`: how many there are. `at_once`, `request_bytes`: see
        `plan.request_size`. `otherwise`: as `parts`, of what the C does not take.
        """
        self._library = library
        self._shape = Shape(
            slots, pages, page_bytes, at_once, SMALLEST_REQUEST_BYTES, ROUND_BYTES, request_bytes
        )
        self._at = ctypes.addressof(self._shape)
        self._otherwise = otherwise

    def parts(self, slots: PageRuns, pages: PageRuns, last_bytes: int) -> Iterator[Requests]:
        """An operation's requests, in parts as of `plan.in_parts`, each planned when it is asked
        for. `last_bytes`: what the last ones are cut to (`plan.tapered`), or 0.
        """
        at, most, length = 0, FIRST_RUNS, max(len(slots), len(pages))
        is_mine = isinstance(slots, tuple) and isinstance(pages, tuple)
        while is_mine:
            # The last part is not a few runs: it has what is to be cut.
            is_last = at + most + self._shape.at_once >= length
            made = self._part(
                slots, pages, at, *((length, last_bytes) if is_last else (at + most, 0))
            )
            if isinstance(made, int):
                if made != UNEQUAL or is_last:
                    break
                most = length  # cut at different places: all that is left is one part
                continue
            yield made
            if is_last:
                return
            at += most
            most *= 2
        yield from self._otherwise(slots[at:], pages[at:], last_bytes)

    def _part(
        self, slots: PageRuns, pages: PageRuns, at: int, end: int, last_bytes: int
    ) -> Requests | int:
        """The rows of runs `at` to `end`, or why there are none."""
        slots_end, pages_end = max(at, min(end, len(slots))), max(at, min(end, len(pages)))
        room = slots_end + pages_end - 2 * at + 4 * self._shape.at_once
        while True:
            rows = np.empty((room, 3), np.int64)
            count = self._library.plan(
                self._at, slots, pages, at, slots_end, pages_end, last_bytes, rows.ctypes.data, room
            )
            if count >= 0:
                return rows[:count]
            if count != NO_ROOM:
                return count
            room *= 4
