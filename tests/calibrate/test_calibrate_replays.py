"""Whatever a calibration could not measure, its profile loads, says so, and replays."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from stub_machine import StubProbe, Truth, built_of, measure, probes_of

from calibrate.build import Built
from calibrate.points import Described, Point
from scenario.load import load_scenario
from scenario.profile import dump_profile, load_profile
from sim.replay import replay

TRACE = "\n".join(
    json.dumps(
        {
            "timestamp": 200 * each, "input_length": 3000, "output_length": 20,
            "hash_ids": [*range(4), 10 * each + 10, 10 * each + 11],
        }
    )
    for each in range(8)
)  # fmt: skip


class ServedProbe(StubProbe):
    """Prefill and decode of a server, of which nothing else is known."""

    def __init__(self, truth: Truth) -> None:
        super().__init__("steps", truth, ("steps.prefill", "steps.decode"))
        self.name = "server"

    def describe(self) -> dict[str, Described]:
        return {key.replace("steps", "server"): value for key, value in super().describe().items()}

    def points(self, effort: str) -> list[Point]:
        return [
            each._replace(series=each.series.replace("steps", "server"))
            for each in super().points(effort)
        ]

    def sampler(self, point: Point):
        return super().sampler(point._replace(series=point.series.replace("server", "steps")))


def replayed(built: Built, folder: Path) -> dict:
    """The summary of a replay on that profile, read back from its file."""
    (folder / "mine.json").write_text(dump_profile(built.profile))
    assert load_profile(folder / "mine.json") == built.profile
    (folder / "trace.jsonl").write_text(TRACE)
    (folder / "scenario.toml").write_text(
        '[trace]\npath = "trace.jsonl"\n[machine]\nprofile = "mine.json"\n'
        '[tiers]\nl1 = "2GiB"\nl2 = "1x"\nl3 = "2x"\n'
    )
    return replay(load_scenario(folder / "scenario.toml")).summary


TIMES = 6  # a point that repeats as well as these is sampled


# How many samples were taken when Ctrl-C came: among steps, engine, transfers, disk, host.
@pytest.mark.parametrize("after", [1, 7, 100, 300, 366, 380, 500, 1000, 1247, 1300, 1379, 1385])
def test_one_that_was_stopped_anywhere(tmp_path, after):
    left = after
    probes = probes_of(Truth())
    for probe in probes:
        taken = TIMES * len(probe.points("quick"))
        if left <= taken:
            probe.fails_after = left
            break
        left -= taken
    else:
        pytest.fail(f"there are fewer than {after} samples")
    measured = measure(probes, str(tmp_path / "journal"))
    assert measured.interrupted
    built = built_of(measured)
    assert any("stopped with" in each for each in built.profile.measurement.missing)
    assert built.borrowed
    summary = replayed(built, tmp_path)
    assert summary["ttft_ms"]["mean"] > 0
    # What was not measured is an estimate, and the result tells those it rests on.
    told = {each.key for each in built.profile.estimates()}
    assert all(any(each.startswith(key) for each in told) for key in built.borrowed)
    used = {each["key"] for each in summary["estimates"]}
    assert used & told or all(each.startswith("host.copy_") for each in told)
    assert used - told <= {"engine.page_ids"}


def test_one_of_a_server(tmp_path):
    built = built_of(measure([ServedProbe(Truth())], str(tmp_path / "journal")))
    assert {"pcie", "disk"} <= set(built.borrowed)
    summary = replayed(built, tmp_path)
    assert summary["ttft_ms"]["mean"] > Truth().prefill(1000, 0) / 1e6
    assert not any(each["key"].startswith("gpu.") for each in summary["estimates"])


def test_one_of_which_nothing_came(tmp_path):
    built = built_of(measure([], str(tmp_path / "journal")))
    assert replayed(built, tmp_path)["ttft_ms"]["mean"] > 0
