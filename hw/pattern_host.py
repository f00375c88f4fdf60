"""The pattern of the synthetic device in numpy: on a CPU, the same words as the kernel's (see
`hw.pattern`) in a hundredth of the time that Triton's interpreter takes.

Refuses to know pools: it is given words, and where the planes are.
"""

from __future__ import annotations

from collections.abc import Sequence
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
    for first in range(0, len(seeds), BLOCK):
        part = slice(first, first + BLOCK)
        for number, plane in enumerate(planes):
            words[_places(plane, slots[part])] = _pattern(seeds[part], number, plane, width).astype(
                words.dtype
            )


def check(
    words: NDArray[Any],
    planes: Sequence[Plane],
    width: int,
    seeds: NDArray[np.int32],
    slots: NDArray[np.int32],
) -> NDArray[np.int32]:
    """How many words of each token differ from its pattern: int32 of shape (tokens,)."""
    wrong = np.zeros(len(seeds), np.int32)
    for first in range(0, len(seeds), BLOCK):
        part = slice(first, first + BLOCK)
        for number, plane in enumerate(planes):
            value = _pattern(seeds[part], number, plane, width).astype(words.dtype)
            wrong[part] += (words[_places(plane, slots[part])] != value).sum(1, dtype=np.int32)
    return wrong


def _places(plane: Plane, slots: NDArray[np.int32]) -> NDArray[np.int64]:
    """Where the words of tokens are: shape (tokens, words of a token)."""
    size = plane.token_words
    return plane.start + slots.astype(np.int64)[:, None] * size + np.arange(size)


def _pattern(seeds: NDArray[np.int32], number: int, plane: Plane, width: int) -> NDArray[np.uint32]:
    """See `hw.pattern`: uint32 of shape (tokens, words of a token), wrapping."""
    word = np.arange(plane.token_words, dtype=np.uint32) + np.uint32(number * width)
    x = (word * np.uint32(2654435761)) ^ seeds.view(np.uint32)[:, None]
    x = (x ^ (x >> np.uint32(16))) * np.uint32(2146121005)
    x = (x ^ (x >> np.uint32(15))) * np.uint32(2221713035)
    return x ^ (x >> np.uint32(16))
