"""A small io_uring: the three system calls, and two rings in memory that the kernel shares.

    this thread                                     kernel
    SQE slots: what to do          --tail-->        takes entries up to tail, in io_uring_enter
    CQE slots: what came of it     <--tail--        appends, at any time, also from another core
                                   --head-->        how far this thread has read

Who may see what when. The kernel polls nothing here (no SQPOLL): it reads the submission ring
inside `io_uring_enter`, called by the thread that filled it, so that program order suffices. The
completion ring is written by any core: the kernel stores the entry and then the tail, and we load
the tail and then the entry. Python has no barriers. x86 keeps loads in order with loads, stores
with stores, and loads before later stores; head and tail are read and written as one aligned 32-bit
word (ctypes); and no compiler moves it across the calls between two Python operations. Other
processors promise less, so the ring refuses to work on them.

Entries are written and read as arrays, a batch at a time: one by one they would cost Python more
than the kernel's part of a small read.

One thread at a time uses a ring. It keeps no memory alive and knows nothing of files: who submits
must not let go of the memory before the completion was seen.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import platform
import struct
import time
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

SETUP, ENTER, REGISTER = 425, 426, 427  # the numbers of the system calls, on every processor
READ_FIXED, WRITE_FIXED, READ, WRITE = 4, 5, 22, 23
REGISTER_BUFFERS, REGISTER_FILES = 0, 2
FIXED_FILE = 1  # flag of an SQE: `fd` is an index of the registered files
ENTER_GETEVENTS = 1
FEATURE_SINGLE_MMAP = 1
OFFSET_RINGS, OFFSET_SQES = 0, 0x10000000
LARGEST_BUFFER_BYTES = 1 << 30  # of one registered buffer

SQE = np.dtype(
    [
        ("opcode", "u1"), ("flags", "u1"), ("priority", "<u2"), ("fd", "<i4"), ("position", "<u8"),
        ("address", "<u8"), ("size", "<u4"), ("rw_flags", "<u4"), ("tag", "<u8"),
        ("buffer", "<u2"), ("personality", "<u2"), ("splice_fd", "<i4"), ("padding", "<u8", (2,)),
    ]
)  # fmt: skip
CQE = np.dtype([("tag", "<i8"), ("result", "<i4"), ("flags", "<u4")])
# struct io_uring_params: sq entries, cq entries, flags, two of SQPOLL, features, workers' fd,
# 3 reserved; offsets of the submission ring: head, tail, mask, entries, flags, dropped, array,
# reserved, address; of the completion ring: head, tail, mask, entries, overflow, cqes, flags,
# reserved, address
PARAMS = struct.Struct("<7I3I8IQ8IQ")

_libc = ctypes.CDLL(None, use_errno=True)
_libc.syscall.restype = ctypes.c_long
_libc.syscall.argtypes = [ctypes.c_long] * 7


def system_call(number: int, *arguments: int) -> int:
    """A raw system call. Raises OSError."""
    result = _libc.syscall(number, *arguments, *(0,) * (6 - len(arguments)))
    if result < 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))
    return result


class Ring:
    """`depth` operations at most may be under way."""

    def __init__(self, depth: int) -> None:
        """Raises OSError: ENOSYS where the kernel has no io_uring, EPERM where it is forbidden."""
        if platform.machine() not in {"x86_64", "AMD64"}:
            raise OSError(0, f"not on {platform.machine()}: the ring relies on x86's memory order")
        params = bytearray(PARAMS.size)
        where = ctypes.addressof(ctypes.c_char.from_buffer(params))
        self.fd = system_call(SETUP, depth, where)
        try:
            self._map(PARAMS.unpack(params))
        except BaseException:
            os.close(self.fd)
            raise
        self._to_submit = 0

    def _map(self, params: tuple[int, ...]) -> None:
        sq_entries, cq_entries, features = params[0], params[1], params[5]
        sq, cq = params[10:19], params[19:28]
        if not features & FEATURE_SINGLE_MMAP:
            raise OSError(0, "the kernel is older than 5.4")
        size = max(sq[6] + 4 * sq_entries, cq[5] + CQE.itemsize * cq_entries)
        self._rings = self._shared(size, OFFSET_RINGS)
        self._sqes = self._shared(SQE.itemsize * sq_entries, OFFSET_SQES)
        word = ctypes.c_uint32
        self._sq_tail = word.from_buffer(self._rings, sq[1])
        self._sq_mask = word.from_buffer(self._rings, sq[2]).value
        self._cq_head = word.from_buffer(self._rings, cq[0])
        self._cq_tail = word.from_buffer(self._rings, cq[1])
        self._cq_mask = word.from_buffer(self._rings, cq[2]).value
        self._entries = np.frombuffer(self._sqes, SQE)
        self._done = np.frombuffer(self._rings, CQE, cq_entries, cq[5])
        # The ring of indices is fixed: place i names SQE slot i.
        struct.pack_into(f"<{sq_entries}I", self._rings, sq[6], *range(sq_entries))

    def _shared(self, size: int, offset: int) -> mmap.mmap:
        return mmap.mmap(self.fd, size, flags=mmap.MAP_SHARED | mmap.MAP_POPULATE, offset=offset)

    def register_buffers(self, buffers: Sequence[tuple[int, int]]) -> None:
        """Pin memory once instead of at each operation: (address, size) each, at most
        LARGEST_BUFFER_BYTES. Raises OSError, such as ENOMEM beyond the limit of locked memory.
        """
        vector = struct.pack(f"<{2 * len(buffers)}Q", *(x for buffer in buffers for x in buffer))
        self._register(REGISTER_BUFFERS, vector, len(buffers))

    def register_file(self, fd: int) -> None:
        """Make `fd` registered file 0. Raises OSError."""
        self._register(REGISTER_FILES, struct.pack("<i", fd), 1)

    def _register(self, what: int, payload: bytes, count: int) -> None:
        buffer = ctypes.create_string_buffer(payload, len(payload))
        system_call(REGISTER, self.fd, what, ctypes.addressof(buffer), count)

    def use(self, opcode: int, flags: int, fd: int) -> None:
        """What every submission from now on does, and on which file. Nothing may be under way."""
        self._entries[:] = 0
        self._entries["opcode"], self._entries["flags"], self._entries["fd"] = opcode, flags, fd

    def prepare(
        self, positions: NDArray[np.int64], addresses: NDArray[np.int64],
        sizes: NDArray[np.int64], buffers: NDArray[np.int64] | int, first_tag: int,
    ) -> None:  # fmt: skip
        """Write submissions, at most `depth` with those under way; `enter` hands them over.
        `first_tag` and the numbers after it come back with the results.
        """
        count = len(sizes)
        tail = self._sq_tail.value
        tags = np.arange(first_tag, first_tag + count)
        # The ring ends somewhere: up to two pieces.
        at, done = tail & self._sq_mask, 0
        while done < count:
            now = min(count - done, len(self._entries) - at)
            part, entries = slice(done, done + now), self._entries[at : at + now]
            entries["position"], entries["address"] = positions[part], addresses[part]
            entries["size"], entries["tag"] = sizes[part], tags[part]
            entries["buffer"] = buffers if isinstance(buffers, int) else buffers[part]
            at, done = 0, done + now
        self._sq_tail.value = (tail + count) & 0xFFFFFFFF
        self._to_submit += count

    def enter(self, wait_for: int) -> None:
        """Hand over what was prepared and wait until `wait_for` completions can be reaped."""
        while True:
            try:
                taken = system_call(ENTER, self.fd, self._to_submit, wait_for, ENTER_GETEVENTS)
            except InterruptedError:
                continue
            except BlockingIOError:  # EAGAIN: the kernel is short of memory for requests
                if self._cq_tail.value != self._cq_head.value:
                    return
                time.sleep(0.001)
                continue
            self._to_submit -= taken
            return

    def reap(self) -> tuple[NDArray[np.int64], NDArray[np.int32]]:
        """Tags and results of everything that is complete; a result is a byte count or -errno."""
        head, tail = self._cq_head.value, self._cq_tail.value
        count = (tail - head) & 0xFFFFFFFF
        at = head & self._cq_mask
        done = self._done[at : at + count]
        if len(done) < count:  # the ring ends somewhere
            done = np.concatenate((done, self._done[: count - len(done)]))
        tags, results = done["tag"].copy(), done["result"].copy()
        self._cq_head.value = tail
        return tags, results

    def close(self) -> None:
        """Let go of the ring. Nothing may be under way."""
        # ctypes objects and arrays keep the maps open as long as they live.
        del self._sq_tail, self._cq_head, self._cq_tail, self._entries, self._done
        self._rings.close()
        self._sqes.close()
        os.close(self.fd)
