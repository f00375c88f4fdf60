"""L3 under several tensor-parallel ranks where the engine names one copy for all of them: each rank
moves its own part, all at once, over the one device of their host.

    engine: s2h of 64 pages ---> rank 0: 64 pages of its heads --\\
                            ---> rank 1: 64 pages of its heads ---+-- disk, or store
                            ---> over when the last is      <----/

So the device moves as many times the bytes as there are parts. Pages that all ranks hold alike
(MLA) are written once and read by each. It refuses to know what is in L3: where a store is asked by
page key, every rank asks and reads for itself (`sim.keyed_store`).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from hicache.kernel import Pending
from hicache.operations import Completion, Copy
from sim.finish import report
from sim.keyed_store import Carrier

# Parts get numbers between those of operations, so that which is first stays what it was.
_PARTS_AT_MOST = 1 << 16


class EveryRank:
    """Takes `s2h` and `h2s` copies as a device does: one part for each of `ranks`, of writes one
    for each of `writing_ranks`.
    """

    def __init__(self, carrier: Carrier, ranks: int, writing_ranks: int) -> None:
        assert 1 <= writing_ranks <= ranks <= _PARTS_AT_MOST
        self._carrier = carrier
        self._ranks = ranks
        self._writing_ranks = writing_ranks

    def submit(self, pending: Pending[Completion], operation: Copy, ready_ns: int) -> None:
        """Take a copy that the engine has ready at `ready_ns`."""
        parts = self._ranks if operation.direction == "s2h" else self._writing_ranks
        arrived = _all_of(parts, pending, operation)
        for part in range(parts):
            number = pending.number * _PARTS_AT_MOST + part
            carried: Pending[Completion] = Pending(pending.env, number, pending.submitted_ns)
            assert carried.callbacks is not None
            carried.callbacks.append(arrived)
            self._carrier.submit(carried, _part(operation, parts, part), ready_ns)


def _all_of(
    parts: int, pending: Pending[Completion], operation: Copy
) -> Callable[[Pending[Completion]], None]:
    """What hears of each part, and reports the whole when it has heard of all."""
    heard: list[Completion] = []

    def arrived(part: Pending[Completion]) -> None:
        done: Any = part.value
        heard.append(done)
        if len(heard) == parts:
            started_ns = min(each.started_ns for each in heard)
            report(pending, operation, started_ns, max(each.finished_ns for each in heard))

    return arrived


def _part(operation: Copy, parts: int, part: int) -> Copy:
    """One rank's copy. Slots of L3 are its own: those of all ranks lie side by side."""
    target = operation.target
    if parts > 1 and operation.direction == "h2s":
        target = tuple((first * parts + part * count, count) for first, count in target)
    return Copy(
        operation.direction, operation.pages, operation.size_bytes, operation.extents,
        operation.source, target,
    )  # fmt: skip
