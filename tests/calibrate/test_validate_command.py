"""`hicache validate` and `hicache learning` from files to files."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from by_hand import H200_BY_HAND
from made_up_runs import machine_in, run_in, scenario_of, trace_in

from calibrate.learning_command import run_learning
from calibrate.validate.command import recorded_runs, run_validate
from hicache.errors import InputError


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two runs of one scenario on a machine of 8 % slower steps, one of them on another day."""
    place = tmp_path_factory.mktemp("runs")
    trace = trace_in(place)
    for number, slower in (("1", 1.08), ("2", 1.09)):
        machine = machine_in(place, f"day-{number}", slower=slower, steps_ahead=1)
        (place / "machine.json").write_text(machine.read_text())
        run_in(place / f"hw-{number}", scenario_of(trace, place / "machine.json"))
    return place


def runs(folder: Path) -> list[str]:
    return [str(folder / "hw-1"), str(folder / "hw-2")]


def validated(folder: Path, out: Path, **given) -> tuple[int, dict, str]:
    given = {"overrides": {"machine.profile": H200_BY_HAND}, **given}
    overrides = given.pop("overrides")
    code = run_validate(None, overrides, runs=runs(folder), out=str(out), show="folder", **given)
    page = (out / "validation.html").read_text()
    return code, json.loads((out / "validation.json").read_text()), page


def test_recorded_runs_are_compared_and_judged(folder: Path, tmp_path: Path, capsys) -> None:
    code, found, page = validated(folder, tmp_path / "out", limits="usual")
    assert code == 1
    assert "missed: ttft_mean" in capsys.readouterr().err
    assert -40 < found["ttft_mean_error_percent"] < -3
    assert found["tpot_mean_error_percent"] < -3
    assert 0 < found["runs_difference_percent"]["ttft_mean"] < 3
    assert found["held"] is False
    assert {run["measured_at"] for run in found["runs"]} == {"2026-01-02T03:04:05+00:00"}
    assert found["profile"]["name"] == "nvidia-h200"
    assert found["device_model"]["decode"]["error_percent"] == pytest.approx(-6.5, abs=1.5)
    everything = found["causes"][-1]
    assert abs(everything["ttft_mean_error_percent"]) < 1.5
    by_source = found["tokens_by_source"]
    assert sum(each["simulated"] for each in by_source.values()) == sum(
        each["hardware"][0] for each in by_source.values()
    )
    assert by_source["storage"]["hardware"][0] > 0
    parts = found["ttft_parts_ms"]["simulated"]
    assert sum(parts.values()) == pytest.approx(found["figures"]["ttft_mean"]["simulated"])
    # One page, nothing fetched, the same bytes every time.
    assert page.count("<svg") == 4
    assert not re.findall(r'(?:src|href)="(?!#)[^"]*"', page.replace("xlink:", ""))
    assert "2026-01-02T03:04:05" in page
    again = validated(folder, tmp_path / "again", limits="usual")
    assert again[1] == found
    assert again[2] == page


def test_with_the_machines_own_profile_everything_holds(folder: Path, tmp_path: Path) -> None:
    code, found, _ = validated(
        folder, tmp_path / "out", limits="usual", explains="nothing",
        overrides={"machine.profile": str(folder / "day-1.json")},
    )  # fmt: skip
    assert code == 0
    assert found["held"] is True
    assert found["causes"] == []
    assert abs(found["ttft_mean_error_percent"]) < 1.5


def test_measured_durations_leave_the_error_of_the_schedule(folder: Path, tmp_path: Path) -> None:
    _, found, page = validated(folder, tmp_path / "out", truth="record", explains="nothing")
    assert found["truth"] == "record"
    assert abs(found["ttft_mean_error_percent"]) < 1.5
    assert "with measured durations" in page
    assert found["held"] is None


def test_the_table_names_what_was_compared(folder: Path, tmp_path: Path, capsys) -> None:
    run_validate(
        None, {"machine.profile": H200_BY_HAND}, runs=runs(folder), out=str(tmp_path / "out")
    )
    shown = capsys.readouterr().out
    for text in ("TTFT mean, ms", "L3", "in the queue", "decode", "everything as measured", "%"):
        assert text in shown


def test_what_cannot_be_compared_is_one_clear_error(folder: Path, tmp_path: Path) -> None:
    both, out = runs(folder), str(tmp_path / "out")

    def refused(match: str, scenario: str | None = None, overrides=None, **given) -> None:
        with pytest.raises(InputError, match=match):
            run_validate(scenario, overrides or {}, **{"runs": both, "out": out, **given})
        assert not (tmp_path / "out").exists()

    refused("no scenario was given", runs=())
    refused("leave SCENARIO out", scenario="a.toml")
    refused("given 3 times", runs=[*both, both[0]])
    refused("tiers.l1 cannot be changed", overrides={"tiers.l1": "1GiB"})
    refused("--truth is", truth="lies")
    refused("no known limits", limits="some")
    refused("is no result folder", runs=[str(tmp_path)])
    refused("it must be cuda or cpu", scenario=both[0] + "/scenario.toml", runs=(), device="tpu")
    other = scenario_of(folder / "trace.jsonl", folder / "machine.json", restore__policy="never")
    refused("of different scenarios", runs=[both[0], str(run_in(tmp_path / "other", other))])
    foreign = tmp_path / "foreign"
    foreign.mkdir()
    (foreign / "letter.txt").write_text("")
    with pytest.raises(InputError, match=r"holds letter\.txt"):
        run_validate(None, {}, runs=both, out=str(foreign))


def test_a_run_without_its_record_or_cut_off_is_refused(folder: Path, tmp_path: Path) -> None:
    import gzip
    import shutil

    place = tmp_path / "cut"
    shutil.copytree(folder / "hw-1", place)
    record = place / "completions.jsonl.gz"
    lines = gzip.decompress(record.read_bytes()).splitlines(keepends=True)
    record.write_bytes(gzip.compress(b"".join(lines[:-5])))
    with pytest.raises(InputError, match="was cut off"):
        recorded_runs(None, {}, [str(place)])
    record.unlink()
    with pytest.raises(InputError, match="holds no completions"):
        recorded_runs(None, {}, [str(place)])


def test_what_a_scenario_learns_is_written(folder: Path, tmp_path: Path, capsys) -> None:
    file, out = str(tmp_path / "scenario.toml"), tmp_path / "out"
    (tmp_path / "scenario.toml").write_text((folder / "hw-1" / "scenario.toml").read_text())
    given = {"machine.profile": H200_BY_HAND, "restore.policy": "cost"}
    assert run_learning(file, given, out=str(out)) == 0
    assert "choices were right" in capsys.readouterr().out
    found = json.loads((out / "learning.json").read_text())
    rows = (out / "learning.csv").read_text().splitlines()
    assert len(rows) == found["decisions"] + 1
    assert (out / "learning.png").read_bytes().startswith(b"\x89PNG")
    with pytest.raises(InputError, match="it asks no cost model"):
        run_learning(file, {}, out=str(out))
    with pytest.raises(InputError, match="it asks no cost model"):
        run_learning(str(folder / "hw-1"), {}, out=str(out))
    with pytest.raises(InputError, match=r"tiers\.l1 cannot be changed"):
        run_learning(str(folder / "hw-1"), {"tiers.l1": "1GiB"}, out=str(out))
