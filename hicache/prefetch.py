"""L3 prefetch: what the store has of a queued request's prompt is read into L2 while it waits.

    queued ----> asked ----------> reading ----------> read ---> over
       |           |  Lookup, one      |  s2h, `workers`  |
       declined    |  after another    |  at a time       |  published in L2, below `anchor`
                   missed, no room     stopped: what has come is published, the rest is given back

    prompt   |---- hit in L1 or L2 ----|---------- asked for ----------|
                                anchor ^ |- published -|- under way -|

L2 pages that are read into are nobody's but the prefetch's until they are published: no part of the
tree, and never given out before the copy into them has ended. Tokens that L3 said it holds are
counted, in the end, once: fulfilled, or unfulfilled for one reason. Each rank reads its own part of
the pages with workers of its own; what all of them have is what has come (`hicache.ranks`), and
where one can read no further, all end.

This module decides what is read and what is kept. It refuses to decide who is admitted: the
scheduler asks `settle` when it is a request's turn.
"""

# pyright: reportPrivateUsage=false
# `Environment.now` is a property in Python; see hicache.kernel.
from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any

from simpy import Environment

from hicache.allocator import cut, extents
from hicache.arrival import Arrival
from hicache.errors import TransferError
from hicache.kernel import Signal, Sleep, Task
from hicache.metrics import Metrics
from hicache.node import HOST
from hicache.operations import Copy, PageRuns
from hicache.options import EngineOptions
from hicache.ports import Lanes
from hicache.prefetch_pages import PrefetchPages
from hicache.prefetch_rules import (
    ASKED,
    OVER,
    PLACED,
    READ,
    READING,
    Prefetch,
    allowed_ns,
    limit_tokens,
    threshold_pages,
)
from hicache.ranks import Questions, agreed
from hicache.requests import KeyRuns
from hicache.running import Running
from hicache.store_index import count_copy
from hicache.tree import HiRadixTree, Match


