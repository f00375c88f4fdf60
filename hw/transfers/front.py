"""One copy by one call into C: cutting the lists, enqueueing, waiting.

    Python                                   C (front.c)
    read(lists)      lock of the interpreter kept     lists -> runs, extents
    run(plan)        let go of                        enqueue all, wait, take the device's time
    copy(lists)      first kept, then let go of       both, by a plan that is given or remembered:
                                                      a function of Python's own, not of ctypes'

From Python a call of the driver's takes two microseconds, and what is around it as much again:
ten of the 185 that 9 MiB take to cross the link, twenty where pages are small. Three ways:

    rows        all by the DMA engine's copies of rows                    (`direct`)
    staged      whole pages by DMA, a kernel between a buffer and L1      (`staged`)
                load   queue  |DMA 0|DMA 1|DMA 2|rows|       rows: layers of the last page
                       side         |scat 0|scat 1|scat 2|
                store  queue  |rows|DMA 0|DMA 1|DMA 2|       rows: layers of the first page
                       side   |gath 0|gath 1|gath 2|
    zero copy   one kernel on L2's pages                                  (`zero_copy`)

No kernel is waited for where some of a page goes by rows at the open end. Pieces under 32 KiB are
slow by rows: there the last scatter is a small one, as the first gather is. The end is seen by a
word that the device writes; by the driver's own wait it is a microsecond or two later.
The library is made by `scripts/compile_loop.py` (of `make compiled`); `hw.native_code` says under
what name. It is never in the way: where there is none, or HICACHE_COMPILED is 0, and for
what it refuses (kernels that are not compiled yet, pages shorter than a DMA, batches of pieces,
groups of layers), Python's back-ends do the same. Refuses to say what is wrong with lists.
"""

from __future__ import annotations

import ctypes
import weakref
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, NoReturn, Protocol

import torch

from hicache.operations import PageRuns
from hw.pools import DevicePool, HostPool
from hw.transfers.front_layers import LoadedLayers
from hw.transfers.front_native import (
    BUFFERS,
    CALLS,
    DIRECTIONS,
    Ground,
    Library,
    Part,
    Plan,
    library,
)
from hw.transfers.queues import CudaQueue

if TYPE_CHECKING:
    from hw.transfers.driver import Direction, Driver
    from hw.transfers.queues import Queue

NOT_MINE, NO_MEMORY, NO_ROOM = -1, -2, -3  # of front.c
# Rows so long cross at eight to nine tenths of the link's speed. Such a part of a page of so many
# bytes hides what the kernel does: loads lose more by each row, stores begin with a gather.
ROW_BYTES, ROW_PAGE_BYTES = 32 << 10, 2 << 20
ROW_PARTS: dict[Direction, int] = {"h2d": 3, "d2h": 2}


class Calls(Protocol):
    """What a front needs of a driver; `hw.transfers.driver.Driver` is one."""

    max_pitch_bytes: int
    batch_has_fail_index: bool  # whether a batch says which of its copies failed

    def make_event(self, *, timed: bool = True) -> int:
        """A new event, that takes times or only waits for work."""
        ...

    def enter(self) -> None:
        """Let this thread call it."""
        ...

    def address_of(self, call: str) -> int | None:
        """Of one of CALLS; None for batches and words where it has none."""
        ...

    def refuse(self, name: str, code: int) -> NoReturn:
        """Raise what a failed call means."""
        ...


class Stream(Protocol):
    """What a front needs of a queue; `hw.transfers.queues.CudaQueue` is one."""

    handle: int

    def running(self) -> AbstractContextManager[None]:
        """Let tensors be made on it."""
        ...

    def handle_of(self, stream: torch.cuda.Stream | None) -> int:
        """Of a stream, or of the caller's current one."""
        ...


