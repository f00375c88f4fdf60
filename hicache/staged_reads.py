"""Reading L3 through a buffer: what L2 is under `tiers.l2_mode = "buffer_only"`.

    asked -> read into the buffer -> staged ---- turn, restore ----> loaded into L1, given back
                                       |---- turn, no restore -----> given back
                                       `---- aborted --------------> given back

    prompt   |-- hit in L1 --|---------- asked for ----------|
                       first ^ |- completed -|- under way, or never to come -|

Everything else is as with an L2 that keeps what it reads (`hicache.prefetch`): what is asked for,
how it is read, and when waiting for it ends. But what has come is seen by nobody except the request
that it was read for, until it is in L1. If by its turn L1 holds more of the prompt, only the rest
is loaded; if L1 holds less than what it follows, it is of no use: nothing keeps L1 from giving that
up while the request waits, as in SGLang without its anchor locks.

Decides nothing about whether to restore: admission asks the policy.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import final

from simpy import Environment

from hicache.allocator import cut
from hicache.arrival import Arrival
from hicache.errors import TransferError
from hicache.loads import Early, Loads, Ready
from hicache.metrics import Metrics
from hicache.node import DEVICE, Node
from hicache.operations import PageRuns
from hicache.options import EngineOptions
from hicache.ports import Lanes
from hicache.prefetch import Prefetcher
from hicache.prefetch_rules import READ, Prefetch
from hicache.running import Running
from hicache.store_belief import StoreBelief
from hicache.tree import HiRadixTree, Match


@final
class StagedReads(Prefetcher):
    """The prefetches of one engine without an L2 that keeps them. `on_room` is called when buffer
    pages were given back, `on_change` when L1 has got pages.
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
        loads: Loads,
        belief: StoreBelief,
        on_room: Callable[[], None],
    ) -> None:
        super().__init__(env, lanes, tree, options, metrics, on_ready, on_change, on_room)
        self._loads = loads
        self._belief = belief
        # Why staged pages were not loaded: what they follow had left L1.
        metrics.prefetch_unfulfilled_tokens.setdefault("device_capacity", 0)

    # ------------------------------------------------------------------ for the scheduler

    def settle(self, run: Running) -> bool:
        """As `Prefetcher.settle`; what has come is staged."""
        prefetch = self._of.get(run.order)
        if prefetch is None or prefetch.phase != READ:
            return super().settle(run)
        self._refused.pop(run.order, None)
        return True

    def offer(self, run: Running, match: Match) -> None:
        """Show in `match`, as a hit in L2, up to where staged pages would bring `run`."""
        prefetch = self._staged(run)
        if prefetch is not None:
            goal = prefetch.first + prefetch.completed
            if prefetch.first <= match.device < goal:
                match.host = goal

    def grow(self, run: Running, node: Node, goal: int) -> Node:
        """The tree's node for the staged pages of `run` up to page `goal`, behind `node`, which L1
        holds.
        """
        prefetch = self._of[run.order]
        keys = cut(prefetch.keys, goal - prefetch.first)[0]
        return self._tree.grow(node, cut(keys, node.depth + node.length - prefetch.first)[1])

    def decline(self, run: Running, held: int) -> None:
        """`run` goes on with the first `held` pages, which L1 has, and nothing that is staged."""
        prefetch = self._staged(run)
        if prefetch is None:
            return
        if held < prefetch.first:
            self._fulfil(prefetch, 0, "device_capacity")
        else:
            self._fulfil(prefetch, min(held - prefetch.first, prefetch.completed), "dropped")

    async def load(
        self,
        run: Running,
        node: Node,
        held: int,
        pages: PageRuns,
        early: Early | None,
        ready: Ready | None,
    ) -> None:
        """Bring what is staged of pages `held` .. `node.end` into the L1 pages given; for the rest
        as `Transfers.restore`. What is staged behind them is given back.
        """
        tree, prefetch = self._tree, self._of[run.order]
        wanted = node.end - prefetch.first
        run.prefetched_pages = prefetch.completed
        self._belief.seen(cut(prefetch.keys, prefetch.completed)[0])
        source = cut(cut(prefetch.pages, wanted)[0], held - prefetch.first)[1]
        try:
            with Arrival(tree, node, DEVICE, DEVICE, held) as arrival:
                arrival.pages = pages
                await self._loads.load(arrival.count, source, pages, early, ready)
                tree.pin(node, DEVICE)
        except TransferError:
            self._fulfil(prefetch, 0, "dropped")
            raise
        self._metrics.promoted_pages += wanted
        self._fulfil(prefetch, wanted, "dropped")

    # ------------------------------------------------------------------ inside

    def _staged(self, run: Running) -> Prefetch | None:
        prefetch = self._of.get(run.order)
        return prefetch if prefetch is not None and prefetch.phase == READ else None

    def _origin(self, match: Match) -> int:
        return match.device

    def _answered(self, prefetch: Prefetch, hit: int) -> None:
        self._belief.absent(cut(prefetch.keys, hit)[1])
        super()._answered(prefetch, hit)

    def _publish(self, prefetch: Prefetch) -> None:
        """What has come stays where it is until the turn of its request."""
        if prefetch.completed:
            self._on_ready(prefetch.run)
        else:
            self._finish(prefetch, prefetch.reason)
