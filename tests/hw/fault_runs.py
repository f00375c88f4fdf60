"""Whole runs on three tiers of real memory and files in which something goes wrong, and what must
hold afterwards: nothing under way, no pin, every page accounted for, and every page that the cache
offers, in any tier, holding what its tokens say.

Compute is synthetic: K and V of a token follow from it and all tokens before it (`hw.synthetic`),
and every page that a request reads is checked while the run goes on, too.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import hw  # noqa: F401  # before Triton is imported

# isort: split
import numpy as np
import pytest
import torch
from live_runs import FaultyLanes  # makes the engine's test helpers importable

# isort: split
from adversarial_lanes import pages_of
from engine_runs import assert_at_rest
from tree_view import published

from hicache import holdings
from hicache.errors import TransferError
from hicache.node import DEVICE, HOST, STORAGE, TIER_NAMES
from hicache.operations import Copy, PageRuns
from hicache.record import Record
from hicache.requests import Request
from hw.assembly import Assembly
from hw.device import Device
from hw.run import LiveRun, prepare
from hw.synthetic import AffineDurations, Durations, SyntheticDevice, check, token_seeds
from report.outcome import Outcome
from scenario.load import load_scenario
from scenario.records import Scenario
from sim.replay import replay
from traces.convert import write
from traces.workloads import WORKLOADS

HERE = "cuda" if torch.cuda.is_available() else "cpu"
# Triton interprets where there is no GPU, and compiles where there is one: a process does either.
DEVICES = [
    pytest.param(
        "cpu", marks=pytest.mark.skipif(HERE != "cpu", reason="Triton compiles for the GPU here")
    ),
    pytest.param(
        "cuda",
        marks=[
            pytest.mark.gpu,
            pytest.mark.skipif(HERE != "cuda", reason="needs a CUDA GPU"),
        ],
    ),
]
CONFIG = {
    "model_type": "qwen3", "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 1,
    "num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 16, "vocab_size": 256,
    "max_position_embeddings": 4096, "tie_word_embeddings": True, "attention_bias": False,
    "torch_dtype": "float32",
}  # fmt: skip
# On a CPU the other tiers are Python's threads beside those of whatever else runs: a step leaves
# them time to bring what they were asked for.
QUICK = (
    AffineDurations(20_000, 100, 20_000, 0)
    if HERE == "cuda"
    else AffineDurations(8_000_000, 0, 8_000_000, 0)
)
PAGE = 8

Rig = Callable[[str, Device], Device]


def write_inputs(
    folder: Path, trace: str = "trace.jsonl", clients: int = 7, rounds: int = 3, page: int = PAGE
) -> None:
    """A model's configuration, and conversations whose prefixes come back from every tier."""
    (folder / "config.json").write_text(json.dumps(CONFIG))
    workload = WORKLOADS["multi-turn"]
    options = dataclasses.replace(
        workload.options(), clients=clients, parallel=clients, rounds=rounds,
        request_tokens=30 * page // PAGE, question_tokens=2 * page, output_tokens=page // 2,
    )  # fmt: skip
    write(workload.generate(options), folder / trace, "hicache")


def overrides(folder: Path, **options: object) -> dict[str, object]:
    """A scenario in which L1 and L2 are far too small for what comes back."""
    given = {key.replace("__", "."): value for key, value in options.items()}
    return {
        "trace.path": str(folder / "trace.jsonl"),
        "trace.speed": 500.0,
        "model.name": str(folder / "config.json"),
        "tiers.page_size_tokens": PAGE,
        "tiers.l1": "20pages",
        "tiers.l2": "20pages",
        "tiers.l3": "200pages",
        "restore.policy": "always",
        "cache.eviction_granularity": "page",
        "cache.write_at": "prefill",
        "scheduler.chunk_tokens": 32,
        "scheduler.max_running_requests": 2,
        "engine.check_every_steps": 1,
        "hw.compute": "synthetic",
        "hw.transfers": "direct",
        "hw.l3_workers": 2,
        "hw.l3_path": str(folder / "l3"),
        **given,
    }


