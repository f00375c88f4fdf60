"""Writing to L3 through a buffer: what L2 is under `tiers.l2_mode = "buffer_only"`.

    queued ---- room in the buffer ---> L1 -> buffer (D2H) ---> buffer -> store (H2S) ---> over
      | holds nothing, pins nothing       L1 is pinned            L1 may evict it
      left L1 meanwhile: dropped

First come, first served: a write that finds too little room waits until others have given theirs
back, and those behind it wait, too, so that no page gets to the store before what it follows. What
the store is believed to have (`hicache.store_belief`) is not written again. A node larger than the
buffer is dropped where writes are by node, as in SGLang; a path goes in parts.

Buffer pages are nobody's but the write's: no part of the tree, so that nothing is ever hit in L2.
Refuses to know when something is due to be written (`hicache.write_rules`), and how a store is
written (`hicache.store_index`).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, final

from hicache.allocator import cut
from hicache.errors import TransferError
from hicache.kernel import Task
from hicache.metrics import Metrics
from hicache.node import DEVICE, HOST, Node
from hicache.operations import PageRuns
from hicache.options import EngineOptions
from hicache.store_belief import StoreBelief
from hicache.store_index import StoreWriter, keys_from
from hicache.tree import HiRadixTree
from hicache.write_rules import WriteRules

if TYPE_CHECKING:
    from hicache.transfers import Transfers


@final
class _Write:
    """Pages `first` .. `first + count` of the path ending at `node`, with `keys`; `pages` are those
    of the buffer, once it has them.
    """

    __slots__ = ("count", "first", "keys", "node", "pages")

    def __init__(self, node: Node, first: int, count: int, keys: PageRuns) -> None:
        self.node = node
        self.first = first
        self.count = count
        self.keys = keys
        self.pages: PageRuns = ()


@final
class StagedWrites:
    """The writes of one engine. `on_change` is called when pages of L1 were unpinned."""

    def __init__(
        self,
        tree: HiRadixTree,
        transfers: Transfers,
        writer: StoreWriter,
        belief: StoreBelief,
        options: EngineOptions,
        metrics: Metrics,
        on_change: Callable[[], None],
    ) -> None:
        self._tree = tree
        self._buffer = tree.tiers[HOST]
        self._transfers = transfers
        self._writer = writer
        self._belief = belief
        self._dropped = metrics.dropped_pages
        self._on_change = on_change
        self._rules = WriteRules(options)
        # What waits holds nothing, and little of it can be in L1 still when it is more than that.
        self._backlog_limit = 2 * options.device_pages
        self._queue: deque[_Write] = deque()
        self._staged: list[_Write] = []  # those that have buffer pages
        self.attached = True  # whether there is an L3 to write to
        self.backlog_pages = 0  # waiting for, or under way to, the store

    def write_through(self, node: Node) -> None:
        """Queue what is due of what L3 lacks of the L1-resident path ending at `node`."""
        if not self.attached:
            return
        reuse = self._transfers.reuse
        if reuse is not None:
            node = reuse.admitted(node)
        if self._rules.by_node:
            for end in self._rules.due(node):
                if not self._write_node(end):
                    break
        else:
            for end in self._rules.due(node):
                self.write(end)

    def write(self, node: Node) -> None:
        """Queue what L3 lacks of the L1-resident path ending at `node`, in parts that the buffer
        can hold.
        """
        if not self.attached:
            return
        reuse = self._transfers.reuse
        if reuse is not None:
            node = reuse.admitted(node)
        self._put_lacking(node, 0, keys_from(node, 0))

    def flush(self) -> None:
        """Begin what there is room for in the buffer."""
        queue, tree = self._queue, self._tree
        while queue:
            write = queue[0]
            node = write.node
            if tree.covered(node, DEVICE) != (node.depth + node.length, None):
                queue.popleft()
                self._end(write, 0, "host_pressure")  # L1 has given it up, before there was room
                continue
            if write.count > self._buffer.allocator.free:
                break
            queue.popleft()
            write.pages = self._buffer.allocator.take(write.count)
            self._staged.append(write)
            Task(self._stage(write))

    @property
    def waiting(self) -> int:
        """Writes that wait for room in the buffer."""
        return len(self._queue)

    def lent(self) -> tuple[int, list[PageRuns]]:
        """Buffer pages that are in use: how many, and which."""
        return sum(each.count for each in self._staged), [each.pages for each in self._staged]

    def _write_node(self, node: Node) -> bool:
        """Queue what L3 lacks of one node; False if nothing behind it may be written."""
        lacking = self._belief.missing(node.start, node.length)
        if lacking > self._buffer.capacity:
            self._dropped["host_pressure"] += lacking
            return False
        return self._put_lacking(node, node.depth, ((node.start, node.length),))

    def _put_lacking(self, node: Node, first: int, keys: PageRuns) -> bool:
        """Queue what L3 lacks of pages `first` .. `node.end`, which have `keys`, as far as it may
        wait; False if it may not.
        """
        belief, put = self._belief, True
        while keys and put:
            skip = belief.leading(keys)
            first += skip
            keys = cut(keys, skip)[1]
            count = min(belief.lacking(keys), self._buffer.capacity)
            part, keys = cut(keys, count)
            put = not part or self._put(_Write(node, first, count, part))
            first += count
        self.flush()
        return put

    def _put(self, write: _Write) -> bool:
        """Queue a write, unless too many wait already."""
        if self.backlog_pages + write.count > self._backlog_limit:
            self._dropped["write_backlog"] += write.count
            return False
        self._belief.claim(write.keys)
        self.backlog_pages += write.count
        self._queue.append(write)
        return True

    async def _stage(self, write: _Write) -> None:
        """L1 -> buffer; the store's writer takes it from there."""
        tree, transfers, node, count = self._tree, self._transfers, write.node, write.count
        source: PageRuns = ()
        if tree.named:
            source = cut(tree.pages_from(node, DEVICE, write.first), count)[0]
        tree.pin(node, DEVICE)
        transfers.writes_pending += 1
        failed = False
        try:
            await transfers.to_host.write(count, source, write.pages)
        except TransferError:
            failed = True
        transfers.writes_pending -= 1
        tree.unpin(node, DEVICE)
        if failed:
            self._give_back(write)
            self._end(write, 0, "transfer_failed")
            self.flush()
        else:
            over = partial(self._over, write)
            self._writer.write_staged(count, write.keys, write.pages, over)
        self._on_change()

    def _over(self, write: _Write, written: int) -> None:
        """The store has the first `written` pages, and nothing more will come."""
        self._give_back(write)
        self._end(write, written, "")  # the writer has counted what it lost
        self.flush()

    def _give_back(self, write: _Write) -> None:
        self._staged.remove(write)
        self._tree.give(HOST, write.pages, write.count)

    def _end(self, write: _Write, written: int, reason: str) -> None:
        self._belief.settle(write.keys, written)
        self.backlog_pages -= write.count
        if reason:
            self._dropped[reason] += write.count
