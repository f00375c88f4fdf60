"""The rows of `l3_file.py`: one setting of the file store, the loop in C and fio, in turns.

Each turn has other blocks at random places. Ours and the loop move the same blocks between the same
places of one file and one memory; fio has its own (`l3_fio`). The order changes with each turn, and
medians are compared: of rates, and of ours and the loop also CPU seconds, which say the same on a
machine that is busy with other things.

An operation through the cache takes 30 ms, with its threads' start and end and all, and two that
follow each other differ by 5 %. fio ramps up, and then has 1.5 s. So there a turn of ours and of
the loop is one operation that does not count, and then as many as take 0.3 s, with four lists of
places in turns, so that what the cores' cache keeps of one is of no use to the next.
"""

from __future__ import annotations

import argparse
import ctypes
import os
import random
import shutil
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from l3_fio import Fio, Setting
from l3_loop import Loop

from hicache.errors import InputError
from hw.pinned import PinnedMemory
from hw.storage.file_store import Backend, FileStore
from hw.storage.host import HostMemory
from hw.transfers.driver import Driver

KIB, MIB, GIB = 1 << 10, 1 << 20, 1 << 30
KV_PAGE = 144 * KIB  # one token of Qwen3-8B in bf16
UNIT = 72 * MIB  # all block sizes divide it
TURNS = 3
CACHED_TURN_S, CACHED_PLACES = 0.3, 4


class Pinned:
    """Page-locked memory of torch, as `HostMemory`, with pages of any size."""

    def __init__(self, base: HostMemory | Any, address: int, view: memoryview) -> None:
        self._base, self.address, self._view = base, address, view
        self.page_bytes, self.pages = 1, len(view)

    def paged(self, page_bytes: int) -> Pinned:
        made = Pinned(self._base, self.address, self._view)
        made.page_bytes, made.pages = page_bytes, len(self._view) // page_bytes
        return made

    def view(self, first: int, count: int) -> memoryview:
        return self._view[first * self.page_bytes : (first + count) * self.page_bytes]


def memory(size: int) -> tuple[Pinned, str]:
    """`size` bytes as L2 has them, and what they are; every byte touched."""
    driver, kind = None, "not pinned"
    try:
        import torch
    except ImportError:
        torch = None
    if torch is not None and torch.cuda.is_available():
        driver, kind = Driver(0), f"pinned, {torch.cuda.get_device_name()}"
    memory = PinnedMemory(size, driver)
    view = memoryview((ctypes.c_char * size).from_address(memory.address)).cast("B")
    ctypes.memset(memory.address, 1, size)
    return Pinned(memory, memory.address, view), kind


class Row(NamedTuple):
    """What is measured. `kind`: warm, cold, direct. `total`: bytes. `fio`: beside fio, too; `hot`:
    and beside what it reads into less memory.
    """

    kind: str
    backend: Backend
    block: int
    workers: int
    total: int
    verb: str = "read"
    consecutive: bool = False
    depth: int | None = None
    request_bytes: int | None = None
    readahead: bool = False
    fio: bool = False
    hot: bool = False

    @property
    def width(self) -> int:
        """Threads of the loop and of fio, or the depth of a ring."""
        return (self.depth or 64) if self.backend == "io_uring" else self.workers

    @property
    def name(self) -> str:
        """For people."""
        extra = " in a row" if self.consecutive else ""
        extra += " readahead" if self.readahead else ""
        extra += f" depth {self.depth}" if self.depth else ""
        extra += f" requests of {size_name(self.request_bytes)}" if self.request_bytes else ""
        return (
            f"{self.verb} {self.kind} {self.backend} {size_name(self.block)} x{self.width}{extra}"
        )


class Places(NamedTuple):
    """Which slot goes to which page, block by block."""

    slots: list[int]
    pages: list[int]
    slot_runs: tuple[tuple[int, int], ...]
    page_runs: tuple[tuple[int, int], ...]


