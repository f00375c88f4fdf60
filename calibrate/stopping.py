"""SIGTERM ends a session as Ctrl-C does: between two samples, and with a profile of what is done.

So does a scheduler that takes a machine back, or `timeout`. Where the signal belongs to somebody
else already (a notebook, a thread, a parent that ignores it), nothing changes.
"""

from __future__ import annotations

import signal
import threading
from types import TracebackType
from typing import Self

INTERRUPTED = 130
TERMINATED = 143


class Stopping:
    """A context manager around a session. `code`: of a command whose session was stopped."""

    def __init__(self) -> None:
        self.code = INTERRUPTED
        self._ours = False

    def __enter__(self) -> Self:
        self._ours = (
            threading.current_thread() is threading.main_thread()
            and signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
        )
        if self._ours:
            signal.signal(signal.SIGTERM, self._on_signal)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._ours:
            signal.signal(signal.SIGTERM, signal.SIG_DFL)

    def _on_signal(self, number: int, frame: object) -> None:
        self.code = TERMINATED
        raise KeyboardInterrupt
