"""A bounded crew of threads that shares the parts of one operation.

    caller --- part, part, part, ... --- waits until no part is under way
    helper --- part, part, ...
    helper --- part, ...

`concurrent.futures` hands every part over by itself, with a future and a lock: some 20 us, which is
what reading a small page takes. Here the parts are one iterator that all take from (under the GIL,
one step of it is atomic), the caller works too, and an operation of one part wakes nobody. Threads
that were woken want the GIL before they can do anything: the caller lets them begin before it makes
the next parts.

When a part fails, no further part begins, those under way are waited for, and the first error is
raised: memory that a thread still writes is never handed back. The crew knows nothing of files.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Sequence
from itertools import chain
from queue import SimpleQueue
from typing import Any

# How long the caller waits for its helpers at most: they may be busy with another operation.
BEGIN_S = 0.002


class _Job:
    """Some parts of one operation. `errors`: of the operation; it is over when there is one."""

    __slots__ = ("begun", "done", "errors", "finished", "gate", "lock", "parts", "total", "work")

    def __init__(
        self, work: Callable[[Any], object], parts: Sequence[Any], errors: list[BaseException]
    ) -> None:
        self.work = work
        self.parts = enumerate(parts, 1)
        self.total = len(parts)
        self.gate = 0  # `begun` opens when so many parts have begun; 0: never
        self.begun = threading.Lock()
        self.begun.acquire()
        self.done = 0
        self.errors = errors
        self.lock = threading.Lock()
        self.finished = threading.Lock()  # held until all parts are done
        self.finished.acquire()

    def take_part(self) -> None:
        """Do parts until none is left."""
        done = 0
        work, errors = self.work, self.errors
        for number, part in self.parts:
            done += 1
            if number == self.gate:
                self.begun.release()
            if not errors:
                try:
                    work(part)
                except BaseException as error:
                    errors.append(error)
        if done:
            with self.lock:
                self.done += done
                last = self.done == self.total
            if last:
                self.finished.release()


class Crew:
    """`workers` threads at most for one call: the caller and workers - 1 helpers, which several
    callers share.
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
        self.stream(work, (parts,))

    def stream(self, work: Callable[[Any], object], lists: Iterable[Sequence[Any]]) -> None:
        """`each` for the parts of all lists: helpers begin with one while the caller makes the
        next. What making one raises is raised when nothing is under way any more.
        """
        more = iter(lists)
        first = next(more, ())
        if len(first) < 2:
            # Hardly worth waking anybody, unless there is more.
            second = next(more, None)
            if second is None:
                for part in first:
                    work(part)
                return
            more = chain((second,), more)
        errors: list[BaseException] = []
        jobs: list[_Job] = []
        try:
            for parts in chain((first,), more):
                if errors:
                    break
                if parts:
                    self._hand_out(_Job(work, parts, errors), jobs)
        finally:
            for job in jobs:
                job.take_part()
            for job in jobs:
                job.finished.acquire()
        if errors:
            raise errors[0]

    def _hand_out(self, job: _Job, jobs: list[_Job]) -> None:
        """Let the helpers know of `job`, which is one more of `jobs`."""
        helpers = min(len(self._helpers), job.total)
        jobs.append(job)
        wait = len(jobs) == 1 and job.total > helpers > 0
        if wait:
            job.gate = helpers
        for _ in range(helpers):
            self._jobs.put(job)
        if wait:
            job.begun.acquire(timeout=BEGIN_S)

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
