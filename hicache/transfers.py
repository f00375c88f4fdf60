"""How pages move between tiers: write-through, write back and restore, each straight-line code
around its awaits.

    write path     L1 -> D2H -> L1+L2 -> H2S -> L1+L2+L3
    write back     evicted from L1 -> D2H -> L2 -> free in L1; H2S -> L2+L3
    restore path   L3 -> S2H -> publish in L2 -> H2D -> publish in L1

A transfer under way is never abandoned. Published pages belong to the tree, whatever fails later; a
failure frees only what was private to it. This module decides nothing about *whether* to restore,
and knows no time.
"""

from __future__ import annotations

from collections.abc import Callable

from simpy import Environment

from hicache.arrival import Arrival
from hicache.copies import Copier, WriteQueue
from hicache.cost_model import CostModel
from hicache.errors import PredecessorError, TransferError
from hicache.kernel import Signal, Task
from hicache.loads import Early, Loads, Ready
from hicache.metrics import Metrics
from hicache.node import DEVICE, HOST, STORAGE, Node
from hicache.operations import PageRuns
from hicache.options import EngineOptions
from hicache.ports import Lanes
from hicache.queue_ahead import QueueAhead
from hicache.reuse import make_reuse
from hicache.staged_writes import StagedWrites
from hicache.tree import HiRadixTree
from hicache.write_back import Departure
from hicache.write_rules import WriteRules


class _NoRoom(Exception):
    """The target tier cannot give the pages: the write does not begin."""


