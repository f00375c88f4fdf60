"""Rows become pages: what every cutter promises, and which one suits a trace's layout.

    blocks of one size, which pages divide     `traces.blocks`
    blocks of one size, which pages join       `traces.joined`
    pieces of any length                       `traces.segments`
    tokens                                     `traces.tokens`
    lengths only                               here: nothing is ever shared

Equal keys are given exactly where all tokens up to the end of the page are known to be equal. All
of it is exact: nothing is hashed to fewer bits. The rules, with examples: docs/pages.md.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Literal

from hicache.errors import InputError
from traces.block_keys import KeyRuns, Runs
from traces.rows import Layout, Row

Pages = Literal["full", "partial"]
# Runs of the prompt's page keys, its pages, those of its leading pages that were known, runs of the
# answer's page keys (None: not named).
Cut = tuple[KeyRuns, int, int, "KeyRuns | None"]


class Cutter(ABC):
    """Cuts one row after another; a prompt's new pages get consecutive keys.

    With `pages` "full" a prompt has floor(tokens / page size) pages, with "partial" its last,
    partly filled one too, under a key shared only with prompts that end exactly so. Never more
    pages than its ids cover. Answers get no keys with "partial": they would go on in that page.
    """

    def __init__(self, page_size_tokens: int, pages: Pages) -> None:
        if pages not in ("full", "partial"):
            raise InputError(f"pages is {pages!r}: it must be 'full' or 'partial'")
        if page_size_tokens < 1:
            raise InputError(f"page size is {page_size_tokens}: it must be at least 1 token")
        self._page = page_size_tokens
        self._partial = pages == "partial"
        # Blocks of all prompts, and those of their leading ones that were known before. A block is
        # what an id stands for together with all before it; for token ids, a page.
        self.blocks = 0
        self.ideal_blocks = 0
        # Rows whose ids do not reach the prompt's end.
        self.rows_without_tail = 0

    @property
    def unchained(self) -> bool:
        """Whether ids were found not to stand for all before them, where they should."""
        return False

    @property
    @abstractmethod
    def unique_blocks(self) -> int:
        """Distinct blocks so far, of prompts and of named answers."""

    @abstractmethod
    def cut_row(self, row: Row) -> Cut:
        """Take the next row; its prompt, and the named answer, are known from then on."""


def cutter_for(layout: Layout, page_size_tokens: int, pages: Pages) -> Cutter:
    """The cutter for a trace. `InputError` where the page size does not suit its blocks."""
    from traces.blocks import PageCutter
    from traces.joined import JoinedCutter
    from traces.segments import SegmentCutter
    from traces.tokens import TokenCutter

    block_tokens = layout.block_tokens
    if not layout.has_ids:
        return LengthCutter(page_size_tokens, pages)
    if not block_tokens:
        return SegmentCutter(page_size_tokens, pages)
    if block_tokens == 1:
        return TokenCutter(page_size_tokens, pages)
    if page_size_tokens <= block_tokens:
        return PageCutter(block_tokens, page_size_tokens, pages)
    return JoinedCutter(block_tokens, page_size_tokens, pages)


class LengthCutter(Cutter):
    """For traces without ids: every page of every prompt is new."""

    def __init__(self, page_size_tokens: int, pages: Pages) -> None:
        super().__init__(page_size_tokens, pages)
        self._next_key = 0

    @property
    def unique_blocks(self) -> int:
        """None: there are no ids."""
        return 0

    def cut_row(self, row: Row) -> Cut:
        """Take the next row."""
        num_pages = row.input_length // self._page
        if self._partial and row.input_length % self._page:
            num_pages += 1
        first = self._next_key
        self._next_key = first + num_pages
        return ((first, num_pages),) if num_pages else (), num_pages, 0, None


def split_runs(runs: Runs | KeyRuns, num_pages: int) -> tuple[KeyRuns, KeyRuns]:
    """Runs of the first `num_pages` pages, and of the others."""
    before = 0
    for index, (first, count) in enumerate(runs):
        if before + count > num_pages:
            here = num_pages - before
            head = [*runs[:index], (first, here)] if here else runs[:index]
            return tuple(head), ((first + here, count - here), *runs[index + 1 :])
        before += count
    return tuple(runs), ()


def add_run(runs: Runs, first: int, count: int) -> None:
    """Append a run, as part of the last one where it goes on from there."""
    if runs and sum(runs[-1]) == first:
        runs[-1] = (runs[-1][0], runs[-1][1] + count)
    else:
        runs.append((first, count))
