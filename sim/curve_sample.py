"""A hit-rate curve from a sample of the pages (SHARDS), for traces whose reuse does not fit memory.

Pages are sampled by key, so that a page is in the sample whenever it comes or never. Of every
`width` consecutive keys one is drawn, by a hash of where they stand. Keys of a path are runs of
consecutive numbers, and so are those of its sampled pages, counted through:

    keys        0 .. 9   10 .. 19   20 .. 29        drawn: 4, 17, 20
    run         (6, 15): 6 .. 20                    sampled run (1, 2): the second and the third

So a sampled trace is again one of runs on a prefix tree, and costs by its requests and forks: forks
and requests without a sampled page vanish. A place in it stands for `width` places, and a hit for
`width` hits. What the sample asks for too much or too little, over all, is taken to be hits of the
smallest caches (SHARDS-adj, Waldspurger et al., FAST 2015): it is the few pages that are asked for
all the time that make samples differ. No estimate exceeds the ceiling, which is known exactly.

The error is measured, not assumed: the sample is dealt out to `PARTS` parts, one of as many drawn
pages to each, in an order that a hash turns. Each part is a sample, too, and gives a curve; the
standard error is that of the mean of these.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from math import sqrt

from hicache.errors import InputError
from hicache.requests import KeyRuns
from sim.curve_points import HitCurve, curve_of
from sim.curve_trace import TraceUses
from traces.reuse import HitPlaces

PARTS = 8
# Of the estimate: enough for a plot, and for reading between them.
MOST_CORNERS = 400
# With fewer sampled hits than that an estimate is hardly worth having.
FEW_HITS = 1000

_MASK = (1 << 64) - 1


class _Drawn:
    """The contexts of one sample, or of one part of it: one in `width` pages."""

    def __init__(self, width: int) -> None:
        self.width = width
        self.reuse = HitPlaces()
        # Sampled pages that were asked for and might have been hits.
        self.asked = 0

    def curve(self, uses: TraceUses) -> list[tuple[int, int]]:
        """Corners (capacity in pages, hit pages) of this sample's estimate, from (0, 0) on."""
        sampled = curve_of(self.reuse.hit_runs, 1)
        width = self.width
        excess = uses.may_hit_pages - self.asked * width
        highest = 0
        corners = [(0, 0)]
        heights = {width: sampled.pages_at(1)} | dict(
            zip(
                (capacity * width for capacity in sampled.capacity_pages[1:]),
                sampled.hit_pages[1:],
                strict=True,
            )
        )
        for capacity in sorted(heights):
            hits = heights[capacity] * width + excess
            highest = max(highest, min(hits, uses.ideal_pages))
            corners.append((capacity, highest))
        return corners


class SampledCurve:
    """The estimate, and its standard error at each corner."""

    def __init__(self, curve: HitCurve, standard_error_pages: list[int], hits: int) -> None:
        self.curve = curve
        self.standard_error_pages = standard_error_pages
        # Hits that were sampled.
        self.hits = hits


