"""Copies between the GPUs of one machine: each pair, one way at a time, by size.

They are kept as samples: a simulation of one GPU has no use for them yet.
"""

from __future__ import annotations

import time
from collections.abc import Callable

import torch

from calibrate.points import NO_FLOOR, Described, Effort, Floor, Point

SIZES = (1 << 20, 16 << 20, 256 << 20, 1 << 30)


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
        sizes = SIZES if effort == "thorough" else SIZES[1:3]
        return [
            Point("peers.copy", (source, target, size), "fit", 0.1 + 8 * size / 50e9)
            for source in range(count)
            for target in range(count)
            for size in sizes
            if source != target
        ]

    def open(self) -> None:
        """Buffers are made when they are first needed."""

    def floor(self, point: Point) -> Floor:
        return NO_FLOOR

    def sampler(self, point: Point) -> Callable[[], int]:
        source, target, size = point.at
        data = self._buffer(source, 0, size)
        copy = self._buffer(target, 1, size)

        def act() -> int:
            self._wait()
            begun_ns = time.monotonic_ns()
            copy.copy_(data, non_blocking=True)
            self._wait()
            return time.monotonic_ns() - begun_ns

        return act

    def close(self) -> None:
        self._buffers.clear()

    def _buffer(self, device: int, place: int, size: int) -> torch.Tensor:
        largest = self._buffers.get((device, place))
        if largest is None or largest.nbytes < size:
            largest = torch.randint(
                0, 255, (size,), dtype=torch.uint8, device=self._devices[device]
            )
            self._buffers[device, place] = largest
        return largest[:size]

    def _wait(self) -> None:
        for device in self._devices:
            if device.startswith("cuda"):
                torch.cuda.synchronize(device)
