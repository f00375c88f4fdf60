"""Pools with random bytes, page lists of every kind, and what a copy must leave behind."""

from __future__ import annotations

import torch

from hicache.operations import PageRuns
from hw.pools import DevicePool, HostPool, KvLayout
from hw.transfers.auto import BACKENDS
from hw.transfers.lists import expand
from hw.transfers.timing import Case, Timed

DEVICE_PAGES, HOST_PAGES = 13, 17

LAYOUTS = {
    "gqa_bf16": KvLayout(
        layers=3, kv_heads=2, head_dim_k=8, head_dim_v=8, page_size_tokens=4, dtype="bf16"
    ),
    "unequal_fp16": KvLayout(
        layers=2, kv_heads=3, head_dim_k=24, head_dim_v=16, page_size_tokens=1, dtype="fp16"
    ),
    "mla_fp8": KvLayout(
        layers=4, kv_heads=1, head_dim_k=144, head_dim_v=0, page_size_tokens=1, dtype="fp8"
    ),
    "mha_fp32": KvLayout(
        layers=1, kv_heads=4, head_dim_k=16, head_dim_v=16, page_size_tokens=2, dtype="fp32"
    ),
    # Nothing is a multiple of anything: words of one byte.
    "odd_fp8": KvLayout(
        layers=3, kv_heads=1, head_dim_k=5, head_dim_v=3, page_size_tokens=3, dtype="fp8"
    ),
}

# (pages of L1, pages of L2)
LISTS: dict[str, tuple[PageRuns, PageRuns]] = {
    "empty": ((), ()),
    "single": (((4, 1),), ((16, 1),)),
    "one run": (((2, 6),), ((9, 6),)),
    "reversed": (
        tuple((page, 1) for page in range(7, 0, -1)),
        tuple((page, 1) for page in range(16, 9, -1)),
    ),
    "fragmented": (((11, 2), (0, 1), (5, 3)), ((8, 1), (3, 2), (12, 3))),
    "runs that end at other places": (((0, 4), (6, 3)), ((13, 3), (1, 4))),
    "whole pool": (((7, 6), (0, 7)), ((0, 13),)),
}


def make_pools(
    layout: KvLayout, device: str = "cpu", *, seed: int = 0, registrar=None, **options
) -> tuple[DevicePool, HostPool]:
    """Two pools of random bytes."""
    device_pool = DevicePool(layout, DEVICE_PAGES, device)
    host_pool = HostPool(layout, HOST_PAGES, registrar, **options)
    generator = torch.Generator().manual_seed(seed)
    for data in (device_pool.data, host_pool.data):
        data.copy_(torch.randint(0, 256, data.shape, dtype=torch.uint8, generator=generator))
    return device_pool, host_pool


def pieces(pool: DevicePool | HostPool) -> list[torch.Tensor]:
    """A pool's bytes as it shows them to others: (layer, page, bytes of a piece) for K and for V.

    Made through the views `k` and `v`, not through the addresses that the back-ends compute.
    """
    views = [pool.k] if pool.v is None else [pool.k, pool.v]
    return [
        view.contiguous().view(torch.uint8).reshape(view.shape[0], view.shape[1], -1).cpu().clone()
        for view in views
    ]


def check_copy(backend, direction: str, lists: tuple[PageRuns, PageRuns]) -> None:
    """Copy, and compare both pools with what must be in them now: every page, moved or not."""
    device_pool, host_pool = backend.device_pool, backend.host_pool
    on_device, on_host = (torch.from_numpy(expand(runs)) for runs in lists)
    device, host = pieces(device_pool), pieces(host_pool)
    for there, here in zip(device, host, strict=True):
        if direction == "h2d":
            there[:, on_device] = here[:, on_host]
        else:
            here[:, on_host] = there[:, on_device]
    source, target = reversed(lists) if direction == "h2d" else lists
    backend.copy(direction, source, target)
    for pool, wanted in ((device_pool, device), (host_pool, host)):
        for found, right in zip(pieces(pool), wanted, strict=True):
            assert torch.equal(found, right)


def equal_table() -> dict[Case, list[Timed]]:
    """Every back-end takes the same time for everything."""
    return {
        Case(name, direction, busy): [Timed(1, 100, 100), Timed(8, 800, 800)]
        for name in BACKENDS
        for direction in ("h2d", "d2h")
        for busy in ("idle", "busy")
    }
