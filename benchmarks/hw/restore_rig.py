"""The three tiers of a real machine, made once, under as many engines as one likes.

    model --- L1 pool --- auto, direct, staged, zero_copy --- L2 pool --- cold: O_DIRECT
                                                                     \\-- warm: page cache

A run makes all this for itself (`hw.assembly`); here the pools are as large as the largest case,
and an engine is told of fewer pages where its tiers are to be small. Every operation is what a run
does: the same devices are called, alone (`prefill_s`, `copy_s`, `read_s`) or by an engine (`run`).
It refuses to judge what comes out.
"""

from __future__ import annotations

import gc
import os
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import hw  # noqa: F401  # before Triton is imported

# isort: split
import numpy as np
import torch

from hicache.engine import Engine
from hicache.operations import Chunk, Copy, PageRuns, Prefill
from hicache.options import EngineOptions, RestoreOptions, SchedulerOptions
from hicache.requests import Request
from hw.device import Control, Device, Step
from hw.lanes import LiveLanes
from hw.live import LiveEnvironment, run_live
from hw.machine import ThreadMachine
from hw.model.buffers import Sizes
from hw.model.build import make_model
from hw.model.device import ModelDevice
from hw.pools import DevicePool, HostPool, KvLayout
from hw.steps import StepsOf
from hw.storage.file_store import FileStore
from hw.tokens import TokenBook
from hw.transfers.auto import Auto, make_backend
from hw.transfers.device import TransferDevice
from hw.transfers.driver import Driver
from hw.workers import WorkQueue
from report.rows import Rows
from scenario.geometry import load_geometry

BLOCK_BYTES = 4096
ROWS = 16  # requests of one step


class Kept:
    """A device that outlives the lanes which use it."""

    def __init__(self, device: Device) -> None:
        self.run = device.run
        self.name = device.name

    def close(self) -> None:
        pass


