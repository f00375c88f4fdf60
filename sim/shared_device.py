"""A device that shares its speed among the transfers under way: when another joins, all slow down.

Work is counted in solo-ns: what a transfer would take alone. With n transfers under way the device
does g(n) solo-ns of work in each ns (g is the profile's gain from concurrency, 1 where bandwidth is
all there is), an equal share of it for each. A virtual clock counts what each active transfer has
been given, so a transfer ends when that clock has moved on by its work; nobody's remaining work is
ever rewritten.

    submitted -> waits for a worker -> latency (takes no bandwidth) -> active: shares -> finished

At most `workers` transfers hold a worker, the rest wait in the order of submission. All sums are
integers: the clock's unit is so small that every share is a whole number of it, so no rounding
depends on the order in which things happened. A finish is rounded up to the next whole ns. Two
transfers of 1 GiB on a device of 1 GiB/s, the second half a second after the first, end at 1.5 s
and 2.0 s.
"""

# pyright: reportPrivateUsage=false
# `Environment.now` is a property in Python; see hicache.kernel.
from __future__ import annotations

from collections import deque
from collections.abc import Callable
from heapq import heappop, heappush
from math import lcm
from typing import Any, Generic, TypeVar

from simpy import Environment

from sim.timer import Callbacks, Timer

T = TypeVar("T")

PERMILLE = 1000


def no_gain(active: int) -> int:
    """The gain of a device whose bandwidth is the same however many share it."""
    return PERMILLE


class _Share(Generic[T]):
    """One transfer's place on the device."""

    __slots__ = (
        "gain",
        "item",
        "kind",
        "latency_ns",
        "number",
        "ready_ns",
        "started_ns",
        "work_ns",
    )

    def __init__(self, item: T, number: int, work_ns: int, gain: Callable[[int], int]) -> None:
        self.item = item
        self.number = number
        self.work_ns = work_ns
        self.gain = gain
        self.kind = ""
        self.ready_ns = 0
        self.latency_ns = 0
        self.started_ns = 0


class SharedDevice(Generic[T]):
    """Calls `on_finish(item, started_ns, finished_ns)` for each item when its transfer is over.

    `mixed_permille`: the part of its work that the device does while transfers of different kinds
    are active.
    """

    def __init__(
        self,
        env: Environment,
        workers: int,
        on_finish: Callable[[T, int, int], None],
        mixed_permille: int = PERMILLE,
    ) -> None:
        assert workers >= 1
        self.workers = workers
        self._env: Any = env  # its times are ints
        self._on_finish = on_finish
        self._mixed = mixed_permille
        common = lcm(*range(1, workers + 1))
        # The virtual clock's units in a solo-ns; and, for n active, what their mean gain counts in
        # them.
        self._units = PERMILLE * PERMILLE * common * common
        self._each = [0, *((common // n) ** 2 for n in range(1, workers + 1))]
        self._clock = 0
        self._at = int(env.now)
        self._speed = 0
        # (clock at which it ends, number, share); (time at which it becomes active, number, share).
        self._active: list[tuple[int, int, _Share[T]]] = []
        self._joining: list[tuple[int, int, _Share[T]]] = []
        self._waiting: deque[_Share[T]] = deque()
        self._timer: Timer | None = None
        self._callbacks: Callbacks = [self._on_timer]

    @property
    def in_use(self) -> int:
        """Workers that hold a transfer now."""
        return len(self._active) + len(self._joining)

    @property
    def waiting(self) -> int:
        """Transfers that wait for a worker now."""
        return len(self._waiting)

    def submit(
        self,
        item: T,
        number: int,
        work_ns: int,
        gain: Callable[[int], int] = no_gain,
        *,
        kind: str = "",
        ready_ns: int = 0,
        latency_ns: int = 0,
    ) -> None:
        """Queue a transfer of `work_ns` (at least 1) solo-ns.

        `number` decides between transfers that end at once. `gain(n)`: thousandths of solo speed
        that n such transfers reach together. `ready_ns`: not before this time. `latency_ns`: from
        the start to the first byte.
        """
        assert work_ns >= 1
        self._settle()
        share = _Share(item, number, work_ns, gain)
        share.kind, share.ready_ns, share.latency_ns = kind, ready_ns, latency_ns
        self._waiting.append(share)
        self._rearrange()

    def _settle(self) -> None:
        """Bring the virtual clock to now."""
        now = self._env._now
        self._clock += (now - self._at) * self._speed
        self._at = now

    def _on_timer(self, timer: Timer) -> None:
        if timer is self._timer:
            self._settle()
            self._rearrange()

    def _rearrange(self) -> None:
        """End what is done, begin what can, and set the timer to the next change."""
        now, active, joining = self._at, self._active, self._joining
        while active and active[0][0] <= self._clock:
            _, _, share = heappop(active)
            self._on_finish(share.item, share.started_ns, now)
        while self._waiting and self.in_use < self.workers:
            share = self._waiting.popleft()
            share.started_ns = share.ready_ns if share.ready_ns > now else now
            heappush(joining, (share.started_ns + share.latency_ns, share.number, share))
        while joining and joining[0][0] <= now:
            _, number, share = heappop(joining)
            heappush(active, (self._clock + share.work_ns * self._units, number, share))
        self._speed = self._speed_now()
        next_ns = joining[0][0] if joining else -1
        if active:
            finish_ns = now - (self._clock - active[0][0]) // self._speed
            if next_ns < 0 or finish_ns < next_ns:
                next_ns = finish_ns
        self._timer = Timer(self._env, next_ns - now, self._callbacks) if next_ns >= 0 else None

    def _speed_now(self) -> int:
        """Units by which the virtual clock moves in a ns: the mean gain of the active, shared."""
        active = self._active
        if not active:
            return 0
        count = len(active)
        if count == 1:
            return PERMILLE * PERMILLE * self._each[1]
        gains = 0
        kind, mixed = active[0][2].kind, False
        for _, _, share in active:
            gains += share.gain(count)
            mixed = mixed or share.kind != kind
        return gains * (self._mixed if mixed else PERMILLE) * self._each[count]
