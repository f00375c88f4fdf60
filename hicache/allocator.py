"""Which pages of a tier are free. Consecutive runs first, because one run is one DMA and one file
extent.

`PageCounter` only counts; `PageAllocator` hands out page numbers as runs `((first, count), ...)`.
Both refuse to evict: who asks for more than is free has made a mistake.
"""

from __future__ import annotations

from typing import Any, Final, final

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

    Three sorted lists, because a search in one touches less memory than a table does, and finds a
    run's neighbours with it:

        _starts     3      9      20       the first pages of all free runs
        _lengths    4      1       7       their lengths, at the same places
        _by_size    1|9    4|3    7|20     both in one number, which is compared faster than a pair
    """

    __slots__ = ("_by_size", "_lengths", "_starts")

    def __init__(self, capacity: int) -> None:
        assert capacity <= _FIRST, "more pages than their numbers have room for"
        self.free = capacity
        self._starts: list[int] = []
        self._lengths: list[int] = []
        self._by_size: list[int] = []
        if capacity:
            self._starts.append(0)
            self._lengths.append(capacity)
            self._by_size.append(capacity << _BITS)

    def take(self, count: int) -> PageRuns:
        """Hand out `count` pages as runs in the order in which they should be used."""
        assert 0 <= count <= self.free, (count, self.free)
        self.free -= count
        starts, lengths, by_size = self._starts, self._lengths, self._by_size
        taken: list[tuple[int, int]] = []
        while count:
            wanted = count << _BITS
            if by_size[-1] < wanted:  # nothing holds it all: use up the largest
                run = by_size.pop()
            else:
                run = by_size.pop(_place(by_size, wanted))
            size, first = run >> _BITS, run & _FIRST
            at = _place(starts, first)
            if count < size:  # its tail stays, in its place
                rest, left = first + count, size - count
                starts[at], lengths[at] = rest, left
                run = left << _BITS | rest
                by_size.insert(_place(by_size, run), run)
                taken.append((first, count))
                break
            starts.pop(at)
            lengths.pop(at)
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
        return list(zip(self._starts, self._lengths, strict=True))

    def _free_run(self, first: int, length: int) -> None:
        starts, lengths, by_size = self._starts, self._lengths, self._by_size
        end = first + length
        place = _place(starts, first)
        joins = False
        if place:
            before, size = starts[place - 1], lengths[place - 1]
            assert before + size <= first, f"pages {first}..{end - 1} freed twice"
            if before + size == first:
                joins = True
                by_size.pop(_place(by_size, size << _BITS | before))
                first, length = before, length + size
        following = starts[place] if place < len(starts) else end + 1
        assert following >= end, f"pages {first}..{end - 1} freed twice"
        if following == end:
            size = lengths[place]
            by_size.pop(_place(by_size, size << _BITS | following))
            length += size
            if joins:
                starts.pop(place)
                lengths.pop(place)
            else:
                starts[place], lengths[place] = first, length
        elif not joins:
            starts.insert(place, first)
            lengths.insert(place, length)
        if joins:
            lengths[place - 1] = length
        run = length << _BITS | first
        by_size.insert(_place(by_size, run), run)


def _place(numbers: list[int], number: int) -> int:
    """`bisect.bisect_left`, which costs compiled code twice as much: it compares objects."""
    low, high = 0, len(numbers)
    while low < high:
        middle = (low + high) >> 1
        if numbers[middle] < number:
            low = middle + 1
        else:
            high = middle
    return low


def cut(pages: PageRuns, count: int) -> tuple[PageRuns, PageRuns]:
    """The first `count` pages of a list, and the rest. Empty lists stay empty (pages that are only
    counted).
    """
    if not pages:
        return (), ()
    if not count:
        return (), pages
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


def join_all(lists: list[PageRuns]) -> PageRuns:
    """Page lists one after the other, as `join` of them all, in one pass."""
    if len(lists) == 1:
        return lists[0]
    runs: list[tuple[int, int]] = []
    for pages in lists:
        if not pages:
            continue
        if runs:
            first, length = runs[-1]
            if first + length == pages[0][0]:
                runs[-1] = (first, length + pages[0][1])
                runs.extend(pages[1:])
                continue
        runs.extend(pages)
    return tuple(runs)


def deal_out(pages: PageRuns, counts: list[int]) -> list[PageRuns]:
    """A page list in consecutive pieces of `counts` pages, which are all of it."""
    if len(counts) == 1:
        return [pages]
    pieces: list[PageRuns] = []
    whole: tuple[Any, ...] = pages  # compiled code takes pairs apart, and would make them anew
    place = used = 0  # runs that are gone, and pages of the next one
    for count in counts:
        piece: list[tuple[int, int]] = []
        while count:
            first, length = pages[place]
            left = length - used
            if left > count:
                piece.append((first + used, count))
                used += count
                break
            piece.append((first + used, left) if used else whole[place])
            count -= left
            place += 1
            used = 0
        pieces.append(tuple(piece))
    assert place == len(pages), "not all of a page list was dealt out"
    return pieces


def extents(source: PageRuns, target: PageRuns) -> int:
    """How many runs are consecutive at the source and at the target at once: one I/O or DMA each.

    source  |----4----|--3--|          3 extents: 2, 2 and 3 pages
    target  |-2-|----5------|
    """
    if not source or not target:
        return 1
    if len(source) == 1:
        return len(target)
    if len(target) == 1:
        return len(source)
    # Both go on to the nearer of the two ends: each step is one extent.
    count = 0
    at_source = at_target = 0  # runs that are over
    left_source, left_target = source[0][1], target[0][1]  # pages of the next ones
    while True:
        count += 1
        step = left_source if left_source < left_target else left_target
        left_source -= step
        left_target -= step
        if not left_source:
            at_source += 1
            if at_source == len(source):
                return count + len(target) - at_target - (0 if left_target else 1)
            left_source = source[at_source][1]
        if not left_target:
            at_target += 1
            if at_target == len(target):
                return count + len(source) - at_source
            left_target = target[at_target][1]
