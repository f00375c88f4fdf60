"""Calls into code that nobody here wrote: whatever it does stays a failure of one operation.

    caller --- call ---> thread of its own ---> foreign code
       |                        |
       +--- answer, TransferError, or TransferError after `timeout_s`

An exception, an exit, a hang: the caller gets a TransferError that says what happened. A call that
hangs cannot be ended; its thread (a daemon) goes on, and what it was lent must not be lent again
until it returns: `on_return` is called then, late or not. The fence looks at no answer: whether one
makes sense, `hw.stores.dynamic` decides.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any, TypeVar

from hicache.errors import TransferError

T = TypeVar("T")


class Fence:
    """`name` for messages. `timeout_s`: how long a call may take. `late`: calls that took longer
    and have not returned yet.
    """

    def __init__(self, name: str, timeout_s: float) -> None:
        self.name = name
        self.timeout_s = timeout_s
        self._lock = threading.Lock()
        self._late = 0

    @property
    def late(self) -> int:
        """Calls that are overdue now."""
        return self._late

    def call(
        self,
        what: str,
        work: Callable[[], T],
        on_return: Callable[[], object] = lambda: None,
    ) -> T:
        """`work()`, in a thread of its own. Raises TransferError if it raises or takes too long.

        `what`: for messages. `on_return` is called once, when `work` has come to an end.
        """
        job = _Job(work)
        thread = threading.Thread(
            target=self._run, args=(job, on_return), name=f"{self.name}: {what}", daemon=True
        )
        thread.start()
        if not job.done.wait(self.timeout_s):
            with self._lock:
                if not job.over:
                    job.overdue = True
                    self._late += 1
            if job.overdue:
                raise TransferError(
                    f"{self.name}: {what} did not return within {self.timeout_s:g} s"
                )
        if job.error is not None:
            error = job.error
            raise TransferError(
                f"{self.name}: {what} failed: {type(error).__name__}: {error}"
            ) from error
        return job.answer

    def _run(self, job: _Job, on_return: Callable[[], object]) -> None:
        try:
            job.answer = job.work()
        except BaseException as error:
            job.error = error
        finally:
            on_return()
            with self._lock:
                job.over = True
                if job.overdue:
                    self._late -= 1
            job.done.set()


class _Job:
    __slots__ = ("answer", "done", "error", "over", "overdue", "work")

    def __init__(self, work: Callable[[], Any]) -> None:
        self.work = work
        self.done = threading.Event()
        self.answer: Any = None
        self.error: BaseException | None = None
        self.over = self.overdue = False
