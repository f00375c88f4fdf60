"""The interface of a store: pages by name, in batches, into and out of the L2 memory.

    leading   how many of the first names are there, without a gap
    read      names -> L2 pages; how many leading ones arrived whole
    write     L2 pages -> names; how many leading ones the store has afterwards

A prefix is worth what comes before its first gap, so every answer is a number of leading pages. A
store answers for one operation at a time and keeps no promise about the next: a page that `leading`
saw may be gone when `read` comes for it. It refuses to know the tree, requests and time.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Protocol

from hicache.operations import PageRuns


class PageStore(Protocol):
    """What `hw.stores.device` and the tests of the contract drive. Thread-safe."""

    @property
    def name(self) -> str:
        """For messages: "SGLang file store", "dynamic store peercache"."""
        ...

    def describe(self) -> str:
        """What was opened, for people: one line."""
        ...

    def leading(self, names: Sequence[str]) -> int:
        """How many of the first `names` are in the store. Raises TransferError if it cannot say."""
        ...

    def read(self, names: Sequence[str], pages: PageRuns) -> int:
        """Bring `names` into `pages`, lists of the same length.

        Returns how many leading pages hold what was asked for; the others hold rubbish. Raises
        TransferError if nothing can be said of any.
        """
        ...

    def write(self, pages: PageRuns, names: Sequence[str]) -> int:
        """Put `pages` into the store as `names`; a name that is there is left as it is.

        Returns how many leading names the store has now. Raises TransferError if it cannot say.
        """
        ...

    def close(self) -> None:
        """Let go of it; what is in the store stays. May be called twice."""
        ...


def numbered(pages: Iterable[tuple[int, int]]) -> list[int]:
    """A list of pages, or of their keys, written out."""
    return [each for first, count in pages for each in range(first, first + count)]
