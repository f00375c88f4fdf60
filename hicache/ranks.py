"""Tensor-parallel ranks that must decide alike: each asks the store for its own part of the pages,
and what they do is what the least of the answers allows.

    rank 0   Lookup ----> 512 pages --\\
    rank 1   Lookup --------> 384 -----+--> 384, when the last has answered
    rank 2   Lookup -> 512 -----------/

One tree stands for the trees of all ranks: they see the same requests and take the same decisions,
because nothing that one rank alone has found out ever becomes one. What differs between ranks is
only what a store answers them, and when. With one rank nothing here costs anything. This module
refuses to know what is done with an answer (`hicache.prefetch`).
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Any, final

from simpy import Environment

from hicache.allocator import cut
from hicache.errors import TransferError
from hicache.kernel import Signal, Task
from hicache.metrics import Metrics
from hicache.operations import Lookup
from hicache.options import EngineOptions
from hicache.ports import Lanes
from hicache.prefetch_rules import ASKED, Prefetch


def agreed(found: list[int]) -> int:
    """What all ranks have where each has `found` so much, counted from the first page: the least.

    Who went by its own would read, or hit, what another rank lacks (sglang#26921, sglang#30760).
    """
    return min(found)


@final
class Questions:
    """Asks a store how much it has of what a prefetch wants."""

    def __init__(
        self, env: Environment, lanes: Lanes, options: EngineOptions, metrics: Metrics
    ) -> None:
        self._env = env
        self._lanes = lanes
        self._metrics = metrics
        self._ranks = options.ranks
        self._batch_pages = options.prefetch.query_batch_pages

    def hit(self, prefetch: Prefetch) -> Coroutine[Any, Any, int]:
        """How many leading pages the store has, of every rank's part; to be awaited."""
        return self._leading(prefetch, 0) if self._ranks == 1 else self._least(prefetch)

    async def _least(self, prefetch: Prefetch) -> int:
        answers = [0] * self._ranks
        left = [self._ranks]
        over: Signal[None] = Signal(self._env)
        for rank in range(self._ranks):
            Task(self._answer(prefetch, rank, answers, left, over.succeed))
        await over
        return agreed(answers)

    async def _answer(
        self,
        prefetch: Prefetch,
        rank: int,
        answers: list[int],
        left: list[int],
        over: Callable[[], None],
    ) -> None:
        answers[rank] = await self._leading(prefetch, rank)
        left[0] -= 1
        if not left[0]:
            over()

    async def _leading(self, prefetch: Prefetch, rank: int) -> int:
        """How many the store has of one rank's: batch by batch, up to the first that it has not all
        of.
        """
        keys, left, hit = prefetch.keys, prefetch.asked, 0
        while left and prefetch.phase == ASKED:
            count = min(self._batch_pages, left)
            if count == left:
                part = keys
            else:
                part, keys = cut(keys, count)
            try:
                done = await self._lanes.submit(Lookup(count, part, rank))
            except TransferError:
                self._metrics.lookups_failed += 1
                break
            hit += done.answer
            left -= count
            if done.answer < count:
                break
        return hit
