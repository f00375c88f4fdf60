"""How soon blocks come again, and how many requests have them: exact, whatever the trace's size.

Every context (a prompt, and the named answer behind it) is a path of block keys from the root of a
tree. An LRU cache that lets go of a path's end first holds, of every path, a leading part; so its
content is told by when each block was last asked for, those of one request in the order of depth:

    request 5   a b c d          last asked for      a  b | c  d | e
    request 6   a b     e        by request          6  6 | 5  5 | 6

    most recent first:  a b e | c d          `a` is at place 1, `d` at place 5

A block is found by a cache of as many blocks as its place says, or more. What request t still owns
are the ends of its path, so a place is: blocks last asked for after t, and those of t up to here.
The first is a sum over requests (a Fenwick tree), the second a difference. So time and memory go by
requests and forks, not by blocks, and nothing has to be sampled. The same holds for use counts:
they fall along a path, and only the places where prompts end are counted.

It knows no tokens and no format: keys come as runs, as from a `Cutter`.
"""

from __future__ import annotations

from array import array
from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import NamedTuple

NOBODY = -1


class Shared(NamedTuple):
    """A stretch of blocks that the same number of prompts have, with no fork in it."""

    # Prompts that start with all blocks up to its end.
    prompts: int
    # Blocks in it, and from the start of a prompt to its end.
    blocks: int
    depth_blocks: int
    # Key of its last block.
    last_key: int


class HitRuns(NamedTuple):
    """All hits as runs of consecutive places; of each request from the prompt's start on.

    Arrays of one length. A cache finds the first block of a run if it has `first_places` blocks or
    more, and all of it if it has `end_places` - 1. Contexts are numbered in the order of `add`:
    `askers` found the run's blocks, and `owners` had asked for them before, with nobody between.
    """

    first_places: array[int]
    end_places: array[int]
    owners: array[int]
    askers: array[int]


class _Sums:
    """Numbers by index, with sums over leading ones: a Fenwick tree that grows at its end."""

    def __init__(self) -> None:
        self.total = 0
        self._sums = array("q", [0])

    def append(self, value: int) -> None:
        """Add the number of the next index."""
        sums = self._sums
        index = len(sums)
        self.total += value
        step = 1
        while not index & step:
            value += sums[index - step]
            step <<= 1
        sums.append(value)

    def take(self, index: int, value: int) -> None:
        """Make the number at `index` (from 0) smaller by `value`."""
        sums = self._sums
        self.total -= value
        index += 1
        while index < len(sums):
            sums[index] -= value
            index += index & -index

    def behind(self, index: int) -> int:
        """The sum of all numbers behind `index`."""
        sums = self._sums
        result = self.total
        index += 1
        while index:
            result -= sums[index]
            index &= index - 1
        return result


