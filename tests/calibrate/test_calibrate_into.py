"""Parts of a profile measured anew: `hicache calibrate --only disk --into PROFILE`."""

from __future__ import annotations

import json
from pathlib import Path

import msgspec
import pytest
from stub_machine import GEOMETRY, GRAPHS, Truth, built_of, measure, probes_of

from calibrate.__main__ import main
from calibrate.into import PARTS, Renewed, other_machine, parts_measured, renew
from calibrate.refit import refit
from calibrate.session import Measured, Session
from scenario.measurement import Measurement
from scenario.profile import Memory, Profile, Quantity, decode_profile, dump_profile, load_profile

ROOM = Quantity(provenance="measured", how="what is free", value=12345)
FACTS = {
    "graphs": ", ".join(map(str, GRAPHS.prefill_tokens)),
    "decode_graphs": ", ".join(map(str, GRAPHS.decoders)),
}
QUICK = ["--device", "none", "--disk-size", "64MiB", "--page-size", "4", "--budget", "1"]


def part(folder: Path, *names: str, **truth: float) -> tuple[Measured, dict[str, list[str]]]:
    """What the named probes measured of a stub machine, and their series."""
    probes = [each for each in probes_of(Truth(**truth)) if each.name in names]
    measured = measure(probes, str(folder / f"{'-'.join(names)}.journal"))
    return measured, {each.name: list(each.describe()) for each in probes}


def whole(folder: Path, **truth: float) -> Profile:
    """The profile of a whole stub machine, as its file says it."""
    built = built_of(measure(probes_of(Truth(**truth)), str(folder / "journal"))).profile
    assert built.measurement is not None
    told = msgspec.structs.replace(built.measurement, facts=FACTS)
    return decode_profile(
        dump_profile(msgspec.structs.replace(built, measurement=told)).encode(), "stub"
    )


def renewed(
    profile: Profile, measured: Measured, series_of: dict[str, list[str]], when: str = "today"
) -> Renewed:
    told = Measurement(command="a test", began=when, duration_s=7, facts={"gpu": "another"})
    room = profile.memory.storage_bytes or ROOM
    memory = Memory(
        device_bytes=ROOM, host_bytes=ROOM, storage_bytes=msgspec.structs.replace(room, value=777)
    )
    return renew(profile, measured, series_of, told, GEOMETRY, memory, GRAPHS, name=profile.name)


@pytest.fixture(scope="module")
def profile(tmp_path_factory) -> Profile:
    return whole(tmp_path_factory.mktemp("stub"))


def values(profile: Profile) -> dict[str, object]:
    """By top key, what a profile says, its samples apart."""
    return {key: getattr(profile, key) for key in profile.__struct_fields__ if key != "measurement"}


def test_the_disk_is_the_new_one_and_nothing_else_changes(profile, tmp_path):
    made = renewed(profile, *part(tmp_path, "disk", read=3e9, write=1e9))
    other = whole(tmp_path, read=3e9, write=1e9)
    assert made.kept == ()
    assert made.profile.disk == other.disk != profile.disk
    assert made.profile.memory.storage_bytes is not None
    assert made.profile.memory.storage_bytes.value == 777
    same = values(profile) | {"disk": other.disk, "memory": made.profile.memory}
    assert values(made.profile) == same
    assert made.profile.memory.host_bytes == profile.memory.host_bytes
    ours, before, theirs = (each.measurement for each in (made.profile, profile, other))
    assert ours.series == tuple(
        new if new.key.startswith("disk.") else old
        for old, new in zip(before.series, theirs.series, strict=True)
    )
    assert sorted(each.key for each in ours.fits) == sorted(each.key for each in before.fits)
    assert {each.key for each in ours.fits if each not in before.fits} <= {
        each.key for each in theirs.fits if each.key.startswith("disk.")
    }
    assert ours.facts == {**FACTS, "disk_measured": "today, in 7 s, by a test"}
    assert (ours.began, ours.command, ours.missing) == (before.began, before.command, ())
    assert parts_measured(made.profile) == {"disk": "today"}
    assert parts_measured(profile) == {}