class Prefetcher:
    """The prefetches of one engine. `on_ready(run)` is called when a request need not wait for its
    own any longer, `on_change` when pages of L2 were published or given back, `on_room` whenever
    some of its own may have been given back.
    """

    def __init__(
        self,
        env: Environment,
        lanes: Lanes,
        tree: HiRadixTree,
        options: EngineOptions,
        metrics: Metrics,
        on_ready: Callable[[Running], None],
        on_change: Callable[[], None],
        on_room: Callable[[], None] | None = None,
    ) -> None:
        self._env: Any = env  # its times are ints
        self._lanes = lanes
        self._tree = tree
        self._metrics = metrics
        self._on_ready = on_ready
        self._on_change = on_change
        self._options = options.prefetch
        self._page = options.page_size_tokens
        self._page_bytes = options.page_bytes
        self._pages = PrefetchPages(tree, options, on_room)
        self._threshold_pages = threshold_pages(options)
        self._limit = limit_tokens(options)
        self._numbers = 0
        self._of: dict[int, Prefetch] = {}  # the one that a request may wait for, by its order
        self._questions: deque[Prefetch] = deque()
        self._asks = False
        self._store = Questions(env, lanes, options, metrics)
        self._ranks = options.ranks
        # What waits to be read, and who reads, by rank.
        self._reads: list[deque[Prefetch]] = [deque() for _ in range(self._ranks)]
        self._readers = [0] * self._ranks
        # What may be asked again, by the order of the request: keys of its prompt, times left.
        self._refused: dict[int, tuple[Running, KeyRuns, int]] = {}
        self._asked_runs: dict[int, tuple[KeyRuns, int]] = {}
        self._passes = 0
        self.occupied_tokens = 0

    # ------------------------------------------------------------------ for the scheduler

    def begin(self, run: Running, runs: KeyRuns) -> None:
        """`run` was queued: ask for what follows its hit in `runs`, the keys of what it may hit."""
        self._begin(run, runs, self._options.retries)

    def settle(self, run: Running) -> bool:
        """It is the turn of `run`: whether it may go on. If it may, its prefetch is over, and what
        has come of it is in L2 (or will be, where a page in front of it is still on its way).
        """
        prefetch = self._of.get(run.order)
        self._refused.pop(run.order, None)
        if prefetch is None:
            return True
        stop = self._options.stop
        if prefetch.phase == READ:
            self._publish(prefetch)
        if prefetch.phase >= PLACED:
            return prefetch.phase == OVER or stop != "wait_complete"
        if stop == "wait_complete":
            return False
        if stop == "timeout" and self._env._now <= self._deadline_ns(prefetch):
            Task(self._watch(prefetch))
            return False
        self._stop(prefetch, "deadline")
        return True

    def abandon(self, run: Running) -> None:
        """`run` was aborted, or has ended: nothing is read for it any more."""
        self._refused.pop(run.order, None)
        prefetch = self._of.get(run.order)
        if prefetch is None:
            return
        if prefetch.phase != PLACED:  # that is as good as published
            self._stop(prefetch, "dropped")

    def look_again(self) -> None:
        """One more pass of admission: ask again for requests that were declined or missed."""
        self._passes += 1
        if not self._refused or self._passes % self._options.retry_passes:
            return
        refused, self._refused = self._refused, {}
        for run, runs, left in refused.values():
            self._begin(run, runs, left - 1)

    def lent(self) -> tuple[int, list[PageRuns]]:
        """L2 pages that are not the tree's: how many, and which."""
        return self._pages.lent()

    @property
    def under_way(self) -> int:
        """Prefetches that are not over."""
        return len(self._of)

    # ------------------------------------------------------------------ asking

    def _begin(self, run: Running, runs: KeyRuns, retries: int) -> None:
        tree, page, metrics = self._tree, self._page, self._metrics
        match = tree.match(runs)
        first = self._origin(match)
        total = sum(count for _, count in runs)
        # L2 keeps no hole: what L1 alone holds must come there before what follows it can.
        if match.device > first or total - first < self._threshold_pages:
            return
        asked = total - first
        if self.occupied_tokens >= self._limit:
            metrics.prefetches_declined["rate_limited"] += 1
            metrics.prefetch_declined_tokens["rate_limited"] += asked * page
            self._refuse(run, runs, retries)
            return
        anchor = tree.cut_at(match.node, first)
        tree.pin(anchor, HOST)
        keys = cut(tuple(runs), first)[1]
        prefetch = Prefetch(self._numbers, run, self._env._now, anchor, first, keys)
        if self._options.allocate == "before_lookup" and not self._pages.take(prefetch, asked):
            metrics.prefetches_declined["host_capacity"] += 1
            metrics.prefetch_declined_tokens["host_capacity"] += asked * page
            tree.unpin(anchor, HOST)
            self._refuse(run, runs, retries)
            return
        self._numbers += 1
        metrics.prefetches += 1
        self.occupied_tokens += asked * page
        self._of[run.order] = prefetch
        if retries:
            self._asked_runs[run.order] = (runs, retries)
        self._questions.append(prefetch)
        if not self._asks:
            self._asks = True
            Task(self._ask())

    def _origin(self, match: Match) -> int:
        """The first page that may be asked for."""
        return match.host

    def _refuse(self, run: Running, runs: KeyRuns, retries: int) -> None:
        """It was declined, or the store had nothing: ask again later, if that is allowed."""
        if retries > 0:
            self._refused[run.order] = (run, runs, retries)

    async def _ask(self) -> None:
        """One question after the other, in the order of the requests."""
        questions = self._questions
        while questions:
            prefetch = questions.popleft()
            if prefetch.phase == ASKED:
                hit = await self._store.hit(prefetch)
                if prefetch.phase == ASKED:
                    self._answered(prefetch, hit)
        self._asks = False

    def _answered(self, prefetch: Prefetch, hit: int) -> None:
        metrics, tokens = self._metrics, hit * self._page
        prefetch.hit = hit
        metrics.prefetch_hit_tokens += tokens
        if hit < self._threshold_pages:
            again = self._asked_runs.get(prefetch.run.order)
            if again is not None:
                self._refuse(prefetch.run, *again)
            self._finish(prefetch, "below_threshold")
            return
        if self._options.allocate == "before_lookup":
            self._pages.give(prefetch, hit)
        elif not self._pages.take(prefetch, hit) and not self._pages.take_less(prefetch):
            self._finish(prefetch, "host_capacity")
            return
        self._count_lost(hit - prefetch.taken, "host_capacity")
        prefetch.hit = prefetch.taken
        prefetch.phase = READING
        prefetch.came = [0] * self._ranks
        prefetch.reading = self._ranks
        for rank, reads in enumerate(self._reads):
            reads.append(prefetch)
            if self._readers[rank] < self._options.workers:
                self._readers[rank] += 1
                Task(self._read(rank))

    # ------------------------------------------------------------------ reading

    async def _read(self, rank: int) -> None:
        """One worker: one prefetch after the other, in the order of the answers."""
        reads = self._reads[rank]
        while reads:
            prefetch = reads.popleft()
            if prefetch.phase == READING:
                await self._read_one(prefetch, rank)
        self._readers[rank] -= 1

    async def _read_one(self, prefetch: Prefetch, rank: int) -> None:
        stats, most = self._metrics.directions["s2h"], self._options.read_batch_pages
        keys, mine = prefetch.keys, 0
        while prefetch.phase == READING and mine < prefetch.hit:
            count = min(most, prefetch.hit - mine)
            part, keys = cut(keys, count)
            target = cut(cut(prefetch.pages, mine)[1], count)[0]
            runs = extents(target, target) if target else 1
            copy = Copy("s2h", count, count * self._page_bytes, runs, (), target, part, rank)
            prefetch.under_way += 1
            came = 0
            try:
                done = await self._lanes.submit(copy)
            except TransferError:
                stats.failed += 1
            else:
                came = done.answer
                if not rank:  # what is counted is one rank's
                    count_copy(stats, done, copy)
            prefetch.under_way -= 1
            if prefetch.phase != READING:
                break
            mine += came
            prefetch.came[rank] = mine
            prefetch.completed = agreed(prefetch.came)
            if came < count:
                prefetch.reason = "storage_transfer"
                break
        phase: int = prefetch.phase
        if phase == OVER:  # it was stopped meanwhile: the last copy is all it waits for
            if not prefetch.under_way:
                self._pages.give(prefetch, 0)
        elif phase == READING:
            prefetch.reading -= 1
            if prefetch.reading and not prefetch.reason:
                return  # the other ranks read on
            prefetch.phase = READ
            if self._options.publish == "done":
                self._publish(prefetch)
            else:
                self._on_ready(prefetch.run)

    def _stop(self, prefetch: Prefetch, reason: str) -> None:
        """End it now. What has come is published, unless nobody wants it; a copy that is under way
        keeps its pages until it has ended.
        """
        if prefetch.phase == ASKED:
            self._finish(prefetch, reason)
            return
        prefetch.reason = reason
        if reason == "dropped":
            prefetch.completed = 0
        prefetch.phase = READ
        self._publish(prefetch)

    def _deadline_ns(self, prefetch: Prefetch) -> int:
        return prefetch.began_ns + allowed_ns(self._options, prefetch.hit * self._page)

    async def _watch(self, prefetch: Prefetch) -> None:
        """Let its request have its turn again when its time is over."""
        while prefetch.phase in (ASKED, READING):
            wait_ns = self._deadline_ns(prefetch) + 1 - self._env._now
            if wait_ns <= 0:
                self._on_ready(prefetch.run)
                return
            await Sleep(self._env, wait_ns)

    # ------------------------------------------------------------------ what has come

    def _publish(self, prefetch: Prefetch) -> None:
        """Give the tree what has come: now, or once the pages in front of it are there."""
        if not prefetch.completed:
            self._finish(prefetch, prefetch.reason)
            return
        tree, run = self._tree, prefetch.run
        keys = cut(prefetch.keys, prefetch.completed)[0]
        end = tree.grow(prefetch.anchor, keys)
        tree.pin(end, HOST)
        tree.unpin(prefetch.anchor, HOST)
        prefetch.anchor = end
        run.prefetched_pages = prefetch.completed
        first, after = tree.covered(end, HOST)
        if after is None:
            self._place(prefetch, first)
        else:
            prefetch.phase = PLACED
            Task(self._place_behind(prefetch, after))

    async def _place_behind(self, prefetch: Prefetch, after: Arrival) -> None:
        """Wait for what is on its way to where the pages belong."""
        while True:
            await after.settled(self._signal)
            first, following = self._tree.covered(prefetch.anchor, HOST)
            if following is None:
                break
            after = following
        self._place(prefetch, first)

    def _signal(self) -> Signal[None]:
        return Signal(self._env)

    def _place(self, prefetch: Prefetch, first: int) -> None:
        """Publish what L2, which holds `first` pages of the path, lacks of it."""
        tree, completed = self._tree, prefetch.completed
        mine, rest = cut(prefetch.pages, completed)
        double = first - prefetch.first
        doubled, new = cut(mine, double)
        if double:
            tree.give(HOST, doubled, double)
        if completed > double:
            tree.publish(prefetch.anchor, HOST, first, new)
            self._metrics.promoted_pages += completed - double
        prefetch.pages = rest
        prefetch.taken -= completed
        self._fulfil(prefetch, completed)

    def _fulfil(self, prefetch: Prefetch, used: int, reason: str = "") -> None:
        """Of the pages that have come `used` went to where they are of use, the others are lost for
        `reason`. It is over.
        """
        completed = prefetch.completed
        self._metrics.prefetch_fulfilled_tokens += used * self._page
        self._count_lost(completed - used, reason)
        prefetch.hit -= completed
        prefetch.completed = 0
        self._finish(prefetch, prefetch.reason or "storage_transfer")

    def _finish(self, prefetch: Prefetch, reason: str) -> None:
        """It is over; what is left of its hit is lost, for `reason`."""
        self._count_lost(prefetch.hit, reason)
        prefetch.hit = 0
        prefetch.phase = OVER
        self.occupied_tokens -= prefetch.asked * self._page
        self._tree.unpin(prefetch.anchor, HOST)
        if not prefetch.under_way:
            self._pages.give(prefetch, 0)
        run = prefetch.run
        del self._of[run.order]
        self._asked_runs.pop(run.order, None)
        self._on_ready(run)
        self._on_change()

    def _count_lost(self, pages: int, reason: str) -> None:
        if pages:
            self._metrics.prefetch_unfulfilled_tokens[reason] += pages * self._page
