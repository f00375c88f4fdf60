"""The server probe against a server whose times are known, over real HTTP."""

from __future__ import annotations

import pytest
from by_hand import H200_BY_HAND
from stub_server import Truth, serving

from calibrate.build import Told, build_profile
from calibrate.journal import Journal
from calibrate.openai import Server
from calibrate.points import Point
from calibrate.probes.server import ServerProbe
from calibrate.sampling import Disturbed, Rule, sample
from calibrate.session import Session
from hicache.errors import InputError
from hicache.operations import Chunk, Prefill
from scenario.geometry import load_geometry
from scenario.measurement import Measurement
from scenario.profile import decode_profile, dump_profile, load_profile
from sim.step_model import step_model

PREFILLS = ((64, 0), (1024, 0), (64, 2048), (1024, 2048))
DECODES = ((1, 64), (1, 1024), (4, 64), (4, 1024))


class Silent:
    """Progress for nobody."""

    def begin(self, points): ...
    def probe(self, name, points): ...
    def point(self, point, left_s): ...
    def done(self, points): ...
    def missing(self, what, reason): ...


def test_known_times_are_recovered_within_two_percent(tmp_path, monkeypatch):
    monkeypatch.setattr("calibrate.probes.server.DECODED", 12)
    truth = Truth()
    with serving(truth) as (_, url):
        probe = ServerProbe(Server(url), 5000, 8192, prefills=PREFILLS, decodes=DECODES)
        journal = Journal(str(tmp_path / "journal"), {})
        measured = Session(
            [probe], journal, Silent(), effort="quick", budget_s=9, rule=Rule(0, 5, 5)
        ).run()
        journal.close()
    assert measured.missing == []
    base, geometry = load_profile(H200_BY_HAND), load_geometry("Qwen3-8B")
    built = build_profile(
        measured, Told("served", "a server", "stub", "2026-01-01", "test"), base, geometry,
        Measurement(command="test", began="now", duration_s=1, facts={}), base.memory,
    )  # fmt: skip
    profile = decode_profile(dump_profile(built.profile).encode(), "served")
    model = step_model(profile.gpu)
    for new, past in PREFILLS:
        ns = model.prefill_ns(Prefill((Chunk(0, new, past),), new))
        assert ns / 1e9 == pytest.approx(truth.prefill_s(new, past), rel=0.02), (new, past)
    for batch, context in DECODES:
        ns = model.decode_ns(batch, batch * context)
        assert ns / 1e9 == pytest.approx(truth.decode_s(batch, context), rel=0.02)
    assert profile.host.engine.step_ns.value == 0
    # What no server says comes from the base, as estimates.
    assert {"pcie", "disk", "host.engine.h2d_ns"} <= set(built.borrowed)
    assert "gpu" not in built.borrowed
    assert profile.pcie.h2d.provenance == "estimate"


def test_samples_beside_other_load_are_rejected_and_counted():
    with serving() as (stub, url):
        probe = ServerProbe(Server(url), 5000, 8192)
        probe.open()
        # Others come in the middle of the first sample and go after the third.
        stub.slowdown_s = 0.04
        stub.slow_requests = set(range(stub.requests + 2, stub.requests + 10))
        found = sample(
            probe.sampler(Point("server.prefill", (16, 0))), 0.2, _ticking(), Rule(0, 3, 3)
        )
        assert "disturbed samples rejected: the server was busy" in found.note
        assert int(found.note.split("; ")[1].split()[0]) >= 3
        assert max(found.ns) / 1e9 < stub.truth.prefill_s(16, 0) + stub.slowdown_s
        stub.slow_requests = set()
        with pytest.raises(InputError, match="9 samples were disturbed"):
            sample(probe.sampler(Point("server.prefill", (16, 0))), 0.2, _ticking(), Rule(0, 3, 3))


def test_a_prompt_that_was_cached_though_it_should_not_be_is_rejected():
    with serving() as (stub, url):
        probe = ServerProbe(Server(url), 5000, 8192)
        probe.open()
        act = probe.sampler(Point("server.prefill", (64, 640)))
        stub.pages.clear()  # the server has lost the prefix
        with pytest.raises(Disturbed, match="0 tokens cached, not 640"):
            act()


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("ftp://here", "it must be a URL such as"),
        ("http://127.0.0.1:1", "refused"),
        ("http://127.0.0.1:99999", "no such port"),
    ],
)
def test_what_is_no_server_is_told(url, message):
    with pytest.raises(InputError, match=message):
        Server(url)


def test_a_server_that_refuses_is_quoted():
    with serving() as (_, url):
        server = Server(url, "stub")
        with pytest.raises(InputError, match="400"):
            server.complete("text", 1)  # pyright: ignore[reportArgumentType]


def _ticking():
    """A clock by which everything takes a tenth of a second."""
    times = iter(range(10_000))
    return lambda: next(times) / 10
