"""The block ids of one trace become numbered blocks and runs of pages, prompt by prompt.

The rules are those of `traces.blocks`; here is the part that runs for every block of a trace, and
that is compiled where a compiler is (docs/decisions/0009). It knows no rows, files or formats.
"""

from __future__ import annotations

from bisect import bisect_left
from typing import Any

NO_BLOCK = -1
# Prompts of so many blocks are remembered, as long as they have no more than that together.
LONG_PROMPT_BLOCKS = 64
MOST_LATEST_BLOCKS = 1 << 20

# Runs of consecutive keys: (first key, count).
Runs = list[tuple[int, int]]
KeyRuns = tuple[tuple[int, int], ...]


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
        # The latest long prompt that starts with an id: its ids and its runs. A conversation's next
        # prompt begins with all of it, and then costs time by what is new in it.
        self._latest: dict[int, tuple[list[int], Runs]] = {}
        self._latest_ids = 0
        # Runs of the latest prompt, not to be changed.
        self.latest: Runs = []

    @property
    def unique_blocks(self) -> int:
        """Distinct blocks so far; the same id behind another prefix is another block."""
        return self._starts[-1]

    def number(self, ids: list[int]) -> tuple[Runs, int, int]:
        """Take the next prompt's ids.

        Return its runs of block keys (not to be changed), how many leading blocks were known, and
        the key of the last of those (`NO_BLOCK` if there is none).
        """
        if len(ids) < LONG_PROMPT_BLOCKS:
            numbered = self._number(ids, 0, [])
            self.latest = numbered[0]
            return numbered
        start, runs = self._latest.pop(ids[0], ([], []))
        self._latest_ids -= len(start)
        num_same = len(start) if ids[: len(start)] == start else 0
        numbered = self._number(ids, num_same, runs if num_same else [])
        self._latest[ids[0]] = ids, numbered[0]
        self.latest = numbered[0]
        self._latest_ids += len(ids)
        while self._latest_ids > MOST_LATEST_BLOCKS:
            self._latest_ids -= len(self._latest.pop(next(iter(self._latest)))[0])
        return numbered

    def _number(self, ids: list[int], num_same: int, runs: Runs) -> tuple[Runs, int, int]:
        """`number`, where the first `num_same` ids are known to have the keys in `runs`."""
        if self._key_after is not None:
            return self._number_by_prefix(ids, num_same, runs)
        new_ids = ids[num_same:] if num_same else ids
        if self._key_of is None:
            numbered = self._extend(new_ids, num_same, runs)
            if numbered is not None:
                return numbered
            self._key_of = {key: key for key in range(self._starts[-1])}
        numbered = self._extend(self._keys(new_ids), num_same, runs)
        if numbered is not None:
            return numbered
        self._chain()
        return self._number_by_prefix(ids, num_same, runs)

    def _extend(self, keys: list[int], num_same: int, start: Runs) -> tuple[Runs, int, int] | None:
        """`number` for block keys. None, and nothing changed, if they are not in order.

        They follow `num_same` others, all known, whose runs are `start`.
        """
        starts, instead_of = self._starts, self._instead_of
        end = starts[-1]
        runs: Runs = start[:-1]
        first = expected = limit = NO_BLOCK
        if num_same:
            first, count = start[-1]
            expected = first + count
            limit = starts[bisect_left(starts, expected)]
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
        known += num_same
        if new:
            if keys[-new:] != list(range(end, end + new)):
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
        keys: list[Any] = list(map(key_of.get, ids))
        if None in keys:
            first = keys.index(None)
            end = self._starts[-1]
            new_ids = [each for each in ids[first:] if each not in key_of]
            key_of.update(zip(new_ids, range(end, end + len(new_ids)), strict=True))
            keys[first:] = map(key_of.__getitem__, ids[first:])
        return keys

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

    def _number_by_prefix(
        self, ids: list[int], num_same: int, start: Runs
    ) -> tuple[Runs, int, int]:
        key_after = self._key_after
        assert key_after is not None
        end = self._starts[-1]
        runs: Runs = start[:-1]
        first = expected = last = NO_BLOCK
        known = num_same
        if num_same:
            first, count = start[-1]
            expected = first + count
            last = expected - 1
        for each in ids[num_same:] if num_same else ids:
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


class BlockPages:
    """Cuts prompts of blocks into pages, `per_block` of them to a block.

    `round_up_tokens`: added to a prompt before its tokens are divided by the page size; a page less
    one token, where a partly filled last page counts.
    """

    def __init__(self, page_size_tokens: int, per_block: int, round_up_tokens: int) -> None:
        self.keys = BlockKeys()
        # Known leading blocks of the latest prompt.
        self.known = 0
        self._page_size_tokens = page_size_tokens
        self._per_block = per_block
        self._round_up_tokens = round_up_tokens
        # Pages known of the blocks that are known in part, by the block's key.
        self._short: dict[int, int] = {}

    def cut(self, prompt_tokens: int, ids: list[int]) -> tuple[KeyRuns, int, int]:
        """Take the next prompt. Return its runs of page keys, pages, and known leading pages."""
        runs, known, last_known = self.keys.number(ids)
        self.known = known
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
            first, count = runs[-1]
            runs = runs[:-1]
            if count > missing:
                runs.append((first, count - missing))
        return tuple(runs), num_pages, min(known_pages, num_pages)
