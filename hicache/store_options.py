"""The engine's options of L3 and of what is written to it: plain frozen records, as those of
`hicache.options`, which holds how it is read.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from hicache.errors import InputError
from hicache.option_checks import not_negative, positive


@dataclass(frozen=True, slots=True)
class StorageOptions:
    """What L3 is to the engine."""

    # Whose knowledge decides what L3 holds. "tree": the tree's; L3 is the engine's own, and evicts
    # as the other tiers do. "store": a store is asked by page key; it evicts by itself, and may be
    # shared.
    index: Literal["tree", "store"] = "tree"
    # A page is written to L3 once so many requests have had it (`hicache.reuse`). 1: all are.
    admit_after_hits: int = 1
    # Of a store: seconds of the run from which on it is attached (0: it is from the start), and
    # from which on it is detached (0: never), at the first moment at which the engine is idle. An
    # attach behind a detach brings it back.
    attach_s: float = 0.0
    detach_s: float = 0.0

    def __post_init__(self) -> None:
        positive("storage.admit_after_hits", self.admit_after_hits)
        not_negative("storage.attach_s", self.attach_s)
        not_negative("storage.detach_s", self.detach_s)
        if self.attach_s and self.attach_s == self.detach_s:
            raise InputError(
                f"storage.attach_s is {self.attach_s} and storage.detach_s, too: one must come "
                "first; allowed: two times, or one and 0"
            )

    @property
    def switches(self) -> tuple[tuple[int, bool], ...]:
        """When the store comes or goes, in ns of the run and in order, and whether it comes."""
        times = [(round(self.attach_s * 1e9), True), (round(self.detach_s * 1e9), False)]
        return tuple(sorted(each for each in times if each[0]))


@dataclass(frozen=True, slots=True)
class OffloadOptions:
    """What is written of an answer while it is made (`hicache.offloading`)."""

    # True: a request that decodes leaves what it has made to the cache and writes it to L2 and L3,
    # stride by stride, whatever `cache.write_policy` says of it.
    decode: bool = False
    # Tokens of a stride, in whole pages and at least one. 0: a page.
    stride_tokens: int = 0

    def __post_init__(self) -> None:
        not_negative("offload.stride_tokens", self.stride_tokens)
