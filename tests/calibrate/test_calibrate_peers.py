"""Copies between GPUs: the probe, its fits, and a profile of one GPU that they are added to."""

from __future__ import annotations

import msgspec
import pytest
import torch
from stub_machine import GEOMETRY, StubProbe, Truth, built_of, measure, probes_of

from calibrate import command
from calibrate.__main__ import main
from calibrate.build_peers import of_pairs
from calibrate.gpu_fit import Graphs
from calibrate.into import parts_measured, renew
from calibrate.kit import Kit
from calibrate.machine import Machine, look
from calibrate.plots import plots
from calibrate.points import Described, Point
from calibrate.probes.peers import CHECKS, PeersProbe
from calibrate.profile_text import diff_lines, show_lines
from calibrate.refit import refit
from calibrate.session import Measured
from scenario.measurement import Measurement, Sample
from scenario.profile import Profile, decode_profile, dump_profile, load_profile, sourced

MIB = 1 << 20
TWO_GPUS = pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two CUDA GPUs")
SIZES = (1, 4096, 1_000_003, 64 * MIB + 17)


class Peers(StubProbe):
    """Two GPUs; from the second to the first at half the rate. `broken`: a pair that fails."""

    name = "peers"

    def __init__(self, rate: float = 300e9, broken: tuple[int, int] | None = None) -> None:
        super().__init__("peers", Truth(), ())
        self.rate, self.broken = rate, broken

    def describe(self):
        return {"peers.copy": Described(("source_gpu", "target_gpu", "bytes"), "made up")}

    def points(self, effort):
        return PeersProbe(["cpu", "cpu"]).points(effort)

    def sampler(self, point):
        source, target, size = point.at
        if (source, target) == self.broken:
            raise RuntimeError("no way there")
        ns = 15_000 + size * 1e9 / (self.rate / (1 + source))

        def act() -> int:
            self.calls += 1
            if self.calls == self.fails_after:
                raise KeyboardInterrupt
            return round(ns * (1 + 0.004 * ((self.calls % 5) - 2)))

        return act


def added(profile: Profile, probe: Peers, path: str, when: str = "today"):
    told = Measurement(command="a test", began=when, duration_s=7, facts={"gpus": "2"})
    return renew(
        profile, measure([probe], path), {"peers": list(probe.describe())}, told, GEOMETRY,
        profile.memory, Graphs(), name=profile.name,
    )  # fmt: skip


@pytest.fixture(scope="module")
def profile() -> Profile:
    """The shipped machine as it was before it had them."""
    shipped = load_profile("nvidia-h200")
    before = shipped.measurement
    assert before is not None
    facts = {key: value for key, value in before.facts.items() if key != "peers_measured"}
    return msgspec.structs.replace(
        shipped,
        measurement=msgspec.structs.replace(
            before,
            facts=facts,
            series=tuple(each for each in before.series if each.key != "peers.copy"),
            fits=tuple(each for each in before.fits if each.series != ("peers.copy",)),
        ),
    )


# ---------------------------------------------------------------------- the probe


def test_each_pair_is_timed_each_way():
    probe = PeersProbe(["cpu", "cpu", "cpu"])
    for effort in ("quick", "thorough"):
        points = probe.points(effort)
        pairs = {each.at[:2] for each in points}
        assert pairs == {(a, b) for a in range(3) for b in range(3) if a != b}
        assert len({each.key for each in points}) == len(points)
        for pair in pairs:
            mine = [each for each in points if each.at[:2] == pair]
            fits = sorted(each.at[2] for each in mine if each.role == "fit")
            checks = [each.at[2] for each in mine if each.role == "check"]
            assert checks
            assert all(fits[0] < size < fits[-1] for size in checks)
            assert not set(fits) & set(checks)
    assert PeersProbe(["cpu"]).points("thorough") == []


def check_copies(probe: PeersProbe, source: int, target: int) -> None:
    """Bit by bit, on the CPU too: all of it arrives, nothing beside it, and the source stays."""
    _, whole = probe.buffers(source, target, max(SIZES) + 4096)
    for size in SIZES:
        data, copy = probe.buffers(source, target, size)
        assert data.data_ptr() != copy.data_ptr()
        before = data.cpu()
        copy.copy_(255 - before)  # no byte is right
        beyond = whole[size:].cpu()
        assert probe.sampler(Point("peers.copy", (source, target, size)))() > 0
        assert torch.equal(copy.cpu(), before)
        assert torch.equal(data.cpu(), before)
        assert torch.equal(copy, data.to(copy.device))
        assert torch.equal(whole[size:].cpu(), beyond)
    probe.close()


