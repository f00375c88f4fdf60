"""Runs "on hardware" that a simulation made: of a machine whose every value is known."""

from __future__ import annotations

import dataclasses
import gzip
from pathlib import Path

import msgspec
from by_hand import H200_BY_HAND

from scenario.load import load_scenario
from scenario.profile import Profile, Quantity, dump_profile, load_profile
from scenario.records import Scenario
from scenario.results import summary_text
from sim.replay import replay
from traces.convert import write
from traces.workloads import WORKLOADS


def trace_in(folder: Path, **given: object) -> Path:
    """Conversations in a closed loop: hits in every tier, bursts that are cut."""
    workload = WORKLOADS["multi-turn"]
    options = dataclasses.replace(
        workload.options(),
        **{
            "clients": 10, "parallel": 4, "rounds": 4, "request_tokens": 1500,
            "question_tokens": 500, "output_tokens": 30, "seed": 3, **given,
        },  # pyright: ignore[reportArgumentType]
    )  # fmt: skip
    path = folder / "trace.jsonl"
    write(workload.generate(options), path, "hicache")
    return path


def machine_in(
    folder: Path, name: str, *, slower: float = 1.0, steps_ahead: int = 0, disk: float = 1.0
) -> Path:
    """A profile like the H200's, whose GPU steps take `slower` times as long."""
    profile = load_profile(H200_BY_HAND)
    gpu = profile.gpu
    assert gpu.dense is not None
    dense = msgspec.structs.replace(
        gpu.dense, points=tuple((x, round(y * slower)) for x, y in gpu.dense.points)
    )
    ahead = Quantity(provenance="measured", how="made up", value=steps_ahead)
    read = profile.disk.read_bytes_per_s
    read = msgspec.structs.replace(
        read, points=tuple((b, n, round(rate * disk)) for b, n, rate in read.points)
    )
    changed: Profile = msgspec.structs.replace(
        profile,
        name=name,
        gpu=msgspec.structs.replace(gpu, dense=dense, steps_ahead=ahead),
        disk=msgspec.structs.replace(profile.disk, read_bytes_per_s=read),
    )
    path = folder / f"{name}.json"
    path.write_text(dump_profile(changed))
    return path


def scenario_of(trace: Path, profile: Path | str, **given: object) -> Scenario:
    """Three tiers, all busy; pages have names, as on hardware."""
    options = {key.replace("__", "."): value for key, value in given.items()}
    return load_scenario(
        None,
        {
            "trace.path": str(trace), "machine.profile": str(profile),
            "machine.transfer_mode": "dma", "engine.page_ids": "named",
            "tiers.l1": "130pages", "tiers.l2": "150pages", "tiers.l3": "2000pages",
            "restore.policy": "always", "scheduler.chunk_tokens": 2048,
            "hw.transfers": "direct", **options,
        },
    )  # fmt: skip


def run_in(folder: Path, scenario: Scenario) -> Path:
    """A result folder as `hicache run` leaves it, of a simulation that is taken for hardware."""
    outcome = replay(scenario, record=True)
    folder.mkdir(parents=True)
    outcome.summary["measured_at"] = "2026-01-02T03:04:05+00:00"
    (folder / "summary.json").write_text(summary_text(outcome.summary))
    (folder / "scenario.toml").write_text(outcome.scenario_text)
    lines = outcome.extras["completions.jsonl"].encode()
    (folder / "completions.jsonl.gz").write_bytes(gzip.compress(lines, mtime=0))
    return folder
