"""The server probe against a server whose times are known, over real HTTP."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from by_hand import H200_BY_HAND
from stub_machine import Silent
from stub_server import Truth, serving

from calibrate.__main__ import main
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


def test_known_times_are_recovered_within_two_percent(tmp_path):
    truth = Truth()
    truth.step_s = 0.025  # much longer than this machine may be busy with something else
    with serving(truth) as (_, url):
        probe = ServerProbe(Server(url), 5000, 8192, prefills=PREFILLS, decodes=DECODES)
        journal = Journal(str(tmp_path / "journal"), {})
        measured = Session(
            [probe], journal, Silent(), effort="quick", budget_s=20, rule=Rule(0, 7, 7)
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


PROMPT = list(range(1000, 1064))


@pytest.mark.parametrize(
    "speaks",
    [
        {},
        {"says_usage": False},
        {"says_cached": False},
        {"piecewise": True},
        {"extra": "begins"},
        {"extra": "ends"},
        {"around": (b": keep-alive\n\n", b"event: x\n", b"data: [1]\n\n", b"data: {broken\n\n")},
        {"extra": "ends", "ends": b""},
    ],
    ids=["as most do", "no usage", "no cached tokens", "in pieces", "an event before the first",
         "one behind the last", "other lines", "no [DONE]"],
)  # fmt: skip
def test_times_are_those_of_the_tokens_however_it_speaks(speaks):
    with serving() as (stub, url):
        for name, value in speaks.items():
            setattr(stub, name, value)
        found = Server(url).complete(PROMPT, 5)
    assert len(found.token_ns) == 5
    # The first is a token, and no event before it: those come at once.
    assert found.ttft_ns / 1e9 >= Truth().prefill_s(64, 0)
    assert list(found.token_ns) == sorted(found.token_ns)
    told = speaks.get("says_usage", True)
    assert (found.prompt_tokens, found.tokens) == ((64, 5) if told else (-1, -1))
    assert found.cached_tokens == (0 if told and speaks.get("says_cached", True) else -1)


@pytest.mark.parametrize(
    ("speaks", "said"),
    [
        ({"key": "k"}, r"401 Unauthorized: it wants a key; set HICACHE_API_KEY$"),
        ({"paths": ("/v1/chat/completions",)}, "404 Not Found: no /v1/completions, .* only chats"),
        ({"whole": b'{"choices": [{"text": "a"}]}'}, r"streamed no token: \{.choices.: "),
        ({"whole": b'data: {"error": {"message": "no such model"}}\n\n'}, "no such model"),
        ({"whole": b'data: {"choices": [{"text": "a"}]}\n\n'}, "broke off after 1 tokens"),
        ({"told_twice": 2}, "took a prompt of 64 token ids for 128 tokens"),
    ],
)
def test_a_server_that_cannot_be_timed_is_told_in_one_line(speaks, said):
    with serving() as (stub, url):
        for name, value in speaks.items():
            setattr(stub, name, value)
        with pytest.raises(InputError, match=said) as told:
            Server(url).check(PROMPT)
        assert str(told.value).startswith(url)
        assert "\n" not in str(told.value)


def test_a_key_is_sent_where_one_is_given(monkeypatch):
    with serving() as (stub, url):
        stub.key = "secret"
        monkeypatch.setenv("HICACHE_API_KEY", "secret")
        Server(url).check(PROMPT)
        monkeypatch.setenv("HICACHE_API_KEY", "another")
        with pytest.raises(InputError, match="does not take the key of HICACHE_API_KEY") as told:
            Server(url)
        assert "another" not in str(told.value)
    monkeypatch.setenv("HICACHE_API_KEY", "two\nlines")
    with pytest.raises(InputError, match="HICACHE_API_KEY holds characters that no key has"):
        Server("http://here", "stub")


def test_a_server_that_sends_away_is_asked_again_but_not_for_ever(monkeypatch):
    monkeypatch.setattr("calibrate.openai.PAUSE_S", 0.01)
    with serving() as (stub, url):
        server = Server(url)
        stub.busy = 3
        assert len(server.complete(PROMPT, 1).token_ns) == 1
        assert stub.requests == 4
        stub.busy = 100
        with pytest.raises(InputError, match="it was too busy for a request, 5 times"):
            server.complete(PROMPT, 1)


def test_a_server_from_which_nothing_comes_is_left(monkeypatch):
    with serving() as (stub, url):
        server = Server(url)
        monkeypatch.setattr("calibrate.openai.TIMEOUT_S", 1.0)
        stub.slowdown_s = 2.0
        with pytest.raises(InputError, match="nothing came for 1 s"):
            server.complete(PROMPT, 1)
        # Nor is one waited for that goes on and on.
        stub.slowdown_s, stub.truth.step_s = 0.0, 0.05
        with pytest.raises(InputError, match="an answer took longer than 1 s"):
            server.complete(PROMPT, 40)


def test_tokens_that_come_in_bundles_are_no_times_between_tokens():
    with serving() as (stub, url):
        probe = ServerProbe(Server(url), 5000, 8192)
        act = probe._decode(1, 64)
        assert act() > 0
        for usage in (True, False):
            stub.per_event, stub.says_usage = 8, usage
            with pytest.raises(InputError, match="24 tokens came in 4 pieces"):
                act()


def test_a_prefix_that_the_server_has_lost_is_sent_again():
    with serving() as (stub, url):
        probe = ServerProbe(Server(url), 5000, 8192)
        act = probe._prefill(64, 640)
        stub.pages.clear()
        with pytest.raises(Disturbed, match="0 tokens cached, not 640"):
            act()
        assert act() / 1e9 >= Truth().prefill_s(64, 640)


def test_a_server_that_was_busy_when_it_was_asked_first_is_known_when_it_is_not():
    with serving() as (stub, url):
        probe = ServerProbe(Server(url), 5000, 8192)
        stub.slowdown_s = 0.4
        probe.open()
        act = probe.sampler(Point("server.prefill", (16, 0)))
        assert act() > 0  # nobody can tell
        stub.slowdown_s = 0.0
        assert act() > 0
        stub.slowdown_s = 0.1
        with pytest.raises(Disturbed, match="busy"):
            act()


def test_long_contexts_are_asked_for_where_the_model_takes_them():
    server: Any = SimpleNamespace(model="stub")
    for effort, most in (("quick", 180), ("thorough", 900)):
        points = ServerProbe(server, 5000, 40_960).points(effort)
        assert max(each.at[1] for each in points if each.series == "server.decode") == 32_768
        assert sum(each.weight for each in points) < most
    short = ServerProbe(server, 5000, 8192).points("thorough")
    assert max(sum(each.at) for each in short if each.series == "server.prefill") <= 8192
    assert max(each.at[1] for each in short if each.series == "server.decode") == 4096


@pytest.mark.parametrize("given", [(), ("--served-model", "stub")])
def test_the_command_refuses_such_a_server_before_anything_is_measured(tmp_path, capsys, given):
    out = tmp_path / "mine.json"
    with serving() as (stub, url):
        stub.paths = ("/v1/chat/completions",)
        assert main(["--server", url, "--out", str(out), *given]) == 2
    said = capsys.readouterr().err.strip()
    assert len(said.splitlines()) == 1
    assert "a server that only chats cannot be timed" in said
    assert list(tmp_path.iterdir()) == []


def _ticking():
    """A clock by which everything takes a tenth of a second."""
    times = iter(range(10_000))
    return lambda: next(times) / 10
