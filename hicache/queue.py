"""The requests that wait to be admitted, in the order in which they came.

New requests join at the end. One that comes back (retracted, or waited for somebody's restore) is
older than they are and takes its old place in front of them.
"""

from __future__ import annotations

from collections import deque
from heapq import heapify, heappop, heappush

from hicache.running import Running


class RequestQueue:
    """First come, first served, by `Running.order`."""

    __slots__ = ("_new", "_returned", "size")

    def __init__(self) -> None:
        self.size = 0
        self._new: deque[Running] = deque()
        self._returned: list[tuple[int, Running]] = []

    def join(self, run: Running) -> None:
        """A new request: behind all others."""
        self.size += 1
        self._new.append(run)

    def rejoin(self, run: Running) -> None:
        """A request that was admitted before: in its old place."""
        self.size += 1
        run.phase = "queued"
        heappush(self._returned, (run.order, run))

    def head(self) -> Running | None:
        """The request to be admitted next."""
        if self._returned:
            return self._returned[0][1]
        return self._new[0] if self._new else None

    def pop(self) -> Running:
        """Take the head out."""
        self.size -= 1
        return heappop(self._returned)[1] if self._returned else self._new.popleft()

    def remove(self, run: Running) -> None:
        """Take `run` out, wherever it stands."""
        self.size -= 1
        entry = (run.order, run)
        if entry in self._returned:
            self._returned.remove(entry)
            heapify(self._returned)
        else:
            self._new.remove(run)
