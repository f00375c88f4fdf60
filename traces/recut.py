"""A prompt's pieces are cut into blocks of one size, and each block's content is named exactly.

    pieces            a: 300 tokens        b: 500             (ids and lengths of a row)
    blocks of 512     (a 0..300)(b 0..212)  (b 212..500)      the second is partly filled

Blocks have equal content where they are made of equal parts of equal pieces. Where rows say how
many tokens a piece has, an id with another length is another piece. A block's *id* stands
for its content behind the blocks before it, as in Mooncake's traces: equal ids, equal prefixes.
Tokens that no piece names are equal to no others. Whether two different pieces hold the same tokens
is not known here, and so never assumed.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable

from hicache.errors import InputError
from traces.rows import Layout, Row

NO_BLOCK = -1
MOST_BLOCK_TOKENS = 1_000_000

# (id, tokens of the whole piece if the row says it, or else 0; its tokens here) of each piece.
Pieces = list[tuple[int, int, int]]
# The packed parts of a block: (id, whole, offset, tokens) each; or its token ids.
Content = bytes


class Recutter:
    """Cuts the rows of one trace, in their order, into blocks of `block_tokens`."""

    def __init__(self, layout: Layout, block_tokens: int) -> None:
        if not 1 <= block_tokens <= MOST_BLOCK_TOKENS:
            raise InputError(
                f"block size is {block_tokens}: it must lie between 1 and {MOST_BLOCK_TOKENS:,}"
            )
        self.layout = layout
        self.block_tokens = block_tokens
        self._unnamed = 0

    def prompt(self, row: Row) -> list[Content]:
        """Contents of all blocks of the prompt; the last one may be partly filled."""
        if self.layout.block_tokens == 1 and row.lengths is None:
            ids = row.hash_ids
            if len(ids) < row.input_length:
                ids = ids + [self._nobody() for _ in range(row.input_length - len(ids))]
            return self._cut_ids(ids)
        return self._cut(self._covered(named_pieces(row, self.layout), row.input_length))

    def with_answer(self, row: Row) -> list[Content]:
        """Contents of the *full* blocks of prompt and answer, as far as the answer is named.

        None that holds unnamed tokens. `InputError` never; a row without answer ids gives the full
        blocks of its prompt.
        """
        block_tokens = self.layout.block_tokens
        answer = row.output_ids or []
        if block_tokens == 1 and row.lengths is None:
            ids = row.hash_ids + answer if len(row.hash_ids) == row.input_length else row.hash_ids
            return self._cut_ids(ids)[: len(ids) // self.block_tokens]
        if row.lengths is None and block_tokens:
            full = row.hash_ids[: row.input_length // block_tokens] + answer
            pieces = [(each, 0, block_tokens) for each in full]
        else:
            pieces = named_pieces(row, self.layout)
            if sum(tokens for _, _, tokens in pieces) == row.input_length:
                lengths = row.output_lengths or []
                pieces += zip(answer, lengths, lengths, strict=False)
        tokens = sum(tokens for _, _, tokens in pieces)
        return self._cut(pieces)[: tokens // self.block_tokens]

    def _covered(self, pieces: Pieces, tokens: int) -> Pieces:
        """`pieces`, and one that is like no other for the tokens they do not name."""
        named = sum(count for _, _, count in pieces)
        if named < tokens:
            pieces.append((self._nobody(), 0, tokens - named))
        return pieces

    def _nobody(self) -> int:
        self._unnamed += 1
        return -self._unnamed

    def _cut_ids(self, ids: list[int]) -> list[Content]:
        packed = struct.pack(f"<{len(ids)}q", *ids)
        step = 8 * self.block_tokens
        return [packed[start : start + step] for start in range(0, len(packed), step)]

    def _cut(self, pieces: Pieces) -> list[Content]:
        size = room = self.block_tokens
        contents: list[Content] = []
        parts: list[int] = []
        for each, whole, tokens in pieces:
            offset = 0
            while offset < tokens:
                taken = tokens - offset
                if taken > room:
                    taken = room
                parts += (each, whole, offset, taken)
                offset += taken
                room -= taken
                if not room:
                    contents.append(struct.pack(f"<{len(parts)}q", *parts))
                    parts = []
                    room = size
        if parts:
            contents.append(struct.pack(f"<{len(parts)}q", *parts))
        return contents


def named_pieces(row: Row, layout: Layout) -> Pieces:
    """The pieces of the prompt that have an id."""
    if row.lengths is not None:
        return list(zip(row.hash_ids, row.lengths, row.lengths, strict=True))
    tokens, block_tokens = row.input_length, layout.block_tokens
    pieces = [(each, 0, block_tokens) for each in row.hash_ids]
    if len(pieces) * block_tokens > tokens:
        last, _, _ = pieces.pop()
        pieces.append((last, 0, tokens - len(pieces) * block_tokens))
    return pieces


class Interner:
    """Numbers (block before, content) in order of appearance: exact, memory by unique blocks."""

    def __init__(self, first_id: int = 0) -> None:
        self._first_id = first_id
        self._ids: dict[tuple[int, Content], int] = {}

    def ids(self, contents: Iterable[Content]) -> list[int]:
        """The ids of a prompt's blocks."""
        known, first_id = self._ids, self._first_id
        ids: list[int] = []
        before = NO_BLOCK
        for content in contents:
            before = known.setdefault((before, content), first_id + len(known))
            ids.append(before)
        return ids
