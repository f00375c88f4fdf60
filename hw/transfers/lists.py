"""The two page lists of an operation, and the forms in which back-ends want them.

    runs       (first, pages), ...             as the engine has them
    extents    consecutive on both sides       for copies by address
    arrays     a number for each page          for kernels, and for very many copies

A few runs are cut by plain Python: until the first copy is under way every microsecond counts, and
NumPy's first call costs more than they do. Many go through NumPy. Each form is made when it is
first asked for. Refuses to reorder pages.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from hicache.errors import TransferError
from hicache.operations import PageRuns
from hw.pools import DevicePool, HostPool

# Up to so many runs on a side are cut without NumPy.
FEW_RUNS = 16


class Extent(NamedTuple):
    """Pages that are consecutive on both sides, and pinned as one."""

    device: int
    host: int
    pages: int


class Pages(NamedTuple):
    """The two lists of an operation, page by page; int64 arrays of shape (count,)."""

    device: np.ndarray
    host: np.ndarray


class Lists:
    """Page i of `device` belongs to page i of `host`. pages: how many; may differ until `check`."""

    __slots__ = ("_arrays", "_bounds", "_extents", "device", "few", "host", "host_pages", "pages")

    def __init__(self, device: PageRuns, host: PageRuns) -> None:
        self.device, self.host = device, host
        self.few = len(device) <= FEW_RUNS and len(host) <= FEW_RUNS
        self._arrays: Pages | None = None
        self._extents: tuple[int, list[Extent]] | None = None
        # Of each side: how many pages, the lowest, and one more than the highest.
        if self.few:
            self._bounds = (_bounds_of_runs(device), _bounds_of_runs(host))
        else:
            arrays = self.arrays()
            self._bounds = (_bounds_of_pages(arrays.device), _bounds_of_pages(arrays.host))
        self.pages, self.host_pages = self._bounds[0][0], self._bounds[1][0]

    def check(self, name: str, device_pool: DevicePool, host_pool: HostPool) -> None:
        """Raises TransferError, as `name`, for lists of two lengths or of pages that are not."""
        (pages, low, high), (host_pages, host_low, host_high) = self._bounds
        if pages != host_pages:
            raise TransferError(f"{name}: {pages} pages of L1 against {host_pages} of L2")
        if low < 0 or high > device_pool.pages:
            raise TransferError(f"{name}: pages beyond the {device_pool.pages} of L1")
        if host_low < 0 or host_high > host_pool.pages:
            raise TransferError(f"{name}: pages beyond the {host_pool.pages} of L2")

    def arrays(self) -> Pages:
        """Page by page."""
        if self._arrays is None:
            self._arrays = Pages(expand(self.device), expand(self.host))
        return self._arrays

    def extents(self, pages_per_chunk: int) -> list[Extent]:
        """As few as there can be, when host memory is pinned by so many pages at a time."""
        known = self._extents
        if known is None or known[0] != pages_per_chunk:
            if self.few:
                found = _extents_of(self.device, self.host, pages_per_chunk)
            else:
                found = extents(self.arrays(), pages_per_chunk)
            known = self._extents = (pages_per_chunk, found)
        return known[1]

    def count_extents(self, pages_per_chunk: int) -> int:
        """How many there are; of many runs, how many there are at least."""
        if self.few:
            return len(self.extents(pages_per_chunk))
        return max(len(self.device), len(self.host))


def expand(runs: PageRuns) -> np.ndarray:
    """The page numbers of a list of runs; int64 array of shape (pages,)."""
    if len(runs) == 1:
        first, count = runs[0]
        return np.arange(first, first + count, dtype=np.int64)
    if len(runs) <= FEW_RUNS and _bounds_of_runs(runs)[0] <= 16 * FEW_RUNS:
        return np.array(
            [page for first, count in runs for page in range(first, first + count)], np.int64
        )
    # Columns one by one: NumPy takes twice as long to make sense of tuples of tuples.
    starts = np.array([first for first, _ in runs], np.int64)
    lengths = [count for _, count in runs]
    if lengths.count(1) == len(lengths):
        return starts
    counts = np.array(lengths, np.int64)
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


def _bounds_of_runs(runs: PageRuns) -> tuple[int, int, int]:
    """How many pages, the lowest (or 0), and one more than the highest."""
    pages, low, high = 0, 0, 0
    for first, count in runs:
        if count:
            pages += count
            if first < low:
                low = first
            if first + count > high:
                high = first + count
    return pages, low, high


def _bounds_of_pages(numbers: np.ndarray) -> tuple[int, int, int]:
    if not len(numbers):
        return 0, 0, 0
    return len(numbers), int(numbers.min()), int(numbers.max()) + 1


def _extents_of(device: PageRuns, host: PageRuns, pages_per_chunk: int) -> list[Extent]:
    """The same as `extents`, from runs; both lists have as many pages."""
    found: list[Extent] = []
    there: Iterator[tuple[int, int]] = iter(host)
    second, left = 0, 0
    for first, count in device:
        while count:
            while not left:
                second, left = next(there)
            pages = min(count, left, pages_per_chunk - second % pages_per_chunk)
            last = found[-1] if found else None
            if (
                last is not None
                and first == last.device + last.pages
                and second == last.host + last.pages
                and second % pages_per_chunk
            ):
                found[-1] = Extent(last.device, last.host, last.pages + pages)
            else:
                found.append(Extent(first, second, pages))
            first += pages
            count -= pages
            second += pages
            left -= pages
    return found
