"""Copies through a work buffer on the device, so that what crosses PCIe is one plain piece.

    d2h   pages --gather kernel--> buffer --DMA--> L2 pages, or, where those are fragmented,
                                           --DMA--> pinned buffer --CPU--> L2 pages
    h2d   the same backwards, with a scatter kernel

A transfer is cut into chunks; with several buffers, the kernel of one chunk, the DMA of another and
the CPU's share of a third run at once:

    kernel  |0|1|2|     |3|             a buffer is used again once its DMA (d2h) or its scatter
    DMA       |-0-|-1-|-2-|-3-|         (h2d) is over
    CPU           |0| |1| |2| |3|       (fragmented only)

Buffers are made when first needed, and kept: that time is the operation's set-up. Refuses to copy
by CPU what is long enough for a DMA of its own: `run_bytes`.
"""

from __future__ import annotations

import os
import time
from collections import deque
from typing import NamedTuple

import numpy as np
import torch

from hw.pinned import PinnedMemory
from hw.pools import DevicePool, HostPool
from hw.transfers import kernels
from hw.transfers.backend import Extent, Pages, TransferBackend, extents
from hw.transfers.driver import Direction, Driver
from hw.transfers.host_copy import HostCopier
from hw.transfers.layerwise import LayerLoad
from hw.transfers.queues import Mark, Queue, Rows, make_queue

CHUNK_BYTES = 16 << 20
BUFFERS = 3
# A DMA costs about a microsecond on its own; in that time 64 KiB cross a Gen5 link.
RUN_BYTES = 128 << 10
# A layer group is a compromise: the first layer is ready sooner, or fewer and larger DMAs.
LAYER_GROUPS = 8


class _Chunk(NamedTuple):
    """`pages` pages of the lists, from place `first`.

    runs: of host pages; an extent's `device` is its place in the buffer.
    """

    first: int
    pages: int
    runs: list[Extent]
    fragmented: bool


