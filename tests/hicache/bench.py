"""One engine on a machine that is steered by hand, for tests of a single behaviour."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

from adversarial_lanes import AdversarialLanes, Fate
from engine_runs import call_at, drain, rows_of, watch_memory
from simpy import Environment
from small_workloads import runs_of

from hicache.engine import Engine
from hicache.operations import Copy, Decode, Operation, Prefill
from hicache.options import (
    CacheOptions,
    EngineOptions,
    OffloadOptions,
    PrefetchOptions,
    RestoreOptions,
    SchedulerOptions,
    StorageOptions,
)
from hicache.requests import Request

FILLER = 10_000  # keys of prompts that only push others out


class Bench:
    """An engine whose restores are always taken, with named pages of one token.

    GPU steps and copies take 10 ns; copies of a direction in `holding` wait for `release`.
    """

    def __init__(
        self,
        device: int,
        host: int = 0,
        storage: int = 0,
        *,
        page: int = 1,
        cache: dict[str, Any] | None = None,
        restore: dict[str, Any] | None = None,
        scheduler: dict[str, Any] | None = None,
        prefetch: dict[str, Any] | None = None,
        admit_after_hits: int = 1,
        switches: dict[str, Any] | None = None,
        offload: dict[str, Any] | None = None,
        mode: Literal["cache", "buffer_only"] = "cache",
        ranks: int = 1,
        writing_ranks: int | None = None,
    ) -> None:
        """`prefetch`: L3 is a store that is asked by key, and read with these options.
        `writing_ranks`: all of them if None.
        """
        self.env = Environment(0)
        self.holding: set[str] = set()
        self.failing: set[str] = set()
        self.setup_ns = 0
        self.lanes = AdversarialLanes(self.env, self.fate)
        self.options = EngineOptions(
            page,
            1,
            device,
            host,
            storage,
            CacheOptions(**{"outputs": "dropped", **(cache or {})}),
            RestoreOptions(**{"policy": "always", **(restore or {})}),
            SchedulerOptions(**{"output_reserve_fraction": 0.0, **(scheduler or {})}),
            "named",
            1,
            StorageOptions(
                "tree" if prefetch is None else "store", admit_after_hits, **(switches or {})
            ),
            PrefetchOptions(
                "restore" if prefetch is None else "queued",
                **{"threshold_tokens": 1, **(prefetch or {})},
            ),
            OffloadOptions(**(offload or {})),
            mode,
            ranks=ranks,
            writing_ranks=ranks if writing_ranks is None else writing_ranks,
        )
        shared = self.options.writing_ranks < ranks  # what one writes all read
        more = [self.lanes.store if shared else {} for _ in range(1, ranks)]
        self.lanes.stores += more
        self.engine = Engine(self.env, self.lanes, self.options)
        self.metrics = self.engine.metrics
        self.tree = self.engine.tree
        watch_memory(self.engine, self.lanes)
        self.requests: list[Request] = []

    def fate(self, operation: Operation) -> Fate:
        direction = getattr(operation, "direction", "")
        return Fate(
            10,
            held=direction in self.holding,
            fails=direction in self.failing,
            setup_ns=self.setup_ns,
        )

    def ask(self, at_ns: int, keys: Sequence[int], output: int = 1, tail: int = 0) -> int:
        """A request whose prompt has these page keys, and `tail` tokens more; its number."""
        number = len(self.requests)
        tokens = len(keys) * self.options.page_size_tokens + tail
        runs = runs_of(keys)
        self.requests.append(Request(number, at_ns, tokens, output, runs, len(keys), len(keys)))
        return number

    def cool(self, keys: Sequence[int]) -> int:
        """Two requests: the first leaves `keys` in L2, the second pushes them out of L1. Returns
        when both are over for long.
        """
        self.ask(0, keys)
        self.ask(1000, range(FILLER, FILLER + self.options.device_pages))
        return 2000

    def at(self, at_ns: int, act: Any) -> None:
        """Call `act()` at a time."""
        call_at(self.env, at_ns, act)

    def run(self, until_ns: int | None = None) -> Bench:
        """Start (the first time), and go on until all is done or until a time."""
        if self.env.now == 0 and not self.lanes.submitted:
            self.engine.serve(self.requests)
        if until_ns is None:
            drain(self.env)
        else:
            self.env.run(until_ns)
        return self

    def release(self, direction: str, *, fails: bool = False) -> None:
        """Let the held copies of a direction end now."""
        for number in self.lanes.held(direction):
            self.lanes.release(number, fails=fails)

    def let(self, direction: str) -> None:
        """Hold copies of a direction no more."""
        self.holding.discard(direction)
        self.release(direction)

    def copies(self, direction: str) -> list[Copy]:
        """The copies of a direction so far."""
        return [
            operation
            for _, operation in self.lanes.submitted
            if isinstance(operation, Copy) and operation.direction == direction
        ]

    def steps(self, since_ns: int = 0) -> list[Prefill | Decode]:
        """The GPU's operations submitted from a time on."""
        return [
            operation
            for pending, operation in self.lanes.submitted
            if pending.submitted_ns >= since_ns and isinstance(operation, Prefill | Decode)
        ]

    def rows(self) -> list[dict[str, int]]:
        """The rows by request number."""
        return rows_of(self.engine)

    def hits(self, keys: Sequence[int]) -> tuple[int, int, int]:
        """What each tier holds of a prompt."""
        match = self.tree.match(runs_of(keys))
        return match.device, match.host, match.storage