class Bench:
    """One file, one memory, one table."""

    def __init__(self, arguments: argparse.Namespace, folder: Path) -> None:
        self.begun = time.monotonic()
        self.budget_s = arguments.budget
        self.smoke = arguments.smoke
        self.cached_bytes = arguments.cached * MIB
        self.path = folder / "l3"
        self.file_bytes = (1 if self.smoke else arguments.units) * UNIT
        self.memory, self.memory_kind = memory(
            (72 if self.smoke else min(arguments.cached * 5 // 4, 72 * arguments.units)) * MIB
        )
        self.loop = Loop(folder)
        program = shutil.which(arguments.fio)
        self.fio = Fio(program, self.path, self.file_bytes) if program else None
        self.rows: list[dict[str, Any]] = []
        self.skipped: list[str] = []
        self.notes: dict[str, Any] = {}

    def open(self, backend: Backend, block: int, workers: int, **options: Any) -> FileStore:
        """The store on the file."""
        return FileStore(
            self.path, self.file_bytes // block, block, self.memory.paged(block),
            backend=backend, workers=workers, **options,
        )  # fmt: skip

    def late(self, what: str) -> bool:
        """Whether the budget is used up; then `what` is skipped."""
        if time.monotonic() - self.begun < self.budget_s:
            return False
        self.skipped.append(what)
        return True

    def measure(self, row: Row) -> None:
        """Time one setting against the loop, and fio; print it."""
        if self.late(row.name):
            return
        options: dict[str, Any] = {"depth": row.depth}
        if row.request_bytes:
            options["request_bytes"] = row.request_bytes
        try:
            store = self.open(row.backend, row.block, row.workers, **options)
        except InputError as error:
            self.skipped.append(f"{row.name}: {error}")
            return
        fd = os.open(self.path, os.O_RDWR | (os.O_DIRECT if row.kind == "direct" else 0))
        try:
            made = self._figures(row, store, fd)
        finally:
            store.close()
            os.close(fd)
        self.rows.append(made)
        print(_line(row, made), flush=True)

    def _figures(self, row: Row, store: FileStore, fd: int) -> dict[str, Any]:
        total = min(row.total, 16 * MIB) if self.smoke else row.total
        pages = self.memory.paged(row.block).pages
        count = max(1, min(total // row.block, store.pages, pages))
        # As fio does, too.
        advice = os.POSIX_FADV_NORMAL if row.readahead else os.POSIX_FADV_RANDOM
        for each in (fd, store.file.fd, *store.file.more_fds):
            os.posix_fadvise(each, 0, 0, advice)
        ours: list[tuple[float, float]] = []
        theirs: list[tuple[float, float]] = []
        fio: list[float] = []
        who = ["ours", "loop", *(["fio"] if row.fio and self.fio else [])]
        for turn in range(1 if self.smoke else TURNS):
            cached = row.kind == "warm" and row.verb == "read" and not row.consecutive
            places = [
                places_of(row, turn + TURNS * each, count, store.pages, pages)
                for each in range(CACHED_PLACES if cached and not self.smoke else 1)
            ]
            for each in who[turn % len(who) :] + who[: turn % len(who)]:
                if row.kind == "cold":
                    drop_cache(fd)
                if each == "ours":
                    ours.append(_turn([self.ours(row, store, some) for some in places]))
                elif each == "loop":
                    theirs.append(_turn([self.beside(row, fd, some) for some in places]))
                else:
                    fio.append(self.by_fio(row, row.kind))
            if row.verb == "write" and row.kind != "direct":
                os.fsync(fd)
        gib = count * row.block / GIB
        (wall, cpu), (loop_wall, loop_cpu) = (
            [statistics.median(column) for column in zip(*each, strict=True)]
            for each in (ours, theirs)
        )
        walls = [each for each, _ in ours]
        made = row._asdict() | {
            "name": row.name, "width": row.width, "picked": store.backend,
            "described": store.describe().replace(str(self.path.parent), "DIR"),
            "bytes": count * row.block, "gib_s": gib / wall, "loop_gib_s": gib / loop_wall,
            "of_loop": loop_wall / wall, "cpu_of_loop": cpu / max(loop_cpu, 1e-9),
            "spread": (max(walls) - min(walls)) / wall,
        }  # fmt: skip
        if fio:
            made["fio_gib_s"] = statistics.median(fio)
            made["of_fio"] = made["gib_s"] / made["fio_gib_s"]
            if row.hot:
                made["fio_small_gib_s"] = self.by_fio(row, "small")
                made["fio_hot_gib_s"] = self.by_fio(row, "hot")
        return made

    def ours(self, row: Row, store: FileStore, places: Places) -> Callable[[], float]:
        """An operation; it returns its seconds."""
        slots, pages = places.slot_runs, places.page_runs

        def act() -> float:
            begun = time.perf_counter()
            if row.verb == "write":
                store.write(pages, slots)
            else:
                store.read(slots, pages)
            return time.perf_counter() - begun

        return act

    def beside(self, row: Row, fd: int, places: Places) -> Callable[[], float]:
        """The same by the loop, whose lists are made before."""
        moves = self.loop.moves(
            row.block, [slot * row.block for slot in places.slots], self.memory,
            [page * row.block for page in places.pages],
        )  # fmt: skip
        return lambda: self.loop.seconds(fd, row.width, moves, row.verb == "write")

    def by_fio(self, row: Row, kind: str) -> float:
        assert self.fio is not None
        ring = row.backend == "io_uring"
        total = row.total if kind == "warm" else 0
        return self.fio.gib_s(Setting(kind, row.verb, ring, row.block, row.width, total))


def _turn(acts: list[Callable[[], float]]) -> tuple[float, float]:
    """Seconds and CPU seconds of an operation; of several the mean, see above."""
    if len(acts) == 1:
        return _timed(acts[0])
    acts[-1]()
    done: list[tuple[float, float]] = []
    while sum(wall for wall, _ in done) < CACHED_TURN_S:
        done.append(_timed(acts[len(done) % len(acts)]))
    wall, cpu = (statistics.fmean(column) for column in zip(*done, strict=True))
    return wall, cpu


def _timed(act: Callable[[], float]) -> tuple[float, float]:
    cpu = time.process_time()
    return act(), time.process_time() - cpu


def drop_cache(fd: int) -> None:
    """What the page cache has of the file goes to disk, and is forgotten."""
    os.fsync(fd)
    os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)


def size_name(size: int) -> str:
    """For people."""
    return f"{size // MIB}M" if size % MIB == 0 else f"{size // KIB}K"


def places_of(row: Row, turn: int, count: int, slots: int, pages: int) -> Places:
    if row.consecutive:
        numbers = list(range(count))
        return Places(numbers, numbers, ((0, count),), ((0, count),))
    seed = random.Random(turn * 1000 + count)
    some, others = seed.sample(range(slots), count), seed.sample(range(pages), count)
    return Places(some, others, tuple((s, 1) for s in some), tuple((p, 1) for p in others))


def _line(row: Row, made: dict[str, Any]) -> str:
    beside = ""
    if "of_fio" in made:
        beside = f"  fio {made['fio_gib_s']:6.2f} {made['of_fio']:5.2f}"
    if "fio_hot_gib_s" in made:
        beside += f" (small {made['fio_small_gib_s']:.1f}, hot {made['fio_hot_gib_s']:.1f})"
    picked = f" = {made['picked']}" if row.backend == "auto" else ""
    return (
        f"{row.name + picked:44} {made['gib_s']:6.2f} GiB/s  loop {made['loop_gib_s']:6.2f} "
        f"{made['of_loop']:5.2f} cpu {made['cpu_of_loop']:4.2f}{beside}"
    )
