"""The L2 memory as the file store sees it: pages of bytes, one after the other, at an address.

    address                                        address + pages * page_bytes
    | page 0 | page 1 | page 2 | ...                    |

The store reads and writes this memory in place. It neither allocates nor frees the L2 pool, and it
does not look into a page. `HostBuffer` is such memory without a GPU: for the CPU mode and tests.
"""

from __future__ import annotations

import ctypes
import mmap
from typing import Protocol

from hicache.errors import InputError

BLOCK_BYTES = 4096
"""What O_DIRECT wants addresses, offsets and sizes to be multiples of. Some disks take 512; 4096
satisfies all of them.
"""


class HostMemory(Protocol):
    """Page-major memory of the host, usually pinned."""

    @property
    def address(self) -> int:
        """Where page 0 begins."""
        ...

    @property
    def page_bytes(self) -> int:
        """Size of one page; page i begins at `address + i * page_bytes`."""
        ...

    @property
    def pages(self) -> int:
        """How many pages there are."""
        ...

    def view(self, first: int, count: int) -> memoryview:
        """The bytes of `count` pages from `first` on, writable, one dimension of format "B"."""
        ...


class HostBuffer:
    """Anonymous private memory, aligned to the pages of the machine and zero at first.

    Private, since older kernels register only such memory with io_uring.
    """

    def __init__(self, pages: int, page_bytes: int) -> None:
        """Raises InputError if the machine does not have the memory."""
        self.pages = pages
        self.page_bytes = page_bytes
        size_bytes = max(1, pages * page_bytes)
        try:
            self._memory = mmap.mmap(-1, size_bytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        except (OSError, ValueError, OverflowError) as error:
            raise InputError(f"no host memory for {pages} pages of {page_bytes} bytes") from error
        self._bytes = memoryview(self._memory)
        self.address = ctypes.addressof(ctypes.c_char.from_buffer(self._memory))

    def view(self, first: int, count: int) -> memoryview:
        """See HostMemory."""
        assert 0 <= first <= first + count <= self.pages, (first, count, self.pages)
        return self._bytes[first * self.page_bytes : (first + count) * self.page_bytes]
