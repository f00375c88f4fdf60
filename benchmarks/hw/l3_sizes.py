"""How the rate of cached reads depends on the size of an operation, beside fio, which has no ends.

For each block, in turns: fio; "steady", the loop in C over the same places again and again, so that
it begins and ends once; and operations of each size, one after the other. A restore is one
operation: what it takes to begin with the first read and to end with the last one it takes anew
each time. `of steady` is what that costs, and what lies between the loop and fio is another matter:
the same calls of the same kernel from another program.

All go on for a while before it counts, as fio does (`RAMP_S`). Places are drawn from 5/4 of an
operation's size, of 1,152 MiB at least; fio reads into 1,152 MiB.
"""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Callable
from itertools import cycle, islice
from typing import Any

from l3_bench import CACHED_PLACES, GIB, KIB, KV_PAGE, MIB, Bench, Places, Row, places_of, size_name

BLOCKS = (64 * KIB, MIB, 4 * MIB, KV_PAGE)
WORKERS = 16
LEAST_BYTES = 1152 * MIB
TURNS = 2
RAMP_S, RUN_S = 0.15, 0.4
ABOUT_BYTES_S = 40 * GIB  # how many places the loop gets


def measure(bench: Bench, sizes: list[int]) -> list[dict[str, Any]]:
    """Rows, a block each: GiB/s of each way, medians of its turns. `sizes`: bytes."""
    rows: list[dict[str, Any]] = []
    for block in BLOCKS:
        if bench.late(f"sizes of operations in blocks of {size_name(block)}"):
            continue
        store = bench.open("auto", block, WORKERS)
        fd = os.open(bench.path, os.O_RDONLY)
        for each in (fd, store.file.fd, *store.file.more_fds):
            os.posix_fadvise(each, 0, 0, os.POSIX_FADV_RANDOM)
        try:
            ways = _ways(bench, block, sizes, store, fd)
            made: dict[str, list[float]] = {name: [] for name in ways}
            for turn in range(TURNS):
                names = list(ways)
                for name in names[turn % len(names) :] + names[: turn % len(names)]:
                    made[name].append(ways[name]())
        finally:
            store.close()
            os.close(fd)
        median = {name: statistics.median(each) for name, each in made.items()}
        rows.append({"block": block, "gib_s": median, "turns": made})
        print(_line(block, median), flush=True)
    return rows


def _ways(
    bench: Bench, block: int, sizes: list[int], store: Any, fd: int
) -> dict[str, Callable[[], float]]:
    """What is measured in turns; each returns GiB/s."""
    row = Row("warm", "auto", block, WORKERS, LEAST_BYTES)
    ways: dict[str, Callable[[], float]] = {}
    if bench.fio is not None:
        ways["fio"] = lambda: bench.by_fio(row, "warm")
    all_pages = bench.memory.paged(block).pages
    for size in sizes:
        pages = min(max(size, LEAST_BYTES) * 5 // 4 // block, all_pages)
        count = min(size // block, store.pages, pages)
        lists = CACHED_PLACES if size <= LEAST_BYTES else 1  # more than any cache keeps
        some = [places_of(row, turn, count, store.pages, pages) for turn in range(lists)]
        acts = [bench.ours(row, store, each) for each in some]
        ways[size_name(size)] = lambda acts=acts, count=count: _again(acts, count * block)
        if "steady" not in ways:
            ramp, loop = (
                bench.beside(row, fd, _long(some, round(seconds * ABOUT_BYTES_S / block)))
                for seconds in (RAMP_S, RUN_S)
            )
            ways["steady"] = lambda ramp=ramp, loop=loop: (
                ramp() and RUN_S * ABOUT_BYTES_S / GIB / loop()
            )
    return ways


def _long(some: list[Places], blocks: int) -> Places:
    """Their blocks again and again, so many."""
    slots, pages = (
        list(islice(cycle([place for each in some for place in getattr(each, what)]), blocks))
        for what in ("slots", "pages")
    )
    return Places(slots, pages, (), ())


def _again(acts: list[Callable[[], float]], size: int) -> float:
    """Operations one after the other: GiB/s of those behind the ramp."""
    began, done = time.perf_counter(), []
    while (at := time.perf_counter() - began) < RAMP_S + RUN_S or not done:
        took = acts[len(done) % len(acts)]()
        done.append((at, took))
    counted = [took for at, took in done if at >= RAMP_S] or [done[-1][1]]
    return size / GIB / statistics.fmean(counted)


def _line(block: int, median: dict[str, float]) -> str:
    steady, fio = median["steady"], median.get("fio")
    beside = f", {steady / fio:4.2f} of fio ({fio:.2f})" if fio else ""
    line = f"{size_name(block):>4}: steady {steady:6.2f} GiB/s{beside}; operations of"
    for name, rate in median.items():
        if name not in ("steady", "fio"):
            of_fio = f", of fio {rate / fio:4.2f}" if fio else ""
            line += f"  {name} {rate:6.2f} (of steady {rate / steady:4.2f}{of_fio})"
    return line
