"""What the three ways of moving pages have in common: checking the two page lists, one operation at
a time, waiting for the inputs and for the end.

    copy(direction, source, target)      blocks until the bytes are there
    load_layers(source, target)          h2d; returns at once, layers arrive one after the other

Page i of the source's list goes to page i of the target's: both lists name pages of their own pool,
in any order and in runs of any length. A back-end belongs to one thread at a time; the pools may be
shared by several. Refuses to choose another back-end for itself when it fails.
"""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections.abc import Iterable
from contextlib import AbstractContextManager, suppress
from typing import NamedTuple

import numpy as np
import torch

from hicache.errors import TransferError
from hicache.operations import PageRuns
from hw.pools import DevicePool, HostPool, KvLayout
from hw.transfers.driver import Direction, Driver
from hw.transfers.layerwise import LayerLoad
from hw.transfers.queues import Mark, Queue, make_queue


class Extent(NamedTuple):
    """Pages that are consecutive on both sides, and pinned as one."""

    device: int
    host: int
    pages: int


class Copied(NamedTuple):
    """What a copy took. `device_ns`: between the device's own marks at its begin and end.
    `setup_ns`: the part of the call that will not recur.
    """

    device_ns: int
    setup_ns: int


class Pages(NamedTuple):
    """The two lists of an operation, page by page; int64 arrays of shape (count,)."""

    device: np.ndarray
    host: np.ndarray


class TransferBackend(ABC):
    """One way of moving pages between a device pool and a host pool of the same layout."""

    name = ""

    def __init__(
        self, device_pool: DevicePool, host_pool: HostPool, driver: Driver | None = None
    ) -> None:
        """`driver`: for pools on a GPU."""
        assert device_pool.layout == host_pool.layout
        self.device_pool = device_pool
        self.host_pool = host_pool
        self.layout: KvLayout = device_pool.layout
        self.driver = driver
        self.queue: Queue = make_queue(device_pool.device, driver)
        self._lock = threading.Lock()

    def copy(
        self,
        direction: Direction,
        source: PageRuns,
        target: PageRuns,
        inputs: Iterable[Mark] = (),
    ) -> Copied:
        """Move the pages of `source` to those of `target`, in order, and wait until it is done.

        It begins after what the calling thread's current stream was given, and after `inputs`.
        Raises TransferError if the device refuses; RuntimeError if it is lost.
        """
        with self._lock:
            pages, setup_ns = self._begin(direction, source, target, inputs)
            if not len(pages.device):
                return Copied(0, 0)
            try:
                begin = self.queue.mark()
                setup_ns += self._move(direction, pages)
                end = self.queue.mark()
                end.synchronize()
            except BaseException:
                self._settle()
                raise
            return Copied(self.queue.elapsed_ns(begin, end), setup_ns)

    def load_layers(
        self,
        source: PageRuns,
        target: PageRuns,
        inputs: Iterable[Mark] = (),
        load: LayerLoad | None = None,
    ) -> LayerLoad:
        """Enqueue the load of pages layer by layer. Whoever reads a layer waits for it with
        `LayerLoad.wait_layer`; the next operation of this back-end comes after `finish`.

        load: one that readers in other threads have already: the first layers can be waited for
        while the last are still being enqueued. It fails with the error that is raised here.
        """
        load = load or LayerLoad(self.layout.layers)
        self._lock.acquire()
        try:
            pages, setup_ns = self._begin("h2d", source, target, inputs)
            load.begin(self.queue)
            if len(pages.device):
                setup_ns += self._move_layers(pages, load)
            load.end(self._lock.release, setup_ns)
        except BaseException as error:
            load.fail(error)
            self._settle()
            self._lock.release()
            raise
        return load

    @abstractmethod
    def _move(self, direction: Direction, pages: Pages) -> int:
        """Enqueue the copy on `self.queue`, its end at least. Returns the set-up, in ns."""

    @abstractmethod
    def _move_layers(self, pages: Pages, load: LayerLoad) -> int:
        """Enqueue the load of all layers in order, and tell `load` of each. Returns the set-up."""

    def running(self) -> AbstractContextManager[None]:
        """What is given to the device inside goes to this back-end's own stream."""
        return self.queue.running()

    def close(self) -> None:
        """Wait for what is under way, and let go of work buffers."""
        self._settle()

    def _settle(self) -> None:
        """Wait for what was enqueued: whoever frees pages must not have them written to later. A
        device that is lost writes no more.
        """
        for queue in self._queues():
            with suppress(RuntimeError):
                queue.mark().synchronize()

    def _queues(self) -> tuple[Queue, ...]:
        """All that this back-end enqueues on."""
        return (self.queue,)

    def _begin(
        self, direction: Direction, source: PageRuns, target: PageRuns, inputs: Iterable[Mark]
    ) -> tuple[Pages, int]:
        self._wait_for_inputs(inputs)
        from_device = direction == "d2h"
        runs = (source, target) if from_device else (target, source)
        pages = Pages(expand(runs[0]), expand(runs[1]))
        if len(pages.device) != len(pages.host):
            raise TransferError(
                f"{self.name}: {len(pages.device)} pages of L1 against {len(pages.host)} of L2"
            )
        setup_ns = 0
        for numbers, pool, tier in (
            (pages.device, self.device_pool, "L1"),
            (pages.host, self.host_pool, "L2"),
        ):
            if len(numbers) and not 0 <= numbers.min() <= numbers.max() < pool.pages:
                raise TransferError(f"{self.name}: pages beyond the {pool.pages} of {tier}")
        for first, count in runs[1]:
            if count:
                setup_ns += self.host_pool.pin(first, count)
        return pages, setup_ns

    def _wait_for_inputs(self, inputs: Iterable[Mark]) -> None:
        self.queue.after_caller()
        for mark in inputs:
            self.queue.wait(mark)

    def _extents(self, pages: Pages) -> list[Extent]:
        return extents(pages, self.host_pool.pages_per_chunk)

    def _lists(self, pages: Pages) -> tuple[torch.Tensor, torch.Tensor]:
        """Both lists as int32 tensors on the device, ready for work of `self.queue`."""
        both = self.queue.upload(np.stack((pages.device, pages.host)).astype(np.int32))
        return both[0], both[1]