def test_its_curves_are_those_of_its_samples(profile, tmp_path):
    made = renewed(profile, *part(tmp_path, "disk", read=3e9)).profile
    again = refit(made, "here").profile
    assert values(again) == values(made)
    assert dict(again.measurement.facts) == dict(made.measurement.facts)
    assert set(again.measurement.fits) == set(made.measurement.fits)


@pytest.mark.parametrize("probe", ["steps", "engine", "transfers", "host"])
def test_every_other_part_can_be_renewed(profile, tmp_path, probe):
    truth = {"gpu": 2.0, "engine_ns": 300_000.0, "link": 20e9, "memory": 3e9}
    made = renewed(profile, *part(tmp_path, probe, **truth)).profile
    other = whole(tmp_path, **truth)
    changed = {key for key, value in values(made).items() if value != values(profile)[key]}
    assert changed == {PARTS[probe][0].split(".", 1)[0]} - ({"host"} if probe == "steps" else set())
    if probe == "engine":
        assert made.host.engine == other.host.engine
        assert made.host.copy_bytes_per_s == profile.host.copy_bytes_per_s
    elif probe == "host":
        assert made.host.copy_bytes_per_s == other.host.copy_bytes_per_s
        assert made.host.engine == profile.host.engine
    else:
        key = PARTS[probe][0]
        assert getattr(made, key) == getattr(other, key)


def test_a_part_measured_twice_is_of_the_second_time(profile, tmp_path):
    once = renewed(profile, *part(tmp_path, "disk", read=3e9), when="first").profile
    (tmp_path / "disk.journal").unlink()
    twice = renewed(once, *part(tmp_path, "disk", read=4e9), when="second").profile
    assert parts_measured(twice) == {"disk": "second"}
    (tmp_path / "disk.journal").unlink()
    straight = renewed(profile, *part(tmp_path, "disk", read=4e9), when="second").profile
    assert twice == straight


def test_what_an_earlier_plan_had_more_goes_with_its_part(profile, tmp_path):
    assert profile.measurement is not None
    series = profile.measurement.series
    pages = [
        msgspec.structs.replace(each, key=f"{each.key}.16")
        for each in series
        if each.key.startswith("pcie.direct.") and each.key.endswith((".run", ".scattered"))
    ]
    assert len(pages) == 4
    more = msgspec.structs.replace(profile.measurement, series=(*series, *pages))
    before = msgspec.structs.replace(profile, measurement=more)
    made = renewed(before, *part(tmp_path, "transfers", link=20e9)).profile
    assert made.measurement is not None
    assert [each.key for each in made.measurement.series] == [each.key for each in series]


def test_a_part_that_was_not_finished_stays(profile, tmp_path):
    probes = [each for each in probes_of(Truth(read=9e9)) if each.name == "disk"]
    probes[0].fails_after = 40  # Ctrl-C
    measured = measure(probes, str(tmp_path / "journal"))
    assert measured.interrupted
    made = renewed(profile, measured, {"disk": list(probes[0].describe())})
    assert made.kept == ("disk",)
    assert made.measured == frozenset()
    assert made.profile == profile


def test_what_was_borrowed_is_measured_now(tmp_path):
    measured, _ = part(tmp_path, "steps", "engine", "transfers", "host")
    without = built_of(measured).profile
    assert without.disk.mixed_permille.provenance == "estimate"
    assert any(each.startswith("disk: from ") for each in without.measurement.missing)
    made = renewed(without, *part(tmp_path, "disk", read=3e9)).profile
    assert made.disk.read_bytes_per_s.provenance == "measured"
    assert not any(each.startswith("disk") for each in made.measurement.missing)


def test_what_no_probe_measures_of_a_disk_stays(profile, tmp_path):
    measured, series_of = part(tmp_path, "disk", read=3e9)
    del measured.series["disk.first_write"]
    made = renewed(profile, measured, series_of).profile
    assert made.disk.first_write_permille == profile.disk.first_write_permille


def test_another_machine_is_told(profile):
    assert other_machine(profile, {"gpu": "B", "cpu": "x"}) == ""  # it does not say its own
    measurement = msgspec.structs.replace(profile.measurement, facts={"gpu": "A", "cpu": "x"})
    known = msgspec.structs.replace(profile, measurement=measurement)
    assert other_machine(known, {"gpu": "B", "cpu": "x"}) == "its gpu is A, this machine's B"
    assert other_machine(known, {"cpu": "x"}) == ""


