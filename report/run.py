"""A run that has ended, as reports need it, whoever carried it out: a simulation or a machine."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol

from hicache.metrics import Metrics
from hicache.options import EngineOptions, LoadOptions
from scenario.geometry import ModelGeometry
from scenario.profile import Estimate
from scenario.records import Scenario
from traces.reader import Trace


class Outside(NamedTuple):
    """One kind of question beyond a profile's samples: how often, the farthest, the samples'
    end.
    """

    what: str
    times: int
    farthest: int
    measured_to: int


class Finer(Outside):
    """What came in smaller parts than any sample: it was taken for as many more of these."""


class Machine(Protocol):
    """What a simulated machine says of itself; a real one has nothing to say."""

    def estimates(self) -> tuple[Estimate, ...]:
        """What results rest on though nobody measured it."""
        ...

    def outside_range(self) -> Sequence[Outside]:
        """Where it was asked for more than was measured."""
        ...


class TierTotals(Protocol):
    """One tier at the end, of one engine or of several."""

    @property
    def capacity(self) -> int: ...
    @property
    def resident(self) -> int: ...
    @property
    def evicted_pages(self) -> int: ...
    @property
    def lost_pages(self) -> int: ...


class TreeTotals(Protocol):
    """Its tiers."""

    @property
    def tiers(self) -> Sequence[TierTotals]: ...


class Served(Protocol):
    """What served the requests: an engine, or several together."""

    @property
    def metrics(self) -> Metrics: ...
    @property
    def tree(self) -> TreeTotals: ...

    def status(self) -> dict[str, Any]:
        """A snapshot; of it, what is believed."""
        ...


class FinishedRun(Protocol):
    """The parts of a run. `profile_name`: the machine's, in the summary."""

    @property
    def scenario(self) -> Scenario: ...
    @property
    def options(self) -> EngineOptions: ...
    @property
    def geometry(self) -> ModelGeometry: ...
    @property
    def profile_name(self) -> str: ...
    @property
    def trace(self) -> Trace: ...
    @property
    def engine(self) -> Served: ...
    @property
    def instances(self) -> Sequence[Served]: ...
    @property
    def machine(self) -> Machine | None: ...
    @property
    def warnings(self) -> tuple[str, ...]: ...
    @property
    def load(self) -> LoadOptions: ...
    @property
    def notes(self) -> list[str]: ...
    @property
    def interrupted(self) -> bool: ...
