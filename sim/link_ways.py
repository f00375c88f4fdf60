"""One direction of the link: its stream, what a copy on it takes alone, and how fast it goes now.

    speed      = (all, or the duplex rate while the other direction is busy)
                 * what a GPU step leaves of it, where the profile knows

A measured back-end's operation takes what its curve for runs says, and for each extent more the
difference that scattered pages of its samples make. Where pages of several sizes were measured,
those of a size between two take, by their number, a time between those of both; smaller ones than
all are as many more pieces. Refuses to know time: `sim.pcie` moves copies.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from typing import Final

from hicache.kernel import Pending
from hicache.operations import Completion, Copy
from scenario.profile import Curve
from scenario.transfer_mode import TransferMode
from sim.curves import line
from sim.layered import Trail

Loaded = Callable[[Trail], None]
Points = Sequence[tuple[int, int]]
FULL_SPEED = 1000
MOST_KNOWN = 10_000
NEVER: Final = 1 << 61  # what compiled code holds in a register


class Transfer:
    """One copy on its way. `left` is work in thousandths of a ns at full speed."""

    __slots__ = (
        "begin_ns", "left", "loaded", "operation", "pending", "pieces", "ready_ns", "started_ns",
        "trail", "whole",
    )  # fmt: skip

    def __init__(
        self,
        pending: Pending[Completion],
        operation: Copy,
        ready_ns: int,
        started_ns: int,
        work_ns: int,
        pieces: int,
    ) -> None:
        self.pending = pending
        self.operation = operation
        self.pieces = pieces
        # When it may enter the stream; when its first part (perhaps a CPU gather) begins, -1: on
        # the stream.
        self.ready_ns = ready_ns
        self.started_ns = started_ns
        self.begin_ns = 0
        self.left = self.whole = work_ns * FULL_SPEED
        # How it came, and whom to tell that it is there: a prefill that waits for its layers.
        self.trail: Trail | None = None
        self.loaded: Loaded | None = None


class PageTimes:
    """Whole operations of a back-end one way, in pages of one size."""

    __slots__ = ("page_bytes", "run", "scattered")

    def __init__(self, page_bytes: int, run: Points, scattered: Points) -> None:
        """Samples (bytes, ns) of consecutive pages, and of pages of which no two are neighbours."""
        self.page_bytes = page_bytes
        self.run = line(run)
        self.scattered = line(scattered)

    def ns(self, size_bytes: int, pieces: int) -> float:
        """Of an operation in so many pieces."""
        ns = self.run.at(size_bytes)
        if pieces > 1:
            more_pages = max(1.0, size_bytes / self.page_bytes - 1)
            more_ns = self.scattered.at(size_bytes) - ns
            if more_ns > 0.0:
                ns += more_ns * (pieces - 1) / more_pages
        return ns


class Way:
    """One direction: its stream, and what a transfer on it takes alone."""

    def __init__(
        self,
        mode: TransferMode,
        copy: Curve,
        kernel: Curve | None,
        pack: Curve | None,
        measured: Sequence[PageTimes] = (),
    ) -> None:
        """`measured`: a back-end's operations by the size of its pages, ascending; the curves are
        not asked then, but for the `copy` that the duplex rate refers to.
        """
        self._mode: TransferMode = mode
        self._measured = tuple(measured)
        # Scattered pages of less than so many bytes were not measured; 0: no page counts.
        self.least_page_bytes = self._measured[0].page_bytes if self._measured else 0
        curve = copy
        if mode == "kernel":
            assert kernel is not None
            curve = kernel
        self._alone = line(curve.points)
        self._pack = line(pack.points) if pack is not None and mode == "staged" else None
        # The largest copy of which every part was sampled: of one extent in mode "dma", and in
        # pages of any size where several were measured (`largest_of` knows which).
        self.largest_bytes = int(self._alone.xs[-1])
        if self._measured:
            self.largest_bytes = min(int(each.run.xs[-1]) for each in self._measured)
        if self._pack is not None:
            self.largest_bytes = min(self.largest_bytes, int(self._pack.xs[-1]))
        self._peak = curve.points[-1][0] * 1e9 / curve.points[-1][1]
        # In thousandths: by what the GPU does, then the same while the other direction is busy.
        self.speeds = [FULL_SPEED] * 6
        self._known: dict[tuple[int, int], int] = {}  # times by size and extents
        self.head: Transfer | None = None
        self.queue: deque[Transfer] = deque()

    def share(self, duplex_bytes_per_s: int, beside_steps: tuple[int, int, int]) -> None:
        """Set the speeds: what both directions reach each, but never more than this one alone; and
        what a GPU step leaves of it, by what the step is (`sim.contention`).
        """
        shared = max(1, min(FULL_SPEED, int(duplex_bytes_per_s * 1000 / self._peak + 0.5)))
        self.speeds = [
            max(1, speed * kept // FULL_SPEED)
            for speed in (FULL_SPEED, shared)
            for kept in beside_steps
        ]

    def alone_ns(self, operation: Copy, pieces: int = 0) -> int:
        """What the copy takes on its stream while the other direction is idle. `pieces`: in which
        its pages lie, if these are not its extents.
        """
        if not pieces:
            pieces = operation.extents
        known = self._known.get((operation.size_bytes, pieces))
        if known is not None:
            return known
        if self._measured:
            ns = self._by_page(operation, pieces)
        elif self._mode == "dma" and pieces > 1:
            ns = pieces * self._alone.at(operation.size_bytes / pieces)
        else:
            ns = self._alone.at(operation.size_bytes)
        if self._pack is not None:
            ns += self._pack.at(operation.size_bytes)
        known = max(1, int(ns + 0.5))
        if len(self._known) < MOST_KNOWN:
            self._known[operation.size_bytes, pieces] = known
        return known

    def largest_of(self, operation: Copy) -> int:
        """`largest_bytes` of copies in such pages."""
        if not self._measured:
            return self.largest_bytes
        small, large = self._beside(operation.size_bytes / max(1, operation.pages))
        return min(int(small.run.xs[-1]), int(large.run.xs[-1]))

    def _beside(self, page_bytes: float) -> tuple[PageTimes, PageTimes]:
        """The measured sizes of pages on either side of one; the same twice at one that was
        measured, and beyond all of them.
        """
        sizes, place = self._measured, 0
        while place < len(sizes) - 1 and sizes[place].page_bytes < page_bytes:
            place += 1
        large = sizes[place]
        if place == 0 or large.page_bytes <= page_bytes:
            return large, large
        return sizes[place - 1], large

    def _by_page(self, operation: Copy, pieces: int) -> float:
        """In pages of a size that was measured, or between the two sizes beside it: at the same
        part of the way from one to the other as its number of pages.
        """
        size_bytes = operation.size_bytes
        page_bytes = size_bytes / max(1, operation.pages)
        small, large = self._beside(page_bytes)
        ns = large.ns(size_bytes, pieces)
        if small is large:
            return ns
        fewest, most = 1 / large.page_bytes, 1 / small.page_bytes
        part = (1 / page_bytes - fewest) / (most - fewest)
        return ns + (small.ns(size_bytes, pieces) - ns) * part
