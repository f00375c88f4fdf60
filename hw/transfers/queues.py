"""An ordered queue of work on the device: a private CUDA stream, or, on CPU memory, the calling
thread, which has done each thing before it goes on.

    queue.copy / copy_rows / copy_batch     by address, between the host's and the device's memory
    queue.running()                         what is launched inside runs on this queue
    mark = queue.mark()                     a point in the queue, to wait for and to take times by

A private stream knows nothing of other streams: `after_caller` makes it wait for all that the
caller's current stream was given, such as the making of the very tensors it is to read. Refuses to
split, merge or check copies: the back-ends know the layout.
"""

from __future__ import annotations

import ctypes
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple, Protocol

import numpy as np
import torch

from hw.transfers.driver import Direction, Driver


class Mark(Protocol):
    """A point in a queue."""

    def synchronize(self) -> None:
        """Block until the queue has reached it. Raises RuntimeError if the device failed."""
        ...

    def query(self) -> bool:
        """Whether the queue has reached it."""
        ...


class Rows(NamedTuple):
    """`height` rows of `width` bytes; the pitch leads from one to the next."""

    device: int
    device_pitch: int
    host: int
    host_pitch: int
    width: int
    height: int


class CudaQueue:
    """A private stream of high priority."""

    def __init__(self, driver: Driver, device: torch.device) -> None:
        self.driver = driver
        self.device = device
        self.stream = torch.cuda.Stream(device, priority=-1)
        self._handle = self.stream.cuda_stream

    def after_caller(self) -> None:
        """Wait, on the device, for what the calling thread's current stream has been given."""
        caller = torch.cuda.current_stream(self.device)
        if caller != self.stream:
            self.stream.wait_stream(caller)

    @contextmanager
    def running(self) -> Iterator[None]:
        """Let tensors be made, and kernels be launched, on this queue."""
        with torch.cuda.device(self.device), torch.cuda.stream(self.stream):
            yield

    def upload(self, numbers: np.ndarray) -> torch.Tensor:
        """An int32 array as a tensor that work of this queue may read."""
        # Pinned blocks come from PyTorch's cache, which keeps one until the copy from it is done.
        with self.running():
            pinned = torch.from_numpy(numbers).pin_memory()
            return pinned.to(self.device, non_blocking=True)

    def copy(self, target: int, source: int, size_bytes: int) -> None:
        """Enqueue one copy."""
        self.driver.copy(target, source, size_bytes, self._handle)

    def copy_rows(self, direction: Direction, rows: Rows) -> None:
        """Enqueue a copy of rows."""
        self.driver.copy_rows(
            direction,
            (rows.device, rows.device_pitch),
            (rows.host, rows.host_pitch),
            rows.width,
            rows.height,
            self._handle,
        )

    def copy_batch(self, targets: np.ndarray, sources: np.ndarray, sizes: np.ndarray) -> None:
        """Enqueue many copies, in no order among themselves."""
        self.driver.copy_batch(targets, sources, sizes, self._handle)

    def mark(self) -> torch.cuda.Event:
        """This point in the queue."""
        event = torch.cuda.Event(enable_timing=True)
        event.record(self.stream)
        return event

    def wait(self, mark: Mark) -> None:
        """Let the queue go on only when another has reached its mark."""
        assert isinstance(mark, torch.cuda.Event)
        self.stream.wait_event(mark)

    def elapsed_ns(self, begin: Mark, end: Mark) -> int:
        """Device time between two marks that were reached."""
        assert isinstance(begin, torch.cuda.Event)
        assert isinstance(end, torch.cuda.Event)
        return round(begin.elapsed_time(end) * 1e6)


class HostMark:
    """A point that was reached when it was made."""

    __slots__ = ("time_ns",)

    def __init__(self) -> None:
        self.time_ns = time.monotonic_ns()

    def synchronize(self) -> None:
        """It has been reached."""

    def query(self) -> bool:
        """It has been reached."""
        return True


class HostQueue:
    """The calling thread, for pools in the CPU's memory."""

    def after_caller(self) -> None:
        """The caller has done its work already."""

    @contextmanager
    def running(self) -> Iterator[None]:
        """Nothing to switch."""
        yield

    def upload(self, numbers: np.ndarray) -> torch.Tensor:
        """An int32 array as a tensor of its own."""
        return torch.from_numpy(numbers.copy())

    def copy(self, target: int, source: int, size_bytes: int) -> None:
        """Copy."""
        ctypes.memmove(target, source, size_bytes)

    def copy_rows(self, direction: Direction, rows: Rows) -> None:
        """Copy rows."""
        for row in range(rows.height):
            device = rows.device + row * rows.device_pitch
            host = rows.host + row * rows.host_pitch
            target, source = (device, host) if direction == "h2d" else (host, device)
            ctypes.memmove(target, source, rows.width)

    def copy_batch(self, targets: np.ndarray, sources: np.ndarray, sizes: np.ndarray) -> None:
        """Copy many pieces."""
        for target, source, size in zip(
            targets.tolist(), sources.tolist(), sizes.tolist(), strict=True
        ):
            ctypes.memmove(target, source, size)

    def mark(self) -> HostMark:
        """Now."""
        return HostMark()

    def wait(self, mark: Mark) -> None:
        """It has been reached."""
        assert mark.query()

    def elapsed_ns(self, begin: Mark, end: Mark) -> int:
        """Time between two marks."""
        assert isinstance(begin, HostMark)
        assert isinstance(end, HostMark)
        return end.time_ns - begin.time_ns


Queue = CudaQueue | HostQueue


def make_queue(device: torch.device, driver: Driver | None) -> Queue:
    """A new queue for pools on `device`."""
    if device.type == "cpu":
        return HostQueue()
    assert driver is not None, "pools on a GPU need the CUDA driver"
    return CudaQueue(driver, device)