class Front:
    """Copies between two pools on one queue, for one thread at a time."""

    def __init__(
        self,
        library: Library,
        calls: Calls,
        device_pool: DevicePool,
        host_pool: HostPool,
        queue: Stream,
    ) -> None:
        self.compiled, self.calls = library, calls
        self._read, self._run = library.read, library.run
        self._remember = library.remember
        self._pools = (device_pool, host_pool)
        self._lists: tuple[torch.Tensor, torch.Tensor] | None = None
        layout = device_pool.layout
        self.ground = ground = Ground()
        self.at = ctypes.addressof(ground)
        self._copy = library.copier(self.at)
        self.queue = queue
        # Not at exit: a thread that is left behind may be copying then.
        weakref.finalize(self, library.free, ctypes.byref(ground)).atexit = False
        for name, call in CALLS.items():
            setattr(ground, name, calls.address_of(call))
        ground.batch_has_fail_index = calls.batch_has_fail_index
        ground.queue = queue.handle
        ground.begin, ground.end = calls.make_event(), calls.make_event()
        ground.listed = calls.make_event(timed=False)
        self._word = torch.zeros(1, dtype=torch.int32, pin_memory=device_pool.device.type == "cuda")
        ground.word = self._word.data_ptr()
        for buffer in range(BUFFERS):
            ground.there[buffer] = calls.make_event(timed=False)
            ground.free[buffer] = calls.make_event(timed=False)
        ground.device_pages, ground.host_pages = device_pool.pages, host_pool.pages
        ground.pages_per_chunk, ground.page_bytes = host_pool.pages_per_chunk, host_pool.page_bytes
        ground.device_address, ground.host_address = device_pool.address, host_pool.address
        ground.layers, ground.layer_bytes = layout.layers, layout.layer_bytes
        ground.parts = layout.parts
        pitches = [host_pool.page_bytes]
        for part in range(layout.parts):
            pitches.append(device_pool.layer_pitch_bytes(part))
            ground.part[part] = Part(
                layout.piece_bytes(part),
                device_pool.piece_address(part, 0, 0),
                pitches[-1],
                host_pool.piece_address(part, 0, 0),
            )
        self.copies_rows = max(pitches) <= calls.max_pitch_bytes
        events = [calls.make_event(timed=False) for _ in range(layout.layers)]
        self._layered = (ctypes.c_void_p * layout.layers)(*events)
        ground.layered = ctypes.addressof(self._layered)

    def serves(self, device_pool: DevicePool, host_pool: HostPool) -> bool:
        """Whether these are its pools."""
        return self._pools[0] is device_pool and self._pools[1] is host_pool

    def row_layers(self, direction: Direction) -> int:
        """How many layers of the page at a staged copy's open end go by rows; where rows are slow,
        none.
        """
        layout = self._pools[0].layout
        shortest = min(layout.piece_bytes(part) for part in range(layout.parts))
        is_long = shortest >= ROW_BYTES and self.ground.page_bytes >= ROW_PAGE_BYTES
        return layout.layers // ROW_PARTS[direction] if is_long and self.copies_rows else 0

    def read(self, device: PageRuns, host: PageRuns) -> tuple[int, int] | None:
        """Read two lists, for `run`: how many pages there are, in how many extents. None for what
        it is not for: lists that are wrong, too.
        """
        return None if self._read(self.at, device, host) else self.found()

    def found(self) -> tuple[int, int]:
        """As `read`, of what was read last, by `copy` or there; no pages where it was refused."""
        ground = self.ground
        return ground.pages, ground.extents

    def run(self, plan: Plan, direction: Direction) -> int | None:
        """Copy what was read, and wait: the device's time in ns, or None where nothing was done.

        Raises TransferError if the device refuses; RuntimeError if it is lost.
        """
        self.calls.enter()
        code = self._run(self.at, plan.at, DIRECTIONS[direction])
        return self._told(code, direction) if code else self.ground.device_ns

    def copy(
        self,
        device: PageRuns,
        host: PageRuns,
        direction: Direction,
        plan: Plan | None = None,
        *,
        busy: bool = False,
    ) -> int | None:
        """`read` and `run` at once; None where either is. Without a plan by what is remembered for
        such lists, None where nothing is; busy: what the other direction is. Raises as `run`.
        """
        self.calls.enter()
        at = 0 if plan is None else plan.at
        device_ns = self._copy(device, host, at, DIRECTIONS[direction], busy)
        return device_ns if device_ns >= 0 else self._told(self.ground.code, direction)

    def remember(self, plan: Plan, direction: Direction, *, busy: bool) -> None:
        """What was read last, and lists of as many pages in as many extents, are for `plan`."""
        self._remember(self.at, plan.at, DIRECTIONS[direction], busy)

    def begin_load(self, plan: Plan) -> LoadedLayers:
        """A load layer by layer of what was read, of which there must be something, by a plan that
        `loads_layers`. Others may wait for its layers before they are enqueued.
        """
        ground = self.ground
        if plan.layer_kernel.function and 2 * ground.pages > ground.list_room:
            self._make_room(2 * ground.pages)
        return LoadedLayers(self, plan)

    def _told(self, code: int, direction: Direction) -> int | None:
        ground = self.ground
        if code == NO_ROOM:
            self._make_room(2 * ground.pages)
            code = self._run(self.at, ground.plan, DIRECTIONS[direction])
        if not code:
            return ground.device_ns
        if code != NOT_MINE:
            self.refuse(code)
        return None

    def refuse(self, code: int) -> NoReturn:
        """Raise what the code of a call means that has failed."""
        if code == NO_MEMORY:
            raise MemoryError("no memory for the page lists of a copy")
        self.calls.refuse(tuple(CALLS.values())[self.ground.failed_call], code)

    def _make_room(self, room: int) -> None:
        """Page lists on both sides; nothing is under way now."""
        device = self._pools[0].device
        room = max(1024, 2 * room)
        is_pinned = device.type == "cuda"
        with self.queue.running():  # whose memory it is then, for PyTorch's allocator
            here = torch.empty(room, dtype=torch.int32, pin_memory=is_pinned)
            there = torch.empty(room, dtype=torch.int32, device=device)
        self._lists = (here, there)
        ground = self.ground
        ground.list_room, ground.list_host, ground.list_device = (
            room, here.data_ptr(), there.data_ptr()
        )  # fmt: skip


def front_of(
    queue: Queue, device_pool: DevicePool, host_pool: HostPool, driver: Driver | None
) -> Front | None:
    """The front of a queue, made when it is first asked for; None where there is none."""
    if driver is None or not isinstance(queue, CudaQueue):
        return None
    known = queue.front
    if known is not None and known.serves(device_pool, host_pool):
        return known
    found = library()
    if found is None:
        return None
    made = Front(found, driver, device_pool, host_pool, queue)
    if known is None:
        queue.front = made
    return made
