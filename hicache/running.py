"""A request while the engine works on it, and the batch of those that decode.

QUEUED -> RESTORING -> PREFILLING -> DECODING -> FINISHED
   ^________________________________/  retracted: its own pages go, what the tree holds stays

PREFETCHING is who waits, out of the queue, for what is read from a store for it.

A layer-wise restore is prefilled while it is loaded (`Running.load`); LOADING is who was computed
before all that it rests on was there.
"""

from __future__ import annotations

from collections.abc import Iterator
from heapq import heapify, heappop, heappush
from typing import Any, Literal

from hicache.allocator import cut, join
from hicache.loads import QueuedLoad
from hicache.node import Node
from hicache.operations import PageRuns
from hicache.requests import Request
from hicache.restore_policy import Choice

Phase = Literal[
    "queued", "prefetching", "restoring", "prefilling", "loading", "decoding", "finished",
    "aborted",
]  # fmt: skip


# What a device needs to know of a request: tokens in its KV cache (while it decodes less the steps
# of its batch, so that it stays the same), and the L1 pages that hold it, or are about to: those of
# the tree, then its own, each in order.
Asked = tuple[Request, int, PageRuns, PageRuns]


class Running:
    """The engine's state of one request. Pages and tokens are counts, times ns."""

    __slots__ = (
        "aborting", "admitted_ns", "answer_key", "asked", "asked_pages", "cached_pages", "choice",
        "decode_offset", "enqueued_ns", "finish_step", "first_token_ns", "generated", "held",
        "held_pages", "listed", "load", "matched_ns", "node", "order", "past_tokens", "phase",
        "prefetched_pages", "prefill_start_ns", "private", "private_pages", "queued_load", "reason",
        "request", "restore_failed", "restored_ns", "retractions", "todo_tokens",
    )  # fmt: skip

    def __init__(self, request: Request, order: int, now_ns: int) -> None:
        self.request = request
        self.order = order  # place in the queue; keeps its value when the request is retracted
        self.phase: Phase = "queued"
        self.enqueued_ns = now_ns
        self.admitted_ns = -1  # first admission
        self.restored_ns = 0  # time from admission until the restore ended
        self.matched_ns = -1  # when its L1 hit was looked up
        self.prefill_start_ns = -1
        self.first_token_ns = -1
        # Pinned in L1; the tree holds `held` pages of the prompt up to it.
        self.node: Node | None = None
        self.held = 0
        self.held_pages: PageRuns = ()  # those pages, as far as `listed` says
        self.listed = -1
        # What was said of it last, while it decodes, and its own pages then. It is an Asked, but
        # compiled code that knew so would make it anew at each look.
        self.asked: Any = None
        self.asked_pages: PageRuns = ()
        # The copy under way that brings pages of its past while it is prefilled already; -1: none.
        self.load = -1
        # What is to be loaded with its first prefill step (`restore.start`), while it waits.
        self.queued_load: QueuedLoad | None = None
        self.private = 0  # L1 pages that only this request uses
        self.private_pages: PageRuns = ()
        # Where the keys of its answer that no prompt names begin, once part of it was left to the
        # tree while it decodes; 0: none was.
        self.answer_key = 0
        self.todo_tokens = 0  # still to prefill
        self.past_tokens = 0  # in L1 already
        self.generated = 0
        self.finish_step = 0
        self.decode_offset = 0  # KV length - decode steps done, constant while decoding
        # Hits by tier; fixed at the first admission, or when its restore ended.
        self.cached_pages: tuple[int, int, int] = (0, 0, 0)
        self.choice: tuple[tuple[int, int, int], Choice] | None = None  # hits, and what of them
        self.reason = ""
        self.restore_failed = False
        self.prefetched_pages = 0  # of its prompt, that were read from a store for it
        self.retractions = 0
        self.aborting = False

    @property
    def kv_tokens(self) -> int:
        """Tokens that must stand in L1 before the next token can be made."""
        return self.request.prompt_tokens + self.generated


