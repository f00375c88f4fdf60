"""The one port between the engine and a machine, simulated, real or recorded.

A lane takes an operation and finishes it with `hicache.kernel.post`, once, when the device is done
and not before: bandwidth that is shared and bursts that are ended move a finish that was foreseen.
Lanes number what is submitted, in order, from a counter that all lanes of one environment share.
"""

from __future__ import annotations

from typing import Protocol

from hicache.kernel import Pending
from hicache.operations import Completion, Operation


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
