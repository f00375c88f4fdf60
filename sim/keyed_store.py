"""A store that is asked by page key, in front of the device that carries its bytes.

    Lookup ------> what is there now                    lookup time, no bandwidth
    s2h, by keys -> the leading pages that are there     their bytes through the device
    h2s, by keys -> the pages that are not there yet     their bytes; there once they have arrived

Several engines may have one each in front of one `StoreContents`: what one has written, the others
find. What a read was to bring and what leaves meanwhile is settled when the read begins. Refuses to
know which keys mean what.
"""

# pyright: reportPrivateUsage=false
# `Environment.now` is a property in Python; see hicache.kernel.
from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

from simpy import Environment

from hicache.kernel import Pending
from hicache.operations import Completion, Copy, Lookup
from hicache.store_contents import StoreContents
from sim.finish import report
from sim.timer import Timer


class Carrier(Protocol):
    """A device that moves pages between L2 and L3."""

    def submit(self, pending: Pending[Completion], operation: Copy, ready_ns: int) -> None: ...


class KeyedStore:
    """One engine's way to a store. `lookup_ns(pages)`: what a question for so many takes."""

    def __init__(
        self,
        env: Environment,
        carrier: Carrier,
        contents: StoreContents,
        lookup_ns: Callable[[int], int],
    ) -> None:
        self._env: Any = env  # its times are ints
        self._carrier = carrier
        self._contents = contents
        self._lookup_ns = lookup_ns

    def lookup(self, pending: Pending[Completion], operation: Lookup) -> None:
        """Answer a question: what is there when the answer is given."""
        began_ns = self._env._now

        def answer(_timer: Timer) -> None:
            leading = self._contents.leading(operation.keys)
            report(pending, operation, began_ns, self._env._now, leading)

        self._after(operation.pages, answer)

    def submit(self, pending: Pending[Completion], operation: Copy, ready_ns: int) -> None:
        """Take a copy by keys that the engine has ready at `ready_ns`."""
        keys, contents = operation.keys, self._contents
        reads = operation.direction == "s2h"
        moved = contents.read(keys) if reads else contents.missing(keys)
        began_ns = self._env._now

        def ended(started_ns: int, finished_ns: int) -> None:
            if not reads:
                contents.write(keys)
            report(pending, operation, started_ns, finished_ns, moved)

        if not moved:
            self._after(operation.pages, lambda _timer: ended(began_ns, self._env._now))
            return
        size_bytes = operation.size_bytes // operation.pages * moved
        part = Copy(operation.direction, moved, size_bytes, min(operation.extents, moved))
        carried: Pending[Completion] = Pending(pending.env, pending.number, pending.submitted_ns)

        def arrived(_event: object) -> None:
            done: Completion = carried.value
            ended(done.started_ns, done.finished_ns)

        assert carried.callbacks is not None
        carried.callbacks.append(arrived)
        self._carrier.submit(carried, part, ready_ns)

    def _after(self, pages: int, act: Callable[[Timer], None]) -> None:
        Timer(self._env, max(1, self._lookup_ns(pages)), [act])
