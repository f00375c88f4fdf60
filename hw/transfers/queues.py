"""An ordered queue of work on the device: a private CUDA stream, or, on CPU memory, the calling
thread, which has done each thing before it goes on.

    queue.copy / copy_rows / copy_batch     by address, between the host's and the device's memory
    queue.running()                         what is launched inside runs on this queue
    mark = queue.mark()                     a point in the queue, to wait for and to take times by
    queue.start() ... queue.stop()          the device's own time for what lies between

A private stream knows nothing of other streams: `after_caller` makes it wait for all that the
caller's current stream was given, such as the making of the very tensors it is to read. Refuses to
split, merge or check copies: the back-ends know the layout.
"""

from __future__ import annotations

import ctypes
import threading
import time
from array import array
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import TYPE_CHECKING, NamedTuple, Protocol, TypeAlias

import numpy as np
import torch

from hw.transfers.driver import Direction, Driver, RowCopy

if TYPE_CHECKING:
    from hw.transfers.front import Front

Numbers: TypeAlias = "np.ndarray | array[int]"


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
    host: int
    device_pitch: int
    host_pitch: int
    width: int
    height: int


class Listed(NamedTuple):
    """A page list that kernels can read: `pages` int32 numbers of `numbers`, from `first` on.
    address: where that is.
    """

    numbers: torch.Tensor
    first: int
    pages: int
    address: int

    @classmethod
    def of(cls, numbers: torch.Tensor) -> Listed:
        """All of a tensor."""
        return cls(numbers, 0, numbers.shape[0], numbers.data_ptr())

    def tensor(self) -> torch.Tensor:
        """Just the list."""
        return self.numbers[self.first : self.first + self.pages]


class Batch:
    """Many copies: three uint64 arrays of one length, of addresses and sizes. From few numbers an
    `array` is made sooner than NumPy's.
    """

    __slots__ = ("_at", "sizes", "sources", "targets")

    def __init__(self, targets: Numbers, sources: Numbers, sizes: Numbers) -> None:
        self.targets, self.sources, self.sizes = targets, sources, sizes
        self._at = (_address_of(targets), _address_of(sources), _address_of(sizes))

    @classmethod
    def of(cls, targets: np.ndarray, sources: np.ndarray, sizes: np.ndarray) -> Batch:
        """Of arrays of any shape and integer type."""
        return cls(
            *(
                np.ascontiguousarray(each, np.uint64).reshape(-1)
                for each in (targets, sources, sizes)
            )
        )

    def __len__(self) -> int:
        return len(self.sizes)

    def addresses(self, first: int) -> tuple[int, int, int]:
        """Where the arrays' entries from `first` on lie."""
        targets, sources, sizes = self._at
        return targets + 8 * first, sources + 8 * first, sizes + 8 * first


def _address_of(numbers: Numbers) -> int:
    if isinstance(numbers, array):
        return numbers.buffer_info()[0]
    return numbers.ctypes.data


