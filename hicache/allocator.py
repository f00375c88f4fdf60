"""Which pages of a tier are free. Consecutive runs first, because one run is one DMA and one file
extent.

`PageCounter` only counts; `PageAllocator` hands out page numbers as runs `((first, count), ...)`.
Both refuse to evict: who asks for more than is free has made a mistake.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from typing import final

from hicache.operations import PageRuns


class Allocator:
    """The free pages of one tier. `free` is how many there are."""

    __slots__ = ("free",)

    free: int

    def take(self, count: int) -> PageRuns:
        """Hand out `count` pages (`count` <= `free`)."""
        raise NotImplementedError

    def give(self, pages: PageRuns, count: int) -> None:
        """Take `count` pages back."""
        raise NotImplementedError


@final
class PageCounter(Allocator):
    """Counts pages without naming them; its page lists are empty."""

    __slots__ = ()

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


@final
class PageAllocator(Allocator):
    """Hands out page numbers 0 .. capacity - 1.

    The smallest free run that holds the whole request is cut; when none does, the largest ones are
    used up first, so that a request is spread over as few runs as can be had.
    """

    __slots__ = ("_by_size", "_by_start", "_starts")

    def __init__(self, capacity: int) -> None:
        self.free = capacity
        self._by_start: dict[int, int] = {}  # first page of a free run -> its length
        self._starts: list[int] = []  # the first pages of all free runs, sorted
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
        place = bisect_left(self._starts, first)
        following = self._starts[place] if place < len(self._starts) else None
        before = self._starts[place - 1] if place else None
        twice = f"pages {first}..{first + length - 1} freed twice"
        assert before is None or before + self._by_start[before] <= first, twice
        assert following is None or following >= first + length, twice
        if following is not None and following == first + length:
            length += self._forget(following)
        if before is not None and before + self._by_start[before] == first:
            first, length = before, length + self._forget(before)
        self._add(first, length)

    def _forget(self, first: int) -> int:
        """Take the free run that begins at `first` out of the books; returns its length."""
        size = self._by_start[first]
        self._remove(bisect_left(self._by_size, (size, first)))
        return size

    def _add(self, first: int, size: int) -> None:
        self._by_start[first] = size
        insort(self._starts, first)
        insort(self._by_size, (size, first))

    def _remove(self, place: int) -> None:
        _, first = self._by_size.pop(place)
        del self._by_start[first]
        del self._starts[bisect_left(self._starts, first)]


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
