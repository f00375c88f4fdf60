"""How a request leaves the engine: done or given up, what it held goes back and its row is written.

Also who is in the engine at all, and how many of them are admitted. Refuses to look for a request
in a queue or a batch: whoever has it takes it out first.
"""

# pyright: reportPrivateUsage=false
# `Environment.now` is a property in Python; see hicache.kernel.
from __future__ import annotations

from collections.abc import Callable
from typing import Any, final

from simpy import Environment

from hicache.holdings import Holdings
from hicache.metrics import Metrics
from hicache.options import EngineOptions
from hicache.prefetch import Prefetcher
from hicache.requests import Request
from hicache.running import Running


@final
class Endings:
    """The endings of one engine. `on_end` is called with each request that has ended."""

    def __init__(
        self,
        env: Environment,
        holdings: Holdings,
        options: EngineOptions,
        metrics: Metrics,
        on_end: Callable[[Request], None],
    ) -> None:
        self._env: Any = env  # its times are ints
        self._holdings = holdings
        self._page = options.page_size_tokens
        self._metrics = metrics
        self.prefetcher: Prefetcher | None = None  # hears of those that were given up
        self._on_end = on_end
        self.live: dict[int, Running] = {}  # those that have come and not ended, by number
        self.running = 0  # of them, those admitted

    def finish(self, run: Running, kv_tokens: int) -> None:
        """All tokens are made: leave the pages to the cache, write the row."""
        self._holdings.leave_all(run, kv_tokens)
        self.running -= 1
        run.phase = "finished"
        del self.live[run.request.number]
        self._write_row(run)

    def release(self, run: Running) -> None:
        """Take back what admission gave to `run`."""
        self._holdings.release(run)
        self.running -= 1

    def give_up(self, run: Running) -> None:
        """`run`, which holds nothing (any more), was aborted."""
        run.phase = "aborted"
        run.reason = "aborted"
        if self.prefetcher is not None:
            self.prefetcher.abandon(run)
        self._metrics.aborted += 1
        del self.live[run.request.number]
        self._write_row(run)

    def _write_row(self, run: Running) -> None:
        metrics, now = self._metrics, self._env._now
        arrival, admitted, first = run.enqueued_ns, run.admitted_ns, run.first_token_ns
        metrics.requests += 1
        metrics.output_tokens += run.generated
        metrics.last_token_ns = now
        if metrics.first_arrival_ns < 0 or arrival < metrics.first_arrival_ns:
            metrics.first_arrival_ns = arrival
        metrics.finish_row(
            run.request,
            self._page,
            run.cached_pages,
            (
                (admitted if admitted >= 0 else now) - arrival,
                run.restored_ns,
                first - run.prefill_start_ns if first >= 0 else 0,
                first - arrival if first >= 0 else -1,
                now - arrival if run.phase == "finished" else -1,
                run.generated,
                run.retractions,
            ),
            run.reason,
        )
        self._on_end(run.request)
