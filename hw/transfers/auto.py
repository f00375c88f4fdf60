"""Times the back-ends on the pools they will serve, and picks the quickest for each operation.

    estimate(back-end, direction, pages, extents) = run + (scattered - run) * share of cuts

where `run` and `scattered` are the measured times of so many pages in one run and of as many pages
in random order, between the measured sizes by interpolation. Load and store are measured apart, and
each alone and while the other direction is busy: a link shared with the other direction is another
link. So a machine may well load by DMA and store by kernel.

Measuring writes to pages of both pools: it belongs to the start of a run, when both are empty.
Of two that take about the same, the one without kernels is picked. Refuses to hide what it picked:
`Auto.picked` says it of the last operation, `table` why.
"""

from __future__ import annotations

import time
from bisect import bisect_left
from collections.abc import Callable, Iterable
from functools import partial
from typing import NamedTuple

import numpy as np

from hicache.errors import InputError
from hicache.operations import PageRuns
from hw.pools import DevicePool, HostPool
from hw.transfers.backend import Copied, TransferBackend, lists_of
from hw.transfers.direct import Direct
from hw.transfers.driver import Direction, Driver
from hw.transfers.layerwise import LayerLoad
from hw.transfers.lists import Lists, runs_of
from hw.transfers.queues import Mark, make_queue
from hw.transfers.staged import Staged
from hw.transfers.zero_copy import ZeroCopy

BACKENDS: dict[str, Callable[..., TransferBackend]] = {
    "staged": Staged,
    "zero_copy": ZeroCopy,
    "direct": Direct,
    "direct_batch": partial(Direct, pieces="batch"),
}
# What can load layer by layer without a work buffer.
LAYERWISE = ("zero_copy", "direct", "direct_batch")
# What runs no kernel takes nothing from the model's. That is not measured here, so it is picked
# unless another is clearly quicker.
BY_DMA_ALONE = ("direct", "direct_batch")
KERNEL_MARGIN = 0.01
# A kernel that lasts as long as a layer's load costs those of a prefill, which want all
# multiprocessors at once, up to a quarter of that time; DMA costs them nothing.
LAYER_KERNEL_MARGIN = 0.3
MEASURED_BYTES = 256 << 20  # the largest transfer that is timed; beyond, its slope goes on
REPEATS = 5
# Small transfers over a link take next to nothing to time alone, and differ by little.
SMALL_TIMES = 4
SURE_BYTES = 16 << 20  # so large a transfer shows what larger ones will take
HOPELESS = 3  # times as long as another back-end
# So many picks are remembered: sizes and cuts recur, and to estimate takes longer than to look up.
REMEMBERED = 4096


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
        # Lists, whose ends change in one step: no lock.
        self._running: dict[Direction, list[None]] = {"h2d": [], "d2h": []}

    def enter(self, direction: Direction) -> str:
        """A transfer begins; says what the other direction is: "busy" or "idle"."""
        self._running[direction].append(None)
        return "busy" if self._running["d2h" if direction == "h2d" else "h2d"] else "idle"

    def leave(self, direction: Direction) -> None:
        """It has ended."""
        self._running[direction].pop()


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
        self._names = tuple(candidates)
        self._layerwise = tuple(name for name in candidates if name in LAYERWISE)
        self._picks: dict[tuple[str, int, int, str, tuple[str, ...], float], str] = {}
        some = next(iter(candidates.values()))
        self.device_pool, self.host_pool = some.device_pool, some.host_pool
        fronts = {id(each.front): each.front for each in candidates.values()}
        # Of candidates with a queue each, nobody can read for all.
        self._front = some.front if len(fronts) == 1 else None
        self._lock = some.queue.lock

    def copy(
        self,
        direction: Direction,
        source: PageRuns,
        target: PageRuns,
        inputs: Iterable[Mark] = (),
        *,
        alone: bool = False,
    ) -> Copied:
        """As `TransferBackend.copy`."""
        other = self.traffic.enter(direction)
        try:
            front, found = self._front, None
            if front is not None:
                device, host = (source, target) if direction == "d2h" else (target, source)
                with self._lock:
                    found = front.read(device, host)
                    if found is not None and found[0]:  # pages
                        self.picked = self.pick_of(direction, *found, other, self._names)
                        backend = self.candidates[self.picked]
                        copied = backend.copy_at_once(direction, host, inputs, alone=alone)
                        if copied is not None:
                            return copied
            lists = lists_of(direction, source, target)
            if found is None or not found[0]:
                self.picked = self.pick(direction, lists, other, self._names)
            backend = self.candidates[self.picked]
            return backend.copy_lists(direction, lists, inputs, alone=alone)
        finally:
            self.traffic.leave(direction)

    def load_layers(
        self,
        source: PageRuns,
        target: PageRuns,
        inputs: Iterable[Mark] = (),
        load: LayerLoad | None = None,
        *,
        alone: bool = False,
    ) -> LayerLoad:
        """As `TransferBackend.load_layers`, by what needs no work buffer."""
        lists = lists_of("h2d", source, target)
        self.picked = self.pick("h2d", lists, "idle", self._layerwise, LAYER_KERNEL_MARGIN)
        return self.candidates[self.picked].load_layers(source, target, inputs, load, alone=alone)

    @property
    def layer_multiprocessors(self) -> int:
        """As of `TransferBackend`, where pages lie apart: kernels are for those."""
        pages = min(self.device_pool.pages, self.host_pool.pages)
        names, margin = self._layerwise, LAYER_KERNEL_MARGIN
        return self.candidates[
            self.pick_of("h2d", pages, pages, "idle", names, margin)
        ].layer_multiprocessors

    def pick(
        self,
        direction: Direction,
        lists: Lists,
        other: str,
        names: tuple[str, ...],
        kernel_margin: float = KERNEL_MARGIN,
    ) -> str:
        """The name that is expected to be done first; `other`: what the other direction does.
        kernel_margin: by what share of the time a back-end with kernels must be quicker.
        """
        pages = lists.pages
        if not pages or pages != lists.host_pages:
            return names[0]  # which moves nothing, or refuses
        cuts = lists.count_extents(self.host_pool.pages_per_chunk)
        return self.pick_of(direction, pages, cuts, other, names, kernel_margin)

    def pick_of(
        self,
        direction: Direction,
        pages: int,
        cuts: int,
        other: str,
        names: tuple[str, ...],
        kernel_margin: float = KERNEL_MARGIN,
    ) -> str:
        """The same for `pages` pages in `cuts` extents."""
        asked = (direction, pages, cuts, other, names, kernel_margin)
        known = self._picks.get(asked)
        if known is None:
            known = min(
                names,
                key=lambda name: (
                    estimate_ns(self.table[Case(name, direction, other)], pages, cuts)
                    * (1.0 if name in BY_DMA_ALONE else 1.0 + kernel_margin)
                ),
            )
            if len(self._picks) >= REMEMBERED:
                self._picks.clear()
            self._picks[asked] = known
        return known

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
    if some.driver is not None:
        for name in LAYERWISE:
            if name in candidates:  # has kernels of its own for that: to be compiled now
                candidates[name].load_layers(((0, 1),), ((0, 1),)).finish()
    table: Table = {}
    directions: tuple[Direction, ...] = ("h2d", "d2h")
    # On CPU memory there is no link whose other direction could be busy.
    states = ("idle", "busy") if some.driver is not None else ("idle",)
    small = repeats if some.driver is None else SMALL_TIMES * repeats
    for direction in directions:
        for busy in states:
            rows: dict[str, list[Timed]] = {name: [] for name in candidates}
            left = dict(candidates)
            for size, lists in zip(sizes, scattered, strict=True):
                is_large = size * host.page_bytes >= SURE_BYTES
                many = repeats if is_large or busy == "busy" else small
                run = (((0, size),), ((0, size),))
                in_a_run, in_pieces = (
                    background.times(left, direction, pages, busy, many) for pages in (run, lists)
                )
                for name in left:
                    rows[name].append(Timed(size, in_a_run[name], in_pieces[name]))
                # What is hopeless is not timed at sizes where it takes long.
                best_ns = {name: min(in_a_run[name], in_pieces[name]) for name in left}
                limit_ns = HOPELESS * min(best_ns.values())
                if is_large:
                    left = {name: left[name] for name in left if best_ns[name] <= limit_ns}
            for name in candidates:
                table[Case(name, direction, busy)] = rows[name]
                table.setdefault(Case(name, direction, "busy"), rows[name])
    return table


