"""One engine: tree, belief, policy, transfers and scheduler put together over a machine's lanes.

Several engines can live in one environment, and their lanes may share devices. Nothing here is
global.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from simpy import Environment

from hicache.arrivals import LinkedArrivals, StreamedArrivals
from hicache.cost_model import CostModel
from hicache.integrity import check_integrity
from hicache.kernel import Task
from hicache.metrics import Metrics
from hicache.node import TIER_NAMES
from hicache.options import EngineOptions, LoadOptions
from hicache.ports import Lanes
from hicache.queue_ahead import QueueAhead
from hicache.requests import Request
from hicache.restore_policy import make_policy
from hicache.scheduler import Scheduler
from hicache.store_contents import StoreContents
from hicache.tree import HiRadixTree
from hicache.untimed import UntimedServer


class Engine:
    """Serves requests from a three-tier KV cache on the machine behind `lanes`.

    `serve` starts the processes; the environment's `run` drives them. What happened stands in
    `metrics`.
    """

    def __init__(self, env: Environment, lanes: Lanes, options: EngineOptions) -> None:
        self.env = env
        self.options = options
        self.metrics = Metrics()
        self.tree = HiRadixTree(options)
        self.belief = CostModel(options.restore, options.bytes_per_token)
        ahead = QueueAhead(env, self.belief, options) if options.restore.queue_aware else None
        self.policy = make_policy(
            options.restore, options.page_size_tokens, self.belief,
            options.scheduler.chunk_tokens, ahead,
        )  # fmt: skip
        self.scheduler = Scheduler(
            env, lanes, self.tree, self.policy, self.belief, self.metrics, options, ahead
        )
        self.transfers = self.scheduler.transfers
        if options.check_every_steps:
            self.scheduler.on_step = self._check_now_and_then
        self._steps_unchecked = 0
        self._untimed: UntimedServer | None = None

    def serve(
        self,
        requests: Iterable[Request],
        load: LoadOptions | None = None,
        *,
        reads_ahead: bool = False,
    ) -> None:
        """Start to serve `requests`, by default each at its time; they come in that order then.

        `reads_ahead`: whether some requests wait for others (`Request.after`) though the loop is
        open; all are read before the first one arrives. In a closed loop they always are.
        """
        load = load or LoadOptions()
        Task(self.scheduler.run())
        if reads_ahead or load.loop == "closed":
            Task(LinkedArrivals(self.env, self.scheduler, load).run(requests))
        else:
            Task(StreamedArrivals(self.env, self.scheduler).run(requests))

    def serve_untimed(
        self, requests: Iterable[Request], contents: StoreContents | None = None
    ) -> None:
        """Serve `requests` one at a time in their order, as if nothing took time; the lanes are not
        used. `contents`: of a store that is shared with other engines.
        """
        if self._untimed is None:
            self._untimed = UntimedServer(self.tree, self.metrics, self.options, contents)
        self._untimed.serve(requests)

    @property
    def running(self) -> int:
        """Requests admitted and not done."""
        return self.scheduler.running

    def abort(self, number: int) -> bool:
        """Give a request up, in whatever phase it is; False if it is not known (any more)."""
        return self.scheduler.abort(number)

    def check_integrity(self) -> None:
        """Assert every invariant of the tree and its tiers."""
        prefetcher, staging = self.scheduler.prefetcher, self.transfers.staging
        lent_pages, lent = (0, []) if prefetcher is None else prefetcher.lent()
        if staging is not None:
            staged_pages, staged = staging.lent()
            lent_pages, lent = lent_pages + staged_pages, [*lent, *staged]
        check_integrity(self.tree, lent_pages, lent)

    def status(self) -> dict[str, Any]:
        """A snapshot: pages of each tier by state, work under way, and what is believed."""
        tiers = {
            name: {
                "capacity_pages": tier.capacity,
                "free_pages": tier.allocator.free,
                "evictable_pages": tier.evictable,
                "protected_pages": tier.resident - tier.evictable,
                "private_or_arriving_pages": tier.capacity - tier.allocator.free - tier.resident,
            }
            for name, tier in zip(TIER_NAMES, self.tree.tiers, strict=True)
        }
        prefetcher, writer = self.scheduler.prefetcher, self.scheduler.store_writer
        staging = self.transfers.staging
        waiting = (writer.pending if writer else 0) + (staging.waiting if staging else 0)
        belief = {
            name: {"fixed_seconds": line.fixed, "slope_seconds": line.slope, "samples": line.seen}
            for name, line in (("prefill", self.belief.prefill), *self.belief.copies.items())
        }
        return {
            "tiers": tiers,
            "waiting_requests": self.scheduler.waiting,
            "running_requests": self.scheduler.running,
            "pending_writes": self.transfers.writes_pending + waiting,
            "pending_restores": self.transfers.restores_pending,
            "pending_prefetches": prefetcher.under_way if prefetcher else 0,
            "write_backlog_pages": (staging or writer or self.transfers).backlog_pages,
            "belief": belief,
        }

    def _check_now_and_then(self) -> None:
        self._steps_unchecked += 1
        if self._steps_unchecked >= self.options.check_every_steps:
            self._steps_unchecked = 0
            self.check_integrity()
