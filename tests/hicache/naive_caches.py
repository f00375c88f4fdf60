"""Hit counts worked out without a tree: slow, obvious, and independent of the engine.

Semantics (those of the golden counts): strict file order; look up, then insert, at once; one tier;
a hit is the leading run of cached pages; when room is needed the leaf goes that is oldest, the
deeper one first where two are equally old, and never one of the current request.
"""

from __future__ import annotations

import json
from collections import OrderedDict
from collections.abc import Iterable, Sequence
from heapq import heappop, heappush
from pathlib import Path

import pytest
from simpy import Environment
from small_workloads import runs_of

from hicache.engine import Engine
from hicache.kernel import Pending, completed
from hicache.operations import Completion, Operation
from hicache.options import CacheOptions, EngineOptions, EvictionName
from hicache.requests import Request

SHARED = Path(__file__).resolve().parents[2].parent / "shared"
TRACE = SHARED / "traces" / "mooncake_conversation.jsonl"
GOLDENS = SHARED / "goldens" / "mooncake_conversation.json"

Prompt = Sequence[int]  # page keys; the same key always stands behind the same keys


def brute_force(prompts: Iterable[Prompt], capacity: int, eviction: str) -> list[int]:
    """Hit pages of each prompt. Looks at every cached page for each one that must leave."""
    created: dict[tuple[int, ...], int] = {}
    used: dict[tuple[int, ...], int] = {}
    age = {"lru": used, "fifo": created}[eviction]
    hits = []
    for now, prompt in enumerate(prompts):
        path = tuple(prompt)
        mine = {path[: end + 1] for end in range(len(path))}
        known = next((n for n in range(len(path)) if path[: n + 1] not in used), len(path))
        hits.append(known)
        for end in range(1, known + 1):
            used[path[:end]] = now
        for end in range(known + 1, len(path) + 1):
            if len(used) == capacity:
                inner = {page[:-1] for page in used}
                leaves = [page for page in used if page not in inner and page not in mine]
                victim = min(leaves, key=lambda page: (age[page], -len(page)))
                del used[victim], created[victim]
            used[path[:end]] = created[path[:end]] = now
    return hits


def flat_lru(prompts: Iterable[Prompt], capacity: int) -> list[int]:
    """Leaf LRU is an ordinary LRU of pages that touches each request's pages last to first."""
    pages: OrderedDict[int, None] = OrderedDict()
    hits = []
    for prompt in prompts:
        known = next((n for n, key in enumerate(prompt) if key not in pages), len(prompt))
        hits.append(known)
        for key in reversed(prompt):
            pages[key] = None
            pages.move_to_end(key)
        while len(pages) > capacity:
            pages.popitem(last=False)
    return hits


def leaf_fifo(prompts: Iterable[Prompt], capacity: int) -> list[int]:
    """Leaf FIFO with a heap of pages and a count of each page's cached children."""
    created: dict[int, int] = {}
    parent: dict[int, int] = {}
    children: dict[int, int] = {}
    heap: list[tuple[int, int, int]] = []  # (created, -depth, page)
    depth: dict[int, int] = {}
    hits = []
    for now, prompt in enumerate(prompts):
        known = next((n for n, key in enumerate(prompt) if key not in created), len(prompt))
        hits.append(known)
        mine = set(prompt)
        for place in range(known, len(prompt)):
            key = prompt[place]
            skipped = []
            while len(created) == capacity:
                entry = heappop(heap)
                page = entry[2]
                if created.get(page) != entry[0] or children[page]:
                    continue  # out of date, or not a leaf: offered again when it is one
                if page in mine:
                    skipped.append(entry)
                    continue
                del created[page]
                above = parent[page]
                if above >= 0:
                    children[above] -= 1
                    if not children[above]:
                        heappush(heap, (created[above], -depth[above], above))
            for entry in skipped:
                heappush(heap, entry)
            created[key], children[key], depth[key] = now, 0, place
            parent[key] = prompt[place - 1] if place else -1
            if place:
                children[parent[key]] += 1
            heappush(heap, (now, -place, key))
    return hits


class InstantLanes:
    """Nothing takes time."""

    def __init__(self, env: Environment) -> None:
        self._env = env
        self._submissions = 0

    def submit(self, operation: Operation) -> Pending[Completion]:
        """It is over."""
        now, number = int(self._env.now), self._submissions
        self._submissions += 1
        return completed(self._env, number, Completion(number, operation, now, now, now, now))

    def end_burst(self, pending: Pending[Completion]) -> None:
        """It is over."""


def engine_hits(
    requests: Iterable[Request], capacity: int, eviction: EvictionName, page_size_tokens: int = 1
) -> Engine:
    """An engine with the semantics above, after it has served `requests`."""
    env = Environment(0)
    cache = CacheOptions(
        pages="partial",
        hit_cap="none",
        outputs="dropped",
        eviction=eviction,
        eviction_granularity="page",
    )
    engine = Engine(
        env, InstantLanes(env), EngineOptions(page_size_tokens, 1, capacity, cache=cache)
    )
    engine.serve_untimed(requests)
    return engine


def shared_file(path: Path) -> Path:
    """`path`, or the test is skipped."""
    if not path.exists():
        pytest.skip(f"{path.parent.name}/{path.name} of the shared data is not here")
    return path


def trace_requests(limit: int | None = None, page_size_tokens: int = 512) -> list[Request]:
    """The first requests of the conversation trace, cut into pages: partial ones too."""
    per_block = 512 // page_size_tokens
    requests = []
    with shared_file(TRACE).open() as lines:
        for number, line in enumerate(lines):
            if number == limit:
                break
            row = json.loads(line)
            pages = -(-row["input_length"] // page_size_tokens)
            runs = [
                (first * per_block, count * per_block) for first, count in runs_of(row["hash_ids"])
            ]
            missing = sum(count for _, count in runs) - pages
            assert 0 <= missing < per_block
            runs[-1] = (runs[-1][0], runs[-1][1] - missing)
            requests.append(
                Request(number, 0, row["input_length"], row["output_length"], tuple(runs), pages)
            )
    return requests


def keys_of(request: Request) -> list[int]:
    """A request's page keys, written out."""
    return [key for first, count in request.prompt_runs for key in range(first, first + count)]
