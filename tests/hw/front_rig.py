"""A compiled front over two pools and the fake device, for its tests."""

from __future__ import annotations

from contextlib import nullcontext
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from fake_driver import MODEL, QUEUE, SIDE, FakeDriver, FakeMover
from native_calls import compiled_front, front_without_headers
from transfer_pools import DEVICE_PAGES, HOST_PAGES, LAYOUTS, make_pools, pieces

from hw.pools import DevicePool, HostPool, KvLayout
from hw.transfers.front import Front
from hw.transfers.front_native import BUFFERS, Plan, Way
from hw.transfers.lists import expand, runs_of
from hw.transfers.queues import HostQueue

LAYOUT = LAYOUTS["gqa_bf16"]


@pytest.fixture(scope="module")
def library(tmp_path_factory):
    return compiled_front(tmp_path_factory.getbasetemp() / "native")


@pytest.fixture(params=["with Python's headers", "without"])
def any_library(request, tmp_path_factory):
    make = compiled_front if request.param != "without" else front_without_headers
    return make(tmp_path_factory.getbasetemp() / "native")


def front_over(library, driver: FakeDriver, device: DevicePool, host: HostPool) -> Front:
    queue = SimpleNamespace(handle=QUEUE, running=nullcontext, handle_of=lambda stream: MODEL)
    return Front(library, driver, device, host, queue)


class Rig:
    """Two pools, a front over them, and a plan."""

    def __init__(
        self, library, layout: KvLayout, way: Way, *, seed: int = 0, cut: tuple[int, ...] = (),
        fails: int | None = None, batches: str = "now", words: str = "writes",
        missing: bool = False, **options,
    ) -> None:  # fmt: skip
        """cut: pages of a chunk, of what is one chunk, of the first, the last; layers by rows."""
        self.device, self.host = make_pools(layout, seed=seed, **options)
        self.driver = FakeDriver(layout, seed, batches=batches, words=words, fails=fails)
        self.front = front_over(library, self.driver, self.device, self.host)
        self.python_queue = HostQueue()  # of back-ends over it: one, as on a GPU
        self.plan = plan = Plan.of(way)
        chunk, *parts, rows = cut or (3, 3, 2, 1, 0)
        whole, head, tail = (min(chunk, each) for each in parts)
        self.work = torch.zeros(BUFFERS * chunk * self.host.page_bytes, dtype=torch.uint8)
        plan.side, plan.chunk_pages, plan.work_address = SIDE, chunk, self.work.data_ptr()
        plan.whole_pages, plan.head_pages, plan.tail_pages = whole, head, tail
        plan.row_layers[:] = rows, rows
        mover = FakeMover(self.device, missing=missing)
        plan.learn(mover, dense=way == "staged")  # pyright: ignore[reportArgumentType]
        if way == "zero_copy":
            plan.learn_layers(mover, programs=2)  # pyright: ignore[reportArgumentType]

    def check(self, direction, lists, *, at_once: bool = False) -> None:
        """Copy; then every page of both pools is what it must be, and nothing is left to do.
        at_once: reading and copying are one call.
        """
        on_device, on_host = (torch.from_numpy(expand(runs)) for runs in lists)
        device, host = pieces(self.device), pieces(self.host)
        for there, here in zip(device, host, strict=True):
            if direction == "h2d":
                there[:, on_device] = here[:, on_host]
            else:
                here[:, on_host] = there[:, on_device]
        took_ns = 250_000 if len(on_device) else 0
        if at_once:
            assert self.front.copy(*lists, direction, self.plan) == took_ns
        else:
            assert self.front.read(*lists)
            assert self.front.run(self.plan, direction) == took_ns
        assert self.driver.under_way == 0
        for wanted, pool in ((device, self.device), (host, self.host)):
            for part, found in zip(wanted, pieces(pool), strict=True):
                assert torch.equal(part, found)


def random_lists(seed: int, count: int):
    generator = np.random.default_rng(seed)
    return tuple(
        runs_of(generator.permutation(pages)[:count]) for pages in (DEVICE_PAGES, HOST_PAGES)
    )
