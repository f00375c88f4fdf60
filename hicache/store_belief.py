"""What an engine without an L2 that remembers believes a store to hold, page key by page key.

    claimed    queued to be written, or under way
    believed   written, or read from there, and not asked for in vain since

A belief saves copies and is never relied upon: one that is false costs a page that is not written
until the store has said that it lacks it; one that is missing, a copy of what the store has. The
least recently used are forgotten. This module refuses to ask anybody.
"""

from __future__ import annotations

from typing import Final, final

from hicache.allocator import cut
from hicache.operations import PageRuns
from hicache.store_contents import StoreContents

MOST_PAGES: Final = 128 * 1024  # that are remembered, as in SGLang


@final
class StoreBelief:
    """The belief of one engine. Pages are named as runs of their keys."""

    def __init__(self) -> None:
        self._believed = StoreContents(MOST_PAGES)
        self._claimed = StoreContents()

    def leading(self, keys: PageRuns) -> int:
        """How many of the first pages need not be written."""
        leading = 0
        while keys:
            part = self._believed.read(keys) or self._claimed.leading(keys)
            if not part:
                break
            leading += part
            keys = cut(keys, part)[1]
        return leading

    def lacking(self, keys: PageRuns) -> int:
        """How many of the first pages the store lacks, and is not about to get."""
        lacking = 0
        for first, count in keys:
            gap = min(self._believed.gap(first, count), self._claimed.gap(first, count))
            if gap < count:
                return lacking + gap
            lacking += count
        return lacking

    def missing(self, first: int, count: int) -> int:
        """How many of `count` pages with consecutive keys are so."""
        missing = 0
        keys: PageRuns = ((first, count),)
        while keys:
            lacking = self.lacking(keys)
            missing += lacking
            keys = cut(keys, lacking or self.leading(keys))[1]
        return missing

    def claim(self, keys: PageRuns) -> None:
        """They are to be written."""
        self._claimed.write(keys)

    def settle(self, keys: PageRuns, written: int) -> None:
        """What was claimed is over: the first `written` of them are in the store."""
        self._claimed.forget(keys)
        self._believed.write(cut(keys, written)[0])

    def seen(self, keys: PageRuns) -> None:
        """The store has just had them."""
        self._believed.write(keys)

    def absent(self, keys: PageRuns) -> None:
        """The store has just said that it lacks the first of them: nothing behind it is of use."""
        self._believed.forget(keys)
