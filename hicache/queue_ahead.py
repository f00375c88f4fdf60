"""What a request that is admitted now would have to wait for: the copies in front of it in each
direction, and the prompts that are computed before its own (`restore.queue_aware`).

    link, read   sum of what is believed of the copies under way, less the time since the first of
                 them had the lane
    gpu          the prompts that wait for a prefill step, and what is left to compute of those
                 whose restores are under way; layer-wise loads hold the GPU, too

A request that computes all of its prompt would pass the latter; it would only make them wait, so
that they count all the same (in simulations of a busy machine that is better for all together).

Here a copy teaches the cost model how long it had the lane, not how long it waited for it: the wait
is counted apart. Requests that are not admitted yet are behind. Refuses to decide anything
(`hicache.restore_policy`), and to look at a device: all of it is what the engine itself submitted.
"""

# pyright: reportPrivateUsage=false
# `Environment.now` is a property in Python; see hicache.kernel.
from __future__ import annotations

from collections import deque
from functools import partial
from typing import TYPE_CHECKING, Any, final

from simpy import Environment

from hicache.cost_model import CostModel
from hicache.kernel import Pending
from hicache.operations import DIRECTIONS, Completion, Direction
from hicache.options import EngineOptions
from hicache.outlook import Waits

if TYPE_CHECKING:
    from hicache.running import Running


@final
class LaneQueue:
    """The copies of one direction that were submitted and have not ended."""

    __slots__ = ("_since_ns", "_sizes", "_total_bytes")

    def __init__(self) -> None:
        self._sizes: deque[int] = deque()
        self._total_bytes = 0
        self._since_ns = 0  # since when the first of them has the lane

    def begun(self, size_bytes: int, now_ns: int) -> None:
        """One more was submitted."""
        if not self._sizes:
            self._since_ns = now_ns
        self._sizes.append(size_bytes)
        self._total_bytes += size_bytes

    def ended(self, size_bytes: int, submitted_ns: int, now_ns: int) -> int:
        """One ended, well or not; returns for how many ns it had the lane, at most."""
        self._sizes.remove(size_bytes)
        self._total_bytes -= size_bytes
        since_ns, self._since_ns = self._since_ns, now_ns
        return now_ns - (since_ns if since_ns > submitted_ns else submitted_ns)

    def left(self, fixed: float, slope: float, now_ns: int) -> float:
        """Seconds until all of them have ended, for copies that take fixed + bytes * slope."""
        if not self._sizes:
            return 0.0
        seconds = len(self._sizes) * fixed + self._total_bytes * slope
        return max(0.0, seconds - (now_ns - self._since_ns) * 1e-9)


@final
class QueueAhead:
    """The waits of one engine. Whoever begins copies and restores tells it (`copies`, `tails`)."""

    def __init__(self, env: Environment, belief: CostModel, options: EngineOptions) -> None:
        self._env: Any = env  # its times are ints
        self._belief = belief
        self._page_bytes = options.page_bytes
        self._chunk = options.scheduler.chunk_tokens
        self._layerwise = options.restore.layerwise
        self._lanes: dict[Direction, LaneQueue] = {name: LaneQueue() for name in DIRECTIONS}
        # Those that wait for a prefill step: the list of `hicache.prefilling`.
        self.waiting: deque[Running] = deque()
        self.tails: dict[int, int] = {}  # tokens to compute of each request that restores, by order
        self.gathered_pages = 0  # of loads that begin at the end of this round of admission

    def copies(self, direction: Direction, size_bytes: int, pending: Pending[Completion]) -> None:
        """A copy was submitted: count it until it has ended, and learn from it then."""
        now = self._env._now
        self._lanes[direction].begun(size_bytes, now)
        over = partial(self._over, direction, size_bytes, now)
        if pending.callbacks is None:
            over(pending)
        else:
            pending.callbacks.append(over)

    def _over(
        self, direction: Direction, size_bytes: int, submitted_ns: int, pending: Pending[Completion]
    ) -> None:
        had_ns = self._lanes[direction].ended(size_bytes, submitted_ns, self._env._now)
        if pending.ok:
            done: Completion = pending.value
            had_ns -= done.setup_ns
            self._belief.copies[direction].observe(size_bytes, max(had_ns, 0) * 1e-9)

    def waits(self) -> Waits:
        """As of now."""
        belief, now = self._belief, self._env._now
        read, load = belief.line("s2h"), belief.line("h2d")
        read_left = self._lanes["s2h"].left(read.fixed, read.slope, now)
        load_left = self._lanes["h2d"].left(load.fixed, load.slope, now)
        load_left += self.gathered_pages * self._page_bytes * load.slope
        tokens = pages = 0
        for run in self.waiting:
            tokens += run.todo_tokens
            if run.queued_load is not None:
                pages += run.queued_load.pages
        for tail in self.tails.values():
            tokens += tail
        computing = self._computing(tokens)
        loading = pages * self._page_bytes * load.slope  # with the steps that wait
        if self._layerwise:  # a step goes on for as long as its load
            return Waits(read_left, load_left, max(computing, load_left + loading))
        return Waits(read_left, load_left, computing + loading)

    def _computing(self, tokens: int) -> float:
        """Believed seconds of the steps that compute `tokens` tokens."""
        line = self._belief.prefill
        return -(-tokens // self._chunk) * line.fixed + tokens * line.slope