class HitPlaces:
    """Takes the contexts of a trace in order; then says what caches of any size would hit.

    Memory: some 200 bytes a request and fork. A *stretch* is consecutive keys on one path, which
    came with one request; what is known of each is in arrays, by its number.
    """

    def __init__(self) -> None:
        self.requests = 0
        # Leading blocks of prompts that were there before.
        self.hits = 0
        # The number of each stretch by its first key; its blocks, and those before it on its path.
        self._stretch_at: dict[int, int] = {}
        self._blocks_of = array("q")
        self._depth_of = array("q")
        # Who asked last for its blocks up to `_end_of`, and for those behind, where somebody else
        # did: (end, request), deepest first, so latest requests last.
        self._end_of = array("q")
        self._asker_of = array("q")
        self._deeper: dict[int, list[tuple[int, int]]] = {}
        self._owned = _Sums()
        # Blocks that were moved to the current request so far; and those to be moved next, that one
        # request owns: their number, and how many of them are hits.
        self._taken = 0
        self._owner = NOBODY
        self._moving = self._moving_hits = 0
        # Hits come in runs of consecutive places: their first ones, and behind their last ones.
        self._first_places = array("q")
        self._end_places = array("q")
        self._owners = array("q")
        self._askers = array("q")

    def add(self, runs: Iterable[tuple[int, int]], prompt_blocks: int) -> int:
        """Take the next context: runs of its keys, the first `prompt_blocks` those of the prompt.

        Return the key of the prompt's last block; -1 if it has none.
        """
        depth = 0
        last_key = -1
        new = 0
        for start, count in runs:
            end = start + count
            while start < end:
                stretch = self._stretch_at.get(start)
                blocks = end - start
                if stretch is None:
                    self._begin_stretch(start, blocks, depth)
                    new += blocks
                else:
                    blocks = min(self._blocks_of[stretch], blocks)
                    self._ask(stretch, blocks, prompt_blocks - depth)
                in_prompt = min(blocks, prompt_blocks - depth)
                if in_prompt > 0:
                    last_key = start + in_prompt - 1
                    self._leave(last_key)
                depth += blocks
                start += blocks
        self._move()
        self._owned.append(self._taken + new)
        self._owner, self._taken = NOBODY, 0
        self.requests += 1
        return last_key

    def _begin_stretch(self, first: int, blocks: int, depth: int) -> None:
        self._stretch_at[first] = len(self._blocks_of)
        self._blocks_of.append(blocks)
        self._depth_of.append(depth)
        self._end_of.append(blocks)
        self._asker_of.append(self.requests)

    def _leave(self, key: int) -> None:
        """A prompt ends with that key, or goes on in another stretch behind it."""

    def _ask(self, stretch: int, blocks: int, in_prompt: int) -> None:
        """The current request asks for the first `blocks` of a stretch; `in_prompt` may be hits."""
        end, request = self._end_of[stretch], self._asker_of[stretch]
        begin = 0
        while True:
            here = min(end, blocks)
            if request != self._owner:
                self._move()
                self._owner = request
            self._moving += here - begin
            self._moving_hits += max(0, min(here, in_prompt) - begin)
            begin = here
            if begin == blocks:
                break
            end, request = self._deeper[stretch].pop()
        if end > blocks:
            self._deeper.setdefault(stretch, []).append((end, request))
        elif stretch in self._deeper and not self._deeper[stretch]:
            del self._deeper[stretch]
        self._end_of[stretch], self._asker_of[stretch] = blocks, self.requests

    def _move(self) -> None:
        """Move what is to be moved to the current request; its places are consecutive."""
        if self._moving_hits:
            place = self._owned.behind(self._owner) + self._taken + 1
            self._first_places.append(place)
            self._end_places.append(place + self._moving_hits)
            self._owners.append(self._owner)
            self._askers.append(self.requests)
            self.hits += self._moving_hits
        if self._moving:
            self._owned.take(self._owner, self._moving)
            self._taken += self._moving
        self._moving = self._moving_hits = 0

    @property
    def hit_runs(self) -> HitRuns:
        """All hits so far. Not to be changed; the next `add` makes the arrays longer."""
        return HitRuns(self._first_places, self._end_places, self._owners, self._askers)

    def hits_within(self, blocks: int) -> int:
        """Hits of an LRU cache of so many blocks."""
        places = zip(self._first_places, self._end_places, strict=True)
        return sum(min(end, blocks + 1) - first for first, end in places if first <= blocks)

    def blocks_for(self, hits: Sequence[int]) -> list[int]:
        """The least blocks with which an LRU cache has each number of hits (ascending)."""
        firsts, ends = sorted(self._first_places), sorted(self._end_places)
        needed: list[int] = []
        place = found = open_runs = first_at = end_at = 0
        for wanted in hits:
            assert wanted <= self.hits, "there are no more hits than that"
            # Between two of these places, every further block of cache has as many hits.
            while found < wanted:
                while first_at < len(firsts) and firsts[first_at] == place + 1:
                    open_runs += 1
                    first_at += 1
                while ends[end_at] == place + 1:
                    open_runs -= 1
                    end_at += 1
                following = ends[end_at]
                if first_at < len(firsts):
                    following = min(following, firsts[first_at])
                step = following - place - 1
                if open_runs:
                    step = min(step, -(-(wanted - found) // open_runs))
                place += step
                found += step * open_runs
            needed.append(place)
        return needed


class Reuse(HitPlaces):
    """Says also how many prompts have each stretch of blocks."""

    def __init__(self) -> None:
        super().__init__()
        # How many prompts end, or leave a stretch, at a key.
        self._ends: defaultdict[int, int] = defaultdict(int)

    def _leave(self, key: int) -> None:
        self._ends[key] += 1

    def shared(self) -> list[Shared]:
        """All stretches of blocks that some prompt has, in no particular order."""
        ends: defaultdict[int, list[tuple[int, int]]] = defaultdict(list)
        starts = sorted(self._stretch_at)
        at = 0
        for key in sorted(self._ends):
            while at + 1 < len(starts) and starts[at + 1] <= key:
                at += 1
            ends[starts[at]].append((key, self._ends[key]))
        found: list[Shared] = []
        for start, places in ends.items():
            depth = self._depth_of[self._stretch_at[start]]
            prompts = 0
            for index in reversed(range(len(places))):
                key, ended = places[index]
                prompts += ended
                before = places[index - 1][0] if index else start - 1
                found.append(Shared(prompts, key - before, depth + key - start + 1, key))
        return found