class Transfers:
    """The procedures that move pages. `on_change` is called when pages were published or
    unpinned.
    """

    def __init__(
        self,
        env: Environment,
        lanes: Lanes,
        tree: HiRadixTree,
        options: EngineOptions,
        metrics: Metrics,
        belief: CostModel,
        on_change: Callable[[], None],
        ahead: QueueAhead | None = None,
    ) -> None:
        self._env = env
        self._tree = tree
        self._metrics = metrics
        self._on_change = on_change
        self._rules = WriteRules(options)
        self._writes_through = self._rules.writes_through
        self._writes_all = self._rules.takes_all
        self.writes_back = self._rules.writes_back
        self._has_storage = options.capacities[STORAGE] > 0
        # What writes, where L2 is only a buffer in front of a store.
        self.staging: StagedWrites | None = None
        # Called with a path and the first page of it that has just come to L2 from L1.
        self.on_backed_up: Callable[[Node, int], None] | None = None
        self.reuse = make_reuse(tree, options)
        # Called with the path of a request that has ended and was counted there.
        self.on_counted: Callable[[Node], None] | None = None
        self._copier = Copier(lanes, options, metrics, belief)
        self._copier.ahead = ahead
        self.to_host = WriteQueue(env, self._copier, "d2h", options, metrics)
        self._to_storage = WriteQueue(env, self._copier, "h2s", options, metrics)
        self._backlog_limit = int(options.host_pages * options.cache.write_backlog_fraction)
        if options.cache.write_backlog_fraction >= 1:
            self._backlog_limit = options.storage_pages + options.host_pages
        self.backlog_pages = 0  # waiting for, or under way to, L3
        self.writes_pending = 0
        self.restores_pending = 0
        self.loads = Loads(env, self._copier, options, metrics)

    # ------------------------------------------------------------------ write-through

    def count_use(self, node: Node) -> None:
        """A request that had the path ending at `node` has ended: what L2 holds of it may be worth
        a place in L3 now. Only called where `reuse` is there. Never waits.
        """
        assert self.reuse is not None
        self.reuse.count(node)
        if self.on_counted is not None:
            self.on_counted(node)
        elif self._has_storage:
            Task(self._store(self._tree.cut_at(node, self._tree.held(node, HOST))))

    def write_through(self, node: Node) -> None:
        """Begin to write what is due of what L2 (or else L3) lacks of the L1-resident path ending
        at `node`. Never waits.
        """
        if not self._writes_through or node.parent is None:
            return
        if self.staging is not None:
            self.staging.write_through(node)
            return
        if self._writes_all:
            self._write(node)
            return
        begins = 0
        for end in self._rules.due(node):
            if self._rules.by_node and self._tree.covered(end, HOST)[0] < begins:
                break  # what is in front of it got no room
            self._write(end)
            begins = end.end

    @property
    def writes_answers(self) -> bool:
        """Whether all of an answer is written when it has ended."""
        return self._rules.writes_answers

    def offload(self, node: Node) -> None:
        """As `write_through`, of all of the path, whatever the write policy says; not where L2 has
        too little room for it now.
        """
        if self.staging is not None:
            self.staging.write(node)
            return
        host = self._tree.tiers[HOST]
        first, _ = self._tree.covered(node, HOST)
        if node.depth + node.length - first <= host.available:
            self._write(node)

    def _write(self, node: Node) -> None:
        """Begin to write what L2 (or else L3) lacks of the path ending at `node`, as one copy."""
        end = node.depth + node.length
        first, after = self._tree.covered(node, HOST)
        if first < end:
            Task(self._back_up(node, first, after))
        elif self._has_storage and after is None and self._tree.covered(node, STORAGE)[0] < end:
            Task(self._store(node))

    async def _back_up(self, node: Node, first: int, after: Arrival | None) -> None:
        """L1 -> L2 for pages `first` .. `node.end`, then on to L3."""
        self.writes_pending += 1
        try:
            with Arrival(self._tree, node, DEVICE, HOST, first, after) as arrival:
                if not arrival.reserve():
                    raise _NoRoom
                await self.to_host.write(
                    arrival.count, self._pages(node, DEVICE, first), arrival.pages
                )
                if after is not None:
                    await self._follow(after)
            if self.on_backed_up is not None:
                self.on_backed_up(node, first)
            if self._has_storage:
                await self._store(node, self._on_change)
            else:
                self._on_change()
        except _NoRoom:
            self._metrics.dropped_pages["host_pressure"] += node.end - first
        except (TransferError, PredecessorError):
            self._metrics.dropped_pages["transfer_failed"] += node.end - first
            self._on_change()
        finally:
            self.writes_pending -= 1

    async def _store(self, node: Node, begun: Callable[[], None] | None = None) -> None:
        """L2 -> L3 for what L3 lacks of the L2-resident path ending at `node`.

        `begun` is called once the source's pins stand, before anything is awaited.
        """
        dropped = self._metrics.dropped_pages
        if self.reuse is not None:
            node = self.reuse.admitted(node)
        first, after = self._tree.covered(node, STORAGE)
        count = node.depth + node.length - first
        backlog = self.backlog_pages
        if count <= 0 or (backlog and backlog + count > self._backlog_limit):
            if count > 0:
                dropped["write_backlog"] += count
            if begun is not None:
                begun()
            return
        self.writes_pending += 1
        self.backlog_pages += count
        try:
            with Arrival(self._tree, node, HOST, STORAGE, first, after) as arrival:
                if begun is not None:
                    begun()
                if not arrival.reserve():
                    raise _NoRoom
                await self._to_storage.write(count, self._pages(node, HOST, first), arrival.pages)
                if after is not None:
                    await self._follow(after)
        except _NoRoom:
            dropped["storage_pressure"] += count
        except (TransferError, PredecessorError):
            dropped["transfer_failed"] += count
        finally:
            self.backlog_pages -= count
            self.writes_pending -= 1

    # ------------------------------------------------------------------ write back

    async def make_room(self, count: int, load: int = 0) -> None:
        """Under write back: evict until L1 has `count` free pages, or as far as anything can leave,
        and wait until what leaves is in L2. Nothing else may evict from L1 meanwhile. `load` of the
        pages are for pages of L2.
        """
        leaving = Departure(self._tree, self._metrics, count, load)
        if not leaving.pages:
            leaving.end()
            return
        self.writes_pending += 1
        error: BaseException | None = None
        try:
            await self._copier.begin("d2h", leaving.pages, leaving.source, leaving.target)
        except TransferError as failed:
            error = failed
        for arrival in leaving.arrivals:
            why = error
            if why is None and arrival.after is not None:
                try:
                    await self._follow(arrival.after)
                except PredecessorError as failed:
                    why = failed
            leaving.close(arrival, why)
        leaving.end()
        self.writes_pending -= 1
        for arrival in leaving.arrivals:
            if not arrival.published:
                continue
            if self.on_backed_up is not None:
                self.on_backed_up(arrival.node, arrival.first)
            if self._has_storage:
                Task(self._store(arrival.node))

    async def make_room_ahead(self) -> bool:
        """`make_room` ahead of need, where L1 has a high mark and is filled above it; returns
        whether it took time.
        """
        device = self._tree.tiers[DEVICE]
        used = device.capacity - device.allocator.free
        if not device.high_pages or used <= device.high_pages or not device.evictable:
            return False
        most = device.allocator.free + device.evictable
        began_ns = self._env.now
        await self.make_room(min(most, device.capacity - device.low_pages))
        return self._env.now > began_ns

    # ------------------------------------------------------------------ restore

    async def restore(
        self,
        node: Node,
        held: int,
        pages: PageRuns,
        early: Early | None = None,
        ready: Ready | None = None,
    ) -> None:
        """Bring pages `held` .. `node.end` of the path ending at `node` into the L1 pages given.

        The source is L2, after L3 has been read into it where L2 lacks the path's tail. The path is
        pinned in L1 for the caller when it ends well. Raises TransferError or PredecessorError; the
        L1 pages are then the caller's still.

        `early` is called with the number of the copy into L1 once that is under way and no other
        load is in front of it: from then on a prefill may name it (`Prefill.load`). A step that
        waited for a copy which itself waits for others would only keep the GPU from decoding.

        `ready` is called with the load, where it does not begin by itself: when the pages are in
        L2, whoever is called must hand it to `loads.begin`, or give it up.
        """
        tree = self._tree
        self.restores_pending += 1
        try:
            with Arrival(tree, node, HOST, DEVICE, held) as arrival:
                arrival.pages = pages
                first, after = tree.covered(node, HOST)
                if first < node.end:
                    await self._promote(node, first, after)
                elif after is not None:
                    await self._follow(after)
                source = self._pages(node, HOST, held)
                await self.loads.load(arrival.count, source, pages, early, ready)
                tree.pin(node, DEVICE)
        finally:
            self.restores_pending -= 1
        self._on_change()

    async def _promote(self, node: Node, first: int, after: Arrival | None) -> None:
        """L3 -> L2 for pages `first` .. `node.end`; they are the tree's as soon as they have
        arrived.
        """
        with Arrival(self._tree, node, STORAGE, HOST, first, after) as arrival:
            if not arrival.reserve():
                self._metrics.dropped_pages["host_pressure"] += arrival.count
                raise TransferError("no room in host memory for the pages read from storage")
            source = self._pages(node, STORAGE, first)
            await self._copier.begin("s2h", arrival.count, source, arrival.pages)
            if after is not None:
                await self._follow(after)
        self._metrics.promoted_pages += arrival.count
        self._on_change()

    async def joined(self, arrival: Arrival) -> None:
        """Wait until somebody else's arrival is over, well or not."""
        if arrival.published is None:
            await arrival.settled(self._signal)

    async def _follow(self, after: Arrival) -> None:
        """Wait for the pages in front; PredecessorError if they did not come."""
        await self.joined(after)
        if not after.published:
            raise PredecessorError("the pages in front of these did not arrive")

    def _signal(self) -> Signal[None]:
        return Signal(self._env)

    def _pages(self, node: Node, tier: int, first: int) -> PageRuns:
        """Physical pages `first` .. `node.end` of a path in `tier`; empty where pages are only
        counted.
        """
        if not self._tree.named:
            return ()
        return self._tree.pages_from(node, tier, first)
