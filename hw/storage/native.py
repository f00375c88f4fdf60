"""Transport: `pread` and `pwrite` in threads of C, for what Python's threads do in `pread`.

    Python                                  C (loop.c), the interpreter's lock let go
    part 0 of the requests   --feed-->      threads take request after request
    part 1 is planned, part 2 ...           a thread that has no more waits for the next part
    finish                   ------>        the caller takes requests, too; then none is under way
                                            threads with nothing to take sleep until the next feed

A thread of Python needs the interpreter's lock after every request, or batch of them, and 16 that
wait for it read small pages at three quarters of what they could. These need it never: an operation
costs Python one call for each part of its plan. A thread is started when a request has none, stays,
and is woken for the next one, which takes a fifth of what starting it takes; it ends when the
transport is closed or forgotten, not at exit, where one may hang on a disk. Operations of one
direction share them. A forked process has none, and starts its own. Through the page cache each
reading thread has an open file of its own (`SlotFile.open_more`), the last requests are cut small
(`plan.tapered`), and one thread writes: a file system lets one at a time write to a file, and more
of them only get into each other's way.

The library is made by `scripts/compile_loop.py` (of `make compiled`) into build/native, under a
name that holds a hash of its source: an edited source is another library. It is never in the way:
where there is none, or HICACHE_COMPILED is 0, the same requests go through Python's threads.
"""

from __future__ import annotations

import ctypes
import os
import weakref
from collections.abc import Iterable
from functools import cache
from pathlib import Path
from typing import ClassVar

import numpy as np

from hw.native_code import FOLDER, loaded, path_of
from hw.storage.host import BLOCK_BYTES
from hw.storage.plan import Requests
from hw.storage.slot_file import Access, SlotFile

SOURCE = Path(__file__).with_name("loop.c")
# What larger ones are cut to when they are the last of an operation. Smaller pieces gain nothing
# that can be seen: threads that are left alone copy the faster.
LAST_REQUEST_BYTES = 1 << 20


def library_path(folder: Path = FOLDER) -> Path:
    """Where the library of this very source is, or would be."""
    return path_of(SOURCE, folder)


def open_library(path: Path) -> ctypes.CDLL:
    """The library at `path`, its functions declared. Raises OSError."""
    library = ctypes.CDLL(str(path))
    pointer, number = ctypes.c_void_p, ctypes.c_int64
    library.assemble.restype = pointer
    library.assemble.argtypes = [
        ctypes.c_int, pointer, ctypes.c_int, ctypes.c_int, pointer, number, ctypes.c_int,
    ]  # fmt: skip
    library.begin.argtypes = [pointer, pointer, pointer]
    library.feed.argtypes = [pointer, pointer, number]
    library.finish.argtypes = [pointer, ctypes.c_int, pointer]
    library.dismiss.restype = None
    library.dismiss.argtypes = [pointer]
    return library


@cache
def library() -> ctypes.CDLL | None:
    """The library, if it was made and may be used here. One that does not load is said, once."""
    return loaded("L3 file: the compiled loop", library_path, open_library)


