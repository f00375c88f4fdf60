"""L3 in a file: pages move between L2 and the slots of one file, and both directions are devices.

    L2 pages (HostMemory) <-- transport --> slots (SlotFile)

    back-end          how                                    page cache
    pread             preadv, pwritev in threads             used
    direct            the same with O_DIRECT                 passed by
    io_uring          one thread, many requests, O_DIRECT    passed by
    io_uring_cached   a ring in each of several threads      used
    gds               kvikio                                 passed by where cuFile can
    auto              pread; but io_uring_cached for pages under 2 MiB where pread's threads are
                      Python's (`native`: they are C where that was made) and the kernel lets us

Pages are read and written in place; where O_DIRECT forbids that, `bounces` says why. The store does
what the page lists say and nothing else: no cache, no order beyond one operation, no fsync (L3 is
not read back after a restart). An operation that fails is a TransferError, and the store goes on. A
back-end that was asked for is used, or the store does not open.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Literal, get_args

import numpy as np

from hicache.errors import InputError
from hicache.operations import Copy, Operation, PageRuns
from hw.device import Control, Step, Timing
from hw.storage import plan_native
from hw.storage.checksums import Checksums
from hw.storage.gds import GdsTransport
from hw.storage.host import BLOCK_BYTES, HostMemory
from hw.storage.moves import Bounced, InPlace, Transport
from hw.storage.native import NativeTransport, library
from hw.storage.plan import Extents, Requests, in_parts, merge
from hw.storage.plan_native import NativePlan
from hw.storage.pread import PreadTransport
from hw.storage.slot_file import Access, Room, SlotFile
from hw.storage.under_way import UnderWay
from hw.storage.uring import UringTransport, allowed

Backend = Literal["auto", "pread", "direct", "io_uring", "io_uring_cached", "gds"]
BACKENDS: tuple[Backend, ...] = get_args(Backend)
Checksum = Literal["none", "crc32"]
MOST_WORKERS = 256
LARGEST_REQUEST_BYTES = 1 << 30
# Through the cache, what a batch costs Python is shared by all its copies.
DEPTHS: dict[Access, int] = {"page cache": 512, "O_DIRECT": 64}
# Below it, a thread of Python that reads page by page costs more than the copy costs a core.
SMALL_PAGE_BYTES = 2 << 20


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
        depth: int | None = None,
        request_bytes: int = 4 << 20,
        checksum: Checksum = "none",
        room: Room = "reserved",
    ) -> None:
        """`path`: a file, a folder, or None for the system's temporary folder (`slot_file`).
        `workers`: threads for each direction. `depth`: io_uring's requests under way, of each ring
        (io_uring_cached: a thread has one; else a direction); None: 512 through the cache, 64 past
        it. `request_bytes`: the most that one request moves. Raises InputError.
        """
        assert host.page_bytes == page_bytes, "L2 and L3 have pages of one size"
        _allowed("the back-end", backend, BACKENDS)
        _allowed("checksum", checksum, get_args(Checksum))
        _allowed("room", room, get_args(Room))
        _within("pages", pages, 1, 1 << 48)
        _within("page_bytes", page_bytes, 1, 1 << 40)
        _within("workers", workers, 1, MOST_WORKERS)
        _within("request_bytes", request_bytes, BLOCK_BYTES, LARGEST_REQUEST_BYTES)
        self.backend: Backend = _picked(page_bytes) if backend == "auto" else backend
        self.pages = pages
        self.page_bytes = page_bytes
        self._host = host
        access: Access = "O_DIRECT" if self.backend in {"direct", "io_uring"} else "page cache"
        self.bounces = _unaligned(host) if access == "O_DIRECT" else ""
        padded = -(-page_bytes // BLOCK_BYTES) * BLOCK_BYTES
        self.slot_bytes = padded if access == "O_DIRECT" else page_bytes
        self._users = 0
        self._under_way = UnderWay()
        self._first_runs: int | None = None
        self._plan: NativePlan | None = None
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
            elif isinstance(self._transport, NativeTransport) and not self.bounces:
                self._plan = self._planned(moves)
        except BaseException:
            self.close()
            raise

    def _reach(
        self, memory: HostMemory, access: Access, workers: int, depth: int | None
    ) -> Transport:
        region = memory.view(0, memory.pages)
        if self.backend in {"io_uring", "io_uring_cached"}:
            depth = DEPTHS[access] if depth is None else depth
            return UringTransport(self.file, memory.address, len(region), access, depth, workers)
        if self.backend == "gds":
            return GdsTransport(self.file, region, workers)
        loop = library()
        if loop is None:
            return PreadTransport(self.file, region, access, workers)
        self._first_runs = plan_native.FIRST_RUNS
        return NativeTransport(loop, self.file, region, memory.address, access, workers)

    def _planned(self, moves: InPlace) -> NativePlan | None:
        """What plans operations that go straight between slots and pages, where it was compiled."""
        plan = plan_native.library()
        if plan is None:
            return None

        capacities = self.pages, self._host.pages

        # Not of `self`: a store that is forgotten is closed at once.
        def otherwise(slots: PageRuns, pages: PageRuns, last_bytes: int) -> Iterator[Requests]:
            made = _extents(slots, pages, capacities, plan_native.FIRST_RUNS)
            return moves.requests(made, last_bytes)

        return NativePlan(
            plan, *capacities, self.page_bytes, moves.at_once, moves.request_bytes, otherwise
        )

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
        with self._under_way:
            self.file.check("reading")
            if self._plan is not None and self._transport is not None:
                self._transport.read(self._plan.parts(slots, pages, self._transport.last_bytes))
                return
            extents = self._extents(slots, pages)
            if self._checksums is None:
                self._moves.read(extents)
                return
            whole = np.concatenate(list(extents))
            self._moves.read((whole,))
            self._checksums.verify(whole)

    def write(self, pages: PageRuns, slots: PageRuns) -> None:
        """L2 pages -> slots, lists of the same length. Raises TransferError; the slots then hold
        rubbish.
        """
        with self._under_way:
            self.file.check("writing")
            if self._plan is not None and self._transport is not None:
                self._transport.write(self._plan.parts(slots, pages, 0))
                return
            extents = self._extents(slots, pages)
            if self._checksums is None:
                self._moves.write(extents)
                return
            whole = np.concatenate(list(extents))
            self._checksums.note(whole)
            self._moves.write((whole,))

    def devices(self) -> tuple[S2H, H2S]:
        """The two devices of this store; when both are closed, so is the store."""
        return S2H(self), H2S(self)

    def close(self) -> None:
        """Close the file, and remove it unless its path was given, once no other thread is in an
        operation. May be called twice.
        """
        self._under_way.close()
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

    def _extents(self, slots: PageRuns, pages: PageRuns) -> Iterator[Extents]:
        return _extents(slots, pages, (self.pages, self._host.pages), self._first_runs)


def _extents(
    slots: PageRuns, pages: PageRuns, capacities: tuple[int, int], first_runs: int | None
) -> Iterator[Extents]:
    for part in in_parts(slots, pages, first_runs):
        for what, runs, capacity in zip(("slot", "page"), part, capacities, strict=True):
            if not runs.size:
                continue
            ends = runs[:, 0] + runs[:, 1]  # of two huge numbers negative, or small
            assert runs.min() >= 0, f"no such {what}"
            assert max(runs.max(), ends.max()) <= capacity, f"no such {what}"
        yield merge(*part)


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


def _picked(page_bytes: int) -> Backend:
    """What "auto" is for pages of this size, on this machine."""
    if library() is None and page_bytes < SMALL_PAGE_BYTES and allowed():
        return "io_uring_cached"
    return "pread"


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
