"""A load layer by layer that the compiled front enqueues (`front_layers.h`), without the
interpreter's lock: the model's thread, which needs it to launch its layers, goes on meanwhile.

Refuses to know who waits, and why a load failed: `layerwise.LayerLoad` does.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch

    from hw.transfers.front import Front
    from hw.transfers.front_native import Plan

LOST = -4  # of front_layers.h


class LoadedLayers:
    """One load, of what its front has read; the next one makes it history."""

    def __init__(self, front: Front, plan: Plan) -> None:
        self._front, self._plan = front, plan
        self._compiled, self._at = front.compiled, front.at
        self._number: int = self._compiled.begin_load(self._at)

    def load(self) -> None:
        """Enqueue all layers. For the front's thread, as `finish`.

        Raises TransferError if the device refuses; RuntimeError if it is lost. Who waits is let go.
        """
        self._front.calls.enter()
        self._tell(self._compiled.load_layers(self._at, self._plan.at))

    def finish(self) -> int:
        """Wait until all is there; the device's time in ns. Raises as `load`."""
        self._front.calls.enter()
        self._tell(self._compiled.finish_load(self._at))
        return self._front.ground.device_ns

    def fail(self) -> None:
        """Nothing more comes of it: let who waits go."""
        self._compiled.fail_load(self._at, self._number)

    def wait(self, layer: int, stream: torch.cuda.Stream | None) -> bool:
        """Let a stream (the caller's current one) go on only when a layer is there; blocks until it
        is enqueued. False for a load that failed. For any thread. Raises as `load`.
        """
        self._front.calls.enter()
        handle = self._front.queue.handle_of(stream)
        code: int = self._compiled.wait_layer(self._at, self._number, layer, handle)
        if code and code != LOST:
            self._front.calls.refuse("cuStreamWaitEvent", code)
        return not code

    def has(self, layer: int) -> bool:
        """Whether a layer is there already. For any thread."""
        self._front.calls.enter()
        return bool(self._compiled.has_layer(self._at, self._number, layer))

    def _tell(self, code: int) -> None:
        if code:
            self._front.refuse(code)
