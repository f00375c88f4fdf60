"""The host by itself: copies in memory by threads, and, with a GPU, how long pinning takes.

`host.copy` stands for what moves pages of L2 that lie scattered, where a back-end does that with
the CPU: n threads, each with its part, memmove (which lets other threads run).
"""

from __future__ import annotations

import ctypes
import os
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

from calibrate.points import NO_FLOOR, Described, Effort, Floor, Point
from hw.storage.host import HostBuffer

if TYPE_CHECKING:
    from hw.pinned import Registrar

COPIED_BYTES = 256 << 20
PINNED_BYTES = (16 << 20, 128 << 20, 1 << 30)


class HostProbe:
    """See `calibrate.points.Probe`."""

    name = "host"

    def __init__(
        self, registrar: Registrar | None = None, copied_bytes: int = COPIED_BYTES
    ) -> None:
        """`registrar`: who pins; None: nothing is pinned."""
        self._registrar = registrar
        self._copied = copied_bytes
        self._buffers: list[HostBuffer] = []
        self._pools: list[ThreadPoolExecutor] = []

    def describe(self) -> dict[str, Described]:
        return {
            "host.copy": Described(
                ("threads", "bytes"), "a copy in the host's memory, cut among the threads"
            ),
            "host.pin": Described(("bytes",), "taking, filling and pinning host memory"),
        }

    def points(self, effort: Effort) -> list[Point]:
        threads = [1, 2, 4, 8, 16]
        most = max(1, os.cpu_count() or 1)
        points = [
            Point("host.copy", (each, self._copied), "fit", 0.5)
            for each in threads
            if each <= max(2, most)
        ]
        if self._registrar is not None:
            points += [
                Point("host.pin", (size,), "fit", 0.2 + 3 * size / (1 << 30))
                for size in PINNED_BYTES
            ]
        return points

    def open(self) -> None:
        page = 1 << 20
        for _ in range(2):
            buffer = HostBuffer(-(-self._copied // page), page)
            ctypes.memset(buffer.address, 1, self._copied)
            self._buffers.append(buffer)

    def floor(self, point: Point) -> Floor:
        return NO_FLOOR

    def sampler(self, point: Point) -> Callable[[], int]:
        if point.series == "host.pin":
            return self._pin(point.at[0])
        threads, size = point.at
        source, target = (buffer.address for buffer in self._buffers)
        each = size // threads
        pool = ThreadPoolExecutor(threads)
        self._pools.append(pool)
        parts = [(target + i * each, source + i * each, each) for i in range(threads)]

        def act() -> int:
            begun_ns = time.monotonic_ns()
            list(pool.map(lambda part: ctypes.memmove(*part), parts))
            return time.monotonic_ns() - begun_ns

        return act

    def _pin(self, size: int) -> Callable[[], int]:
        from hw.pinned import PinnedMemory

        def act() -> int:
            begun_ns = time.monotonic_ns()
            memory = PinnedMemory(size, self._registrar)
            took = time.monotonic_ns() - begun_ns
            memory.close()
            return took

        return act

    def close(self) -> None:
        for pool in self._pools:
            pool.shutdown()
        self._pools.clear()
        self._buffers.clear()
