"""The prefill and decode of an engine that people really run, through its own HTTP interface.

    cold    a prompt of random tokens, which no cache has: TTFT(new, 0)
    hit     the prompt's beginning was sent before, its end is new: TTFT(new, past)
    decode  the mean time between tokens of so many streams at once

Before and after each sample a tiny request is sent: where it takes much longer than when nothing
else ran, somebody else uses the server, and the sample is rejected; likewise where the server says
that it had other tokens cached than it should. Times include what the server and its HTTP add, as
its users have it. Refuses servers that cannot take prompts of token ids.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

import numpy as np

from calibrate.openai import Server, Streamed
from calibrate.points import NO_FLOOR, Described, Effort, Floor, Point
from calibrate.sampling import Disturbed, median_interval
from hicache.errors import InputError
from scenario.measurement import Role

FIRST_ID = 1000
SENTINEL_TOKENS = 8
SENTINELS = 7
SLOWER = 1.5  # than when the server was idle, from which on a sample counts as disturbed
JITTER_NS = 4_000_000
DECODED = 24
BUSY = "the server was busy with something else"
COLD = (1, 64, 256, 1024, 2048, 4096, 8192)
NEWS = (1, 256, 1024, 4096)
PASTS = (1024, 4096, 16_384)
CHECKS = ((700, 0), (3000, 0), (500, 2048), (2000, 8192))
BATCHES = (1, 4, 16)
CONTEXTS = (256, 4096)
# As far as a quick run has time to send the prompts, and what a long one sends besides.
LONG_DECODES = ((1, 16_384), (4, 16_384), (1, 32_768))
LONGER_DECODES = ((16, 16_384), (4, 32_768))
DECODE_CHECKS = ((2, 1024), (8, 2048), (2, 10_000))


class ServerProbe:
    """See `calibrate.points.Probe`."""

    name = "server"

    def __init__(
        self,
        server: Server,
        vocab_size: int,
        most_tokens: int,
        *,
        prefills: tuple[tuple[int, int], ...] = (),
        decodes: tuple[tuple[int, int], ...] = (),
        seed: int = 0,
    ) -> None:
        """`most_tokens`: of a prompt. `prefills`, `decodes`: the points, if not the usual ones."""
        self._server = server
        self._vocab = max(FIRST_ID + 1, vocab_size)
        self._most = most_tokens
        self._prefills = prefills
        self._decodes = decodes
        self._random = np.random.default_rng(seed)
        self._idle_ns = 0.0

    def describe(self) -> dict[str, Described]:
        name = self._server.model
        return {
            "server.prefill": Described(
                ("new_tokens", "past_tokens"), f"time to first token of a server of {name}"
            ),
            "server.decode": Described(
                ("batch", "context_tokens_each"), f"time between tokens of a server of {name}"
            ),
        }

    def points(self, effort: Effort) -> list[Point]:
        fits = {(new, 0) for new in COLD} | {(new, past) for new in NEWS for past in PASTS}
        if effort == "thorough":
            fits |= {(16_384, 0), (8192, 16_384), (256, 32_768), (4096, 32_768)}
        checks = set(CHECKS)
        decodes = {(batch, context) for batch in BATCHES for context in CONTEXTS}
        decodes |= {*LONG_DECODES, *(LONGER_DECODES if effort == "thorough" else ())}
        decode_checks = set(DECODE_CHECKS)
        if self._prefills:
            fits, checks = _split(self._prefills)
        if self._decodes:
            decodes, decode_checks = _split(self._decodes)
        points = [Point("server.prefill", at, "fit", _weight(*at)) for at in sorted(fits)]
        points += [Point("server.prefill", at, "check", _weight(*at)) for at in sorted(checks)]
        points += [_decoding(at, "fit") for at in sorted(decodes)]
        points += [_decoding(at, "check") for at in sorted(decode_checks)]
        return [
            each for each in points
            if (sum(each.at) if each.series == "server.prefill" else each.at[1] + DECODED)
            <= self._most
        ]  # fmt: skip

    def check(self) -> None:
        """Raises InputError for a server that cannot be timed."""
        self._server.check(self._ids(SENTINEL_TOKENS))

    def open(self) -> None:
        """Send tiny requests, until it is known what they take when nothing else runs."""
        self._server.complete(self._ids(SENTINEL_TOKENS), 1)
        times = [self._sentinel() for _ in range(SENTINELS)]
        self._idle_ns = median_interval(times).median

    def floor(self, point: Point) -> Floor:
        return NO_FLOOR

    def sampler(self, point: Point) -> Callable[[], int]:
        if point.series == "server.prefill":
            return self._guarded(self._prefill(*point.at))
        return self._guarded(self._decode(*point.at))

    def close(self) -> None:
        """Nothing is kept open."""

    def _guarded(self, act: Callable[[], int]) -> Callable[[], int]:
        """`act` between two tiny requests, which say whether the server was left alone."""

        def guarded() -> int:
            before_ns = self._sentinel()
            took = act()
            slowest_ns = max(before_ns, self._sentinel())
            # It may have been busy when it was asked first.
            self._idle_ns = min(self._idle_ns, slowest_ns)
            if slowest_ns > SLOWER * self._idle_ns + JITTER_NS:
                raise Disturbed(BUSY)
            return took

        return guarded

    def _sentinel(self) -> int:
        return self._server.complete(self._ids(SENTINEL_TOKENS), 1).ttft_ns

    def _prefill(self, new: int, past: int) -> Callable[[], int]:
        prefix = self._ids(past)
        if past:
            self._server.complete(prefix, 1)

        def act() -> int:
            streamed = self._server.complete([*prefix, *self._ids(new)], 1)
            cached = streamed.cached_tokens
            # A server caches whole pages, and always computes the last token.
            if cached >= 0 and not 0.9 * past - 64 <= cached <= past + 64:
                if past:  # it may have made room for others' prompts
                    self._server.complete(prefix, 1)
                raise Disturbed(f"the server had {cached} tokens cached, not {past}")
            return streamed.ttft_ns

        return act

    def _decode(self, batch: int, context: int) -> Callable[[], int]:
        prompts = [self._ids(context) for _ in range(batch)]
        for prompt in prompts:  # cached, so that streams begin together
            self._server.complete(prompt, 1)

        def act() -> int:
            streams: list[Streamed | BaseException] = []

            def stream(prompt: list[int]) -> None:
                try:
                    streams.append(self._server.complete(prompt, DECODED))
                except BaseException as error:
                    streams.append(error)

            threads = [
                threading.Thread(target=stream, args=(each,), daemon=True) for each in prompts
            ]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            return _between(streams)

        return act

    def _ids(self, count: int) -> list[int]:
        return self._random.integers(FIRST_ID, self._vocab, count).tolist()


def _between(streams: list[Streamed | BaseException]) -> int:
    """The mean time between tokens while all streams ran."""
    good: list[Streamed] = []
    for each in streams:
        if isinstance(each, BaseException):
            raise each
        good.append(each)
    for each in good:
        tokens = each.tokens if each.tokens >= 0 else DECODED
        if len(each.token_ns) != tokens:
            raise InputError(
                f"{tokens} tokens came in {len(each.token_ns)} pieces, so that times between them "
                "are not known; start the server so that it streams each token"
            )
    first = max(each.token_ns[0] for each in good)
    last = min(each.token_ns[-1] for each in good)
    gaps: list[int] = []
    for each in good:
        inside = [at for at in each.token_ns if first <= at <= last]
        if len(inside) >= 2:
            gaps.append((inside[-1] - inside[0]) // (len(inside) - 1))
    if not gaps:
        raise Disturbed("the streams did not run at the same time")
    return sum(gaps) // len(gaps)


def _split(
    at: tuple[tuple[int, int], ...],
) -> tuple[set[tuple[int, int]], set[tuple[int, int]]]:
    """Points for the fit, and those held out: every third in order."""
    ordered = sorted(at)
    held = set(ordered[4::5])
    return set(ordered) - held, held


def _weight(new: int, past: int) -> float:
    return 0.5 + 8 * (new * 50e-6 + new * past * 2e-9)


def _decoding(at: tuple[int, int], role: Role) -> Point:
    """Of (batch, context). The prompts are sent once, and are cached then."""
    batch, context = at
    weight = 3.0 + batch * (context * 50e-6 + context * context * 1e-9)
    return Point("server.decode", at, role, weight)
