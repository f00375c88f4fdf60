"""Restores of admitted requests: pages below L1 are brought back, and the request goes on to its
prefill when they are there, while they come, or with the step that loads them.

    restoring ----------------------------> prefilling     `restore.layerwise` off: all are there
              early: the load is under way                 on: each layer waits for its part
              later: the pages are in L2                   `restore.start = "prefill"`

A restore that fails costs its time: the request computes the pages. Refuses to decide what is worth
a restore (`hicache.admission` asks the policy).
"""

# pyright: reportPrivateUsage=false
# `Environment.now` is a property in Python; see hicache.kernel.
from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, final

from simpy import Environment

from hicache.decoding import DecodeSteps
from hicache.endings import Endings
from hicache.errors import PredecessorError, TransferError
from hicache.kernel import Task
from hicache.loads import Early, QueuedLoad, Ready
from hicache.metrics import Metrics
from hicache.node import DEVICE, Node
from hicache.options import EngineOptions
from hicache.prefilling import PrefillSteps
from hicache.queue_ahead import QueueAhead
from hicache.running import Running
from hicache.staged_reads import StagedReads
from hicache.transfers import Transfers
from hicache.tree import HiRadixTree, Match


@final
class Restores:
    """The restores of one engine. `poke` is called when there may be more to do for the GPU."""

    def __init__(
        self,
        env: Environment,
        tree: HiRadixTree,
        transfers: Transfers,
        endings: Endings,
        decode: DecodeSteps,
        prefill: PrefillSteps,
        options: EngineOptions,
        metrics: Metrics,
        poke: Callable[[], None],
        ahead: QueueAhead | None = None,
    ) -> None:
        self._env: Any = env  # its times are ints
        self._tree = tree
        self._transfers = transfers
        self._endings = endings
        self._decode = decode
        self._prefill = prefill
        self._metrics = metrics
        self._poke = poke
        self._ahead = ahead
        self._page = options.page_size_tokens
        self._layerwise = options.restore.layerwise
        self._loads_late = options.restore.start == "prefill"
        self.staged: StagedReads | None = None  # where L2 is only a buffer
        self.under_way = 0

    def begin(self, run: Running, end: Node, match: Match) -> None:
        """Bring the pages of `run`, which was admitted with the hits of `match`, up to `end`."""
        run.phase = "restoring"
        self.under_way += 1
        if self._ahead is not None:
            tail = run.kv_tokens - end.end * self._page
            self._ahead.tails[run.order] = tail if tail > 0 else 1
        Task(self._restore(run, end, match))

    async def _restore(self, run: Running, end: Node, match: Match) -> None:
        """Bring the pages up to `end` into L1; on failure the request computes them."""
        metrics, tree, env = self._metrics, self._tree, self._env
        held, goal = run.held, end.end
        began_ns, under_decode_ns = env._now, self._decode.clock_ns()
        mine, rest = tree.cut_pages(run.private_pages, goal - held)
        assert run.node is not None
        early: Early | None = None
        ready: Ready | None = None
        if self._loads_late:
            ready = partial(self._prefill_later, run, goal)
        elif self._layerwise:
            early = partial(self._prefill_early, run, goal)
        try:
            if self.staged is None:
                await self._transfers.restore(end, held, mine, early, ready)
            else:
                await self.staged.load(run, end, held, mine, early, ready)
        except (TransferError, PredecessorError):
            self._failed(run, goal)
        else:
            tree.unpin(run.node, DEVICE)
            run.node, run.held = end, goal
            run.private, run.private_pages = run.private - (goal - held), rest
            if run.load < 0:
                self._prefill.set_past(run, goal)
            metrics.restores += 1
            metrics.restored_pages += goal - held
            if run.retractions == 0:
                from_host = max(0, min(match.host, goal) - held)
                if run.prefetched_pages:  # what a store held: the last pages of L2's hit
                    first = max(held, match.host - run.prefetched_pages)
                    from_host = min(from_host, max(0, first - held))
                run.cached_pages = (held, from_host, goal - held - from_host)
        took_ns = env._now - began_ns
        run.restored_ns += took_ns
        metrics.restore_ns += took_ns
        metrics.restore_under_decode_ns += min(took_ns, self._decode.clock_ns() - under_decode_ns)
        self.under_way -= 1
        self._go_on(run)
        self._poke()

    def _failed(self, run: Running, goal: int) -> None:
        """Pages up to `goal` did not come: `run` still holds what it held before."""
        if run.queued_load is None:
            self._metrics.restore_fallbacks += 1
        run.queued_load = None
        run.restore_failed = True
        run.reason = "restore_failed"
        if run.load >= 0:  # whatever was computed rests on pages that did not come
            self._prefill.set_past(run, run.held)
            if run.retractions:
                self._metrics.recomputed_tokens += (goal - run.held) * self._page

    def _go_on(self, run: Running) -> None:
        """The restore of `run` is over, well or not."""
        if self._ahead is not None:
            self._ahead.tails.pop(run.order, None)
        load, run.load = run.load, -1
        if run.phase == "restoring":
            if run.aborting:
                self._endings.release(run)
                self._endings.give_up(run)
            else:
                self._prefill.add(run)
        elif run.phase == "loading":
            self._prefill.loaded.append(run)
        else:
            assert load >= 0, "a request was prefilled while it was restored, and not early"

    def _prefill_early(self, run: Running, goal: int, load: int) -> None:
        """Copy `load` brings pages up to `goal`: prefill what comes behind them meanwhile."""
        if run.aborting:
            return  # it is let go when the copy has ended
        run.load = load
        if self._ahead is not None:
            self._ahead.tails.pop(run.order, None)
        self._prefill.set_past(run, goal)
        self._prefill.add(run)
        self._poke()

    def _prefill_later(self, run: Running, goal: int, load: QueuedLoad) -> None:
        """Pages up to `goal` are in L2: they are loaded with the step that computes what comes
        behind them.
        """
        run.queued_load = load
        if run.aborting:
            load.give_up()
            return
        if self._ahead is not None:
            self._ahead.tails.pop(run.order, None)
        self._prefill.set_past(run, goal)
        self._prefill.add(run)
        self._poke()
