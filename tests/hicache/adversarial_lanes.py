"""A machine of the tests' own: every operation has a fate, and in named mode pages have contents.

Completions enter through `stamp` and `post` only, as the port demands, and no finish is scheduled
in advance: a copy ends when its device is done and is noticed some time later, a burst is looked at
after each step. Nothing is imported from `sim`, so that both can be wrong independently.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import count
from typing import NamedTuple

from simpy import Environment

from hicache.errors import TransferError
from hicache.kernel import Pending, post, stamp
from hicache.operations import (
    Completion,
    Copy,
    Decode,
    Lookup,
    Operation,
    PageRuns,
    Prefill,
)

TIER_OF = {"d2h": (0, 1), "h2s": (1, 2), "s2h": (2, 1), "h2d": (1, 0)}


class Fate(NamedTuple):
    """What becomes of one operation. `took_ns` on the device (for a burst: each step), `notice_ns`
    until somebody looks; `fails` holds for copies, and for prefills that overlap with one; `held`
    waits for `release`; `setup_ns` is said to be one-off.
    """

    took_ns: int = 10
    notice_ns: int = 0
    fails: bool = False
    held: bool = False
    setup_ns: int = 0


def in_turn(fates: Sequence[Fate]) -> Callable[[Operation], Fate]:
    """Deal `fates` out in the order of submissions, again and again."""
    turns = count()
    return lambda operation: fates[next(turns) % len(fates)]


def can_fail(operation: Operation) -> bool:
    """Whether an operation may end in a TransferError."""
    return isinstance(operation, Copy | Lookup) or (
        isinstance(operation, Prefill) and operation.load >= 0
    )


class AdversarialLanes:
    """`hicache.ports.Lanes`. `submitted` lists every operation with its Pending. `store`: the page
    keys that L3 knows, where it is asked by key; tests may put keys in and take them out. `stores`:
    of every rank, rank 0's being `store`; `others`: what stands in the memory of ranks 1 and up.
    """

    def __init__(
        self,
        env: Environment,
        fate: Callable[[Operation], Fate] = lambda operation: Fate(),
        numbers: Iterator[int] | None = None,
    ) -> None:
        self.env = env
        self.fate = fate
        self.submitted: list[tuple[Pending[Completion], Operation]] = []
        self.under_way: dict[int, Operation] = {}
        self.ended: set[int] = set()  # bursts asked to end
        self.memory: Memory | None = None
        self.store: dict[int, None] = {}
        self.stores = [self.store]
        self.others: list[Memory] = []
        self.store_pages = 0  # that it has room for; 0: for all
        self._numbers = numbers if numbers is not None else count()
        self._held: dict[int, Callable[[bool], None]] = {}

    def submit(self, operation: Operation) -> Pending[Completion]:
        """Take `operation` and let its fate happen."""
        now = int(self.env.now)
        pending: Pending[Completion] = Pending(self.env, next(self._numbers), now)
        self.submitted.append((pending, operation))
        self.under_way[pending.number] = operation
        fate = self.fate(operation)
        if self.memory is not None:
            for memory in self._memories(operation):
                if isinstance(operation, Copy):
                    memory.begin(pending.number, operation)
                elif not isinstance(operation, Lookup):
                    memory.forget_private()
        if isinstance(operation, Decode):
            self._step(pending, operation, fate, ())
        elif fate.held:
            self._held[pending.number] = lambda fails: self._notice(
                pending, operation, fate._replace(fails=fails)
            )
        else:
            self._after(fate.took_ns, lambda: self._notice(pending, operation, fate))
        return pending

    def end_burst(self, pending: Pending[Completion]) -> None:
        """The burst ends after the step under way."""
        assert isinstance(
            next(op for other, op in reversed(self.submitted) if other is pending), Decode
        )
        self.ended.add(pending.number)

    def release(self, number: int, *, fails: bool = False) -> None:
        """Let a held operation come to its end now."""
        self._held.pop(number)(fails)

    def held(self, direction: str) -> list[int]:
        """Numbers of the held copies of a direction."""
        return [n for n in self._held if getattr(self.under_way[n], "direction", "") == direction]

    def _step(
        self, pending: Pending[Completion], operation: Decode, fate: Fate, ends: tuple[int, ...]
    ) -> None:
        def boundary() -> None:
            now_ends = (*ends, int(self.env.now))
            if len(now_ends) == operation.max_steps or pending.number in self.ended:
                self._notice(pending, operation, fate._replace(fails=False), now_ends)
            else:
                self._step(pending, operation, fate, now_ends)

        self._after(max(1, fate.took_ns), boundary)

    def _notice(
        self,
        pending: Pending[Completion],
        operation: Operation,
        fate: Fate,
        ends: tuple[int, ...] = (),
    ) -> None:
        finished = int(self.env.now)

        def act() -> None:
            at = stamp(self.env, finished)
            del self.under_way[pending.number]
            fails = fate.fails and can_fail(operation)
            answer = len(ends)
            if not fails:
                answer = self._answer(operation, answer)
            if self.memory is not None and isinstance(operation, Copy):
                for memory in self._memories(operation):
                    memory.end(pending.number, arrived=not fails, answer=answer)
            if fails:
                post(self.env, pending, TransferError(f"operation {pending.number} failed"), at)
                return
            started = min(finished, pending.submitted_ns)
            done = Completion(
                pending.number, operation, pending.submitted_ns, started, finished, at,
                fate.setup_ns, answer, ends,
            )  # fmt: skip
            post(self.env, pending, done, at)

        self._after(fate.notice_ns, act)

    def _memories(self, operation: Operation) -> list[Memory]:
        """Those that it concerns: of one rank where it is asked by key, else of all."""
        assert self.memory is not None
        memories = [self.memory, *self.others]
        if isinstance(operation, Copy) and operation.keys:
            return [memories[operation.rank]]
        return memories

    def _answer(self, operation: Operation, steps: int) -> int:
        store = self.stores[getattr(operation, "rank", 0)]
        return answer_of(store, self.store_pages, operation, steps)

    def _after(self, delay_ns: int, act: Callable[[], None]) -> None:
        if delay_ns:
            self.env.timeout(delay_ns).callbacks.append(lambda event: act())
        else:
            act()


def answer_of(store: dict[int, None], store_pages: int, operation: Operation, steps: int) -> int:
    """What a completion says in `steps`; a write by keys puts them into the store, which has room
    for `store_pages` (0: for all).
    """
    if not isinstance(operation, Lookup | Copy) or not operation.keys:
        return steps
    keys = pages_of(operation.keys)
    assert len(keys) == operation.pages
    if isinstance(operation, Copy) and operation.direction == "h2s":
        new = sum(key not in store for key in keys)
        store.update(dict.fromkeys(keys))
        while store_pages and len(store) > store_pages:
            del store[next(iter(store))]
        return new
    return next((place for place, key in enumerate(keys) if key not in store), len(keys))


class Reading(NamedTuple):
    """A copy under way: its pages, and what the source held when it began."""

    source_tier: int
    source: list[int]
    target_tier: int
    target: list[int]
    carried: list[int]


class Memory:
    """What stands in every page of host memory and storage, and in restored pages of the GPU.

    Contents are page keys. `keys_of` says which key the tree takes each published page of a tier
    for. Out of L1 a copy carries these; out of L2 and L3, what the memory really holds.
    """

    def __init__(self, keys_of: Callable[[int], dict[int, int]]) -> None:
        self._keys_of = keys_of
        self.contents: list[dict[int, int]] = [{}, {}, {}]
        self._under_way: dict[int, Reading] = {}

    def begin(self, number: int, copy: Copy) -> None:
        """Look at the source when the copy is submitted. A store has no page numbers."""
        tier, target_tier = TIER_OF[copy.direction]
        source, target = pages_of(copy.source), pages_of(copy.target)
        keys = pages_of(copy.keys)
        for tier_of, pages in ((tier, source), (target_tier, target)):
            count = 0 if keys and tier_of == 2 else copy.pages
            assert len(set(pages)) == len(pages) == count
        for other in self._under_way.values():
            if other.target_tier == target_tier:
                assert not set(target) & set(other.target), "two copies write one page"
            if other.source_tier == target_tier:
                assert not set(target) & set(other.source), "a page is written while it is read"
        held = self._held(tier)
        assert all(page in held for page in source), "a page that never arrived is read"
        carried = [held[page] for page in source]
        if keys:
            assert source == [] or carried == keys, "pages are stored under other keys"
            carried = keys
        self._under_way[number] = Reading(tier, source, target_tier, target, carried)

    def end(self, number: int, *, arrived: bool, answer: int = 0) -> None:
        """The source must be what it was, and the target holds it now (or nothing certain); of a
        read by keys only the first `answer` pages.
        """
        reading = self._under_way.pop(number)
        held = self._held(reading.source_tier)
        if reading.source:
            still = [held.get(page) for page in reading.source]
            assert still == reading.carried, "a page changed while it was read"
        published = self._keys_of(reading.target_tier)
        contents = self.contents[reading.target_tier]
        came = len(reading.target) if reading.source else answer
        for place, (page, key) in enumerate(
            zip(reading.target, reading.carried, strict=bool(reading.target))
        ):
            assert page not in published, "a page was published before its bytes arrived"
            contents.pop(page, None)
            if arrived and place < came:
                contents[page] = key

    def forget_private(self) -> None:
        """The GPU is about to write its private pages: what was restored into them is gone."""
        published, restored = self._keys_of(0), self.contents[0]
        for page in [page for page in restored if page not in published]:
            del restored[page]

    def check(self) -> None:
        """Every page that L2 or L3 has published holds what the tree says, and so does every page
        of L1 that was restored and has stayed published since.
        """
        for tier in (1, 2):
            keys = self._keys_of(tier)
            if keys.items() <= self.contents[tier].items():
                continue
            for page, key in keys.items():
                held = self.contents[tier].get(page)
                assert held == key, f"page {page} of tier {tier} holds {held}, not {key}"
        self.forget_private()
        keys = self._keys_of(0)
        for page, key in self.contents[0].items():
            assert keys[page] == key, f"page {page} of L1 holds {key}, not {keys[page]}"

    def _held(self, tier: int) -> dict[int, int]:
        return self.contents[tier] if tier else self._keys_of(0)


def pages_of(runs: PageRuns) -> list[int]:
    """A page list written out."""
    return [page for first, length in runs for page in range(first, first + length)]
