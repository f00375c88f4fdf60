"""L3 in a file: pages move between L2 and the slots of one file, and both directions are devices.

    L2 pages (HostMemory) <-- transport --> slots (SlotFile)

    back-end          how                                    page cache
    pread             preadv, pwritev in threads             used
    direct            the same with O_DIRECT                 passed by
    io_uring          one thread, many requests, O_DIRECT    passed by
    io_uring_cached   one thread, workers of the kernel      used
    gds               kvikio                                 passed by where cuFile can

Pages are read and written in place; where O_DIRECT forbids that, `bounces` says why. The store does
what the page lists say and nothing else: no cache, no order beyond one operation, no fsync (L3 is
not read back after a restart). An operation that fails is a TransferError, and the store goes on. A
back-end that was asked for is used, or the store does not open.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import Literal, get_args

from hicache.errors import InputError
from hicache.operations import Copy, Operation, PageRuns
from hw.device import Control, Step, Timing
from hw.storage.checksums import Checksums
from hw.storage.gds import GdsTransport
from hw.storage.host import BLOCK_BYTES, HostMemory
from hw.storage.moves import Bounced, InPlace, Transport
from hw.storage.plan import Extent, merge
from hw.storage.pread import PreadTransport
from hw.storage.slot_file import Access, Room, SlotFile
from hw.storage.uring import UringTransport

Backend = Literal["pread", "direct", "io_uring", "io_uring_cached", "gds"]
BACKENDS: tuple[Backend, ...] = get_args(Backend)
Checksum = Literal["none", "crc32"]
MOST_WORKERS = 256
LARGEST_REQUEST_BYTES = 1 << 30


class FileStore:
    """An open L3. Any number of threads may read and write different slots and pages at once."""

    def __init__(
        self,
        path: Path | None,
        pages: int,
        page_bytes: int,
        host: HostMemory,
        *,
        backend: Backend = "pread",
        workers: int = 16,
        depth: int = 64,
        request_bytes: int = 4 << 20,
        checksum: Checksum = "none",
        room: Room = "reserved",
    ) -> None:
        """`path`: a file, a folder, or None for the system's temporary folder (`slot_file`).
        `workers`: threads for each direction, ours or (io_uring_cached) the kernel's. `depth`:
        io_uring's requests under way, for each direction. `request_bytes`: the most that one
        request moves. Raises InputError.
        """
        assert host.page_bytes == page_bytes, "L2 and L3 have pages of one size"
        _allowed("the back-end", backend, BACKENDS)
        _allowed("checksum", checksum, get_args(Checksum))
        _allowed("room", room, get_args(Room))
        _within("pages", pages, 1, 1 << 48)
        _within("page_bytes", page_bytes, 1, 1 << 40)
        _within("workers", workers, 1, MOST_WORKERS)
        _within("request_bytes", request_bytes, BLOCK_BYTES, LARGEST_REQUEST_BYTES)
        self.backend: Backend = backend
        self.pages = pages
        self.page_bytes = page_bytes
        self._host = host
        access: Access = "O_DIRECT" if backend in {"direct", "io_uring"} else "page cache"
        self.bounces = _unaligned(host) if access == "O_DIRECT" else ""
        padded = -(-page_bytes // BLOCK_BYTES) * BLOCK_BYTES
        self.slot_bytes = padded if access == "O_DIRECT" else page_bytes
        self._users = 0
        self._transport: Transport | None = None
        self._checksums: Checksums | None = None
        self.file = SlotFile(path, pages, self.slot_bytes, access, room)
        try:
            memory = Bounced.memory_for(self.slot_bytes) if self.bounces else host
            self._transport = self._reach(memory, access, workers, depth)
            moves = InPlace(self._transport, self.slot_bytes, request_bytes)
            self._moves = Bounced(moves, memory, host) if self.bounces else moves
            if checksum == "crc32":
                self._checksums = Checksums(pages, host, workers)
        except BaseException:
            self.close()
            raise

    def _reach(self, memory: HostMemory, access: Access, workers: int, depth: int) -> Transport:
        region = memory.view(0, memory.pages)
        if self.backend in {"io_uring", "io_uring_cached"}:
            return UringTransport(self.file, memory.address, len(region), access, depth, workers)
        if self.backend == "gds":
            return GdsTransport(self.file, region, workers)
        return PreadTransport(self.file, region, access, workers)

    @property
    def name(self) -> str:
        """For messages."""
        return f"L3 file ({self.backend})"

    def describe(self) -> str:
        """What was opened, for people: one line."""
        transport = self._transport.describe() if self._transport else "closed"
        parts = [
            f"{self.name}: {self.file.path} on {self.file.filesystem}",
            f"{self.pages} pages of {self.page_bytes} bytes in slots of {self.slot_bytes}",
            transport,
        ]
        if self._checksums:
            parts.append("CRC-32 for each page")
        if self.bounces:
            parts.append(f"through a bounce buffer: {self.bounces}")
        return ", ".join(parts)

    def read(self, slots: PageRuns, pages: PageRuns) -> None:
        """Slots -> L2 pages, lists of the same length. Raises TransferError; the pages then hold
        rubbish.
        """
        extents = self._extents(slots, pages)
        self.file.check("reading")
        self._moves.read(extents)
        if self._checksums:
            self._checksums.verify(extents)

    def write(self, pages: PageRuns, slots: PageRuns) -> None:
        """L2 pages -> slots, lists of the same length. Raises TransferError; the slots then hold
        rubbish.
        """
        extents = self._extents(slots, pages)
        self.file.check("writing")
        if self._checksums:
            self._checksums.note(extents)
        self._moves.write(extents)

    def devices(self) -> tuple[S2H, H2S]:
        """The two devices of this store; when both are closed, so is the store."""
        return S2H(self), H2S(self)

    def close(self) -> None:
        """Close the file, and remove it unless its path was given. May be called twice."""
        if self._transport is not None:
            self._transport.close()
            self._transport = None
        if self._checksums is not None:
            self._checksums.close()
            self._checksums = None
        self.file.close()

    def enter(self) -> None:
        """One more device uses this store."""
        self._users += 1

    def leave(self) -> None:
        """One device less; the last one closes the store."""
        self._users -= 1
        if not self._users:
            self.close()

    def _extents(self, slots: PageRuns, pages: PageRuns) -> list[Extent]:
        for what, runs, capacity in (
            ("slot", slots, self.pages),
            ("page", pages, self._host.pages),
        ):
            for first, count in runs:
                assert 0 <= first <= first + count <= capacity, f"no such {what}: {first}, {count}"
        return merge(slots, pages)


class _FileDevice:
    """One direction of a store, for the worker thread of a lane."""

    def __init__(self, store: FileStore) -> None:
        self._store = store
        store.enter()

    @property
    def name(self) -> str:
        """For messages."""
        return self._store.name

    def close(self) -> None:
        """See `FileStore.devices`."""
        self._store.leave()


class S2H(_FileDevice):
    """L3 -> L2."""

    def run(self, operation: Operation, control: Control, steps: tuple[Step, ...] = ()) -> Timing:
        """Read the operation's pages. Raises TransferError."""
        assert isinstance(operation, Copy)
        assert operation.direction == "s2h"
        _named(operation)
        started_ns = time.monotonic_ns()
        self._store.read(operation.source, operation.target)
        return Timing(started_ns, time.monotonic_ns())


