"""Pages that join several blocks of one size: a page is the blocks in it behind all before them.

    blocks of 512   7     8     31    32 (300 of 512 tokens)
    pages of 1024   0           1              a partly filled page, where those count

The block that ends a page, numbered by its whole prefix (`BlockKeys`), names the page; those blocks
are renumbered so that a prompt's new pages are consecutive.
"""

from __future__ import annotations

from hicache.errors import InputError
from traces.block_keys import BlockKeys
from traces.blocks import context_of, near_sizes
from traces.cut import Cut, Cutter, Pages, Runs, add_run, split_runs
from traces.rows import Row


class JoinedCutter(Cutter):
    """Cuts prompts of blocks into pages of a multiple of their size."""

    def __init__(self, block_tokens: int, page_size_tokens: int, pages: Pages) -> None:
        super().__init__(page_size_tokens, pages)
        if page_size_tokens % block_tokens:
            raise InputError(near_sizes(page_size_tokens, block_tokens))
        self.keys = BlockKeys()
        self._block_tokens = block_tokens
        self._blocks_per_page = page_size_tokens // block_tokens
        self._next_key = 0
        # Page by the key of the block that ends it.
        self._page_at: dict[int, int] = {}
        # Partly filled page by the key of the prompt's last block and the prompt's tokens.
        self._tail_at: dict[tuple[int, int], int] = {}

    @property
    def unchained(self) -> bool:
        """Whether some id followed two different prefixes."""
        return self.keys.unchained

    @property
    def unique_blocks(self) -> int:
        """Distinct blocks so far."""
        return self.keys.unique_blocks

    def cut_row(self, row: Row) -> Cut:
        """Take the next row; see `Cutter`."""
        tokens, page, num_blocks = row.input_length, self._page, len(row.hash_ids)
        names_answer = row.output_ids is not None and not self._partial
        ids, held_tokens = (
            context_of(row, self._block_tokens) if names_answer else (row.hash_ids, tokens)
        )
        self.blocks += num_blocks
        covered_tokens = max(num_blocks, len(ids)) * self._block_tokens
        if covered_tokens < tokens:
            self.rows_without_tail += 1
        block_runs, known, _ = self.keys.number(ids)
        self.ideal_blocks += min(known, num_blocks)
        keys: list[int] = []
        for first, count in block_runs:
            keys.extend(range(first, first + count))
        num_held = min(held_tokens, len(ids) * self._block_tokens) // page
        runs, ideal = self._pages(
            keys[self._blocks_per_page - 1 :: self._blocks_per_page][:num_held]
        )
        num_pages = min(num_held, tokens // page)
        if names_answer:
            prompt_runs, output_runs = split_runs(runs, num_pages)
            return prompt_runs, num_pages, min(ideal, num_pages), output_runs
        if self._partial and tokens % page and covered_tokens >= tokens:
            tail = keys[-1], tokens
            key = self._tail_at.get(tail)
            if key is None:
                key = self._tail_at[tail] = self._next_key
                self._next_key += 1
            elif ideal == num_pages:
                ideal += 1
            add_run(runs, key, 1)
            num_pages += 1
        return tuple(runs), num_pages, ideal, None

    def _pages(self, last_blocks: list[int]) -> tuple[Runs, int]:
        """Runs of the pages that end with these blocks, and how many leading ones were known."""
        page_at = self._page_at
        runs: Runs = []
        known = 0
        for block in last_blocks:
            key = page_at.get(block)
            if key is None:
                break
            add_run(runs, key, 1)
            known += 1
        # A page was never held without those before it, so all others are new.
        first = self._next_key
        new = len(last_blocks) - known
        if new:
            page_at.update(zip(last_blocks[known:], range(first, first + new), strict=True))
            self._next_key = first + new
            add_run(runs, first, new)
        return runs, known
