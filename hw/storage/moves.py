"""Extents of pages over a transport: in place, or by way of aligned memory.

O_DIRECT wants every address, offset and size to be a multiple of BLOCK_BYTES. Where the pages are
not, slots are padded in the file and pages go through a bounce buffer, one round after the other:

    file     |slot 7 ..pad|slot 8 ..pad|          padded slots, one request for both
    bounce   |page    ..  |page    ..  |          the same, aligned
    L2       |page 3 |page 4 |                    copied from or to here, one by one
"""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Iterable, Iterator
from typing import Protocol

import numpy as np

from hw.storage.host import BLOCK_BYTES, HostBuffer, HostMemory
from hw.storage.plan import Extents, Requests, request_size, requests, tapered

BOUNCE_BYTES = 64 << 20  # for each direction


class Transport(Protocol):
    """Moves bytes between the file and one region of memory; returns, or raises TransferError, when
    nothing is under way any more. The parts of an operation may be asked for while earlier ones are
    being moved; after an error none is.
    """

    fence_bytes: int
    """No request may lie on both sides of a multiple of this in memory."""

    last_bytes: int
    """What the last requests of a read are to be cut to (`plan.tapered`), or 0."""

    @property
    def at_once(self) -> int:
        """How many requests are served together."""
        ...

    def describe(self) -> str:
        """What it is, for people."""
        ...

    def read(self, parts: Iterable[Requests]) -> None:
        """File -> memory."""
        ...

    def write(self, parts: Iterable[Requests]) -> None:
        """Memory -> file."""
        ...

    def close(self) -> None:
        """Let go of threads and descriptors."""
        ...


class InPlace:
    """Straight between the slots and the pages of the region."""

    def __init__(self, transport: Transport, slot_bytes: int, request_bytes: int) -> None:
        self._transport = transport
        self.at_once = transport.at_once
        self._slot_bytes = slot_bytes
        self.request_bytes = max(1, request_bytes // BLOCK_BYTES) * BLOCK_BYTES

    def read(self, parts: Iterable[Extents]) -> None:
        """File -> memory."""
        self._transport.read(self.requests(parts, self._transport.last_bytes))

    def write(self, parts: Iterable[Extents]) -> None:
        """Memory -> file."""
        self._transport.write(self.requests(parts, 0))

    def requests(self, parts: Iterable[Extents], last_bytes: int) -> Iterator[Requests]:
        """The parts, cut; `last_bytes`: 0, or the last ones to this."""
        made = map(self._requests, parts)
        return tapered(made, self.at_once, last_bytes) if last_bytes else made

    def _requests(self, extents: Extents) -> Requests:
        total_bytes = int(extents[:, 2].sum()) * self._slot_bytes
        most_bytes = request_size(total_bytes, self.at_once, self.request_bytes)
        return requests(extents, self._slot_bytes, most_bytes, self._transport.fence_bytes)


class Bounced:
    """By way of `memory`, aligned, whose first half serves reads and whose second half writes."""

    def __init__(self, moves: InPlace, memory: HostMemory, host: HostMemory) -> None:
        """`moves`: between the file and `memory`."""
        self._moves = moves
        self._memory = memory
        self._host = host
        self._half = memory.pages // 2
        self._reading = threading.Lock()
        self._writing = threading.Lock()

    @staticmethod
    def memory_for(slot_bytes: int) -> HostBuffer:
        """What to bounce through."""
        return HostBuffer(2 * max(1, BOUNCE_BYTES // slot_bytes), slot_bytes)

    def read(self, parts: Iterable[Extents]) -> None:
        """File -> memory."""
        with self._reading:
            for part in _rounds(parts, self._half):
                aside = _aside(part, 0)
                self._moves.read([aside])
                for (_, page, count), (_, place, _) in _both(part, aside):
                    for i in range(count):
                        self._copy(self._host, page + i, self._memory, place + i)

    def write(self, parts: Iterable[Extents]) -> None:
        """Memory -> file."""
        with self._writing:
            for part in _rounds(parts, self._half):
                aside = _aside(part, self._half)
                for (_, page, count), (_, place, _) in _both(part, aside):
                    for i in range(count):
                        self._copy(self._memory, place + i, self._host, page + i)
                self._moves.write([aside])

    def _copy(self, target: HostMemory, to: int, source: HostMemory, of: int) -> None:
        # memmove lets other threads run; assigning to a memoryview does not.
        ctypes.memmove(
            target.address + to * target.page_bytes,
            source.address + of * source.page_bytes,
            self._host.page_bytes,
        )


def _both(part: Extents, aside: Extents) -> Iterator[tuple[list[int], list[int]]]:
    return zip(part.tolist(), aside.tolist(), strict=True)


def _rounds(parts: Iterable[Extents], most: int) -> Iterator[Extents]:
    """The extents, at most `most` pages at a time."""
    part: list[tuple[int, int, int]] = []
    room = most
    for slot, page, count in (extent for extents in parts for extent in extents.tolist()):
        while count:
            now = min(count, room)
            part.append((slot, page, now))
            slot, page, count, room = slot + now, page + now, count - now, room - now
            if not room:
                yield np.array(part, np.int64)
                part, room = [], most
    if part:
        yield np.array(part, np.int64)


def _aside(extents: Extents, place: int) -> Extents:
    """The same slots, with pages of the bounce buffer from `place` on."""
    aside = extents.copy()
    lengths = extents[:, 2]
    aside[:, 1] = place + np.cumsum(lengths) - lengths
    return aside
