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

from hicache.eviction import STRATEGIES
from hicache.options import (
    EVICTION_NAMES,
    CacheOptions,
    EngineOptions,
    OffloadOptions,
    PrefetchOptions,
    RestoreOptions,
    SchedulerOptions,
    StorageOptions,
)
from hicache.requests import Request

Contents = Sequence[int]
PLAIN_EVICTIONS = tuple(name for name in EVICTION_NAMES if name in STRATEGIES)
REMEMBERING_EVICTIONS = [name for name in EVICTION_NAMES if name not in STRATEGIES]


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
    restores = pick(["overlapped", "overlapped", "layerwise", "layerwise", "blocking"])
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
            eviction=pick(PLAIN_EVICTIONS),
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
            overlap=restores != "blocking",
            layerwise=restores == "layerwise",
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


def random_victims(rng: Random, cache: CacheOptions) -> CacheOptions:
    """The same with any rules of what leaves, when, and how much of it."""
    pick = rng.choice
    marks = pick([(0.0, 0.0, 0.0, 0.0)] * 4 + [(0.9, 0.5, 0.0, 0.0), (0.5, 0.5, 1.0, 0.1)])
    return replace(
        cache,
        eviction=pick([cache.eviction] * 3 + REMEMBERING_EVICTIONS),
        l1_eviction_amount=pick(["shortfall", "shortfall", "request"]),
        l2_eviction_amount=pick(["shortfall", "shortfall", "request"]),
        l2_victims=pick(["any", "any", "not_in_l1", "duplicates_first"]),
        load_eviction_amount=pick(["shortfall", "request"]),
        touch=pick(["matched", "walked"]),
        node_boundaries=pick(["run", "insert"]),
        prompt_priority_step=pick([0, 1]),
        l1_high_watermark=marks[0],
        l1_low_watermark=marks[1],
        l2_high_watermark=marks[2],
        l2_low_watermark=marks[3],
    )


def random_writes(rng: Random, cache: CacheOptions) -> CacheOptions:
    """The same with any rules of what is written below L1, when, and in how many copies."""
    pick = rng.choice
    policies = ["write_through", "write_through_selective", "write_back", "write_back"]
    return replace(
        cache,
        hit_counting=pick(["request", "insert"]),
        write_policy=pick([cache.write_policy] * 2 + policies),
        write_after_hits=pick([0, 0, 1, 2, 3]),
        write_unit=pick(["path", "node"]),
    )


# L3 comes and goes, now and then; in seconds, as everywhere in options.
SWITCHES: list[dict[str, float]] = [
    {}, {}, {}, {"attach_s": 4e-7}, {"detach_s": 4e-7}, {"attach_s": 2e-6, "detach_s": 3e-7},
]  # fmt: skip


def random_store(rng: Random, options: EngineOptions) -> EngineOptions:
    """The same with an L3 that is asked by page key, now and then."""
    pick = rng.choice
    storage = StorageOptions("tree", pick([1, 1, 2, 3]))
    if not options.storage_pages or pick([True, False]):
        return replace(options, storage=storage)
    prefetch = PrefetchOptions(
        mode="queued",
        threshold_tokens=pick([0, 1, 4]),
        stop=pick(["best_effort", "wait_complete", "timeout"]),
        timeout_base_s=pick([0.0, 1e-8, 3e-7]),
        timeout_per_ki_token_s=pick([0.0, 1e-5]),
        timeout_max_s=pick([0.0, 1e-7]),
        query_batch_pages=pick([1, 2, 128]),
        read_batch_pages=pick([1, 2, 128]),
        workers=pick([1, 2]),
        limit=pick(["host", "host_less_device"]),
        limit_fraction=pick([0.5, 1.0, 1.0]),
        allocate=pick(["after_lookup", "before_lookup"]),
        shortfall=pick(["trim", "revoke"]),
        publish=pick(["done", "turn"]),
        retries=pick([0, 0, 2]),
        retry_passes=pick([1, 3]),
    )
    storage = replace(storage, index="store", **rng.choice(SWITCHES))
    return replace(options, storage=storage, prefetch=prefetch)


def random_loads(rng: Random, restore: RestoreOptions) -> RestoreOptions:
    """The same with any rules of when loads begin, and in how many copies."""
    start = rng.choice(["admission", "prefill"]) if restore.overlap else "admission"
    return replace(restore, start=start, merge_loads=rng.choice([False, True]))


def random_offload(rng: Random, options: EngineOptions) -> EngineOptions:
    """The same with answers that are written while they are made, now and then."""
    offload = OffloadOptions(rng.choice([False, True]), rng.choice([0, 0, 3, 8]))
    return replace(options, offload=offload)


def random_meeting(rng: Random, restore: RestoreOptions) -> RestoreOptions:
    """The same, now and then loading a part of a hit and computing the rest."""
    pick = rng.choice
    meets = pick([True, False, False]) and restore.overlap
    return replace(
        restore,
        policy="meet" if meets else restore.policy,
        layerwise=pick([True, True, False]) if meets else restore.layerwise,
        queue_aware=pick([False, True]),
        # Pages come in some 100 ns here, so that computing one must not be believed to take long.
        prior_recompute_us_per_token=pick([0.1, 0.02]) if meets else 50.0,
    )


def random_buffer(rng: Random, options: EngineOptions) -> EngineOptions:
    """The same with an L2 that is only a buffer, now and then."""
    if not options.has_store or options.cache.write_policy == "write_back":
        return options
    return replace(options, host_mode=rng.choice(["cache", "buffer_only"]))


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
    # Drawn last, so that the rest of a workload is what it was without.
    options = replace(options, cache=random_victims(rng, options.cache))
    options = replace(options, cache=random_writes(rng, options.cache))
    options = replace(options, restore=random_loads(rng, options.restore))
    options = random_store(rng, options)
    options = random_offload(rng, options)
    options = replace(options, restore=random_meeting(rng, options.restore))
    options = random_buffer(rng, options)
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
