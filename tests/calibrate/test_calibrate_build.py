"""From known truth through samples to a profile: what is true, and only what was changed."""

from __future__ import annotations

import msgspec
import pytest
from stub_machine import GRAPHS, PAGE_BYTES, Truth, built_of, measure, probes_of

from calibrate.disk_fit import read_share_permille
from calibrate.gpu_fit import disturbed
from calibrate.profile_text import diff_lines, show_lines
from hicache.operations import Chunk, Copy, Prefill
from scenario.measurement import Role, Sample
from scenario.profile import Curve, Surface, Valued, decode_profile, dump_profile, sourced
from sim.pcie import Link
from sim.step_model import step_model


@pytest.fixture(scope="module")
def usual(tmp_path_factory):
    """The profile of the usual truth."""
    return of(Truth(), tmp_path_factory.mktemp("usual"))


def of(truth: Truth, folder):
    built = built_of(measure(probes_of(truth), str(folder / "journal")))
    # As it is read back from its file.
    return decode_profile(dump_profile(built.profile).encode(), "stub"), built


def changed(one, other) -> set[str]:
    """Keys whose numbers differ by more than the stubs' noise."""
    second = dict(sourced(other))
    found: set[str] = set()
    for key, value in sourced(one):
        after = second[key]
        if isinstance(value, Curve | Surface):
            assert [each[:-1] for each in value.points] == [each[:-1] for each in after.points]
            pairs = [(a[-1], b[-1]) for a, b in zip(value.points, after.points, strict=True)]
        elif isinstance(value, Valued):
            pairs = [(value.value, after.value)]
        else:
            continue
        if any(abs(a - b) > 0.02 * max(a, b) + 2000 for a, b in pairs):
            found.add(key)
    return found


def test_steps_are_recovered_at_samples_and_between_them(usual):
    profile, _ = usual
    model, truth = step_model(profile.gpu), Truth()
    for new, past in ((1, 0), (16, 8192), (40, 1000), (257, 0), (1024, 65_536), (1025, 0),
                      (5000, 3000), (8192, 30_000), (130, 50)):  # fmt: skip
        ns = model.prefill_ns(Prefill((Chunk(0, new, past),), new))
        assert ns == pytest.approx(truth.prefill(new, past), rel=0.02), (new, past)
    for batch, context in ((1, 128), (3, 500), (5, 9000), (9, 2048), (16, 16_384)):
        assert model.decode_ns(batch, batch * context) == pytest.approx(
            truth.decode(batch, context), rel=0.02
        ), (batch, context)
    joint = Prefill(tuple(Chunk(number, 300, 900) for number in range(3)), 900)
    assert model.prefill_ns(joint) == pytest.approx(truth.joint(3, 300, 900), rel=0.02)


def test_sizes_between_graphs_cost_what_the_larger_graph_does(usual):
    profile, _ = usual
    dense = dict(profile.gpu.dense.points)
    for low, high in zip(GRAPHS.prefill_tokens, GRAPHS.prefill_tokens[1:], strict=False):
        assert dense[low + 1] == dense[high]
    decode = dict(profile.gpu.dense_decode.points)
    assert decode[9] == decode[16]


def test_a_back_ends_operations_are_recovered_for_any_number_of_pieces(usual):
    profile, _ = usual
    truth = Truth()
    from simpy import Environment

    from sim.host import Host
    from sim.ranges import RangeWatch

    link = Link(Environment(0), profile.pcie, Host(profile.host, RangeWatch()), "backend", "direct")
    for pages, pieces in ((16, 1), (16, 16), (16, 4), (40, 40), (64, 10)):
        size = pages * PAGE_BYTES
        expected = truth.copy(size) + (pieces - 1) * truth.piece_ns
        copy = Copy("h2d", pages, size, pieces)
        assert link._down.alone_ns(copy) == pytest.approx(expected, rel=0.02), (pages, pieces)


def test_the_disk_and_the_host_are_recovered(usual):
    disk, truth = usual[0].disk, Truth()
    for surface, rate in ((disk.read_bytes_per_s, truth.read),
                          (disk.write_bytes_per_s, truth.write)):  # fmt: skip
        for _, _, measured in surface.points:
            assert measured == pytest.approx(rate, rel=0.03)
    assert disk.read_latency_ns.value == pytest.approx(truth.seek_ns, rel=0.5)
    assert disk.mixed_permille.value == pytest.approx(2 / 2.2 * 1000, rel=0.03)
    assert disk.read_share_permille.value == pytest.approx(500, abs=10)
    assert disk.first_write_permille.value == pytest.approx(1000 * 1.2 / 1.5, rel=0.03)
    assert (disk.workers.value, disk.each_way.value) == (2, 1)
    assert usual[0].host.copy_threads.value == 4
    assert usual[0].host.engine.step_ns.value == pytest.approx(truth.engine_ns, rel=0.01)
    assert usual[0].host.engine.burst_ns.value == pytest.approx(270_000, rel=0.01)


def test_every_fit_reports_its_error_and_holds(usual):
    profile, built = usual
    fits = {fit.key: fit for fit in profile.measurement.fits}
    assert len(fits) >= 3 + 2 + 16 + 2
    for fit in fits.values():
        assert fit.verdict == "fits", fit
        assert fit.held_out >= 2
        assert fit.median_error_permille <= 20
        assert fit.median_error_permille <= fit.p95_error_permille
    assert built.borrowed == ()
    assert profile.estimates() == ()
    for key, value in sourced(profile):
        if isinstance(value, Curve | Surface) and value.provenance == "measured":
            assert value.spread_permille >= 1, key


