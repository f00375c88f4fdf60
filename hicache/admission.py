"""Admission: whose turn it is, what of its prompt is worth a restore, and whether L1 has the room.

    queued --+-- turn: no restore ----------> prefilling
       ^     +-- turn: a hit below L1 ------> restoring
       +-----+-- somebody restores it ------> joins, and comes back in its old place
       +-----+-- a prefetch is not over ----> aside, and comes back; those behind do not wait
             +-- no room: all wait (`short`), under write back until L1 has been written to L2

L1 is shared by cached and running KV: a request takes the pages of its whole prompt at admission.
Refuses to know what a GPU step is and when the next one comes.
"""

# pyright: reportPrivateUsage=false
# `Environment.now` is a property in Python; see hicache.kernel.
from __future__ import annotations

from collections.abc import Callable
from typing import Any, final

from simpy import Environment

from hicache.arrival import Arrival
from hicache.decoding import DecodeSteps
from hicache.endings import Endings
from hicache.kernel import Task
from hicache.loads import QueuedLoad
from hicache.metrics import Metrics
from hicache.node import DEVICE, HOST, Node
from hicache.options import EngineOptions
from hicache.prefetch import Prefetcher
from hicache.prefilling import PrefillSteps
from hicache.queue import RequestQueue
from hicache.requests import hittable
from hicache.restore_policy import Choice, Policy
from hicache.restoring import Restores
from hicache.running import Running
from hicache.staged_reads import StagedReads
from hicache.transfers import Transfers
from hicache.tree import HiRadixTree, Match


