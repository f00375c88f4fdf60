"""A store behind the lanes: H2S writes pages by name, S2H reads them, and a Lookup asks for them.

    engine: page keys --- PageNames ---> names --- PageStore ---> how many leading pages

A copy by keys is answered with a number of pages, as `hicache.operations` says: of a read, the
leading ones that came; of a write, those that were moved, since the store had the others: it is
asked how many leading ones before (and gets all of them: those it has are used now). A write after
which the store has not all of its pages is a TransferError. What moves is decided here by nobody.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from threading import Lock

from hicache.errors import TransferError
from hicache.operations import Copy, Lookup, Operation, PageRuns
from hw.device import Control, Step, Timing
from hw.stores.contract import PageStore, numbered

NamesOf = Callable[[PageRuns], Sequence[str]]


class StoreCounts:
    """What the devices of one store did, in pages. Thread-safe.

    `read_of_others`: that this run had not written, nor found there when it was about to: what a
    store that outlives a run, or is shared, has brought. `found`: that were there when they were to
    be written.
    """

    def __init__(self) -> None:
        self._lock = Lock()
        self._ours: set[int] = set()  # keys
        self.read = self.read_of_others = self.written = self.found = 0

    def came(self, keys: Sequence[int]) -> None:
        """Pages with these keys were read."""
        with self._lock:
            self.read += len(keys)
            self.read_of_others += sum(key not in self._ours for key in keys)

    def went(self, keys: Sequence[int], moved: int) -> None:
        """The store has these now, of which so many were moved."""
        with self._lock:
            self._ours.update(keys)
            self.written += moved
            self.found += len(keys) - moved

    def as_table(self) -> dict[str, int]:
        """For the summary."""
        return {
            "pages_read": self.read,
            "pages_read_of_others": self.read_of_others,
            "pages_written": self.written,
            "pages_found": self.found,
        }


class StoreDevice:
    """One queue of a store (`hw.device.Device`). When all its devices are closed, so is it."""

    def __init__(
        self, store: PageStore, names_of: NamesOf, users: list[int], counts: StoreCounts
    ) -> None:
        """Made by `store_devices`. `names_of`: runs of page keys -> a name for each."""
        self._store = store
        self._names_of = names_of
        self._users = users
        self._counts = counts
        users.append(1)

    @property
    def name(self) -> str:
        """For messages."""
        return self._store.name

    def run(self, operation: Operation, control: Control, steps: tuple[Step, ...] = ()) -> Timing:
        """Carry it out; the timing's `steps` are the answer, in pages. Raises TransferError."""
        assert isinstance(operation, Copy | Lookup)
        started_ns = time.monotonic_ns()
        names = self._names_of(operation.keys)
        assert len(names) == operation.pages, f"{len(names)} names for {operation.pages} pages"
        if isinstance(operation, Lookup):
            answer = self._store.leading(names)
        elif operation.direction == "s2h":
            answer = self._store.read(names, operation.target)
            self._counts.came(numbered(operation.keys)[:answer])
        else:
            assert operation.direction == "h2s"
            answer = self._write(names, operation)
        return Timing(started_ns, time.monotonic_ns(), steps=answer)

    def close(self) -> None:
        """See StoreDevice."""
        self._users.pop()
        if not self._users:
            self._store.close()

    def _write(self, names: Sequence[str], operation: Copy) -> int:
        there = self._store.leading(names)
        stored = self._store.write(operation.source, names)
        if stored < len(names):
            raise TransferError(
                f"{self.name}: {stored or 'none'} of {len(names)} pages could be stored"
            )
        moved = len(names) - there
        self._counts.went(numbered(operation.keys), moved)
        return moved


def store_devices(
    store: PageStore, names_of: NamesOf, queues: int, counts: StoreCounts | None = None
) -> tuple[StoreDevice, ...]:
    """Devices for so many queues of one store, which count into `counts`."""
    users: list[int] = []
    kept = counts or StoreCounts()
    return tuple(StoreDevice(store, names_of, users, kept) for _ in range(queues))
