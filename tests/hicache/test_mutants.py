"""Faults put into the engine on purpose: the checks of this suite must see each of them."""

from __future__ import annotations

import gc
from collections.abc import Callable
from contextlib import suppress
from random import Random

import pytest
from engine_runs import Run, assert_good
from small_workloads import random_workload

from hicache.arrival import Arrival
from hicache.copies import Copier
from hicache.errors import TransferError
from hicache.holdings import Holdings
from hicache.node import DEVICE
from hicache.transfers import Transfers
from hicache.tree import HiRadixTree
from hicache.write_back import Departure

SEEDS = 100  # workloads that a mutant may survive before it counts as not seen

Patch = Callable[[pytest.MonkeyPatch], None]


def without(tree: HiRadixTree, method: str, call: Callable[[], object], *, tier: int | None = None):
    """Call `call` while `tree.method` does nothing (or nothing in one tier)."""
    real = getattr(tree, method)

    def instead(*args):
        if tier is not None and args[1] != tier:
            real(*args)

    setattr(tree, method, instead)
    try:
        return call()
    finally:
        delattr(tree, method)


def leaked_pin(monkeypatch: pytest.MonkeyPatch) -> None:
    """A transfer that is over leaves its pins."""
    leave = Arrival.__exit__
    monkeypatch.setattr(
        Arrival,
        "__exit__",
        lambda self, *args: without(self.tree, "unpin", lambda: leave(self, *args)),
    )


def source_not_pinned(monkeypatch: pytest.MonkeyPatch) -> None:
    """A transfer does not hold on to what it reads."""
    enter, leave = Arrival.__enter__, Arrival.__exit__
    monkeypatch.setattr(
        Arrival,
        "__enter__",
        lambda self: without(self.tree, "pin", lambda: enter(self), tier=self.source),
    )
    monkeypatch.setattr(
        Arrival,
        "__exit__",
        lambda self, *args: without(
            self.tree, "unpin", lambda: leave(self, *args), tier=self.source
        ),
    )


