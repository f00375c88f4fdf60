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
from typing import Any, Protocol, final

from simpy import Environment

from hicache.allocator import cut
from hicache.kernel import FIRST_COMPLETION_PRIORITY, Pending
from hicache.operations import Completion, Copy, Lookup, PageRuns
from hicache.store_contents import StoreContents
from sim.batched_writes import BatchedWrites
from sim.finish import OnFinish, report
from sim.timer import Callbacks, Timer


class Carrier(Protocol):
    """A device that moves pages between L2 and L3."""

    def submit(self, pending: Pending[Completion], operation: Copy, ready_ns: int) -> None: ...

    def carry(self, operation: Copy, number: int, ready_ns: int, on_finish: OnFinish) -> None:
        """The same of a copy whose end only `on_finish` is told: then, or one ns later, in the
        place that a completion of operation `number` would have.
        """


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
        # Writes that put their pages in only when somebody looks.
        self.batched: BatchedWrites | None = None
        self._answers: Callbacks = [self._answer]

    def lookup(self, pending: Pending[Completion], operation: Lookup) -> None:
        """Answer a question: what is there when the answer is given."""
        took_ns = self._took_ns(operation.pages)
        _Question(self._env, took_ns, self._answers, pending, operation, self._env._now)

    def _answer(self, question: _Question) -> None:
        if self.batched is not None:
            self.batched.show()
        operation = question.operation
        leading = self._leading(operation.keys)
        report(question.pending, operation, question.began_ns, self._env._now, leading)

    def _leading(self, keys: PageRuns) -> int:
        if self._objects == 1:
            return self._contents[0].leading(keys)
        return min([each.leading(keys) for each in self._contents])

    def _missing(self, keys: PageRuns) -> int:
        """How many pages are not there whole."""
        if self._objects == 1:
            return self._contents[0].missing(keys)
        return max([each.missing(keys) for each in self._contents])

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
        reads = operation.direction == "s2h"
        if self.batched is not None:
            self.batched.show()
        moved = self._read(operation.keys) if reads else self._missing(operation.keys)
        move = _Move(self._env, pending, operation, moved, () if reads else self._contents)
        if not moved:
            move.looks(self._took_ns(operation.pages))
            return
        size_bytes = operation.size_bytes // operation.pages * moved
        objects = moved * self._objects
        blocks = min(operation.extents, moved) * self._objects
        part = Copy(operation.direction, objects, size_bytes, blocks)
        self._carrier.carry(part, pending.number, ready_ns, move.carried)

    def _took_ns(self, pages: int) -> int:
        """What a question for so many pages takes."""
        return max(1, self._lookup_ns(pages * self._objects))


@final
class _Question(Timer):
    """A question that is answered when its time has come."""

    __slots__ = ("began_ns", "operation", "pending")

    def __init__(
        self,
        env: Environment,
        delay_ns: int,
        callbacks: Callbacks,
        pending: Pending[Completion],
        operation: Lookup,
        began_ns: int,
    ) -> None:
        self.pending = pending
        self.operation = operation
        self.began_ns = began_ns
        super().__init__(env, delay_ns, callbacks)


@final
class _Move:
    """A copy by keys under way; `written`: the contents that have its pages when it is over."""

    __slots__ = (
        "_env", "_finished_ns", "_moved", "_operation", "_pending", "_started_ns", "_written",
    )  # fmt: skip

    def __init__(
        self,
        env: Environment,
        pending: Pending[Completion],
        operation: Copy,
        moved: int,
        written: tuple[StoreContents, ...],
    ) -> None:
        self._env: Any = env  # its times are ints
        self._pending = pending
        self._operation = operation
        self._moved = moved
        self._written = written
        self._started_ns = self._finished_ns = 0

    def looks(self, took_ns: int) -> None:
        """Nothing is to be moved: it is over when that is known."""
        self._started_ns = self._env._now
        self._finished_ns = self._started_ns + took_ns
        Timer(self._env, took_ns, [self._on_timer])

    def carried(self, started_ns: int, finished_ns: int) -> None:
        """The device is through. That is seen as a completion of its own would be: at the stamp,
        in the place of this operation.
        """
        self._started_ns, self._finished_ns = started_ns, finished_ns
        if finished_ns < self._env._now:  # which is now
            self._over()
            return
        priority = FIRST_COMPLETION_PRIORITY + self._pending.number
        Timer(self._env, 1, [self._on_timer], priority)

    def _on_timer(self, _timer: Timer) -> None:
        self._over()

    def _over(self) -> None:
        for each in self._written:
            each.write(self._operation.keys)
        report(self._pending, self._operation, self._started_ns, self._finished_ns, self._moved)
