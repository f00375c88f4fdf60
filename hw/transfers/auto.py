"""Times the back-ends on the pools they will serve, and picks the quickest for each operation: by
direction, size and fragmentation, and by what the other direction does. So a machine may well load
by DMA and store by kernel. `timing.py` says what is timed, and how that is read.

Measuring writes to pages of both pools: it belongs to the start of a run, when both are empty.
Of two that take about the same, the one without kernels is picked. Refuses to hide what it picked:
`Auto.picked` says it of the last operation, `table` why.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial

from hicache.errors import InputError
from hicache.operations import PageRuns
from hw.pools import DevicePool, HostPool
from hw.transfers.backend import Copied, TransferBackend, lists_of
from hw.transfers.direct import Direct
from hw.transfers.driver import Direction, Driver
from hw.transfers.front import Front
from hw.transfers.layerwise import LayerLoad
from hw.transfers.lists import Lists
from hw.transfers.queues import Mark, Queue, make_queue
from hw.transfers.staged import Staged
from hw.transfers.timing import Case, Table, estimate_ns, measure
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
# So many picks are remembered: sizes and cuts recur, and to estimate takes longer than to look up.
REMEMBERED = 4096


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
        self._picks: dict[tuple[Direction, int, int, str, bool], str] = {}
        some = next(iter(candidates.values()))
        self.device_pool, self.host_pool = some.device_pool, some.host_pool
        fronts = {id(each.front): each.front for each in candidates.values()}
        # Of candidates with a queue each, nobody can read for all.
        self._front = some.front if len(fronts) == 1 else None
        self._by_plan = {each.plan.at: name for name, each in candidates.items() if each.plan}
        self._is_pinned = False  # all of L2
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
                    if alone and self._is_pinned and not inputs:
                        device_ns = self._copy_again(front, direction, device, host, other)
                        if device_ns is not None:
                            return Copied(device_ns, 0)
                        found = front.found()
                    else:
                        found = front.read(device, host)
                    if found is not None and found[0]:  # pages
                        self.picked = self.pick_of(direction, *found, other)
                        backend = self.candidates[self.picked]
                        copied = backend.copy_at_once(direction, host, inputs, alone=alone)
                        if copied is not None:
                            self._is_pinned = backend.is_pinned
                            if backend.plan is not None:
                                front.remember(backend.plan, direction, busy=other == "busy")
                            return copied
            lists = lists_of(direction, source, target)
            if found is None or not found[0]:
                self.picked = self.pick(direction, lists, other)
            backend = self.candidates[self.picked]
            return backend.copy_lists(direction, lists, inputs, alone=alone)
        finally:
            self.traffic.leave(direction)

    def _copy_again(
        self, front: Front, direction: Direction, device: PageRuns, host: PageRuns, other: str
    ) -> int | None:
        """By what was picked before for such lists, in one call; the device's time in ns."""
        try:
            device_ns = front.copy(device, host, direction, busy=other == "busy")
        except BaseException:
            for candidate in self.candidates.values():
                candidate.settle()
            raise
        if device_ns is not None:
            self.picked = self._by_plan[front.ground.plan]
        return device_ns

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
        if self._front is not None:
            self._lock.acquire()
            try:
                found = self._front.read(target, source)
                picked = ""
                if found is not None and found[0]:  # pages
                    picked = self.pick_of("h2d", *found, "idle", layers=True)
            except BaseException:
                self._lock.release()
                raise
            if picked:
                self.picked, backend = picked, self.candidates[picked]
                return backend.load_locked(source, target, inputs, load, alone=alone, found=found)
            self._lock.release()
        self.picked = self.pick("h2d", lists_of("h2d", source, target), "idle", layers=True)
        return self.candidates[self.picked].load_layers(source, target, inputs, load, alone=alone)

    @property
    def layer_multiprocessors(self) -> int:
        """As of `TransferBackend`, where pages lie apart: kernels are for those."""
        pages = min(self.device_pool.pages, self.host_pool.pages)
        picked = self.pick_of("h2d", pages, pages, "idle", layers=True)
        return self.candidates[picked].layer_multiprocessors

    def pick(self, direction: Direction, lists: Lists, other: str, *, layers: bool = False) -> str:
        """The name that is expected to be done first; `other`: what the other direction does.
        layers: of a load layer by layer.
        """
        pages = lists.pages
        if not pages or pages != lists.host_pages:
            return self._layerwise[0] if layers else self._names[0]  # moves nothing, or refuses
        cuts = lists.count_extents(self.host_pool.pages_per_chunk)
        return self.pick_of(direction, pages, cuts, other, layers)

    def pick_of(
        self, direction: Direction, pages: int, cuts: int, other: str, layers: bool = False
    ) -> str:
        """The same for `pages` pages in `cuts` extents."""
        asked = (direction, pages, cuts, other, layers)
        known = self._picks.get(asked)
        if known is None:
            margin = 1.0 + (LAYER_KERNEL_MARGIN if layers else KERNEL_MARGIN)
            known = min(
                self._layerwise if layers else self._names,
                key=lambda name: (
                    estimate_ns(self.table[Case(name, direction, other)], pages, cuts)
                    * (1.0 if name in BY_DMA_ALONE else margin)
                ),
            )
            if layers and known == "direct_batch" and 2 * cuts > pages and "direct" in self._names:
                known = "direct"  # the same batches then, but the front enqueues them
            if len(self._picks) >= REMEMBERED:
                self._picks.clear()
            self._picks[asked] = known
        return known

    def close(self) -> None:
        """Close the candidates."""
        for candidate in self.candidates.values():
            candidate.close()


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
    candidates = candidates_of(device_pool, host_pool, driver)
    if table is None:
        table = measured(candidates, driver)
    return Auto(candidates, table, traffic)


def candidates_of(
    device_pool: DevicePool,
    host_pool: HostPool,
    driver: Driver | None = None,
    queue: Queue | None = None,
) -> dict[str, TransferBackend]:
    """All back-ends that this machine can do. They are one thread's, so one queue is for all."""
    queue = queue or make_queue(device_pool.device, driver)
    return {
        name: make(device_pool, host_pool, driver, queue)
        for name, make in BACKENDS.items()
        if name != "direct_batch" or (driver is not None and driver.copies_batches)
    }


def measured(candidates: dict[str, TransferBackend], driver: Driver | None) -> Table:
    """`measure`, with twins where there is a link: on CPU memory no direction can be busy."""
    if driver is None:
        return measure(candidates)
    for name in LAYERWISE:
        if name in candidates:  # has kernels of its own for that: to be compiled now
            candidates[name].load_layers(((0, 1),), ((0, 1),)).finish()
    some = next(iter(candidates.values()))
    twins = candidates_of(some.device_pool, some.host_pool, driver)
    try:
        return measure(candidates, twins)
    finally:
        for twin in twins.values():
            twin.close()
