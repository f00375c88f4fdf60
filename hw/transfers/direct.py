"""Copies by the DMA engines straight between the two layouts: no kernel, no work buffer.

The engine of a PCIe device copies rows with a pitch as fast as plain bytes, as long as rows are not
short. So a run of pages that is consecutive on both sides becomes few copies, whichever is fewer:

    by layer   one for each layer and K/V: a row is a page's piece       (long runs)
    by page    one for each page and K/V: a row is a layer's piece       (short runs)

`pieces = "batch"` hands all pieces to the driver in batches instead, `"rows"` is the above. Layer
by layer there are no rows in pages that lie apart: such loads go in batches in any case, where the
driver has them. Refuses to emulate batches where it has none.
"""

from __future__ import annotations

from typing import Literal, NamedTuple

import numpy as np

from hicache.errors import InputError
from hw.pools import DevicePool, HostPool
from hw.transfers.backend import TransferBackend
from hw.transfers.driver import Direction, Driver
from hw.transfers.front_native import Plan
from hw.transfers.layerwise import LayerLoad
from hw.transfers.lists import Extent, Lists
from hw.transfers.queues import Batch, Queue, Rows

# The device begins with a batch when the driver has taken all of it, half a microsecond a piece:
# small ones, so that it begins early, the first one most of all.
BATCH_PIECES = 64
_NO_PITCH_LIMIT = 1 << 62


class _Part(NamedTuple):
    """Where K, or V, lies in both pools, in bytes: computed once, not for every copy.

    width: of a piece. device: the address of page 0 in layer 0; pitch: from a layer to the next.
    host: likewise; there a layer is `layer_bytes` of the layout from the next.
    """

    width: int
    device: int
    pitch: int
    host: int


class Direct(TransferBackend):
    """See the module. `pieces`: how they are handed to the driver."""

    name = "direct"

    def __init__(
        self,
        device_pool: DevicePool,
        host_pool: HostPool,
        driver: Driver | None = None,
        queue: Queue | None = None,
        *,
        pieces: Literal["rows", "batch"] = "rows",
    ) -> None:
        """Raises InputError for "batch" where the driver copies no batches."""
        super().__init__(device_pool, host_pool, driver, queue)
        if pieces == "batch":
            self.name = "direct_batch"
            if driver is not None and not driver.copies_batches:
                raise InputError("this CUDA driver copies no batches (12.8 and later do)")
        self._pieces = pieces
        if pieces == "rows" and self.front is not None and self.front.copies_rows:
            self.plan = Plan.of("rows")
        self._parts = [
            _Part(
                self.layout.piece_bytes(part),
                device_pool.piece_address(part, 0, 0),
                device_pool.layer_pitch_bytes(part),
                host_pool.piece_address(part, 0, 0),
            )
            for part in range(self.layout.parts)
        ]
        self._layer_bytes = self.layout.layer_bytes
        self._max_pitch = _NO_PITCH_LIMIT if driver is None else driver.max_pitch_bytes

    def _move(self, direction: Direction, lists: Lists) -> int:
        layers = self.layout.layers
        if self._pieces == "batch":
            send(self.queue, self.batch_of(direction, lists, 0, layers))
            return 0
        for extent in self._extents(lists):
            self._move_rows(direction, extent, 0, layers)
        return 0

    def _move_layers(self, lists: Lists, load: LayerLoad) -> int:
        has_batches = self.driver is None or self.driver.copies_batches
        found = self._extents(lists)
        apart = 2 * len(found) > lists.pages
        for layer in range(self.layout.layers):
            if self._pieces == "batch" or (apart and has_batches):
                send(self.queue, self.batch_of("h2d", lists, layer, 1))
            else:
                for extent in found:
                    self._move_rows("h2d", extent, layer, 1)
            load.loaded()
        return 0

    def _move_rows(self, direction: Direction, extent: Extent, first: int, count: int) -> None:
        """Enqueue the layers [first, first + count) of an extent."""
        queue = self.queue
        for part in range(len(self._parts)):
            for rows in self.rows_of(extent, part, first, count):
                device, host, device_pitch, host_pitch, width, height = rows
                if height > 1 and not device_pitch == host_pitch == width:
                    queue.copy_rows(direction, rows)
                elif direction == "h2d":
                    queue.copy(device, host, width * height)
                else:
                    queue.copy(host, device, width * height)

    def rows_of(self, extent: Extent, part: int, first: int, count: int) -> list[Rows]:
        """The copies of one extent's K or V in the layers [first, first + count)."""
        width, device, pitch, host = self._parts[part]
        device += first * pitch + extent.device * width
        page_bytes, layer_bytes = self.host_pool.page_bytes, self._layer_bytes
        host += first * layer_bytes + extent.host * page_bytes
        if count <= extent.pages or pitch > self._max_pitch:
            found = [
                Rows(
                    device + layer * pitch, host + layer * layer_bytes,
                    width, page_bytes,
                    width, extent.pages,
                )
                for layer in range(count)
            ]  # fmt: skip
        else:
            found = [
                Rows(
                    device + page * width, host + page * page_bytes,
                    pitch, layer_bytes,
                    width, count,
                )
                for page in range(extent.pages)
            ]  # fmt: skip
        if max(pitch, page_bytes) <= self._max_pitch:
            return found
        return [row for rows in found for row in self._split(rows)]

    def _split(self, rows: Rows) -> list[Rows]:
        """Row by row, where a pitch is more than the device can do."""
        if rows.height == 1 or max(rows.device_pitch, rows.host_pitch) <= self._max_pitch:
            return [rows]
        return [
            rows._replace(
                device=rows.device + row * rows.device_pitch,
                host=rows.host + row * rows.host_pitch,
                height=1,
            )
            for row in range(rows.height)
        ]

    def batch_of(self, direction: Direction, lists: Lists, first: int, count: int) -> Batch:
        """All pieces of the layers [first, first + count), page by page."""
        pages = lists.arrays()
        device, host, layout = self.device_pool, self.host_pool, self.layout
        shape = (len(pages.device), count, layout.parts)
        layers = np.arange(first, first + count, dtype=np.int64)[None, :, None]
        parts = np.arange(layout.parts, dtype=np.int64)[None, None, :]
        widths = np.array([layout.piece_bytes(part) for part in range(layout.parts)], np.int64)
        at_device = (
            device.address
            + parts * device.v_start_bytes
            + (layers * device.pages + pages.device[:, None, None]) * widths
        )
        at_host = (
            host.address
            + pages.host[:, None, None] * host.page_bytes
            + layers * layout.layer_bytes
            + parts * layout.k_bytes
        )
        sizes = np.broadcast_to(widths, shape)
        if direction == "h2d":
            return Batch.of(at_device, at_host, sizes)
        return Batch.of(at_host, at_device, sizes)


def send(queue: Queue, batch: Batch, first: int = 0, stop: int | None = None) -> None:
    """Enqueue a batch's copies [first, stop) in several calls."""
    stop = len(batch) if stop is None else stop
    pieces = BATCH_PIECES // 8
    while first < stop:
        queue.copy_batch(batch, first, min(first + pieces, stop))
        first += pieces
        pieces = BATCH_PIECES
