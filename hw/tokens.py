"""The token ids of a request, where its trace has only page keys: made from the keys.

The token at place p of the page with key k is a fixed number of (k, p), so that two requests which
share a page's key share its tokens, and a later prompt that goes on from an answer has the answer's
tokens. Behind the pages that a trace names, tokens are the request's own: nobody has them again.

    prompt of 10, answer of 8, pages of 4:   0 1 2 3 | 4 5 6 7 | 8 9 a a | a a a a | a a
    keys                                      prompt   prompt     named     named    private
    "named": the answer's page that holds the prompt's tail, too, where the trace has one.

Where an engine caches partly filled pages, the prompt's last page has a key of its own, and its
tokens come from that. Refuses to look like language: ids are spread evenly over the vocabulary.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from hicache.requests import KeyRuns, Request

Tokens = NDArray[np.int32]
_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_PRIVATE = np.uint64(0xD1B54A32D192ED03)


def mix(numbers: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """A bijection of 64 bits that leaves nothing of their order (splitmix64's finaliser)."""
    numbers = (numbers ^ (numbers >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    numbers = (numbers ^ (numbers >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return numbers ^ (numbers >> np.uint64(31))


def expand(runs: KeyRuns) -> NDArray[np.int64]:
    """Runs ((first, count), ...) as the numbers that they stand for."""
    if not runs:
        return np.empty(0, np.int64)
    pairs = np.asarray(runs, dtype=np.int64).reshape(-1, 2)
    firsts, counts = pairs[:, 0], pairs[:, 1]
    ends = np.cumsum(counts)
    return np.arange(int(ends[-1])) + np.repeat(firsts - (ends - counts), counts)


class TokenBook:
    """Token ids for the requests of one trace, kept for those asked about last.

    `tokens(request, upto)` is what `hw.steps.StepsOf` asks for. `keep_tokens` bounds what is kept,
    over all requests.
    """

    def __init__(
        self, page_size_tokens: int, vocab_size: int, *, seed: int = 0, keep_tokens: int = 1 << 24
    ) -> None:
        self._page = page_size_tokens
        self._vocab = np.uint64(vocab_size)
        self._seed = mix(np.array([seed], np.uint64) + _GOLDEN)
        self._keep = keep_tokens
        self._kept: dict[int, Tokens] = {}  # request number -> its tokens, least recent first
        self._size = 0

    def tokens(self, request: Request, upto: int) -> Tokens:
        """Ids of the positions from 0 up to at least `upto`: read-only int32."""
        kept = self._kept.pop(request.number, None)
        if kept is None or len(kept) < upto:
            self._size -= 0 if kept is None else len(kept)
            kept = self._make(request, max(upto, request.prompt_tokens + request.output_tokens))
            self._size += len(kept)
        self._kept[request.number] = kept
        while self._size > self._keep and len(self._kept) > 1:
            oldest = next(iter(self._kept))
            self._size -= len(self._kept.pop(oldest))
        return kept

    def _make(self, request: Request, upto: int) -> Tokens:
        page = self._page
        full = request.prompt_tokens // page
        pages = -(-upto // page)
        named = expand(request.prompt_runs)
        # With partly filled pages, the last key is that of the prompt's tail.
        tail = named[full : full + 1]
        named = np.concatenate((named[:full], expand(request.output_runs or ())))[:pages]
        ids = np.empty((pages, page), np.int32)
        ids[: len(named)] = self._ids(mix(named.view(np.uint64) + self._seed))
        private = np.arange(len(named), pages, dtype=np.uint64)
        origin = mix(np.array([request.number], np.int64).view(np.uint64) + self._seed * _PRIVATE)
        ids[len(named) :] = self._ids(mix(origin ^ (private + np.uint64(1)) * _PRIVATE))
        if len(tail):
            within = request.prompt_tokens % page
            ids[full, :within] = self._ids(mix(tail.view(np.uint64) + self._seed))[0, :within]
        tokens = ids.reshape(-1)[:upto]
        tokens.flags.writeable = False
        return tokens

    def _ids(self, pages: NDArray[np.uint64]) -> Tokens:
        """Tokens of pages, of shape (pages, page_size)."""
        places = np.arange(1, self._page + 1, dtype=np.uint64) * _GOLDEN
        return (mix(pages[:, None] + places[None, :]) % self._vocab).astype(np.int32)
