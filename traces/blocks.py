"""Block ids become page keys, runs and the ceiling, prompt by prompt. Reads no file or format.

A trace names each block of a prompt by an id. The engine wants page keys: equal keys exactly where
the tokens *and all tokens before them* are equal, and the new pages of a prompt numbered one by
one.

    block ids     7            8            31 (partly filled: 300 of 512 tokens)
    pages of 128  28 29 30 31  32 33 34 35  124 125 (126 too, where partly filled pages count)
    runs          (28, 8), (124, 2)

**Key of a page** = key of its block * pages per block + its index in the block.

**Key of a block.** In most traces the ids are such keys already: they count 0, 1, 2, ... in the
order in which they first appear, and an id always follows the same id. Both are checked on every
prompt, exactly, and from the first prompt on that fails

* the first only (a slice of a trace, 64-bit hashes), ids are numbered in order of appearance;
* the second (ids of content without its prefix), the pairs (key of the block before, id) are.

The keys given until then are that very numbering, so it is the same as numbering from the start.

**Ceiling** (`Request.ideal_pages`): the leading pages of a prompt that were pages of an earlier
one, or of the named answer to one. Known blocks are a leading run of the prompt. Only the last of
them can be known in part: a block that another block ever followed was full.

**Answers.** `Row.output_ids` says which blocks the answer filled, the one included in which the
prompt's last, partly filled block lies. So that one is cut as the start of the block it became, and
prompt and answer are numbered as the one context that a later prompt repeats.
"""

from __future__ import annotations

from hicache.errors import InputError
from traces.block_keys import BlockPages
from traces.cut import Cut, Cutter, Pages, split_runs
from traces.rows import Row


def pages_per_block(page_size_tokens: int, block_tokens: int) -> int:
    """Pages in a block. `InputError` where the page size does not divide the block size."""
    if block_tokens < 1:
        raise InputError(f"block size is {block_tokens}: it must be at least 1 token")
    if page_size_tokens < 1:
        raise InputError(f"page size is {page_size_tokens}: it must be at least 1 token")
    if block_tokens % page_size_tokens:
        raise InputError(near_sizes(page_size_tokens, block_tokens))
    return block_tokens // page_size_tokens


def near_sizes(page_size_tokens: int, block_tokens: int) -> str:
    """What to say of a page size that neither divides the block size nor is a multiple of it."""
    sizes = [size for size in range(1, block_tokens) if block_tokens % size == 0]
    above = -(-page_size_tokens // block_tokens) * block_tokens
    sizes += [block_tokens, above - block_tokens, above]
    near = (
        max(size for size in sizes if size < page_size_tokens),
        min(size for size in sizes if size > page_size_tokens),
    )
    return (
        f"page size {page_size_tokens} does not divide the trace's block size of {block_tokens} "
        f"tokens and is no multiple of it; {near[0]} and {near[1]} would do"
    )


def context_of(row: Row, block_tokens: int) -> tuple[list[int], int]:
    """Ids of the blocks of prompt and named answer, and the tokens in them that get KV.

    Without a named answer, the prompt's ids and its tokens.
    """
    tokens = row.input_length
    full = tokens // block_tokens
    if not row.output_ids or full > len(row.hash_ids):
        return row.hash_ids, tokens
    context_tokens = tokens + max(row.output_length, 1) - 1
    ids = row.hash_ids[:full] + row.output_ids
    return ids[: -(-context_tokens // block_tokens)], context_tokens


class PageCutter(Cutter):
    """Cuts prompts of blocks into pages of one size, by one rule for a partly filled last page.

    "full": floor(tokens / page size) pages. "partial": the partly filled page too, under its own
    key. Never more pages than the given ids cover.
    """

    def __init__(self, block_tokens: int, page_size_tokens: int, pages: Pages) -> None:
        super().__init__(page_size_tokens, pages)
        per_block = pages_per_block(page_size_tokens, block_tokens)
        self._block_tokens = block_tokens
        self._page_size_tokens = page_size_tokens
        self._pages = BlockPages(
            page_size_tokens, per_block, page_size_tokens - 1 if self._partial else 0
        )
        self.keys = self._pages.keys
        self.cut = self._pages.cut

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
        tokens, ids = row.input_length, row.hash_ids
        num_blocks = len(ids)
        self.blocks += num_blocks
        if row.output_ids is None or self._partial:
            if num_blocks * self._block_tokens < tokens:
                self.rows_without_tail += 1
            runs, num_pages, ideal = self.cut(tokens, ids)
            self.ideal_blocks += self._pages.known
            return runs, num_pages, ideal, None
        context, context_tokens = context_of(row, self._block_tokens)
        if max(num_blocks, len(context)) * self._block_tokens < tokens:
            self.rows_without_tail += 1
        runs, num_pages, ideal = self.cut(context_tokens, context)
        self.ideal_blocks += min(self._pages.known, num_blocks)
        num_pages = min(num_pages, tokens // self._page_size_tokens)
        prompt_runs, output_runs = split_runs(runs, num_pages)
        return prompt_runs, num_pages, min(ideal, num_pages), output_runs
