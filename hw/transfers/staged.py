"""Copies through a work buffer on the device, so that what crosses PCIe is whole pages.

    d2h   pages --gather kernel--> buffer --DMA--> L2 pages, or, where those are small,
                                           --DMA--> pinned buffer --CPU--> L2 pages
    h2d   the same backwards, with a scatter kernel

A transfer is cut into chunks; with several buffers, the kernel of one chunk, the DMA of another and
the CPU's share of a third run at once:

    beside    |1|2|      |3|            a buffer is used again once its DMA (d2h) or its scatter
    queue   |0|-0-|-1-|-2-|-3-|         (h2d) is over
    CPU           |0| |1| |2| |3|       (small pages only)

DMAs run on the queue, kernels beside it, except where one waits for the other anyway: the first
gather and the last scatter are on the queue too. Pages that lie apart cross as one batch of the
driver's. How a transfer is cut, `chunks.py` says. Refuses to copy by CPU what is long enough for a
DMA of its own: `run_bytes`.
"""

from __future__ import annotations

import os
from collections import deque

import numpy as np

from hw.pools import DevicePool, HostPool
from hw.transfers.backend import TransferBackend
from hw.transfers.chunks import Chunk, Cutter
from hw.transfers.direct import send
from hw.transfers.driver import Direction, Driver
from hw.transfers.front_native import BUFFERS, DIRECTIONS, Plan
from hw.transfers.host_copy import HostCopier
from hw.transfers.kernels import Mover
from hw.transfers.layerwise import LayerLoad
from hw.transfers.lists import Lists
from hw.transfers.queues import Batch, CudaQueue, Listed, Mark, Queue, make_queue
from hw.transfers.work_buffers import WorkBuffers

# Long enough that what lies between two DMAs, 4 us, does not count.
CHUNK_BYTES = 32 << 20
# A DMA of its own costs about two microseconds, half of one in a batch; in that time 128 KiB, or
# 32, cross a Gen5 link.
RUN_BYTES, RUN_BYTES_IN_BATCH = 128 << 10, 32 << 10
# A layer group is a compromise: the first layer is ready sooner, or fewer and larger DMAs. A group
# has pieces of so many bytes of each page, where that makes at least so many groups.
GROUP_BYTES, LAYER_GROUPS = 64 << 10, 12


