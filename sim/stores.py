"""A store that several engines share: who gets how much of it, and when it is there.

    engine A -- StoreClient \\            client rate: what one engine can move at most
    engine B -- StoreClient --- SharedStore
    engine C -- StoreClient /            total rate: what all of them can have

Clients with transfers under way share the total equally, each up to its own rate; a client's
transfers share what it gets. On a "shared" medium reads and writes take from one total: each
direction of a client counts as one that shares, and gets its part of its own direction's total.

    submitted -> waits for a worker -> latency, page by page (no bandwidth) -> shares -> finished

All numbers are integers; rates are in millionths of a byte/s, so that equal shares lose next to
nothing. Two reads of 1 GiB at 1 GiB/s, the second half a second after the first, end at 1.5 s and
2.0 s. What is in a store, and what leaves it, `hicache.store_contents` knows, and `sim.keyed_store`
answers questions; this module knows time.
"""

# pyright: reportPrivateUsage=false
# `Environment.now` is a property in Python; see hicache.kernel.
from __future__ import annotations

from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Any

from simpy import Environment

from hicache.kernel import Pending
from hicache.operations import Completion, Copy
from scenario.stores import StoreProfile
from sim.finish import OnFinish, report
from sim.timer import Callbacks, Timer

MILLION = 1_000_000
BILLION = 1_000_000_000
READ, WRITE = 0, 1


class _Transfer:
    """One copy on its way. `left`: bytes to go, in units of 1e-15 byte."""

    __slots__ = (
        "client", "delay_ns", "direction", "joins_ns", "left", "number", "on_finish", "ready_ns",
        "started_ns",
    )  # fmt: skip

    def __init__(
        self,
        client: StoreClient,
        direction: int,
        size_bytes: int,
        number: int,
        on_finish: Callable[[int, int], None],
    ) -> None:
        self.client = client
        self.direction = direction
        self.left = size_bytes * MILLION * BILLION
        self.number = number
        self.on_finish = on_finish
        self.ready_ns = self.delay_ns = self.started_ns = self.joins_ns = 0


