"""Ids of the kind that a format wants, for rows that have ids of another kind.

Ids are kept where they are of that kind already. Otherwise they are numbered in order of
appearance, so that the same trace gives the same ids; equal ones mean what equal ones meant.
"""

from __future__ import annotations

from traces.recut import Interner, Pieces, Recutter, named_pieces
from traces.rows import LARGEST_ID, Layout, Row

# Where ids are kept, those that are missing are made up from here on, beside them.
FIRST_BESIDE_KEPT = 1 << 61


class BlockIds:
    """The ids of a row's blocks of one size."""

    def __init__(self, layout: Layout, block_tokens: int) -> None:
        self._recutter = Recutter(layout, block_tokens)
        self._kept = layout.has_ids and layout.block_tokens == block_tokens
        self._interner = Interner(FIRST_BESIDE_KEPT if self._kept else 0)

    def __call__(self, row: Row) -> list[int]:
        """The ids of the prompt of the next row."""
        if self._kept and row.lengths is None:
            return row.hash_ids
        return self._interner.ids(self._recutter.prompt(row))


class TokenIds:
    """A token id for each token: a piece has a run of ids, given out when it first appears."""

    def __init__(self, layout: Layout) -> None:
        self._layout = layout
        self._kept = layout.has_ids and layout.block_tokens == 1
        # The first token id of each piece, by its id and length.
        self._runs: dict[tuple[int, int], int] = {}
        self._next = FIRST_BESIDE_KEPT if self._kept else 0
        # In blocks of many tokens, a partly filled last one is named only when it is full.
        self.names_answers = layout.block_tokens in (0, 1)

    def prompt(self, row: Row) -> list[int]:
        """The token ids of the prompt of the next row."""
        if self._kept and row.lengths is None:
            ids = row.hash_ids
        else:
            ids = self._spelled(named_pieces(row, self._layout))
        return self._covered(ids, row.input_length)

    def answer(self, row: Row) -> list[int]:
        """The token ids of its answer."""
        ids, lengths = row.output_ids or [], row.output_lengths
        if lengths is not None:
            ids = self._spelled(list(zip(ids, lengths, lengths, strict=True)))
        elif not self._kept:
            ids = []
        return self._covered(ids, row.output_length)

    def _spelled(self, pieces: Pieces) -> list[int]:
        ids: list[int] = []
        for each, whole, tokens in pieces:
            first = self._runs.get((each, whole))
            if first is None:
                first = self._take(whole or self._layout.block_tokens)
                self._runs[each, whole] = first
            ids += range(first, first + tokens)
        return ids

    def _covered(self, ids: list[int], tokens: int) -> list[int]:
        missing = tokens - len(ids)
        if missing <= 0:
            return ids
        first = self._take(missing)
        return ids + list(range(first, first + missing))

    def _take(self, tokens: int) -> int:
        first = self._next
        self._next += tokens
        assert self._next <= LARGEST_ID, "2**61 tokens are more than any trace has"
        return first
