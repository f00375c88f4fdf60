"""A bounded crew of threads that shares the parts of one operation.

    caller --- part, part, part, ... --- waits until no part is under way
    helper --- part, part, ...
    helper --- part, ...

`concurrent.futures` hands every part over by itself, with a future and a lock: some 20 us, which is
what reading a small page takes. Here the parts are one iterator that all take from (under the GIL,
one step of it is atomic), the caller works too, and an operation of one part wakes nobody.

When a part fails, no further part begins, those under way are waited for, and the first error is
raised: memory that a thread still writes is never handed back. The crew knows nothing of files.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from queue import SimpleQueue
from typing import Any


class _Job:
    """One call of `Crew.each`."""

    __slots__ = ("done", "error", "finished", "lock", "parts", "total", "work")

    def __init__(self, work: Callable[[Any], object], parts: Sequence[Any]) -> None:
        self.work = work
        self.parts = iter(parts)
        self.total = len(parts)
        self.done = 0
        self.error: BaseException | None = None
        self.lock = threading.Lock()
        self.finished = threading.Lock()  # held until all parts are done
        self.finished.acquire()

    def take_part(self) -> None:
        """Do parts until none is left."""
        done = 0
        work = self.work
        for part in self.parts:
            done += 1
            if self.error is None:
                try:
                    work(part)
                except BaseException as error:
                    with self.lock:
                        self.error = self.error or error
        if done:
            with self.lock:
                self.done += done
                last = self.done == self.total
            if last:
                self.finished.release()


class Crew:
    """`workers` threads at most for one call of `each`: the caller and workers - 1 helpers, which
    several callers share.
    """

    def __init__(self, name: str, workers: int) -> None:
        self.workers = workers
        self._jobs: SimpleQueue[_Job | None] = SimpleQueue()
        self._helpers = [
            threading.Thread(target=_help, args=(self._jobs,), name=f"{name} {i}", daemon=True)
            for i in range(1, workers)
        ]
        for helper in self._helpers:
            helper.start()

    def each(self, work: Callable[[Any], object], parts: Sequence[Any]) -> None:
        """`work(part)` for every part, in no particular order; returns when all are done."""
        if not parts:
            return
        if len(parts) == 1:
            work(parts[0])
            return
        job = _Job(work, parts)
        for _ in range(min(len(self._helpers), len(parts) - 1)):
            self._jobs.put(job)
        job.take_part()
        job.finished.acquire()
        if job.error is not None:
            raise job.error

    def close(self) -> None:
        """Send the helpers home and wait for them."""
        for _ in self._helpers:
            self._jobs.put(None)
        for helper in self._helpers:
            helper.join()


def _help(jobs: SimpleQueue[_Job | None]) -> None:
    while (job := jobs.get()) is not None:
        job.take_part()
        del job  # or it would be kept until the next one comes
