"""The link between L1 and L2: two directions, each like a CUDA stream, that slow each other.

                   before the stream            on the stream           behind it
    h2d staged     CPU gather, if scattered     DMA + scatter kernel    -
    d2h staged     -                            gather kernel + DMA     CPU scatter, if scattered
    kernel         -                            zero-copy kernel        -
    dma            -                            one memory copy for each extent
    backend        -                            a whole operation of a back-end, as measured

Scattered: host pages that are not consecutive (extents > 1, or a layout of L2 in which a run of
pages lies in several pieces: `sim.host_pieces`). While both directions have a transfer
on their stream each goes at the duplex rate, from the moment the other begins to the moment it
ends; the gather kernel (3 to 6 % of the DMA on an H200) is slowed with it. So it is with a GPU step
that goes on, where the profile knows what it takes of a copy (`sim.contention`).

Where both directions of a run share one back-end (`pcie.backends.at_once` is 1, as it was once) one
copy goes at a time, whoever is ready first, and of two that wait the one of the other direction.
"""

# pyright: reportPrivateUsage=false
# `Environment.now` is a property in Python; see hicache.kernel.
from __future__ import annotations

from collections.abc import Callable
from typing import Any

from simpy import Environment

from hicache.errors import InputError
from hicache.kernel import Pending
from hicache.operations import Completion, Copy, Direction
from scenario.profile import BackendCopies, PcieProfile
from scenario.transfer_mode import TransferMode
from sim.contention import IDLE, PERMILLE, Contention
from sim.finish import report
from sim.host import Host
from sim.host_pieces import HostPieces
from sim.layered import Trail
from sim.link_ways import NEVER, Loaded, PageTimes, Transfer, Way
from sim.ranges import RangeWatch
from sim.timer import Callbacks, Timer

# Called with when the copy at the head of h2d and of d2h begins; NEVER: none does.
Told = Callable[[int, int], None]


