"""What a run counted: totals by tier and direction, and one row for each request.

Names follow SGLang's counters where the same thing is counted (`summary` code maps them one to
one). Only the engine writes here; nothing here decides anything.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable
from struct import Struct

from hicache.node import TIER_NAMES
from hicache.operations import DIRECTIONS, Batches, Completion, Copy, Direction
from hicache.requests import Request

# Why pages that were computed or held did not go, or stay, where they could have been hit again.
DROP_REASONS = (
    "host_pressure",  # no room in L2 for a write-through, or for a read from L3
    "storage_pressure",  # no room in L3
    "write_backlog",  # too much is waiting to be written to L3
    "transfer_failed",  # the copy failed
)


# Why tokens that a store said it holds, and that were asked for, were not put into L2.
UNFULFILLED_REASONS = (
    "below_threshold",  # too few to be worth a read
    "host_capacity",  # no room in L2
    "storage_transfer",  # the read failed, or the store had lost them
    "deadline",  # the stop policy did not wait any longer
    "dropped",  # the request was given up
)
# Why a store was not asked at all: what it would have had is not known.
DECLINED_REASONS = ("rate_limited", "host_capacity")


class DirectionStats:
    """Totals of one direction. Times in ns: queue = submitted to started, service = started to
    finished.
    """

    __slots__ = (
        "extents", "failed", "operations", "pages", "queue_ns", "recurring_ns", "service_ns",
        "setup_ns", "size_bytes",
    )  # fmt: skip

    def __init__(self) -> None:
        self.operations = 0
        self.failed = 0
        self.pages = 0
        self.size_bytes = 0
        self.extents = 0
        self.queue_ns = 0
        self.service_ns = 0
        self.setup_ns = 0
        self.recurring_ns = 0

    def add(self, done: Completion, copy: Copy) -> None:
        """Count one finished copy."""
        self.operations += 1
        self.pages += copy.pages
        self.size_bytes += copy.size_bytes
        self.extents += copy.extents
        self.queue_ns += done.started_ns - done.submitted_ns
        self.service_ns += done.finished_ns - done.started_ns
        self.setup_ns += done.setup_ns
        self.recurring_ns += done.stamp_ns - done.submitted_ns - done.setup_ns

    def add_batches(self, done: Batches, page_bytes: int) -> None:
        """Count finished copies of one extent each."""
        self.operations += done.batches
        self.pages += done.moved
        self.size_bytes += done.moved * page_bytes
        self.extents += done.batches
        self.queue_ns += done.queue_ns
        self.service_ns += done.service_ns
        self.recurring_ns += done.recurring_ns

    def add_instant(self, pages: int, size_bytes: int, extents: int) -> None:
        """Count a copy of a run in which nothing takes time."""
        self.operations += 1
        self.pages += pages
        self.size_bytes += size_bytes
        self.extents += extents


# One row a request.
ROW_FIELDS = (
    "request",
    "arrival_ns",
    "prompt_tokens",
    "output_tokens",
    "device_tokens",
    "host_tokens",
    "storage_tokens",
    "computed_tokens",
    "device_pages",
    "host_pages",
    "storage_pages",
    "prompt_pages",
    "ideal_pages",
    "queue_ns",  # arrival to admission
    "restore_ns",  # admission to the end of the restore; 0 without one
    "prefill_ns",  # first chunk submitted to first token
    "ttft_ns",  # arrival to first token; -1 if there was none
    "e2e_ns",  # arrival to last token; -1 if there was none
    "generated_tokens",
    "retractions",
    "recorded_tokens",  # prompt tokens that the recorded server hit; -1 if the trace does not say
)

# The seven of ROW_FIELDS before the last; and what a row is made from.
RowRest = tuple[int, int, int, int, int, int, int]
Ended = tuple[Request, int, tuple[int, int, int], RowRest, str]

# An array takes a row as bytes in a third of the time that it takes for twenty numbers.
_pack_row = Struct(f"{len(ROW_FIELDS)}q").pack


class Metrics:
    """Counters of one engine. Token and page counts by tier are lists in the order device, host,
    storage.
    """

    def __init__(self) -> None:
        self.requests = 0
        self.aborted = 0
        self.prompt_tokens = 0
        self.prompt_pages = 0
        self.output_tokens = 0
        self.computed_tokens = 0
        self.cached_tokens = [0, 0, 0]
        self.cached_pages = [0, 0, 0]
        self.dropped_pages: dict[str, int] = dict.fromkeys(DROP_REASONS, 0)
        self.directions: dict[Direction, DirectionStats] = {d: DirectionStats() for d in DIRECTIONS}
        self.restores = 0
        self.restored_pages = 0
        self.restore_ns = 0
        self.restore_under_decode_ns = 0
        # Tokens: fulfilled + unfulfilled = hit once no prefetch is under way.
        self.prefetches = 0
        self.prefetch_hit_tokens = 0
        self.prefetch_fulfilled_tokens = 0
        self.prefetch_unfulfilled_tokens: dict[str, int] = dict.fromkeys(UNFULFILLED_REASONS, 0)
        self.prefetches_declined: dict[str, int] = dict.fromkeys(DECLINED_REASONS, 0)
        self.prefetch_declined_tokens: dict[str, int] = dict.fromkeys(DECLINED_REASONS, 0)
        self.lookups_failed = 0
        self.promoted_pages = 0  # read from L3 into L2
        self.attached = 0  # how often L3 came at run time
        self.detached = 0  # how often it left
        self.joined_restores = 0
        self.restore_fallbacks = 0
        self.policy_skips = 0
        self.policy_probes = 0
        self.duplicate_pages = 0
        self.offloaded_pages = 0  # of answers, left to the cache while they were made
        self.merged_writes = 0
        self.merged_loads = 0  # that had no copy of their own
        self.retractions = 0
        self.retracted_tokens = 0
        self.recomputed_tokens = 0  # computed again after a retraction
        self.prefill_steps = 0
        self.prefill_ns = 0
        self.decode_bursts = 0
        self.decode_steps = 0
        self.decode_ns = 0
        self.max_waiting = 0
        self.max_running = 0
        self.last_token_ns = 0
        self.first_arrival_ns = -1
        self.rows = array(
            "q"
        )  # ROW_FIELDS of one request after the other, in the order of their endings
        self.reasons: list[str] = []
        self.sessions: list[str] = []
        # Rows put off, as `_add_row` takes them. None: nothing is put off.
        self._waiting: list[Ended] | None = None

    def put_off(self) -> Callable[[], None]:
        """From now on, add rows and their hits only when the function that is returned is called:
        no decision rests on them, and an engine on the real clock has the time for it after it has
        asked for the next operation.
        """
        if self._waiting is None:
            self._waiting = []
        return self._add_waiting

    def count_choice(self, reason: str) -> None:
        """Count what a restore policy said of a request with a hit below L1."""
        if reason in ("recompute_cheaper", "below_threshold", "never"):
            self.policy_skips += 1
        elif reason == "probe":
            self.policy_probes += 1

    def finish_row(
        self,
        request: Request,
        page_size_tokens: int,
        pages: tuple[int, int, int],
        rest: RowRest,
        reason: str,
    ) -> None:
        """Add a request's row and its hits to the totals.

        `pages`: hit pages by tier. `rest`: the seven of ROW_FIELDS before the last. Hit tokens are
        those of the hit pages, the last page counted as far as the prompt fills it.
        """
        if self._waiting is None:
            self._add_row(request, page_size_tokens, pages, rest, reason)
        else:
            self._waiting.append((request, page_size_tokens, pages, rest, reason))

    def _add_waiting(self) -> None:
        if self._waiting:
            waiting, self._waiting = self._waiting, []  # first: nothing is added twice
            for request, page_size_tokens, pages, rest, reason in waiting:
                self._add_row(request, page_size_tokens, pages, rest, reason)

    def _add_row(
        self,
        request: Request,
        page_size_tokens: int,
        pages: tuple[int, int, int],
        rest: RowRest,
        reason: str,
    ) -> None:
        device, host, storage = pages
        prompt = request.prompt_tokens
        device_tokens = device * page_size_tokens
        to_host = device_tokens + host * page_size_tokens
        to_storage = to_host + storage * page_size_tokens
        if to_storage > prompt:
            to_storage = prompt
            to_host = min(to_host, prompt)
            device_tokens = min(device_tokens, prompt)
        host_tokens = to_host - device_tokens
        storage_tokens = to_storage - to_host
        self.prompt_tokens += prompt
        self.prompt_pages += request.prompt_pages
        self.computed_tokens += prompt - to_storage
        tokens_total, pages_total = self.cached_tokens, self.cached_pages
        tokens_total[0] += device_tokens
        tokens_total[1] += host_tokens
        tokens_total[2] += storage_tokens
        pages_total[0] += device
        pages_total[1] += host
        pages_total[2] += storage
        self.rows.frombytes(
            _pack_row(
                request.number, request.arrival_ns, prompt, request.output_tokens,
                device_tokens, host_tokens, storage_tokens, prompt - to_storage,
                device, host, storage, request.prompt_pages, request.ideal_pages, *rest,
                request.cached_tokens,
            )
        )  # fmt: skip
        self.reasons.append(reason)
        self.sessions.append(request.session)

    def column(self, name: str) -> array[int]:
        """One of ROW_FIELDS for all requests that ended, in the order in which they did."""
        return self.rows[ROW_FIELDS.index(name) :: len(ROW_FIELDS)]

    def cached_by_tier(self) -> dict[str, int]:
        """Hit tokens under the tiers' names."""
        return dict(zip(TIER_NAMES, self.cached_tokens, strict=True))