class H2S(_FileDevice):
    """L2 -> L3."""

    def run(self, operation: Operation, control: Control, steps: tuple[Step, ...] = ()) -> Timing:
        """Write the operation's pages. Raises TransferError."""
        assert isinstance(operation, Copy)
        assert operation.direction == "h2s"
        _named(operation)
        started_ns = time.monotonic_ns()
        self._store.write(operation.source, operation.target)
        return Timing(started_ns, time.monotonic_ns())


def _named(operation: Copy) -> None:
    for runs in (operation.source, operation.target):
        named = sum(count for _, count in runs)
        assert named == operation.pages, f"{operation.pages} pages, of which {named} are named"


def _unaligned(host: HostMemory) -> str:
    """Why O_DIRECT cannot use this memory in place; empty if it can."""
    if host.page_bytes % BLOCK_BYTES:
        return f"pages of {host.page_bytes} bytes are no multiple of {BLOCK_BYTES}"
    if host.address % BLOCK_BYTES:
        return f"L2 does not begin at a multiple of {BLOCK_BYTES}"
    return ""


def _allowed(what: str, value: str, allowed: tuple[str, ...]) -> None:
    if value not in allowed:
        raise InputError(f"L3 file: {what} is {value!r}; allowed are {', '.join(allowed)}")


def _within(what: str, value: int, least: int, most: int) -> None:
    if not least <= value <= most:
        raise InputError(f"L3 file: {what} is {value}; allowed is {least} to {most}")