@pytest.mark.parametrize(
    ("truth", "keys"),
    [
        (Truth(read=1e9), ("disk.read_",)),
        (Truth(write=0.75e9, first_write=0.6e9), ("disk.write_",)),
        (Truth(link=25e9), ("pcie.",)),
        (Truth(gpu=1.5), ("gpu.",)),
        (Truth(memory=4e9), ("host.copy_bytes_per_s",)),
        (Truth(engine_ns=450_000.0), ("host.engine.",)),
    ],
    ids=[
        "slower reads",
        "slower writes",
        "half the link",
        "slower GPU",
        "slower memory",
        "engine",
    ],
)
def test_changing_one_thing_changes_exactly_its_curves(usual, tmp_path, truth, keys):
    profile, _ = of(truth, tmp_path)
    found = changed(usual[0], profile)
    assert found
    assert all(key.startswith(keys) for key in found), found
    if keys == ("pcie.",):
        assert {"pcie.h2d", "pcie.d2h", "pcie.duplex_bytes_per_s",
                "pcie.backends.direct.h2d_scattered"} <= found  # fmt: skip
    if keys == ("gpu.",):
        assert {"gpu.dense", "gpu.dense_decode", "gpu.attention_prefill",
                "gpu.attention_decode"} == found  # fmt: skip


def test_a_curve_that_does_not_fit_says_so(tmp_path):
    class Jagged(Truth):
        def copy(self, size: int) -> float:
            # No curve through some sizes tells the others.
            return super().copy(size) * (1.4 if size / PAGE_BYTES in (2, 8, 32) else 1.0)

    built = built_of(measure(probes_of(Jagged()), str(tmp_path / "journal")))
    fits = {fit.key: fit for fit in built.profile.measurement.fits}
    assert "does not fit: held-out points are" in fits["pcie.backends.direct.h2d"].verdict
    assert fits["pcie.backends.direct.h2d"].median_error_permille > 30
    assert fits["gpu.dense, gpu.attention_prefill"].verdict == "fits"


def test_operations_in_pieces_are_judged_though_no_curve_has_them(usual, tmp_path):
    class Steep(Truth):
        def pieces(self, size: int, pieces: int) -> float:
            return 1.2 * super().pieces(size, pieces)

    key = "pcie.backends.staged.d2h: in pieces"
    fits = {fit.key: fit for fit in usual[0].measurement.fits}
    assert fits[key].held_out == 2
    assert fits[key].verdict == "fits"
    built = built_of(measure(probes_of(Steep()), str(tmp_path / "journal")))
    fits = {fit.key: fit for fit in built.profile.measurement.fits}
    assert "held-out points are 16.6 % off" in fits[key].verdict
    assert changed(usual[0], built.profile) == set()


def test_what_was_not_measured_is_an_estimate_from_the_base(tmp_path):
    truth = Truth()
    probes = [probe for probe in probes_of(truth) if probe.name in ("disk", "host")]
    built = built_of(measure(probes, str(tmp_path / "journal")))
    assert {"gpu", "pcie", "host.engine.step_ns"} <= set(built.borrowed)
    estimates = {each.key: each.how for each in built.profile.estimates()}
    assert "gpu.dense" in estimates
    assert estimates["pcie.h2d"].startswith("not measured here, from nvidia-h200: ")
    assert "disk.read_bytes_per_s" not in estimates
    assert (
        built.profile.gpu.dense.points
        == decode_profile(dump_profile(built.profile).encode(), "x").gpu.dense.points
    )


def test_a_profile_in_words(usual):
    profile, _ = usual
    text = "\n".join(show_lines(profile))
    for key, _ in sourced(profile):
        assert key in text
    assert "gpu.dense, gpu.attention_prefill" in text
    assert list(diff_lines(profile, profile)) == [
        f"stub and stub say the same ({len(list(sourced(profile)))} values)"
    ]
    slower = msgspec.structs.replace(
        profile.disk.mixed_permille, value=profile.disk.mixed_permille.value // 2
    )
    disk = msgspec.structs.replace(profile.disk, mixed_permille=slower)
    lines = list(diff_lines(profile, msgspec.structs.replace(profile, disk=disk)))
    assert "disk.mixed_permille" in lines[1]
    assert "-50" in lines[1]
    assert len(lines) == 3


def sample(*at: int, ms: float, role: Role = "fit") -> Sample:
    return Sample(at=at, ns=(round(ms * 1e6),) * 3, role=role)


def test_a_sample_that_larger_steps_contradict_is_left_out():
    # As it was on an H200: three sizes in a row took 64 ms, and 1,700 tokens held out took 58.6.
    usual = [sample(1024, 0, ms=34), sample(2048, 0, ms=70), sample(1024, 2048, ms=37)]
    high = [sample(1025, 0, ms=64), sample(1280, 0, ms=67), sample(1536, 0, ms=64)]
    check = sample(1700, 0, ms=58.6, role="check")
    assert disturbed([*usual, *high, check]) == high
    assert disturbed([*usual, check]) == []
    # What differs by as much as repeats do stays, and so does what nothing larger speaks against.
    assert disturbed([sample(16, 0, ms=10.4), sample(32, 0, ms=10.0)]) == []
    assert disturbed([sample(16, 512, ms=30), sample(32, 0, ms=10)]) == []


def test_what_reads_and_writes_keep_beside_each_other_says_who_gets_more():
    alone = {"read": 38.6, "write": 24.0}
    assert read_share_permille(alone, {"read": 64.3, "write": 61.0}) == 604
    assert read_share_permille(alone, {"read": 77.2, "write": 48.0}) == 500
