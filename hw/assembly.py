"""The real machine of one scenario: pools, back-ends, the L3 file, the device that computes.

    L1 pool on the GPU <-- transfers --> pinned L2 pool <-- L3 file
         ^
    ModelDevice or SyntheticDevice

With device "cpu" everything is the same code on CPU tensors and Triton's interpreter, except that
nothing is pinned and the synthetic device's pattern is made in numpy. It refuses to know the
engine: what it makes are devices, by queue.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Literal

import torch

from hicache.errors import InputError
from hicache.options import EngineOptions
from hicache.requests import Request
from hw.device import Device
from hw.loads import LoadBook
from hw.pools import DevicePool, HostPool, KvLayout
from hw.stores.opening import OpenStore, open_slots
from hw.tokens import TokenBook
from hw.transfers.auto import Auto, Traffic, make_backend
from hw.transfers.device import TransferDevice
from hw.transfers.driver import Driver
from scenario.geometry import ModelGeometry
from scenario.records import Scenario

if TYPE_CHECKING:
    from transformers import PreTrainedModel

DeviceName = Literal["cuda", "cpu"]
Told = Callable[[str], object]
GIB = 1 << 30
MOST_TABLE_ENTRIES = 1 << 22
# Pages of both pools are aligned so that O_DIRECT can read into them.
BLOCK_BYTES = 4096


class Assembly:
    """What a run stands on. `tokens_of` makes a request's token ids; `close` lets go of all."""

    def __init__(
        self,
        scenario: Scenario,
        options: EngineOptions,
        geometry: ModelGeometry,
        device: DeviceName,
        tell: Told = print,
    ) -> None:
        """`tell` hears what is being done, a line for each part. Raises InputError."""
        self._closers: list[Callable[[], object]] = []
        try:
            self._assemble(scenario, options, geometry, device, tell)
        except BaseException:
            self.close()
            raise

    def _assemble(
        self,
        scenario: Scenario,
        options: EngineOptions,
        geometry: ModelGeometry,
        device: DeviceName,
        tell: Told,
    ) -> None:
        hw = scenario.hw
        if scenario.instances > 1:
            raise InputError(
                f"instances is {scenario.instances}: a real run is of one engine; allowed: 1"
            )
        if options.ranks > 1:
            raise InputError(f"ranks.tp is {options.ranks}: a real run is of one GPU; allowed: 1")
        if device == "cuda" and not torch.cuda.is_available():
            raise InputError("--device cuda: there is no CUDA GPU here that PyTorch can use")
        self.where = torch.device(device)
        self.name = torch.cuda.get_device_name() if device == "cuda" else "CPU"
        driver = Driver() if device == "cuda" else None
        layout = KvLayout.of(geometry, options.page_size_tokens)
        if layout.page_bytes != options.page_bytes:
            raise InputError(
                f"{geometry.name}: a page has {layout.page_bytes} bytes in the pool and "
                f"{options.page_bytes} in the plan"
            )
        tell(f"L1: {options.device_pages * layout.page_bytes / GIB:.1f} GiB on {self.name}")
        pool = DevicePool(layout, options.device_pages, self.where)
        self.queues: dict[str, list[Device]] = {}
        self.loads: LoadBook | None = None  # with which prefills overlap, if they do
        self._spare = 0  # multiprocessors that such prefills leave to the load
        self.store: OpenStore | None = None  # that is asked by name
        if options.host_pages:
            limit = int(hw.host_limit_gib * GIB) or None
            tell(f"L2: {options.host_pages * layout.page_bytes / GIB:.1f} GiB of host memory")
            host = HostPool(
                layout, options.host_pages, driver, align_bytes=BLOCK_BYTES, limit_bytes=limit
            )
            self._closers.append(host.close)
            if options.restore.layerwise:
                self.loads = LoadBook(layout.layers)
            # One for each direction: a back-end does one operation at a time, the link two.
            traffic = Traffic()
            down = make_backend(hw.transfers, pool, host, driver, traffic=traffic)
            self._closers.append(down.close)
            self._spare = down.layer_multiprocessors
            table = down.table if isinstance(down, Auto) else None
            up = make_backend(hw.transfers, pool, host, driver, traffic=traffic, table=table)
            self._closers.append(up.close)
            self.queues["h2d"] = [TransferDevice(down, "h2d", self.loads)]
            self.queues["d2h"] = [TransferDevice(up, "d2h")]
            if options.has_store:
                self.store = opened = OpenStore(scenario, options, geometry, layout, host)
                self._closers.append(opened.store.close)
                tell(f"L3: {opened.describe()}")
                self.queues |= opened.queues
            elif options.storage_pages:
                store = open_slots(hw, options.storage_pages, host)
                self._closers.append(store.close)
                tell(f"L3: {store.describe()}")
                reading, writing = store.devices()
                self.queues["s2h"], self.queues["h2s"] = [reading], [writing]
        self._compute(scenario, options, geometry, pool, tell)

    def _compute(
        self,
        scenario: Scenario,
        options: EngineOptions,
        geometry: ModelGeometry,
        pool: DevicePool,
        tell: Told,
    ) -> None:
        hw = scenario.hw
        if hw.compute == "synthetic":
            from hw.synthetic import SyntheticDevice

            device = SyntheticDevice(pool)
            vocab_size = geometry.vocab_size
        else:
            from hw.model.buffers import Sizes
            from hw.model.device import ModelDevice

            tell(f"model: {geometry.name}, {hw.weights or 'random weights'}")
            model = self.make_model(scenario)
            scheduler = options.scheduler
            sizes = Sizes(
                scheduler.chunk_tokens,
                scheduler.max_running_requests,
                # Requests may share pages: each of them lists all of its own.
                min(scheduler.max_running_requests * options.device_pages, MOST_TABLE_ENTRIES),
            )
            name = f"{self.name} ({geometry.name})"
            device = ModelDevice(model, pool, sizes, name=name, spare_multiprocessors=self._spare)
            vocab_size = int(model.config.vocab_size)
        self._closers.append(device.close)
        loads = self.loads
        if loads is not None:
            device.loads_of = lambda number: loads.of(number).wait_layer
        device.warm_up()
        self.queues["gpu"] = [device]
        # From here on the queues close their devices; the memory under them is closed by us.
        del self._closers[1 if "h2d" in self.queues else 0 :]
        self._book = TokenBook(options.page_size_tokens, vocab_size, seed=scenario.seed)
        # Of a thread of its own, and hardly ever asked twice of one request.
        self._names_book = TokenBook(
            options.page_size_tokens, vocab_size, seed=scenario.seed, keep_tokens=1
        )

    def make_model(self, scenario: Scenario) -> PreTrainedModel:
        """The model that the scenario names. Raises InputError."""
        from hw.model.build import make_model

        weights = scenario.hw.weights
        return make_model(
            weights or scenario.model.name,
            self.where,
            torch.bfloat16 if self.where.type == "cuda" else torch.float32,
            weights="local" if weights else "random",
            seed=scenario.seed,
        )

    def tokens_of(self, request: Request, upto: int) -> object:
        """Token ids of a request, from its page keys."""
        return self._book.tokens(request, upto)

    def reading(self, requests: Iterator[Request]) -> Iterator[Request]:
        """The requests of the run, whose pages have names in the store from then on, if there is
        one.
        """
        if self.store is None:
            return requests
        return self.store.learning(requests, self._names_book)

    def close(self) -> None:
        """Let go of everything, the last made first."""
        while self._closers:
            self._closers.pop()()
