"""Engines on three tiers of real memory and files, for whatever device computes."""

from __future__ import annotations

from collections import Counter

import hw  # noqa: F401  # before Triton is imported

# isort: split
import pytest
import torch
from live_runs import Workload  # makes the engine's test helpers importable

# isort: split
from small_workloads import Call

from hicache.engine import Engine
from hicache.operations import Prefill
from hicache.options import CacheOptions, EngineOptions, RestoreOptions, SchedulerOptions
from hicache.outlook import Outlook
from hicache.record import Record, Recorder
from hw.lanes import LiveLanes
from hw.live import LiveEnvironment, run_live
from hw.loads import LoadBook
from hw.machine import ThreadMachine
from hw.pools import DevicePool, HostPool, KvLayout
from hw.steps import StepsOf
from hw.storage.file_store import FileStore
from hw.tokens import TokenBook
from hw.transfers.device import TransferDevice
from hw.transfers.direct import Direct
from hw.transfers.driver import Driver
from hw.workers import WorkQueue

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
VOCAB = 97


class Direction(Direct):
    """Copies that may be spoiled: `spoil(direction, source, target)` gives the lists to use."""

    spoil = staticmethod(lambda direction, source, target: (source, target))

    def copy(self, direction, source, target, inputs=(), *, alone=False):
        source, target = self.spoil(direction, source, target)
        return super().copy(direction, source, target, inputs, alone=alone)


class Machine:
    """Three tiers of real memory and files under an engine."""

    def __init__(
        self, workload: Workload, tmp_path, layout: KvLayout, make_gpu, spoil=None
    ) -> None:
        """`make_gpu(pool)` gives the device that computes."""
        options = workload.options
        driver = Driver() if DEVICE.type == "cuda" else None
        device_pool = DevicePool(layout, options.device_pages, DEVICE)
        self.host_pool = HostPool(layout, max(1, options.host_pages), driver)
        copies = [Direction(device_pool, self.host_pool, driver) for _ in range(2)]
        for each in copies if spoil else ():
            each.spoil = spoil
        self.store = FileStore(
            tmp_path, max(1, options.storage_pages), self.host_pool.page_bytes, self.host_pool,
            workers=2,
        )  # fmt: skip
        reader, writer = self.store.devices()
        self.gpu = make_gpu(device_pool)
        loads = LoadBook(layout.layers) if options.restore.layerwise else None
        if loads is not None:
            self.gpu.loads_of = lambda number: loads.of(number).wait_layer
        devices = {
            "gpu": self.gpu, "h2d": TransferDevice(copies[0], "h2d", loads),
            "d2h": TransferDevice(copies[1], "d2h"), "s2h": reader, "h2s": writer,
        }  # fmt: skip
        self.env = LiveEnvironment(ThreadMachine())
        steps_of = StepsOf(TokenBook(options.page_size_tokens, VOCAB).tokens)
        queues = {
            name: WorkQueue(name, [device], self.env.machine) for name, device in devices.items()
        }
        self.lanes = LiveLanes(self.env, queues, steps_of, loads)
        self.lines: list[str] = []
        recorder = Recorder(self.env, self.lanes, self.lines.append, "synthetic")
        self.engine = steps_of.engine = Engine(self.env, recorder, options)
        try:
            self.engine.serve(workload.requests())
            assert run_live(self.env, self.lanes)
            recorder.close()
        finally:
            self.lanes.close()
            self.host_pool.close()

    def overlapped(self) -> list[tuple[Prefill, int, int]]:
        """The prefills that named a load, and by how much it was under way before each began and
        ended, in ns (less than 0: it was not).
        """
        endings = Record(self.lines).endings
        found: list[tuple[Prefill, int, int]] = []
        for kind, _, operation, *times in endings.values():
            if kind == "done" and isinstance(operation, Prefill) and operation.load >= 0:
                load = endings[operation.load]
                if load[0] == "done":
                    found.append((operation, load[5] - times[1], times[2] - load[5]))
        return found

    def copied(self) -> Counter[str]:
        """Copies of each direction."""
        counts: Counter[str] = Counter()
        for line in self.lines:
            for direction in ("d2h", "h2d", "h2s", "s2h"):
                counts[direction] += f'"{direction}"' in line
        return counts


def halve_hits(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the policy "meet" load the head of every hit of two pages or more, whatever is best."""
    monkeypatch.setattr(
        Outlook,
        "best_goal",
        lambda self: (self._hits.device + max(self._hits.host, self._hits.storage) + 1) // 2,
    )


def conversations(turns: int = 3, **restore: object) -> Workload:
    """Prefixes that come back after they had to leave L1, and L2; restored always, or as said."""
    options = EngineOptions(
        page_size_tokens=4, bytes_per_token=1, device_pages=16, host_pages=16, storage_pages=60,
        cache=CacheOptions(eviction_granularity="page"),
        restore=RestoreOptions(**{"policy": "always", **restore}),
        scheduler=SchedulerOptions(chunk_tokens=12, mixed_chunk=True), page_ids="named",
    )  # fmt: skip
    calls = [
        Call(3_000_000, (place, *range(1 + turn)), 1 + turn % 3, 4)
        for turn in range(turns)
        for place in range(7)
    ]
    return Workload(options, tuple(calls))
