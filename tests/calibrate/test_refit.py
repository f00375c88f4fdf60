"""A profile made anew from its raw samples: `hicache profile refit`."""

from __future__ import annotations

import re
import sys

import msgspec
import pytest
from by_hand import H200_BY_HAND
from stub_machine import GRAPHS, Truth, built_of, measure, probes_of

from calibrate.refit import refit, refit_lines
from cli.main import run
from hicache.errors import InputError
from scenario.profile import Profile, Quantity, decode_profile, dump_profile, load_profile, sourced

FACTS = {
    "graphs": ", ".join(map(str, GRAPHS.prefill_tokens)),
    "decode_graphs": ", ".join(map(str, GRAPHS.decoders)),
}


def whole(folder, *, names: tuple[str, ...] = (), **truth: float) -> Profile:
    """The profile of a stub machine, or of its parts named, as its file says it."""
    probes = [each for each in probes_of(Truth(**truth)) if not names or each.name in names]
    profile = built_of(measure(probes, str(folder / "journal"))).profile
    assert profile.measurement is not None
    told = msgspec.structs.replace(profile.measurement, facts=FACTS)
    profile = msgspec.structs.replace(profile, measurement=told)
    return decode_profile(dump_profile(profile).encode(), "stub")


@pytest.fixture(scope="module")
def profile(tmp_path_factory) -> Profile:
    return whole(tmp_path_factory.mktemp("stub"))


def spoiled(profile: Profile) -> Profile:
    """As an older version might have fitted it: another link, other steps, other errors."""
    gpu, pcie, measurement = profile.gpu, profile.pcie, profile.measurement
    assert gpu.dense is not None
    assert measurement is not None
    dense = msgspec.structs.replace(gpu.dense, points=((1, 7), (2, 8)))
    h2d = msgspec.structs.replace(pcie.h2d, points=((1, 1), (2, 2)), spread_permille=999)
    return msgspec.structs.replace(
        profile,
        gpu=msgspec.structs.replace(gpu, dense=dense),
        pcie=msgspec.structs.replace(pcie, h2d=h2d),
        measurement=msgspec.structs.replace(measurement, fits=measurement.fits[:1]),
    )


def test_all_that_rests_on_samples_is_made_again(profile):
    bad = spoiled(profile)
    assert bad != profile
    assert refit(bad, "here").profile == profile
    assert refit(profile, "here").profile == profile


def test_other_samples_make_other_curves(profile, tmp_path):
    slower = whole(tmp_path, link=25e9)
    given = msgspec.structs.replace(profile, measurement=slower.measurement)
    made = refit(given, "here").profile
    assert made.pcie == slower.pcie
    assert made.gpu == profile.gpu
    told = "\n".join(refit_lines(profile, refit(given, "here")))
    assert re.search(r"^pcie\.duplex_bytes_per_s .* -\d\d\.\d %$", told, re.M)
    assert not re.search(r"^gpu\.dense .* %$", told, re.M)


def test_what_was_borrowed_stays_so_however_often(tmp_path):
    disk = whole(tmp_path, names=("disk", "host"))
    once = refit(disk, "here")
    assert once.profile == disk
    assert refit(once.profile, "here").profile == disk
    assert "gpu" in once.borrowed
    assert disk.pcie.h2d.how.count("not measured here") == 1
    assert disk.measurement is not None
    assert disk.measurement.missing.count("gpu: from nvidia-h200") == 1


def test_what_runs_told_and_no_sample_does_is_kept(profile):
    told = Quantity(provenance="measured", how="in live runs", value=777)
    measurement = profile.measurement
    assert measurement is not None
    series = tuple(each for each in measurement.series if each.key != "disk.first_write")
    given = msgspec.structs.replace(
        profile,
        disk=msgspec.structs.replace(profile.disk, first_write_permille=told),
        measurement=msgspec.structs.replace(measurement, series=series),
    )
    assert refit(given, "here").profile.disk.first_write_permille == told
    # Where there are samples, they count.
    sampled = msgspec.structs.replace(given, measurement=measurement)
    assert refit(sampled, "here").profile == profile


def test_what_cannot_be_refitted_is_refused(profile):
    with pytest.raises(InputError, match="here: it holds no raw samples"):
        refit(load_profile(H200_BY_HAND), "here")
    said = "parameter_count is 8,190,735,360, and Qwen3-4B has 4,022,468,096; name theirs"
    with pytest.raises(InputError, match=said):
        refit(profile, "here", "Qwen3-4B")


@pytest.mark.parametrize("name", ["nvidia-h200", "nvidia-h200-qwen3-4b"])
def test_the_shipped_machines_are_what_this_version_makes_of_their_samples(name: str):
    """`hicache profile refit NAME --out scenario/profiles/NAME.json` mends it. All fits hold."""
    shipped = load_profile(name)
    made = refit(shipped, "here").profile
    assert dict(sourced(made)) == dict(sourced(shipped))
    assert made == shipped
    assert shipped.measurement is not None
    assert {fit.verdict for fit in shipped.measurement.fits} == {"fits"}


def test_the_command(profile, tmp_path, monkeypatch, capsys):
    def hicache(*words: str) -> int:
        monkeypatch.setattr(sys, "argv", ["hicache", "profile", "refit", *words])
        return run()

    place = tmp_path / "mine.json"
    place.write_text(dump_profile(spoiled(profile)))
    assert hicache(str(place), "--out", str(place)) == 0
    assert load_profile(place) == profile
    assert "gpu.dense, gpu.attention_prefill" in capsys.readouterr().out
    for words, said in (
        ((str(place), "--out", str(tmp_path / "x.txt")), "a profile is a .json file"),
        ((str(place), "--out", str(tmp_path / "no" / "x.json")), "No such file"),
        ((H200_BY_HAND, "--out", str(place)), "no raw samples"),
        ((str(place), "--out", str(place), "--model", "Qwen3-9"), "Qwen3-9"),
    ):
        assert hicache(*words) == 2
        error = capsys.readouterr().err
        assert said in error
        assert len(error.strip().splitlines()) == 1
    assert load_profile(place) == profile
