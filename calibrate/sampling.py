"""How often a thing is measured: until the median is known well enough, or the time for it is over.

    warm up -> repeat -> [95 % interval of the median within 3 %?] -> done
                 ^________ no, and there is time _______|

The interval is one of order statistics, which assumes nothing about how times are spread: of n
samples the k-th smallest and the k-th largest hold the median with a probability that the binomial
distribution gives. Fewer than six samples cannot reach 95 %; then it is the whole range, and the
note says how sure that is. Refuses to know what is measured, and to throw away what is merely slow:
only what no hardware can do (less than `floor_ns`) is rejected, and counted.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from math import comb
from typing import NamedTuple

from hicache.errors import InputError

CONFIDENCE = 0.95
MOST_DISTURBED = 8
PATIENCE_S = 0.03  # any point may take that long
LEAST_FOR_CONFIDENCE = 6  # 1 - 2 * 0.5^6 is the first above 95 %
_OF_THE_INTERVAL = re.compile(r"\d+ samples in the time there was|interval of ")


class Disturbed(Exception):
    """A sample that something else spoiled, with what shows it: it is counted and taken again."""


class Exhausted(Exception):
    """No further sample can be had, and why: what there is has to do."""


class Rule(NamedTuple):
    """When enough is enough. `width`: of the median's interval, as a part of the median."""

    warm_ups: int = 1
    least: int = 3
    most: int = 60
    width: float = 0.03


class Sampled(NamedTuple):
    """What came of one point. `width`: half the interval, as a part of the median."""

    ns: tuple[int, ...]
    width: float
    note: str


class Interval(NamedTuple):
    """The median, between what it lies, and with which probability."""

    low: float
    median: float
    high: float
    confidence: float

    @property
    def width(self) -> float:
        """Half of it, as a part of the median."""
        return (self.high - self.low) / 2 / self.median if self.median else 0.0


def median_interval(values: Sequence[int]) -> Interval:
    """The median of at least one value, and its 95 % interval (the range, of fewer than six)."""
    ordered = sorted(values)
    count = len(ordered)
    middle = (ordered[(count - 1) // 2] + ordered[count // 2]) / 2
    # P(the k-th smallest is above the median) = P(fewer than k of n fair coins).
    tail, rank = 0.5**count, 1
    while rank < (count + 1) // 2:
        more = tail + comb(count, rank) * 0.5**count
        if 1 - 2 * more < CONFIDENCE:
            break
        tail, rank = more, rank + 1
    return Interval(ordered[rank - 1], middle, ordered[count - rank], max(0.0, 1 - 2 * tail))


def sample(
    act: Callable[[], int],
    allowance_s: float,
    clock: Callable[[], float],
    rule: Rule = Rule(),  # noqa: B008  # immutable
    *,
    floor_ns: float = 0.0,
    floor_reason: str = "",
    earlier: tuple[int, ...] = (),
) -> Sampled:
    """Call `act`, which returns ns, as often as `rule` asks, for about `allowance_s` seconds.

    `clock`: seconds, only differences count. `floor_ns`: what cannot be undercut; such a sample is
    rejected. `earlier`: what there is of the same point already, which counts, too; `rule.least`
    and `rule.most` are of new ones. Raises InputError where nothing but rejected samples comes, or
    none at all.
    """
    tally = _Tally()
    for _ in range(rule.warm_ups):
        tally.take(act)
    begun_s = clock()
    values = list(earlier)
    while not tally.ended:
        ns = tally.take(act)
        spent_s = clock() - begun_s
        if ns is None:
            if tally.disturbed > MOST_DISTURBED + len(values):
                raise InputError(f"{tally.disturbed} samples were disturbed: {tally.why}")
            if len(values) > len(earlier) and spent_s > max(allowance_s, PATIENCE_S):
                break
            continue
        if ns < floor_ns:
            tally.rejected += 1
            if tally.rejected > rule.most:
                raise InputError(
                    f"all of {tally.rejected} samples are faster than {floor_reason}: {ns} ns, at "
                    f"least {floor_ns:.0f} are needed; is the clock or the size wrong?"
                )
            continue
        values.append(max(1, ns))
        new = len(values) - len(earlier)
        if new < rule.least and spent_s < max(4 * allowance_s, PATIENCE_S):
            continue
        sure = len(values) >= LEAST_FOR_CONFIDENCE
        if (sure and median_interval(values).width <= rule.width) or new >= rule.most:
            break
        if spent_s + spent_s / new > max(allowance_s, PATIENCE_S):
            break
    if not values:
        raise InputError(tally.ended)
    interval = median_interval(values)
    notes = [_width_note(len(values), interval, rule), *tally.notes(floor_reason)]
    return Sampled(tuple(values), interval.width, "; ".join(filter(None, notes)))


class _Tally:
    """What came instead of samples: disturbed and rejected ones, and why there are no more."""

    def __init__(self) -> None:
        self.disturbed = 0
        self.why = ""
        self.rejected = 0
        self.ended = ""

    def take(self, act: Callable[[], int]) -> int | None:
        """A sample; None where it was disturbed or there is none, which is noted."""
        try:
            return act()
        except Disturbed as error:
            self.disturbed, self.why = self.disturbed + 1, str(error)
        except Exhausted as error:
            self.ended = str(error)
        return None

    def notes(self, floor_reason: str) -> Iterator[str]:
        """All of it in words."""
        if self.disturbed:
            yield f"{self.disturbed} disturbed samples rejected: {self.why}"
        if self.rejected:
            yield f"{self.rejected} samples rejected: faster than {floor_reason}"
        if self.ended:
            yield f"no more samples: {self.ended}"


def remarks(note: str) -> list[str]:
    """What a note says besides how narrow the interval became."""
    return [each for each in note.split("; ") if each and not _OF_THE_INTERVAL.match(each)]


def _width_note(count: int, interval: Interval, rule: Rule) -> str:
    """What is to be said of the interval; "" where it is as narrow as was asked for."""
    if count < LEAST_FOR_CONFIDENCE:
        sure = 100 * interval.confidence
        return f"{count} samples in the time there was: their range, {sure:.0f} % sure"
    if interval.width > rule.width:
        return f"interval of +-{100 * interval.width:.1f} %, {100 * rule.width:.0f} % wanted"
    return ""
