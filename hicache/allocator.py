"""Which pages of a tier are free. Consecutive runs first, because one run is one DMA and one file
extent.

`PageCounter` only counts; `PageAllocator` hands out page numbers as runs `((first, count), ...)`.
Both refuse to evict: who asks for more than is free has made a mistake.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from typing import Protocol

from hicache.operations import PageRuns


class Allocator(Protocol):
    """The free pages of one tier. `free` is how many there are."""

    free: int

    def take(self, count: int) -> PageRuns:
        """Hand out `count` pages (`count` <= `free`)."""
        ...

    def give(self, pages: PageRuns, count: int) -> None:
        """Take `count` pages back."""
        ...


class PageCounter:
    """Counts pages without naming them; its page lists are empty."""

    __slots__ = ("free",)

    def __init__(self, capacity: int) -> None:
        self.free = capacity

    def take(self, count: int) -> PageRuns:
        """Hand out `count` unnamed pages."""
        assert 0 <= count <= self.free, (count, self.free)
        self.free -= count
        return ()

    def give(self, pages: PageRuns, count: int) -> None:
        """Take `count` unnamed pages back."""
        self.free += count


class PageAllocator:
    """Hands out page numbers 0 .. capacity - 1.

    The smallest free run that holds the whole request is cut; when none does, the largest ones are
    used up first, so that a request is spread over as few runs as can be had.
    """

    __slots__ = ("_by_end", "_by_size", "_by_start", "free")

    def __init__(self, capacity: int) -> None:
        self.free = capacity
        self._by_start: dict[int, int] = {}  # first page of a free run -> its length
        self._by_end: dict[int, int] = {}  # page after a free run -> its length
        self._by_size: list[tuple[int, int]] = []  # (length, first page), sorted
        if capacity:
            self._add(0, capacity)

    def take(self, count: int) -> PageRuns:
        """Hand out `count` pages as runs in the order in which they should be used."""
        assert 0 <= count <= self.free, (count, self.free)
        self.free -= count
        taken: list[tuple[int, int]] = []
        while count:
            place = bisect_left(self._by_size, (count, -1))
            if place == len(self._by_size):
                place -= 1  # nothing holds it all: use up the largest
            size, first = self._by_size[place]
            self._remove(place)
            used = min(size, count)
            taken.append((first, used))
            if used < size:
                self._add(first + used, size - used)
            count -= used
        return tuple(taken)

    def give(self, pages: PageRuns, count: int) -> None:
        """Take pages back and join them with their free neighbours. A page that is free already is
        a bug.
        """
        assert count == sum(length for _, length in pages), (count, pages)
        for first, length in pages:
            self._free_run(first, length)
        self.free += count

    def free_runs(self) -> list[tuple[int, int]]:
        """The free pages as sorted runs, for checks and tests."""
        return sorted(self._by_start.items())

    def _free_run(self, first: int, length: int) -> None:
        start, size = first, length
        before = self._by_end.get(first)
        if before is not None:
            self._remove(bisect_left(self._by_size, (before, first - before)))
            start, size = first - before, size + before
        after = self._by_start.get(first + length)
        if after is not None:
            self._remove(bisect_left(self._by_size, (after, first + length)))
            size += after
        assert not self._overlaps(start, size), f"pages {first}..{first + length - 1} freed twice"
        self._add(start, size)

    def _overlaps(self, start: int, size: int) -> bool:
        if len(self._by_start) <= size:
            return any(
                first < start + size and start < first + n for first, n in self._by_start.items()
            )
        return any(page in self._by_start for page in range(start, start + size))

    def _add(self, first: int, size: int) -> None:
        self._by_start[first] = size
        self._by_end[first + size] = size
        insort(self._by_size, (size, first))

    def _remove(self, place: int) -> None:
        size, first = self._by_size.pop(place)
        del self._by_start[first], self._by_end[first + size]


def cut(pages: PageRuns, count: int) -> tuple[PageRuns, PageRuns]:
    """The first `count` pages of a list, and the rest. Empty lists stay empty (pages that are only
    counted).
    """
    if not pages:
        return (), ()
    for place, (first, length) in enumerate(pages):
        if count < length:
            head = (*pages[:place], (first, count)) if count else pages[:place]
            return head, ((first + count, length - count), *pages[place + 1 :])
        count -= length
    assert count == 0, "cut beyond the end of a page list"
    return pages, ()


def join(head: PageRuns, tail: PageRuns) -> PageRuns:
    """Two page lists one after the other; runs that meet become one."""
    if not head or not tail:
        return head or tail
    first, length = head[-1]
    if first + length == tail[0][0]:
        return (*head[:-1], (first, length + tail[0][1]), *tail[1:])
    return head + tail


def extents(source: PageRuns, target: PageRuns) -> int:
    """How many runs are consecutive at the source and at the target at once: one I/O or DMA each.

    source  |----4----|--3--|          3 extents: 2, 2 and 3 pages
    target  |-2-|----5------|
    """
    if not source or not target:
        return 1
    ends: set[int] = set()
    for pages in (source, target):
        position = 0
        for _, length in pages:
            position += length
            ends.add(position)
    return len(ends)
