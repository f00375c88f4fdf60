"""What the three ways of moving pages have in common: checking the two page lists, one operation at
a time, waiting for the inputs and for the end.

    copy(direction, source, target)      blocks until the bytes are there
    load_layers(source, target)          h2d; returns at once, layers arrive one after the other

Page i of the source's list goes to page i of the target's: both lists name pages of their own pool,
in any order and in runs of any length. A back-end belongs to one thread at a time; the pools may be
shared by several. Refuses to choose another back-end for itself when it fails.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable
from contextlib import suppress
from typing import NamedTuple

from hicache.operations import PageRuns
from hw.pools import DevicePool, HostPool, KvLayout
from hw.transfers.driver import Direction, Driver
from hw.transfers.front import front_of
from hw.transfers.front_native import Plan
from hw.transfers.layerwise import LayerLoad
from hw.transfers.lists import Extent, Lists
from hw.transfers.queues import Mark, Queue, make_queue


class Copied(NamedTuple):
    """What a copy took. `device_ns`: between the device's own marks at its begin and end.
    `setup_ns`: the part of the call that will not recur.
    """

    device_ns: int
    setup_ns: int


class TransferBackend(ABC):
    """One way of moving pages between a device pool and a host pool of the same layout.

    `layer_multiprocessors`: how many the kernels of a load by layers had best find free.
    `plan`: what the compiled front does for it; None: nothing. Where there is no front, or it
    refuses, `_move` enqueues the same pages from here.
    """

    name = ""
    layer_multiprocessors = 0

    def __init__(
        self,
        device_pool: DevicePool,
        host_pool: HostPool,
        driver: Driver | None = None,
        queue: Queue | None = None,
    ) -> None:
        """`driver`: for pools on a GPU. `queue`: one to share with back-ends of the same thread."""
        assert device_pool.layout == host_pool.layout
        self.device_pool = device_pool
        self.host_pool = host_pool
        self.layout: KvLayout = device_pool.layout
        self.driver = driver
        self.queue: Queue = queue or make_queue(device_pool.device, driver)
        self._lock = self.queue.lock
        self.front = front_of(self.queue, device_pool, host_pool, driver)
        self.plan: Plan | None = None
        self.is_pinned = False  # all of L2

    def copy(
        self,
        direction: Direction,
        source: PageRuns,
        target: PageRuns,
        inputs: Iterable[Mark] = (),
        *,
        alone: bool = False,
    ) -> Copied:
        """Move the pages of `source` to those of `target`, in order, and wait until it is done.

        It begins after what the calling thread's current stream was given, and after `inputs`;
        alone: the thread has given no stream anything that matters here, so there is no looking.
        Raises TransferError if the device refuses; RuntimeError if it is lost.
        """
        front = self.front
        if front is not None and self.plan is not None:
            device, host = (source, target) if direction == "d2h" else (target, source)
            with self._lock:
                if alone and self.is_pinned and not inputs:
                    try:
                        device_ns = front.copy(device, host, direction, self.plan)
                    except BaseException:
                        self.settle()
                        raise
                    if device_ns is not None:
                        return Copied(device_ns, 0)
                elif front.read(device, host) is not None:
                    copied = self.copy_at_once(direction, host, inputs, alone=alone)
                    if copied is not None:
                        return copied
        return self.copy_lists(direction, lists_of(direction, source, target), inputs, alone=alone)

    def copy_at_once(
        self, direction: Direction, host: PageRuns, inputs: Iterable[Mark] = (), *, alone: bool
    ) -> Copied | None:
        """`copy` of what the front has read, by one call; `host` are L2's pages of it. None where
        the front refuses. For who has the queue's lock.
        """
        front, plan = self.front, self.plan
        if front is None or plan is None:
            return None
        if inputs or not alone:
            self._wait_for_inputs(inputs, alone=alone)
        setup_ns = 0 if self.is_pinned else self._pin(host)
        try:
            device_ns = front.run(plan, direction)
        except BaseException:
            self.settle()
            raise
        return None if device_ns is None else Copied(device_ns, setup_ns)

    def copy_lists(
        self,
        direction: Direction,
        lists: Lists,
        inputs: Iterable[Mark] = (),
        *,
        alone: bool = False,
    ) -> Copied:
        """`copy`, for who has cut the lists already, without the front."""
        with self._lock:
            setup_ns = self._begin(lists, inputs, alone=alone)
            if not lists.pages:
                return Copied(0, 0)
            try:
                self.queue.start()
                setup_ns += self._move(direction, lists)
                return Copied(self.queue.stop(), setup_ns)
            except BaseException:
                self.settle()
                raise

    def load_layers(
        self,
        source: PageRuns,
        target: PageRuns,
        inputs: Iterable[Mark] = (),
        load: LayerLoad | None = None,
        *,
        alone: bool = False,
    ) -> LayerLoad:
        """Enqueue the load of pages layer by layer. Whoever reads a layer waits for it with
        `LayerLoad.wait_layer`; the next operation of this back-end comes after `finish`.

        load: one that readers in other threads have already: the first layers can be waited for
        while the last are still being enqueued. It fails with the error that is raised here.
        """
        self._lock.acquire()
        return self.load_locked(source, target, inputs, load, alone=alone)

    def load_locked(
        self,
        source: PageRuns,
        target: PageRuns,
        inputs: Iterable[Mark],
        load: LayerLoad | None,
        *,
        alone: bool,
        found: tuple[int, int] | None = None,
    ) -> LayerLoad:
        """`load_layers` for who has the queue's lock, which is this load's from here on. found:
        what the front has said of these lists, if it has just read them.
        """
        try:
            load = load or LayerLoad(self.layout.layers)
            setup_ns = self._load_by_front(source, target, inputs, load, found, alone=alone)
            if setup_ns is None:
                lists = lists_of("h2d", source, target)
                setup_ns = self._begin(lists, inputs, alone=alone)
                load.begin(self.queue)
                if lists.pages:
                    setup_ns += self._move_layers(lists, load)
            load.end(self._lock.release, setup_ns)
        except BaseException as error:
            if load is not None:
                load.fail(error)
            self.settle()
            self._lock.release()
            raise
        return load

    def _load_by_front(
        self,
        host: PageRuns,
        device: PageRuns,
        inputs: Iterable[Mark],
        load: LayerLoad,
        found: tuple[int, int] | None,
        *,
        alone: bool,
    ) -> int | None:
        """Enqueue all layers without Python; the set-up, in ns. None where the front refuses."""
        front, plan = self.front, self.plan
        if front is None or plan is None or not plan.loads_layers:
            return None
        found = found or front.read(device, host)
        if found is None or not found[0]:  # wrong lists, or no pages
            return None
        self._wait_for_inputs(inputs, alone=alone)
        setup_ns = 0 if self.is_pinned else self._pin(host)
        layers = front.begin_load(plan)
        load.begin_by(layers)
        layers.load()
        return setup_ns

    @abstractmethod
    def _move(self, direction: Direction, lists: Lists) -> int:
        """Enqueue the copy on `self.queue`, its end at least. Returns the set-up, in ns."""

    @abstractmethod
    def _move_layers(self, lists: Lists, load: LayerLoad) -> int:
        """Enqueue the load of all layers in order, and tell `load` of each. Returns the set-up."""

    def close(self) -> None:
        """Wait for what is under way, and let go of work buffers."""
        self.settle()

    def settle(self) -> None:
        """Wait for what was enqueued: whoever frees pages must not have them written to later. A
        device that is lost writes no more.
        """
        for queue in self._queues():
            with suppress(RuntimeError):
                queue.mark().synchronize()

    def _queues(self) -> tuple[Queue, ...]:
        """All that this back-end enqueues on."""
        return (self.queue,)

    def _begin(self, lists: Lists, inputs: Iterable[Mark], *, alone: bool) -> int:
        """Wait for what comes before, check the lists, pin their pages; how long that took."""
        self._wait_for_inputs(inputs, alone=alone)
        lists.check(self.name, self.device_pool, self.host_pool)
        return self._pin(lists.host)

    def _pin(self, host: PageRuns) -> int:
        memory = self.host_pool.memory
        if memory.pinned_bytes >= memory.size_bytes:
            self.is_pinned = True
            return 0
        return sum(self.host_pool.pin(first, count) for first, count in host if count)

    def _wait_for_inputs(self, inputs: Iterable[Mark], *, alone: bool = False) -> None:
        if not alone:
            self.queue.after_caller()
        for mark in inputs:
            self.queue.wait(mark)

    def _extents(self, lists: Lists) -> list[Extent]:
        return lists.extents(self.host_pool.pages_per_chunk)


def lists_of(direction: Direction, source: PageRuns, target: PageRuns) -> Lists:
    """Source and target, by the side they lie on."""
    return Lists(source, target) if direction == "d2h" else Lists(target, source)
