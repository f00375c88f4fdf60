"""The link between L1 and L2: two directions, each like a CUDA stream, that slow each other.

                 before the stream            on the stream                    behind it
    h2d staged   CPU gather, if scattered     DMA + scatter kernel             - d2h staged   -
    gather kernel + DMA              CPU scatter, if scattered kernel       -
    zero-copy kernel                 - dma          -                            one memory copy for
    each extent  -

Scattered: host pages that are not consecutive (extents > 1). While both directions have a transfer
on their stream each goes at the duplex rate, from the moment the other begins to the moment it
ends; the gather kernel (3 to 6 % of the DMA on an H200) is slowed with it. A kernel's use of the
GPU does not slow steps.
"""

# pyright: reportPrivateUsage=false
# `Environment.now` is a property in Python; see hicache.kernel.
from __future__ import annotations

from collections import deque
from typing import Any, Literal

from simpy import Environment

from hicache.errors import InputError
from hicache.kernel import Pending
from hicache.operations import Completion, Copy
from scenario.profile import Curve, PcieProfile
from sim.curves import line
from sim.finish import report
from sim.host import Host
from sim.timer import Callbacks, Timer

TransferMode = Literal["staged", "kernel", "dma"]
FULL_SPEED = 1000
MOST_KNOWN = 10_000


class _Transfer:
    """One copy on its way. `left` is work in thousandths of a ns at full speed."""

    __slots__ = ("begin_ns", "left", "operation", "pending", "ready_ns", "started_ns")

    def __init__(
        self,
        pending: Pending[Completion],
        operation: Copy,
        ready_ns: int,
        started_ns: int,
        work_ns: int,
    ) -> None:
        self.pending = pending
        self.operation = operation
        # When it may enter the stream; when its first part (perhaps a CPU gather) begins, -1: on
        # the stream.
        self.ready_ns = ready_ns
        self.started_ns = started_ns
        self.begin_ns = 0
        self.left = work_ns * FULL_SPEED


class _Way:
    """One direction: its stream, and what a transfer on it takes alone."""

    def __init__(
        self, mode: TransferMode, copy: Curve, kernel: Curve | None, pack: Curve | None
    ) -> None:
        self._mode: TransferMode = mode
        curve = copy
        if mode == "kernel":
            assert kernel is not None
            curve = kernel
        self._alone = line(curve.points)
        self._pack = line(pack.points) if pack is not None and mode == "staged" else None
        self._peak = curve.points[-1][0] * 1e9 / curve.points[-1][1]
        # Speed while the other direction is busy too, in thousandths.
        self.shared_speed = FULL_SPEED
        self._known: dict[tuple[int, int], int] = {}  # times by size and extents
        self.head: _Transfer | None = None
        self.queue: deque[_Transfer] = deque()

    def share(self, duplex_bytes_per_s: int) -> None:
        """Set the speed while both directions are busy; never above this direction's own."""
        self.shared_speed = max(
            1, min(FULL_SPEED, int(duplex_bytes_per_s * 1000 / self._peak + 0.5))
        )

    def alone_ns(self, operation: Copy) -> int:
        """What the copy takes on its stream while the other direction is idle."""
        known = self._known.get((operation.size_bytes, operation.extents))
        if known is not None:
            return known
        if self._mode == "dma" and operation.extents > 1:
            ns = operation.extents * self._alone.at(operation.size_bytes / operation.extents)
        else:
            ns = self._alone.at(operation.size_bytes)
        if self._pack is not None:
            ns += self._pack.at(operation.size_bytes)
        known = max(1, int(ns + 0.5))
        if len(self._known) < MOST_KNOWN:
            self._known[operation.size_bytes, operation.extents] = known
        return known


