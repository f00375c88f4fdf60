"""The pattern of the synthetic device in numpy: on a CPU, the same words as the kernel's (see
`hw.pattern`) in a hundredth of the time that Triton's interpreter takes.

Refuses to know pools: it is given words, and where the planes are.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

BLOCK = 4096  # tokens at a time


class Plane(NamedTuple):
    """K or V of a layer."""

    start: int  # in words from the first of all
    token_words: int


def fill(
    words: NDArray[Any],
    planes: Sequence[Plane],
    width: int,
    seeds: NDArray[np.int32],
    slots: NDArray[np.int32],
) -> None:
    """Write the pattern of tokens into their slots. `words`: the pool as signed integers;
    `width`: the power of two that a plane's words are numbered by.
    """
    for _, places, values in _tokens(planes, width, seeds, slots):
        words[places] = values.astype(words.dtype)


def check(
    words: NDArray[Any],
    planes: Sequence[Plane],
    width: int,
    seeds: NDArray[np.int32],
    slots: NDArray[np.int32],
) -> NDArray[np.int32]:
    """How many words of each token differ from its pattern: int32 of shape (tokens,)."""
    wrong = np.zeros(len(seeds), np.int32)
    for part, places, values in _tokens(planes, width, seeds, slots):
        wrong[part] += (words[places] != values.astype(words.dtype)).sum(1, dtype=np.int32)
    return wrong


def _tokens(
    planes: Sequence[Plane], width: int, seeds: NDArray[np.int32], slots: NDArray[np.int32]
) -> Iterator[tuple[slice, NDArray[np.int64], NDArray[np.uint32]]]:
    """Some tokens of each plane at a time: which, where their words are and what these should be,
    both of shape (tokens, words of a token).
    """
    for first in range(0, len(seeds), BLOCK):
        part = slice(first, first + BLOCK)
        for number, plane in enumerate(planes):
            size = plane.token_words
            places = plane.start + slots[part].astype(np.int64)[:, None] * size + np.arange(size)
            yield part, places, _pattern(seeds[part], number, plane, width)


def _pattern(seeds: NDArray[np.int32], number: int, plane: Plane, width: int) -> NDArray[np.uint32]:
    """See `hw.pattern`: uint32 of shape (tokens, words of a token), wrapping."""
    word = np.arange(plane.token_words, dtype=np.uint32) + np.uint32(number * width)
    x = (word * np.uint32(2654435761)) ^ seeds.view(np.uint32)[:, None]
    x = (x ^ (x >> np.uint32(16))) * np.uint32(2146121005)
    x = (x ^ (x >> np.uint32(15))) * np.uint32(2221713035)
    return x ^ (x >> np.uint32(16))
