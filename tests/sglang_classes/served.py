"""One workload, served one request at a time by SGLang's RadixCache and by our engine.

A request is a path of page keys and how many pages its answer adds. Both sides report, for each
request, how many pages hit and which pages left, in order, by their keys.

    hit -> lock -> evict what is short -> compute -> insert the prompt -> insert prompt + answer

Ours is `hicache.untimed`. Theirs is driven as their scheduler does: `cache_unfinished_req` and
`cache_finished_req` in 0.5.20, `checkpoint` twice in 0.5.23.
"""

from __future__ import annotations

import random
from array import array
from collections.abc import Iterable, Sequence
from types import SimpleNamespace
from typing import Any, NamedTuple

import torch
from published import Ticks, load, version

from hicache.metrics import Metrics
from hicache.options import CacheOptions, EngineOptions, EvictionName
from hicache.requests import Request
from hicache.tier import Tier
from hicache.tree import HiRadixTree
from hicache.untimed import UntimedServer

PAGE = 2
WIDEST = 4096


class Ask(NamedTuple):
    """`prompt`: keys of its full pages; `extra`: tokens beyond them; `answer`: keys of the pages
    behind, the rest of the partly filled one included.
    """

    prompt: tuple[int, ...]
    extra: int
    answer: tuple[int, ...]
    priority: int = 0

    @property
    def prompt_tokens(self) -> int:
        return len(self.prompt) * PAGE + self.extra

    @property
    def output_tokens(self) -> int:
        """So many that prompt + answer but for its last token fill the answer's pages."""
        if not self.answer:
            return 1
        return len(self.answer) * PAGE - self.extra + 1


class Outcome(NamedTuple):
    """Of one request."""

    hit_pages: int
    victims: tuple[int, ...]


def runs(keys: Iterable[int]) -> list[tuple[int, int]]:
    made: list[list[int]] = []
    for key in keys:
        if made and made[-1][0] + made[-1][1] == key:
            made[-1][1] += 1
        else:
            made.append([key, 1])
    return [(first, count) for first, count in made]


# ------------------------------------------------------------------ ours


class Recording:
    """An allocator that notes what it is given, in order."""

    def __init__(self, real: Any, gone: list[int]) -> None:
        self._real, self._gone = real, gone

    def give(self, pages: Any, count: int) -> None:
        self._gone.extend(page for first, n in pages for page in range(first, first + n))
        self._real.give(pages, count)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._real, name)


def rules() -> dict[str, Any]:
    """Options of `cache` that make ours what the version under test is."""
    counting = "insert" if version() == "0.5.20" else "request"
    return {
        "eviction_granularity": "node",
        "touch": "walked",
        "hit_counting": counting,
        "node_boundaries": "insert",
        "prompt_priority_step": 1,
    }


class Ours:
    """Our engine without time, whole nodes evicted."""

    def __init__(self, pages: int, eviction: EvictionName) -> None:
        options = EngineOptions(
            page_size_tokens=PAGE,
            bytes_per_token=1,
            device_pages=pages,
            cache=CacheOptions(eviction=eviction, **rules()),
            page_ids="named",
        )
        self.tree = HiRadixTree(options)
        self.metrics = Metrics()
        self.server = UntimedServer(self.tree, self.metrics, options)
        self.count = 0

    def serve(self, ask: Ask, monkeypatch: Any) -> Outcome:
        """One request."""
        keys_of = self._keys_of_pages()
        gone: list[int] = []
        evict = Tier.evict

        def watched(tier: Tier, count: int, prune: Any) -> int:
            real = tier.allocator
            tier.allocator = Recording(real, gone)  # type: ignore[assignment]
            try:
                return evict(tier, count, prune)
            finally:
                tier.allocator = real

        request = Request(
            self.count, -1, ask.prompt_tokens, ask.output_tokens, runs(ask.prompt),
            len(ask.prompt), priority=ask.priority, output_runs=runs(ask.answer),
        )  # fmt: skip
        self.count += 1
        before = self.metrics.cached_pages[0]
        with monkeypatch.context() as patch:
            patch.setattr(Tier, "evict", watched)
            self.server.serve([request])
        hit = self.metrics.cached_pages[0] - before
        return Outcome(hit, tuple(keys_of[page] for page in gone))

    def _keys_of_pages(self) -> dict[int, int]:
        found: dict[int, int] = {}
        stack = [self.tree.root]
        while stack:
            node = stack.pop()
            stack.extend(node.children.values())
            key = node.start
            for first, count in node.pages[0]:
                for page in range(first, first + count):
                    found[page] = key
                    key += 1
        return found


