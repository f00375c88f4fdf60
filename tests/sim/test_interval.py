"""Prediction intervals: seeded, wider with the spread, and about the values that have one."""

from __future__ import annotations

import json
from random import Random

import msgspec
import pytest
from by_hand import H200_BY_HAND
from full_profile import with_everything

from hicache.errors import InputError
from scenario.load import load_scenario
from scenario.profile import Curve, Quantity, Valued, dump_profile, load_profile, sourced
from scenario.results import load_result
from sim.interval import draw, interval
from sim.replay import replay
from sim.run_command import run_replay

TRACE = "\n".join(
    json.dumps(
        {
            "timestamp": 400 * each, "input_length": 3000, "output_length": 30,
            "hash_ids": [*range(4), 10 * each + 10, 10 * each + 11],
        }
    )
    for each in range(12)
)  # fmt: skip


def with_spread(permille: int, part="gpu."):
    """nvidia-h200, its values of one part so uncertain."""

    def changed(value, prefix=""):
        fields = {}
        for name in value.__struct_fields__:
            inner = getattr(value, name)
            key = f"{prefix}{name}"
            if isinstance(inner, Valued) and key.startswith(part):
                fields[name] = msgspec.structs.replace(inner, spread_permille=permille)
            elif isinstance(inner, msgspec.Struct) and not isinstance(inner, Valued):
                fields[name] = changed(inner, f"{key}.")
        return msgspec.structs.replace(value, **fields)

    return changed(with_everything(load_profile(H200_BY_HAND)))


@pytest.fixture
def scenario(tmp_path):
    def made(profile, **overrides):
        (tmp_path / "trace.jsonl").write_text(TRACE)
        (tmp_path / "machine.json").write_text(dump_profile(profile))
        values = {
            "trace.path": str(tmp_path / "trace.jsonl"), "tiers.l1": "2GiB",
            "machine.profile": str(tmp_path / "machine.json"),
        }  # fmt: skip
        return load_scenario(None, values | overrides)

    return made


def test_the_same_draws_give_the_same_interval_and_more_spread_a_wider_one(scenario):
    narrow = scenario(with_spread(10))
    summary = replay(narrow).summary
    found = interval(narrow, summary, 8)
    assert interval(narrow, summary, 8) == found
    wide = scenario(with_spread(80))
    wider = interval(wide, replay(wide).summary, 8)
    for name, each in found["values"].items():
        assert each["low"] <= each["high"], name
    for name in ("ttft_ms.mean", "ttft_ms.p99", "tpot_ms.mean"):
        one, other = found["values"][name], wider["values"][name]
        assert one["low"] <= one["predicted"] * 1.01
        assert one["high"] >= one["predicted"] * 0.99
        width = (one["high"] - one["low"]) / one["predicted"]
        assert 0.002 < width < 0.1
        assert (other["high"] - other["low"]) / other["predicted"] > 3 * width


def test_what_has_no_spread_changes_nothing(scenario):
    disk_only = scenario(with_spread(200, "disk."))  # no tier of this run is on the disk
    found = interval(disk_only, replay(disk_only).summary, 3)
    for each in found["values"].values():
        assert each["low"] == each["high"] == each["predicted"]
    assert found["values_with_spread"] + found["values_without"] == sum(
        isinstance(value, Valued) for _, value in sourced(load_profile(disk_only.machine.profile))
    )


def test_a_draw_scales_whole_curves_and_keeps_parts_below_all(scenario):
    profile = with_spread(100, "")
    drawn = draw(profile, Random(3))
    assert drawn.measurement is None
    for (key, before), (_, after) in zip(sourced(profile), sourced(drawn), strict=True):
        if isinstance(before, Curve):
            ratios = [b / a for (_, a), (_, b) in zip(before.points, after.points, strict=True)]
            assert max(ratios) - min(ratios) < 0.01, key
            assert ratios[0] != 1
        if isinstance(before, Quantity) and key.endswith("permille"):
            assert 1 <= after.value <= 1000
    # A value's factor does not depend on another's spread.
    other = draw(with_spread(100, "pcie."), Random(3))
    assert other.pcie == drawn.pcie


def test_the_command_writes_it_beside_the_summary(scenario, tmp_path, capsys):
    profile = with_spread(30)
    (tmp_path / "trace.jsonl").write_text(TRACE)
    (tmp_path / "machine.json").write_text(dump_profile(profile))
    overrides = {
        "trace.path": str(tmp_path / "trace.jsonl"), "tiers.l1": "2GiB",
        "machine.profile": str(tmp_path / "machine.json"),
    }  # fmt: skip
    assert run_replay(None, overrides, out=str(tmp_path / "out"), draws=3) == 0
    found = json.loads((tmp_path / "out" / "interval.json").read_text())
    assert found["draws"] == 3
    mean = load_result(tmp_path / "out").summary["ttft_ms"]["mean"]
    assert found["values"]["ttft_ms.mean"]["predicted"] == pytest.approx(mean)
    shown = capsys.readouterr().out
    assert "interval of 3 replays (5 % to 95 %)" in shown
    assert "throughput.requests_per_s" in shown


@pytest.mark.parametrize(
    ("overrides", "draws", "message"),
    [
        ({"mode": "untimed"}, 4, "mode is untimed"),
        ({}, 1, "--draws is 1: an interval takes at least 2"),
        ({"machine.profile": H200_BY_HAND}, 4, "no value of profile nvidia-h200 says how far"),
    ],
)
def test_where_no_interval_can_be(scenario, overrides, draws, message):
    with pytest.raises(InputError, match=message):
        interval(scenario(with_spread(10), **overrides), {}, draws)