@final
class Admission:
    """Admits the requests of one engine. `poke` is called when one may be admitted that could not.

    `policy` says what is restored; `prefetcher` is there where L3 is a store.
    """

    def __init__(
        self,
        env: Environment,
        tree: HiRadixTree,
        transfers: Transfers,
        endings: Endings,
        decode: DecodeSteps,
        prefill: PrefillSteps,
        restores: Restores,
        policy: Policy,
        options: EngineOptions,
        metrics: Metrics,
        poke: Callable[[], None],
    ) -> None:
        self._env: Any = env  # its times are ints
        self._tree = tree
        self._device = tree.tiers[DEVICE]
        self._transfers = transfers
        self._endings = endings
        self._batch = decode.batch
        self._prefill = prefill
        self._restores = restores
        self.policy = policy
        self._metrics = metrics
        self._poke = poke
        self.prefetcher: Prefetcher | None = None
        self.staged: StagedReads | None = None  # where L2 is only a buffer
        self._page = options.page_size_tokens
        self._capped_page = options.capped_page_tokens
        self._max_running = options.scheduler.max_running_requests
        self._reserve = options.scheduler.output_reserve_fraction
        self._gathers_loads = options.restore.merge_loads and options.restore.start == "admission"
        self._writes_back = transfers.writes_back
        self._asks_again = options.restore.queue_aware
        self.queue = RequestQueue()
        self._aside = 0  # requests that were at the head of the queue and wait for a prefetch
        # L1 pages that the head of the queue needs and did not get; 0: it does not wait for room.
        # Admission is tried again when there is that much, not at every step: only a prefix
        # published meanwhile could make it need less.
        self._short = 0
        # Under write back: pages that the head of the queue will be given once L1 has written them
        # back, and how many of them it will load into; what it found in L1 and L2 is pinned
        # meanwhile.
        self._wanted: tuple[int, int, Node, Node] | None = None

    @property
    def waiting(self) -> int:
        """Requests in the queue, or waiting for a prefetch."""
        return self.queue.size + self._aside

    @property
    def hopeful(self) -> bool:
        """Whether the head of the queue lacked room, and there is as much now."""
        return self._short > 0 and self._has_room(self._short)

    @property
    def wants_room(self) -> bool:
        """Whether `make_room` is to be called before anything else goes on."""
        return self._wanted is not None

    def join(self, run: Running) -> None:
        """A new request: behind all others."""
        self.queue.join(run)
        if self.prefetcher is not None:
            self.prefetcher.begin(run, hittable(run.request, self._capped_page))
        waiting = self.waiting
        if waiting > self._metrics.max_waiting:
            self._metrics.max_waiting = waiting

    def rejoin(self, run: Running) -> None:
        """One that was at the head before: in its old place."""
        self.queue.rejoin(run)
        self._short = 0  # whoever lacked room is not the head any more

    def drop(self, run: Running) -> None:
        """`run`, in the queue or aside, was aborted."""
        if run.phase == "prefetching":
            self._aside -= 1
        else:
            self.queue.remove(run)
            self._short = 0  # it may have been the one that lacked room
        self._endings.give_up(run)

    def fetched(self, run: Running) -> None:
        """`run` need not wait for its prefetch any more."""
        if run.phase == "prefetching" and not run.aborting:
            self._aside -= 1
            self.rejoin(run)
            self._poke()

    def admit(self) -> None:
        """Admit whoever's turn it is, as far as there is room."""
        if not self.queue.size or (self._short and not self._has_room(self._short)):
            return
        if not self._gathers_loads:
            self._admit()
            return
        begins = self._transfers.loads
        loads: list[QueuedLoad] = []
        begins.gathered = loads  # those of one round of admission are one copy
        self._admit()
        begins.gathered = None
        if loads:
            begins.begin(loads)

    async def make_room(self) -> None:
        """Let L1 write back what must leave it for the head of the queue. Nothing else goes on
        meanwhile: no admission, no step.
        """
        assert self._wanted is not None
        need, load, node, found = self._wanted
        self._wanted = None
        await self._transfers.make_room(need, load)
        self._tree.unpin(node, DEVICE)
        self._tree.unpin(found, HOST)

    # ------------------------------------------------------------------ one after the other

    def _admit(self) -> None:
        self._short = 0
        queue, endings, prefetcher = self.queue, self._endings, self.prefetcher
        if prefetcher is not None:
            prefetcher.look_again()
        while endings.running < self._max_running:
            run = queue.head()
            if run is None:
                break
            if prefetcher is not None and not prefetcher.settle(run):
                queue.pop()  # those behind it do not wait
                run.phase = "prefetching"
                self._aside += 1
            elif not self._start(run):
                break
        if endings.running > self._metrics.max_running:
            self._metrics.max_running = endings.running

    def _start(self, run: Running) -> bool:
        """Admit `run`, or let it wait for somebody's restore; False if it does not fit now."""
        tree = self._tree
        match = tree.match(hittable(run.request, self._capped_page))
        if self.staged is not None:
            self.staged.offer(run, match)
        held, reason = match.device, ""
        goal = held
        if (match.depth > held or match.host > held) and not run.restore_failed:
            arrival = tree.arriving_at(match.node, DEVICE, held)
            if arrival is not None:
                self.queue.pop()
                Task(self._follow(run, arrival))
                return True
            if match.host > held or match.storage > held:
                goal, reason = self._choose(run, match)
        return self._take_pages(run, match, goal, reason)

    async def _follow(self, run: Running, arrival: Arrival) -> None:
        """Wait for a restore that somebody else began, then queue again in the old place."""
        self._metrics.joined_restores += 1
        run.phase = "restoring"
        await self._transfers.joined(arrival)
        if run.aborting:
            self._endings.give_up(run)
            return
        self.rejoin(run)
        self._poke()

    def _choose(self, run: Running, match: Match) -> Choice:
        """What the policy says; asked once for the same hits, however often admission is tried,
        unless it counts what is in front, which changes.
        """
        hits = (match.device, match.host, match.storage)
        if run.choice is None or run.choice[0] != hits or self._asks_again:
            match.tokens = run.kv_tokens
            run.choice = (hits, self.policy(match))
        return run.choice[1]

    def _take_pages(self, run: Running, match: Match, goal: int, reason: str) -> bool:
        """Pin the L1 hit, take the pages of the rest of the prompt, and begin the restore or the
        prefill.
        """
        tree, page = self._tree, self._page
        held = match.device
        # A node of its own for what is pinned: what others may restore behind it stays evictable.
        node = match.node if match.depth == held else tree.cut_at(match.node, held)
        tree.pin(node, DEVICE)
        tokens = run.kv_tokens
        need = -(-tokens // page) - held
        if need < 0:
            need = 0  # a cached page that is partly filled counts in full
        if not self._has_room(need + 1):
            self._short = need + 1
            tree.unpin(node, DEVICE)
            return False
        if self._writes_back and need > self._device.allocator.free:
            found = match.node if match.host > held else node
            tree.pin(found, HOST)
            self._wanted = (need, goal - held, node, found)
            return False
        self.queue.pop()
        end = node
        if goal > held:
            staged = self.staged
            end = tree.cut_at(match.node, goal) if staged is None else staged.grow(run, node, goal)
        if goal > held and tree.loads_by_request:
            pages = tree.take_for_load(min(goal - held, need), need)
        else:
            pages = tree.take(DEVICE, need)
        assert pages is not None
        run.node, run.held, run.listed = node, held, -1
        run.matched_ns = self._env._now
        run.private, run.private_pages = need, pages
        past = held * page
        if past > run.request.prompt_tokens:  # its last page is cached, partly filled
            past = run.request.prompt_tokens
        run.past_tokens = past
        # Every request computes at least its last token, so that there is a next one.
        run.todo_tokens = tokens - past or 1
        self._endings.running += 1
        if run.admitted_ns < 0:
            run.admitted_ns = self._env._now
            run.cached_pages = (held, 0, 0)
            run.reason = reason
            if reason:
                self._metrics.count_choice(reason)
        if goal == held and self.staged is not None:
            self.staged.decline(run, held)
        if goal > held:
            self._restores.begin(run, end, match)
        else:
            self._prefill.add(run)
        return True

    def _has_room(self, pages: int) -> bool:
        """Whether L1 can give `pages` pages and keep room for the outputs still to come of those
        who run.

        Nothing is kept when nobody runs, so that admission goes on; `pages` is one more than is
        needed.
        """
        device = self._device
        available = device.allocator.free + device.evictable - pages + 1
        if available < 0 or not self._endings.running:
            return available >= 0
        tokens = self._batch.outstanding_tokens() + self._prefill.outputs
        if available * self._page < self._reserve * tokens:
            return False
        # Whole pages, too: requests that cross into a new page together must all get one, or one
        # that was just retracted for want of them would come back at once and go again.
        return available >= self._batch.pages_for(1)
