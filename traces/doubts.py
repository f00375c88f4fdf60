"""What looks wrong with a trace, in whole sentences: things that a replay takes as they are.

None of it is an error. It judges only by counts that `traces.info` has anyway.
"""

from __future__ import annotations

import math
from collections import Counter

from traces.facts import no_id_to_the_end
from traces.report import TraceInfo

# Times that are multiples of less are not called coarse. A clock that ticks may be this part of a
# tick off, and this part of all gaps may be none of its multiples.
LEAST_TICK_MS = 100
JITTER = 0.02
STRAY = 0.05
# Mean rates outside of these are of a trace whose times are in another unit than was taken.
IMPLAUSIBLE_RATE_PER_S = 200
IMPLAUSIBLE_GAP_S = 1000
FEW_REQUESTS = 10


class Clock:
    """The times of requests, which never fall: how many come at once, and in what steps."""

    def __init__(self) -> None:
        self.requests = 0
        self.first_ms: int | float = 0
        self._last_ms: int | float = 0
        self._step_us = 0
        self._gaps_ms: Counter[int] = Counter()
        self.moments = 0
        self._at_once = 0
        self.most_at_once = 0

    def take(self, timestamp: int | float | None) -> None:
        """The time of the next request; None says nothing."""
        if timestamp is None:
            return
        if not self.requests:
            self.first_ms = self._last_ms = timestamp
        self.requests += 1
        if timestamp == self._last_ms and self.moments:
            self._at_once += 1
        else:
            gap_ms = timestamp - self._last_ms
            self._step_us = math.gcd(self._step_us, round(gap_ms * 1000))
            if self.moments:
                self._gaps_ms[round(gap_ms)] += 1
            self._last_ms = timestamp
            self.moments += 1
            self._at_once = 1
        self.most_at_once = max(self.most_at_once, self._at_once)

    @property
    def duration_s(self) -> float:
        """Seconds from the first request to the last."""
        return (self._last_ms - self.first_ms) / 1000

    @property
    def tick_ms(self) -> float:
        """The step in which times come, from the first one on; 0: in none of 0.1 s or more.

        All times are multiples of it exactly, or the gaps nearly all to within 2 % of it, as where
        a server takes the requests of some seconds together.
        """
        if self._step_us >= LEAST_TICK_MS * 1000:
            return self._step_us / 1000
        if not self._gaps_ms:
            return 0
        tick_ms = self._gaps_ms.most_common(1)[0][0]
        if tick_ms < LEAST_TICK_MS:
            return 0
        stray = sum(
            count
            for gap_ms, count in self._gaps_ms.items()
            if abs(gap_ms - max(1, round(gap_ms / tick_ms)) * tick_ms) > JITTER * tick_ms
        )
        return tick_ms if stray <= STRAY * (self.moments - 1) else 0


def doubts(info: TraceInfo, clock: Clock, no_output: int, without_tail: int) -> list[str]:
    """A sentence for each doubt. `without_tail` prompts have ids that do not reach their end."""
    found = [*_about_times(info, clock)]
    if no_output:
        found.append(
            f"zero outputs: {no_output:,} of {info.requests:,} requests have no output token"
        )
    if without_tail:
        found.append(f"no id to the end: {no_id_to_the_end(without_tail, info.requests)}")
    sharing = info.sharing
    if sharing is not None and sharing.repeated_prompts:
        found.append(
            f"duplicates: whole earlier prompts are repeated by {sharing.repeated_prompts:,} of "
            f"{info.requests:,} requests"
        )
    if sharing is not None and info.reuse == () and info.requests >= FEW_REQUESTS:
        found.append("nothing shared: no prompt starts as an earlier one does, by a whole block")
    if info.bad_rows:
        found.append(
            f"malformed: {info.bad_rows:,} row{'s were' if info.bad_rows > 1 else ' was'} left out"
        )
    return found


def _about_times(info: TraceInfo, clock: Clock) -> list[str]:
    found: list[str] = []
    if clock.requests < FEW_REQUESTS:
        return found
    if clock.moments == 1:
        found.append(f"all at once: {clock.requests:,} requests have the same time")
    elif (tick_ms := clock.tick_ms) and clock.moments < clock.requests:
        tick = f"{tick_ms / 1000:g} s" if tick_ms >= 1000 else f"{tick_ms:g} ms"
        found.append(
            f"coarse times: they come in steps of {tick}, with up to {clock.most_at_once:,} "
            "requests at one time; a replay sees these as bursts"
        )
    rate = info.mean_rate_per_s
    if rate > IMPLAUSIBLE_RATE_PER_S:
        found.append(
            f"unit of times: {rate:,.0f} requests a second; are these seconds where the format has "
            "smaller units? (replay with --speed 0.001)"
        )
    elif clock.moments > 1 and rate * IMPLAUSIBLE_GAP_S < 1:
        found.append(
            f"unit of times: one request in {1 / rate:,.0f} s; are these milliseconds where the "
            "format has seconds? (replay with --speed 1000)"
        )
    return found
