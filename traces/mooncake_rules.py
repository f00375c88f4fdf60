"""What both forms of Mooncake's format demand of times and ids, and what they say otherwise."""

from __future__ import annotations

from typing import Annotated

import msgspec

# Times further from zero than this (30,000 years) are in another unit.
LATEST_MS = 10**15
LARGEST_HASH = (1 << 64) - 1

# A decoder's bounds end at 63 bits; readers see to `LARGEST_HASH`.
HashId = Annotated[int, msgspec.Meta(ge=0)]


def ids_fit(num_ids: int, tokens: int, block_tokens: int) -> bool:
    """Whether there is one id for each block; a partly filled last one may lack its own."""
    return num_ids in ((tokens - 1) // block_tokens + 1, tokens // block_tokens)


def ids_against_length(num_ids: int, tokens: int, block_tokens: int) -> str:
    """Why so many ids are not those of so many tokens."""
    expected = (tokens - 1) // block_tokens + 1
    return (
        f"{num_ids} ids do not match input_length {tokens}, "
        f"which is {expected} block{'s' * (expected != 1)} of {block_tokens} tokens"
    )


def wrong_time(timestamp: float, last_ms: float) -> str:
    """Why a row cannot come at `timestamp` behind one at `last_ms`."""
    if abs(timestamp) > LATEST_MS:
        return f"{timestamp} is no time in milliseconds"
    return (
        f"{timestamp} is earlier than {last_ms} of the request before; "
        "requests must be in the order of their arrival"
    )


def too_large_id(ids: list[int]) -> tuple[str, str]:
    """Field and reason for ids of which one has more than 64 bits."""
    index = next(index for index, each in enumerate(ids) if each > LARGEST_HASH)
    return f"hash_ids[{index}]", f"expected int <= {LARGEST_HASH}"
