"""A session: its time, its journal, being stopped and going on."""

from __future__ import annotations

import json

import pytest
from by_hand import H200_BY_HAND
from stub_machine import Silent, StubProbe, Truth, built_of, measure, probes_of

from calibrate.journal import Journal
from calibrate.machine import momentary, of_all_sessions
from calibrate.points import Described, Point
from calibrate.sampling import Rule
from calibrate.session import Session
from hicache.errors import InputError
from scenario.measurement import Sample
from scenario.profile import decode_profile, dump_profile, load_profile
from sim.step_model import step_model


def test_a_stopped_session_goes_on_where_it_was(tmp_path):
    path = str(tmp_path / "journal")
    first = probes_of(Truth())
    first[2].fails_after = 200  # Ctrl-C among the transfers
    stopped = measure(first, path)
    assert stopped.interrupted
    assert stopped.missing == [each for each in stopped.missing if each.endswith("points to go")]
    assert [each.split(":")[0] for each in stopped.missing] == ["transfers", "disk", "host"]
    half = built_of(stopped)
    profile = decode_profile(dump_profile(half.profile).encode(), "half")
    assert {"pcie", "disk"} <= set(half.borrowed)
    assert profile.gpu.dense.provenance == "measured"
    assert step_model(profile.gpu).decode_ns(1, 1000) > 0

    second = probes_of(Truth())
    whole = measure(second, path)
    assert not whole.interrupted
    assert whole.missing == []
    assert second[0].calls == 0  # all of the steps were in the journal
    assert second[2].calls > 0
    once = measure(probes_of(Truth()), str(tmp_path / "other"))
    assert {key: [each.at for each in series.samples] for key, series in whole.series.items()} == {
        key: [each.at for each in series.samples] for key, series in once.series.items()
    }
    assert built_of(whole).borrowed == ()


def test_a_journal_of_another_machine_is_refused(tmp_path):
    path = str(tmp_path / "journal")
    Journal(path, {"gpu": "A"}).close()
    with pytest.raises(InputError, match="a calibration with gpu 'A' was begun there, this one"):
        Journal(path, {"gpu": "B"})


def test_a_journal_knows_the_sessions_before(tmp_path):
    path = str(tmp_path / "journal")
    session = ("2026-01-01T00:00:00+00:00", 3.5, {"load": "1.0 when it began"})
    for number in range(2):
        journal = Journal(path, {})
        assert journal.sessions == [session] * number
        journal.add(f"x@{number}", Sample(at=(number,), ns=(5,)))
        journal.end_session(*session)
        journal.close()
    journal = Journal(path, {})
    assert (journal.resumed, len(journal.sessions)) == (2, 2)
    journal.close()


def test_sessions_without_facts_as_older_versions_noted_them_are_read(tmp_path):
    path = tmp_path / "journal"
    path.write_text('["calibration", 1, {}]\n["session", "2026-01-01T00:00:00+00:00", 3.5]\n')
    journal = Journal(str(path), {})
    assert journal.sessions == [("2026-01-01T00:00:00+00:00", 3.5, {})]
    journal.close()


def test_the_load_of_every_session_is_told():
    """Most points may be those of the first, whatever goes on at the begin of the last."""
    facts = {"cpu": "X", "load": "7.4 when it began", "gpu_load": "0 % when it began"}
    assert momentary(facts) == {name: facts[name] for name in ("load", "gpu_load")}
    assert of_all_sessions([], facts) == facts
    before = [{"load": "0.1 when it began"}, {}, {"load": "0.2 when it began"}]
    assert of_all_sessions(before, facts) == {
        **facts,
        "load": "0.1 when it began; 0.2 when it went on; 7.4 when it went on",
    }
    old_journal = of_all_sessions([{}], {"load": "7.4 when it began"})
    assert old_journal == {"load": "not kept when it began; 7.4 when it went on"}


def test_a_line_that_was_cut_off_is_dropped_and_written_again(tmp_path):
    path = tmp_path / "journal"
    journal = Journal(str(path), {})
    for number in range(3):
        journal.add(f"x@{number}", Sample(at=(number,), ns=(5, 6), note="a note"))
    journal.close()
    whole = path.read_bytes()
    path.write_bytes(whole[:-9])
    journal = Journal(str(path), {})
    assert journal.resumed == 2
    assert "x@2" not in journal
    journal.add("x@2", Sample(at=(2,), ns=(5, 6), note="a note"))
    journal.close()
    assert path.read_bytes() == whole


