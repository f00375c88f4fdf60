"""What the pages in the file should be: a CRC-32 for each slot, in memory.

The sums are made from L2 before a page is written and compared with L2 after it was read, so that
all that lies between is covered: a wrong slot, a lost write, a file that another program wrote.
zlib's CRC-32 is in the standard library, lets other threads run, and misses no error of up to 32
bits in a row; what else was tried is in docs/decisions/0011-io-uring-by-system-calls.md.
"""

from __future__ import annotations

import zlib

from hicache.errors import TransferError
from hw.storage.crew import Crew
from hw.storage.host import HostMemory
from hw.storage.plan import Extents


class Checksums:
    """One sum a slot; None while nothing was written there."""

    def __init__(self, slots: int, host: HostMemory, workers: int) -> None:
        self._sums: list[int | None] = [None] * slots
        self._host = host
        self._crew = Crew("L3 checksum", workers)

    def note(self, extents: Extents) -> None:
        """The pages of `extents` are about to be written to their slots."""
        self._crew.each(self._note, _pages(extents))

    def verify(self, extents: Extents) -> None:
        """The pages of `extents` were read. Raises TransferError for one that is not what was
        written.
        """
        self._crew.each(self._verify, _pages(extents))

    def close(self) -> None:
        """End the threads."""
        self._crew.close()

    def _note(self, place: tuple[int, int]) -> None:
        slot, page = place
        self._sums[slot] = zlib.crc32(self._host.view(page, 1))

    def _verify(self, place: tuple[int, int]) -> None:
        slot, page = place
        wanted, found = self._sums[slot], zlib.crc32(self._host.view(page, 1))
        if wanted is None:
            raise TransferError(f"reading slot {slot} failed: nothing was written there")
        if wanted != found:
            raise TransferError(
                f"reading slot {slot} failed: the page's checksum is {found:08x}, and was "
                f"{wanted:08x} when it was written"
            )


def _pages(extents: Extents) -> list[tuple[int, int]]:
    return [(slot + i, page + i) for slot, page, count in extents.tolist() for i in range(count)]
