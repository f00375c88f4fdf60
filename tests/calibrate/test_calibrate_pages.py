"""Copies timed in pages of several sizes become a profile's `pcie.backends.NAME.by_page`."""

from __future__ import annotations

import msgspec
import pytest
from stub_machine import GRAPHS, Truth, built_of, measure, probes_of

from calibrate.refit import refit
from calibrate.session import Measured
from scenario.measurement import Sample, Series
from scenario.profile import decode_profile, dump_profile

# Of a token; the stub machine's pages have 64.
TOKEN_BYTES = 147_456
COUNTS = (1, 16, 64, 256, 1024)


def of_pages(tokens: int, piece_ns: float, **more: Sample) -> dict[str, Series]:
    """Series of `direct` in pages of `tokens`, each piece of which costs `piece_ns`."""
    made: dict[str, Series] = {}
    for way, rate in (("h2d", 50), ("d2h", 40)):
        for kind in ("run", "scattered"):
            key = f"pcie.direct.{way}.{kind}.{tokens}"
            samples = [
                Sample(at=(at,), ns=(round(20_000 + at / rate + pieces * piece_ns),) * 6, role=role)
                for count, role in [*((each, "fit") for each in COUNTS), (500, "check")]
                for at, pieces in [(count * tokens * TOKEN_BYTES, count * (kind == "scattered"))]
            ]
            how = f"{way}, {kind} pages of {tokens}"
            made[key] = Series(key=key, axes=("bytes",), how=how, samples=tuple(samples))
    return made


@pytest.fixture
def measured(tmp_path) -> Measured:
    return measure(probes_of(Truth()), str(tmp_path / "journal"))


def test_pages_of_other_sizes_have_surfaces_of_their_own(measured):
    measured.series |= of_pages(16, 2_000) | of_pages(1, 900)
    profile = built_of(measured).profile
    direct = profile.pcie.backends.direct
    assert direct.page_bytes == 64 * TOKEN_BYTES
    assert direct.by_page.sizes() == (TOKEN_BYTES, 16 * TOKEN_BYTES)
    found = {(page, at): ns for page, at, ns in direct.by_page.d2h_scattered.points}
    for tokens, piece_ns in ((16, 2_000), (1, 900)):
        for count in (COUNTS[0], COUNTS[-1]):
            at = count * tokens * TOKEN_BYTES
            wanted = 20_000 + at / 40 + count * piece_ns
            assert found[tokens * TOKEN_BYTES, at] == pytest.approx(wanted, rel=0.02)
    assert profile.pcie.backends.staged.by_page is None
    keys = {each.key for each in profile.measurement.fits}
    assert "pcie.backends.direct.by_page.h2d_scattered, pages of 16 tokens" in keys
    assert all(each.verdict == "fits" for each in profile.measurement.fits if "by_page" in each.key)
    assert decode_profile(dump_profile(profile).encode(), "here") == profile


def test_what_is_not_measured_whole_is_left_out(measured):
    measured.series |= of_pages(16, 2_000) | of_pages(1, 900)
    del measured.series["pcie.direct.d2h.scattered.1"]
    direct = built_of(measured).profile.pcie.backends.direct
    assert direct.by_page.sizes() == (16 * TOKEN_BYTES,)
    del measured.series["pcie.direct.h2d.run.16"]
    profile = built_of(measured).profile
    assert profile.pcie.backends.direct.by_page is None
    assert not any("by_page" in each.key for each in profile.measurement.fits)


def test_its_own_pages_are_not_of_another_size(measured):
    measured.series |= of_pages(64, 2_000)
    assert built_of(measured).profile.pcie.backends.direct.by_page is None


def test_they_are_made_again_from_their_samples(measured):
    measured.series |= of_pages(16, 2_000)
    profile = built_of(measured).profile
    facts = {
        "graphs": ", ".join(map(str, GRAPHS.prefill_tokens)),
        "decode_graphs": ", ".join(map(str, GRAPHS.decoders)),
    }
    told = msgspec.structs.replace(profile.measurement, facts=facts)
    profile = msgspec.structs.replace(profile, measurement=told)
    assert refit(profile, "here").profile == profile