@pytest.mark.parametrize(("source", "target"), [(0, 1), (1, 0)])
def test_copies_are_exact(source, target):
    check_copies(PeersProbe(["cpu", "cpu"]), source, target)


@pytest.mark.gpu
@TWO_GPUS
@pytest.mark.parametrize(("source", "target"), [(0, 1), (1, 0)])
def test_copies_between_two_gpus_are_exact(source, target):
    """Whether the GPUs reach each other's memory or not: PyTorch then goes through the host."""
    check_copies(PeersProbe(), source, target)


@pytest.mark.gpu
@TWO_GPUS
def test_a_sample_is_the_whole_copy_between_two_gpus():
    """Not the launch alone: 16 times the bytes take several times as long."""
    probe = PeersProbe()
    took = []
    for size in (64 * MIB, 1024 * MIB):
        act = probe.sampler(Point("peers.copy", (0, 1, size)))
        act()
        took.append(min(act() for _ in range(5)))
    probe.close()
    assert took[1] > 6 * took[0]


# ---------------------------------------------------------------------- fits


def test_each_pair_has_a_fit_with_its_rate(tmp_path):
    built = built_of(measure([*probes_of(Truth()), Peers()], str(tmp_path / "journal"))).profile
    fits = {each.key: each for each in built.measurement.fits if each.series == ("peers.copy",)}
    assert list(fits) == ["peers: GPU 0 to GPU 1", "peers: GPU 1 to GPU 0"]
    for fit in fits.values():
        assert fit.verdict == "fits"
        assert fit.held_out == 3
        assert fit.median_error_permille <= 5
        assert fit.limit_permille == 30
    assert "; 256 MiB at 274" in fits["peers: GPU 0 to GPU 1"].kind
    assert "; 256 MiB at 138" in fits["peers: GPU 1 to GPU 0"].kind
    without = built_of(measure(probes_of(Truth()), str(tmp_path / "without"))).profile
    assert dict(sourced(built)) == dict(sourced(without))


def test_a_pair_that_is_slower_in_the_middle_does_not_fit():
    rate = {size: 300e9 if size < 16 * MIB else 150e9 for size in (MIB, 4 * MIB, 8 * MIB)}
    samples = [
        Sample(at=(0, 1, size), ns=(round(size * 1e9 / rate[size]),), role="fit") for size in rate
    ] + [Sample(at=(0, 1, 6 * MIB), ns=(round(6 * MIB * 1e9 / 200e9),), role="check")]
    pairs = of_pairs(samples)
    assert [each.at for each in pairs[0, 1]] == [(MIB,), (4 * MIB,), (6 * MIB,), (8 * MIB,)]
    # One that was held out and no other makes no curve.
    assert of_pairs(samples[-1:]) == {}


# ---------------------------------------------------------------------- into a profile


def test_the_shipped_machine_has_them_of_two_gpus(profile):
    shipped = load_profile("nvidia-h200")
    assert dict(sourced(shipped)) == dict(sourced(profile))
    fits = [each for each in shipped.measurement.fits if each.series == ("peers.copy",)]
    assert [each.key for each in fits] == ["peers: GPU 0 to GPU 1", "peers: GPU 1 to GPU 0"]
    (peers,) = (each for each in shipped.measurement.series if each.key == "peers.copy")
    samples = peers.samples
    # 18 links of 26.6 GB/s carry no more.
    assert max(each.at[2] / min(each.ns) for each in samples) < 18 * 26.5625


