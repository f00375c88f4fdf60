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
one. Known blocks are a leading run of the prompt. Only the last of them can be known in part: a
block that another block ever followed was full.
"""

from __future__ import annotations

from bisect import bisect_left
from typing import Literal

from hicache.errors import InputError

Pages = Literal["full", "partial"]
# Runs of consecutive keys: (first key, count).
Runs = list[tuple[int, int]]

NO_BLOCK = -1


def pages_per_block(page_size_tokens: int, block_tokens: int) -> int:
    """Pages in a block. `InputError` where the page size does not divide the block size."""
    if block_tokens < 1:
        raise InputError(f"block size is {block_tokens}: it must be at least 1 token")
    if page_size_tokens < 1:
        raise InputError(f"page size is {page_size_tokens}: it must be at least 1 token")
    if block_tokens % page_size_tokens:
        divisors = [d for d in range(1, block_tokens + 1) if block_tokens % d == 0]
        below = [d for d in divisors if d < page_size_tokens][-1:]
        above = [d for d in divisors if d > page_size_tokens][:1]
        near = " and ".join(str(d) for d in below + above)
        raise InputError(
            f"page size {page_size_tokens} does not divide the trace's block size of "
            f"{block_tokens} tokens; {near} would"
        )
    return block_tokens // page_size_tokens


class BlockKeys:
    """Numbers the blocks of one trace and tells which leading blocks of a prompt were known before.

    While ids are keys, the blocks so far are 0 .. end - 1, in *stretches*: each block
    follows the one numbered before it, except the first of a stretch, which starts a prompt or
    branches off older blocks.

        prompt   0 1 2 3       stretch 0: starts at 0, behind nothing
        prompt   0 1 | 4 5     stretch 1: starts at 4, behind 1
        prompt   0 1 | 4 5 6   (6 lengthens stretch 1)
        prompt   7 8           stretch 2: starts at 7, behind nothing

    So a prompt's known blocks are in order if each of its runs is the start of one stretch and
    begins behind the end of the run before.
    """

    def __init__(self) -> None:
        # First key of each stretch, ascending; at the end the number of blocks, the next first key.
        self._starts: list[int] = [0]
        # For each stretch, what would have continued the block before its first one: that block's
        # key + 1; `NO_BLOCK` at the start of a prompt.
        self._instead_of: list[int] = []
        self._stretch_at: dict[int, int] = {}
        # Key of each id, once ids are not keys themselves.
        self._key_of: dict[int, int] | None = None
        # Key of each (key of the block before, id), once an id alone does not tell the prefix.
        self._key_after: dict[tuple[int, int], int] | None = None
        # Whether some id followed two different prefixes.
        self.unchained = False

    @property
    def unique_blocks(self) -> int:
        """Distinct blocks so far; the same id behind another prefix is another block."""
        return self._starts[-1]

    def number(self, ids: list[int]) -> tuple[Runs, int, int]:
        """Take the next prompt's ids.

        Return its runs of block keys, how many leading blocks were known, and the key of the last
        of those (`NO_BLOCK` if there is none).
        """
        if self._key_after is not None:
            return self._number_by_prefix(ids)
        if self._key_of is None:
            numbered = self._extend(ids)
            if numbered is not None:
                return numbered
            self._key_of = {key: key for key in range(self._starts[-1])}
        numbered = self._extend(self._keys(ids))
        if numbered is not None:
            return numbered
        self._chain()
        return self._number_by_prefix(ids)

    def _extend(self, keys: list[int]) -> tuple[Runs, int, int] | None:
        """`number` for block keys. None, and nothing changed, if they are not in order."""
        starts, instead_of = self._starts, self._instead_of
        end = starts[-1]
        runs: Runs = []
        first = expected = limit = NO_BLOCK
        # Where keys are in order the known ones come first, so that this is their number.
        known = bisect_left(keys, end)
        for key in keys if known == len(keys) else keys[:known]:
            if key != expected:
                stretch = self._stretch_at.get(key)
                if stretch is None or instead_of[stretch] != expected or expected > limit:
                    return None
                if expected != NO_BLOCK:
                    runs.append((first, expected - first))
                first = key
                limit = starts[stretch + 1]
            expected = key + 1
        if expected > limit:
            return None
        new = len(keys) - known
        if new:
            if keys[known:] != list(range(end, end + new)):
                return None
            if known and expected == end:
                runs.append((first, expected - first + new))
                starts[-1] = end + new
                return runs, known, end - 1
            self._stretch_at[end] = len(instead_of)
            instead_of.append(expected)
            starts.append(end + new)
        if known:
            runs.append((first, expected - first))
        if new:
            runs.append((end, new))
        return runs, known, expected - 1 if known else NO_BLOCK

    def _keys(self, ids: list[int]) -> list[int]:
        """The keys of ids that are none; new ids get the next ones."""
        key_of = self._key_of
        assert key_of is not None
        end = self._starts[-1]
        new_ids = [each for each in ids if each not in key_of]
        key_of.update(zip(new_ids, range(end, end + len(new_ids)), strict=True))
        return list(map(key_of.__getitem__, ids))

    def _chain(self) -> None:
        """From now on, number blocks by their prefix; blocks so far keep their keys."""
        assert self._key_of is not None
        self.unchained = True
        end = self._starts[-1]
        before = list(range(NO_BLOCK, end - 1))
        for start, expected in zip(self._starts, self._instead_of, strict=False):
            before[start] = NO_BLOCK if expected == NO_BLOCK else expected - 1
        # Ids that only the prompt in hand has named have no block yet.
        self._key_after = {
            (before[key], each): key for each, key in self._key_of.items() if key < end
        }
        self._key_of, self._instead_of, self._stretch_at = None, [], {}
        self._starts = [end]

    def _number_by_prefix(self, ids: list[int]) -> tuple[Runs, int, int]:
        key_after = self._key_after
        assert key_after is not None
        end = self._starts[-1]
        runs: Runs = []
        first = expected = last = NO_BLOCK
        known = 0
        for each in ids:
            key = key_after.get((last, each))
            if key is None:
                break
            if key != expected:
                if known:
                    runs.append((first, expected - first))
                first = key
            last = key
            expected = key + 1
            known += 1
        before = last
        for key, each in enumerate(ids[known:], end):
            key_after[before, each] = before = key
        new = len(ids) - known
        self._starts[-1] = end + new
        if known and new and expected == end:
            expected += new
        if known:
            runs.append((first, expected - first))
        if new and expected != end + new:
            runs.append((end, new))
        return runs, known, last


class PageCutter:
    """Cuts prompts of blocks into pages of one size, by one rule for a partly filled last page.

    "full": floor(tokens / page size) pages. "partial": the partly filled page too, under its own
    key. Never more pages than the given ids cover.
    """

    def __init__(self, block_tokens: int, page_size_tokens: int, pages: Pages) -> None:
        if pages not in ("full", "partial"):
            raise InputError(f"pages is {pages!r}: it must be 'full' or 'partial'")
        self.keys = BlockKeys()
        self._per_block = pages_per_block(page_size_tokens, block_tokens)
        self._page_size_tokens = page_size_tokens
        self._round_up_tokens = page_size_tokens - 1 if pages == "partial" else 0
        # Pages known of the blocks that are known in part, by the block's key.
        self._short: dict[int, int] = {}

    def cut(
        self, prompt_tokens: int, ids: list[int]
    ) -> tuple[tuple[tuple[int, int], ...], int, int]:
        """Take the next prompt. Return its runs of page keys, pages, and known leading pages."""
        runs, known, last_known = self.keys.number(ids)
        per_block, short = self._per_block, self._short
        num_blocks = len(ids)
        num_pages = (prompt_tokens + self._round_up_tokens) // self._page_size_tokens
        # Pages that the last block lacks; below 0: the ids do not cover the prompt.
        missing = num_blocks * per_block - num_pages
        if missing < 0:
            num_pages += missing
            missing = 0
        known_pages = known * per_block
        if last_known in short:
            here = short[last_known]
            known_pages += here - per_block
            if known < num_blocks or not missing:
                del short[last_known]  # full from now on
            elif per_block - missing > here:
                short[last_known] = per_block - missing
        if missing and known < num_blocks:
            first, count = runs[-1]
            short[first + count - 1] = per_block - missing
        if per_block > 1:
            runs = [(first * per_block, count * per_block) for first, count in runs]
        if missing:
            first, count = runs.pop()
            if count > missing:
                runs.append((first, count - missing))
        return tuple(runs), num_pages, min(known_pages, num_pages)
