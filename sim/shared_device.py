"""A device that shares its speed among the transfers under way: when another joins, all slow down.

Work is counted in solo-ns: what a transfer would take alone. With n transfers under way the device
does g(n) solo-ns of work in each ns (g is the profile's gain from concurrency, 1 where bandwidth is
all there is), an equal share of it for each, or where kinds of transfers have weights a share by
weight. A virtual clock (with weights one for each kind) counts what each active transfer has been
given, so a transfer ends when that clock has moved on by its work; nobody's remaining work is ever
rewritten.

    submitted -> waits for a worker -> latency (takes no bandwidth) -> active: shares -> finished

At most `workers` transfers hold a worker, the rest wait in the order of submission. All sums are
integers: the clock's unit is so small that every share is a whole number of it, so no rounding
depends on the order in which things happened. A finish is rounded up to the next whole ns. Two
transfers of 1 GiB on a device of 1 GiB/s, the second half a second after the first, end at 1.5 s
and 2.0 s.

A transfer that comes to an idle device needs no clock: its end is known, and one timer stands
there. When another comes, it is put where it would be if that had been expected. Whoever has a long
row of transfers for an idle device need not even bring them: as its `guest` it is called when
another transfer comes, and brings the one under way then.
"""

# pyright: reportPrivateUsage=false
# `Environment.now` is a property in Python; see hicache.kernel.
from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from heapq import heappop, heappush
from math import lcm
from typing import Any, Final, Generic, TypeVar

from simpy import Environment
from simpy.events import NORMAL

from sim.timer import Callbacks, Timer

T = TypeVar("T")

PERMILLE: Final = 1000


def no_gain(active: int) -> int:
    """The gain of a device whose bandwidth is the same however many share it."""
    return PERMILLE


class _Share(Generic[T]):
    """One transfer's place on the device."""

    __slots__ = (
        "ends_ns", "gain", "item", "kind", "latency_ns", "number", "ready_ns", "started_ns",
        "timer", "work_ns",
    )  # fmt: skip

    def __init__(self, item: T, number: int, work_ns: int, gain: Callable[[int], int]) -> None:
        self.item = item
        self.number = number
        self.work_ns = work_ns
        self.gain = gain
        self.kind = ""
        self.ready_ns = 0
        self.latency_ns = 0
        self.started_ns = 0
        # Of one that is alone, as far as is known.
        self.ends_ns = 0
        self.timer: Timer | None = None


class _End(Timer):
    """The end of a transfer that is alone."""

    __slots__ = ("share",)

    def __init__(
        self, env: Environment, delay_ns: int, callbacks: Callbacks, priority: int, share: Any
    ) -> None:
        self.share: Any = share
        super().__init__(env, delay_ns, callbacks, priority)


class _Clock(Generic[T]):
    """What each active transfer of a kind, or of any, has been given; and the active ones, as
    (clock at which it ends, number, share).
    """

    __slots__ = ("active", "moved", "speed")

    def __init__(self) -> None:
        self.moved = 0
        self.speed = 0
        self.active: list[tuple[int, int, _Share[T]]] = []


