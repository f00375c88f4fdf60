"""What a store holds that knows its pages by key, and which of them leave: the least recently used.

Pages that were written or read together lie together in the order of use, and mostly their keys
follow one another. So the books are kept in segments of such pages:

    by key   100 .. 147 | 148 .. 170 | 900 .. 963       in stretches of `STRETCH` keys
    by use   900 .. 963, 100 .. 147, 148 .. 170         the oldest first; a segment goes head first

No segment crosses the end of a stretch, so that the books of a full store are as quick as those of
a small one. What is cut off a segment keeps its place in the order of use, behind what it was cut
off from.

It is to the page what a list of pages by use would be. This module refuses to know what is in a
page, who asks, and what it takes.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from typing import Final, final

from hicache.operations import PageRuns

_BITS: Final = 10
STRETCH: Final = 1 << _BITS


@final
class _Stretch:
    """Segments whose keys differ in the last `_BITS` bits only, and where each begins, sorted."""

    __slots__ = ("number", "segments", "starts")

    def __init__(self, number: int) -> None:
        self.number = number
        self.starts: list[int] = []
        self.segments: list[_Segment] = []


@final
class _Segment:
    """Pages `first` .. `end` - 1, between those that were used `before` and `after` them."""

    __slots__ = ("after", "before", "end", "first", "stretch")

    def __init__(self, stretch: _Stretch, first: int, end: int) -> None:
        self.stretch = stretch
        self.first = first
        self.end = end
        self.before = self
        self.after = self

    def put_behind(self, other: _Segment) -> None:
        """Stand behind `other` in the order of use, where it has not stood so far."""
        self.before, self.after = other, other.after
        other.after.before = self
        other.after = self

    def take_out(self) -> None:
        """Leave the order of use."""
        self.before.after, self.after.before = self.after, self.before


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
        self._stretches: dict[int, _Stretch] = {}
        # Of nothing: between the pages that were used last and those that leave first.
        self._ends = _Segment(_Stretch(0), 0, 0)
        # Where `_there` looked last: how many segments of the stretch, if there are any, begin at
        # the key or before.
        self._stretch: _Stretch | None = None
        self._place = 0

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

    def lacking(self, runs: PageRuns) -> int:
        """How many of the first pages are not there."""
        lacking = 0
        for first, count in runs:
            gap = self.gap(first, count)
            lacking += gap
            if gap < count:
                break
        return lacking

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
                    self._add(first, part).put_behind(self._ends.before)
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
                    self._let_go(self._use(first, part))
                    self.pages -= part
                first += part
                count -= part

    def _there(self, key: int) -> int:
        """How many pages from `key` on are there; or, less than 0, how many are not: up to the next
        segment, or to the end of the stretch.
        """
        number = key >> _BITS
        self._stretch = stretch = self._stretches.get(number)
        end = (number + 1) << _BITS
        if stretch is None:
            return key - end
        starts = stretch.starts
        # Prompts that are new have the highest keys so far.
        self._place = place = len(starts) if starts[-1] <= key else bisect_right(starts, key)
        if place:
            held = stretch.segments[place - 1].end
            if key < held:
                return held - key
        return key - (starts[place] if place < len(starts) else end)

    def _add(self, first: int, pages: int) -> _Segment:
        """A new segment where `_there` has just looked, in no order of use yet."""
        stretch = self._stretch
        if stretch is None:
            number = first >> _BITS
            stretch = self._stretches[number] = _Stretch(number)
            self._place = 0
        segment = _Segment(stretch, first, first + pages)
        stretch.starts.insert(self._place, first)
        stretch.segments.insert(self._place, segment)
        return segment

    def _use(self, first: int, pages: int) -> _Segment:
        """Pages of the segment where `_there` has just looked are used now: they become a segment
        of their own.
        """
        stretch, end = self._stretch, first + pages
        assert stretch is not None
        segment = stretch.segments[self._place - 1]
        if segment.first == first and segment.end == end:
            segment.take_out()
            segment.put_behind(self._ends.before)
            return segment
        if end < segment.end:
            rest = self._add(end, segment.end - end)
            rest.put_behind(segment)
        if first == segment.first:  # nothing is left of it but the rest
            self._place -= 1
            self._let_go(segment)
        else:
            segment.end = first
        used = self._add(first, pages)
        used.put_behind(self._ends.before)
        return used

    def _forget(self) -> None:
        """Let the oldest leave until there is room."""
        more = self.pages - self.capacity_pages
        self.evicted_pages += more
        self.pages -= more
        while more:
            oldest = self._ends.after
            pages = oldest.end - oldest.first
            if pages > more:
                starts = oldest.stretch.starts
                place = self._place_of(oldest)
                oldest.first += more
                starts[place] = oldest.first
                return
            self._let_go(oldest)
            more -= pages

    @staticmethod
    def _place_of(segment: _Segment) -> int:
        """Its place among the segments of its stretch: mostly the oldest is the first."""
        starts, first = segment.stretch.starts, segment.first
        return 0 if starts[0] == first else bisect_left(starts, first)

    def _let_go(self, segment: _Segment) -> None:
        """A segment leaves the books."""
        segment.take_out()
        stretch, place = segment.stretch, self._place_of(segment)
        del stretch.starts[place]
        del stretch.segments[place]
        if not stretch.starts:
            del self._stretches[stretch.number]
