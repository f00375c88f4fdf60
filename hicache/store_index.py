"""L3 as a store that is asked by page key: the tree does not know what it holds.

    tree    the engine writes whatever it wrote to L2, and asks before it reads
    store   knows its pages by key; what it has already is not written again, and the least recently
            used leave when it is full

`StoreWriter` is the writing half of the engine's side (`hicache.prefetch` is the reading one): one
worker of each rank that writes, in order, in batches. A key that repeats means the same tokens
after the same prefix, so that nothing is ever overwritten. This module refuses to know when
something is written, and what it costs; what a simulated store knows is in
`hicache.store_contents`.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, final

from hicache.allocator import cut, extents
from hicache.errors import TransferError
from hicache.kernel import Pending, Task
from hicache.metrics import DirectionStats, Metrics
from hicache.node import HOST, Node
from hicache.operations import Batches, Completion, Copy, PageRuns
from hicache.options import EngineOptions
from hicache.ports import BatchingLanes, Lanes
from hicache.tree import HiRadixTree

if TYPE_CHECKING:
    from hicache.reuse import ReuseCounts


def keys_from(node: Node, first: int) -> PageRuns:
    """Runs of the keys of pages `first` .. `node.end` of the path ending at `node`."""
    runs: list[tuple[int, int]] = []
    current = node
    while current.parent is not None and current.depth + current.length > first:
        skip = first - current.depth if first > current.depth else 0
        start, count = current.start + skip, current.length - skip
        if runs and start + count == runs[-1][0]:
            count += runs.pop()[1]
        runs.append((start, count))
        current = current.parent
    runs.reverse()
    return tuple(runs)


def count_copy(stats: DirectionStats, done: Completion, copy: Copy) -> None:
    """Count a copy by keys that ended well: of its pages, those that were moved."""
    moved = done.answer
    if moved != copy.pages:
        page_bytes = copy.size_bytes // copy.pages
        copy = Copy(copy.direction, moved, moved * page_bytes, copy.extents)
    stats.add(done, copy)


class _Job:
    """Pages that wait to be written until `left` ranks have written their parts: pinned in L2, at
    `node`; or in a buffer, whose owner is told by `over` how many of them the store has. `written`:
    how many it has of all ranks that are through.
    """

    __slots__ = ("count", "keys", "left", "node", "over", "pages", "written")

    def __init__(
        self,
        node: Node | None,
        count: int,
        keys: PageRuns,
        pages: PageRuns,
        left: int,
        over: Callable[[int], None] | None = None,
    ) -> None:
        self.node = node
        self.count = count
        self.keys = keys
        self.pages = pages
        self.left = left
        self.over = over
        self.written = count


@final
class StoreWriter:
    """L2 -> L3. `on_change` is called when pages were unpinned."""

    def __init__(
        self,
        lanes: Lanes,
        tree: HiRadixTree,
        options: EngineOptions,
        metrics: Metrics,
        on_change: Callable[[], None],
    ) -> None:
        self._lanes = lanes
        self._tree = tree
        self._metrics = metrics
        self._on_change = on_change
        self._page_bytes = options.page_bytes
        self._batch_pages = options.prefetch.read_batch_pages
        fraction = options.cache.write_backlog_fraction
        self._backlog_limit = int(options.host_pages * fraction) if fraction < 1 else -1
        self._ranks = options.writing_ranks
        # Several batches at once, where nobody has to see each.
        self._batches: Callable[[Copy, int], Pending[Batches] | None] | None = None
        if self._ranks == 1 and isinstance(lanes, BatchingLanes):
            self._batches = lanes.submit_batches
        self._jobs: list[deque[_Job]] = [deque() for _ in range(self._ranks)]
        self._works = [False] * self._ranks
        self.pending = 0  # jobs that wait or are being written
        self.reuse: ReuseCounts | None = None  # what may be written, where not all may
        self.backlog_pages = 0  # waiting for, or under way to, the store

    def write(self, node: Node, first: int) -> None:
        """Pages `first` .. `node.end` of the path ending at `node` have come to L2: write them when
        it is their turn. Never waits.
        """
        if self.reuse is not None:
            node = self.reuse.admitted(node)
        count = node.depth + node.length - first
        if count <= 0:
            return
        if self._tree.covered(node, HOST) != (node.depth + node.length, None):
            return  # it has left L2 again
        backlog = self.backlog_pages
        if backlog and 0 <= self._backlog_limit < backlog + count:
            self._metrics.dropped_pages["write_backlog"] += count
            return
        tree = self._tree
        tree.pin(node, HOST)
        pages = tree.pages_from(node, HOST, first) if tree.named else ()
        self._put(_Job(node, count, keys_from(node, first), pages, self._ranks))

    def write_staged(
        self, count: int, keys: PageRuns, pages: PageRuns, over: Callable[[int], None]
    ) -> None:
        """Write `count` pages of a buffer when it is their turn; `over` is called when that has
        ended, with how many of them the store has.
        """
        self._put(_Job(None, count, keys, pages, self._ranks, over))

    def _put(self, job: _Job) -> None:
        self.pending += 1
        self.backlog_pages += job.count
        for rank, jobs in enumerate(self._jobs):
            jobs.append(job)
            if not self._works[rank]:
                self._works[rank] = True
                Task(self._work(rank))

    def write_crossed(self, node: Node) -> None:
        """A request that had the path ending at `node` was counted: write what L2 holds of it that
        has been admitted with that. Never waits.
        """
        if self.reuse is not None:
            end, first = self.reuse.crossed(node)
            self.write(end, first)

    async def _work(self, rank: int) -> None:
        """Write a rank's part of one job after the other, batch by batch. A batch that fails is the
        job's last.
        """
        stats, jobs = self._metrics.directions["h2s"], self._jobs[rank]
        batches = self._batches
        while jobs:
            job = jobs[0]
            keys, pages, written = job.keys, job.pages, 0
            while written < job.count:
                count = job.count - written
                if batches is not None and count > self._batch_pages and not pages:
                    copy = Copy("h2s", count, count * self._page_bytes, 1, (), (), keys)
                    under_way = batches(copy, self._batch_pages)
                    if under_way is not None:
                        many = await under_way
                        stats.add_batches(many, self._page_bytes)
                        written += many.pages
                        keys = cut(keys, many.pages)[1]
                        continue
                if count > self._batch_pages:
                    count = self._batch_pages
                if count == job.count:
                    part, source = keys, pages
                else:
                    part, keys = cut(keys, count)
                    source, pages = cut(pages, count)
                runs = extents(source, source) if source else 1
                copy = Copy("h2s", count, count * self._page_bytes, runs, source, (), part, rank)
                try:
                    done = await self._lanes.submit(copy)
                except TransferError:
                    stats.failed += 1
                    break
                if not rank:  # what is counted is one rank's
                    count_copy(stats, done, copy)
                written += count
            jobs.popleft()
            if written < job.written:
                job.written = written
            job.left -= 1
            if not job.left:
                self._over(job)
        self._works[rank] = False

    def _over(self, job: _Job) -> None:
        """Every rank is through with it; what one of them could not write is of no use."""
        if job.written < job.count:
            self._metrics.dropped_pages["transfer_failed"] += job.count - job.written
        self.backlog_pages -= job.count
        self.pending -= 1
        if job.node is not None:
            self._tree.unpin(job.node, HOST)
        elif job.over is not None:
            job.over(job.written)
        self._on_change()
