"""A load that arrives layer by layer, so that it hides under the computing of the layers before.

    transfer thread   enqueue 0 | enqueue 1 | enqueue 2 | ...        finish() -> all is there
    private stream        load 0 ----> load 1 ----> load 2 ---->
    model's stream                wait_layer(0), layer 0 | wait_layer(1), layer 1 | ...

`wait_layer` makes the model's stream wait, not the model's thread; the thread waits only if the
transfer thread has not enqueued that layer yet. Refuses to say that a layer is there when the load
failed: whoever waits gets the error.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TYPE_CHECKING

import torch

from hicache.errors import TransferError
from hw.transfers.queues import CudaQueue, Mark, Queue

if TYPE_CHECKING:
    from hw.transfers.backend import Copied
    from hw.transfers.front_layers import LoadedLayers


class LayerLoad:
    """One load under way. Thread-safe for any number of readers."""

    def __init__(self, layers: int) -> None:
        self.layers = layers
        self._changed = threading.Condition()
        self._marks: list[Mark] = []
        self._ahead: LoadedLayers | None = None  # who knows of the layers, if not the marks
        self._queue: Queue | None = None
        self._begin: Mark | None = None
        self._end: Mark | None = None
        self._release: Callable[[], object] | None = None
        self._error: BaseException | None = None
        self._setup_ns = 0
        self._finished: Copied | None = None

    def begin(self, queue: Queue) -> None:
        """The back-end begins to enqueue on `queue`."""
        self._queue = queue
        self._begin = queue.mark()

    def begin_by(self, layers: LoadedLayers) -> None:
        """Not the back-end enqueues the layers, but its front, which tells of each itself."""
        with self._changed:
            self._ahead = layers
            self._changed.notify_all()

    def loaded(self, count: int = 1) -> None:
        """The back-end has enqueued the next `count` layers."""
        assert self._queue is not None
        mark = self._queue.mark()
        with self._changed:
            self._marks.extend([mark] * count)
            self._changed.notify_all()

    def end(self, release: Callable[[], object], setup_ns: int) -> None:
        """The back-end has enqueued everything; `release` frees it once all has arrived."""
        self._setup_ns = setup_ns
        self._release = release
        if self._ahead is not None:
            return
        assert self._queue is not None
        self._end = self._queue.mark()
        with self._changed:
            missing = self.layers - len(self._marks)
            assert missing in (0, self.layers), "layers were left out"
            self._marks.extend([self._end] * missing)  # no page, no layer: all are there
            self._changed.notify_all()

    def fail(self, error: BaseException) -> None:
        """The back-end could not go on: nobody is to wait for ever."""
        with self._changed:
            self._error = error
            self._changed.notify_all()
            ahead = self._ahead
        if ahead is not None:
            ahead.fail()

    def give_up(self) -> None:
        """The run is being stopped: a load that has not begun by now never will."""
        with self._changed:
            if self._queue is None and self._ahead is None and self._error is None:
                self._error = TransferError("the run is being stopped")
                self._changed.notify_all()

    def wait_layer(self, layer: int, stream: torch.cuda.Stream | None = None) -> None:
        """Let `stream` (the caller's current one) go on only when `layer` is there.

        Raises TransferError if the load failed.
        """
        with self._changed:
            self._changed.wait_for(
                lambda: self._error is not None or self._ahead or len(self._marks) > layer
            )
            self._check(layer)
            mark = None if self._ahead else self._marks[layer]
        if self._ahead is not None:
            if not self._ahead.wait(layer, stream):
                with self._changed:  # why, the loading thread is about to say
                    self._changed.wait_for(lambda: self._error is not None)
            self._check(layer)
        elif isinstance(self._queue, CudaQueue):
            assert isinstance(mark, torch.cuda.Event)
            (stream or torch.cuda.current_stream(self._queue.device)).wait_event(mark)

    def _check(self, layer: int) -> None:
        if self._error is not None:
            raise TransferError(f"layer {layer} will not come: {self._error}")

    def is_loaded(self, layer: int) -> bool:
        """Whether `layer` is there already."""
        if self._ahead is not None:
            return self._error is None and self._ahead.has(layer)
        with self._changed:
            return len(self._marks) > layer and self._marks[layer].query()

    def finish(self) -> Copied:
        """Wait until everything is there, and free the back-end for its next operation. For the
        thread that called `load_layers`.
        """
        from hw.transfers.backend import Copied

        if self._finished is None:
            assert self._release is not None
            try:
                device_ns = self._device_ns()
            except BaseException as error:
                self.fail(error)
                raise
            finally:
                self._release()
            self._finished = Copied(device_ns, self._setup_ns)
        return self._finished

    def _device_ns(self) -> int:
        """Wait until everything is there; how long it took."""
        if self._ahead is not None:
            return self._ahead.finish()
        assert self._queue is not None
        assert self._begin is not None
        assert self._end is not None
        self._end.synchronize()
        return self._queue.elapsed_ns(self._begin, self._end)