class NativeTransport:
    """Moves bytes between a file and one region of memory."""

    fence_bytes = 1 << 62  # no multiple of it lies in memory

    def __init__(
        self, library: ctypes.CDLL, file: SlotFile, region: memoryview, address: int,
        access: Access, workers: int,
    ) -> None:  # fmt: skip
        """`region`, at `address`: what the requests' memory offsets count in; kept alive here.
        `workers`: threads for one operation, with the caller; those beside the callers are
        shared by all operations of a direction.
        """
        self.at_once = workers
        self._region = region
        cached = access == "page cache"
        self.last_bytes = LAST_REQUEST_BYTES if cached else 0  # a disk wants its requests large
        self._writers = 1 if cached else workers
        more = file.open_more(workers - 1) if cached else []
        self._open_files = 1 + len(more)
        self._directions = [
            _Direction(library, "reading", file, more, address, access, workers),
            _Direction(library, "writing", file, [], address, access, self._writers),
        ]

    def describe(self) -> str:
        """For people."""
        files = f", {self._open_files} open files" if self._open_files > 1 else ""
        return f"compiled: {self.at_once} threads for reading, {self._writers} for writing{files}"

    def read(self, parts: Iterable[Requests]) -> None:
        """File -> memory. Raises TransferError when nothing is under way any more."""
        self._directions[0].move(parts)

    def write(self, parts: Iterable[Requests]) -> None:
        """Memory -> file. Raises TransferError when nothing is under way any more."""
        self._directions[1].move(parts)

    def close(self) -> None:
        """End the threads, once no operation is under way: in the middle of one of this thread's,
        behind it. Descriptors end with the file.
        """
        for direction in self._directions:
            direction.close()


class _Direction:
    """One direction, and the threads that its operations share."""

    calls: ClassVar[dict[str, int]] = {}
    """By direction, the address of what takes the place of `pread` and `pwrite`: for tests."""
    all: ClassVar[weakref.WeakSet[_Direction]] = weakref.WeakSet()

    def __init__(
        self, library: ctypes.CDLL, verb: str, file: SlotFile, own: list[int], address: int,
        access: Access, workers: int,
    ) -> None:  # fmt: skip
        """`own`: descriptors for the threads; they take the file's if it is empty."""
        self._library = library
        self._verb = verb
        self._file = file
        self._own = (ctypes.c_int * len(own))(*own)
        self._address = address
        # O_DIRECT goes on at a whole block only.
        self._step_bytes = BLOCK_BYTES if access == "O_DIRECT" else 1
        self._helpers = workers - 1
        self.assemble()
        self.all.add(self)

    def assemble(self) -> None:
        """A crew without threads. Of an earlier one nothing is touched: it is another process's."""
        self._crew = self._library.assemble(
            self._file.fd, ctypes.addressof(self._own), len(self._own), self._verb == "writing",
            self._address, self._step_bytes, self._helpers,
        )  # fmt: skip
        if not self._crew:
            raise MemoryError("no memory for the threads of the L3 file")
        self._dismiss = weakref.finalize(self, self._library.dismiss, self._crew)
        self._dismiss.atexit = False

    def forget(self) -> None:
        """In a forked process, which has the crew's memory but none of its threads."""
        if self._dismiss.detach():
            self.assemble()

    def close(self) -> None:
        """End the threads, once."""
        self._dismiss()

    def move(self, parts: Iterable[Requests]) -> None:
        """All requests of all parts: threads work on one while the next is planned."""
        library = self._library
        begun = (ctypes.c_void_p * 1)()
        failure = (ctypes.c_int64 * 2)()
        told = ctypes.addressof(failure)
        kept: list[Requests] = []  # alive until `finish` has returned
        stop, failed = True, False
        try:
            if not library.begin(self._crew, self.calls.get(self._verb), ctypes.addressof(begun)):
                raise MemoryError("no memory for an operation on the L3 file")
            for part in parts:
                if not len(part):
                    continue
                kept.append(np.ascontiguousarray(part))
                if library.feed(begun[0], kept[-1].ctypes.data, len(part)):
                    break
            stop = False
        finally:
            # No other call here: Ctrl-C comes behind one, and would free what is still read.
            if begun[0]:
                failed = library.finish(begun[0], stop, told)
        if failed:
            raise self._failure(*failure)

    def _failure(self, position: int, code: int) -> Exception:
        if code:
            return self._file.failure(self._verb, position, OSError(code, os.strerror(code)))
        why = "the file ends here" if self._verb == "reading" else "the disk took nothing"
        return self._file.failure(self._verb, position, why)


def _after_fork() -> None:
    for direction in list(_Direction.all):
        direction.forget()


os.register_at_fork(after_in_child=_after_fork)
