"""Ctrl-C that a run takes to heart when it can: asked once it ends soon, asked twice at once.

While a request is read (perhaps from a pipe that has stalled) it takes effect at once, too. Where
SIGINT belongs to somebody else (a notebook, a thread), nothing changes. Refuses to know what a run
is: how one ends soon, its subclasses say.
"""

from __future__ import annotations

import signal
import threading
from types import TracebackType
from typing import Self


class CtrlC:
    """A context manager around a run. `reading_now` is for those who read requests."""

    def __init__(self) -> None:
        self.asked = False
        self.given_up = False  # asked twice
        self.reading_now = False
        self._ours = False

    def end_soon(self) -> None:
        """Called once, between any two lines, where the run shall end when it is sound to."""

    def __enter__(self) -> Self:
        self._ours = (
            threading.current_thread() is threading.main_thread()
            and signal.getsignal(signal.SIGINT) is signal.default_int_handler
        )
        if self._ours:
            signal.signal(signal.SIGINT, self._on_signal)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._ours:
            signal.signal(signal.SIGINT, signal.default_int_handler)

    def _on_signal(self, number: int, frame: object) -> None:
        if self.asked:
            self.given_up = True
        if self.reading_now or self.asked:
            raise KeyboardInterrupt
        self.asked = True
        self.end_soon()
