"""Several engines in one environment, behind a router, as one: what each did, and all together.

    requests -> Router -> engine 0 -- its own GPU, link, host -\\
                       -> engine 1 --           "             -- one disk, or one store

Engines know nothing of each other; what they share is the device under L3, and, where that is a
store asked by page key, what is in it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from simpy import Environment

from hicache.arrivals import LinkedArrivals, StreamedArrivals
from hicache.engine import Engine
from hicache.kernel import Task
from hicache.metrics import DirectionStats, Metrics
from hicache.options import LoadOptions, RouterName
from hicache.requests import Request
from hicache.router import Router
from hicache.store_contents import StoreContents

# Totals of several engines that are no sums.
_LARGEST = ("max_waiting", "max_running", "last_token_ns")
_ONE_AFTER_THE_OTHER = ("reasons", "sessions")


class TierTotals:
    """One tier of all engines."""

    def __init__(self, capacity: int, resident: int, evicted_pages: int, lost_pages: int) -> None:
        self.capacity = capacity
        self.resident = resident
        self.evicted_pages = evicted_pages
        self.lost_pages = lost_pages


class TreeTotals:
    """The tiers of all engines."""

    def __init__(self, engines: Sequence[Engine]) -> None:
        self.tiers = tuple(
            TierTotals(
                sum(each.capacity for each in tiers),
                sum(each.resident for each in tiers),
                sum(each.evicted_pages for each in tiers),
                sum(each.lost_pages for each in tiers),
            )
            for tiers in zip(*(engine.tree.tiers for engine in engines), strict=True)
        )


class Fleet:
    """To a run it is what one engine is. `contents`: of the store that they share, if any."""

    def __init__(
        self,
        env: Environment,
        engines: Sequence[Engine],
        router: RouterName,
        contents: StoreContents | None = None,
    ) -> None:
        self.env = env
        self.engines = tuple(engines)
        self.router = Router(engines, router)
        self._contents = contents

    def serve(
        self, requests: Iterable[Request], load: LoadOptions, *, reads_ahead: bool = False
    ) -> None:
        """Start to serve `requests`; as `Engine.serve`."""
        for engine in self.engines:
            Task(engine.scheduler.run())
        if reads_ahead or load.loop == "closed":
            Task(LinkedArrivals(self.env, self.router, load).run(requests))
        else:
            Task(StreamedArrivals(self.env, self.router).run(requests))

    def serve_untimed(self, requests: Iterable[Request]) -> None:
        """Serve `requests` one at a time. Nobody is ever loaded then."""
        for request in requests:
            self.router.pick(request).serve_untimed((request,), self._contents)

    @property
    def running(self) -> int:
        """Requests admitted and not done."""
        return sum(engine.running for engine in self.engines)

    @property
    def tree(self) -> TreeTotals:
        """Tiers, added up."""
        return TreeTotals(self.engines)

    @property
    def metrics(self) -> Metrics:
        """Counters, added up; the rows of one engine after those of another."""
        return together([engine.metrics for engine in self.engines])

    def status(self) -> dict[str, Any]:
        """What holds of all of them: no belief does."""
        return {"belief": None}

    def check_integrity(self) -> None:
        """Assert every invariant of each."""
        for engine in self.engines:
            engine.check_integrity()


def together(parts: Sequence[Metrics]) -> Metrics:
    """One record of what several engines counted."""
    total = Metrics()
    for name in _fields(total):
        values = [getattr(part, name) for part in parts]
        setattr(total, name, _joined(name, getattr(total, name), values))
    return total


def _fields(record: object) -> list[str]:
    """What it counts. Compiled, it has neither __dict__ nor __slots__."""
    names = [name for name in dir(record) if not name.startswith("_")]
    return [name for name in names if not callable(getattr(record, name))]


def _joined(name: str, usual: Any, values: list[Any]) -> Any:
    if name in _LARGEST:
        return max(values)
    if name == "first_arrival_ns":
        return min((value for value in values if value >= 0), default=-1)
    if name == "rows" or name in _ONE_AFTER_THE_OTHER:
        for value in values:
            usual += value
        return usual
    if isinstance(usual, int):
        return sum(values)
    if isinstance(usual, list):
        return [sum(column) for column in zip(*values, strict=True)]
    if name == "directions":
        return {way: _added([value[way] for value in values]) for way in usual}
    return {key: sum(value[key] for value in values) for key in values[0]}


def _added(parts: Sequence[DirectionStats]) -> DirectionStats:
    total = DirectionStats()
    for name in _fields(total):
        setattr(total, name, sum(getattr(part, name) for part in parts))
    return total
