"""The name of a page in a store that outlives a run: a hash of everything up to the page's end.

    digest(page) = SHA-256(digest(page before) | its token ids)

It is SGLang's chain, byte for byte, so that both find each other's pages: nothing stands before the
first page (or a namespace does, for adapters and salts); ids are uint32, little-endian; a page with
an id of 2^32 or more is one byte 0xff and then all its ids as uint64. A chain never restarts.

Traces that name blocks but no tokens have no such hash. `key_digests` stands in for it: it chains
page keys, under a mark of its own, so that it never equals a hash of tokens. It is good within one
trace and no further: keys number the pages of that trace.

This module computes names. It refuses to know stores, models and ranks: they add what tells their
pages apart (`hw.stores.names`). The standard library alone, the same on every machine.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Sequence
from struct import error as struct_error
from struct import pack
from typing import Literal

from hicache.errors import InputError

# "bigram": each unit of a page is a token and the one after it, as under EAGLE's drafting.
Unit = Literal["token", "bigram"]

DIGEST_BYTES = 32
LARGEST_ID = (1 << 63) - 1
_WIDE = b"\xff"
_NAMESPACE = b"sglang-cache-namespace-v1"
_PAGE_KEY = b"hicache-lab page key v1"


def page_digests(
    tokens: Sequence[int],
    page_size_tokens: int,
    prior: bytes = b"",
    unit: Unit = "token",
) -> list[bytes]:
    """The digest of each whole page of `tokens`, 32 bytes each; a partly filled page has none.

    `tokens`: ids, 0 to 2^63 - 1. `prior`: the digest of the page before, or of a namespace; b"" for
    the first page. With bigrams, n tokens are n - 1 units. Raises InputError for an id that is
    no token id.
    """
    assert page_size_tokens >= 1
    assert len(prior) in (0, DIGEST_BYTES), "a digest has 32 bytes"
    digests: list[bytes] = []
    units = len(tokens) if unit == "token" else len(tokens) - 1
    for start in range(0, units - page_size_tokens + 1, page_size_tokens):
        end = start + page_size_tokens
        if unit == "token":
            ids: Sequence[int] = tokens[start:end]
        else:
            ids = [each for at in range(start, end) for each in (tokens[at], tokens[at + 1])]
        prior = hashlib.sha256(prior + _packed(ids, start)).digest()
        digests.append(prior)
    return digests


def page_hashes(
    tokens: Sequence[int],
    page_size_tokens: int,
    prior: bytes = b"",
    unit: Unit = "token",
) -> list[str]:
    """`page_digests` as stores are asked for them: 64 hexadecimal digits each."""
    return [digest.hex() for digest in page_digests(tokens, page_size_tokens, prior, unit)]


def namespace_seed(extra_key: str | None = None, cache_salt: str | None = None) -> bytes:
    """What stands before the first page of a request with an extra key (an adapter) or a salt.

    b"" without either. Both are part of it with their presence and length, so that no two pairs
    make the same seed.
    """
    if extra_key is None and cache_salt is None:
        return b""
    seed = hashlib.sha256(_NAMESPACE)
    for part in (extra_key, cache_salt):
        if part is None:
            seed.update(b"\0")
        else:
            text = part.encode()
            seed.update(b"\1" + len(text).to_bytes(8, "little") + text)
    return seed.digest()


def key_digests(runs: Iterable[tuple[int, int]], prior: bytes = b"") -> list[bytes]:
    """Stand-ins for the digests of a prompt's pages, where only their keys are known.

    `runs`: page keys, `((first key, count), ...)`, as in `hicache.requests`. Equal prefixes of keys
    have equal digests, and others do not.
    """
    digests: list[bytes] = []
    for key in _keys(runs):
        prior = hashlib.sha256(prior + _PAGE_KEY + key.to_bytes(8, "little", signed=True)).digest()
        digests.append(prior)
    return digests


def event_id(digest: bytes) -> int:
    """A page's name in SGLang's KV events: its digest's first 8 bytes as a signed number."""
    return int.from_bytes(digest[:8], "big", signed=True)


def _keys(runs: Iterable[tuple[int, int]]) -> Iterator[int]:
    for start, count in runs:
        yield from range(start, start + count)


def _packed(ids: Sequence[int], start: int) -> bytes:
    try:
        return pack(f"<{len(ids)}I", *ids)
    except struct_error:
        for each in ids:
            if not 0 <= each <= LARGEST_ID:
                raise InputError(
                    f"page of tokens from position {start}: {each} is no token id; allowed is 0 to "
                    f"{LARGEST_ID}"
                ) from None
        return _WIDE + pack(f"<{len(ids)}Q", *ids)
