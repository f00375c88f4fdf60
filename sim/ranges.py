"""Remembers where a profile was asked for more than was measured, so that a result can say so."""

from __future__ import annotations

from report.run import Finer, Outside


class RangeWatch:
    """Counts questions outside the samples. Devices call it only where they are outside."""

    def __init__(self) -> None:
        self._above: dict[str, list[int]] = {}
        self._below: dict[str, list[int]] = {}
        self._finer: dict[str, list[int]] = {}

    def above(self, what: str, asked: int, largest: int, times: int = 1) -> None:
        """Something was asked for `asked`, so many `times`, beyond the `largest` sample: it was
        extrapolated.
        """
        seen = self._above.setdefault(what, [0, asked, largest])
        seen[0] += times
        seen[1] = max(seen[1], asked)

    def below(self, what: str, asked: int, smallest: int) -> None:
        """Something was asked for `asked`, under the `smallest` sample: that sample was taken."""
        seen = self._below.setdefault(what, [0, asked, smallest])
        seen[0] += 1
        seen[1] = min(seen[1], asked)

    def finer(self, what: str, asked: int, smallest: int) -> None:
        """Something came in parts of `asked`, under the `smallest` sample: it was taken for as
        many more of these.
        """
        seen = self._finer.setdefault(what, [0, asked, smallest])
        seen[0] += 1
        seen[1] = min(seen[1], asked)

    def outside_range(self) -> tuple[Outside, ...]:
        """What was asked above the samples, what below, and what was finer, each in the order of
        first asking.
        """
        return (
            *_told(self._above), *_told(self._below),
            *(Finer(what, *seen) for what, seen in self._finer.items()),
        )  # fmt: skip


def _told(seen_of: dict[str, list[int]]) -> list[Outside]:
    return [Outside(what, *seen) for what, seen in seen_of.items()]
