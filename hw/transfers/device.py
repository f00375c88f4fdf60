"""The PCIe link as a device of the engine's: one direction of copies between L1 and L2.

It runs `Copy` operations through a back-end and says when the device worked on them. A worker's
thread has no work of its own on any stream, so there is nothing to wait for but what the engine has
waited for already. Refuses anything but copies of its own direction.
"""

from __future__ import annotations

import time

from hicache.operations import Copy, Operation
from hw.device import Control, Step, Timing
from hw.loads import LoadBook
from hw.transfers.auto import Auto
from hw.transfers.backend import Copied, TransferBackend
from hw.transfers.driver import Direction
from hw.transfers.layerwise import LayerLoad


class TransferDevice:
    """One direction of the link. See `hw.device.Device`.

    `loads`: where prefills find the loads of this device that they overlap with; with it pages are
    loaded layer by layer.
    """

    def __init__(
        self, backend: TransferBackend | Auto, direction: Direction, loads: LoadBook | None = None
    ) -> None:
        self._backend = backend
        self._loads = loads
        self._direction: Direction = direction

    @property
    def name(self) -> str:
        """For messages."""
        return f"PCIe {self._direction} ({self._backend.name})"

    def run(self, operation: Operation, control: Control, steps: tuple[Step, ...] = ()) -> Timing:
        """Copy. `started_ns` is the end less the device's own time for it, and never before the
        call.
        """
        assert isinstance(operation, Copy)
        assert operation.direction == self._direction
        begun_ns = time.monotonic_ns()
        # Alone: the default stream may be the model's, and a copy that waited for it would hide
        # nothing.
        if self._loads is None:
            copied = self._backend.copy(
                self._direction, operation.source, operation.target, alone=True
            )
        else:
            copied = self._load(operation, self._loads.of(control.number))
        finished_ns = time.monotonic_ns()
        # Set-up lies before what will recur, as far as the lane can tell.
        setup_ns = min(copied.setup_ns, finished_ns - begun_ns)
        started_ns = max(begun_ns + setup_ns, finished_ns - copied.device_ns)
        return Timing(started_ns, finished_ns, setup_ns)

    def _load(self, operation: Copy, load: LayerLoad) -> Copied:
        try:
            self._backend.load_layers(operation.source, operation.target, load=load, alone=True)
        except BaseException as error:
            load.fail(error)  # whoever waits for a layer is not to wait for ever
            raise
        return load.finish()

    def close(self) -> None:
        """Let go of work buffers."""
        self._backend.close()