class CudaQueue:
    """A private stream of high priority. What it keeps for the next operation (a buffer for page
    lists, two events) is why it belongs to one operation at a time: whoever has its `lock`.
    """

    def __init__(self, driver: Driver, device: torch.device) -> None:
        self.driver = driver
        self.device = device
        self.lock = threading.Lock()
        self.stream = torch.cuda.Stream(device, priority=-1)
        self.handle = self.stream.cuda_stream
        index = device.index
        self._index: int = torch.cuda.current_device() if index is None else index
        self._begin, self._end = driver.make_event(), driver.make_event()
        # Shapes of rows that were copied before: a model has few.
        self._rows: dict[tuple[str | int, ...], RowCopy] = {}
        self._listed: tuple[torch.Tensor, np.ndarray, torch.Tensor] | None = None
        self.front: Front | None = None  # what does whole operations on this queue, if there is one

    def after_caller(self) -> None:
        """Wait, on the device, for what the calling thread's current stream has been given."""
        # As Triton asks for it: torch.cuda.current_stream takes as long as a copy's launch.
        caller: int = torch._C._cuda_getCurrentRawStream(self._index)
        if caller != self.handle and not self.driver.is_idle(caller):
            self.stream.wait_stream(torch.cuda.current_stream(self.device))

    def handle_of(self, stream: torch.cuda.Stream | None) -> int:
        """Of a stream, or of the calling thread's current one."""
        if stream is not None:
            return stream.cuda_stream
        return torch._C._cuda_getCurrentRawStream(self._index)

    def running(self) -> AbstractContextManager[None]:
        """Let tensors be made, and kernels be launched, on this queue."""
        current: int = torch._C._cuda_getCurrentRawStream(self._index)
        if current == self.handle and torch.cuda.current_device() == self._index:
            return nullcontext()
        return self._switched()

    @contextmanager
    def _switched(self) -> Iterator[None]:
        with torch.cuda.device(self.device), torch.cuda.stream(self.stream):
            yield

    def upload(self, *lists: np.ndarray) -> list[Listed]:
        """Lists of one length for work of this queue to read, until the next upload."""
        count = len(lists[0])
        size = count * len(lists)
        if self._listed is None or len(self._listed[1]) < size:
            with self.running():
                # Not smaller than a page: pinned memory is not taken by the byte.
                room = max(1024, 2 * size)
                pinned = torch.empty(room, dtype=torch.int32, pin_memory=True)
                there = torch.empty(room, dtype=torch.int32, device=self.device)
            self._listed = (pinned, pinned.numpy(), there)
        pinned, numbers, there = self._listed
        for place, each in enumerate(lists):
            numbers[place * count : (place + 1) * count] = each
        at = there.data_ptr()
        self.copy(at, pinned.data_ptr(), 4 * size)
        return [
            Listed(there, place * count, count, at + 4 * place * count)
            for place in range(len(lists))
        ]

    def copy(self, target: int, source: int, size_bytes: int) -> None:
        """Enqueue one copy."""
        self.driver.copy(target, source, size_bytes, self.handle)

    def copy_rows(self, direction: Direction, rows: Rows) -> None:
        """Enqueue a copy of rows."""
        key = (direction, *rows[2:])
        known = self._rows.get(key)
        if known is None:
            pitches = (rows.device_pitch, rows.host_pitch)
            known = self.driver.rows(direction, pitches, rows.width, rows.height)
            self._rows[key] = known
        self.driver.copy_rows(direction, known, rows.device, rows.host, self.handle)

    def copy_batch(self, batch: Batch, first: int, stop: int) -> None:
        """Enqueue a batch's copies [first, stop), in no order among themselves."""
        self.driver.copy_batch(*batch.addresses(first), stop - first, self.handle)

    def mark(self, again: Mark | None = None) -> torch.cuda.Event:
        """This point in the queue. `again`: a mark nobody waits for any more, to be used again."""
        assert again is None or isinstance(again, torch.cuda.Event)
        event = torch.cuda.Event(enable_timing=True) if again is None else again
        event.record(self.stream)
        return event

    def start(self) -> None:
        """Take the time from here."""
        self.driver.record(self._begin, self.handle)

    def stop(self) -> int:
        """Block until the queue is here; the device's time since `start`, in ns.

        Raises RuntimeError if the device failed.
        """
        self.driver.record(self._end, self.handle)
        return self.driver.elapsed_ns(self._begin, self._end)

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

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self._begin_ns = 0

    def after_caller(self) -> None:
        """The caller has done its work already."""

    @contextmanager
    def running(self) -> Iterator[None]:
        """Nothing to switch."""
        yield

    def upload(self, *lists: np.ndarray) -> list[Listed]:
        """Lists, each a tensor of its own."""
        return [Listed.of(torch.from_numpy(each.astype(np.int32))) for each in lists]

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

    def copy_batch(self, batch: Batch, first: int, stop: int) -> None:
        """Copy many pieces."""
        part = slice(first, stop)
        for target, source, size in zip(
            batch.targets[part].tolist(),
            batch.sources[part].tolist(),
            batch.sizes[part].tolist(),
            strict=True,
        ):
            ctypes.memmove(target, source, size)

    def mark(self, again: Mark | None = None) -> HostMark:
        """Now."""
        return HostMark()

    def start(self) -> None:
        """Take the time from here."""
        self._begin_ns = time.monotonic_ns()

    def stop(self) -> int:
        """The time since `start`, in ns."""
        return time.monotonic_ns() - self._begin_ns

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
