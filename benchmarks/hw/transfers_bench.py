"""What the transfers' benchmarks have in common: pools of a real model's geometry, the back-ends
over them, and one plain pinned copy of the same bytes as their ceiling.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable

import numpy as np
import torch
from transfers_report import GIB

from hicache.operations import PageRuns
from hw.pools import DevicePool, HostPool, KvLayout
from hw.transfers.auto import Auto, candidates_of, measured
from hw.transfers.backend import Copied
from hw.transfers.driver import Direction, Driver
from hw.transfers.lists import runs_of
from hw.transfers.queues import CudaQueue

DIRECTIONS: tuple[Direction, ...] = ("h2d", "d2h")


def qwen3_8b(page_size_tokens: int) -> KvLayout:
    """144 KiB a token."""
    return KvLayout(
        layers=36, kv_heads=8, head_dim_k=128, head_dim_v=128,
        page_size_tokens=page_size_tokens, dtype="bf16",
    )  # fmt: skip


def timed_us(act: Callable[[], object], repeats: int) -> float:
    """The median time of `act()`."""
    times = []
    for _ in range(repeats):
        start = time.monotonic_ns()
        act()
        times.append(time.monotonic_ns() - start)
    return statistics.median(times) / 1e3


class Bench:
    """Pools of one page size, the back-ends over them, and the link's ceiling."""

    def __init__(self, page_size_tokens: int, driver: Driver, pool_bytes: int = 3 * GIB) -> None:
        self.layout = qwen3_8b(page_size_tokens)
        self.page_size_tokens = page_size_tokens
        pages = pool_bytes // self.layout.page_bytes
        self.device_pool = DevicePool(self.layout, pages, "cuda")
        start = time.monotonic()
        self.host_pool = HostPool(self.layout, pages, driver, chunk_bytes=4 * GIB)
        self.pin_s_per_gib = (time.monotonic() - start) / (pool_bytes / GIB)
        self.queue = CudaQueue(driver, torch.device("cuda"))
        self.backends = candidates_of(self.device_pool, self.host_pool, driver, self.queue)
        start = time.monotonic()
        self.auto = Auto(self.backends, measured(self.backends, driver))
        self.measure_s = time.monotonic() - start
        self.generator = np.random.default_rng(2)

    def plain(self, direction: Direction, size_bytes: int) -> Callable[[], int]:
        """One contiguous pinned copy, and the wait for it."""
        pair = (self.device_pool.address, self.host_pool.address)
        target, source = pair if direction == "h2d" else pair[::-1]

        def act() -> int:
            self.queue.start()
            self.queue.copy(target, source, size_bytes)
            return self.queue.stop()

        return act

    def lists(self, count: int) -> tuple[PageRuns, PageRuns]:
        """Random pages of both pools."""
        return tuple(  # pyright: ignore[reportReturnType]
            runs_of(self.generator.permutation(pool.pages)[:count])
            for pool in (self.device_pool, self.host_pool)
        )

    def copy(self, name: str, direction: Direction, lists: tuple) -> Callable[[], Copied]:
        backend = self.auto if name == "auto" else self.backends[name]
        source, target = lists if direction == "d2h" else lists[::-1]
        # As a run's worker does, whose thread gives the device nothing else.
        return lambda: backend.copy(direction, source, target, alone=True)

    def close(self) -> None:
        for backend in self.backends.values():
            backend.close()
        self.host_pool.close()