class DecodeBatch:
    """The requests that decode together. All of them advance by one token a step, so sums suffice.

    `steps` counts all decode steps ever done; adding to it is how the batch advances. A request
    whose KV has `n` tokens at step `s` has the constant offset n - s, and needs ceil((offset + s) /
    page) pages; the histogram of (offset - 1) mod page gives the pages that k more steps need
    without looking at each request.
    """

    __slots__ = (
        "_finish_sum", "_heap", "_numbers", "_offset_sum", "_page", "_residues", "_runs", "size",
        "steps",
    )  # fmt: skip

    def __init__(self, page_size_tokens: int) -> None:
        self.steps = 0
        self.size = 0
        self._page = page_size_tokens
        self._heap: list[
            tuple[int, int, Running]
        ] = []  # (step at which it is done, order, request)
        self._runs: dict[int, Running] = {}  # in the order in which they joined
        self._numbers: dict[int, int] = {}  # of the requests, in that order
        self._offset_sum = 0
        self._finish_sum = 0
        self._residues = [0] * page_size_tokens

    def __iter__(self) -> Iterator[Running]:
        return iter(self._runs.values())

    @property
    def runs(self) -> list[Running]:
        """All requests, in the order in which they joined."""
        return list(self._runs.values())

    @property
    def requests(self) -> tuple[int, ...]:
        """The numbers of all requests, in the order in which they joined."""
        return tuple(self._numbers.values())

    @property
    def context_tokens(self) -> int:
        """Sum of the KV lengths of all requests."""
        return self._offset_sum + self.size * self.steps

    @property
    def steps_to_first_finish(self) -> int:
        """Steps until the first request is done."""
        return self._heap[0][0] - self.steps

    def outstanding_tokens(self) -> int:
        """Tokens that all requests together still have to make."""
        return self._finish_sum - self.size * self.steps

    def pages_for(self, steps: int) -> int:
        """Pages that `steps` more steps need beyond those in use."""
        page = self._page
        count = self.size * (steps // page)
        rest = steps % page
        if rest:
            first = (page - rest - self.steps) % page
            residues = self._residues
            count += sum(residues[first : first + rest])
            if first + rest > page:
                count += sum(residues[: first + rest - page])
        return count

    def steps_within(self, pages: int, limit: int) -> int:
        """The largest number of steps, up to `limit`, that `pages` more pages allow."""
        low, high = 0, limit
        while low < high:
            middle = (low + high + 1) // 2
            if self.pages_for(middle) <= pages:
                low = middle
            else:
                high = middle - 1
        return low

    def add(self, run: Running, kv_tokens: int, remaining: int) -> None:
        """`run` joins with `kv_tokens` in its KV cache and `remaining` > 0 tokens to make."""
        self.size += 1
        run.finish_step = self.steps + remaining
        run.decode_offset = kv_tokens - self.steps
        self._offset_sum += run.decode_offset
        self._finish_sum += run.finish_step
        self._residues[(run.decode_offset - 1) % self._page] += 1
        heappush(self._heap, (run.finish_step, run.order, run))
        self._runs[run.order] = run
        self._numbers[run.order] = run.request.number
        run.asked = None

    def share_out(self, steps: int, pages: PageRuns) -> None:
        """Named pages: give each request those that its next `steps` tokens will fill."""
        if not pages:
            return
        page = self._page
        done = self.steps
        for run in self._runs.values():
            kv_tokens = run.decode_offset + done
            more = -(-(kv_tokens + steps) // page) - -(-kv_tokens // page)
            if more:
                mine, pages = cut(pages, more)
                run.private_pages = join(run.private_pages, mine)
        assert not pages, "more pages than the batch fills"

    def take_back(self, steps: int) -> PageRuns:
        """Named pages: those that were shared out and that `steps` tokens do not fill."""
        rest: PageRuns = ()
        for run in self._runs.values():
            keeps = -(-(self.kv_tokens(run) + steps) // self._page) - run.held
            run.private_pages, spare = cut(run.private_pages, keeps)
            rest = join(rest, spare)
        return rest

    def pop_finished(self) -> Running | None:
        """A request that has made all its tokens, taken out of the batch; None if there is none."""
        if not self._heap or self._heap[0][0] > self.steps:
            return None
        run = heappop(self._heap)[2]
        self._forget(run)
        return run

    def remove(self, run: Running) -> None:
        """Take out a request that is not done (retracted or aborted)."""
        self._heap.remove((run.finish_step, run.order, run))
        heapify(self._heap)
        self._forget(run)

    def newest(self) -> Running:
        """The request that joined the queue last."""
        return self._runs[max(self._runs)]

    def kv_tokens(self, run: Running) -> int:
        """Length of the KV cache of a request of this batch."""
        return run.decode_offset + self.steps

    def _forget(self, run: Running) -> None:
        del self._runs[run.order], self._numbers[run.order]
        self.size -= 1
        self._offset_sum -= run.decode_offset
        self._finish_sum -= run.finish_step
        self._residues[(run.decode_offset - 1) % self._page] -= 1
