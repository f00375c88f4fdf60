"""Who is inside a store: it is closed once nobody is.

A thread of C or of the kernel goes on with the number of a file, not with the file: closed under
it, the next file that is opened gets the number, and its bytes. So `close` waits; for an operation
of its own thread it does not: Ctrl-C may have ended that between any two lines. Coming and going
cost no lock: an operation of one small page takes 50 us. A forked process has none of the other
threads, and waits for none.
"""

from __future__ import annotations

import os
import threading
import weakref
from threading import get_ident
from types import TracebackType
from typing import ClassVar


class UnderWay:
    """A context manager around each operation; a thread is in one at a time."""

    all: ClassVar[weakref.WeakSet[UnderWay]] = weakref.WeakSet()

    def __init__(self) -> None:
        self._threads: set[int] = set()
        self._closed = False
        self._left = threading.Condition()  # of those that leave after `close` was called
        self.all.add(self)

    def __enter__(self) -> None:
        # First in, then a look: either `close` sees this thread, or this thread sees it closed.
        self._threads.add(get_ident())
        if self._closed:
            self._leave()
            raise AssertionError("an operation on a closed file")

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._threads.discard(get_ident())
        if self._closed:
            self._leave()

    def close(self) -> None:
        """Let nobody in any more, and wait until the other threads are out."""
        self._closed = True
        self._threads.discard(get_ident())
        with self._left:
            while self._threads:
                self._left.wait()

    def _leave(self) -> None:
        self._threads.discard(get_ident())
        with self._left:
            self._left.notify_all()

    def forget_others(self) -> None:
        """In a forked process."""
        self._threads &= {get_ident()}
        self._left = threading.Condition()


def _after_fork() -> None:
    for each in list(UnderWay.all):
        each.forget_others()


os.register_at_fork(after_in_child=_after_fork)
