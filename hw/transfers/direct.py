"""Copies by the DMA engines straight between the two layouts: no kernel, no work buffer.

The engine of a PCIe device copies rows with a pitch as fast as plain bytes, as long as rows are not
short. So a run of pages that is consecutive on both sides becomes few copies, whichever is fewer:

    by layer   one for each layer and K/V: a row is a page's piece       (long runs)
    by page    one for each page and K/V: a row is a layer's piece       (short runs)

`pieces = "batch"` hands all pieces to the driver in one call instead, `"rows"` is the above.
Refuses to emulate batches where the driver has none.
"""

from __future__ import annotations

from typing import Literal

import numpy as np

from hicache.errors import InputError
from hw.pools import DevicePool, HostPool
from hw.transfers.backend import Extent, Pages, TransferBackend
from hw.transfers.driver import Direction, Driver
from hw.transfers.layerwise import LayerLoad
from hw.transfers.queues import Rows

# More pieces than this are handed over in several calls, so that the first run meanwhile.
BATCH_PIECES = 4096
_NO_PITCH_LIMIT = 1 << 62


class Direct(TransferBackend):
    """See the module. `pieces`: how they are handed to the driver."""

    name = "direct"

    def __init__(
        self,
        device_pool: DevicePool,
        host_pool: HostPool,
        driver: Driver | None = None,
        *,
        pieces: Literal["rows", "batch"] = "rows",
    ) -> None:
        """Raises InputError for "batch" where the driver copies no batches."""
        super().__init__(device_pool, host_pool, driver)
        if pieces == "batch":
            self.name = "direct_batch"
            if driver is not None and not driver.copies_batches:
                raise InputError("this CUDA driver copies no batches (12.8 and later do)")
        self._pieces = pieces
        self._max_pitch = _NO_PITCH_LIMIT if driver is None else driver.max_pitch_bytes

    def _move(self, direction: Direction, pages: Pages) -> int:
        self._move_range(direction, pages, self._extents(pages), 0, self.layout.layers)
        return 0

    def _move_layers(self, pages: Pages, load: LayerLoad) -> int:
        found = self._extents(pages)
        for layer in range(self.layout.layers):
            self._move_range("h2d", pages, found, layer, 1)
            load.loaded()
        return 0

    def _move_range(
        self, direction: Direction, pages: Pages, found: list[Extent], first: int, count: int
    ) -> None:
        """Enqueue the layers [first, first + count) of all pages."""
        if self._pieces == "batch":
            self._move_batch(direction, pages, first, count)
            return
        for extent in found:
            for part in range(self.layout.parts):
                for rows in self.rows_of(extent, part, first, count):
                    if rows.height == 1 or rows.device_pitch == rows.host_pitch == rows.width:
                        to_device = direction == "h2d"
                        target, source = (
                            (rows.device, rows.host) if to_device else (rows.host, rows.device)
                        )
                        self.queue.copy(target, source, rows.width * rows.height)
                    else:
                        self.queue.copy_rows(direction, rows)

    def rows_of(self, extent: Extent, part: int, first: int, count: int) -> list[Rows]:
        """The copies of one extent's K or V in the layers [first, first + count)."""
        device, host, layout = self.device_pool, self.host_pool, self.layout
        width = layout.piece_bytes(part)
        pitch = device.layer_pitch_bytes(part)
        if count <= extent.pages or pitch > self._max_pitch:
            return [
                rows
                for layer in range(first, first + count)
                for rows in self._split(
                    Rows(
                        device.piece_address(part, layer, extent.device),
                        width,
                        host.piece_address(part, layer, extent.host),
                        host.page_bytes,
                        width,
                        extent.pages,
                    )
                )
            ]
        return [
            rows
            for page in range(extent.pages)
            for rows in self._split(
                Rows(
                    device.piece_address(part, first, extent.device + page),
                    pitch,
                    host.piece_address(part, first, extent.host + page),
                    layout.layer_bytes,
                    width,
                    count,
                )
            )
        ]

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

    def _move_batch(self, direction: Direction, pages: Pages, first: int, count: int) -> None:
        """All pieces by address: arrays of shape (pages, layers, parts), flattened."""
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
        flat_device = np.ascontiguousarray(at_device, np.uint64).reshape(-1)
        flat_host = np.ascontiguousarray(at_host, np.uint64).reshape(-1)
        sizes = np.ascontiguousarray(np.broadcast_to(widths, shape), np.uint64).reshape(-1)
        to_device = direction == "h2d"
        targets, sources = (flat_device, flat_host) if to_device else (flat_host, flat_device)
        for start in range(0, len(sizes), BATCH_PIECES):
            part = slice(start, start + BATCH_PIECES)
            self.queue.copy_batch(targets[part], sources[part], sizes[part])