def test_from_the_command_line(tmp_path, capsys):
    out = tmp_path / "today.json"
    words = [*QUICK, "--disk", str(tmp_path), "--into", "nvidia-h200", "--out", str(out)]
    assert main([*words, "--only", "disk"]) == 0
    printed = capsys.readouterr().out
    assert "disk.read_bytes_per_s" in printed
    assert "gpu.dense" not in printed
    before, after = load_profile("nvidia-h200"), load_profile(out)
    assert {key for key, value in values(before).items() if value != values(after)[key]} == {
        "name", "disk", "memory"
    }  # fmt: skip
    assert after.gpu.dense.provenance == "measured"
    assert set(parts_measured(after)) == {*parts_measured(before), "disk"}
    assert "--only disk" in after.measurement.facts["disk_measured"]
    assert str(tmp_path) not in out.read_text()
    assert [each.name for each in tmp_path.iterdir()] == ["today.json"]
    # Into itself.
    words[words.index("nvidia-h200")] = str(out)
    assert main([*words, "--only", "host"]) == 0
    assert set(parts_measured(load_profile(out))) == {*parts_measured(before), "disk", "host"}
    assert load_profile(out).disk == after.disk


def test_what_is_printed_was_measured_by_this_command(tmp_path, capsys, monkeypatch):
    """A part that was stopped stays as it was: its fits are not said again, as if they were new."""
    real = Session._measure

    def stopped(session, measured, probe, point, allowance_s) -> None:
        if point.series == "disk.write":  # some points of disk.read are there by then
            raise KeyboardInterrupt
        real(session, measured, probe, point, allowance_s)

    out = tmp_path / "today.json"
    words = [*QUICK, "--disk", str(tmp_path), "--into", "nvidia-h200", "--out", str(out)]
    words += ["--only", "disk"]
    before = load_profile("nvidia-h200").measurement
    assert before is not None
    with monkeypatch.context() as patch:
        patch.setattr(Session, "_measure", stopped)
        assert main(words) == 130
    told = capsys.readouterr()
    assert "warning: disk: as it was in nvidia-h200" in told.err
    after = load_profile(out).measurement
    assert after is not None
    assert (after.series, after.fits) == (before.series, before.fits)
    assert [line.split(":")[0] for line in told.out.splitlines()] == ["profile"]
    assert main(words) == 0  # goes on, and is done
    told = capsys.readouterr()
    assert "points are done already" in told.err
    assert "disk.read_bytes_per_s" in told.out


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ([], "--into without --only: it must name what is measured anew, of steps, engine"),
        (["--only", "server"], "--only server with --into: it must name"),
        (["--only", "disk", "--server", "http://localhost:1"], "--into with --server"),
        (["--only", "disk", "--base", "mini-group-a"], "--into with --base"),
    ],
)
def test_bad_options_are_one_clear_line(tmp_path, capsys, more, message):
    words = [*QUICK, "--disk", str(tmp_path), "--into", "nvidia-h200"]
    assert main([*words, "--out", str(tmp_path / "x.json"), *more]) == 2
    assert message in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


def test_a_profile_that_is_none_is_told(tmp_path, capsys):
    bad = tmp_path / "bad.json"
    bad.write_text(json.dumps({"schema": 2}))
    words = [*QUICK, "--disk", str(tmp_path), "--into", str(bad), "--only", "disk"]
    assert main([*words, "--out", str(tmp_path / "x.json")]) == 2
    assert "bad.json" in capsys.readouterr().err
    words[words.index(str(bad))] = "nvidia-h2000"
    assert main(words) == 2
    assert capsys.readouterr().err.startswith("error: --into is 'nvidia-h2000': no known machine")


def test_no_profile_is_not_no_option(tmp_path, capsys):
    """An empty variable of a shell: all would be estimates."""
    words = [*QUICK, "--disk", str(tmp_path), "--into", "", "--only", "disk"]
    assert main([*words, "--out", str(tmp_path / "x.json")]) == 2
    assert "--into: it names no profile" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []
