"""A stated model of shared prefixes, for traces that have only lengths.

Each request belongs to one of `groups` groups, drawn by Zipf's law: group g (from 0) with a weight
of `1 / (g + 1) ** zipf`. All requests of a group start with the same text, and `share` of a prompt
is taken from it; the rest is the request's own.

    prompt of 100 tokens, share .5, group 3    3:0 3:1 3:2 (16 tokens each) | own (52 tokens)

A group's text is one row of pieces of 16 tokens, so that a longer prompt shares all that a shorter
one has of it, and `share` is rounded down to whole pieces. Nothing else is shared: no answers, no
turns of a session. It is a model and no measurement; the notes say so, with its parameters.

Deterministic: the same stream, parameters and seed give the same rows, pass after pass.
"""

from __future__ import annotations

import math
import random
from bisect import bisect_right
from collections.abc import Iterator
from itertools import accumulate
from typing import NamedTuple

from hicache.errors import InputError
from traces.rows import Batch, Layout, RowStream

PIECE_TOKENS = 16
MOST_GROUPS = 1 << 20
STEEPEST_ZIPF = 20.0
# Ids: group << PIECE_BITS | piece (a prompt has fewer than 1 << 31 tokens); own text above them.
PIECE_BITS = 28
OWN_TEXT = 1 << 60


class Prefixes(NamedTuple):
    """The parameters of the model; see `synthetic_prefixes`."""

    share: float
    groups: int
    zipf: float
    seed: int


def synthetic_prefixes(
    stream: RowStream, *, share: float, groups: int, zipf: float, seed: int
) -> RowStream:
    """The rows of `stream`, with ids after the model. `InputError` for bad parameters.

    `share` lies between 0 and 1, `groups` between 1 and 1,048,576, `zipf` between 0 (all groups
    alike) and 20. `stream` must be of a format without ids.
    """
    if stream.layout.has_ids:
        raise InputError(
            "prefix_share: synthetic prefixes are for traces without ids; this one has its own"
        )
    if not 0 <= share <= 1:
        raise InputError(f"share is {share}: it must lie between 0 and 1")
    if not 1 <= groups <= MOST_GROUPS:
        raise InputError(f"groups is {groups}: it must lie between 1 and {MOST_GROUPS}")
    if not 0 <= zipf <= STEEPEST_ZIPF:
        raise InputError(f"zipf is {zipf}: it must lie between 0 and {STEEPEST_ZIPF:g}")
    return _PrefixedStream(stream, share, groups, zipf, seed)


class _PrefixedStream:
    """One pass over a trace whose prompts were given ids."""

    def __init__(
        self, stream: RowStream, share: float, groups: int, zipf: float, seed: int
    ) -> None:
        self.layout = Layout(block_tokens=0, timed=stream.layout.timed)
        self._stream = stream
        self._share = share
        self._seed = seed
        self._bounds = list(accumulate((rank + 1) ** -zipf for rank in range(groups)))
        self._model = (
            f"prefixes are made up: {share:g} of each prompt is shared within one of {groups} "
            f"groups, drawn by Zipf's law with exponent {zipf:g}, seed {seed}"
        )

    @property
    def notes(self) -> list[str]:
        """The notes of the trace, and the model."""
        return [*self._stream.notes, self._model]

    def batches(self) -> Iterator[Batch]:
        """Yield the batches of the trace, with ids and lengths."""
        draw = random.Random(self._seed).random
        bounds, share = self._bounds, self._share
        total, last = bounds[-1], len(bounds) - 1
        number = 0
        for batch in self._stream.batches():
            for row in batch.rows:
                group = min(bisect_right(bounds, draw() * total), last)
                pieces = math.floor(share * row.input_length / PIECE_TOKENS)
                first = group << PIECE_BITS
                row.hash_ids = list(range(first, first + pieces))
                row.lengths = [PIECE_TOKENS] * pieces
                own_tokens = row.input_length - pieces * PIECE_TOKENS
                if own_tokens:
                    row.hash_ids.append(OWN_TEXT + number)
                    row.lengths.append(own_tokens)
                number += 1
            yield batch
