"""The buffers that staged transfers go through: some on the device, and as many pinned on the host,
which only fragmented pages need.

They are made when first needed, and kept: how long that took is what `prepare_*` says. Refuses to
know what is in them; whoever fills one again has seen to it that it is empty.
"""

from __future__ import annotations

import time

import torch

from hw.pinned import PinnedMemory
from hw.pools import DevicePool, HostPool
from hw.transfers.driver import Driver
from hw.transfers.queues import Queue


class WorkBuffers:
    """`count` buffers of `chunk_pages` host pages on either side."""

    def __init__(
        self,
        device_pool: DevicePool,
        host_pool: HostPool,
        driver: Driver | None,
        chunk_pages: int,
        count: int,
    ) -> None:
        self.chunk_pages = chunk_pages
        self.count = count
        self._device = device_pool.device
        self._driver = driver
        self._step_bytes = chunk_pages * host_pool.page_bytes
        self._work: torch.Tensor | None = None
        self._work_start = 0
        self._pinned: PinnedMemory | None = None

    @property
    def has_pinned(self) -> bool:
        """Whether the host's are there."""
        return self._pinned is not None

    def prepare_work(self, queue: Queue) -> int:
        """Make the device's, for work of `queue`. Returns how long it took, in ns: 0 if they were
        there.
        """
        if self._work is not None:
            return 0
        start_ns = time.monotonic_ns()
        with queue.running():
            self._work = torch.empty(
                self.count * self._step_bytes, dtype=torch.uint8, device=self._device
            )
        self._work_start = self._work.data_ptr()
        return time.monotonic_ns() - start_ns

    def prepare_pinned(self) -> int:
        """Likewise the host's."""
        if self._pinned is not None:
            return 0
        start_ns = time.monotonic_ns()
        size_bytes = self.count * self._step_bytes
        # One chunk: a DMA must not lie across two pinned pieces.
        self._pinned = PinnedMemory(size_bytes, self._driver, chunk_bytes=size_bytes + 4096)
        return time.monotonic_ns() - start_ns

    def work_address(self, buffer: int) -> int:
        """Where one of the device's begins."""
        assert self._work is not None
        return self._work_start + buffer * self._step_bytes

    def pinned_address(self, buffer: int) -> int:
        """Where one of the host's begins."""
        assert self._pinned is not None
        return self._pinned.address + buffer * self._step_bytes

    def close(self) -> None:
        """Give them back."""
        self._work = None
        if self._pinned is not None:
            self._pinned.close()
            self._pinned = None
