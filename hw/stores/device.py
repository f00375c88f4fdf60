"""A store behind the lanes: H2S writes pages by name, S2H reads them, and a Lookup asks for them.

    engine: page keys --- PageNames ---> names --- PageStore ---> how many leading pages

A copy by keys is answered with a number of pages, as `hicache.operations` says; one that moved
nothing, since the store failed, is a TransferError. What moves is decided here by nobody.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from hicache.errors import TransferError
from hicache.operations import Copy, Lookup, Operation, PageRuns
from hw.device import Control, Step, Timing
from hw.stores.contract import PageStore

NamesOf = Callable[[PageRuns], Sequence[str]]


class StoreDevice:
    """One queue of a store (`hw.device.Device`). When all its devices are closed, so is it."""

    def __init__(self, store: PageStore, names_of: NamesOf, users: list[int]) -> None:
        """Made by `store_devices`. `names_of`: runs of page keys -> a name for each."""
        self._store = store
        self._names_of = names_of
        self._users = users
        users.append(1)

    @property
    def name(self) -> str:
        """For messages."""
        return self._store.name

    def run(self, operation: Operation, control: Control, steps: tuple[Step, ...] = ()) -> Timing:
        """Carry it out; the timing's `steps` are the answer, in pages. Raises TransferError."""
        assert isinstance(operation, Copy | Lookup)
        names = self._names_of(operation.keys)
        assert len(names) == operation.pages, f"{len(names)} names for {operation.pages} pages"
        started_ns = time.monotonic_ns()
        if isinstance(operation, Lookup):
            answer = self._store.leading(names)
        elif operation.direction == "s2h":
            answer = self._store.read(names, operation.target)
        else:
            assert operation.direction == "h2s"
            answer = self._store.write(operation.source, names)
            if not answer:
                raise TransferError(f"{self.name}: none of {len(names)} pages could be stored")
        return Timing(started_ns, time.monotonic_ns(), steps=answer)

    def close(self) -> None:
        """See StoreDevice."""
        self._users.pop()
        if not self._users:
            self._store.close()


def store_devices(store: PageStore, names_of: NamesOf, queues: int) -> tuple[StoreDevice, ...]:
    """Devices for so many queues of one store."""
    users: list[int] = []
    return tuple(StoreDevice(store, names_of, users) for _ in range(queues))
