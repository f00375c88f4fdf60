"""The loads that prefills overlap with: where the thread that loads pages and the one that computes
meet.

    h2d worker   run(copy 7)            -> of(7): enqueues layer after layer, tells of each
    GPU worker   run(prefill, load=7)   -> of(7): waits for layer after layer

Whichever comes first makes the entry. What is over is kept for a while: a prefill that was queued
may name a copy that has ended meanwhile. Refuses to keep a run that is being stopped: whoever waits
for a load that nobody will begin any more is told so (`close`).
"""

from __future__ import annotations

import threading

from hicache.errors import TransferError
from hw.transfers.layerwise import LayerLoad

# The engine has one GPU step under way at a time, and that names one load. One that Python enqueues
# holds an event for each layer.
KEPT = 16


class LoadBook:
    """Loads by the number of their copy. Thread-safe. `layers`: of the model."""

    def __init__(self, layers: int) -> None:
        self._layers = layers
        self._lock = threading.Lock()
        self._loads: dict[int, LayerLoad] = {}  # oldest first
        self._closed = False

    def of(self, number: int) -> LayerLoad:
        """The load of copy `number`."""
        with self._lock:
            load = self._loads.get(number)
            if load is None:
                load = self._loads[number] = LayerLoad(self._layers)
                if self._closed:
                    load.fail(TransferError("the run is being stopped"))
                if len(self._loads) > KEPT:
                    del self._loads[next(iter(self._loads))]
            return load

    def close(self) -> None:
        """Nothing that has not begun will begin any more."""
        with self._lock:
            self._closed = True
            for load in self._loads.values():
                load.give_up()
