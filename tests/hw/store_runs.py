"""Real runs whose L3 is a store that is asked by name: their scenarios, a foreign class, and what
the store has afterwards. Every page that is read is checked.
"""

from __future__ import annotations

import sys
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from fault_runs import PAGE, FaultyRun, quick, scenario_of, transfers, write_inputs

from hicache.operations import Lookup
from hicache.record import Record
from report.outcome import Outcome

MODULE = "a_class_of_the_tests"
STORES: dict[str, dict[str, object]] = {
    "slots": {},
    "file": {"hw__store": "file", "hw__store_path": "pages"},
    "dynamic": {"hw__store": "dynamic", "hw__store_class": f"{MODULE}:InMemory"},
}
# Everything that a foreign class keeps; it outlives runs as a server would.
HELD: dict[str, bytes] = {}


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    write_inputs(tmp_path)
    module = ModuleType(MODULE)
    for each in (InMemory, Moody):
        setattr(module, each.__name__, each)
    monkeypatch.setitem(sys.modules, MODULE, module)
    HELD.clear()
    return tmp_path


class InMemory:
    """A class of the HiCacheStorage interface."""

    def __init__(self, config: Any, kwargs: dict[str, Any]) -> None:
        self.calls = 0

    def batch_exists(self, keys: list[str]) -> int:
        return next((i for i, key in enumerate(keys) if key not in HELD), len(keys))

    def batch_get(self, keys: list[str], targets: list[Any]) -> list[Any]:
        found: list[Any] = []
        for key, target in zip(keys, targets, strict=True):
            raw = torch.frombuffer(bytearray(HELD[key]), dtype=torch.uint8) if key in HELD else None
            found.append(None if raw is None else target.copy_(raw.view(target.dtype)))
        return found

    def batch_set(self, keys: list[str], values: list[Any]) -> bool:
        for key, value in zip(keys, values, strict=True):
            HELD.setdefault(key, value.contiguous().view(torch.uint8).numpy().tobytes())
        return True


class Moody(InMemory):
    """Every third call raises, hangs for a while, or answers with something that is none."""

    def _mood(self) -> str:
        self.calls += 1
        return ("good", "good", ("raise", "hang", "rubbish")[self.calls // 3 % 3])[self.calls % 3]

    def batch_exists(self, keys: list[str]) -> int:
        return self._moody(lambda: InMemory.batch_exists(self, keys))

    def batch_get(self, keys: list[str], targets: list[Any]) -> list[Any]:
        return self._moody(lambda: InMemory.batch_get(self, keys, targets))

    def batch_set(self, keys: list[str], values: list[Any]) -> bool:
        return self._moody(lambda: InMemory.batch_set(self, keys, values))

    def _moody(self, act: Callable[[], Any]) -> Any:
        mood = self._mood()
        if mood == "raise":
            raise OSError("in no mood")
        if mood == "hang":
            time.sleep(0.3)
        return "perhaps" if mood == "rubbish" else act()


def store_scenario(folder: Path, kind: str = "file", **options: object):
    given: dict[str, object] = {
        "load__parallel": 2,  # so that what comes back was evicted when it is queued
        "storage__index": "store", "prefetch__mode": "queued", "prefetch__threshold_tokens": PAGE,
        "prefetch__limit_fraction": 1.0, **STORES[kind], **options,
    }  # fmt: skip
    if "hw__store_path" in given:
        given["hw__store_path"] = str(folder / str(given["hw__store_path"]))
    if kind != "slots":
        given["hw__l3_path"] = ""
    return scenario_of(folder, **given)


def run_of(
    folder: Path, device: str, monkeypatch, kind: str = "file", rig=quick, port=None, **options
):
    return FaultyRun(store_scenario(folder, kind, **options), device, monkeypatch, rig, port)


def stored(outcome: Outcome) -> dict[str, Any]:
    return outcome.summary["store"]  # type: ignore[return-value]


def failed(outcome: Outcome) -> dict[str, int]:
    return {name: counts["failed"] for name, counts in transfers(outcome).items()}


def lookups(run: FaultyRun) -> Counter[str]:
    endings = Record(run.run.lines).endings.values()
    return Counter(entry[0] for entry in endings if isinstance(entry[2], Lookup))


def check_store(run: FaultyRun) -> int:
    """Read what the store has of every prompt, and check it; how many pages. The run is over, its
    devices are not closed.
    """
    names, checked = run.assembly.store._names, 0
    most = min(run.pool.pages, run.host.pages)
    before = run.pool.data.clone(), run.host.data.clone()
    for request in run.run.trace.requests(PAGE, "full"):
        full = request.prompt_tokens // PAGE
        keys = [key for first, count in request.prompt_runs for key in range(first, first + count)]
        keys = keys[: min(full, most)]
        came = run.store.read(names.names(tuple((key, 1) for key in keys)), ((0, len(keys)),))
        if came:
            run.backend.copy("h2d", ((0, came),), ((0, came),))
            paths = [tuple(keys[: place + 1]) for place in range(came)]
            run._check_device("storage", paths, list(range(came)))
        checked += came
    run.pool.data.copy_(before[0])
    run.host.data.copy_(before[1])
    return checked


def to_the_end(run: FaultyRun, heal: Callable[[], object] = lambda: None) -> tuple[Outcome, int]:
    """Run it, check everything that must hold, and what is in the store."""
    found: list[int] = []

    def look() -> None:
        heal()
        found.append(check_store(run))

    return run.to_the_end(heal=look), found[0]
