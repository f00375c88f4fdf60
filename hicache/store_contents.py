"""What a store holds that knows its pages by key, and which of them leave: the least recently used.

Pages that were written or read together lie together in the order of use, and mostly their keys
follow one another. So the books are kept in segments of such pages:

    keys     100 .. 147 | 148 .. 170 | 900 .. 963       start -> (pages, time of use)
    by use   900 .. 963, 100 .. 147, 148 .. 170         the oldest first; a segment goes head first

It is to the page what a list of pages by use would be. This module refuses to know what is in a
page, who asks, and what it takes.
"""

from __future__ import annotations

from bisect import bisect_right, insort
from heapq import heapify, heappop, heappush, heapreplace
from typing import final

from hicache.operations import PageRuns


@final
class StoreContents:
    """What is in a store of `capacity_pages` (0: no limit). One for all of its clients: what one
    writes, the others find. Pages are named as runs of their keys.
    """

    def __init__(self, capacity_pages: int = 0) -> None:
        assert capacity_pages >= 0
        self.capacity_pages = capacity_pages
        self.pages = 0
        self.evicted_pages = 0
        self._segments: dict[int, tuple[int, int]] = {}
        self._starts: list[int] = []  # of the segments, sorted
        self._by_use: list[tuple[int, int]] = []  # (time, start), a heap; some are out of date
        self._time = 0

    def leading(self, runs: PageRuns) -> int:
        """How many of the first pages are there. A question moves nothing."""
        leading = 0
        for first, count in runs:
            while count:
                there = self._there(first)
                if there <= 0:
                    return leading
                part = there if there < count else count
                leading += part
                first += part
                count -= part
        return leading

    def gap(self, key: int) -> int:
        """How many pages with consecutive keys from `key` on are not there; 0 if that one is."""
        there = self._there(key)
        return 0 if there > 0 else -there

    def missing(self, runs: PageRuns) -> int:
        """How many of the pages are not there."""
        missing = 0
        for first, count in runs:
            while count:
                there = self._there(first)
                part = there if there > 0 else -there
                if part > count:
                    part = count
                if there <= 0:
                    missing += part
                first += part
                count -= part
        return missing

    def read(self, runs: PageRuns) -> int:
        """As `leading`, and those pages are used now."""
        leading = left = self.leading(runs)
        for first, count in runs:
            if count > left:
                count = left
            left -= count
            while count:
                part = self._there(first)
                if part > count:
                    part = count
                self._use(first, part)
                first += part
                count -= part
        return leading

    def write(self, runs: PageRuns) -> int:
        """Put the pages in, in order; how many of them were new."""
        new = 0
        for first, count in runs:
            while count:
                there = self._there(first)
                part = there if there > 0 else -there
                if part > count:
                    part = count
                if there > 0:
                    self._use(first, part)
                else:
                    self._starts.insert(bisect_right(self._starts, first), first)
                    self._note(first, part)
                    self.pages += part
                    new += part
                    if self.capacity_pages and self.pages > self.capacity_pages:
                        self._forget()
                first += part
                count -= part
        return new

    def forget(self, runs: PageRuns) -> None:
        """Take the pages out, those of them that are there."""
        for first, count in runs:
            while count:
                there = self._there(first)
                part = there if there > 0 else -there
                if part > count:
                    part = count
                if there > 0:
                    self._use(first, part)  # a segment of its own, which then goes
                    del self._segments[first]
                    del self._starts[bisect_right(self._starts, first) - 1]
                    self.pages -= part
                first += part
                count -= part

    def _there(self, key: int) -> int:
        """How many pages from `key` on are there; or, less than 0, how many are not (more than
        anybody asks for where nothing follows).
        """
        starts = self._starts
        place = bisect_right(starts, key)
        if place:
            start = starts[place - 1]
            end = start + self._segments[start][0]
            if key < end:
                return end - key
        return key - starts[place] if place < len(starts) else -(1 << 60)

    def _use(self, first: int, count: int) -> None:
        """Pages of one segment are used now: they become a segment of their own."""
        starts, segments = self._starts, self._segments
        place = bisect_right(starts, first)
        start = starts[place - 1]
        pages, time = segments[start]
        tail = start + pages - first - count
        if tail:
            starts.insert(place, first + count)
            segments[first + count] = (tail, time)
            if self.capacity_pages:
                heappush(self._by_use, (time, first + count))
        if first > start:
            segments[start] = (first - start, time)
            insort(starts, first)
        self._note(first, count)

    def _note(self, start: int, pages: int) -> None:
        """A segment that is used now."""
        self._time += 1
        self._segments[start] = (pages, self._time)
        if not self.capacity_pages:
            return
        by_use = self._by_use
        heappush(by_use, (self._time, start))
        if len(by_use) > 64 + 4 * len(self._segments):
            by_use[:] = [(time, start) for start, (_, time) in self._segments.items()]
            heapify(by_use)

    def _forget(self) -> None:
        """Let the oldest leave until there is room."""
        by_use, segments, starts = self._by_use, self._segments, self._starts
        more = self.pages - self.capacity_pages
        self.evicted_pages += more
        self.pages -= more
        while more:
            time, start = by_use[0]
            found = segments.get(start)
            if found is None or found[1] != time:
                heappop(by_use)
                continue
            pages = found[0]
            del segments[start]
            place = bisect_right(starts, start) - 1
            if pages <= more:
                heappop(by_use)
                del starts[place]
                more -= pages
                continue
            starts[place] = start + more
            segments[start + more] = (pages - more, time)
            heapreplace(by_use, (time, start + more))
            more = 0
