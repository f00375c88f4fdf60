"""Small random workloads: prompts, options, fates and aborts, and what an infinite cache would hit.

A prompt is drawn as page contents from a tiny alphabet, so that prefixes are shared all the time,
and interned to page keys the way traces number them: new pages of a prompt are consecutive.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from random import Random
from typing import Any

from adversarial_lanes import Fate
from hypothesis import strategies as st

from hicache.options import (
    EVICTION_NAMES,
    CacheOptions,
    EngineOptions,
    RestoreOptions,
    SchedulerOptions,
)
from hicache.requests import Request

Contents = Sequence[int]


class Keys:
    """Numbers (prefix, content of the next page), each once."""

    def __init__(self) -> None:
        self._numbers: dict[tuple[int, int], int] = {}

    def keys(self, contents: Contents) -> list[int]:
        """The page key of each page of a prompt."""
        key, found = -1, []
        for content in contents:
            key = self._numbers.setdefault((key, content), len(self._numbers))
            found.append(key)
        return found

    def contents(self, keys: Sequence[int]) -> tuple[int, ...]:
        """The contents of the pages with these keys."""
        by_key = {key: content for (_, content), key in self._numbers.items()}
        return tuple(by_key[key] for key in keys)

    def runs(self, contents: Contents) -> tuple[tuple[int, int], ...]:
        """A prompt's keys as runs of consecutive ones."""
        return runs_of(self.keys(contents))


def runs_of(keys: Sequence[int]) -> tuple[tuple[int, int], ...]:
    """Keys written as runs `((first, count), ...)`."""
    runs: list[tuple[int, int]] = []
    for key in keys:
        if runs and runs[-1][0] + runs[-1][1] == key:
            runs[-1] = (runs[-1][0], runs[-1][1] + 1)
        else:
            runs.append((key, 1))
    return tuple(runs)


@dataclass(frozen=True)
class Call:
    """One request of a workload. `tail_tokens` stand on a last page that is not full."""

    gap_ns: int
    contents: tuple[int, ...]
    tail_tokens: int
    output_tokens: int
    priority: int = 0


@dataclass(frozen=True)
class Workload:
    """Everything that a run depends on."""

    options: EngineOptions
    calls: tuple[Call, ...]
    fates: tuple[Fate, ...] = (Fate(),)
    aborts: tuple[tuple[int, int], ...] = ()  # (time, request)

    def but(self, **changes: Any) -> Workload:
        """The same workload with other options."""
        return replace(self, options=replace(self.options, **changes))

    @property
    def faultless(self) -> bool:
        """Whether no copy can fail."""
        return not any(fate.fails for fate in self.fates)

    def requests(self) -> list[Request]:
        """The requests, numbered from 0, with their ideal hits."""
        keys, seen = Keys(), set[int]()
        page, partial = self.options.page_size_tokens, self.options.cache.pages == "partial"
        requests, now = [], 0
        for number, call in enumerate(self.calls):
            now += call.gap_ns
            tail = min(call.tail_tokens, page - 1)
            contents = list(call.contents)
            if not contents and not tail:
                contents = [0]
            tokens = len(contents) * page + tail
            if tail and partial:
                contents.append(1000 + tail)
            named = keys.keys(contents)
            ideal = next((n for n, key in enumerate(named) if key not in seen), len(named))
            seen.update(named)
            requests.append(
                Request(
                    number, now, tokens, call.output_tokens, runs_of(named), len(named), ideal,
                    f"session {number % 3}", call.priority,
                )
            )  # fmt: skip
        return requests


def random_options(rng: Random, most_pages_needed: int, page_size_tokens: int) -> EngineOptions:
    """Any options an engine can be given, with tiers that are nearly always short of room."""
    pick = rng.choice
    host = pick([0, 4, 9, 30])
    return EngineOptions(
        page_size_tokens=page_size_tokens,
        bytes_per_token=pick([1, 3 << 20]),
        device_pages=most_pages_needed + pick([0, 0, 1, 2, 5, 20]),
        host_pages=host,
        storage_pages=pick([0, 6, 60]) if host else 0,
        cache=CacheOptions(
            pages=pick(["full", "partial"]),
            hit_cap=pick(["last_token_computed", "none"]),
            outputs=pick(["cached", "dropped"]),
            eviction=pick(EVICTION_NAMES),
            eviction_granularity=pick(["node", "page"]),
            write_policy=pick(["write_through"] * 5 + ["none"]),
            write_at=pick(["finish", "prefill"]),
            writes_in_flight=pick([1, 2, 3]),
            merge_writes_tokens=pick([0, 8, 65536]),
            write_backlog_fraction=pick([0.0, 0.5, 1.0]),
        ),
        restore=RestoreOptions(
            policy=pick(["always", "always", "cost", "threshold", "never"]),
            threshold_tokens=pick([0, 4]),
            overlap=pick([True, True, False]),
            probe_every=pick([0, 2]),
        ),
        scheduler=SchedulerOptions(
            max_running_requests=pick([1, 2, 256, 256]),
            chunk_tokens=pick([1, 3, 8192]),
            mixed_chunk=pick([False, True]),
            output_reserve_fraction=pick([0.0, 0.0, 0.3, 1.0]),
        ),
        page_ids=pick(["named", "counted"]),
        check_every_steps=1,
    )


def random_call(rng: Random) -> Call:
    """One request; its prompt shares a prefix with most others."""
    pick = rng.choice
    likely = pick([(0,), (0, 1)])
    return Call(
        gap_ns=pick([0, 0, 1, 7, 40, 300, 2000]),
        contents=tuple(pick(likely) for _ in range(rng.randrange(8))),
        tail_tokens=rng.randrange(4),
        output_tokens=rng.randrange(10),
        priority=rng.randrange(3),
    )


def random_fate(rng: Random, one_in: int) -> Fate:
    """What becomes of an operation; one copy in `one_in` fails (0: none)."""
    return Fate(
        took_ns=rng.choice([0, 1, 5, 20, 200, 1500]),
        notice_ns=rng.choice([0, 0, 1, 30]),
        fails=one_in > 0 and rng.randrange(one_in) == 0,
    )


def random_workload(rng: Random, *, faults: bool = True, most_calls: int = 12) -> Workload:
    """Any small workload."""
    page = rng.choice([1, 2, 4])
    calls = tuple(random_call(rng) for _ in range(rng.randrange(1, most_calls + 1)))
    options = random_options(rng, max(pages_needed(call, page) for call in calls), page)
    one_in = rng.choice([0, 2, 10]) if faults else 0
    fates = tuple(random_fate(rng, one_in) for _ in range(rng.randrange(1, 20)))
    aborts = tuple(
        (rng.randrange(4000), rng.randrange(len(calls))) for _ in range(rng.choice([0, 0, 1, 4]))
    )
    return Workload(options, calls, fates, aborts)


def pages_needed(call: Call, page_size_tokens: int) -> int:
    """L1 pages that `call` fills in the end, when it is alone."""
    tail = min(call.tail_tokens, page_size_tokens - 1)
    prompt = len(call.contents) * page_size_tokens + tail or page_size_tokens
    return -(-(prompt + max(call.output_tokens, 1) - 1) // page_size_tokens)


workloads = st.randoms(use_true_random=False).map(random_workload)
calm_workloads = st.randoms(use_true_random=False).map(
    lambda rng: random_workload(rng, faults=False)
)