def expand(runs: PageRuns) -> np.ndarray:
    """The page numbers of a list of runs; int64 array of shape (pages,)."""
    if len(runs) == 1:
        first, count = runs[0]
        return np.arange(first, first + count, dtype=np.int64)
    if not runs:
        return np.empty(0, np.int64)
    starts, counts = np.asarray(runs, np.int64).T
    # Each page is its run's start plus its place in the run.
    before = np.cumsum(counts) - counts
    return np.repeat(starts - before, counts) + np.arange(counts.sum(), dtype=np.int64)


def runs_of(numbers: np.ndarray) -> PageRuns:
    """The opposite of `expand`: consecutive numbers become runs."""
    if not len(numbers):
        return ()
    cuts = np.flatnonzero(np.diff(numbers) != 1) + 1
    starts = np.concatenate(([0], cuts))
    ends = np.concatenate((cuts, [len(numbers)]))
    return tuple(
        (int(numbers[start]), int(end - start)) for start, end in zip(starts, ends, strict=True)
    )


def extents(pages: Pages, pages_per_chunk: int) -> list[Extent]:
    """Cut two lists where either stops being consecutive, or host memory is pinned anew.

    device  |4 5 6 7|1 2 3|        host  |0 1|7 8 9 10 11|     extents  4:0 x2, 6:7 x2, 1:9 x3
    """
    if not len(pages.device):
        return []
    breaks = (np.diff(pages.device) != 1) | (np.diff(pages.host) != 1)
    breaks |= np.diff(pages.host // pages_per_chunk) != 0
    starts = np.concatenate(([0], np.flatnonzero(breaks) + 1))
    counts = np.diff(np.concatenate((starts, [len(pages.device)])))
    return [
        Extent(*each)
        for each in zip(
            pages.device[starts].tolist(), pages.host[starts].tolist(), counts.tolist(), strict=True
        )
    ]