def test_they_are_added_and_no_value_changes(profile, tmp_path):
    made = added(profile, Peers(), str(tmp_path / "journal"))
    assert made.kept == ()
    new = made.profile
    # A prediction does not rest on them.
    assert parts_measured(new) == parts_measured(profile)
    assert new.measurement.facts == {
        **profile.measurement.facts, "peers_measured": "today, in 7 s, by a test"
    }  # fmt: skip
    assert dict(sourced(new)) == dict(sourced(profile))
    assert new.measurement.series[:-1] == profile.measurement.series
    assert new.measurement.series[-1].key == "peers.copy"
    assert new.measurement.fits[:-2] == profile.measurement.fits
    bare = msgspec.structs.replace(new, measurement=profile.measurement)
    assert bare == profile
    # It loads, shows, compares, plots and is made again from its samples.
    text = dump_profile(new)
    assert decode_profile(text.encode(), "here") == new
    assert refit(new, "here").profile == new
    shown = "\n".join(show_lines(new))
    assert "peers: GPU 0 to GPU 1" in shown
    assert "peers_measured: today" in shown
    assert "say the same" in "\n".join(diff_lines(profile, new))
    assert [each.name for each in plots(new)] == [*(each.name for each in plots(profile)), "peers"]


def test_those_of_an_earlier_time_go(profile, tmp_path):
    once = added(profile, Peers(), str(tmp_path / "one"), "first").profile
    twice = added(once, Peers(200e9), str(tmp_path / "two"), "second").profile
    straight = added(profile, Peers(200e9), str(tmp_path / "three"), "second").profile
    assert twice == straight != once


@pytest.mark.parametrize("fails", ["stopped", "no way"])
def test_what_was_not_measured_leaves_the_profile_as_it_was(profile, tmp_path, fails):
    probe = Peers()
    probe.fails_after = 9 if fails == "stopped" else -1
    if fails == "no way":
        probe.sampler = lambda point: 1 / 0 if not point.at else _refuse()
    once = added(profile, Peers(), str(tmp_path / "one"), "first").profile
    made = added(once, probe, str(tmp_path / "two"), "second")
    assert made.kept == ("peers",)
    assert made.profile == once


def _refuse():
    raise RuntimeError("no way there")


def test_a_way_that_fails_is_missing_and_the_other_is_there(profile, tmp_path):
    new = added(profile, Peers(broken=(1, 0)), str(tmp_path / "journal")).profile
    fits = [each.key for each in new.measurement.fits if each.series == ("peers.copy",)]
    assert fits == ["peers: GPU 0 to GPU 1"]
    gone = [each for each in new.measurement.missing if each.startswith("peers")]
    assert len(gone) == 8
    assert all(each.endswith(": no way there") for each in gone)
    whole = added(new, Peers(), str(tmp_path / "whole")).profile
    assert not [each for each in whole.measurement.missing if each.startswith("peers")]


def test_from_the_command_line(profile, tmp_path, monkeypatch, capsys):
    def kit(options, stack) -> Kit:
        assert options.only == ("peers",)
        facts = look("none").facts | {"gpu": "NVIDIA H200"}
        return Kit([Peers()], Machine(facts, look("none").ceilings), GEOMETRY, Graphs, 0)

    monkeypatch.setattr(command, "make_kit", kit)
    words = ["--only", "peers", "--thorough", "--out", str(tmp_path / "both.json")]
    assert main([*words, "--into", "nvidia-h200", "--name", "nvidia-h200"]) == 0
    told = capsys.readouterr()
    assert "peers: GPU 0 to GPU 1: 0." in told.out
    assert "fits\n" in told.out
    assert "gpu.dense" not in told.out
    assert "as it was in" not in told.err
    both = load_profile(tmp_path / "both.json")
    assert dict(sourced(both)) == dict(sourced(profile))
    (peers,) = (each for each in both.measurement.series if each.key == "peers.copy")
    assert len(peers.samples) == 2 * (8 + len(CHECKS))
    assert "--only peers --thorough" in both.measurement.facts["peers_measured"]
    # Alone: all else is an estimate then.
    assert main(words) == 0
    alone = load_profile(tmp_path / "both.json")
    assert alone.pcie.h2d.provenance == "estimate"
    assert [each.key for each in alone.measurement.series] == ["peers.copy"]


def test_one_gpu_has_no_peers_to_add(tmp_path, capsys):
    words = ["--device", "none", "--only", "peers", "--into", "nvidia-h200"]
    assert main([*words, "--out", str(tmp_path / "x.json")]) == 2
    assert "--only peers: there are not several GPUs here" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


def test_measured_nothing_is_no_profile_with_peers():
    assert built_of(Measured()).profile.measurement.fits == ()
