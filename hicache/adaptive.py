"""What evictions that remember (`hicache.remembering`) have in common: entries, queues, ghosts.

The strategies of `hicache.eviction` read a node and keep nothing. These keep an entry for each node
that a tier holds, and some also the keys of what has left it (`Ghosts`). What all of them had to
give up or gain on a tree whose leaves leave first:

* only a leaf can leave, so each order is one among the leaves of the moment; an inner node keeps
  its place and takes it when it has become a leaf;
* sizes are pages: a node is as many entries as it has pages, which go together;
* a hit is one request's (`Node.hit_count`), however often its path was walked;
* a split gives both halves the entry of the whole.

Each tier has one of its own. Refuses to decide what is a candidate: pins, children and what L1
holds are looked at, never changed.
"""

from __future__ import annotations

from heapq import heappop, heappush, heapreplace
from typing import Any, Final, final

from hicache.node import DEVICE, HOST, Node
from hicache.options import EngineOptions

# Segments: seen once (ARC's T1, S3-FIFO's small queue), and seen again (T2, the main queue).
NEW: Final = 0
PROVEN: Final = 1


@final
class Entry:
    """What a tier remembers of a node that it holds."""

    __slots__ = ("base", "known", "offered", "pages", "place", "seen", "segment")

    def __init__(self, segment: int, seen: int, place: int, base: float) -> None:
        self.segment = segment
        self.pages = 0
        self.seen = seen  # the node's hit count that stands for "no hit yet"
        self.known = seen  # the hit count at the last look
        self.place = place  # in the order of arrivals and second chances
        self.base = base  # GDSF's clock at the last hit
        self.offered = False


@final
class Ghosts:
    """Runs of page keys that have left, oldest first, and how many pages they are.

    A run is found by its first key alone: a prefix that comes back begins where its pages left.
    """

    __slots__ = ("_runs", "pages")

    def __init__(self) -> None:
        self._runs: dict[int, int] = {}
        self.pages = 0

    def add(self, start: int, count: int) -> None:
        """`count` pages from key `start` on have left."""
        self.pages += count - self._runs.pop(start, 0)
        self._runs[start] = count

    def recall(self, start: int, count: int) -> int:
        """How many pages of this run are remembered, from its first one on; they are forgotten."""
        found, end = 0, start + count
        while start < end:
            length = self._runs.pop(start, 0)
            if not length:
                break
            self.pages -= length
            found += min(length, end - start)
            start += length
        return found

    def trim(self, most: int) -> None:
        """Forget the oldest runs until at most `most` pages are left."""
        while self.pages > most and self._runs:
            self.pages -= self._runs.pop(next(iter(self._runs)))


class Adaptive:
    """The candidates of tier `index`, and the memory that says which goes first."""

    __slots__ = (
        "_capacity", "_entries", "_heaps", "_index", "_order", "_spares_l1", "segment_pages",
        "watches",
    )  # fmt: skip

    def __init__(self, index: int, options: EngineOptions) -> None:
        self._index = index
        self._capacity = options.capacities[index]
        self._spares_l1 = index == HOST and options.cache.l2_victims != "any"
        self._entries: dict[Node, Entry] = {}  # looked up, never walked
        self._heaps: list[list[tuple[Any, int, Node]]] = [[], []]
        self.segment_pages = [0, 0]
        self._order = 0
        self.watches = False  # whether it must see each access when it happens

    # ------------------------------------------------------------------ what the tier tells

    def arrived(self, node: Node, count: int, uncounted: int) -> None:
        """`count` more pages of `node` are published; `uncounted` hits of the request that brought
        them are still to be counted.
        """
        entry = self._entries.get(node)
        start = node.start + node.resident[self._index] - count
        if entry is None:
            self._order += 1
            segment = self._segment_of(start, count)
            entry = Entry(segment, node.hit_count + uncounted, self._order, self._clock())
            self._entries[node] = entry
        entry.pages += count
        self.segment_pages[entry.segment] += count

    def left(self, node: Node, count: int) -> None:
        """`count` pages of `node` are gone from its end."""
        entry = self._entries[node]
        entry.pages -= count
        self.segment_pages[entry.segment] -= count
        held = node.resident[self._index]
        self._gone(entry, node.start + held, count)
        if not held:
            del self._entries[node]

    def split(self, upper: Node, lower: Node) -> None:
        """`lower` was cut, and `upper` is its first part."""
        entry = self._entries.get(lower)
        if entry is None:
            return
        other = Entry(entry.segment, entry.seen, entry.place, entry.base)
        other.known = entry.known
        other.pages = upper.resident[self._index]
        self._entries[upper] = other
        entry.pages = lower.resident[self._index]
        if not entry.pages:
            del self._entries[lower]

    def accessed(self, node: Node) -> None:
        """A request has walked over `node`; only called where `watches` is set."""

    def offer(self, node: Node) -> None:
        """`node` is a candidate (it may stand here already)."""
        entry = self._entries[node]
        if not entry.offered:
            self._push(node, entry)

    def pages_of(self, node: Node) -> int:
        """Pages of `node` that are here, as far as this memory knows."""
        entry = self._entries.get(node)
        return 0 if entry is None else entry.pages

    def next(self) -> Node | None:
        """Take the candidate that goes first out of the order; None if there is none."""
        raise NotImplementedError

    # ------------------------------------------------------------------ for the strategies

    def key_of(self, node: Node) -> Any:
        """Among the candidates of a segment, the smallest key goes first."""
        raise NotImplementedError

    def _segment_of(self, start: int, count: int) -> int:
        return NEW

    def _clock(self) -> float:
        return 0.0

    def _gone(self, entry: Entry, start: int, count: int) -> None:
        """Pages left; remember what is to be remembered."""

    def _push(self, node: Node, entry: Entry) -> None:
        entry.offered = True
        self._order += 1
        heappush(self._heaps[entry.segment], (self.key_of(node), self._order, node))

    def _move(self, node: Node, entry: Entry, segment: int) -> None:
        """Count `node` in another segment; what stands in the old queue is out of date."""
        self.segment_pages[entry.segment] -= entry.pages
        self.segment_pages[segment] += entry.pages
        entry.segment = segment
        entry.offered = False

    def _may_leave(self, node: Node) -> bool:
        index = self._index
        kept = node.resident[DEVICE] if self._spares_l1 else 0
        return node.resident[index] > kept and not node.kids[index] and not node.pins[index]

    def _top(self, segment: int) -> Node | None:
        """The candidate of a segment that goes first, left where it stands."""
        heap = self._heaps[segment]
        while heap:
            key, _, node = heap[0]
            entry = self._entries.get(node)
            if entry is None or entry.segment != segment:
                heappop(heap)
                continue
            if not self._may_leave(node):
                entry.offered = False
                heappop(heap)
                continue
            current = self.key_of(node)
            if current == key:
                return node
            self._order += 1
            heapreplace(heap, (current, self._order, node))
        return None

    def _pop(self, segment: int) -> Node:
        """Take out what `_top` has just found."""
        node = heappop(self._heaps[segment])[2]
        self._entries[node].offered = False
        return node
