"""The offline optimum: how much any policy could hit that knew all requests to come (Belady's rule
on the prefix tree: the leaf whose next use is farthest goes).

Between two uses of a page it is either kept all the time or not, so a cache is a choice of such
spells, and its content after request t are the spells that span t:

    request        0     1     2     3
    page a         o-----o-----------o       spells 0-1 and 1-3
    page b         o-----------o             spell 0-2

A spell that is kept to its end is a hit, and no more of them may span a request than there are
pages. The optimum lets go of the one that ends last whenever there are too many. The prefix tree
needs no rule of its own: a page is never used later than what stands behind it, so what ends
last is a leaf's (among those that end with the same request, the deepest). And since all spells
that end with one request are on its path, only how many they are has to be kept.

Two optima, for two kinds of policy:

    "may_bypass"     pages of the request just served may go as well: the bound of every policy
    "must_insert"    they stay until the next request has been looked up: the bound of policies
                     that admit whatever was computed, as engines do

Exact where every page of a prompt may hit. With a hit cap the last page's spells are worth nothing
and are not counted, although a cache must hold such a page to hold those behind it: then it
is an upper bound.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from heapq import heappop, heappush
from itertools import accumulate
from typing import Literal

from traces.reuse import HitRuns

Admission = Literal["may_bypass", "must_insert"]


class Spells:
    """The spells of a trace in the order of the requests they begin with.

    Those of request t stand at `starts[t]` to `starts[t + 1]` - 1 of `ends` (the request with which
    they end) and `pages` (how many pages they are of). Memory: 16 bytes a run of hits, and 8 a
    request.
    """

    def __init__(self, runs: HitRuns, requests: int) -> None:
        counts = [0] * (requests + 1)
        for owner in runs.owners:
            counts[owner + 1] += 1
        self.requests = requests
        self.starts = array("q", accumulate(counts))
        self.ends = array("q", bytes(8 * len(runs.owners)))
        self.pages = array("q", bytes(8 * len(runs.owners)))
        places = list(self.starts)
        columns = zip(runs.owners, runs.askers, runs.first_places, runs.end_places, strict=True)
        for owner, asker, first, end in columns:
            place = places[owner]
            places[owner] = place + 1
            self.ends[place] = asker
            self.pages[place] = end - first


def optimum_hits(
    spells: Spells, capacity_pages: int, admission: Admission, held_pages: Sequence[int]
) -> list[int]:
    """Pages that each request hits in the best cache of `capacity_pages`.

    `held_pages` are what each request leaves in a cache that must insert: its prompt, and its
    answer where answers are cached. With "must_insert" none may be larger than the capacity.
    """
    starts, ends, pages = spells.starts, spells.ends, spells.pages
    must_insert = admission == "must_insert"
    # Pages kept for each request to come; what is left of them when its turn comes are its hits.
    kept = [0] * spells.requests
    # Requests to come for which pages are kept, negative, so that the farthest is on top. Past ones
    # lie below all of these and are never reached.
    farthest: list[int] = []
    total = 0
    for request in range(spells.requests):
        total -= kept[request]
        if must_insert:
            room = capacity_pages - held_pages[request]
            assert room >= 0, "a request larger than the cache cannot be inserted"
            total = _let_go(kept, farthest, total, room)
        for place in range(starts[request], starts[request + 1]):
            end = ends[place]
            if not kept[end]:
                heappush(farthest, -end)
            kept[end] += pages[place]
            total += pages[place]
        if not must_insert and total > capacity_pages:
            total = _let_go(kept, farthest, total, capacity_pages)
    return kept


def _let_go(kept: list[int], farthest: list[int], total: int, room: int) -> int:
    """Let go of what is used last until no more than `room` pages are kept; return how many are."""
    while total > room:
        end = -farthest[0]
        excess = total - room
        if kept[end] > excess:
            kept[end] -= excess
            return room
        total -= kept[end]
        kept[end] = 0
        heappop(farthest)
    return total