class Link:
    """Serves `h2d` and `d2h` copies. Raises InputError for a mode that was not sampled."""

    def __init__(
        self, env: Environment, profile: PcieProfile, host: Host, mode: TransferMode = "staged"
    ) -> None:
        self._env: Any = env  # its times are ints
        self._host = host
        self._mode: TransferMode = mode
        if mode == "kernel" and (profile.zero_copy_h2d is None or profile.zero_copy_d2h is None):
            raise InputError(
                'machine.transfer_mode is "kernel": the profile has no samples of zero-copy '
                'kernels; use "staged" or "dma"'
            )
        self._down = _Way(mode, profile.h2d, profile.zero_copy_h2d, profile.gather_scatter)
        self._up = _Way(mode, profile.d2h, profile.zero_copy_d2h, profile.gather_scatter)
        self._ways = (self._down, self._up)
        for way in self._ways:
            way.share(profile.duplex_bytes_per_s.value)
        self._at = 0
        self._timer: Timer | None = None
        self._callbacks: Callbacks = [self._on_timer]
        self._after_callbacks: Callbacks = [self._on_scattered]

    def submit(self, pending: Pending[Completion], operation: Copy, ready_ns: int) -> None:
        """Take a copy that the engine has ready at `ready_ns`."""
        started_ns = -1
        if operation.direction == "h2d":
            way = self._down
            if operation.extents > 1 and self._mode == "staged":
                started_ns, ready_ns = self._host.copy(ready_ns, operation.size_bytes)
        else:
            way = self._up
        transfer = _Transfer(pending, operation, ready_ns, started_ns, way.alone_ns(operation))
        if way.head is not None:
            way.queue.append(transfer)
            return
        now = self._env._now
        self._settle(now)
        self._enter(way, transfer, now)
        self._set_timer(now)

    @staticmethod
    def _enter(way: _Way, transfer: _Transfer, now: int) -> None:
        """Put a transfer at the head of its stream; it begins when it is ready."""
        transfer.begin_ns = transfer.ready_ns if transfer.ready_ns > now else now
        if transfer.started_ns < 0:
            transfer.started_ns = transfer.begin_ns
        way.head = transfer

    def _settle(self, now: int) -> None:
        """Take the work done since the last look off both heads."""
        at, self._at = self._at, now
        down, up = self._down.head, self._up.head
        while at < now:
            until, down_on, up_on = _stretch(at, down, up)
            until = now if until < 0 else min(until, now)
            both = down_on and up_on
            if down is not None and down_on:
                down.left -= (until - at) * (self._down.shared_speed if both else FULL_SPEED)
            if up is not None and up_on:
                up.left -= (until - at) * (self._up.shared_speed if both else FULL_SPEED)
            at = until

    def _set_timer(self, now: int) -> None:
        """Set the timer to the next end of a head, given what is known now."""
        down, up = self._down.head, self._up.head
        if down is None or up is None:
            only = down or up
            if only is None:
                self._timer = None
                return
            begin = only.begin_ns if only.begin_ns > now else now
            end = begin - (-only.left // FULL_SPEED)
        else:
            end = self._next_end(now, down, up)
        self._timer = Timer(self._env, end - now, self._callbacks)

    def _next_end(self, at: int, down: _Transfer, up: _Transfer) -> int:
        """The next end with a transfer on each side: run ahead from one beginning to the next."""
        down_left, up_left = down.left, up.left
        while True:
            until, down_on, up_on = _stretch(at, down, up)
            both = down_on and up_on
            down_speed = self._down.shared_speed if both else FULL_SPEED
            up_speed = self._up.shared_speed if both else FULL_SPEED
            ends = []
            if down_on:
                ends.append(at - (-down_left // down_speed))
            if up_on:
                ends.append(at - (-up_left // up_speed))
            if ends and (until < 0 or min(ends) <= until):
                return min(ends)
            if down_on:
                down_left -= (until - at) * down_speed
            if up_on:
                up_left -= (until - at) * up_speed
            at = until

    def _on_timer(self, timer: Timer) -> None:
        if timer is not self._timer:
            return
        now = self._env._now
        self._settle(now)
        for way in self._ways:
            head = way.head
            if head is None or head.left > 0 or head.begin_ns > now:
                continue
            way.head = None
            if way.queue:
                self._enter(way, way.queue.popleft(), now)
            self._ended(head, now)
        self._set_timer(now)

    def _ended(self, transfer: _Transfer, now: int) -> None:
        """A transfer has left its stream: report it, or scatter its pages on the host first."""
        operation = transfer.operation
        if operation.direction == "d2h" and operation.extents > 1 and self._mode == "staged":
            _, end_ns = self._host.copy(now, operation.size_bytes)
            _Scatter(self._env, end_ns - now, self._after_callbacks, transfer)
        else:
            report(transfer.pending, operation, transfer.started_ns, now)

    def _on_scattered(self, timer: _Scatter) -> None:
        transfer = timer.transfer
        report(transfer.pending, transfer.operation, transfer.started_ns, self._env._now)


class _Scatter(Timer):
    """The end of a CPU scatter behind a D2H."""

    __slots__ = ("transfer",)

    def __init__(
        self,
        env: Environment,
        delay_ns: int,
        callbacks: Callbacks,
        transfer: _Transfer,
    ) -> None:
        self.transfer = transfer
        super().__init__(env, delay_ns, callbacks)


def _stretch(at: int, down: _Transfer | None, up: _Transfer | None) -> tuple[int, bool, bool]:
    """When the next begins after `at` (-1: none), and which directions are busy until then."""
    until = -1
    down_on = up_on = False
    if down is not None:
        down_on = down.begin_ns <= at
        if not down_on:
            until = down.begin_ns
    if up is not None:
        up_on = up.begin_ns <= at
        if not up_on and (until < 0 or up.begin_ns < until):
            until = up.begin_ns
    return until, down_on, up_on