def early_publication(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pages are published when they are reserved, and their bytes follow."""
    reserve, publish = Arrival.reserve, Arrival._publish

    def reserve_and_publish(self):
        reserved = reserve(self)
        if reserved and (self.after is None or self.after.published):
            publish(self)
            self.count = -1
        return reserved

    monkeypatch.setattr(Arrival, "reserve", reserve_and_publish)
    monkeypatch.setattr(Arrival, "_publish", lambda self: self.count < 0 or publish(self))


def double_free(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pages are given back twice."""
    give = HiRadixTree.give

    def twice(self, tier, pages, count):
        give(self, tier, pages, count)
        give(self, tier, pages, count)

    monkeypatch.setattr(HiRadixTree, "give", twice)


def duplicates_freed_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    """Adoption frees the pages twice that L1 has got meanwhile."""
    adopt = HiRadixTree.adopt

    def adopt_carelessly(self, *args):
        allocator = type(self.tiers[DEVICE].allocator)
        give = allocator.give

        def give_twice(*given):
            give(*given)
            give(*given)

        with monkeypatch.context() as patch:
            patch.setattr(allocator, "give", give_twice)
            return adopt(self, *args)

    monkeypatch.setattr(HiRadixTree, "adopt", adopt_carelessly)


def handed_out_while_arriving(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pages that are on their way stay free for others."""
    reserve = Arrival.reserve

    def reserve_and_give(self):
        reserved = reserve(self)
        if reserved:
            self.tree.give(self.target, self.pages, self.count)
        return reserved

    monkeypatch.setattr(Arrival, "reserve", reserve_and_give)


def pin_kept_on_abort(monkeypatch: pytest.MonkeyPatch) -> None:
    """An aborted request frees its pages and forgets its pin."""
    release = Holdings.release

    def forget(self, run):
        if run.aborting:
            without(self._tree, "unpin", lambda: release(self, run))
        else:
            release(self, run)

    monkeypatch.setattr(Holdings, "release", forget)


def pages_kept_on_abort(monkeypatch: pytest.MonkeyPatch) -> None:
    """An aborted request forgets its private pages."""
    release = Holdings.release

    def forget(self, run):
        if run.aborting:
            without(self._tree, "give", lambda: release(self, run))
        else:
            release(self, run)

    monkeypatch.setattr(Holdings, "release", forget)


def published_behind_a_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody asks whether the pages in front have arrived."""
    make = Arrival.__init__

    def forgetful(self, tree, node, source, target, first, after=None):
        make(self, tree, node, source, target, first)

    async def go_on(self, after):
        await self.joined(after)

    monkeypatch.setattr(Arrival, "__init__", forgetful)
    monkeypatch.setattr(Transfers, "_follow", go_on)


def published_although_it_failed(monkeypatch: pytest.MonkeyPatch) -> None:
    """A copy that failed counts as one that went well."""
    begin = Copier.begin

    def brave(self, *args):
        pending = begin(self, *args)

        async def wait():
            with suppress(TransferError):
                await pending

        return wait()

    monkeypatch.setattr(Copier, "begin", brave)


def copied_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every load moves its bytes twice."""
    begin = Copier.begin

    def again(self, direction, *args):
        if direction == "h2d":
            begin(self, direction, *args)
        return begin(self, direction, *args)

    monkeypatch.setattr(Copier, "begin", again)


def waits_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    """Who waits for the restore of another is never woken."""

    async def joined(self, arrival):
        if arrival.published is None:
            await self._signal()

    monkeypatch.setattr(Transfers, "joined", joined)


def pages_lost_after_a_burst(monkeypatch: pytest.MonkeyPatch) -> None:
    """Private pages are never given back."""
    monkeypatch.setattr(HiRadixTree, "give", lambda self, tier, pages, count: None)


def split_forgets_pins(monkeypatch: pytest.MonkeyPatch) -> None:
    """The upper half of a pinned node is free to leave."""
    split = HiRadixTree._split

    def forgetful(self, lower, count):
        upper = split(self, lower, count)
        upper.pins = [0, 0, 0]
        return upper

    monkeypatch.setattr(HiRadixTree, "_split", forgetful)


def free_before_it_was_copied(monkeypatch: pytest.MonkeyPatch) -> None:
    """Under write back the pages of what leaves L1 are free while they are being copied."""
    evict = HiRadixTree.evict_leaving

    def careless(self, count):
        victims = evict(self, count)
        for victim in victims:
            self.give(DEVICE, victim.pages, victim.count)
            victim.pages, victim.count = (), 0
        return victims

    monkeypatch.setattr(HiRadixTree, "evict_leaving", careless)


def written_back_although_it_failed(monkeypatch: pytest.MonkeyPatch) -> None:
    """A copy of what leaves L1 that failed counts as one that went well."""
    close = Departure.close
    monkeypatch.setattr(Departure, "close", lambda self, arrival, error=None: close(self, arrival))


MUTANTS: list[Patch] = [
    free_before_it_was_copied,
    written_back_although_it_failed,
    leaked_pin,
    source_not_pinned,
    early_publication,
    double_free,
    duplicates_freed_twice,
    handed_out_while_arriving,
    pin_kept_on_abort,
    pages_kept_on_abort,
    published_behind_a_failure,
    published_although_it_failed,
    copied_twice,
    waits_for_ever,
    pages_lost_after_a_burst,
    split_forgets_pins,
]


def is_good(seed: int) -> bool:
    """Whether a random workload passes all checks."""
    try:
        assert_good(Run(random_workload(Random(seed))))
    except Exception:
        return False
    return True


def survived(seeds: int) -> int:
    """How many random workloads go by before a check fails."""
    for seed in range(seeds):
        if not is_good(seed):
            gc.collect()  # what the broken run left under way goes here, not in another test
            return seed
    return seeds


def test_without_a_mutant_all_is_well():
    assert survived(SEEDS) == SEEDS


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.__name__)
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_a_mutant_is_seen(mutant, monkeypatch):
    mutant(monkeypatch)
    assert survived(SEEDS) < SEEDS
