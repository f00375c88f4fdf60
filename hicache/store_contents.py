"""What a store holds that knows its pages by key, and which of them leave: the least recently used.

Pages that were written or read together lie together in the order of use, and mostly their keys
follow one another. So the books are kept in segments of such pages:

    stretch 0   100 .. 147 | 148 .. 170 | 900 .. 963    start -> (pages, time of use)
    uses        900 .. 963, 100 .. 170                  the oldest first

Keys are looked up in stretches of `STRETCH` keys, whose ends no segment crosses, so that the books
of a full store are as quick as those of a small one. A use of pages is noted once: what was used
again since has a later time, and what is cut off keeps its own, so that all that is left of a use
lies between its ends, and goes head first.

It is to the page what a list of pages by use would be. This module refuses to know what is in a
page, who asks, and what it takes.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import deque
from typing import Final, final

from hicache.operations import PageRuns

_BITS: Final = 10
STRETCH: Final = 1 << _BITS


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
        self._starts: dict[int, list[int]] = {}  # of the segments of a stretch, sorted
        # (time, first key, end), the oldest first; of some nothing is left.
        self._uses: deque[tuple[int, int, int]] = deque()
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

    def gap(self, key: int, count: int) -> int:
        """How many of `count` pages with consecutive keys from `key` on are not there, up to the
        first that is.
        """
        gap = 0
        while gap < count:
            there = self._there(key + gap)
            if there > 0:
                break
            gap -= there
        return gap if gap < count else count

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
                    starts = self._starts.get(first >> _BITS)
                    if starts is None:
                        self._starts[first >> _BITS] = [first]
                    else:
                        starts.insert(bisect_right(starts, first), first)
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
                    starts = self._starts[first >> _BITS]
                    del starts[bisect_right(starts, first) - 1]
                    if not starts:
                        del self._starts[first >> _BITS]
                    self.pages -= part
                first += part
                count -= part

    def _there(self, key: int) -> int:
        """How many pages from `key` on are there; or, less than 0, how many are not: up to the next
        segment, or to the end of the stretch.
        """
        stretch = key >> _BITS
        starts = self._starts.get(stretch)
        end = (stretch + 1) << _BITS
        if starts is None:
            return key - end
        place = bisect_right(starts, key)
        if place:
            start = starts[place - 1]
            held = start + self._segments[start][0]
            if key < held:
                return held - key
        return key - (starts[place] if place < len(starts) else end)

    def _use(self, first: int, count: int) -> None:
        """Pages of one segment are used now: they become a segment of their own."""
        starts, segments = self._starts[first >> _BITS], self._segments
        place = bisect_right(starts, first)
        start = starts[place - 1]
        pages, time = segments[start]
        tail = start + pages - first - count
        if tail:
            starts.insert(place, first + count)
            segments[first + count] = (tail, time)
        if first > start:
            segments[start] = (first - start, time)
            starts.insert(place, first)
        self._note(first, count)

    def _note(self, first: int, pages: int) -> None:
        """A segment that is used now."""
        self._time += 1
        self._segments[first] = (pages, self._time)
        if not self.capacity_pages:
            return
        uses = self._uses
        uses.append((self._time, first, first + pages))
        if len(uses) > 64 + 4 * len(self._segments):
            left = [(used, start, start + held) for start, (held, used) in self._segments.items()]
            left.sort()
            self._uses = deque(left)

    def _forget(self) -> None:
        """Let the oldest leave until there is room."""
        more = self.pages - self.capacity_pages
        self.evicted_pages += more
        self.pages -= more
        while more:
            time, first, end = self._uses.popleft()
            more = self._forget_use(time, first, end, more)

    def _forget_use(self, time: int, first: int, end: int, more: int) -> int:
        """Let `more` pages leave, of what is left of a use; how many more are to leave then."""
        segments = self._segments
        starts = self._starts.get(first >> _BITS)
        if starts is None:
            return more
        place = 0 if starts[0] >= first else bisect_left(starts, first)
        while place < len(starts):
            start = starts[place]
            if start >= end:
                break
            pages, used = segments[start]
            if used != time:
                place += 1
                continue
            del segments[start]
            if pages > more:
                starts[place] = rest = start + more
                segments[rest] = (pages - more, time)
                self._uses.appendleft((time, rest, end))
                return 0
            del starts[place]
            more -= pages
            if not more:
                if start + pages < end:
                    self._uses.appendleft((time, start + pages, end))
                break
        if not starts:
            del self._starts[first >> _BITS]
        return more
