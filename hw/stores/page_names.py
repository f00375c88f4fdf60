"""From the engine's page keys to the names that stores know: each request teaches its own.

    key 40 41 42 ...  (numbers of one trace)     name baed64.. 01414b.. ...  (hashes of tokens)

A key stands for its tokens after one prefix, so that its name is learnt once and holds. Hashing
takes time that the engine's thread need not wait for: it only hands requests on (`learning`), and
whoever first asks for a name learns what it needs, in the order of the requests. Pages that
no trace names (answers that nobody asks for again, partly filled pages) get names of this run's
own, which no other run makes: in a store that others use, a number would soon be somebody else's.
Tokens come from who makes the run's tokens (`hw.tokens`); this module hashes them.
"""

from __future__ import annotations

import hashlib
import threading
import uuid
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import numpy as np

from hicache.operations import PageRuns
from hicache.requests import Request
from hw.stores.contract import numbered
from traces.page_hash import page_digests

# An array, or a sequence of numbers.
TokensOf = Callable[[Request, int], Any]


class PageNames:
    """Names by key. Thread-safe; `tokens_of` is called by one thread at a time, but by any."""

    def __init__(self, page_size_tokens: int, tokens_of: TokensOf, namespace: bytes = b"") -> None:
        """`tokens_of(request, upto)`: ids of the first tokens, at least `upto` of them.
        `namespace`: see `traces.page_hash.namespace_seed`.
        """
        self._page = page_size_tokens
        self._tokens_of = tokens_of
        self._namespace = namespace
        self._digests: dict[int, bytes] = {}
        self._own = uuid.uuid4().bytes
        self._lock = threading.Lock()
        self._waiting: deque[Request] = deque()

    def learn(self, request: Request) -> None:
        """Learn the names of a request's full pages, of its answer's as far as they are named."""
        with self._lock:
            self._learn(request)

    def _learn(self, request: Request) -> None:
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
        new = np.asarray(tokens[known * page : len(keys) * page]).tolist()
        digests.update(zip(keys[known:], page_digests(new, page, prior), strict=True))

    def learning(self, requests: Iterable[Request]) -> Iterator[Request]:
        """The requests, each noted before it is handed on: names of its pages can be asked for."""
        for request in requests:
            self._waiting.append(request)
            yield request

    def names(self, keys: PageRuns) -> list[str]:
        """A name for each key."""
        with self._lock:
            return [self._name(key) for key in numbered(keys)]

    def _name(self, key: int) -> str:
        digest = self._digests.get(key)
        while digest is None and key >= 0 and self._waiting:
            self._learn(self._waiting.popleft())
            digest = self._digests.get(key)
        if digest is None:
            own = self._own + key.to_bytes(8, "little", signed=True)
            digest = hashlib.sha256(own).digest()
        return digest.hex()
