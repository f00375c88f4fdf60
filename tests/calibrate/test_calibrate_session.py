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

    visits = 1

    def __init__(self, name: str, clock: list[float], step_s: float, weight: float = 1.0) -> None:
        super().__init__(name, Truth(), ())
        self.clock, self.step_s, self.weight = clock, step_s, weight
        self.noisy = [900, 1100, 1000, 1300, 800, 1500, 700]

    def describe(self):
        return {self.name: Described(("x",), "made up")}

    def points(self, effort):
        return [
            Point(self.name, (number,), "fit", self.weight, visits=self.visits)
            for number in range(5)
        ]

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


class Wandering(Slow):
    """A link that is `slower` by half for a second, beginning at `slow_at_s`; a call takes a ms."""

    visits = 3

    def __init__(self, clock: list[float], slow_at_s: float = 1e9, names: str = "copies") -> None:
        super().__init__(names, clock, 0.001)
        self.slow_at_s, self.order = slow_at_s, []
        self.fails_at: tuple[int, ...] = ()

    def points(self, effort):
        return [
            Point(self.name, (number,), "fit" if number % 2 else "check", visits=self.visits)
            for number in range(1, 6)
        ]

    def sampler(self, point):
        self.order.append(point.at[0])
        if len(self.order) in self.fails_at:
            raise InputError("no such size")

        def act() -> int:
            self.calls += 1
            if self.calls == self.fails_after:
                raise KeyboardInterrupt
            self.clock[0] += self.step_s
            slower = self.slow_at_s <= self.clock[0] < self.slow_at_s + 0.009
            return round(1_000_000 * point.at[0] * (1.5 if slower else 1)) + self.calls % 5

        return act


def visiting(probes, tmp_path, clock, budget_s=1e6):
    journal = Journal(str(tmp_path / "journal"), {})
    try:
        return Session(
            probes, journal, Silent(), effort="thorough", budget_s=budget_s,
            clock=lambda: clock[0], rule=Rule(1, 3, 60, 0.03),
        ).run()  # fmt: skip
    finally:
        journal.close()


def test_points_are_come_back_to_when_all_others_were_visited(tmp_path):
    clock = [0.0]
    probe = Wandering(clock)
    measured = visiting([probe], tmp_path, clock)
    assert probe.order == 3 * [1, 2, 3, 4, 5]
    samples = measured.series["copies"].samples
    assert [each.at for each in samples] == [(number,) for number in range(1, 6)]
    # Six are needed for an interval, then three in each further visit.
    assert {len(each.ns) for each in samples} == {12}
    assert {(each.note, each.width_permille) for each in samples} == {("", 0)}
    lines = [json.loads(line) for line in (tmp_path / "journal").read_text().splitlines()][1:]
    assert [line[7:] for line in lines] == [[2]] * 5 + [[1]] * 5 + [[]] * 5
    assert all(len(line[4]) in (6, 9, 12) for line in lines)


def test_a_slow_moment_is_not_all_that_a_point_sees(tmp_path):
    once, often = [0.0], [0.0]
    one = Wandering(once, slow_at_s=0.0075)  # the second point's seven calls, and some
    one.visits = 1
    first = visiting([one], tmp_path, once).series["copies"].samples
    assert [round(each.median_ns / 1e6 / each.at[0], 2) for each in first] == [1, 1.5, 1, 1, 1]
    assert {each.width_permille for each in first} == {0}  # and nobody could tell
    (tmp_path / "journal").unlink()
    samples = (
        visiting([Wandering(often, slow_at_s=0.0075)], tmp_path, often).series["copies"].samples
    )
    widths = {each.at[0]: each.width_permille for each in samples}
    assert [round(each.median_ns / 1e6 / each.at[0], 2) for each in samples] == [1, 1, 1, 1, 1]
    # What it is not sure of it says: that point is taken again until it is sure, or to the most.
    assert len(samples[1].ns) > len(samples[2].ns)
    assert widths[3] == widths[4] == 0


def test_a_stopped_session_goes_on_with_the_visits_that_are_left(tmp_path):
    clock = [0.0]
    first = Wandering(clock)
    first.fails_after = 5 * 7 + 2 * 4 + 2  # in the second visit of the third point
    stopped = visiting([first], tmp_path, clock)
    assert stopped.interrupted
    assert stopped.missing == ["copies: stopped with 5 points to go"]
    # What there is counts.
    assert [len(each.ns) for each in stopped.series["copies"].samples] == [9, 9, 6, 6, 6]
    second = Wandering(clock)
    whole = visiting([second], tmp_path, clock)
    assert second.order == [3, 4, 5, 1, 2, 3, 4, 5]
    assert (whole.missing, whole.interrupted) == ([], False)
    assert {len(each.ns) for each in whole.series["copies"].samples} == {12}
    third = Wandering(clock)
    assert visiting([third], tmp_path, clock).series == whole.series
    assert third.order == []


def test_a_point_that_fails_is_not_come_back_to(tmp_path):
    clock = [0.0]
    probe = Wandering(clock)
    probe.fails_at = (2, 5 + 2)  # the second point at once, the third when it is come back to
    measured = visiting([probe], tmp_path, clock)
    assert measured.missing == ["copies@2: no such size", "copies@3: no such size"]
    assert probe.order == [1, 2, 3, 4, 5, 1, 3, 4, 5, 1, 4, 5]
    found = {each.at[0]: len(each.ns) for each in measured.series["copies"].samples}
    assert found == {1: 12, 3: 6, 4: 12, 5: 12}


def test_visits_share_a_point_s_time(tmp_path):
    """As much for three visits as for one, against other probes."""
    clock = [0.0]
    often, once = Slow("often", clock, 0.01), Slow("once", clock, 0.01)
    often.visits = 3
    run([often, once], tmp_path, clock, 20.0)
    assert 0.5 < often.calls / once.calls < 2


def test_time_that_is_over_between_visits_leaves_what_there_is(tmp_path):
    clock = [0.0]
    probe = Wandering(clock)
    probe.step_s = 0.8
    measured = visiting([probe], tmp_path, clock, budget_s=1.0)
    assert measured.late
    assert measured.missing == ["copies: the time was over with 5 points to go"]
    assert len(measured.series["copies"].samples) == 5


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
