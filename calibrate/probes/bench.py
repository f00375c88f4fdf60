"""What probes share: pools of pages, the link's driver and the model, made when first asked for.

    GPU   L1 pool of noise (not of zeros: they compute faster) <-- transfers --> pinned L2 pool
    CPU   the same code on CPU tensors and Triton's interpreter, for a small model: to try it out

All is made as `hw.assembly` makes it for a run. Refuses to measure anything.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import hw  # noqa: F401  # before Triton is imported

# isort: split
import numpy as np
import torch

from hicache.errors import InputError
from hicache.operations import PageRuns
from hw.model.buffers import Sizes
from hw.model.build import make_model
from hw.model.device import ModelDevice
from hw.model.graphs import Buckets
from hw.pools import DevicePool, HostPool, KvLayout
from hw.transfers.driver import Driver
from scenario.geometry import ModelGeometry

GIB = 1 << 30
BLOCK_BYTES = 4096  # as in `hw.assembly`: O_DIRECT reads into pages
SPARE_BYTES = 16 * GIB  # of the GPU's memory, for activations and graphs


class Scale(NamedTuple):
    """How far the samples reach."""

    device_tokens: int
    host_bytes: int
    chunk_tokens: int
    batch: int
    context_tokens: int


GPU_SCALE = Scale(400_000, 4 * GIB, 8192, 128, 122_880)
# Interpreted kernels: seconds for a thousand tokens.
CPU_SCALE = Scale(1024, 16 << 20, 64, 4, 256)


class Bench:
    """Pools and model of one calibration. `close` lets go of all that was made."""

    def __init__(
        self,
        device: str,
        geometry: ModelGeometry,
        model_name: str,
        page_size_tokens: int,
        *,
        scale: Scale | None = None,
        seed: int = 0,
    ) -> None:
        """`model_name`: for `hw.model.build.make_model`. Raises InputError without such a GPU."""
        if device == "cuda" and not torch.cuda.is_available():
            raise InputError("--device cuda: there is no CUDA GPU here that PyTorch can use")
        self.where = torch.device(device)
        self.geometry = geometry
        self.page_size_tokens = page_size_tokens
        self.scale = scale or (GPU_SCALE if device == "cuda" else CPU_SCALE)
        self.random = np.random.default_rng(seed)
        self._model_name = model_name
        self._seed = seed
        self._made: dict[str, Any] = {}
        self._closers: list[Callable[[], object]] = []

    @property
    def layout(self) -> KvLayout:
        """Of a page."""
        return self.layout_of(self.page_size_tokens)

    def layout_of(self, page_size_tokens: int) -> KvLayout:
        """Of a page of that size. On a CPU the cache has the model's type there."""
        geometry = self.geometry.with_kv_dtype("auto" if self.where.type == "cuda" else "fp32")
        return KvLayout.of(geometry, page_size_tokens)

    @property
    def driver(self) -> Driver | None:
        """None on a CPU."""
        return self._make("driver", Driver) if self.where.type == "cuda" else None

    @property
    def pool(self) -> DevicePool:
        """L1."""
        return self._make("pool", self._make_pool)

    @property
    def host(self) -> HostPool:
        """L2."""
        return self._make("host", self._make_host)

    def pools(self, page_size_tokens: int) -> tuple[DevicePool, HostPool]:
        """L1 and L2 in pages of that size: those above, or smaller ones made for it."""
        if page_size_tokens == self.page_size_tokens:
            return self.pool, self.host
        return self._make(f"pools {page_size_tokens}", lambda: self._make_pools(page_size_tokens))

    @property
    def model(self) -> ModelDevice:
        """The model on L1."""
        return self._make("model", self._make_model)

    def buckets(self) -> Buckets | None:
        """The sizes of the model's graphs; None where it has none."""
        return Buckets() if self.model.graphs else None

    def pages(self, pool: DevicePool | HostPool, count: int) -> PageRuns:
        """So many pages, no two of them neighbours where the pool is large enough. Raises
        InputError where there are not as many.
        """
        if count > pool.pages:
            raise InputError(f"{count} pages are needed, there is memory for {pool.pages}")
        if 2 * count <= pool.pages:
            chosen = 2 * self.random.permutation(pool.pages // 2)[:count]
        else:
            chosen = self.random.permutation(pool.pages)[:count]
        return tuple((int(page), 1) for page in chosen)

    def adopt(self, close: Callable[[], object]) -> None:
        """Call `close` when the bench is closed, before what was made earlier."""
        self._closers.append(close)

    def close(self) -> None:
        """Let go of everything, the last made first."""
        while self._closers:
            self._closers.pop()()
        self._made.clear()

    def _make(self, name: str, make: Callable[[], Any]) -> Any:
        if name not in self._made:
            self._made[name] = make()
        return self._made[name]

    def _make_pool(self) -> DevicePool:
        page_bytes = self.layout.page_bytes
        pages = -(-self.scale.device_tokens // self.page_size_tokens)
        if self.where.type == "cuda":
            free, _ = torch.cuda.mem_get_info()
            weights = 0 if "model" in self._made else self.geometry.weight_bytes
            room = (free - weights - SPARE_BYTES) // page_bytes
            pages = min(pages, room)
            if pages < 2:
                raise InputError(
                    f"{self.geometry.name} needs {weights / GIB:.1f} GiB, {free / GIB:.1f} GiB are "
                    "free on this GPU"
                )
        pool = DevicePool(self.layout, pages, self.where)
        for each in (pool.k, pool.v):
            if each is not None and each.dtype.itemsize > 1:
                for layer in each:
                    layer.normal_()
        return pool

    def _make_host(self) -> HostPool:
        pages = max(8, self.scale.host_bytes // self.layout.page_bytes)
        host = HostPool(self.layout, pages, self.driver, align_bytes=BLOCK_BYTES)
        self._closers.append(host.close)
        return host

    def _make_pools(self, page_size_tokens: int) -> tuple[DevicePool, HostPool]:
        layout = self.layout_of(page_size_tokens)
        pages = max(8, self.scale.host_bytes // 2 // layout.page_bytes)
        pool = DevicePool(layout, pages, self.where)
        host = HostPool(layout, pages, self.driver, align_bytes=BLOCK_BYTES)
        self._closers.append(host.close)
        return pool, host

    def _make_model(self) -> ModelDevice:
        dtype = torch.bfloat16 if self.where.type == "cuda" else torch.float32
        model = make_model(self._model_name, self.where, dtype, seed=self._seed)
        scale, page = self.scale, self.page_size_tokens
        table = scale.batch * -(-max(scale.context_tokens, 4096) // page)
        device = ModelDevice(
            model, self.pool, Sizes(scale.chunk_tokens, scale.batch, min(table, 1 << 22)),
            name=self.geometry.name,
        )  # fmt: skip
        self._closers.append(device.close)
        device.warm_up()
        return device