class Link:
    """Serves `h2d` and `d2h` copies. Raises InputError for a mode that was not sampled."""

    def __init__(
        self,
        env: Environment,
        profile: PcieProfile,
        host: Host,
        mode: TransferMode = "staged",
        backend: str = "auto",
        contention: Contention | None = None,
        watch: RangeWatch | None = None,
        pieces: HostPieces | None = None,
    ) -> None:
        self._env: Any = env  # its times are ints
        self._pieces = pieces
        self._watch = watch or RangeWatch()
        self._host = host
        self._mode: TransferMode = mode
        if mode == "kernel" and (profile.zero_copy_h2d is None or profile.zero_copy_d2h is None):
            raise InputError(
                'machine.transfer_mode is "kernel": the profile has no samples of zero-copy '
                'kernels; use "staged" or "dma"'
            )
        duplex_bytes_per_s = profile.duplex_bytes_per_s.value
        if mode == "backend":
            copies = _measured(profile, backend)
            down, up = _page_times(copies, "h2d"), _page_times(copies, "d2h")
            self._down = Way(mode, copies.h2d_scattered, None, None, down)
            self._up = Way(mode, copies.d2h_scattered, None, None, up)
            duplex_bytes_per_s = copies.duplex_bytes_per_s.value
        else:
            pack = profile.gather_scatter
            self._down = Way(mode, profile.h2d, profile.zero_copy_h2d, pack)
            self._up = Way(mode, profile.d2h, profile.zero_copy_d2h, pack)
        self._ways = (self._down, self._up)
        alone = (PERMILLE, PERMILLE, PERMILLE)
        self._down.share(duplex_bytes_per_s, contention.h2d if contention is not None else alone)
        self._up.share(duplex_bytes_per_s, contention.d2h if contention is not None else alone)
        self._in_turn = mode == "backend" and _at_once(profile) == 1
        self._last = self._up  # of a link that carries one copy at a time: who went last
        # What the GPU does, and since when or from when on; whom to tell when copies begin.
        self._step = IDLE
        self._step_ns = 0
        self.told: Told | None = None
        self._said = (NEVER, NEVER)
        self._at = 0
        self._timer: Timer | None = None
        self._timer_ns = 0
        self._end_ns = 0
        self._callbacks: Callbacks = [self._on_timer]
        self._after_callbacks: Callbacks = [self._on_scattered]

    def submit(self, pending: Pending[Completion], operation: Copy, ready_ns: int) -> None:
        """Take a copy that the engine has ready at `ready_ns`."""
        started_ns = -1
        counted = self._pieces
        pieces = operation.extents if counted is None else counted.on_link(operation)
        if operation.direction == "h2d":
            way = self._down
            if pieces > 1 and self._mode == "staged":
                started_ns, ready_ns = self._host.copy(ready_ns, operation.size_bytes)
        else:
            way = self._up
        if operation.size_bytes > way.largest_bytes:
            self._beyond(operation, way, pieces)
        if operation.extents > 1 and operation.size_bytes < operation.pages * way.least_page_bytes:
            self._watch.finer(
                f"bytes of each page of a copy in pieces ({operation.direction})",
                operation.size_bytes // operation.pages, way.least_page_bytes,
            )  # fmt: skip
        took_ns = way.alone_ns(operation, pieces)
        transfer = Transfer(pending, operation, ready_ns, started_ns, took_ns, pieces)
        if way.head is not None:
            way.queue.append(transfer)
            return
        now = self._env._now
        self._settle(now)
        self._enter(way, transfer, now)
        if self._in_turn:
            self._take_turns(now)
        self._set_timer(now)

    def beside(self, step: int, begin_ns: int) -> None:
        """From `begin_ns` on the GPU does `step` (`sim.contention`), until this is called again."""
        now = self._env._now
        busy = self._down.head is not None or self._up.head is not None
        if busy:
            self._settle(now)
        self._step, self._step_ns = step, begin_ns
        if busy:
            self._set_timer(now)

    def _beyond(self, operation: Copy, way: Way, pieces: int) -> None:
        """Count a copy that is larger than any sample: its time is on the last piece's line."""
        asked = operation.size_bytes
        if self._mode == "dma":
            asked //= max(1, pieces)
        largest = way.largest_of(operation)
        if asked > largest:
            self._watch.above(f"bytes of a copy ({operation.direction})", asked, largest)

    def watch(self, number: int, loaded: Loaded) -> bool:
        """Call `loaded` with the rest of the way of h2d copy `number` when it has left its stream;
        False if it is not on its way (any more).
        """
        head = self._down.head
        for transfer in ([head] if head is not None else []) + list(self._down.queue):
            if transfer.pending.number == number:
                now = self._env._now
                self._settle(now)
                transfer.loaded = loaded
                transfer.trail = trail = Trail(transfer.whole)
                if transfer is head and transfer.begin_ns <= now:
                    trail.mark(now, transfer.left)
                return True
        return False

    @staticmethod
    def _enter(way: Way, transfer: Transfer, now: int) -> None:
        """Put a transfer at the head of its stream; it begins when it is ready."""
        transfer.begin_ns = transfer.ready_ns if transfer.ready_ns > now else now
        way.head = transfer

    def _take_turns(self, now: int) -> None:
        """Of two heads one begins, and the other not before that one has ended."""
        down, up = self._down.head, self._up.head
        if down is None or up is None:
            only = down or up
            if only is not None and only.begin_ns == NEVER:
                only.begin_ns = only.ready_ns if only.ready_ns > now else now
            return
        down_ns = down.ready_ns if down.ready_ns > now else now
        up_ns = up.ready_ns if up.ready_ns > now else now
        if down.left < down.whole or up.left < up.whole:
            first = self._down if down.left < down.whole else self._up
        elif down_ns == up_ns:
            first = self._down if self._last is self._up else self._up
        else:
            first = self._down if down_ns < up_ns else self._up
        if first is self._down:
            down.begin_ns, up.begin_ns = min(down.begin_ns, down_ns), NEVER
        else:
            down.begin_ns, up.begin_ns = NEVER, min(up.begin_ns, up_ns)

    def _settle(self, now: int) -> None:
        """Take the work done since the last look off both heads."""
        at, self._at = self._at, now
        down, up = self._down.head, self._up.head
        while at < now:
            until, down_on, up_on, speeds = self._stretch(at, down, up)
            until = now if until < 0 else min(until, now)
            if down is not None and down_on:
                if down.left == down.whole:
                    self._begun(self._down, down, at)
                down.left -= (until - at) * self._down.speeds[speeds]
                if down.trail is not None:
                    down.trail.mark(until, down.left)
            if up is not None and up_on:
                if up.left == up.whole:
                    self._begun(self._up, up, at)
                up.left -= (until - at) * self._up.speeds[speeds]
            at = until

    def _begun(self, way: Way, transfer: Transfer, at: int) -> None:
        """A transfer is on its stream for the first time."""
        self._last = way
        if transfer.trail is not None:
            transfer.trail.mark(at, transfer.left)

    def _set_timer(self, now: int) -> None:
        """Set the timer to the next end of a head, given what is known now; tell the GPU.

        One that stands there too early stays, and is set anew when it comes.
        """
        down, up = self._down.head, self._up.head
        if self.told is not None:
            said = (down.begin_ns if down is not None else NEVER,
                    up.begin_ns if up is not None else NEVER)  # fmt: skip
            if said != self._said:
                self._said = said
                self.told(*said)
        if down is None and up is None:
            self._timer = None
            return
        self._end_ns = end_ns = self._next_end(now, down, up)
        if self._timer is None or self._timer_ns > end_ns:
            self._timer = Timer(self._env, end_ns - now, self._callbacks)
            self._timer_ns = end_ns

    def _next_end(self, at: int, down: Transfer | None, up: Transfer | None) -> int:
        """The next end: run ahead from one beginning to the next."""
        down_left = down.left if down is not None else 0
        up_left = up.left if up is not None else 0
        while True:
            until, down_on, up_on, speeds = self._stretch(at, down, up)
            down_speed, up_speed = self._down.speeds[speeds], self._up.speeds[speeds]
            end = -1
            # Who has nothing left ends now, also where the last ns at full speed did too much.
            if down_on:
                end = at - (-down_left // down_speed) if down_left > 0 else at
            if up_on:
                up_end = at - (-up_left // up_speed) if up_left > 0 else at
                if end < 0 or up_end < end:
                    end = up_end
            if end >= 0 and (until < 0 or end <= until):
                return end
            if down_on:
                down_left -= (until - at) * down_speed
            if up_on:
                up_left -= (until - at) * up_speed
            at = until

    def _stretch(
        self, at: int, down: Transfer | None, up: Transfer | None
    ) -> tuple[int, bool, bool, int]:
        """When the next begins after `at` (-1: none), which directions are busy until then, and
        which of their speeds holds.
        """
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
        speeds = 3 if down_on and up_on else 0
        if self._step != IDLE:
            if self._step_ns <= at:
                speeds += self._step
            elif until < 0 or self._step_ns < until:
                until = self._step_ns
        return until, down_on, up_on, speeds

    def _on_timer(self, timer: Timer) -> None:
        if timer is not self._timer:
            return
        now = self._env._now
        if self._end_ns > now:
            self._timer = Timer(self._env, self._end_ns - now, self._callbacks)
            self._timer_ns = self._end_ns
            return
        self._timer = None
        self._settle(now)
        for way in self._ways:
            head = way.head
            if head is None or head.left > 0 or head.begin_ns > now:
                continue
            way.head = None
            if head.started_ns < 0:
                head.started_ns = head.begin_ns
            if way.queue:
                self._enter(way, way.queue.popleft(), now)
            self._ended(head, now)
        if self._in_turn:
            self._take_turns(now)
        self._set_timer(now)

    def _ended(self, transfer: Transfer, now: int) -> None:
        """A transfer has left its stream: report it, or scatter its pages on the host first."""
        operation = transfer.operation
        if operation.direction == "d2h" and transfer.pieces > 1 and self._mode == "staged":
            _, end_ns = self._host.copy(now, operation.size_bytes)
            _Scatter(self._env, end_ns - now, self._after_callbacks, transfer)
        else:
            report(transfer.pending, operation, transfer.started_ns, now)
            trail, loaded = transfer.trail, transfer.loaded
            if trail is not None and loaded is not None:
                loaded(trail)

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
        transfer: Transfer,
    ) -> None:
        self.transfer = transfer
        super().__init__(env, delay_ns, callbacks)


def _page_times(copies: BackendCopies, way: Direction) -> list[PageTimes]:
    """What was measured of one direction, by the size of pages, ascending."""
    by_page: dict[int, list[list[tuple[int, int]]]] = {}
    if copies.by_page is not None:
        for place, name in enumerate((way, f"{way}_scattered")):
            for page_bytes, size_bytes, ns in getattr(copies.by_page, name).points:
                by_page.setdefault(page_bytes, [[], []])[place].append((size_bytes, ns))
    times = [PageTimes(page_bytes, *both) for page_bytes, both in by_page.items()]
    run, scattered = getattr(copies, way), getattr(copies, f"{way}_scattered")
    times.append(PageTimes(copies.page_bytes, run.points, scattered.points))
    return sorted(times, key=lambda each: each.page_bytes)


def _at_once(profile: PcieProfile) -> int:
    """How many copies of both directions a run has under way."""
    backends = profile.backends
    return 2 if backends is None or backends.at_once is None else backends.at_once.value


def _measured(profile: PcieProfile, name: str) -> BackendCopies:
    """The back-end of that name. Raises InputError where it was not measured."""
    backends = profile.backends
    found: BackendCopies | None = None
    if backends is not None:
        found = getattr(backends, name, None)
    if found is None:
        raise InputError(
            f'machine.transfer_mode is "backend" and hw.transfers "{name}": the profile has no '
            "measured operations of that back-end; hicache calibrate makes one that has, or use "
            '"staged", "kernel" or "dma"'
        )
    return found