class _Background:
    """Times copies while plain copies the other way keep the link busy."""

    def __init__(self, device: DevicePool, host: HostPool, driver: Driver | None) -> None:
        self._queue = make_queue(device.device, driver)
        self._host = host
        self._device = device
        pages = min(device.pages, host.pages, host.pages_per_chunk)
        self._size_bytes = min(pages * device.layout.page_bytes, 64 << 20)

    def times(
        self,
        backends: dict[str, TransferBackend],
        direction: Direction,
        pages: tuple[PageRuns, PageRuns],
        busy: str,
        repeats: int,
    ) -> dict[str, int]:
        """Of each back-end the median of `repeats` copies, in ns of the host's clock, after one to
        warm up. They take turns, so that what changes meanwhile changes for all.
        """
        source, target = (pages[1], pages[0]) if direction == "h2d" else pages
        for backend in backends.values():
            backend.copy(direction, source, target)
        times: dict[str, list[int]] = {name: [] for name in backends}
        names = list(backends)
        for turn in range(repeats):
            first = turn % len(names)
            for name in names[first:] + names[:first]:
                if busy == "busy":
                    self._host.pin(0, 1)
                    bytes_moved = sum(count for _, count in source) * self._host.page_bytes
                    for _ in range(2 + 2 * bytes_moved // self._size_bytes):
                        self._copy_back(direction)
                start_ns = time.monotonic_ns()
                backends[name].copy(direction, source, target, alone=True)
                times[name].append(time.monotonic_ns() - start_ns)
                self._queue.mark().synchronize()
        return {name: sorted(each)[len(each) // 2] for name, each in times.items()}

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
    queue = make_queue(device_pool.device, driver)  # one thread's, so one for all
    candidates = {
        each: make(device_pool, host_pool, driver, queue)
        for each, make in BACKENDS.items()
        if each != "direct_batch" or (driver is not None and driver.copies_batches)
    }
    return Auto(candidates, measure(candidates) if table is None else table, traffic)
