"""Transport: `preadv` and `pwritev` in a bounded crew of threads, through the page cache or not.

The kernel may do less than it was asked for (a signal, the end of the file, a full disk): what is
missing is asked for again, until the kernel does nothing or says why. The two directions have
threads of their own, so that reads, which a request waits for, never queue behind writes.
"""

from __future__ import annotations

import os
from collections.abc import Iterable

from hw.storage.crew import Crew
from hw.storage.host import BLOCK_BYTES
from hw.storage.plan import Requests
from hw.storage.slot_file import Access, SlotFile


class PreadTransport:
    """Moves bytes between a file and one region of memory."""

    fence_bytes = 1 << 62  # no multiple of it lies in memory
    last_bytes = 0

    def __init__(self, file: SlotFile, region: memoryview, access: Access, workers: int) -> None:
        """`region`: what the requests' memory offsets count in."""
        self._file = file
        self._region = region
        self._step_bytes = BLOCK_BYTES if access == "O_DIRECT" else 1
        self.at_once = workers
        self._readers = Crew("L3 read", workers)
        self._writers = Crew("L3 write", workers)

    def describe(self) -> str:
        """For people."""
        return f"{self.at_once} threads each way"

    def read(self, parts: Iterable[Requests]) -> None:
        """File -> memory. Raises TransferError when nothing is under way any more."""
        self._readers.stream(self._read, (part.tolist() for part in parts))

    def write(self, parts: Iterable[Requests]) -> None:
        """Memory -> file. Raises TransferError when nothing is under way any more."""
        self._writers.stream(self._write, (part.tolist() for part in parts))

    def close(self) -> None:
        """End the threads."""
        self._readers.close()
        self._writers.close()

    def _read(self, request: list[int]) -> None:
        position, memory, size = request
        while True:
            try:
                done = os.preadv(self._file.fd, [self._region[memory : memory + size]], position)
            except InterruptedError:
                continue
            except OSError as error:
                raise self._file.failure("reading", position, error) from error
            if done == size:
                return
            # O_DIRECT goes on at a whole block only.
            done -= done % self._step_bytes
            if not done:
                raise self._file.failure("reading", position, "the file ends here")
            position, memory, size = position + done, memory + done, size - done

    def _write(self, request: list[int]) -> None:
        position, memory, size = request
        while True:
            try:
                done = os.pwritev(self._file.fd, [self._region[memory : memory + size]], position)
            except InterruptedError:
                continue
            except OSError as error:
                raise self._file.failure("writing", position, error) from error
            if done == size:
                return
            done -= done % self._step_bytes
            if not done:
                raise self._file.failure("writing", position, "the disk took nothing")
            position, memory, size = position + done, memory + done, size - done