class Staged(TransferBackend):
    """See the module. Sizes in bytes; `copy_threads`: how many share the CPU's copies."""

    name = "staged"

    def __init__(
        self,
        device_pool: DevicePool,
        host_pool: HostPool,
        driver: Driver | None = None,
        *,
        chunk_bytes: int = CHUNK_BYTES,
        buffers: int = BUFFERS,
        run_bytes: int = RUN_BYTES,
        copy_threads: int | None = None,
        layer_groups: int = LAYER_GROUPS,
    ) -> None:
        super().__init__(device_pool, host_pool, driver)
        assert buffers >= 1
        self.chunk_pages = max(1, chunk_bytes // host_pool.page_bytes)
        self.layer_groups = layer_groups
        self._buffers = buffers
        self._run_bytes = run_bytes
        self._tiling = kernels.tiling(self.layout)
        self._dma = make_queue(device_pool.device, driver)
        self._max_pitch = 1 << 62 if driver is None else driver.max_pitch_bytes
        self._work: torch.Tensor | None = None
        self._pinned: PinnedMemory | None = None
        threads = copy_threads or min(8, os.cpu_count() or 1)
        self._copier = HostCopier(threads)

    def close(self) -> None:
        """Give the buffers back."""
        super().close()
        self._copier.close()
        self._work = None
        if self._pinned is not None:
            self._pinned.close()
            self._pinned = None

    def _queues(self) -> tuple[Queue, ...]:
        return (self.queue, self._dma)

    # Whole pages ----------------------------------------------------------------------------

    def _move(self, direction: Direction, pages: Pages) -> int:
        chunks = self._chunks(pages)
        setup_ns = self._prepare(any(chunk.fragmented for chunk in chunks))
        lists = self._lists(pages)
        self._dma.wait(self.queue.mark())
        if direction == "d2h":
            return setup_ns + self._store(chunks, lists[0])
        return setup_ns + self._load(chunks, lists[0])

    def _store(self, chunks: list[_Chunk], device_pages: torch.Tensor) -> int:
        setup_ns = 0
        sent: dict[int, Mark] = {}  # buffer -> its last DMA
        arriving: deque[tuple[int, Mark, _Chunk]] = deque()
        last: Mark | None = None
        for number, chunk in enumerate(chunks):
            buffer = number % self._buffers
            if buffer in sent:
                self.queue.wait(sent[buffer])
            setup_ns += self._launch("d2h", chunk, device_pages, buffer)
            self._dma.wait(self.queue.mark())
            self._transfer("d2h", chunk, buffer)
            last = sent[buffer] = self._dma.mark()
            if chunk.fragmented:
                arriving.append((number, last, chunk))
            # The next chunk's buffer must be empty by then; after the last one, all of them.
            keep = number + 1 - self._buffers if number + 1 < len(chunks) else number
            while arriving and arriving[0][0] <= keep:
                self._unpack(*arriving.popleft())
        assert last is not None
        self.queue.wait(last)
        return setup_ns

    def _load(self, chunks: list[_Chunk], device_pages: torch.Tensor) -> int:
        setup_ns = 0
        sent: dict[int, Mark] = {}
        emptied: dict[int, Mark] = {}  # buffer -> its last scatter
        for number, chunk in enumerate(chunks):
            buffer = number % self._buffers
            if chunk.fragmented:
                if buffer in sent:
                    sent[buffer].synchronize()
                self._pack(chunk, buffer)
            if buffer in emptied:
                self._dma.wait(emptied[buffer])
            self._transfer("h2d", chunk, buffer)
            sent[buffer] = self._dma.mark()
            self.queue.wait(sent[buffer])
            setup_ns += self._launch("h2d", chunk, device_pages, buffer)
            emptied[buffer] = self.queue.mark()
        return setup_ns

    def _chunks(self, pages: Pages) -> list[_Chunk]:
        total, found = len(pages.host), []
        for first in range(0, total, self.chunk_pages):
            count = min(self.chunk_pages, total - first)
            runs = self._host_runs(pages.host[first : first + count])
            fragmented = count * self.host_pool.page_bytes < len(runs) * self._run_bytes
            # One page alone is consecutive, however small.
            found.append(_Chunk(first, count, runs, fragmented and len(runs) > 1))
        return found

    def _host_runs(self, host: np.ndarray) -> list[Extent]:
        places = np.arange(len(host), dtype=np.int64)
        return extents(Pages(places, host), self.host_pool.pages_per_chunk)

    def _transfer(self, direction: Direction, chunk: _Chunk, buffer: int) -> None:
        """The DMA between the device's buffer and the host's pages, or the host's buffer."""
        stride, work = self.host_pool.page_bytes, self._work_address(buffer)
        if chunk.fragmented:
            pairs = [(work, self._pinned_address(buffer), chunk.pages * stride)]
        else:
            pairs = [
                (
                    work + run.device * stride,
                    self.host_pool.page_address(run.host),
                    run.pages * stride,
                )
                for run in chunk.runs
            ]
        for device, host, size_bytes in pairs:
            if direction == "h2d":
                self._dma.copy(device, host, size_bytes)
            else:
                self._dma.copy(host, device, size_bytes)

    def _pack(self, chunk: _Chunk, buffer: int) -> None:
        self._copier.copy([(there, page, size) for page, there, size in self._moves(chunk, buffer)])

    def _unpack(self, number: int, arrived: Mark, chunk: _Chunk) -> None:
        arrived.synchronize()
        self._copier.copy(self._moves(chunk, number % self._buffers))

    def _moves(self, chunk: _Chunk, buffer: int) -> list[tuple[int, int, int]]:
        """(address of a run of pages, address in the pinned buffer, bytes)."""
        stride, pinned = self.host_pool.page_bytes, self._pinned_address(buffer)
        return [
            (
                self.host_pool.page_address(run.host),
                pinned + run.device * stride,
                run.pages * stride,
            )
            for run in chunk.runs
        ]

    def _launch(
        self, direction: Direction, chunk: _Chunk, device_pages: torch.Tensor, buffer: int
    ) -> int:
        return self._kernel(
            direction,
            device_pages,
            (chunk.first, chunk.pages),
            self._work_address(buffer),
            self.host_pool.page_bytes,
            (0, self.layout.layers),
        )

    # Groups of layers -----------------------------------------------------------------------

    def _move_layers(self, pages: Pages, load: LayerLoad) -> int:
        setup_ns = self._prepare(needs_pinned=False)
        lists = self._lists(pages)
        self._dma.wait(self.queue.mark())
        layers = self.layout.layers
        size = -(-layers // min(self.layer_groups, layers))
        emptied: dict[int, Mark] = {}
        number = 0
        for first in range(0, layers, size):
            group = (first, min(size, layers - first))
            row_bytes = group[1] * self.layout.layer_bytes
            step = self.chunk_pages * self.host_pool.page_bytes // row_bytes
            for start in range(0, len(pages.host), step):
                part = (start, min(step, len(pages.host) - start))
                buffer = number % self._buffers
                number += 1
                if buffer in emptied:
                    self._dma.wait(emptied[buffer])
                self._transfer_group(pages.host[start : start + part[1]], group, buffer)
                self.queue.wait(self._dma.mark())
                # The buffer has no layers before the group: layer 0 would begin before it.
                base = self._work_address(buffer) - first * self.layout.layer_bytes
                setup_ns += self._kernel("h2d", lists[0], part, base, row_bytes, group)
                emptied[buffer] = self.queue.mark()
            load.loaded(group[1])
        return setup_ns

    def _transfer_group(self, host: np.ndarray, group: tuple[int, int], buffer: int) -> None:
        row_bytes = group[1] * self.layout.layer_bytes
        stride = self.host_pool.page_bytes
        for run in self._host_runs(host):
            rows = Rows(
                self._work_address(buffer) + run.device * row_bytes,
                row_bytes,
                self.host_pool.piece_address(0, group[0], run.host),
                stride,
                row_bytes,
                run.pages,
            )
            if run.pages > 1 and stride <= self._max_pitch:
                self._dma.copy_rows("h2d", rows)
                continue
            for row in range(run.pages):
                self._dma.copy(rows.device + row * row_bytes, rows.host + row * stride, row_bytes)

    # Buffers --------------------------------------------------------------------------------

    def _kernel(
        self,
        direction: Direction,
        device_pages: torch.Tensor,
        part: tuple[int, int],
        packed_address: int,
        packed_stride_bytes: int,
        layers: tuple[int, int],
    ) -> int:
        with self.queue.running():
            return kernels.move_pages(
                self.layout,
                self._tiling,
                device_address=self.device_pool.address,
                packed_address=packed_address,
                device_pages=device_pages,
                packed_pages=None,
                first=part[0],
                count=part[1],
                pool_pages=self.device_pool.pages,
                packed_stride_bytes=packed_stride_bytes,
                to_device=direction == "h2d",
                layers=layers,
                # One for each tile; the interpreter's cost by the program.
                programs=None if self.driver is not None else 1,
            )

    def _prepare(self, needs_pinned: bool) -> int:
        """Make the buffers that are not there yet. Returns how long that took, in ns."""
        if self._work is not None and (self._pinned is not None or not needs_pinned):
            return 0
        start_ns = time.monotonic_ns()
        size_bytes = self._buffers * self.chunk_pages * self.host_pool.page_bytes
        if self._work is None:
            with self.queue.running():
                self._work = torch.empty(
                    size_bytes, dtype=torch.uint8, device=self.device_pool.device
                )
        if needs_pinned and self._pinned is None:
            # One chunk: a DMA must not lie across two pinned pieces.
            self._pinned = PinnedMemory(size_bytes, self.driver, chunk_bytes=size_bytes + 4096)
        return time.monotonic_ns() - start_ns

    def _work_address(self, buffer: int) -> int:
        assert self._work is not None
        step = self.chunk_pages * self.host_pool.page_bytes
        return self._work.data_ptr() + buffer * step

    def _pinned_address(self, buffer: int) -> int:
        assert self._pinned is not None
        return self._pinned.address + buffer * self.chunk_pages * self.host_pool.page_bytes
