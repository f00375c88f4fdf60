"""Who is inside a store: it is closed once nobody is.

A thread of C or of the kernel goes on with the number of a file, not with the file: closed under
it, the next file that is opened gets the number, and its bytes. So `close` waits; for an operation
of its own thread it does not: Ctrl-C may have ended that between any two lines.
"""

from __future__ import annotations

import threading
from types import TracebackType


class UnderWay:
    """A context manager around each operation; a thread is in one at a time."""

    def __init__(self) -> None:
        self._threads: set[int] = set()
        self._changed = threading.Condition()
        self._closed = False

    def __enter__(self) -> None:
        with self._changed:
            assert not self._closed, "an operation on a closed file"
            self._threads.add(threading.get_ident())

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        with self._changed:
            self._threads.discard(threading.get_ident())
            self._changed.notify_all()

    def close(self) -> None:
        """Let nobody in any more, and wait until the other threads are out."""
        with self._changed:
            self._closed = True
            self._threads.discard(threading.get_ident())
            while self._threads:
                self._changed.wait()
