"""Many copies within host memory, shared among threads.

What the staged back-end needs for pages too fragmented for a DMA each. Threads help although this
is Python: `memmove` lets go of the interpreter's lock. Refuses to order the copies.
"""

from __future__ import annotations

import ctypes
from concurrent.futures import ThreadPoolExecutor


class HostCopier:
    """`threads` threads, started when there is enough for them."""

    def __init__(self, threads: int) -> None:
        self._threads = threads
        self._pool: ThreadPoolExecutor | None = None

    def copy(self, moves: list[tuple[int, int, int]]) -> None:
        """Carry out (target, source, bytes), in no order."""
        if self._threads == 1 or len(moves) < 2 * self._threads:
            _memmove_all(moves)
            return
        if self._pool is None:
            self._pool = ThreadPoolExecutor(self._threads, thread_name_prefix="host-copy")
        shares = [moves[share :: self._threads] for share in range(self._threads)]
        for _ in self._pool.map(_memmove_all, shares):
            pass

    def close(self) -> None:
        """End the threads."""
        if self._pool is not None:
            self._pool.shutdown()
            self._pool = None


def _memmove_all(moves: list[tuple[int, int, int]]) -> None:
    for target, source, size_bytes in moves:
        ctypes.memmove(target, source, size_bytes)