# ------------------------------------------------------------------ theirs


class Allocator:
    """Pages of `PAGE` slots, as much of SGLang's allocator as its tree calls."""

    device = "cpu"
    page_size = PAGE

    def __init__(self, pages: int) -> None:
        self.free_pages = list(range(pages))
        self.key_of: dict[int, int] = {}
        self.freed: list[int] | None = None  # keys, while evicting

    def take(self, keys: Sequence[int]) -> list[int]:
        """Slots for so many pages, which will hold these keys (-1: a partly filled one)."""
        slots: list[int] = []
        for key in keys:
            page = self.free_pages.pop(0)
            self.key_of[page] = key
            slots += range(page * PAGE, (page + 1) * PAGE)
        return slots

    def free_segment(self, slots: torch.Tensor, start_pos: int = 0) -> None:
        """A consecutive part of a row: its first slots may lie within a page."""
        pages = dict.fromkeys(slot // PAGE for slot in slots.tolist())
        for page in pages:
            assert page not in self.free_pages, "freed twice"
            if self.freed is not None:
                self.freed.append(self.key_of[page])
        self.free_pages += pages

    def free_segments(self, segments: list[tuple[torch.Tensor, int]]) -> None:
        for slots, start_pos in segments:
            self.free_segment(slots, start_pos)

    def free(self, slots: torch.Tensor) -> None:
        self.free_segment(slots)


class Rows:
    """SGLang's table of rows, of which one request at a time needs one."""

    def __init__(self) -> None:
        self.req_to_token = torch.zeros((1, WIDEST), dtype=torch.int64)

    def write(self, where: Any, values: torch.Tensor) -> None:
        self.req_to_token[where] = values


class Theirs:
    """SGLang's RadixCache of the version under test."""

    def __init__(self, pages: int, eviction: str) -> None:
        self.module = load("radix_cache")
        self.base = load("base_prefix_cache")
        self.module.time = Ticks()
        params = load("cache_init_params").CacheInitParams
        self.allocator = Allocator(pages)
        self.rows = Rows()
        self.cache = self.make(
            params(
                disable=False,
                req_to_token_pool=self.rows,
                token_to_kv_pool_allocator=self.allocator,
                page_size=PAGE,
                eviction_policy=eviction,
            )
        )

    def make(self, params: Any) -> Any:
        return self.module.RadixCache(params)

    def key(self, tokens: array[int]) -> Any:
        return self.module.RadixKey(tokens)

    def match(self, tokens: array[int]) -> tuple[list[int], Any]:
        """Slots of what is cached, and the node where it ends."""
        found = self.cache.match_prefix(self.base.MatchPrefixParams(key=self.key(tokens)))
        node = found.last_device_node
        if hasattr(found, "device_indices"):
            return found.device_indices.tolist(), node
        return self.cache.path_device_indices(node).tolist(), node

    def evict(self, pages: int) -> tuple[int, ...]:
        """Make so many pages free that are not; the keys of what left."""
        self.allocator.freed = []
        self.cache.evict(self.base.EvictParams(num_tokens=pages * PAGE))
        gone, self.allocator.freed = self.allocator.freed, None
        return tuple(gone)

    def serve(self, ask: Ask, monkeypatch: Any = None) -> Outcome:
        """One request."""
        tokens = tokens_of(ask)
        prompt, kv = ask.prompt_tokens, ask.prompt_tokens + ask.output_tokens - 1
        slots, node = self.match(tokens[: prompt - 1])
        hit = len(slots) // PAGE
        self.cache.inc_lock_ref(node)
        keys = (*ask.prompt, *ask.answer)
        wanted = [keys[i] if i < len(keys) else -1 for i in range(hit, -(-kv // PAGE))]
        short = len(wanted) - len(self.allocator.free_pages)
        victims = self.evict(short) if short > 0 else ()
        row = slots + self.allocator.take(wanted)
        self.rows.req_to_token[0, : len(row)] = torch.tensor(row)
        req = SimpleNamespace(
            kv=SimpleNamespace(
                req_pool_idx=0, cache_protected_len=len(slots), cache_inserted_len=0,
                swa_evict_floor=0,
            ),
            origin_input_ids=tokens[:prompt],
            output_ids=tokens[prompt:],
            full_untruncated_fill_ids=tokens,
            get_fill_ids=lambda: tokens[:prompt],
            extra_key=None,
            cache_salt=None,
            priority=ask.priority,
            last_node=node,
            lock=None,
        )  # fmt: skip
        if hasattr(self.cache, "cache_finished_req"):
            if ask.output_tokens > 1:
                self.cache.cache_unfinished_req(req)
            self.cache.cache_finished_req(req, kv_len_to_handle=kv)
        else:
            req.lock = self.base.TreeLock(node, None)
            if ask.output_tokens > 1:
                self.cache.checkpoint(req, up_to=prompt)
            self.cache.checkpoint(req, up_to=kv)
            start = req.kv.cache_protected_len
            self.allocator.free_segment(torch.tensor(row[start:], dtype=torch.int64), start)
            self.cache.unlock(req.lock)
        return Outcome(hit, victims)

    @property
    def cached_pages(self) -> int:
        return self.cache.total_size() // PAGE


def tokens_of(ask: Ask) -> array[int]:
    """Token ids: a page's are made of its key, and nobody else's page has them."""
    kv = ask.prompt_tokens + ask.output_tokens - 1
    keys = (*ask.prompt, *ask.answer)
    tokens = array("q", (key * PAGE + i for key in keys for i in range(PAGE)))
    tokens.extend(range(10**9, 10**9 + kv - len(tokens)))
    return tokens[:kv]


# ------------------------------------------------------------------ workloads


def sessions(seed: int, requests: int, priorities: int = 1) -> list[Ask]:
    """Conversations: a turn repeats what came before and goes on. Each is a line of keys."""
    rng = random.Random(seed)
    lengths = [0] * 8
    starts = [who * 10_000 for who in range(8)]
    level = [rng.randrange(priorities) for _ in lengths]
    asks: list[Ask] = []
    for _ in range(requests):
        who = rng.randrange(len(lengths))
        if lengths[who] > 12:
            starts[who], lengths[who] = starts[who] + 1000, 0  # another one
        total = lengths[who] + rng.randint(1, 3)
        answer = rng.randint(0, 2)
        keys = tuple(range(starts[who], starts[who] + total + answer))
        extra = rng.randrange(PAGE) if answer else 1
        asks.append(Ask(keys[:total], extra, keys[total:], level[who]))
        lengths[who] = total + answer
    return asks


def rewinds(seed: int, requests: int, priorities: int = 1) -> list[Ask]:
    """Conversations that are taken up again from the middle: the same lines, cut anywhere."""
    rng = random.Random(seed)
    asks: list[Ask] = []
    for _ in range(requests):
        who = rng.randrange(6)
        total, answer = rng.randint(1, 10), rng.randint(0, 2)
        keys = tuple(range(who * 1000, who * 1000 + total + answer))
        extra = rng.randrange(PAGE) if answer else 1
        asks.append(Ask(keys[:total], extra, keys[total:], rng.randrange(priorities)))
    return asks


def branches(seed: int, requests: int, priorities: int = 1) -> list[Ask]:
    """Prompts that share prefixes of every length: paths down a random tree."""
    rng = random.Random(seed)
    known: dict[tuple[int, ...], int] = {}
    asks: list[Ask] = []
    for _ in range(requests):
        path: tuple[int, ...] = ()
        keys: list[int] = []
        for _ in range(rng.randint(1, 9)):
            path = (*path, rng.choice([0, 0, 0, 1, 2]))
            keys.append(known.setdefault(path, len(known)))
        answer = rng.randint(0, 2)
        split = max(1, len(keys) - answer)
        extra = rng.randrange(PAGE) if split < len(keys) else 1
        asks.append(Ask(tuple(keys[:split]), extra, tuple(keys[split:]), rng.randrange(priorities)))
    return asks
