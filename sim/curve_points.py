"""Hits as a function of the cache's size, from runs of hits at consecutive places.

A hit at place p of the LRU order (traces.reuse) is one of every cache of p pages or more. Hits come
in runs of consecutive places, over each of which they grow by one a page; so the function is a
line from corner to corner, exactly, at every whole number of pages:

    runs at places 3-5 and 4-9          capacity   0  2  3  5  9 ...
                                        hits       0  0  1  5  9 ...

It refuses to know where runs come from, and to interpolate what is not on such a line.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby
from typing import NamedTuple

from traces.reuse import HitRuns

# What happens at a place: a run of hits begins or ends, or pages there hold fewer tokens.
_BEGINS, _ENDS, _LACKS = range(3)
_KINDS = 3


class Shortfall(NamedTuple):
    """A hit page that is a prompt's partly filled last one: it holds fewer tokens than others."""

    place: int
    missing_tokens: int
    asker: int


class HitCurve:
    """Corners of the function, by capacity: three lists of one length that begin with 0, 0, 0.

    After the last corner nothing changes. Between two corners `hit_pages` and `hit_tokens` are on
    the straight line.
    """

    def __init__(
        self,
        capacity_pages: Sequence[int],
        hit_pages: Sequence[int],
        hit_tokens: Sequence[int],
    ) -> None:
        self.capacity_pages = capacity_pages
        self.hit_pages = hit_pages
        self.hit_tokens = hit_tokens

    @property
    def last_capacity_pages(self) -> int:
        """The least capacity that hits all that can be hit."""
        return self.capacity_pages[-1]

    def pages_at(self, capacity_pages: int) -> int:
        """Hit pages with a cache of so many pages."""
        return self._at(self.hit_pages, capacity_pages)

    def tokens_at(self, capacity_pages: int) -> int:
        """Hit tokens with a cache of so many pages."""
        return self._at(self.hit_tokens, capacity_pages)

    def _at(self, heights: Sequence[int], capacity: int) -> int:
        after = bisect_right(self.capacity_pages, capacity)
        if after == len(self.capacity_pages):
            return heights[-1]
        left, right = self.capacity_pages[after - 1], self.capacity_pages[after]
        rise = heights[after] - heights[after - 1]
        return heights[after - 1] + rise * (capacity - left) // (right - left)

    def capacity_for(self, hit_pages: int) -> int:
        """The least capacity with so many hit pages, which must not be more than all."""
        corner = bisect_left(self.hit_pages, hit_pages)
        if not corner:
            return 0
        before = self.hit_pages[corner - 1]
        left, right = self.capacity_pages[corner - 1], self.capacity_pages[corner]
        rise = self.hit_pages[corner] - before
        return left + -(-(hit_pages - before) * (right - left) // rise)

    @property
    def num_steps(self) -> int:
        """At how many capacities the number of hit pages is another than at one page less."""
        corners = zip(self.capacity_pages, self.hit_pages, strict=True)
        steps, left, before = 0, 0, 0
        for capacity, hits in corners:
            if hits != before:
                steps += capacity - left
            left, before = capacity, hits
        return steps

    def every_step(self) -> HitCurve:
        """The same with every capacity at which the number changes, and the one before it.

        So it may be read as a line or as a staircase: both are exact at every whole capacity.
        """
        capacities, pages, tokens = [0], [0], [0]
        for corner in range(1, len(self.capacity_pages)):
            left, right = self.capacity_pages[corner - 1], self.capacity_pages[corner]
            steps = right - left
            rise = self.hit_pages[corner] - self.hit_pages[corner - 1]
            token_rise = self.hit_tokens[corner] - self.hit_tokens[corner - 1]
            if not rise and not token_rise:
                steps = 1
            width = (right - left) // steps
            hits, found = pages[-1], tokens[-1]
            capacities += range(left + width, right + 1, width)
            pages += [hits + rise * step // steps for step in range(1, steps + 1)]
            tokens += [found + token_rise * step // steps for step in range(1, steps + 1)]
        return HitCurve(capacities, pages, tokens)


def curve_of(
    runs: HitRuns,
    page_size_tokens: int,
    shortfalls: Iterable[Shortfall] = (),
    first_asker: int = 0,
) -> HitCurve:
    """The curve of the hits of requests from number `first_asker` on.

    Every page counts for `page_size_tokens` tokens, but for those in `shortfalls`.
    """
    lacking: defaultdict[int, int] = defaultdict(int)
    for place, missing, asker in shortfalls:
        if asker >= first_asker:
            lacking[place] += missing
            lacking[place + 1] -= missing
    # Arrays while there is much else; where the slope changes, in the order of places.
    capacities, pages, tokens = (array("q", [0]) for _ in range(3))
    slope = lack = 0
    for place, changes in groupby(_changes(runs, lacking, first_asker), _place_of):
        steeper = lacks = 0
        for change in changes:
            kind = change % _KINDS
            if kind == _LACKS:
                lacks = lacking[place]
            else:
                steeper += 1 if kind == _BEGINS else -1
        if not steeper and not lacks:
            continue
        width = place - 1 - capacities[-1]
        if width:
            capacities.append(place - 1)
            pages.append(pages[-1] + slope * width)
            tokens.append(tokens[-1] + (slope * page_size_tokens - lack) * width)
        slope += steeper
        lack += lacks
    assert slope == lack == 0, "every run of hits ends"
    return HitCurve(list(capacities), list(pages), list(tokens))


def _changes(runs: HitRuns, lacking: Iterable[int], first_asker: int) -> Iterator[int]:
    """Place and kind, in one number, of whatever changes the slope; ascending."""
    changes = [place * _KINDS + _LACKS for place in lacking]
    for first, end, asker in zip(runs.first_places, runs.end_places, runs.askers, strict=True):
        if asker >= first_asker:
            changes.append(first * _KINDS + _BEGINS)
            changes.append(end * _KINDS + _ENDS)
    changes.sort()
    yield from changes


def _place_of(change: int) -> int:
    return change // _KINDS
