"""Which pages of a tier are free. Consecutive runs first, because one run is one DMA and one file
extent.

`PageCounter` only counts; `PageAllocator` hands out page numbers as runs `((first, count), ...)`.
Both refuse to evict: who asks for more than is free has made a mistake.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from typing import Final, final

from hicache.operations import PageRuns

_BITS: Final = 32
_FIRST: Final = (1 << 32) - 1


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
        assert capacity <= _FIRST, "more pages than their numbers have room for"
        self.free = capacity
        self._by_start: dict[int, int] = {}  # first page of a free run -> its length
        self._starts: list[int] = []  # the first pages of all free runs, sorted
        # length << 32 | first page, sorted: one number is compared faster than a pair.
        self._by_size: list[int] = []
        if capacity:
            self._by_start[0] = capacity
            self._starts.append(0)
            self._by_size.append(capacity << _BITS)

    def take(self, count: int) -> PageRuns:
        """Hand out `count` pages as runs in the order in which they should be used."""
        assert 0 <= count <= self.free, (count, self.free)
        self.free -= count
        starts, by_start, by_size = self._starts, self._by_start, self._by_size
        taken: list[tuple[int, int]] = []
        while count:
            wanted = count << _BITS
            if by_size[-1] < wanted:  # nothing holds it all: use up the largest
                run = by_size.pop()
            else:
                run = by_size.pop(bisect_left(by_size, wanted))
            size, first = run >> _BITS, run & _FIRST
            del by_start[first]
            at = bisect_left(starts, first)
            if count < size:  # its tail stays, in its place
                starts[at] = rest = first + count
                by_start[rest] = size - count
                insort(by_size, size - count << _BITS | rest)
                taken.append((first, count))
                break
            starts.pop(at)
            taken.append((first, size))
            count -= size
        return tuple(taken)

    def give(self, pages: PageRuns, count: int) -> None:
        """Take pages back and join them with their free neighbours. A page that is free already is
        a bug.
        """
        given = 0
        for first, length in pages:
            self._free_run(first, length)
            given += length
        assert given == count, (count, pages)
        self.free += count

    def free_runs(self) -> list[tuple[int, int]]:
        """The free pages as sorted runs, for checks and tests."""
        return sorted(self._by_start.items())

    def _free_run(self, first: int, length: int) -> None:
        starts, by_start, by_size = self._starts, self._by_start, self._by_size
        end = first + length
        place = bisect_left(starts, first)
        following = starts[place] if place < len(starts) else -1
        assert following < 0 or following >= end, f"pages {first}..{end - 1} freed twice"
        before = starts[place - 1] if place else -1
        joins = False
        if before >= 0:
            size = by_start[before]
            assert before + size <= first, f"pages {first}..{end - 1} freed twice"
            if before + size == first:
                joins = True
                by_size.pop(bisect_left(by_size, size << _BITS | before))
                first, length = before, length + size
        if following == end:
            size = by_start.pop(following)
            by_size.pop(bisect_left(by_size, size << _BITS | following))
            length += size
            if joins:
                starts.pop(place)
            else:
                starts[place] = first
        elif not joins:
            starts.insert(place, first)
        by_start[first] = length
        insort(by_size, length << _BITS | first)


def cut(pages: PageRuns, count: int) -> tuple[PageRuns, PageRuns]:
    """The first `count` pages of a list, and the rest. Empty lists stay empty (pages that are only
    counted).
    """
    if not pages:
        return (), ()
    if len(pages) == 1:
        first, length = pages[0]
        if count == length:
            return pages, ()
        if 0 < count < length:
            return ((first, count),), ((first + count, length - count),)
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
