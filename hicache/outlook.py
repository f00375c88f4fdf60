"""When a request that is admitted now would have its first token, for each part of its hit that it
could load: an estimate, from what the cost model believes.

    pages    0 ---- L1's hit ---------- goal ---------- hit ------- end of the prompt
                        |    loaded      |        computed             |

    read     what L2 lacks up to the goal, from L3, behind the reads under way
    load     L1's hit to the goal, behind the read and the loads in front of it
    step     one chunk of what is computed: beside the load (`restore.layerwise`), or after it
    rest     the other chunks: they need all that was loaded

Each part is a line over its size, so that the estimate is made of straight pieces over the goal,
and the best goal is an end of one: mostly where load and step end together. It is the best by this
belief, for which a page costs as much to compute wherever it stands. Refuses to find out what waits
(it is told), and to choose (`hicache.restore_policy`).
"""

from __future__ import annotations

from typing import NamedTuple, final

from hicache.cost_model import CostModel
from hicache.options import RestoreOptions
from hicache.tree import Match


class Waits(NamedTuple):
    """Seconds until a request that is admitted now has each of its resources to itself."""

    read: float = 0.0  # until a read from L3 begins
    link: float = 0.0  # until a load into L1 begins
    gpu: float = 0.0  # until it is computed


NO_WAITS = Waits()


@final
class Outlook:
    """The estimates of one engine. `look` first, at one request; then ask."""

    __slots__ = (
        "_belief", "_best", "_best_seconds", "_chunk", "_compute_fixed", "_compute_page",
        "_compute_token", "_from_prefill", "_hits", "_layerwise", "_load_fixed", "_load_page",
        "_page", "_page_bytes", "_read_fixed", "_read_page", "_tokens", "_waits",
    )  # fmt: skip

    def __init__(
        self, options: RestoreOptions, page_size_tokens: int, chunk_tokens: int, belief: CostModel
    ) -> None:
        self._belief = belief
        self._page = page_size_tokens
        self._page_bytes = page_size_tokens * belief.bytes_per_token
        self._chunk = chunk_tokens
        self._layerwise = options.layerwise
        self._from_prefill = options.start == "prefill"
        self._hits: Match
        self._waits = NO_WAITS
        self._tokens = 0
        self._compute_fixed = self._compute_token = 0.0
        self._load_fixed = self._load_page = self._read_fixed = self._read_page = 0.0
        self._best = 0
        self._best_seconds: float = 0.0

    def look(self, hits: Match, waits: Waits) -> None:
        """Take what is believed at this moment of a request with `hits`."""
        belief, page_bytes = self._belief, self._page_bytes
        compute, load, read = belief.prefill, belief.line("h2d"), belief.line("s2h")
        self._compute_fixed, self._compute_token = compute.fixed, compute.slope
        self._load_fixed, self._load_page = load.fixed, load.slope * page_bytes
        self._read_fixed, self._read_page = read.fixed, read.slope * page_bytes
        deepest = max(hits.device, hits.host, hits.storage)
        self._tokens = hits.tokens or deepest * self._page + 1
        self._hits, self._waits = hits, waits

    def seconds(self, goal: int) -> float:
        """Until the first token, with the first `goal` pages restored (the L1 hit: nothing is)."""
        return self._at(goal)[0]

    def best_goal(self) -> int:
        """The goal with the smallest estimate. Of equal ones the largest, which leaves the GPU the
        least to do, but nothing is restored for no gain.
        """
        hits = self._hits
        self._best = device = hits.device
        self._best_seconds = self.seconds(device)
        self._search(device + 1, hits.host)
        self._search(max(device, hits.host) + 1, hits.storage)
        return self._best

    def _search(self, low: int, high: int) -> None:
        """Look at the ends of all straight pieces from `low` to `high`."""
        if low <= high:
            below = self._offer(low)
            self._between(low, below, high, self._offer(high))

    def _between(self, low: int, low_shape: int, high: int, high_shape: int) -> None:
        # Between two goals of one shape the estimate is straight: no end of a piece lies there.
        if low_shape == high_shape or high - low <= 1:
            return
        middle = (low + high) // 2
        shape = self._offer(middle)
        self._between(low, low_shape, middle, shape)
        self._between(middle, shape, high, high_shape)

    def _offer(self, goal: int) -> int:
        """Keep `goal` if it is the best so far; returns its shape."""
        seconds, shape = self._at(goal)
        best, device = self._best_seconds, self._hits.device
        if seconds < best or (seconds == best and self._best > device and goal > self._best):
            self._best, self._best_seconds = goal, seconds
        return shape

    def _at(self, goal: int) -> tuple[float, int]:
        """The estimate for `goal`, and its shape: which of each two times is the later one."""
        hits, waits = self._hits, self._waits
        left = self._tokens - goal * self._page
        shape = 0
        if left < 1:  # every request computes at least a token
            left, shape = 1, 16
        step = self._compute_fixed + left * self._compute_token
        rest = 0.0
        if left > self._chunk:
            step = self._compute_fixed + self._chunk * self._compute_token
            rest = self._compute_fixed + (left - self._chunk) * self._compute_token
        else:
            shape += 1
        if goal <= hits.device:
            return waits.gpu + step + rest, shape
        begun, gpu = 0.0, waits.gpu
        if goal > hits.host:
            begun = waits.read + self._read_fixed + (goal - hits.host) * self._read_page
        load = self._load_fixed + (goal - hits.device) * self._load_page
        if self._from_prefill:  # the load begins with the step, whose turn has then come
            if begun >= gpu:
                shape += 4
            else:
                begun = gpu
            loaded = begun + load
        else:
            if begun >= waits.link:
                shape += 2
            else:
                begun = waits.link
            loaded = begun + load
        ready = begun if self._layerwise else loaded
        if ready >= gpu:
            shape += 32 if self._from_prefill else 4
        else:
            ready = gpu
        computed = ready + step
        if loaded >= computed:
            return loaded + rest, shape + 8
        return computed + rest, shape
