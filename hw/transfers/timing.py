"""How long each back-end takes for how many pages, in a run and scattered, alone and while the
other direction is busy: what `auto` picks by.

    estimate(back-end, direction, pages, extents) = run + (scattered - run) * share of cuts

where `run` and `scattered` are the measured times of so many pages in one run and of as many pages
in random order, between the measured sizes by interpolation. Load and store are measured apart, and
each alone and while the same back-end copies the other way: a link shared with the other direction
is another link. (Beside a plain copy kernels look best, since they take from it; two kernels, one
each way, take from each other.) Refuses to pick.
"""

from __future__ import annotations

import threading
import time
from bisect import bisect_left
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from typing import NamedTuple

import numpy as np

from hicache.operations import PageRuns
from hw.transfers.backend import TransferBackend
from hw.transfers.driver import Direction
from hw.transfers.lists import runs_of

MEASURED_BYTES = 256 << 20  # the largest transfer that is timed; beyond, its slope goes on
REPEATS = 5
# Small transfers over a link take next to nothing to time alone, and differ by little.
SMALL_TIMES = 4
SURE_BYTES = 16 << 20  # so large a transfer shows what larger ones will take
HOPELESS = 3  # times as long as another back-end
DRAWS = 4  # of scattered pages of each size, in turns: by rows some lists take 5 % more than others
# After so many turns a back-end that took so many times as long takes none any more: it will not be
# picked, and its hundreds of pieces leave caches behind in which the next ones are slower.
TRIED, SLOWER = 3, 1.5
LAST_STEP = 1.5  # from the last size but one: between nearer ones the slope is noise


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
    twins: dict[str, TransferBackend] | None = None,
    *,
    measured_bytes: int = MEASURED_BYTES,
    repeats: int = REPEATS,
    seed: int = 0,
) -> Table:
    """Time every candidate at sizes four times apart, with and without the other direction busy.

    twins: the same back-ends over the same pools with a queue of their own, which keep it busy;
    without them it is taken to make no difference. Overwrites pages of both pools.
    """
    some = next(iter(candidates.values()))
    device, host = some.device_pool, some.host_pool
    room = min(device.pages, host.pages, max(1, measured_bytes // host.page_bytes))
    sizes = [1]
    while sizes[-1] < room:
        sizes.append(min(sizes[-1] * 4, room))
    if len(sizes) > 2 and sizes[-1] < LAST_STEP * sizes[-2]:
        del sizes[-2]
    generator = np.random.default_rng(seed)
    # From the whole pools, as in a run: DMA of short pages takes longer the further they lie apart.
    scattered = [
        [
            (
                runs_of(generator.choice(device.pages, size, replace=False)),
                runs_of(generator.choice(host.pages, size, replace=False)),
            )
            for _ in range(DRAWS)
        ]
        for size in sizes
    ]
    # What a twin copies again and again, in a run or scattered: large enough to fill the link.
    place = next((i for i, size in enumerate(sizes) if size * host.page_bytes >= SURE_BYTES), -1)
    one_run = ((0, sizes[place]),)
    back = ((one_run, one_run), scattered[place][0])
    table: Table = {}
    directions: tuple[Direction, ...] = ("h2d", "d2h")
    small = repeats if some.driver is None else SMALL_TIMES * repeats
    for direction in directions:
        for others in (None, twins) if twins else (None,):
            rows: dict[str, list[Timed]] = {name: [] for name in candidates}
            left = dict(candidates)
            for size, lists in zip(sizes, scattered, strict=True):
                is_large = size * host.page_bytes >= SURE_BYTES
                many = repeats if is_large or others else small
                run = [(((0, size),), ((0, size),))]
                in_a_run, in_pieces = (
                    _times(left, direction, pages, many, others, beside)
                    for pages, beside in zip((run, lists), back, strict=True)
                )
                for name in left:
                    rows[name].append(Timed(size, in_a_run[name], in_pieces[name]))
                # What is hopeless is not timed at sizes where it takes long.
                best_ns = {name: min(in_a_run[name], in_pieces[name]) for name in left}
                limit_ns = HOPELESS * min(best_ns.values())
                if is_large:
                    left = {name: left[name] for name in left if best_ns[name] <= limit_ns}
            for name in candidates:
                table[Case(name, direction, "busy")] = rows[name]
                if others is None:
                    table[Case(name, direction, "idle")] = rows[name]
    return table


def _times(
    backends: dict[str, TransferBackend],
    direction: Direction,
    lists: list[tuple[PageRuns, PageRuns]],
    repeats: int,
    twins: dict[str, TransferBackend] | None,
    beside: tuple[PageRuns, PageRuns],
) -> dict[str, int]:
    """Of each back-end the median of `repeats` copies, in ns of the host's clock, after one to warm
    up, while its twin, if there are any, copies `beside` the other way. Of `lists`, as of `beside`,
    L1's pages and L2's. They take turns, so that what changes meanwhile changes for all.
    """
    other: Direction = "d2h" if direction == "h2d" else "h2d"
    ways = [_ways(direction, pages) for pages in lists]
    for backend in backends.values():
        backend.copy(direction, *ways[0])
    times: dict[str, list[int]] = {name: [] for name in backends}
    names = list(backends)
    for turn in range(repeats):
        if turn == TRIED:
            limit_ns = SLOWER * min(map(min, times.values()))
            names = [name for name in names if min(times[name]) <= limit_ns]
        there, first = ways[turn % len(ways)], turn % len(names)
        for name in names[first:] + names[:first]:
            with _copying(twins[name], other, _ways(other, beside)) if twins else nullcontext():
                start_ns = time.monotonic_ns()
                backends[name].copy(direction, *there, alone=True)
                times[name].append(time.monotonic_ns() - start_ns)
    return {name: sorted(each)[len(each) // 2] for name, each in times.items()}


def _ways(direction: Direction, pages: tuple[PageRuns, PageRuns]) -> tuple[PageRuns, PageRuns]:
    """Source and target, of L1's and L2's pages."""
    return pages if direction == "d2h" else (pages[1], pages[0])


@contextmanager
def _copying(
    backend: TransferBackend, direction: Direction, pages: tuple[PageRuns, PageRuns]
) -> Iterator[None]:
    """While this is entered, a thread copies the same pages over and over; it has begun."""
    is_over, has_begun, has_ended = (threading.Event() for _ in range(3))
    failed: list[BaseException] = []

    def work() -> None:
        try:
            while not is_over.is_set():
                backend.copy(direction, *pages, alone=True)
                has_begun.set()
        except BaseException as error:  # for who waits
            failed.append(error)
            has_begun.set()
        finally:
            has_ended.set()

    thread = threading.Thread(target=work, name="other way", daemon=True)
    try:
        thread.start()
        has_begun.wait()
        yield
    finally:
        is_over.set()
        if thread.ident is not None:  # else Ctrl-C kept it from starting: it copies nothing
            _wait(has_ended)
            thread.join()
    if failed:
        raise failed[0]


def _wait(has_ended: threading.Event) -> None:
    """Also at Ctrl-C, once: pools and work buffers are freed behind this. (A `join` that Ctrl-C
    ends takes the thread for ended.)
    """
    try:
        has_ended.wait()
    except KeyboardInterrupt:
        has_ended.wait()
        raise
