"""Replayed lanes, and the adversarial ones of these tests, keep to the contract of all lanes."""

from __future__ import annotations

from adversarial_lanes import AdversarialLanes, Fate, in_turn
from lanes_contract import LanesContract, PlannedLanesContract, play
from simpy import Environment

from hicache.record import Record, Recorder, ReplayLanes

FATES = [Fate(7, 3), Fate(100), Fate(1, 0, fails=True), Fate(20, 50), Fate(3)]


class TestAdversarialLanes(LanesContract):
    def make_lanes(self, env):
        return AdversarialLanes(env, lambda operation: Fate(10, 0))


class TestRecorder(LanesContract):
    def make_lanes(self, env):
        return Recorder(env, AdversarialLanes(env, lambda operation: Fate(10, 0)), len)


class TestReplayLanes(PlannedLanesContract):
    """The plan is played on adversarial lanes first; the answers must be those of that run."""

    def play(self, env, plan):
        lines: list[str] = []
        live = Environment(0)
        lanes = AdversarialLanes(live, in_turn(FATES))
        recorder = Recorder(live, lanes, lines.append)
        first = play(live, recorder, plan)
        recorder.close()
        replayed = ReplayLanes(env, Record(lines))
        watched = play(env, replayed, plan)
        replayed.finish()
        assert [repr(each.answers) for each in watched] == [repr(each.answers) for each in first]
        return watched
