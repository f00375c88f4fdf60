"""Transport: one thread keeps many requests under way, through io_uring.

Past the page cache the disk works on them side by side. With the page cache a request is a copy,
which the kernel would make in the submitting thread, one after the other: there they are left to
workers of the kernel, which know no GIL. That is what makes small pages in the cache fast.

A ring for each direction, so that the two workers of the lanes need no common lock. The memory and
the file are registered where the kernel allows it, which spares looking them up and pinning pages
at every request; where it does not, the same requests go unregistered, and `describe` says why.
Where io_uring itself is missing or forbidden that is an InputError; nothing takes its place.
"""

from __future__ import annotations

import errno
import os
import threading
from collections.abc import Sequence

from hicache.errors import InputError, TransferError
from hw.storage import ring as io_uring
from hw.storage.host import BLOCK_BYTES
from hw.storage.plan import Request
from hw.storage.ring import LARGEST_BUFFER_BYTES, Ring
from hw.storage.slot_file import Access, SlotFile

LARGEST_DEPTH = 4096
# How often an operation's requests may be given back with "try again" before that is an error.
MOST_RETRIES = 1000
AGAIN = (errno.EAGAIN, errno.EINTR)


class UringTransport:
    """Moves bytes between a file and one region of memory."""

    def __init__(
        self, file: SlotFile, address: int, size_bytes: int, access: Access, depth: int,
        workers: int,
    ) -> None:  # fmt: skip
        """`address`, `size_bytes`: the region that the requests' memory offsets count in. `depth`:
        requests under way, of which `workers` are served together if they go through the cache.
        """
        if not 1 <= depth <= LARGEST_DEPTH:
            raise InputError(f"io_uring: a depth of {depth}; 1 to {LARGEST_DEPTH} are possible")
        self._depth = depth
        cached = access == "page cache"
        self.at_once = min(depth, workers) if cached else depth
        self._queues: list[_Queue] = []
        try:
            for verb in ("reading", "writing"):
                self._queues.append(_Queue(verb, file, address, size_bytes, depth))
            if cached:
                for queue in self._queues:
                    queue.use_workers(self.at_once)
        except BaseException:
            self.close()
            raise
        registered = all(queue.buffers for queue in self._queues)
        self.fence_bytes = LARGEST_BUFFER_BYTES if registered else 1 << 62

    def describe(self) -> str:
        """For people."""
        notes = [note for queue in self._queues for note in queue.notes]
        said = "; ".join(dict.fromkeys(notes)) or "registered buffers and file"
        return f"depth {self._depth} each way, {said}"

    def read(self, requests: Sequence[Request]) -> None:
        """File -> memory. Raises TransferError when nothing is under way any more."""
        self._queues[0].move(requests)

    def write(self, requests: Sequence[Request]) -> None:
        """Memory -> file. Raises TransferError when nothing is under way any more."""
        self._queues[1].move(requests)

    def close(self) -> None:
        """Let go of the rings."""
        for queue in self._queues:
            queue.ring.close()
        self._queues.clear()


class _Queue:
    """One direction."""

    def __init__(
        self, verb: str, file: SlotFile, address: int, size_bytes: int, depth: int
    ) -> None:
        self._verb = verb
        self._file = file
        self._address = address
        self._lock = threading.Lock()
        self._tags = list(range(depth))
        self.notes: list[str] = []
        try:
            self.ring = Ring(depth)
        except OSError as error:
            raise InputError(
                f"the back-end io_uring cannot be used here: {_why_not(error)}; choose direct or "
                f"pread"
            ) from error
        self.buffers = self._try("buffers", lambda: self._register_buffers(size_bytes))
        self._fixed_file = self._try("file", lambda: self.ring.register_file(file.fd))
        fixed = io_uring.READ_FIXED, io_uring.WRITE_FIXED
        plain = io_uring.READ, io_uring.WRITE
        self._opcode = (fixed if self.buffers else plain)[verb == "writing"]
        self._flags = io_uring.FIXED_FILE if self._fixed_file else 0
        self._step_bytes = BLOCK_BYTES  # O_DIRECT goes on at a whole block only

    def use_workers(self, most: int) -> None:
        """Leave requests to workers of the kernel, `most` at once: for the page cache."""
        self._flags |= io_uring.ASYNC
        self._step_bytes = 1
        self._try("number of workers", lambda: self.ring.limit_workers(most))

    def _register_buffers(self, size_bytes: int) -> None:
        self.ring.register_buffers(
            [
                (self._address + first, min(LARGEST_BUFFER_BYTES, size_bytes - first))
                for first in range(0, size_bytes, LARGEST_BUFFER_BYTES)
            ]
        )

    def _try(self, what: str, register) -> bool:
        try:
            register()
        except OSError as error:
            self.notes.append(f"{what} not registered: {error.strerror}")
            return False
        return True

    def move(self, requests: Sequence[Request]) -> None:
        """All of `requests`. After an error no further one begins, and those under way are waited
        for: the kernel must not write into memory that others were given.
        """
        with self._lock:
            error = self._move(list(reversed(requests)))
        if error is not None:
            raise error

    def _move(self, waiting: list[Request]) -> TransferError | None:
        ring, tags = self.ring, self._tags
        under_way: dict[int, Request] = {}
        error: TransferError | None = None
        retries = 0
        while True:
            while waiting and tags and error is None:
                tag, request = tags.pop(), waiting.pop()
                under_way[tag] = request
                self._prepare(request, tag)
            if not under_way:
                return error
            more = waiting and error is None
            ring.enter(max(1, len(under_way) // 4) if more else len(under_way))
            for tag, result in ring.reap():
                request = under_way.pop(tag)
                tags.append(tag)
                if result == request.size:
                    continue
                retries += -result in AGAIN
                try:
                    waiting.append(self._rest(request, result, retries))
                except TransferError as failure:
                    error = error or failure

    def _prepare(self, request: Request, tag: int) -> None:
        position, memory, size = request
        self.ring.prepare(
            self._opcode,
            self._flags,
            0 if self._fixed_file else self._file.fd,
            position,
            self._address + memory,
            size,
            memory // LARGEST_BUFFER_BYTES if self.buffers else 0,
            tag,
        )

    def _rest(self, request: Request, result: int, retries: int) -> Request:
        """What is left to do of a request that ended early."""
        position, memory, size = request
        if result < 0:
            if -result in AGAIN and retries < MOST_RETRIES:
                return request
            error = OSError(-result, os.strerror(-result))
            raise self._file.failure(self._verb, position, error)
        done = result - result % self._step_bytes
        if not done:
            why = "the file ends here" if self._verb == "reading" else "the disk took nothing"
            raise self._file.failure(self._verb, position, why)
        return Request(position + done, memory + done, size - done)


def _why_not(error: OSError) -> str:
    if error.errno == errno.ENOSYS:
        return "this kernel has no io_uring (or a container hides it)"
    if error.errno in {errno.EPERM, errno.EACCES}:
        return (
            "io_uring is forbidden (by a container's rules, or by the setting "
            "kernel.io_uring_disabled)"
        )
    return error.strerror or str(error)
