"""The one port between the engine and a machine, simulated, real or recorded.

A lane takes an operation and finishes it with `hicache.kernel.post`, once, when the device is done
and not before: bandwidth that is shared and bursts that are ended move a finish that was foreseen.
Lanes number what is submitted, in order, from a counter that all lanes of one environment share.
"""

from __future__ import annotations

from typing import Protocol, runtime_checkable

from hicache.kernel import Pending
from hicache.operations import Batches, Completion, Copy, Operation


class Lanes(Protocol):
    """Where the engine sends its work."""

    def submit(self, operation: Operation) -> Pending[Completion]:
        """Take `operation`. The awaiting process gets its `Completion`, or a `TransferError`."""
        ...

    def end_burst(self, pending: Pending[Completion]) -> None:
        """Ask for a `Decode` under way to end at its next step boundary. A burst that is over is
        left alone.
        """
        ...


@runtime_checkable
class BatchingLanes(Lanes, Protocol):
    """Lanes that can take more than one batch of a write at once, because nobody has to see each.
    What comes of it is the same to the ns.
    """

    def submit_batches(self, copy: Copy, batch_pages: int) -> Pending[Batches] | None:
        """Take leading batches of `copy`, a write by keys of unnamed pages, one after the other.
        Whoever awaits it gets what they came to, and submits the rest. None: not now; submit the
        next batch by itself.
        """
        ...