@pytest.mark.parametrize(
    "text",
    ["no json\n", '["calibration", 1]\n', '["other", 1, {}]\n', '["calibration", 9, {}]\n',
     '["calibration", 1, {}]\n["point"]\n',
     '["calibration", 1, {}]\n["point", "x@1", [1], "fit", [], 0, ""]\n'],
)  # fmt: skip
def test_a_file_that_is_no_journal_is_told_with_its_line(tmp_path, text):
    (tmp_path / "journal").write_text(text)
    with pytest.raises(InputError, match=r"journal, line \d: no journal of a calibration"):
        Journal(str(tmp_path / "journal"), {})


class Slow(StubProbe):
    """A probe of five points, each sample of which takes `step_s`."""

    def __init__(self, name: str, clock: list[float], step_s: float, weight: float = 1.0) -> None:
        super().__init__(name, Truth(), ())
        self.clock, self.step_s, self.weight = clock, step_s, weight
        self.noisy = [900, 1100, 1000, 1300, 800, 1500, 700]

    def describe(self):
        return {self.name: Described(("x",), "made up")}

    def points(self, effort):
        return [Point(self.name, (number,), "fit", self.weight) for number in range(5)]

    def sampler(self, point):
        def act() -> int:
            self.clock[0] += self.step_s
            self.calls += 1
            return self.noisy[self.calls % 7]

        return act


def run(probes, tmp_path, clock, budget_s):
    journal = Journal(str(tmp_path / "journal"), {})
    try:
        return Session(
            probes, journal, Silent(), effort="quick", budget_s=budget_s,
            clock=lambda: clock[0], rule=Rule(0, 3, 1000, 0.001),
        ).run()  # fmt: skip
    finally:
        journal.close()


def test_the_budget_is_kept_and_shared_by_weight(tmp_path):
    clock = [0.0]
    light, heavy = Slow("light", clock, 0.01), Slow("heavy", clock, 0.01, weight=3.0)
    measured = run([light, heavy], tmp_path, clock, 20.0)
    assert measured.missing == []
    assert 10 < measured.duration_s < 21
    assert 2 < heavy.calls / light.calls < 6


def test_without_time_every_point_is_still_measured_a_little(tmp_path):
    clock = [0.0]
    probe = Slow("slow", clock, 1.0)
    measured = run([probe], tmp_path, clock, 2.0)
    assert len(measured.series["slow"].samples) == 5
    assert measured.duration_s <= 15


def test_what_would_begin_long_after_the_time_is_missing(tmp_path):
    clock = [0.0]
    slow, later = Slow("slow", clock, 8.0), Slow("later", clock, 0.1)
    measured = run([slow, later], tmp_path, clock, 2.0)
    assert measured.late
    assert measured.duration_s == 16
    assert [each.at for each in measured.series["slow"].samples] == [(0,), (1,)]
    assert measured.missing == [
        "slow: the time was over with 3 points to go",
        "later: the time was over with 5 points to go",
    ]


def test_a_probe_that_cannot_work_is_missing_and_the_rest_goes_on(tmp_path):
    class Broken(Slow):
        def open(self):
            raise InputError("no such device")

    class Failing(Slow):
        def sampler(self, point):
            if point.at == (3,):
                raise InputError("no such size")
            return super().sampler(point)

    clock = [0.0]
    probes = [Broken("broken", clock, 0.1), Failing("failing", clock, 0.1)]
    measured = run(probes, tmp_path, clock, 10.0)
    assert measured.missing == ["broken: no such device", "failing@3: no such size"]
    assert [each.at for each in measured.series["failing"].samples] == [(0,), (1,), (2,), (4,)]


def test_the_journal_is_lines_of_json(tmp_path):
    path = tmp_path / "journal"
    measure([StubProbe("host", Truth(), ("host.",))], str(path))
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    assert lines[0] == ["calibration", 1, {"machine": "stub"}]
    assert [line[1] for line in lines[1:]] == [
        f"host.copy@{threads},{64 << 20}" for threads in (1, 2, 4, 8)
    ]


def test_schema_one_is_still_read(tmp_path):
    raw = json.loads(dump_profile(load_profile(H200_BY_HAND)))
    raw["schema"] = 1
    old = decode_profile(json.dumps(raw).encode(), "old")
    assert old == load_profile(H200_BY_HAND)
    assert old.schema == 2
