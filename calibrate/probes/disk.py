"""L3 as a run uses it: whole operations of a `FileStore`, by size, pieces, and operations at once.

    disk.read, disk.write    (bytes, extents, at once): `extents` pieces, random slots and pages
    disk.*_mixed             the same while the other direction never stops
    disk.first_write         of slots that were never written, as in a run until its L3 is full
    disk.cached.*            through the page cache: cold (dropped before), warm, written
    disk.threads.*           (bytes, threads) by other numbers of threads, of a thorough calibration

The file lies on the disk that is asked about, is written and read once before anything is timed,
and goes away at the end. A sample is the time from the call to its return; of several at once,
until the last. Refuses to measure a file smaller than what is read at once: a cache would answer.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

from calibrate.points import NO_FLOOR, Described, Effort, Floor, Point
from calibrate.probes.background import going_on
from hicache.errors import InputError
from hicache.operations import PageRuns
from hw.storage.file_store import Backend, FileStore
from hw.storage.host import HostBuffer, HostMemory

GIB = 1 << 30
WAYS = ("read", "write")
BYTES_PER_S = 1.5e9  # for the time that a point wants
MIXED_BYTES = 64 << 20
RUN_IN_ROUNDS = 1
THREADS = (1, 4, 64)
LEAST_PAGES = 4  # of the largest operation, which is an eighth of the file
LEAST_SLOTS = 8 * LEAST_PAGES


class DiskProbe:
    """See `calibrate.points.Probe`."""

    name = "disk"

    def __init__(
        self,
        folder: str | None,
        page_bytes: int,
        *,
        backend: Backend = "direct",
        file_bytes: int = 4 * GIB,
        most_bytes: int = GIB // 2,
        workers: int = 16,
        host: Callable[[int, int], HostMemory] = HostBuffer,
        seed: int = 0,
    ) -> None:
        """`folder`: where the file is made, None: the system's temporary folder. `most_bytes`: of
        one operation. `host`: makes memory of (pages, bytes of a page).
        """
        self._folder = Path(folder) if folder else None
        self._page_bytes = -(-page_bytes // 4096) * 4096
        self._backend: Backend = backend
        self._most_pages = max(LEAST_PAGES, most_bytes // self._page_bytes)
        self._slots = max(8 * self._most_pages, file_bytes // self._page_bytes)
        self._workers = workers
        self._make_host = host
        self._random = np.random.default_rng(seed)
        self._stores: dict[str, FileStore] = {}
        self._unwritten = 0  # the next slot of the file for first writes
        self._memory: HostMemory | None = None

    def describe(self) -> dict[str, Described]:
        axes = ("bytes", "extents", "at_once")
        series: dict[str, Described] = {}
        for way in WAYS:
            series[f"disk.{way}"] = Described(
                axes, f"an operation of L3 ({self._backend}, {self._workers} threads), {way}"
            )
            other = WAYS[1 - WAYS.index(way)]
            series[f"disk.{way}_mixed"] = Described(axes, f"the same while {other}s go on")
            series[f"disk.threads.{way}"] = Described(
                ("bytes", "threads"), f"an operation of L3 ({self._backend}) by its threads, {way}"
            )
        series["disk.first_write"] = Described(axes, "a write of slots that were never written")
        if self._backend not in ("pread", "io_uring_cached"):
            for how in ("cold", "warm", "written"):
                series[f"disk.cached.{how}"] = Described(
                    axes, f"through the page cache (pread), {how}"
                )
        return series

    def points(self, effort: Effort) -> list[Point]:
        most = self._most_pages
        counts = [1]
        while counts[-1] * 4 <= most:
            counts.append(counts[-1] * 4)
        # One piece; the largest, too: a run merges its writes, and a read is a whole prompt.
        fits = {(count, 1, 1) for count in (*counts, most)}
        fits |= {(count, count, 1) for count in counts}  # all pages apart
        fits |= {(count, 1, at_once) for count in counts[::2] for at_once in (2, 4)
                 if count * at_once <= most}  # fmt: skip
        checks = {(3, 3, 1), (6, 2, 1), (12, 12, 1), (24, 3, 1), (40, 1, 1), (8, 8, 1), (2, 1, 1)}
        if effort == "thorough":
            fits |= {(2 * count, pieces, 1) for count in counts for pieces in (1, 2 * count)}
        points: list[Point] = []
        for way in WAYS:
            points += [self._point(f"disk.{way}", each, "fit") for each in sorted(fits)]
            points += [
                self._point(f"disk.{way}", each, "check")
                for each in sorted(checks - fits)
                if each[0] <= most
            ]
        mixed = max(1, min(most, MIXED_BYTES // self._page_bytes))
        points += [self._point(f"disk.{way}_mixed", (mixed, 1, 1), "fit") for way in WAYS]
        points += [self._point("disk.first_write", (count, 1, 1), "fit") for count in counts[::2]]
        if self._backend not in ("pread", "io_uring_cached"):
            for how in ("cold", "warm", "written"):
                points += [
                    self._point(f"disk.cached.{how}", (count, 1, 1), "fit") for count in counts
                ]
        if effort == "thorough":
            points += [
                self._point(f"disk.threads.{way}", (most, 1, 1), "fit")._replace(
                    at=(most * self._page_bytes, threads)
                )
                for threads in THREADS
                for way in WAYS
            ]
        return points

    def _point(self, series: str, pages: tuple[int, int, int], role: str) -> Point:
        count, pieces, at_once = pages
        size = count * self._page_bytes
        # More than is timed: the other direction's operation ends, too; caches are dropped.
        more = 3.0 if series.endswith(("_mixed", ".cold")) else 1.0
        weight = max(0.1, more * 8 * size * at_once / BYTES_PER_S)
        kind = "check" if role == "check" else "fit"
        return Point(series, (size, pieces, at_once), kind, weight)

    def open(self) -> None:
        """Make the file and write all of it: what was never written is not read from a disk."""
        self._memory = self._make_host(4 * self._most_pages, self._page_bytes)
        pages = self._memory.view(0, self._memory.pages)
        noise = self._random.integers(0, 256, min(len(pages), 1 << 24), dtype=np.uint8)
        data = np.frombuffer(pages, np.uint8)
        for start in range(0, len(data), len(noise)):
            part = data[start : start + len(noise)]
            part[:] = noise[: len(part)]
        store = self._store(self._backend)
        self._fill(store)
        # Disks of virtual machines, and caches of real ones, are fast for a while: spend that.
        for _ in range(RUN_IN_ROUNDS):
            for first in range(0, self._slots, self._most_pages):
                count = min(self._most_pages, self._slots - first)
                store.read(((first, count),), ((0, count),))

    def sampler(self, point: Point) -> Callable[[], int]:
        count = point.at[0] // self._page_bytes
        _, way, *how = point.series.split(".")
        if way == "threads":
            return self._by_threads(count, point.at[1], how[0])
        _, pieces, at_once = point.at
        if way == "cached":
            return self._cached(count, how[0])
        if way == "first_write":
            return self._first_writes(count)
        store = self._store(self._backend)
        if way.endswith("_mixed"):
            return self._mixed(store, way.removesuffix("_mixed"), count)
        return self._operations(store, way, count, pieces, at_once)

    def floor(self, point: Point) -> Floor:
        """Nobody says how fast a disk can be."""
        return NO_FLOOR

    def close(self) -> None:
        """Close the files; they go away."""
        for store in self._stores.values():
            store.close()
        self._stores.clear()
        self._memory = None

    def _store(self, backend: Backend) -> FileStore:
        if backend not in self._stores:
            self._stores[backend] = self._open(backend)
        return self._stores[backend]

    def _by_threads(self, count: int, threads: int, way: str) -> Callable[[], int]:
        """Operations of a store with so many threads; one such file at a time."""
        name = f"{threads} threads"
        for other in [each for each in self._stores if each.endswith(" threads")]:
            if other != name:
                self._stores.pop(other).close()
        if name not in self._stores:
            self._stores[name] = self._open(self._backend, threads)
            self._fill(self._stores[name])
        return self._operations(self._stores[name], way, count, 1, 1)

    def _open(self, backend: Backend, workers: int = 0) -> FileStore:
        assert self._memory is not None
        if self._folder is not None and not self._folder.is_dir():
            raise InputError(f"--disk {self._folder}: no such folder")
        return FileStore(
            self._folder, self._slots, self._page_bytes, self._memory,
            backend=backend, workers=workers or self._workers,
        )  # fmt: skip

    def _fill(self, store: FileStore) -> None:
        step = self._most_pages
        for first in range(0, self._slots, step):
            count = min(step, self._slots - first)
            store.write(((0, count),), ((first, count),))

    def _lists(self, count: int, pieces: int, place: int) -> tuple[PageRuns, PageRuns]:
        """Slots and pages of `pieces` runs that are not neighbours, apart from other `place`s."""
        each, more = divmod(count, pieces)
        runs = [each + (1 if piece < more else 0) for piece in range(pieces)]
        cell = self._slots // 4 // pieces
        gaps = self._random.permutation(pieces)
        start = place * (self._slots // 4)
        slots = tuple(
            (start + int(gap) * cell + int(self._random.integers(0, cell - run + 1)), run)
            for gap, run in zip(gaps, runs, strict=True)
        )
        first = place * self._most_pages
        pages: list[tuple[int, int]] = []
        for run in runs:
            pages.append((first, run))
            first += run
        return slots, tuple(pages)

    def _operations(
        self, store: FileStore, way: str, count: int, pieces: int, at_once: int
    ) -> Callable[[], int]:
        def act() -> int:
            lists = [self._lists(count, pieces, place) for place in range(at_once)]
            if at_once == 1:
                return _timed(lambda: _move(store, way, lists[0]))
            errors: list[BaseException] = []

            def guarded(each: tuple[PageRuns, PageRuns]) -> None:
                try:
                    _move(store, way, each)
                except BaseException as error:
                    errors.append(error)

            threads = [threading.Thread(target=guarded, args=(each,)) for each in lists]

            def all_of_them() -> None:
                for thread in threads:
                    thread.start()
                for thread in threads:
                    thread.join()

            took = _timed(all_of_them)
            if errors:
                raise errors[0]
            return took

        return act

    def _mixed(self, store: FileStore, way: str, count: int) -> Callable[[], int]:
        """One operation while operations of the other way follow each other."""
        other = WAYS[1 - WAYS.index(way)]

        def act() -> int:
            lists = self._lists(count, 1, 0)
            with going_on(lambda: _move(store, other, self._lists(count, 1, 1))):
                return _timed(lambda: _move(store, way, lists))

        return act

    def _first_writes(self, count: int) -> Callable[[], int]:
        """Writes of one slot after the other; a new file where there is none left."""
        name = "first"

        def act() -> int:
            if name not in self._stores or self._unwritten + count > self._slots:
                if name in self._stores:
                    self._stores.pop(name).close()
                self._stores[name] = self._open(self._backend)
                self._unwritten = 0
            first, self._unwritten = self._unwritten, self._unwritten + count
            lists = ((first, count),), ((0, count),)
            return _timed(lambda: _move(self._stores[name], "write", lists))

        return act

    def _cached(self, count: int, how: str) -> Callable[[], int]:
        fresh = "pread" not in self._stores
        store = self._store("pread")
        if fresh:
            self._fill(store)
        way = "write" if how == "written" else "read"
        warm_lists = self._lists(count, 1, 0)

        def act() -> int:
            lists = warm_lists if how == "warm" else self._lists(count, 1, 0)
            if how == "cold":
                os.fsync(store.file.fd)  # only clean pages can be dropped
                os.posix_fadvise(store.file.fd, 0, 0, os.POSIX_FADV_DONTNEED)
            return _timed(lambda: _move(store, way, lists))

        return act


def _move(store: FileStore, way: str, lists: tuple[PageRuns, PageRuns]) -> None:
    slots, pages = lists
    if way == "read":
        store.read(slots, pages)
    else:
        store.write(pages, slots)


def _timed(act: Callable[[], object]) -> int:
    begun_ns = time.monotonic_ns()
    act()
    return time.monotonic_ns() - begun_ns