class Sample:
    """Takes the contexts of one pass (see `sim.curve_trace.Taker`): a sample, and its parts.

    About `rate` of all pages is looked at; another `seed` is another sample.
    """

    def __init__(self, rate: float, seed: int = 0) -> None:
        if not 0 < rate <= 0.5:
            raise InputError(
                f"sample is {rate:g}: it must be more than 0 and at most 0.5, the part of all "
                "pages that is looked at; leave it out for the exact curve"
            )
        self.width = round(1 / rate)
        self.seed = seed
        self._salt = _mixed(2 * seed)
        self._turn = _mixed(2 * seed + 1)
        self._whole = _Drawn(self.width)
        self._parts = [_Drawn(self.width * PARTS) for _ in range(PARTS)]

    def take(self, runs: KeyRuns, may_hit_pages: int) -> int:
        """Take the next context. Returns how many sampled pages were known."""
        sampled: list[tuple[int, int]] = []
        may_hit = 0
        for first, count in runs:
            before = self.before(first)
            drawn = self.before(first + count) - before
            if drawn:
                sampled.append((before, drawn))
                if may_hit_pages >= count:
                    may_hit += drawn
                elif may_hit_pages > 0:
                    may_hit += self.before(first + may_hit_pages) - before
            may_hit_pages -= count
        if not sampled:
            return 0
        self._deal(sampled, may_hit)
        whole = self._whole
        known = whole.reuse.hits
        whole.asked += may_hit
        whole.reuse.add(sampled, may_hit)
        return whole.reuse.hits - known

    def before(self, key: int) -> int:
        """How many keys below `key` are in the sample: one in each full stretch of `width`."""
        stretch, place = divmod(key, self.width)
        return stretch + (_mixed(stretch ^ self._salt) % self.width < place)

    def _deal(self, sampled: list[tuple[int, int]], may_hit: int) -> None:
        """Hand each part its pages of a context: of `PARTS` drawn ones in a row, one."""
        dealt: list[list[tuple[int, int]]] = [[] for _ in self._parts]
        asked = [0] * PARTS
        for first, count in sampled:
            begins, ends = self._dealt(first), self._dealt(first + count)
            lookable = ends if may_hit >= count else self._dealt(first + max(0, may_hit))
            for part in range(PARTS):
                begin = begins[part]
                if ends[part] > begin:
                    dealt[part].append((begin, ends[part] - begin))
                    asked[part] += lookable[part] - begin
            may_hit -= count
        for drawn, runs, pages in zip(self._parts, dealt, asked, strict=True):
            if runs:
                drawn.asked += pages
                drawn.reuse.add(runs, pages)

    def _dealt(self, number: int) -> list[int]:
        """How many of the drawn keys below the `number`-th each part has."""
        rounds, place = divmod(number, PARTS)
        turn = _mixed(rounds ^ self._turn)
        return [rounds + ((part + turn) % PARTS < place) for part in range(PARTS)]

    @property
    def rate(self) -> float:
        """The part of all pages that is looked at: one in a whole number."""
        return 1 / self.width

    def curve(self, uses: TraceUses) -> SampledCurve:
        """The estimate, once all contexts have been taken."""
        corners = _thinned(self._whole.curve(uses))
        parts = [part.curve(uses) for part in self._parts]
        errors: list[int] = []
        for capacity, _ in corners:
            heights = [_height(part, capacity) for part in parts]
            mean = sum(heights) / PARTS
            variance = sum((each - mean) ** 2 for each in heights) / (PARTS - 1)
            errors.append(round(sqrt(variance / PARTS)))
        capacities = [capacity for capacity, _ in corners]
        hits = [hit for _, hit in corners]
        # Of tokens nothing is known but that pages are full.
        tokens = [hit * uses.rules.page_size_tokens for hit in hits]
        return SampledCurve(HitCurve(capacities, hits, tokens), errors, self._whole.reuse.hits)


def _mixed(number: int) -> int:
    """A hash of 64 bits in which every bit depends on every bit (the finalizer of SplitMix64)."""
    number = (number + 0x9E3779B97F4A7C15) & _MASK
    number = ((number ^ (number >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    number = ((number ^ (number >> 27)) * 0x94D049BB133111EB) & _MASK
    return number ^ (number >> 31)


def _height(corners: Sequence[tuple[int, int]], capacity: int) -> float:
    after = bisect_right(corners, (capacity, _MASK))
    left, low = corners[after - 1]
    if after == len(corners):
        return low
    right, high = corners[after]
    return low + (high - low) * (capacity - left) / (right - left)


def _thinned(corners: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """At most `MOST_CORNERS` and a few, evenly spread over the logarithm of the capacity."""
    if len(corners) <= MOST_CORNERS:
        return corners
    growth = (corners[-1][0] / corners[1][0]) ** (1 / MOST_CORNERS)
    kept = corners[:2]
    for corner in corners[2:-1]:
        if corner[0] >= kept[-1][0] * growth:
            kept.append(corner)
    return [*kept, corners[-1]]
