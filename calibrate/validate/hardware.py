"""Runs on hardware for a validation: the same scenario twice, the model made once.

    ModelKeeper --assemble--> hw.run.prepare --> execute --> outcome     (for each run)

The two runs are as two calls of `hicache run`, but for the weights, which stay on the GPU: pools,
the L3 file, back-ends and graphs are made anew. Imports torch; refuses to compare.
"""

from __future__ import annotations

import gc
from collections.abc import Callable
from datetime import UTC, datetime
from typing import TYPE_CHECKING, NamedTuple

from hicache.options import EngineOptions
from hw.assembly import Assembly, DeviceName, Told
from hw.run import LiveRun, prepare
from report.outcome import Outcome
from scenario.geometry import ModelGeometry
from scenario.records import Scenario

if TYPE_CHECKING:
    from transformers import PreTrainedModel

# A run's summary says when it was made, and when its machine was started.
MEASURED_AT, MACHINE_STARTED_AT = "measured_at", "machine_started_at"


class Measured(NamedTuple):
    """A run that was made. `scenario`: as settled for this machine."""

    scenario: Scenario
    outcome: Outcome
    measured_at: str


class ModelKeeper:
    """Makes assemblies (`hw.run.MakeAssembly`) that share the last model that was made."""

    def __init__(self) -> None:
        self._key: tuple[object, ...] | None = None
        self._model: PreTrainedModel | None = None

    def assemble(
        self,
        scenario: Scenario,
        options: EngineOptions,
        geometry: ModelGeometry,
        device: DeviceName,
        tell: Told,
    ) -> Assembly:
        """An assembly as any other, whose model is made only if it is another one."""
        keeper = self

        class Sharing(Assembly):
            def make_model(self, scenario: Scenario) -> PreTrainedModel:
                key = (scenario.model.name, scenario.hw.weights, scenario.seed, str(self.where))
                if keeper._key != key or keeper._model is None:
                    keeper.drop()
                    keeper._model = super().make_model(scenario)
                    keeper._key = key
                return keeper._model

        return Sharing(scenario, options, geometry, device, tell)

    def drop(self) -> None:
        """Let go of the model."""
        self._key = self._model = None
        gc.collect()


def measure(
    scenario: Scenario,
    *,
    device: DeviceName,
    keeper: ModelKeeper | None = None,
    tell: Told = print,
    now: Callable[[], datetime] = lambda: datetime.now(UTC),
) -> Measured:
    """Run `scenario` on this machine once. Raises what `hw.run` raises, and KeyboardInterrupt where
    Ctrl-C ended the run: half a run is not compared.
    """
    at = now().isoformat(timespec="seconds")
    run: LiveRun = prepare(
        scenario, device=device, tell=tell, assemble=(keeper or ModelKeeper()).assemble
    )
    try:
        run.execute()
    finally:
        run.close()
    if run.interrupted:
        raise KeyboardInterrupt
    outcome = run.outcome()
    outcome.summary[MEASURED_AT] = at
    outcome.summary[MACHINE_STARTED_AT] = started_at()
    settled = run.scenario
    del run
    gc.collect()
    return Measured(settled, outcome, at)


def started_at() -> str | None:
    """When this machine was started, in UTC; None where it does not say."""
    try:
        with open("/proc/stat", encoding="ascii") as lines:
            seconds = next(int(line.split()[1]) for line in lines if line.startswith("btime "))
    except (OSError, StopIteration, ValueError):
        return None
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="seconds")
