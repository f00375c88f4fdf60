"""Times the back-ends on the pools they will serve, and picks the quickest for each operation.

    estimate(back-end, direction, pages, extents) = run + (scattered - run) * share of cuts

where `run` and `scattered` are the measured times of so many pages in one run and of as many pages
in random order, between the measured sizes by interpolation. Load and store are measured apart, and
each alone and while the other direction is busy: a link shared with the other direction is another
link. So a machine may well load by DMA and store by kernel.

Measuring writes to pages of both pools: it belongs to the start of a run, when both are empty.
Refuses to hide what it picked: `Auto.picked` says it of the last operation, `table` why.
"""

from __future__ import annotations

import threading
import time
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import NamedTuple

import numpy as np

from hicache.allocator import extents as count_extents
from hicache.errors import InputError
from hicache.operations import PageRuns
from hw.pools import DevicePool, HostPool
from hw.transfers.backend import Copied, TransferBackend, runs_of
from hw.transfers.direct import Direct
from hw.transfers.driver import Direction, Driver
from hw.transfers.layerwise import LayerLoad
from hw.transfers.queues import Mark, make_queue
from hw.transfers.staged import Staged
from hw.transfers.zero_copy import ZeroCopy

BACKENDS: dict[str, Callable[[DevicePool, HostPool, Driver | None], TransferBackend]] = {
    "staged": Staged,
    "zero_copy": ZeroCopy,
    "direct": Direct,
    "direct_batch": lambda device, host, driver=None: Direct(device, host, driver, pieces="batch"),
}
# What can load layer by layer without a work buffer.
LAYERWISE = ("zero_copy", "direct", "direct_batch")
MEASURED_BYTES = 64 << 20  # the largest transfer that is timed; beyond, its slope goes on
REPEATS = 3


class Timed(NamedTuple):
    """So many pages took so long, in one run and scattered."""

    pages: int
    run_ns: int
    scattered_ns: int


class Case(NamedTuple):
    """What was timed. `busy`: the other direction was."""

    backend: str
    direction: Direction
    busy: str


Table = dict[Case, list[Timed]]


class Traffic:
    """Which directions are busy now; shared by the back-ends of one link. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._running = {"h2d": 0, "d2h": 0}

    @contextmanager
    def running(self, direction: Direction) -> Iterator[str]:
        """Around a transfer; gives what the other direction is: "busy" or "idle"."""
        other = "d2h" if direction == "h2d" else "h2d"
        with self._lock:
            self._running[direction] += 1
            state = "busy" if self._running[other] else "idle"
        try:
            yield state
        finally:
            with self._lock:
                self._running[direction] -= 1


class Auto:
    """A back-end that passes each operation on to one of `candidates`, for one thread at a time.

    `table`: from `measure`; may be shared, as `traffic` should be.
    """

    name = "auto"

    def __init__(
        self, candidates: dict[str, TransferBackend], table: Table, traffic: Traffic | None = None
    ) -> None:
        self.candidates = candidates
        self.table = table
        self.traffic = traffic or Traffic()
        self.picked = ""
        self.device_pool = next(iter(candidates.values())).device_pool
        self.host_pool = next(iter(candidates.values())).host_pool

    def copy(
        self,
        direction: Direction,
        source: PageRuns,
        target: PageRuns,
        inputs: Iterable[Mark] = (),
    ) -> Copied:
        """As `TransferBackend.copy`."""
        with self.traffic.running(direction) as other:
            self.picked = self.pick(direction, source, target, other, tuple(self.candidates))
            return self.candidates[self.picked].copy(direction, source, target, inputs)

    def load_layers(
        self,
        source: PageRuns,
        target: PageRuns,
        inputs: Iterable[Mark] = (),
        load: LayerLoad | None = None,
    ) -> LayerLoad:
        """As `TransferBackend.load_layers`, by what needs no work buffer."""
        names = tuple(name for name in self.candidates if name in LAYERWISE)
        self.picked = self.pick("h2d", source, target, "idle", names)
        return self.candidates[self.picked].load_layers(source, target, inputs, load)

    def pick(
        self,
        direction: Direction,
        source: PageRuns,
        target: PageRuns,
        other: str,
        names: tuple[str, ...],
    ) -> str:
        """The name that is expected to be done first; `other`: what the other direction does."""
        pages = sum(count for _, count in source)
        cuts = count_extents(source, target)
        return min(
            names,
            key=lambda name: estimate_ns(self.table[Case(name, direction, other)], pages, cuts),
        )

    def running(self) -> AbstractContextManager[None]:
        """As `TransferBackend.running`: the first candidate's stream, which the others wait for."""
        return next(iter(self.candidates.values())).running()

    def close(self) -> None:
        """Close the candidates."""
        for candidate in self.candidates.values():
            candidate.close()


