"""Admission to L3 by reuse: how many requests have had each page, and what is worth a place there.

    requests    A B C D | A B C D E F | A B X Y        (each a path of pages)
    counts      A 3, B 3, C 2, D 2, E 1, F 1, X 1, Y 1
    admitted    at 2: A B C D, written when the second request ends; at 3: A B

A page counts once for each request that leaves it or finds it, when that request has ended. A page
is never counted more often than what it hangs on, so what is admitted is a leading part of a path,
as what L3 holds is. Pages are known by key, so that counts outlive what is evicted; they never age,
and no other server knows them. Facts: Dynamo's KVBM and FlexKV keep such a filter before the disk.

Says what is admitted, and moves nothing. Not there at all unless `storage.admit_after_hits` asks.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from typing import TYPE_CHECKING, final

from hicache.node import HOST, Node
from hicache.operations import PageRuns
from hicache.options import EngineOptions
from hicache.store_index import keys_from

if TYPE_CHECKING:
    from hicache.tree import HiRadixTree


@final
class ReuseCounts:
    """The counts of one engine: pages are admitted that `least` requests have had."""

    __slots__ = ("_counts", "_least", "_starts", "_tree")

    def __init__(self, tree: HiRadixTree, least: int) -> None:
        self._tree = tree
        self._least = least
        # Runs of keys that have been had equally often, by first key: (pages, requests).
        self._counts: dict[int, tuple[int, int]] = {}
        self._starts: list[int] = []  # of those, sorted

    def count(self, node: Node) -> None:
        """A request has ended that had the path ending at `node`."""
        starts, counts = self._starts, self._counts
        for first, pages in keys_from(node, 0):
            end = first + pages
            self._cut(first)
            self._cut(end)
            place = bisect_left(starts, first)
            while first < end:
                if place < len(starts) and starts[place] == first:
                    pages, requests = counts[first]
                    counts[first] = (pages, requests + 1)
                else:
                    following = end
                    if place < len(starts) and starts[place] < end:
                        following = starts[place]
                    pages = following - first
                    starts.insert(place, first)
                    counts[first] = (pages, 1)
                place += 1
                first += pages

    def admitted(self, node: Node) -> Node:
        """The end of what may be written to L3 of the path ending at `node`: the root if nothing
        may.
        """
        return self._tree.cut_at(node, self._leading(keys_from(node, 0), self._least))

    def crossed(self, node: Node) -> tuple[Node, int]:
        """Of the path just counted, what L2 holds and has been admitted with this very request: the
        end of it, and its first page; nothing, if that is behind the end.
        """
        keys, tree = keys_from(node, 0), self._tree
        end = self._leading(keys, self._least)
        held = tree.held(node, HOST)
        return tree.cut_at(node, min(end, held)), self._leading(keys, self._least + 1)

    def _leading(self, keys: PageRuns, least: int) -> int:
        """How many of the first pages `least` requests have had."""
        starts, counts, leading = self._starts, self._counts, 0
        for first, pages in keys:
            end = first + pages
            while first < end:
                place = bisect_right(starts, first)
                if not place:
                    return leading
                start = starts[place - 1]
                counted, requests = counts[start]
                until = start + counted
                if first >= until or requests < least:
                    return leading
                if until > end:
                    until = end
                leading += until - first
                first = until
        return leading

    def _cut(self, key: int) -> None:
        """A run begins at `key`, if there is one around it."""
        starts, counts = self._starts, self._counts
        place = bisect_left(starts, key)
        if not place or (place < len(starts) and starts[place] == key):
            return
        start = starts[place - 1]
        pages, requests = counts[start]
        if key >= start + pages:
            return
        counts[start] = (key - start, requests)
        counts[key] = (start + pages - key, requests)
        starts.insert(place, key)


def make_reuse(tree: HiRadixTree, options: EngineOptions) -> ReuseCounts | None:
    """What `storage.admit_after_hits` asks for; None where everything is admitted."""
    least = options.storage.admit_after_hits
    return ReuseCounts(tree, least) if least > 1 and options.storage_pages > 0 else None
