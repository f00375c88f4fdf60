"""What there is to measure: a point of a series, and who can measure it.

    Probe  opens what it needs, names its points, measures one at a time, closes
    Point  a series and a place in it: ("steps.prefill", (512, 8192))

Axes and words of all series stand here, because a point is known by them in the journal, in the
profile and in plots. Refuses to know how anything is measured.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal, NamedTuple, Protocol

from scenario.measurement import Role

Effort = Literal["quick", "thorough"]
# Of copies: a burst of six takes some milliseconds, and they are slower for seconds, up to by half.
VISITS: dict[Effort, int] = {"quick": 1, "thorough": 3}


class Point(NamedTuple):
    """One thing to measure.

    `weight`: its part of the time, against other points. `least`: repetitions that a quick
    calibration makes in any case. `warm_ups`: calls before those that count. `visits`: how often it
    is come to, all other points of its probe between: what is slower for a second is not all that
    it sees.
    """

    series: str
    at: tuple[int, ...]
    role: Role = "fit"
    weight: float = 1.0
    least: int = 3
    warm_ups: int = 1
    visits: int = 1

    @property
    def key(self) -> str:
        """What the journal knows it by."""
        return f"{self.series}@{','.join(map(str, self.at))}"


class Described(NamedTuple):
    """A series: what the numbers of a point are, and how it is measured, in words."""

    axes: tuple[str, ...]
    how: str


class Floor(NamedTuple):
    """The least time that hardware can need, and what says so."""

    ns: float
    reason: str


NO_FLOOR = Floor(0.0, "")


class Probe(Protocol):
    """Measures some series. `name` is what `--only` takes."""

    name: str

    def describe(self) -> dict[str, Described]:
        """Its series."""
        ...

    def points(self, effort: Effort) -> list[Point]:
        """What is to be measured, in order: what matters most first."""
        ...

    def open(self) -> None:
        """Make ready; takes time. Raises InputError where it cannot be."""
        ...

    def sampler(self, point: Point) -> Callable[[], int]:
        """What measures `point` once, and returns ns."""
        ...

    def floor(self, point: Point) -> Floor:
        """What no hardware can undercut there."""
        ...

    def close(self) -> None:
        """Let go of everything. Also called where `open` failed."""
        ...
