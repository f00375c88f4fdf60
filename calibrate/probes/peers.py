"""Copies between the GPUs of one machine: each pair, one way at a time, by size.

A sample is PyTorch's copy from one GPU's memory to another's and the wait for it, on the host's
clock: past the host where the GPUs reach each other's memory, through it where they do not. Kept as
samples, each pair judged by what was held out: a simulation has no use for them. Up to some MiB the
host takes longer than the link, at another speed for a second now and then; so each point is come
back to, which costs next to nothing here.
"""

from __future__ import annotations

import time
from collections.abc import Callable

import torch

from calibrate.points import NO_FLOOR, VISITS, Described, Effort, Floor, Point

# 64 KiB .. 1 GiB, and what is held out between them.
SIZES = tuple(65_536 * 4**power for power in range(8))
CHECKS = (200_000, 3 << 20, 24 << 20, 150 << 20, 600 << 20)
QUICK_SIZES, QUICK_CHECKS = SIZES[2:7], (2 << 20, 9 << 20, 150 << 20)
BYTES_PER_S = 50e9  # for the time that a point wants


class PeersProbe:
    """See `calibrate.points.Probe`. Measures nothing where there is one GPU."""

    name = "peers"

    def __init__(self, devices: list[str] | None = None) -> None:
        """`devices`: names of them, the machine's GPUs if None."""
        count = torch.cuda.device_count() if devices is None else 0
        self._devices = devices or [f"cuda:{number}" for number in range(count)]
        self._buffers: dict[tuple[int, int], torch.Tensor] = {}

    def describe(self) -> dict[str, Described]:
        return {
            "peers.copy": Described(
                ("source_gpu", "target_gpu", "bytes"), "a copy from one GPU to another"
            )
        }

    def points(self, effort: Effort) -> list[Point]:
        count = len(self._devices)
        thorough = effort == "thorough"
        fits, checks = (SIZES, CHECKS) if thorough else (QUICK_SIZES, QUICK_CHECKS)
        return [
            Point(
                "peers.copy", (source, target, size), "check" if size in checks else "fit",
                0.1 + 8 * size / BYTES_PER_S, visits=VISITS["thorough"],
            )
            for source in range(count)
            for target in range(count)
            for size in (*fits, *checks)
            if source != target
        ]  # fmt: skip

    def open(self) -> None:
        """Buffers are made when they are first needed."""

    def floor(self, point: Point) -> Floor:
        return NO_FLOOR

    def sampler(self, point: Point) -> Callable[[], int]:
        source, target = self.buffers(*point.at)

        def act() -> int:
            self._wait()
            begun_ns = time.monotonic_ns()
            target.copy_(source, non_blocking=True)
            self._wait()
            return time.monotonic_ns() - begun_ns

        return act

    def buffers(self, source: int, target: int, size: int) -> tuple[torch.Tensor, torch.Tensor]:
        """What is copied from, and to: uint8, `size` long, of noise of its own each."""
        return self._buffer(source, 0, size), self._buffer(target, 1, size)

    def close(self) -> None:
        self._buffers.clear()

    def _buffer(self, device: int, place: int, size: int) -> torch.Tensor:
        largest = self._buffers.get((device, place))
        if largest is None or largest.nbytes < size:
            largest = torch.randint(
                0, 256, (size,), dtype=torch.uint8, device=self._devices[device]
            )
            self._buffers[device, place] = largest
        return largest[:size]

    def _wait(self) -> None:
        for device in self._devices:
            if device.startswith("cuda"):
                torch.cuda.synchronize(device)