def scenario_of(folder: Path, **options: object) -> Scenario:
    return load_scenario(None, overrides(folder, **options))


class Front:
    """A device with something in front of it."""

    def __init__(self, inner: Device) -> None:
        self.inner = inner

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)

    def run(self, operation, control, steps=()):
        return self.inner.run(operation, control, steps)


def gpu_that_takes(durations: Durations) -> Rig:
    """A GPU whose steps take these times."""

    def rig(name: str, device: Device) -> Device:
        if name != "gpu":
            return device
        made = SyntheticDevice(device._pool, durations)  # pyright: ignore
        made.loads_of = device.loads_of  # pyright: ignore
        return made

    return rig


def quick(name: str, device: Device) -> Device:
    """A GPU that takes so little time that the other tiers are what is busy."""
    return gpu_that_takes(QUICK)(name, device)


class FaultyRun:
    """A run that was rigged, its answer keys noted down so that their pages can be checked.

    `rig(queue, device)` gives the device to use instead.
    """

    def __init__(
        self, scenario: Scenario, device: str, monkeypatch: pytest.MonkeyPatch, rig: Rig = quick,
        port: Callable[[Any, Any], Any] | None = None,
    ) -> None:  # fmt: skip
        self.scenario = scenario
        self.page_tokens = scenario.tiers.page_size_tokens
        self._answers: dict[int, tuple[Request, int]] = {}  # key -> request, place of the page
        answer_runs = holdings.answer_runs

        def noting(request: Request, pages: int, private_key: int):
            runs = answer_runs(request, pages, private_key)
            place = request.prompt_tokens // self.page_tokens
            for first, count in runs:
                for key in range(first, first + count):
                    if key < 0:  # named by nobody
                        self._answers[key] = (request, place)
                    place += 1
            return runs

        monkeypatch.setattr(holdings, "answer_runs", noting)

        def assemble(*arguments: Any) -> Assembly:
            made = Assembly(*arguments)
            made.queues = {
                name: [rig(name, each) for each in devices] for name, devices in made.queues.items()
            }
            self.assembly = made
            return made

        def faults(env, lanes):
            return lanes if port is None else port(self, (env, lanes))

        self.run: LiveRun = prepare(
            scenario, device=device, tell=lambda _line: None, assemble=assemble, port=faults
        )
        self.engine = self.run.engine
        self.pool = self.assembly.queues["gpu"][0]._pool  # pyright: ignore
        self.store = self.assembly.queues["s2h"][0]._store  # pyright: ignore
        self.host = self.assembly.queues["h2d"][0]._backend.host_pool  # pyright: ignore
        self.backend = self.assembly.queues["h2d"][0]._backend  # pyright: ignore

    faulty: FaultyLanes

    def to_the_end(
        self, *, l3: str = "sound", heal: Callable[[], object] = lambda: None
    ) -> Outcome:
        """Run, end the fault (`heal`), check everything that must hold, and give the outcome."""
        try:
            self.run.execute()
            heal()
            self.check_engine()
            self.check_pages(l3=l3)
        finally:
            self.run.close()
        outcome = self.run.outcome()
        self.check_replay(outcome)
        return outcome

    def check_engine(self) -> None:
        assert self.run.env.under_way == 0
        assert_at_rest(self.engine)
        metrics = self.engine.metrics
        requests = self.run.trace.facts.requests
        assert requests > 0
        assert sorted(metrics.column("request")) == list(range(requests))

    def check_replay(self, outcome: Outcome) -> None:
        """The record repeats the run, faults and all."""
        again = replay(self.run.scenario, replay_of=Record(self.run.lines))
        assert {name: list(values) for name, values in again.columns.items()} == {
            name: list(values) for name, values in outcome.columns.items()
        }

    # ---------------------------------------------------------------- what pages hold

    def check_pages(self, *, l3: str = "sound") -> None:
        """Every published page of every tier holds what its path says; the run is over.

        L2 and L3 are looked at through L1, which is put right again. `l3` "lost": its file was
        damaged for good, so that reading it must fail or give the right bytes.
        """
        before = self.pool.data.clone(), self.host.data.clone()
        try:
            self.checked = {
                DEVICE: self._check(DEVICE, lambda _pages, _places: True),
                HOST: self._check(HOST, self._load),
                STORAGE: self._check(
                    STORAGE, lambda pages, places: self._read(pages, places, l3=l3)
                ),
            }
        finally:
            self.pool.data.copy_(before[0])
            self.host.data.copy_(before[1])

    def _load(self, pages: PageRuns, places: PageRuns) -> bool:
        self.backend.copy("h2d", pages, places)
        return True

    def _read(self, pages: PageRuns, places: PageRuns, *, l3: str) -> bool:
        try:
            self.store.read(pages, places)
        except TransferError:
            assert l3 == "lost"
            return False
        return self._load(places, places)

    def _check(self, tier: int, bring: Callable[[PageRuns, PageRuns], bool]) -> int:
        """How many pages of a tier were right. `bring(pages, places)` puts them into L1, unless
        they cannot be read.
        """
        right = 0
        paths = list(published(self.engine.tree, tier).items())
        most = min(self.pool.pages, self.host.pages)
        for part in [paths[place : place + most] for place in range(0, len(paths), most)]:
            numbers = [page for _, page in part]
            places = numbers if tier == DEVICE else list(range(len(part)))
            if bring(tuple((page, 1) for page in numbers), tuple((page, 1) for page in places)):
                self._check_device(TIER_NAMES[tier], [path for path, _ in part], places)
                right += len(part)
        return right

    def _check_device(self, tier: str, paths: list[tuple[int, ...]], places: list[int]) -> None:
        size = self.page_tokens
        seeds, slots = [np.empty(0, np.int32)], [np.empty(0, np.int32)]
        for path, page in zip(paths, places, strict=True):
            tokens = np.concatenate([self._tokens(key) for key in path])
            seeds.append(token_seeds(tokens, len(tokens))[-size:])
            slots.append((page * size + np.arange(size)).astype(np.int32))
        wrong = check(self.pool, np.concatenate(seeds), np.concatenate(slots)).cpu().numpy()
        bad = np.flatnonzero(wrong)
        assert not len(bad), f"the {tier} page of {paths[bad[0] // size]} holds something else"

    def _tokens(self, key: int) -> np.ndarray:
        """The tokens of the page with this key."""
        if key in self._answers:
            request, place = self._answers[key]
            tokens = self.assembly.tokens_of(request, (place + 1) * self.page_tokens)
            return np.asarray(tokens)[place * self.page_tokens : (place + 1) * self.page_tokens]
        request = Request(-1 - key, 0, self.page_tokens, 0, ((key, 1),), 1)
        return np.asarray(self.assembly.tokens_of(request, self.page_tokens))

    # ---------------------------------------------------------------- faults

    def spoil(self, copy: Copy) -> None:
        """Overwrite the target pages of a copy that is to fail."""
        for page in pages_of(copy.target):
            if copy.direction == "h2d":
                self.pool.k[:, page] = -1.0
                self.pool.v[:, page] = -1.0
            elif copy.direction == "h2s":
                bytes_ = self.store.slot_bytes
                with open(self.store.file.path, "r+b") as file:
                    file.seek(page * bytes_)
                    file.write(b"\xee" * bytes_)
            else:
                self.host.data[page] = 0xEE
        if self.pool.device.type == "cuda":
            torch.cuda.synchronize()


def transfers(outcome: Outcome) -> dict[str, dict[str, Any]]:
    """What the summary says of each direction."""
    return outcome.summary["transfers"]  # type: ignore[return-value]
