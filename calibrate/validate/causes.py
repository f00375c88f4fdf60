"""What each part of the device model costs the prediction: the simulation repeated with measured
durations in place of predicted ones, a part at a time, then all.

    the profile alone           the whole error
    prefill as measured         ... without that of the prefill steps
    ...
    everything as measured      the error of the schedule
"""

from __future__ import annotations

from typing import NamedTuple

from calibrate.validate.compare import Figure, figures
from calibrate.validate.measured_lanes import PARTS, MeasuredLanes, Part
from calibrate.validate.runs import Played, play, steps_ahead
from hicache.ports import Lanes
from scenario.records import Scenario
from sim.replay import Run

NAMES: dict[Part, str] = {
    "prefill": "prefill steps", "decode": "decode steps", "copies": "copies",
    "waits": "waits before an operation begins", "endings": "ends of bursts",
}  # fmt: skip


class Cause(NamedTuple):
    """The figures of a simulation in which `parts` took what they took on the machine."""

    parts: frozenset[Part]
    figures: dict[str, Figure]
    matched: int
    unmatched: int

    @property
    def name(self) -> str:
        """For people."""
        if len(self.parts) == len(PARTS):
            return "everything as measured"
        return " and ".join(NAMES[part] for part in PARTS if part in self.parts) + " as measured"


def with_measured(
    scenario: Scenario, hardware: Played, parts: frozenset[Part], name: str = "simulated"
) -> tuple[Played, MeasuredLanes]:
    """Simulate `scenario` with the `parts` of the device model as the first run measured them."""
    made: list[MeasuredLanes] = []
    known = sorted(steps_ahead(hardware))
    ahead = known[len(known) // 2] if known else 0

    def lanes_of(run: Run) -> Lanes:
        assert run.machine is not None
        made.append(MeasuredLanes(run.env, run.machine, hardware.completions, parts, ahead))
        return made[0]

    return play(scenario, name, lanes_of=lanes_of), made[0]


def causes(scenario: Scenario, hardware: list[Played]) -> list[Cause]:
    """Each part alone, and all of them."""
    found: list[Cause] = []
    single: list[frozenset[Part]] = [frozenset((part,)) for part in PARTS]
    for parts in (*single, frozenset(PARTS)):
        played, lanes = with_measured(scenario, hardware[0], parts)
        times = lanes.times
        found.append(Cause(parts, figures(hardware, played), times.matched, times.unmatched))
    return found