class SharedDevice(Generic[T]):
    """Calls `on_finish(item, started_ns, finished_ns)` for each item when its transfer is over.

    `mixed_permille`: the part of its work that the device does while transfers of different kinds
    are active. `weights`: of every kind, by which they share it then; None: all alike.
    """

    def __init__(
        self,
        env: Environment,
        workers: int,
        on_finish: Callable[[T, int, int], None],
        mixed_permille: int = PERMILLE,
        weights: Mapping[str, int] | None = None,
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
        self._scale = common * common
        self._at = int(env.now)
        self._weights = dict(weights) if weights is not None else {}
        self._clocks: dict[str, _Clock[T]] = {kind: _Clock() for kind in self._weights or ("",)}
        self._every = list(self._clocks.values())
        self._active = 0  # transfers on all clocks
        self._alone: _Share[T] | None = None  # the only transfer; it is on no clock
        # (time at which it becomes active, number, share).
        self._joining: list[tuple[int, int, _Share[T]]] = []
        self._waiting: deque[_Share[T]] = deque()
        self._timer: Timer | None = None
        self.guest: Callable[[], None] | None = None
        self._callbacks: Callbacks = [self._on_timer]
        self._alone_callbacks: Callbacks = [self._on_alone]

    @property
    def in_use(self) -> int:
        """Workers that hold a transfer now."""
        alone = self._alone
        if alone is not None:
            return 1 if alone.ends_ns >= self._env._now else 0
        return self._active + len(self._joining)

    @property
    def idle(self) -> bool:
        """Whether a transfer that comes now is the only one."""
        alone = self._alone
        if alone is not None:
            return alone.ends_ns < self._env._now
        return not (self._active or self._joining or self._waiting)

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
        place: int = 0,
    ) -> None:
        """Queue a transfer of `work_ns` (at least 1) solo-ns.

        `number` decides between transfers that end at once. `gain(n)`: thousandths of solo speed
        that n such transfers reach together. `ready_ns`: not before this time. `latency_ns`: from
        the start to the first byte. `place`: of an event one ns after the end, in which who waits
        for the end may be told as well; 0: at the end.
        """
        assert work_ns >= 1
        guest = self.guest
        if guest is not None:
            guest()
        share = _Share(item, number, work_ns, gain)
        share.kind, share.ready_ns, share.latency_ns = kind, ready_ns, latency_ns
        self._put_on_clock()
        if not (self._active or self._joining or self._waiting):
            self._begin_alone(share, place)
            return
        self._settle()
        self._waiting.append(share)
        self._rearrange()

    def take_up(
        self,
        item: T,
        number: int,
        work_ns: int,
        gain: Callable[[int], int],
        *,
        kind: str,
        started_ns: int,
        latency_ns: int,
    ) -> None:
        """Take the only transfer, which began at `started_ns` and has not ended. As `submit`."""
        self._put_on_clock()
        assert self.idle
        share = _Share(item, number, work_ns, gain)
        share.kind, share.latency_ns = kind, latency_ns
        share.started_ns = started_ns
        self._stand_alone(share, 0)

    def tell_at_once(self) -> None:
        """Who waits for the end of what is under way must be told at the end, whatever `place` it
        was submitted with.
        """
        if self._alone is not None:
            self._put_on_clock()
            self._settle()
            self._rearrange()

    def _begin_alone(self, share: _Share[T], place: int) -> None:
        """A transfer begins on an idle device."""
        now: int = self._env._now
        share.started_ns = share.ready_ns if share.ready_ns > now else now
        self._stand_alone(share, place)

    def _stand_alone(self, share: _Share[T], place: int) -> None:
        self._alone = share
        now: int = self._env._now
        share.ends_ns = share.started_ns + share.latency_ns + share.work_ns
        delay_ns = share.ends_ns - now + (1 if place else 0)
        share.timer = _End(self._env, delay_ns, self._alone_callbacks, place or NORMAL, share)

    def _on_alone(self, end: _End) -> None:
        share: _Share[T] = end.share
        if share.timer is not end:
            return
        share.timer = None
        if self._alone is share:
            self._alone = None
        self._on_finish(share.item, share.started_ns, share.ends_ns)

    def _put_on_clock(self) -> None:
        """The only transfer gets company: it goes to where it would be if it had been expected, if
        it is not over, and only to be told of.
        """
        share, self._alone = self._alone, None
        if share is None or share.ends_ns < self._env._now:
            return
        share.timer = None
        joins_ns = share.started_ns + share.latency_ns
        if joins_ns > self._env._now:
            heappush(self._joining, (joins_ns, share.number, share))
            return
        self._at = joins_ns
        self._activate(share)
        self._set_speeds()

    def _activate(self, share: _Share[T]) -> None:
        """A transfer takes its share from now on."""
        clock = self._clocks[share.kind if self._weights else ""]
        heappush(clock.active, (clock.moved + share.work_ns * self._units, share.number, share))
        self._active += 1

    def _settle(self) -> None:
        """Bring the virtual clocks to now."""
        now = self._env._now
        passed = now - self._at
        if passed:
            for clock in self._every:
                if clock.speed:
                    clock.moved += passed * clock.speed
            self._at = now

    def _on_timer(self, timer: Timer) -> None:
        if timer is self._timer:
            self._settle()
            self._rearrange()

    def _rearrange(self) -> None:
        """End what is done, begin what can, and set the timer to the next change."""
        now, joining = self._at, self._joining
        for clock in self._every:
            active = clock.active
            while active and active[0][0] <= clock.moved:
                _, _, share = heappop(active)
                self._active -= 1
                self._on_finish(share.item, share.started_ns, now)
        if self._alone is not None:
            return  # whoever was told has begun the next one, and nothing else is here
        while self._waiting and self._active + len(joining) < self.workers:
            share = self._waiting.popleft()
            share.started_ns = share.ready_ns if share.ready_ns > now else now
            heappush(joining, (share.started_ns + share.latency_ns, share.number, share))
        while joining and joining[0][0] <= now:
            self._activate(heappop(joining)[2])
        self._set_speeds()
        next_ns = joining[0][0] if joining else -1
        for clock in self._every:
            if clock.active:
                finish_ns = now - (clock.moved - clock.active[0][0]) // clock.speed
                if next_ns < 0 or finish_ns < next_ns:
                    next_ns = finish_ns
        self._timer = Timer(self._env, next_ns - now, self._callbacks) if next_ns >= 0 else None

    def _set_speeds(self) -> None:
        """Units by which the virtual clocks move in a ns: the mean gain of the active, shared."""
        count = self._active
        if count < 2:
            for clock in self._every:
                clock.speed = self._units if clock.active else 0
            return
        gains, kinds = 0, 0
        first: str | None = None
        for clock in self._every:
            for _, _, share in clock.active:
                gains += share.gain(count)
                if share.kind != first:
                    first, kinds = share.kind, kinds + 1
        mixed = self._mixed if kinds > 1 else PERMILLE
        weights = self._weights
        if kinds < 2 or not weights:
            for clock in self._every:
                clock.speed = gains * mixed * self._each[count] if clock.active else 0
            return
        whole = count * sum(len(self._clocks[kind].active) * weights[kind] for kind in weights)
        for kind, clock in self._clocks.items():
            # So many units that what is rounded away is nothing.
            share_of_each = gains * mixed * self._scale * weights[kind] // whole
            clock.speed = share_of_each if clock.active else 0