class SharedStore:
    """The store's side: all transfers of all clients."""

    def __init__(self, env: Environment, profile: StoreProfile) -> None:
        self.profile = profile
        self._env: Any = env  # its times are ints
        self._client_rates = (
            profile.read_client_bytes_per_s.value * MILLION,
            profile.write_client_bytes_per_s.value * MILLION,
        )
        self._total_rates = (
            profile.read_total_bytes_per_s.value * MILLION,
            profile.write_total_bytes_per_s.value * MILLION,
        )
        self._shared = profile.medium == "shared"
        self._clients: list[StoreClient] = []
        self._joining: list[_Transfer] = []
        self._active: list[_Transfer] = []
        self._rates: list[int] = []  # of the active, in their order, 1e-15 byte/ns
        self._at = int(env.now)
        self._timer: Timer | None = None
        self._callbacks: Callbacks = [self._on_timer]
        self.moved_bytes = [0, 0]

    def client(self, ranks: int = 1) -> StoreClient:
        """One more engine's way to the store: `ranks` processes on one host, each with workers of
        its own; they share the client's rate.
        """
        made = StoreClient(self._env, self, len(self._clients), ranks)
        self._clients.append(made)
        return made

    @property
    def under_way(self) -> int:
        """Transfers that hold a worker now."""
        return len(self._joining) + len(self._active)

    def begin(self, transfer: _Transfer) -> None:
        """A transfer has its worker: from `ready_ns` on it runs."""
        self._settle()
        now = self._at
        transfer.started_ns = transfer.ready_ns if transfer.ready_ns > now else now
        transfer.joins_ns = transfer.started_ns + transfer.delay_ns
        self._joining.append(transfer)
        self._rearrange()

    def _settle(self) -> None:
        """Bring what is left of each active transfer to now."""
        now = self._env._now
        passed = now - self._at
        if passed:
            for transfer, rate in zip(self._active, self._rates, strict=True):
                transfer.left -= rate * passed
            self._at = now

    def _on_timer(self, timer: Timer) -> None:
        if timer is self._timer:
            self._settle()
            self._rearrange()

    def _rearrange(self) -> None:
        """End what is done, begin what can, and set the timer to the next change."""
        now = self._at
        done = [each for each in self._active if each.left <= 0]
        if done:
            self._active = [each for each in self._active if each.left > 0]
        ready = [each for each in self._joining if each.joins_ns <= now]
        if ready:
            self._joining = [each for each in self._joining if each.joins_ns > now]
            self._active += sorted(ready, key=lambda each: (each.joins_ns, each.number))
        self._rates = self._shares()
        next_ns = min((each.joins_ns for each in self._joining), default=-1)
        for transfer, rate in zip(self._active, self._rates, strict=True):
            finish_ns = now - (-transfer.left // rate)
            if next_ns < 0 or finish_ns < next_ns:
                next_ns = finish_ns
        self._timer = Timer(self._env, next_ns - now, self._callbacks) if next_ns >= 0 else None
        for transfer in sorted(done, key=lambda each: each.number):
            transfer.on_finish(transfer.started_ns, now)

    def _shares(self) -> list[int]:
        """What each active transfer gets now: units of `left` in a ns."""
        counts: dict[tuple[int, int], int] = {}  # by client and direction
        for transfer in self._active:
            key = (transfer.client.number, transfer.direction)
            counts[key] = counts.get(key, 0) + 1
        sharing = [0, 0]
        for _, direction in counts:
            sharing[direction] += 1
        if self._shared:
            sharing = [sum(sharing)] * 2
        rates: list[int] = []
        for transfer in self._active:
            direction = transfer.direction
            part = self._total_rates[direction] // sharing[direction]
            rate = min(self._client_rates[direction], part)
            rates.append(max(1, rate // counts[transfer.client.number, direction]))
        return rates


class StoreClient:
    """One engine's side: takes `s2h` and `h2s` copies as `sim.disk.Disk` does."""

    def __init__(self, env: Environment, store: SharedStore, number: int, ranks: int = 1) -> None:
        profile = store.profile
        self.number = number
        self._env: Any = env
        self._store = store
        self._latencies = (profile.read_latency_ns.value, profile.write_latency_ns.value)
        self._page_ns = profile.page_ns.value
        self._lookup_ns = profile.lookup_ns.value
        self._lookup_page_ns = profile.lookup_page_ns.value
        self._workers = profile.workers.value * ranks
        self._busy = [0, 0]
        self._waiting: tuple[deque[_Transfer], deque[_Transfer]] = (deque(), deque())

    def submit(self, pending: Pending[Completion], operation: Copy, ready_ns: int) -> None:
        """Take a copy that the engine has ready at `ready_ns`."""
        self.carry(operation, pending.number, ready_ns, partial(report, pending, operation))

    def carry(self, operation: Copy, number: int, ready_ns: int, on_finish: OnFinish) -> None:
        """As `sim.keyed_store.Carrier` says."""
        direction = READ if operation.direction == "s2h" else WRITE
        self.move(direction, operation.pages, operation.size_bytes, number, ready_ns, on_finish)

    def move(
        self,
        direction: int,
        pages: int,
        size_bytes: int,
        number: int,
        ready_ns: int,
        on_finish: Callable[[int, int], None],
    ) -> None:
        """Move so many pages; `on_finish(started_ns, finished_ns)` is called when they are there.

        `direction`: READ or WRITE. `number`: its place in the order of submissions.
        """
        assert size_bytes >= 1, "a transfer of nothing"

        def ended(started_ns: int, finished_ns: int) -> None:
            self._store.moved_bytes[direction] += size_bytes
            self._busy[direction] -= 1
            if self._waiting[direction]:
                self._start(self._waiting[direction].popleft())
            on_finish(started_ns, finished_ns)

        transfer = _Transfer(self, direction, size_bytes, number, ended)
        transfer.ready_ns = ready_ns
        transfer.delay_ns = self._latencies[direction] + pages * self._page_ns
        if self._busy[direction] < self._workers:
            self._start(transfer)
        else:
            self._waiting[direction].append(transfer)

    def lookup_ns(self, names: int) -> int:
        """What a question for so many names takes: no bandwidth to speak of."""
        return self._lookup_ns + names * self._lookup_page_ns

    def _start(self, transfer: _Transfer) -> None:
        self._busy[transfer.direction] += 1
        self._store.begin(transfer)