class Rig:
    """Model, pools and L3 files. `pages`: of each tier; `chunk_tokens`: of a prefill step."""

    def __init__(
        self, model: str, device: str, page_tokens: int, pages: int, chunk_tokens: int,
        folder: Path,
    ) -> None:  # fmt: skip
        self.where = torch.device(device)
        self.page_tokens, self.pages, self.chunk_tokens = page_tokens, pages, chunk_tokens
        driver = Driver() if self.where.type == "cuda" else None
        dtype = torch.bfloat16 if driver else torch.float32
        geometry = load_geometry(model, "bf16" if driver else "auto")
        self.layout = KvLayout.of(geometry, page_tokens)
        self.pool = DevicePool(self.layout, pages, self.where)
        self.host = HostPool(self.layout, pages, driver, align_bytes=BLOCK_BYTES)
        self.page_bytes = self.layout.page_bytes
        auto = make_backend("auto", self.pool, self.host, driver)
        assert isinstance(auto, Auto)
        self.backends: dict[str, Any] = {"auto": auto, **auto.candidates}
        self.stores: dict[str, FileStore] = {}
        for name, backend in (("cold", "direct"), ("warm", "pread")):
            self.stores[name] = FileStore(
                folder, pages, self.host.page_bytes, self.host, backend=backend
            )  # pyright: ignore[reportArgumentType]
        self._vocab_size = geometry.vocab_size
        sizes = Sizes(chunk_tokens, ROWS, ROWS * pages)
        made = make_model(model, self.where, dtype)
        self.gpu = ModelDevice(made, self.pool, sizes, name=model)
        self.gpu.warm_up(decoders=2)
        name = torch.cuda.get_device_name() if driver else "CPU"
        self.about = {"machine": name, "model": geometry.name, "page_tokens": page_tokens}

    def close(self) -> None:
        """Let go of everything, the L3 files too."""
        self.gpu.close()
        for store in self.stores.values():
            store.close()
        self.backends["auto"].close()
        self.host.close()

    # ------------------------------------------------------------------ one operation at a time

    def prefill_s(self, request: Request, past: int, pages: PageRuns) -> float:
        """Seconds to compute a prompt behind `past` tokens, in chunks, as the engine would."""
        tokens = self._book().tokens(request, request.prompt_tokens)
        begun = time.perf_counter()
        while past < request.prompt_tokens:
            new = min(self.chunk_tokens, request.prompt_tokens - past)
            operation = Prefill((Chunk(request.number, new, past),), new)
            step = Step(request.number, new, past, tokens, pages)
            self.gpu.run(operation, Control(), (step,))
            past += new
        return time.perf_counter() - begun

    def copy_s(self, backend: str, direction: str, source: PageRuns, target: PageRuns) -> float:
        """Seconds of one copy between L1 and L2."""
        device = TransferDevice(self.backends[backend], direction)  # pyright: ignore
        return self._timed(device, self._copy(direction, source, target))

    def read_s(self, store: str, slots: PageRuns, pages: PageRuns) -> float:
        """Seconds of one read from L3."""
        return self._stored("s2h", store, slots, pages)

    def write_s(self, store: str, pages: PageRuns, slots: PageRuns) -> float:
        """Seconds of one write to L3."""
        return self._stored("h2s", store, pages, slots)

    def clear(self) -> None:
        """Have neither pool hold anything."""
        self.host.data.zero_()
        self.pool.data.zero_()
        if self.where.type == "cuda":
            torch.cuda.synchronize()

    def drop(self, store: str) -> None:
        """Have the kernel forget what it keeps of an L3 file."""
        fd = self.stores[store].file.fd
        os.fsync(fd)
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)

    def _stored(self, direction: str, store: str, source: PageRuns, target: PageRuns) -> float:
        reading, writing = self.stores[store].devices()
        device = reading if direction == "s2h" else writing
        return self._timed(device, self._copy(direction, source, target))

    def _copy(self, direction: str, source: PageRuns, target: PageRuns) -> Copy:
        pages = sum(count for _, count in source)
        size_bytes = pages * self.page_bytes
        return Copy(direction, pages, size_bytes, len(source), source, target)  # pyright: ignore

    def _timed(self, device: Device, operation: Copy) -> float:
        begun = time.perf_counter()
        device.run(operation, Control())
        return time.perf_counter() - begun

    # ------------------------------------------------------------------ a whole engine

    def options(
        self, device_pages: int, host_pages: int, storage_pages: int, restore: RestoreOptions
    ) -> EngineOptions:
        """An engine on the first pages of each tier, everything else as in `mini-hicache`."""
        assert max(device_pages, host_pages, storage_pages) <= self.pages, "the rig is too small"
        return EngineOptions(
            page_size_tokens=self.page_tokens,
            bytes_per_token=self.page_bytes // self.page_tokens,
            device_pages=device_pages,
            host_pages=host_pages,
            storage_pages=storage_pages,
            restore=restore,
            scheduler=SchedulerOptions(
                max_running_requests=ROWS, chunk_tokens=self.chunk_tokens
            ),
            page_ids="named",
        )  # fmt: skip

    def run(
        self, requests: Sequence[Request], options: EngineOptions, store: str
    ) -> dict[str, Sequence[Any]]:
        """Serve `requests` on the real devices; the columns of the result's rows."""
        machine = ThreadMachine()
        env = LiveEnvironment(machine)
        with self._queues(machine, options, store) as queues:
            steps_of = StepsOf(self._book().tokens)
            lanes = LiveLanes(env, queues, steps_of)
            engine = steps_of.engine = Engine(env, lanes, options)
            gc.collect()
            gc.disable()
            try:
                engine.serve(requests, reads_ahead=True)
                assert run_live(env, lanes), "interrupted"
            finally:
                gc.enable()
                lanes.close()
        engine.check_integrity()
        return Rows(engine.metrics).columns()  # pyright: ignore[reportReturnType]

    def _book(self) -> TokenBook:
        # It knows requests by their numbers, which every engine counts anew.
        return TokenBook(self.page_tokens, self._vocab_size)

    @contextmanager
    def _queues(
        self, machine: ThreadMachine, options: EngineOptions, store: str
    ) -> Iterator[dict[str, WorkQueue]]:
        auto = self.backends["auto"]
        devices: dict[str, Device] = {
            "gpu": self.gpu, "h2d": TransferDevice(auto, "h2d"), "d2h": TransferDevice(auto, "d2h")
        }  # fmt: skip
        if options.storage_pages:
            devices["s2h"], devices["h2s"] = self.stores[store].devices()
        yield {name: WorkQueue(name, [Kept(each)], machine) for name, each in devices.items()}


def scattered(pages: int, seed: int, of: int) -> PageRuns:
    """`pages` of the first `of` pages in random order: how pools look after a while."""
    order = np.random.default_rng(seed).permutation(of)[:pages]
    return tuple((int(page), 1) for page in order)


def median_s(measure: Callable[[], float], times: int) -> float:
    """The median of `times` measurements, after one that is thrown away."""
    measure()
    return statistics.median(measure() for _ in range(times))
