"""One kernel that reads or writes the pinned host pages where they are.

No work buffer and no copy by the CPU, whatever the page lists look like; what it costs is a few
multiprocessors, which wait for PCIe most of the time. Few programs are enough, since each has a
tile of 16 KiB under way: bandwidth times latency of a Gen5 x16 link is about 100 KiB. So `programs`
is a trade between the link's last per cent and what is left to the model's kernels. Layer by layer
the model computes meanwhile: there 256 KiB, half as many, are under way in two large programs, and
the products of such steps leave them their multiprocessors (`hw.model.products`).
Refuses page lists that name a page twice on the target's side: nobody orders the writes.
"""

from __future__ import annotations

from collections.abc import Iterable

import torch

from hicache.errors import TransferError
from hw.pools import DevicePool, HostPool
from hw.transfers.backend import Copied, TransferBackend
from hw.transfers.driver import Direction, Driver
from hw.transfers.front_native import Plan
from hw.transfers.kernels import TILE_BYTES, WARPS, Mover, tiling
from hw.transfers.layerwise import LayerLoad
from hw.transfers.lists import Lists
from hw.transfers.queues import Listed, Mark, Queue

PROGRAMS = 32
# A program of 32 warps has a multiprocessor to itself. Programs of products come in pairs, of
# neighbours, so that each of ours costs them two.
LAYER_PROGRAMS, LAYER_WARPS = 2, 32


class ZeroCopy(TransferBackend):
    """See the module. `programs`: CTAs of a launch; `tile_bytes`: what one moves at a time;
    `layer_programs`, `layer_warps`: likewise of a load by layers.
    """

    name = "zero_copy"

    def __init__(
        self,
        device_pool: DevicePool,
        host_pool: HostPool,
        driver: Driver | None = None,
        queue: Queue | None = None,
        *,
        programs: int = PROGRAMS,
        tile_bytes: int = TILE_BYTES,
        warps: int = WARPS,
        layer_programs: int = LAYER_PROGRAMS,
        layer_warps: int = LAYER_WARPS,
    ) -> None:
        super().__init__(device_pool, host_pool, driver, queue)
        # The interpreter's programs run one after the other and cost by the program.
        self.programs = programs if driver is not None else 1
        self._mover = Mover(device_pool, tiling(self.layout, tile_bytes), warps)
        self._layer_programs = layer_programs if driver is not None else 1
        shape = tiling(self.layout, TILE_BYTES * layer_warps // WARPS)
        self._layer_mover = Mover(device_pool, shape, layer_warps)
        self.layer_multiprocessors = 2 * self._layer_programs if driver is not None else 0
        if self.front is not None:
            self.plan = Plan.of("zero_copy")

    def copy_listed(
        self,
        direction: Direction,
        device_pages: torch.Tensor,
        host_pages: torch.Tensor,
        inputs: Iterable[Mark] = (),
    ) -> Copied:
        """The same with page lists that are on the device already, int32 tensors of one length.

        They may still be being written on the caller's current stream. The host never looks at
        them: page numbers outside the pools are the caller's mistake, and all of L2 gets pinned.
        """
        if device_pages.shape != host_pages.shape or device_pages.dim() != 1:
            raise TransferError(f"{self.name}: two lists of one length are wanted")
        if {device_pages.dtype, host_pages.dtype} != {torch.int32}:
            raise TransferError(f"{self.name}: page lists are int32 tensors")
        with self._lock:
            setup_ns = self.host_pool.pin(0, self.host_pool.pages)
            # On the caller's stream, so before that stream is waited for.
            lists = [Listed.of(each.contiguous()) for each in (device_pages, host_pages)]
            self._wait_for_inputs(inputs)
            self.queue.start()
            layers = (0, self.layout.layers)
            setup_ns += self._launch(direction, lists, layers, self._mover, self.programs)
            return Copied(self.queue.stop(), setup_ns)

    def _move(self, direction: Direction, lists: Lists) -> int:
        layers = (0, self.layout.layers)
        listed = self.queue.upload(*lists.arrays())
        setup_ns = self._launch(direction, listed, layers, self._mover, self.programs)
        if self.plan is not None:
            self.plan.learn(self._mover, dense=False, programs=self.programs)
        return setup_ns

    def _move_layers(self, lists: Lists, load: LayerLoad) -> int:
        listed, setup_ns = self.queue.upload(*lists.arrays()), 0
        for layer in range(self.layout.layers):
            setup_ns += self._launch(
                "h2d", listed, (layer, 1), self._layer_mover, self._layer_programs
            )
            load.loaded()
        if self.plan is not None:
            self.plan.learn_layers(self._layer_mover, self._layer_programs)
        return setup_ns

    def _launch(
        self,
        direction: Direction,
        lists: list[Listed],
        layers: tuple[int, int],
        mover: Mover,
        programs: int,
    ) -> int:
        return mover.move(
            direction,
            self.queue,
            lists[0],
            lists[1],
            packed_address=self.host_pool.address,
            packed_stride_bytes=self.host_pool.page_bytes,
            layers=layers,
            programs=programs,
        )
