"""What the tests of curves and the optimum share: small traces, and caches that know no tree."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from simpy import Environment

from hicache.engine import Engine
from hicache.options import CacheOptions, EngineOptions
from hicache.requests import Request
from sim.curve_points import HitCurve, curve_of
from sim.curve_trace import CurveRules, ExactReuse, TraceUses, read_uses
from sim.instant import InstantLanes
from traces.cut import Runs, add_run
from traces.reader import open_trace

SHARED = Path(__file__).resolve().parents[3] / "shared"
CONVERSATION = SHARED / "traces" / "mooncake_conversation.jsonl"
GOLDENS = SHARED / "goldens" / "mooncake_conversation.json"
BLOCK_LRU = CacheOptions(
    pages="partial",
    hit_cap="none",
    outputs="dropped",
    eviction_granularity="page",
)

Prompt = Sequence[int]
prompts = st.lists(st.lists(st.integers(0, 1), min_size=1, max_size=6), min_size=1, max_size=30)


def examples(number: int) -> settings:
    """The same ones in every run."""
    return settings(max_examples=number, deadline=None, derandomize=True, database=None)


class Listed:
    """Prompts of one-token pages in place of a trace's file."""

    shown = "a list"

    def __init__(self, prompts: Iterable[Prompt], output_tokens: int = 1) -> None:
        self.paths = [tuple(prompt) for prompt in prompts]
        self._requests: list[Request] = []
        keys: dict[tuple[int, ...], int] = {}
        for number, path in enumerate(self.paths):
            runs: Runs = []
            known = 0
            for end in range(1, len(path) + 1):
                known += path[:end] in keys
                add_run(runs, keys.setdefault(path[:end], len(keys)), 1)
            self._requests.append(
                Request(number, 0, len(path), output_tokens, tuple(runs), len(path), known)
            )

    def requests(self, page_size_tokens: int = 1, pages: str = "partial") -> Iterator[Request]:
        """As of `traces.reader.Trace`."""
        return iter(self._requests)


def exact(trace: Any, page: int = 1, **rules: Any) -> tuple[TraceUses, ExactReuse, HitCurve]:
    """One exact pass, and the curve of all requests."""
    taker = ExactReuse()
    uses = read_uses(trace, CurveRules(page, **rules), [taker])
    return uses, taker, curve_of(taker.reuse.hit_runs, page, uses.shortfalls)


def replayed(
    requests: Iterable[Request],
    page: int,
    *tiers: int,
    cache_options: CacheOptions = BLOCK_LRU,
) -> Engine:
    """An engine after an untimed replay, as `hicache replay --untimed` does it."""
    from hicache.options import RestoreOptions

    env = Environment(0)
    l1, l2, l3 = (*tiers, 0, 0)[:3]
    options = EngineOptions(
        page, 1, l1, l2, l3, cache=cache_options, restore=RestoreOptions(policy="always")
    )
    engine = Engine(env, InstantLanes(env), options)
    engine.serve_untimed(requests)
    return engine


def flat_lru(prompts: Iterable[Prompt], capacity: int) -> int:
    """Hits of a plain LRU of pages that touches each prompt's pages last to first."""
    return exclusive_lru(prompts, [capacity])[0]


def exclusive_lru(prompts: Iterable[Prompt], capacities: Sequence[int]) -> list[int]:
    """Hits of each of several LRU caches; what one lets go of goes to the next, what is asked for
    comes back to the first.
    """
    tiers: list[OrderedDict[tuple[int, ...], None]] = [OrderedDict() for _ in capacities]
    hits = [0] * len(tiers)
    for prompt in prompts:
        paths = [tuple(prompt[: end + 1]) for end in range(len(prompt))]
        for path in paths:
            holder = next((place for place, tier in enumerate(tiers) if path in tier), None)
            if holder is None:
                break
            hits[holder] += 1
        for path in reversed(paths):
            for tier in tiers:
                tier.pop(path, None)
            tiers[0][path] = None
        for place, (tier, capacity) in enumerate(zip(tiers, capacities, strict=True)):
            while len(tier) > capacity:
                path, _ = tier.popitem(last=False)
                if place + 1 < len(tiers):
                    tiers[place + 1][path] = None
    return hits


def shared(path: Path) -> Path:
    """`path`, or the test is skipped."""
    if not path.exists():
        pytest.skip(f"needs ../shared/{path.parent.name}/{path.name}")
    return path


@cache
def conversation() -> list[Request]:
    """The conversation trace at pages of a block."""
    return list(open_trace(shared(CONVERSATION)).requests(512, "partial"))
