"""A store that is asked by page key, in front of the device that carries its bytes.

    Lookup ------> what is there now                    lookup time, no bandwidth
    s2h, by keys -> the leading pages that are there     their bytes through the device
    h2s, by keys -> the pages that are not there yet     their bytes; there once they have arrived

Several engines may have one each in front of one `StoreContents`: what one has written, the others
find. A rank's part of a page may be several objects (shards of its heads), each in contents of its
own: the page is there where all of them are, and servers that are split otherwise find them, too.
What a read was to bring and what leaves meanwhile is settled when the read begins. Refuses to
know which keys mean what.
"""

# pyright: reportPrivateUsage=false
# `Environment.now` is a property in Python; see hicache.kernel.
from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

from simpy import Environment

from hicache.allocator import cut
from hicache.kernel import Pending
from hicache.operations import Completion, Copy, Lookup, PageRuns
from hicache.store_contents import StoreContents
from sim.finish import report
from sim.timer import Timer


class Carrier(Protocol):
    """A device that moves pages between L2 and L3."""

    def submit(self, pending: Pending[Completion], operation: Copy, ready_ns: int) -> None: ...


class KeyedStore:
    """One rank's way to a store. `contents`: of each object of its part of a page.
    `lookup_ns(objects)`: what a question for so many takes.
    """

    def __init__(
        self,
        env: Environment,
        carrier: Carrier,
        contents: Sequence[StoreContents],
        lookup_ns: Callable[[int], int],
    ) -> None:
        self._env: Any = env  # its times are ints
        self._carrier = carrier
        self._contents = tuple(contents)
        self._objects = len(contents)
        self._lookup_ns = lookup_ns

    def lookup(self, pending: Pending[Completion], operation: Lookup) -> None:
        """Answer a question: what is there when the answer is given."""
        began_ns = self._env._now

        def answer(_timer: Timer) -> None:
            leading = self._leading(operation.keys)
            report(pending, operation, began_ns, self._env._now, leading)

        self._after(operation.pages, answer)

    def _leading(self, keys: PageRuns) -> int:
        return min([each.leading(keys) for each in self._contents])

    def _read(self, keys: PageRuns) -> int:
        """How many leading pages are there; they are used now."""
        if self._objects == 1:
            return self._contents[0].read(keys)
        leading = self._leading(keys)
        mine = cut(keys, leading)[0]
        for each in self._contents:
            each.read(mine)
        return leading

    def submit(self, pending: Pending[Completion], operation: Copy, ready_ns: int) -> None:
        """Take a copy by keys that the engine has ready at `ready_ns`."""
        keys, contents = operation.keys, self._contents
        reads = operation.direction == "s2h"
        moved = self._read(keys) if reads else max([each.missing(keys) for each in contents])
        began_ns = self._env._now

        def ended(started_ns: int, finished_ns: int) -> None:
            if not reads:
                for each in contents:
                    each.write(keys)
            report(pending, operation, started_ns, finished_ns, moved)

        if not moved:
            self._after(operation.pages, lambda _timer: ended(began_ns, self._env._now))
            return
        size_bytes = operation.size_bytes // operation.pages * moved
        objects = moved * self._objects
        blocks = min(operation.extents, moved) * self._objects
        part = Copy(operation.direction, objects, size_bytes, blocks)
        carried: Pending[Completion] = Pending(pending.env, pending.number, pending.submitted_ns)

        def arrived(_event: object) -> None:
            done: Completion = carried.value
            ended(done.started_ns, done.finished_ns)

        assert carried.callbacks is not None
        carried.callbacks.append(arrived)
        self._carrier.submit(carried, part, ready_ns)

    def _after(self, pages: int, act: Callable[[Timer], None]) -> None:
        Timer(self._env, max(1, self._lookup_ns(pages * self._objects)), [act])
