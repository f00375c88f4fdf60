"""One calibration from the first probe to the last: shares its time out, and can be stopped.

    for each probe:  open -> for each point not in the journal: sample, journal -> close
                                          |
                       its part of the time that is left, by weight

A point that needs less leaves its time to those behind it. Points that ask for several visits are
come back to when all others of their probe have been visited, and have the samples of all. A probe
that cannot work here, or a point that fails, is missing with its reason, and the rest goes on; so
is what would begin long after the time was over. Ctrl-C ends the session between two samples; what
is done is kept. Refuses to know what the numbers mean.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from calibrate.journal import Journal
from calibrate.points import Effort, Point, Probe
from calibrate.sampling import Rule, remarks, sample
from hicache.errors import HiCacheError
from scenario.measurement import Sample, Series

# A point is given no more than this: where less time is needed than there is, none is wasted.
MOST_S = {"quick": 4.0, "thorough": 20.0}
OPENING_S = 4.0  # guessed for a probe until it was opened
OVER_S = 10.0  # beyond the time there was; nothing begins after it


class Progress(Protocol):
    """Who is told how it goes."""

    def begin(self, points: int) -> None: ...
    def probe(self, name: str, points: int) -> None: ...
    def point(self, point: Point, left_s: float) -> None: ...
    def done(self, points: int) -> None: ...
    def missing(self, what: str, reason: str) -> None: ...


@dataclass(slots=True)
class Measured:
    """What a session leaves."""

    series: dict[str, Series] = field(default_factory=dict)
    missing: list[str] = field(default_factory=list)
    interrupted: bool = False
    # Whether points were left for want of time.
    late: bool = False
    duration_s: float = 0.0

    def samples(self, key: str) -> tuple[Sample, ...]:
        """A series' samples; () if there are none."""
        series = self.series.get(key)
        return series.samples if series is not None else ()


class Session:
    """Runs `probes` within `budget_s` seconds by `clock`."""

    def __init__(
        self,
        probes: Sequence[Probe],
        journal: Journal,
        progress: Progress,
        *,
        effort: Effort,
        budget_s: float,
        clock: Callable[[], float] = time.monotonic,
        rule: Rule = Rule(),  # noqa: B008  # immutable
    ) -> None:
        self._probes = probes
        self._journal = journal
        self._progress = progress
        self._effort: Effort = effort
        self._deadline_s = clock() + budget_s
        self._clock = clock
        self._rule = rule
        self._failed: set[str] = set()

    def run(self) -> Measured:
        """Measure. Never raises for what the machine cannot do; see `Measured.missing`."""
        measured = Measured()
        begun_s = self._clock()
        plans = [(probe, probe.points(self._effort)) for probe in self._probes]
        self._progress.begin(sum(len(points) for _, points in plans))
        try:
            for place, (probe, points) in enumerate(plans):
                behind = [each for _, later in plans[place + 1 :] for each in later]
                self._run_probe(measured, probe, points, behind, len(plans) - place - 1)
        except KeyboardInterrupt:
            measured.interrupted = True
        self._collect(measured, plans)
        measured.duration_s = self._clock() - begun_s
        return measured

    def _run_probe(
        self,
        measured: Measured,
        probe: Probe,
        points: list[Point],
        behind: list[Point],
        probes_behind: int,
    ) -> None:
        todo = [point for point in points if self._visits_left(point)]
        self._progress.probe(probe.name, len(points))
        self._progress.done(len(points) - len(todo))
        if not todo:
            return
        if self._over():
            self._leave(measured, probe, len(todo))
            return
        try:
            probe.open()
            weight = sum(self._weight_left(each) for each in (*todo, *behind))
            visits = self._visits(todo)
            for place, point in enumerate(visits):
                if self._over():
                    left = {each.key for each in visits[place:]}
                    self._leave(measured, probe, len(left))
                    break
                part = point.weight / point.visits
                if point.key not in self._failed:
                    left_s = self._deadline_s - self._clock() - OPENING_S * probes_behind
                    allowance_s = min(MOST_S[self._effort] * part, max(0.0, left_s) * part / weight)
                    self._progress.point(point, left_s)
                    self._measure(measured, probe, point, allowance_s)
                    self._progress.done(0 if self._visits_left(point) else 1)
                weight -= part
        except (HiCacheError, OSError, RuntimeError) as error:
            self._miss(measured, probe.name, error)
        finally:
            probe.close()

    def _visits(self, todo: Sequence[Point]) -> list[Point]:
        """Each of `todo` as often as it is still to be visited, all others between."""
        most = max(map(self._visits_left, todo))
        return [
            point
            for number in range(most, 0, -1)
            for point in todo
            if self._visits_left(point) >= number
        ]

    def _visits_left(self, point: Point) -> int:
        if point.key in self._failed:
            return 0
        return self._journal.visits_left(point.key, point.visits)

    def _weight_left(self, point: Point) -> float:
        return point.weight * self._visits_left(point) / point.visits

    def _over(self) -> bool:
        return self._clock() > self._deadline_s + OVER_S

    def _leave(self, measured: Measured, probe: Probe, points: int) -> None:
        measured.late = True
        self._miss(measured, probe.name, f"the time was over with {points} points to go")

    def _measure(self, measured: Measured, probe: Probe, point: Point, allowance_s: float) -> None:
        try:
            floor = probe.floor(point)
            rule = self._rule
            least = point.least if self._effort == "quick" else rule.least
            # No visit may outweigh the others.
            rule = rule._replace(
                warm_ups=min(rule.warm_ups, point.warm_ups),
                least=min(rule.least, least),
                most=max(1, rule.most // point.visits),
            )
            earlier = self._journal.get(point.key)
            sampled = sample(
                probe.sampler(point), allowance_s, self._clock, rule,
                floor_ns=floor.ns, floor_reason=floor.reason,
                earlier=earlier.ns if earlier is not None else (),
            )  # fmt: skip
        except (HiCacheError, RuntimeError) as error:
            self._failed.add(point.key)
            self._miss(measured, point.key, error)
            return
        before = remarks(earlier.note) if earlier is not None else []
        notes = dict.fromkeys((sampled.note, *before))  # each once
        self._journal.add(
            point.key,
            Sample(
                at=point.at,
                ns=sampled.ns,
                role=point.role,
                width_permille=round(1000 * sampled.width),
                note="; ".join(filter(None, notes)),
            ),
            self._visits_left(point) - 1,
        )

    def _miss(self, measured: Measured, what: str, reason: Exception | str) -> None:
        measured.missing.append(f"{what}: {reason}")
        self._progress.missing(what, str(reason))

    def _collect(self, measured: Measured, plans: list[tuple[Probe, list[Point]]]) -> None:
        """The series, in the order of the plan, of all that the journal has."""
        for probe, points in plans:
            described = probe.describe()
            for key, (axes, how) in described.items():
                samples = [
                    self._journal[point.key]
                    for point in points
                    if point.series == key and point.key in self._journal
                ]
                if samples:
                    samples.sort(key=lambda each: each.at)
                    measured.series[key] = Series(
                        key=key, axes=axes, how=how, samples=tuple(samples)
                    )
            left = sum(1 for each in points if self._journal.visits_left(each.key, each.visits))
            if left and measured.interrupted:
                measured.missing.append(f"{probe.name}: stopped with {left} points to go")
