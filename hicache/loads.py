"""Loads from L2 into L1: each at once or several as one copy, and which of them a prefill may name.

    load ---- a copy of its own, at once
       |----- gathered (one round of admission) --- begin: one copy
       |----- ready (waits for its prefill step) -- begin: one copy, or one after the other

Decides nothing about when loads begin: the scheduler does. Pins, arrivals and what a failure means
are `hicache.transfers`' business.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, final

from simpy import Environment

from hicache.allocator import join
from hicache.errors import TransferError
from hicache.kernel import Pending, Signal, Task
from hicache.metrics import Metrics
from hicache.operations import Completion, PageRuns
from hicache.options import EngineOptions

if TYPE_CHECKING:
    from hicache.copies import Copier

# Called with the number of a copy that a prefill may name from now on.
Early = Callable[[int], None]


@final
class QueuedLoad:
    """Pages of L2 that are to be loaded into L1, once `Loads.begin` is called with it.

    `early` is called with the copy's number when a prefill may name it. `done` fires when the copy
    is over, or fails with its error.
    """

    __slots__ = ("done", "early", "pages", "source", "target")

    def __init__(
        self,
        pages: int,
        source: PageRuns,
        target: PageRuns,
        early: Early | None,
        done: Signal[None],
    ) -> None:
        self.pages = pages
        self.source = source
        self.target = target
        self.early = early
        self.done = done

    def give_up(self) -> None:
        """It will not be loaded, and was not begun."""
        self.done.fail(TransferError("the load was given up before it began"))


# Called with a load that waits to be begun.
Ready = Callable[[QueuedLoad], None]


@final
class Loads:
    """The loads of one engine."""

    def __init__(
        self, env: Environment, copier: Copier, options: EngineOptions, metrics: Metrics
    ) -> None:
        self._env = env
        self._copier = copier
        self._metrics = metrics
        self._merges = options.restore.merge_loads
        # While a list is here, loads join it, and begin when `begin` is called with them.
        self.gathered: list[QueuedLoad] | None = None
        # Those under way whose requests may be prefilled meanwhile, oldest first.
        self._under_way: list[tuple[Pending[Completion], list[Early]]] = []

    async def load(
        self,
        pages: int,
        source: PageRuns,
        target: PageRuns,
        early: Early | None,
        ready: Ready | None,
    ) -> None:
        """Copy `pages` pages into L1, and wait for it; TransferError if the device could not.

        With `ready` the load begins when whoever is called with it says so.
        """
        if ready is not None or self.gathered is not None:
            load = QueuedLoad(pages, source, target, early, Signal(self._env))
            if ready is not None:
                ready(load)
            elif self.gathered is not None:
                self.gathered.append(load)
                if self._copier.ahead is not None:
                    self._copier.ahead.gathered_pages += pages
            await load.done
            return
        copy = self._copier.begin("h2d", pages, source, target)
        if early is None or copy.callbacks is None:
            await copy
        else:
            await self._watched(copy, [early])

    def begin(self, loads: list[QueuedLoad]) -> int:
        """Begin `loads`, as one copy or, unless `restore.merge_loads` is set, as one after the
        other. Returns the number of the last copy.
        """
        if self._copier.ahead is not None:
            self._copier.ahead.gathered_pages = 0
        groups = [loads] if self._merges else [[load] for load in loads]
        number = -1
        for group in groups:
            pages = 0
            source: PageRuns = ()
            target: PageRuns = ()
            for load in group:
                pages += load.pages
                source, target = join(source, load.source), join(target, load.target)
            copy = self._copier.begin("h2d", pages, source, target)
            self._metrics.merged_loads += len(group) - 1
            number = copy.number
            Task(self._serve(group, copy))
        return number

    async def _serve(self, group: list[QueuedLoad], copy: Pending[Completion]) -> None:
        earlies = [load.early for load in group if load.early is not None]
        try:
            if not earlies or copy.callbacks is None:
                await copy
            else:
                await self._watched(copy, earlies)
        except TransferError as error:
            for load in group:
                load.done.fail(TransferError(*error.args))
        else:
            for load in group:
                load.done.succeed()

    async def _watched(self, copy: Pending[Completion], earlies: list[Early]) -> None:
        """Wait for a copy in which prefills may be interested."""
        under_way = self._under_way
        under_way.append((copy, earlies))
        if len(under_way) == 1:
            for early in earlies:
                early(copy.number)
        try:
            await copy
        finally:
            was_first = under_way[0][0] is copy
            under_way[:] = [each for each in under_way if each[0] is not copy]
            if was_first and under_way:
                following, begins = under_way[0]
                for early in begins:
                    early(following.number)
