"""The workloads of `served` with an L2: SGLang's HiRadixCache (0.5.20), and ours.

HiRadixCache is the published class; its controller, which moves bytes on a GPU, is replaced by one
that moves none and is done at once. Both sides report, for each request: hits in L1 and in L2, what
left L1, what left L2.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, Literal, NamedTuple

import torch
from published import load
from served import PAGE, Allocator, Ask, Ours, Recording, Theirs, rules, runs, tokens_of

from hicache.metrics import Metrics
from hicache.options import CacheOptions, EngineOptions, RestoreOptions
from hicache.requests import Request
from hicache.tier import Tier
from hicache.tree import HiRadixTree
from hicache.untimed import UntimedServer


class HiOutcome(NamedTuple):
    """Of one request. Victims by key, in order."""

    device_hits: int
    host_hits: int
    device_victims: tuple[int, ...]
    host_victims: tuple[int, ...]


class OursWithL2(Ours):
    """Our engine without time, with an L2."""

    def __init__(self, pages: int, host_pages: int, **cache: Any) -> None:
        """`cache`: what its options are but for the rules that all comparisons share; a load-back
        evicts as much as is loaded, unless they say otherwise.
        """
        options = EngineOptions(
            page_size_tokens=PAGE,
            bytes_per_token=1,
            device_pages=pages,
            host_pages=host_pages,
            cache=CacheOptions(**{"load_eviction_amount": "request", **rules(), **cache}),
            restore=RestoreOptions(policy="threshold", threshold_tokens=10),
            page_ids="named",
        )
        self.tree = HiRadixTree(options)
        self.metrics = Metrics()
        self.server = UntimedServer(self.tree, self.metrics, options)
        self.count = 0

    def serve_hi(self, ask: Ask, monkeypatch: Any) -> HiOutcome:
        """One request."""
        victims: tuple[list[int], list[int]] = ([], [])
        evict = Tier.evict

        def watched(tier: Tier, count: int, prune: Any) -> int:
            real, gone = tier.allocator, list[int]()
            key_of = self._keys_of(tier.index)
            tier.allocator = Recording(real, gone)  # type: ignore[assignment]
            try:
                return evict(tier, count, prune)
            finally:
                tier.allocator = real
                victims[tier.index].extend(key_of[page] for page in gone)

        request = Request(
            self.count, -1, ask.prompt_tokens, ask.output_tokens, runs(ask.prompt),
            len(ask.prompt), priority=ask.priority, output_runs=runs(ask.answer),
        )  # fmt: skip
        self.count += 1
        before = list(self.metrics.cached_pages)
        with monkeypatch.context() as patch:
            patch.setattr(Tier, "evict", watched)
            self.server.serve([request])
        hits = [now - then for now, then in zip(self.metrics.cached_pages, before, strict=True)]
        return HiOutcome(hits[0], hits[1], tuple(victims[0]), tuple(victims[1]))

    def _keys_of(self, tier: int) -> dict[int, int]:
        found: dict[int, int] = {}
        stack = [self.tree.root]
        while stack:
            node = stack.pop()
            stack.extend(node.children.values())
            key = node.start
            for first, count in node.pages[tier]:
                for page in range(first, first + count):
                    found[page] = key
                    key += 1
        return found


class Controller:
    """SGLang's controller, as much of it as the tree calls: L2's slots, and moves that are done."""

    write_policy = "write_through"

    def __init__(self, device: Allocator, host_pages: int) -> None:
        self.mem_pool_device_allocator = device
        self.host = Allocator(host_pages)
        self.host_victims: list[int] = []
        self.ack_write_queue: list[Any] = []

    def reset(self) -> None:
        """Nothing is under way."""

    def write(self, device_indices: torch.Tensor, node_id: int, **_: Any) -> torch.Tensor | None:
        device = self.mem_pool_device_allocator
        keys = [device.key_of[slot // PAGE] for slot in device_indices.tolist()[::PAGE]]
        if len(keys) > len(self.host.free_pages):
            return None
        return torch.tensor(self.host.take(keys), dtype=torch.int64)

    def load(self, host_indices: torch.Tensor, node_id: int, **_: Any) -> torch.Tensor | None:
        device = self.mem_pool_device_allocator
        keys = [self.host.key_of[slot // PAGE] for slot in host_indices.tolist()[::PAGE]]
        if len(keys) > len(device.free_pages):
            return None
        return torch.tensor(device.take(keys), dtype=torch.int64)

    def evict_device(self, device_indices: torch.Tensor) -> int:
        self.mem_pool_device_allocator.free_segment(device_indices)
        return len(device_indices)

    def evict_host(self, host_indices: torch.Tensor) -> int:
        self.host_victims += [
            self.host.key_of[slot // PAGE] for slot in host_indices.tolist()[::PAGE]
        ]
        self.host.free_segment(host_indices)
        return len(host_indices)


class TheirsWithL2(Theirs):
    """SGLang's HiRadixCache under write_through."""

    def __init__(
        self,
        pages: int,
        host_pages: int,
        eviction: str = "lru",
        load_evicts: Literal["request", "shortfall"] = "request",
    ) -> None:
        """`load_evicts`: how much a load-back has L1 evict when not all of it fits; the published
        class evicts as much as is loaded, whatever is free ("request").
        """
        self._host_pages, self._load_evicts = host_pages, load_evicts
        super().__init__(pages, eviction)

    def make(self, params: Any) -> Any:
        module = load("hiradix_cache")
        module.time = self.module.time
        module.StorageMedium = SimpleNamespace(GPU="GPU", CPU="CPU")  # for events nobody hears
        controller = Controller(self.allocator, self._host_pages)

        class Bare(module.HiRadixCache):
            """Made without a GPU: the attributes that its own __init__ sets."""

            def __init__(self, params: Any) -> None:
                self.cache_controller = controller
                self.token_to_kv_pool_host = SimpleNamespace(clear=lambda: None)
                self.kv_cache = None
                self.enable_storage = False
                self.metrics_collector = None
                self.ongoing_write_through: dict[int, Any] = {}
                self.ongoing_load_back: dict[int, Any] = {}
                self.ongoing_prefetch: dict[str, Any] = {}
                self.ongoing_backup: dict[int, Any] = {}
                self.prefetch_loaded_tokens_by_reqid: dict[str, int] = {}
                self.write_through_threshold = 1
                self.load_back_threshold = 10
                self.evictable_host_leaves: set[Any] = set()
                self.pp_rank = 0
                module.RadixCache.__init__(self, params)

        self.controller = controller
        return Bare(params)

    def match(self, tokens: Any) -> tuple[list[int], Any]:
        """What is cached in L1, after what L2 has more of was brought back."""
        found = self.cache.match_prefix(self.base.MatchPrefixParams(key=self.key(tokens)))
        slots, node = found.device_indices.tolist(), found.last_device_node
        self.device_hits = len(slots) // PAGE
        if found.host_hit_length:
            self.allocator.freed = []
            if self._load_evicts == "shortfall":
                self.cache.evict = self._evict_shortfall
            more, node = self.cache.init_load_back(
                SimpleNamespace(best_match_node=found.best_match_node, mem_quota=None)
            )
            self.cache.__dict__.pop("evict", None)
            self.loading_victims, self.allocator.freed = tuple(self.allocator.freed), None
            for number in list(self.cache.ongoing_load_back):
                self.cache.dec_lock_ref(self.cache.ongoing_load_back.pop(number))
            slots += more.tolist()
        return slots, node

    def _evict_shortfall(self, params: Any) -> Any:
        """What the published load-back does not do: evict no more than is missing."""
        free = len(self.allocator.free_pages) * PAGE
        return type(self.cache).evict(
            self.cache, self.base.EvictParams(num_tokens=params.num_tokens - free)
        )

    def serve_hi(self, ask: Ask) -> HiOutcome:
        """One request. Its copies to L2 are done when it is."""
        self.loading_victims: tuple[int, ...] = ()
        self.controller.host_victims = []
        outcome = self.serve(ask)
        self.acknowledge()
        return HiOutcome(
            self.device_hits,
            outcome.hit_pages - self.device_hits,
            self.loading_victims + outcome.victims,
            tuple(self.controller.host_victims),
        )

    def acknowledge(self) -> None:
        """All copies to L2 are done."""
        for number in list(self.cache.ongoing_write_through):
            self.cache._finish_write_through_ack(number, release_lock=True)


__all__ = ["HiOutcome", "OursWithL2", "TheirsWithL2", "tokens_of"]