def estimate_ns(timed: list[Timed], pages: int, extents: int) -> float:
    """How long `pages` pages in `extents` pieces take, after what was timed (sizes ascending)."""
    scattered = 0.0 if pages <= 1 else (extents - 1) / (pages - 1)
    times = [each.run_ns + (each.scattered_ns - each.run_ns) * scattered for each in timed]
    place = bisect_left(timed, (pages,))
    if place == 0 or len(timed) == 1:
        return times[0] * (1.0 if place == 0 else pages / timed[0].pages)
    # Beyond the last, its slope goes on.
    place = min(place, len(timed) - 1)
    low, high = timed[place - 1], timed[place]
    slope = (times[place] - times[place - 1]) / (high.pages - low.pages)
    return times[place - 1] + slope * (pages - low.pages)


def measure(
    candidates: dict[str, TransferBackend],
    *,
    measured_bytes: int = MEASURED_BYTES,
    repeats: int = REPEATS,
    seed: int = 0,
) -> Table:
    """Time every candidate at sizes four times apart, with and without the other direction busy.

    Overwrites pages of both pools.
    """
    some = next(iter(candidates.values()))
    device, host = some.device_pool, some.host_pool
    room = min(device.pages, host.pages, max(1, measured_bytes // host.page_bytes))
    sizes = [1]
    while sizes[-1] < room:
        sizes.append(min(sizes[-1] * 4, room))
    generator = np.random.default_rng(seed)
    # Pages up to four times as many as are moved, so that random ones are not neighbours.
    scattered = [
        (
            runs_of(generator.permutation(min(device.pages, 4 * size))[:size]),
            runs_of(generator.permutation(min(host.pages, 4 * size))[:size]),
        )
        for size in sizes
    ]
    background = _Background(device, host, some.driver)
    table: Table = {}
    directions: tuple[Direction, ...] = ("h2d", "d2h")
    for name, backend in candidates.items():
        for direction in directions:
            # On CPU memory there is no link whose other direction could be busy.
            rows: list[Timed] = []
            for busy in ("idle", "busy") if some.driver is not None else ("idle",):
                rows = []
                for size, lists in zip(sizes, scattered, strict=True):
                    run = (((0, size),), ((0, size),))
                    times = [
                        background.time(backend, direction, pages, busy, repeats)
                        for pages in (run, lists)
                    ]
                    rows.append(Timed(size, *times))
                table[Case(name, direction, busy)] = rows
            table.setdefault(Case(name, direction, "busy"), rows)
    return table


class _Background:
    """Times copies while plain copies the other way keep the link busy."""

    def __init__(self, device: DevicePool, host: HostPool, driver: Driver | None) -> None:
        self._queue = make_queue(device.device, driver)
        self._host = host
        self._device = device
        pages = min(device.pages, host.pages, host.pages_per_chunk)
        self._size_bytes = min(pages * device.layout.page_bytes, 64 << 20)

    def time(
        self,
        backend: TransferBackend,
        direction: Direction,
        pages: tuple[PageRuns, PageRuns],
        busy: str,
        repeats: int,
    ) -> int:
        """The median of `repeats` copies, in ns of the host's clock, after one to warm up."""
        source, target = (pages[1], pages[0]) if direction == "h2d" else pages
        backend.copy(direction, source, target)
        times: list[int] = []
        for _ in range(repeats):
            if busy == "busy":
                self._host.pin(0, 1)
                bytes_moved = sum(count for _, count in source) * self._host.page_bytes
                for _ in range(2 + 2 * bytes_moved // self._size_bytes):
                    self._copy_back(direction)
            start_ns = time.monotonic_ns()
            backend.copy(direction, source, target)
            times.append(time.monotonic_ns() - start_ns)
            self._queue.mark().synchronize()
        return sorted(times)[len(times) // 2]

    def _copy_back(self, direction: Direction) -> None:
        here, there = self._device.address, self._host.address
        if direction == "h2d":
            self._queue.copy(there, here, self._size_bytes)
        else:
            self._queue.copy(here, there, self._size_bytes)


def make_backend(
    name: str,
    device_pool: DevicePool,
    host_pool: HostPool,
    driver: Driver | None = None,
    *,
    traffic: Traffic | None = None,
    table: Table | None = None,
) -> TransferBackend | Auto:
    """A back-end by name: a key of BACKENDS, or "auto", which measures unless it gets a table.

    Raises InputError for another name, and for one that this machine cannot do: what was asked for
    by name is never replaced.
    """
    if name in BACKENDS:
        return BACKENDS[name](device_pool, host_pool, driver)
    if name != "auto":
        raise InputError(f"transfer back-end {name!r}: it must be auto, {', '.join(BACKENDS)}")
    candidates = {
        each: make(device_pool, host_pool, driver)
        for each, make in BACKENDS.items()
        if each != "direct_batch" or (driver is not None and driver.copies_batches)
    }
    return Auto(candidates, measure(candidates) if table is None else table, traffic)
