"""Which of several engines serves a request that arrives: the load balancer in front of them.

    round_robin    one after the other, by number of arrival
    least_loaded   whoever has the fewest requests waiting and running; the first of equals
    cache_aware    whoever holds most of the prompt in L1 or L2, unless that is less than half of
                   it, or the loads differ too much: then as least_loaded (SGLang's router)

A router looks and does not touch: no access time moves, no node is cut. It decides once, when a
request arrives, and refuses to move one that waits.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final, final

from hicache.engine import Engine
from hicache.node import DEVICE, HOST
from hicache.options import RouterName
from hicache.requests import KeyRuns, Request
from hicache.tree import HiRadixTree

# SGLang's router: balance_abs_threshold, balance_rel_threshold and cache_threshold.
MOST_MORE: Final = 64
MOST_TIMES: Final = 1.5
LEAST_HIT: Final = 0.5


@final
class Router:
    """Stands for several engines towards `hicache.arrivals`."""

    def __init__(self, engines: Sequence[Engine], name: RouterName) -> None:
        assert engines, "nobody to serve"
        self._engines = tuple(engines)
        self._name: RouterName = name
        self._arrived = 0
        # Called with each request that has ended, wherever.
        self.on_end: Callable[[Request], None] | None = None
        for engine in engines:
            engine.scheduler.on_end = self._ended

    def _ended(self, request: Request) -> None:
        if self.on_end is not None:
            self.on_end(request)

    def enqueue(self, request: Request) -> None:
        """A request arrives now: it goes to one engine."""
        self.pick(request).scheduler.enqueue(request)

    def close(self) -> None:
        """No more requests will come."""
        for engine in self._engines:
            engine.scheduler.close()

    def pick(self, request: Request) -> Engine:
        """The engine that serves `request`; each call counts as an arrival."""
        engines, number = self._engines, self._arrived
        self._arrived += 1
        if self._name == "round_robin":
            return engines[number % len(engines)]
        loads = [engine.scheduler.load for engine in engines]
        least = min(loads)
        idlest = engines[loads.index(least)]
        if self._name == "least_loaded":
            return idlest
        most = max(loads)
        if most - least > MOST_MORE and most > MOST_TIMES * least:
            return idlest
        hits = [held_pages(engine.tree, request.prompt_runs) for engine in engines]
        longest = max(hits)
        if longest < LEAST_HIT * request.prompt_pages:
            return idlest
        best = [place for place, hit in enumerate(hits) if hit == longest]
        return engines[min(best, key=lambda place: loads[place])]


def held_pages(tree: HiRadixTree, runs: KeyRuns) -> int:
    """How many leading pages of `runs` L1 or L2 holds. Touches nothing."""
    node, depth = tree.root, 0
    for start, count in runs:
        while count:
            child = node.children.get(start)
            if child is None:
                return depth
            length = min(child.length, count)
            held = min(length, max(child.resident[DEVICE], child.resident[HOST]))
            depth += held
            if held < child.length:
                return depth
            node = child
            start += length
            count -= length
    return depth
