"""From the engine's page keys to the names that stores know: each request teaches its own.

    key 40 41 42 ...  (numbers of one trace)     name baed64.. 01414b.. ...  (hashes of tokens)

A key stands for its tokens after one prefix, so that its name is learnt once and holds. Pages that
no trace names (answers that nobody asks for again, partly filled pages) get names of this run's
own, which no other run makes: in a store that others use, a number would soon be somebody else's.
Tokens come from who makes the run's tokens (`hw.tokens`); this module hashes them.
"""

from __future__ import annotations

import hashlib
import uuid
from collections.abc import Callable, Iterable, Iterator, Sequence

from hicache.operations import PageRuns
from hicache.requests import Request
from hw.stores.contract import numbered
from traces.page_hash import page_digests

TokensOf = Callable[[Request, int], Sequence[int]]


class PageNames:
    """Names by key. Learnt in one thread, asked for in any."""

    def __init__(self, page_size_tokens: int, tokens_of: TokensOf, namespace: bytes = b"") -> None:
        """`tokens_of(request, upto)`: ids of the first tokens, at least `upto` of them.
        `namespace`: see `traces.page_hash.namespace_seed`.
        """
        self._page = page_size_tokens
        self._tokens_of = tokens_of
        self._namespace = namespace
        self._digests: dict[int, bytes] = {}
        self._own = uuid.uuid4().bytes

    def learn(self, request: Request) -> None:
        """Learn the names of a request's full pages, of its answer's as far as they are named."""
        page, digests = self._page, self._digests
        full = request.prompt_tokens // page
        keys = numbered(request.prompt_runs)[:full]
        if len(keys) == full:
            keys += numbered(request.output_runs or ())
        known = 0
        while known < len(keys) and keys[known] in digests:
            known += 1
        if known == len(keys):
            return
        prior = digests[keys[known - 1]] if known else self._namespace
        tokens = self._tokens_of(request, len(keys) * page)
        new = [int(token) for token in tokens[known * page : len(keys) * page]]
        digests.update(zip(keys[known:], page_digests(new, page, prior), strict=True))

    def learning(self, requests: Iterable[Request]) -> Iterator[Request]:
        """The requests, each learnt before it is handed on."""
        for request in requests:
            self.learn(request)
            yield request

    def names(self, keys: PageRuns) -> list[str]:
        """A name for each key."""
        return [self._name(key) for key in numbered(keys)]

    def _name(self, key: int) -> str:
        digest = self._digests.get(key)
        if digest is None:
            own = self._own + key.to_bytes(8, "little", signed=True)
            digest = hashlib.sha256(own).digest()
        return digest.hex()