class Staged(TransferBackend):
    """See the module. Sizes in bytes; `copy_threads`: how many share the CPU's copies;
    `row_layers`: how many layers of a page go by rows at the open end, where the front copies.
    """

    name = "staged"

    def __init__(
        self,
        device_pool: DevicePool,
        host_pool: HostPool,
        driver: Driver | None = None,
        queue: Queue | None = None,
        *,
        chunk_bytes: int = CHUNK_BYTES,
        buffers: int = BUFFERS,
        run_bytes: int | None = None,
        copy_threads: int | None = None,
        layer_groups: int = LAYER_GROUPS,
        row_layers: int | None = None,
    ) -> None:
        super().__init__(device_pool, host_pool, driver, queue)
        assert buffers >= 1
        self._has_batches = driver is None or driver.copies_batches
        if run_bytes is None:
            run_bytes = RUN_BYTES_IN_BATCH if self._has_batches else RUN_BYTES
        self.layer_groups = layer_groups
        self._stride = host_pool.page_bytes
        chunk_pages = max(1, chunk_bytes // self._stride)
        self.buffers = WorkBuffers(device_pool, host_pool, driver, chunk_pages, buffers)
        self.cutter = Cutter(host_pool, self.buffers, run_bytes)
        self._mover = Mover(device_pool)
        self._beside = make_queue(device_pool.device, driver)
        # Marks to be used again: of the last kernel beside the queue, and of each buffer.
        self._ran: Mark | None = None
        self._freed: list[Mark | None] = [None] * buffers
        self._copier = HostCopier(copy_threads or min(8, os.cpu_count() or 1))
        # The front has as many buffers, and makes a DMA of every run.
        if self.front is not None and buffers == BUFFERS and run_bytes <= self._stride:
            assert isinstance(self._beside, CudaQueue)
            self.plan = plan = Plan.of("staged")
            plan.side, plan.chunk_pages = self._beside.handle, chunk_pages
            plan.whole_pages, plan.head_pages, plan.tail_pages = self.cutter.limits
            for each, number in DIRECTIONS.items():
                wanted = self.front.row_layers(each) if row_layers is None else row_layers
                # A DMA of nothing is refused.
                plan.row_layers[number] = min(wanted, self.layout.layers - 1)

    def close(self) -> None:
        """Give the buffers back."""
        super().close()
        self._copier.close()
        self.buffers.close()
        if self.plan is not None:
            self.plan.work_address = 0

    def _queues(self) -> tuple[Queue, ...]:
        return (self.queue, self._beside)

    # Whole pages ----------------------------------------------------------------------------

    def _move(self, direction: Direction, lists: Lists) -> int:
        setup_ns = self.buffers.prepare_work(self.queue)
        borders = self.cutter.borders(direction, lists.pages)
        setup_ns += (self._store if direction == "d2h" else self._load)(lists, borders)
        if self.plan is not None:
            self.plan.work_address = self.buffers.work_address(0)
            self.plan.learn(self._mover, dense=True)
        return setup_ns

    def _store(self, lists: Lists, borders: list[int]) -> int:
        (listed,) = self.queue.upload(lists.arrays().device)
        setup_ns, count = 0, len(borders) - 1
        arriving: deque[Chunk] = deque()
        for chunk in self.cutter.chunks("d2h", lists, borders):
            number, buffer = chunk.number, chunk.buffer
            if number == 0:
                # The queue goes on to this chunk's DMA: nothing to wait for.
                setup_ns += self._launch("d2h", chunk, listed, self.queue)
                if count > 1:
                    self._ran = self.queue.mark(self._ran)  # the list is there, too
                    self._beside.wait(self._ran)
            else:
                if number >= self.buffers.count:
                    self._beside.wait(self._mark_of(buffer))
                setup_ns += self._launch("d2h", chunk, listed, self._beside)
                self._ran = self._beside.mark(self._ran)
                self.queue.wait(self._ran)
            setup_ns += self._transfer("d2h", chunk)
            if chunk.fragmented or number + self.buffers.count < count:
                self._freed[buffer] = self.queue.mark(self._freed[buffer])
            if chunk.fragmented:
                arriving.append(chunk)
            # The next chunk's buffer must be empty by then; after the last one, all of them.
            keep = number + 1 - self.buffers.count if number + 1 < count else number
            while arriving and arriving[0].number <= keep:
                done = arriving.popleft()
                self._mark_of(done.buffer).synchronize()
                self._copier.copy(self._moves(done))
        return setup_ns

    def _load(self, lists: Lists, borders: list[int]) -> int:
        last = len(borders) - 2
        if not last:
            return self._load_at_once(next(self.cutter.chunks("h2d", lists, borders)), lists)
        setup_ns = 0
        sent: dict[int, Mark] = {}  # buffer of the CPU's -> its last DMA
        listed: Listed | None = None
        for chunk in self.cutter.chunks("h2d", lists, borders):
            number, buffer = chunk.number, chunk.buffer
            if chunk.fragmented:
                setup_ns += self.buffers.prepare_pinned()
                if buffer in sent:
                    sent[buffer].synchronize()
                self._copier.copy([(there, page, size) for page, there, size in self._moves(chunk)])
            if number >= self.buffers.count:
                self.queue.wait(self._mark_of(buffer))
            setup_ns += self._transfer("h2d", chunk)
            if listed is None:
                # While the first DMA runs. Nothing else was given to the side since the last copy.
                (listed,) = self._beside.upload(lists.arrays().device)
            if chunk.fragmented:
                sent[buffer] = self.queue.mark()
            if number < last:
                self._ran = self.queue.mark(self._ran)
                self._beside.wait(self._ran)
                setup_ns += self._launch("h2d", chunk, listed, self._beside)
                self._freed[buffer] = self._beside.mark(self._freed[buffer])
                continue
            # Behind its DMA on the queue; the list, and all other scatters, are beside it.
            self._freed[buffer] = self._beside.mark(self._freed[buffer])
            self.queue.wait(self._mark_of(buffer))
            setup_ns += self._launch("h2d", chunk, listed, self.queue)
        return setup_ns

    def _load_at_once(self, chunk: Chunk, lists: Lists) -> int:
        """A load of one chunk, all on the queue: a mark would take longer than it hides."""
        setup_ns = 0
        if chunk.fragmented:
            setup_ns = self.buffers.prepare_pinned()
            self._copier.copy([(there, page, size) for page, there, size in self._moves(chunk)])
        (listed,) = self.queue.upload(lists.arrays().device)
        setup_ns += self._transfer("h2d", chunk)
        return setup_ns + self._launch("h2d", chunk, listed, self.queue)

    def _mark_of(self, buffer: int) -> Mark:
        mark = self._freed[buffer]
        assert mark is not None
        return mark

    def _transfer(self, direction: Direction, chunk: Chunk) -> int:
        """The DMAs between the device's buffer and the host's pages, or the host's buffer. Returns
        the set-up, in ns.
        """
        setup_ns = 0
        batch = chunk.batch
        if chunk.fragmented:
            setup_ns = self.buffers.prepare_pinned()
            there, here = (
                self.buffers.work_address(chunk.buffer),
                self.buffers.pinned_address(chunk.buffer),
            )
            target, source = (there, here) if direction == "h2d" else (here, there)
            self.queue.copy(target, source, chunk.pages * self._stride)
        elif self._has_batches and len(batch) > 1:
            send(self.queue, batch)
        else:
            for run in range(len(batch)):
                self.queue.copy(
                    int(batch.targets[run]), int(batch.sources[run]), int(batch.sizes[run])
                )
        return setup_ns

    def _moves(self, chunk: Chunk) -> list[tuple[int, int, int]]:
        return chunk.moves(self.buffers.pinned_address(chunk.buffer), self._stride)

    def _launch(self, direction: Direction, chunk: Chunk, listed: Listed, queue: Queue) -> int:
        return self._kernel(
            direction,
            listed,
            (chunk.first, chunk.pages),
            self.buffers.work_address(chunk.buffer),
            self._stride,
            (0, self.layout.layers),
            queue,
        )

    # Groups of layers -----------------------------------------------------------------------

    def _move_layers(self, lists: Lists, load: LayerLoad) -> int:
        setup_ns = self.buffers.prepare_work(self.queue)
        pages = lists.arrays()
        self._ran = self.queue.mark(self._ran)
        self._beside.wait(self._ran)
        (listed,) = self.queue.upload(pages.device)
        layers = self.layout.layers
        most = -(-layers // min(self.layer_groups, layers))
        size = min(most, -(-GROUP_BYTES // self.layout.layer_bytes))
        number = 0
        for first in range(0, layers, size):
            group = (first, min(size, layers - first))
            row_bytes = group[1] * self.layout.layer_bytes
            step = self.buffers.chunk_pages * self._stride // row_bytes
            for start in range(0, lists.pages, step):
                part = (start, min(step, lists.pages - start))
                buffer = number % self.buffers.count
                if number >= self.buffers.count:
                    self._beside.wait(self._mark_of(buffer))
                number += 1
                self._transfer_group(pages.host[start : start + part[1]], group, buffer)
                self._ran = self._beside.mark(self._ran)
                self.queue.wait(self._ran)
                # The buffer has no layers before the group: layer 0 would begin before it.
                base = self.buffers.work_address(buffer) - first * self.layout.layer_bytes
                setup_ns += self._kernel("h2d", listed, part, base, row_bytes, group, self.queue)
                self._freed[buffer] = self.queue.mark(self._freed[buffer])
            load.loaded(group[1])
        return setup_ns

    def _transfer_group(self, host: np.ndarray, group: tuple[int, int], buffer: int) -> None:
        """The DMAs, beside the queue, of some layers of some pages: a row for each page."""
        row_bytes = group[1] * self.layout.layer_bytes
        sources = self.host_pool.piece_address(0, group[0], 0) + host * self._stride
        rows = Batch.of(
            self.buffers.work_address(buffer) + np.arange(len(host), dtype=np.int64) * row_bytes,
            sources,
            np.full(len(host), row_bytes),
        )
        if self._has_batches and len(rows) > 1:
            send(self._beside, rows)
            return
        for row in range(len(rows)):
            self._beside.copy(int(rows.targets[row]), int(rows.sources[row]), row_bytes)

    def _kernel(
        self,
        direction: Direction,
        listed: Listed,
        part: tuple[int, int],
        packed_address: int,
        packed_stride_bytes: int,
        layers: tuple[int, int],
        queue: Queue,
    ) -> int:
        return self._mover.move(
            direction,
            queue,
            listed,
            None,
            packed_address=packed_address,
            packed_stride_bytes=packed_stride_bytes,
            part=part,
            layers=layers,
            # One for each tile; the interpreter's cost by the program.
            programs=None if self.driver is not None else 1,
        )
