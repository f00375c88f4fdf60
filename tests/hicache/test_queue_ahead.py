"""What is in front of a request (`restore.queue_aware`): how it is counted, what a copy teaches
then, and that a policy which knows it decides otherwise.
"""

from __future__ import annotations

import pytest
from bench import FILLER, Bench
from engine_runs import assert_at_rest

from hicache.queue_ahead import LaneQueue
from hicache.restore_policy import CostPolicy, MeetPolicy

PROMPT, OTHER, LONG = range(8), range(100, 108), range(200, 230)
COMPUTE_US = 50.0  # a token, by default
AS_LONG = 1 / (COMPUTE_US * 1e-6 * (1 << 30))  # GiB/s at which a page of one byte takes as long


# ---------------------------------------------------------------- one lane


def test_a_lane_is_free_after_all_that_is_under_way_less_what_is_done_of_it():
    lane = LaneQueue()
    assert lane.left(1.0, 0.1, 0) == 0.0
    lane.begun(20, 10**9)
    lane.begun(50, 10**9)
    assert lane.left(1.0, 0.1, 10**9) == pytest.approx(2 * 1.0 + 70 * 0.1)
    assert lane.left(1.0, 0.1, 3 * 10**9) == pytest.approx(7.0)
    assert lane.left(1.0, 0.1, 99 * 10**9) == 0.0


def test_a_copy_had_the_lane_since_the_one_in_front_had_ended():
    lane = LaneQueue()
    for size in (5, 6, 7):
        lane.begun(size, 100)
    assert lane.ended(5, 100, 130) == 30
    lane.begun(8, 140)
    assert lane.ended(6, 100, 150) == 20
    assert lane.left(0.0, 1.0, 150) == pytest.approx(15.0)
    assert lane.ended(7, 100, 190) == 40
    assert lane.ended(8, 140, 200) == 10
    assert lane.left(1.0, 1.0, 200) == 0.0
    lane.begun(9, 500)  # after a time in which nothing was under way
    assert lane.ended(9, 500, 507) == 7


def test_one_that_passes_others_had_the_lane_no_longer_than_it_was_there():
    lane = LaneQueue()
    lane.begun(50, 0)
    lane.begun(1, 90)
    assert lane.ended(1, 90, 95) == 5
    assert lane.ended(50, 0, 100) == 5
    assert lane.left(1.0, 1.0, 100) == 0.0


# ---------------------------------------------------------------- in an engine


def queued(
    load_us: float, *, aware: bool = True, policy: str = "cost", device: int = 60, **restore
) -> Bench:
    """Two prompts in L2 alone, and a cost model that believes that a page is loaded in `load_us`;
    loads are held from then on.
    """
    restore = {
        "policy": policy, "queue_aware": aware, "prior_host_gib_per_s": AS_LONG * 50 / load_us,
        **restore,
    }  # fmt: skip
    made = Bench(device, 2 * device, restore=restore)
    made.ask(0, OTHER)
    made.ask(500, PROMPT)
    made.ask(1000, range(FILLER, FILLER + device))
    line = made.engine.belief.copies["h2d"]
    made.at(1998, lambda: line.observe(1, load_us * 1e-6))
    made.at(1999, lambda: made.holding.add("h2d"))
    return made


def test_a_policy_is_told_only_where_the_option_is_set():
    for policy, kind in (("cost", CostPolicy), ("meet", MeetPolicy)):
        for aware in (False, True):
            chosen = queued(40.0, aware=aware, policy=policy).engine.policy
            assert isinstance(chosen, kind)
            assert (chosen._ahead is not None) == aware


@pytest.mark.parametrize("aware", [False, True])
def test_a_restore_behind_a_long_load_is_no_gain(aware: bool):
    made = queued(40.0, aware=aware)
    first, second = made.ask(2000, PROMPT), made.ask(2001, OTHER)
    made.run(2500)
    # 280 us of load save 350 us of computing; behind another such load they do not.
    assert len(made.copies("h2d")) == (1 if aware else 2)
    made.let("h2d")
    made.run()
    rows = made.rows()
    assert rows[first]["host_tokens"] == 7
    assert rows[second]["host_tokens"] == (0 if aware else 7)
    assert_at_rest(made.engine)


@pytest.mark.parametrize("aware", [False, True])
def test_a_load_is_free_while_another_prompt_is_computed(aware: bool):
    made = queued(60.0, aware=aware)
    made.ask(2000, LONG)
    number = made.ask(2000, PROMPT)
    made.at(2100, lambda: made.let("h2d"))
    made.run()
    # 420 us of load, against 350 us of computing: but 1,500 us are computed first.
    assert made.rows()[number]["host_tokens"] == (7 if aware else 0)
    assert_at_rest(made.engine)


def test_alone_it_chooses_as_without():
    for load_us in (30.0, 45.0, 47.0, 60.0):
        goals = []
        for aware in (False, True):
            made = queued(load_us, aware=aware)
            number = made.ask(2000, PROMPT)
            made.at(2100, lambda made=made: made.let("h2d"))
            made.run()
            goals.append(made.rows()[number]["host_tokens"])
        assert goals[0] == goals[1], load_us
    # 1.1 * 7 * 45 us are less than 350 us, 1.1 * 7 * 47 us are not.


def test_as_much_is_loaded_as_comes_for_nothing():
    made = queued(500.0, policy="meet")
    made.ask(2000, LONG)  # 1,500 us
    number = made.ask(2000, PROMPT)
    made.at(2100, lambda: made.let("h2d"))
    made.run()
    assert made.rows()[number]["host_tokens"] == 3
    assert made.metrics.reasons[number] == "meet"
    assert_at_rest(made.engine)


def test_loads_that_are_gathered_are_in_front_too():
    made = queued(40.0, merge_loads=True)
    first, second = made.ask(2000, PROMPT), made.ask(2000, OTHER)
    made.at(2100, lambda: made.let("h2d"))
    made.run()
    rows = made.rows()
    assert (rows[first]["host_tokens"], rows[second]["host_tokens"]) == (7, 0)
    assert_at_rest(made.engine)


def test_what_is_asked_while_there_is_no_room_is_asked_again():
    """The choice that counts is the one of the moment in which it begins."""
    made = queued(40.0, device=200)
    made.ask(2000, OTHER)
    made.ask(2001, range(300, 490), output=3)  # with the one before it L1 is full
    number = made.ask(2002, PROMPT)
    asked: dict[int, int] = {}
    policy = made.engine.policy

    def listen(hits):
        choice = policy(hits)
        asked[int(made.env.now)] = choice.goal
        return choice

    made.engine.scheduler.admission.policy = listen
    made.at(2020, lambda: made.let("h2d"))
    made.run()
    goals = [goal for at_ns, goal in asked.items() if at_ns > 2001]
    assert goals[0] == 0
    assert goals[-1] == 7
    assert made.rows()[number]["host_tokens"] == 7
    assert_at_rest(made.engine)


@pytest.mark.parametrize("fails", [False, True])
def test_nothing_is_in_front_once_all_is_over(fails: bool):
    made = queued(40.0, layerwise=True)
    first = made.ask(2000, PROMPT)
    made.ask(2000, OTHER)
    made.at(2050, lambda: made.engine.abort(first))
    made.at(2100, lambda: made.release("h2d", fails=fails))
    made.at(2200, lambda: made.let("h2d"))
    made.run()
    ahead = made.engine.policy._ahead  # type: ignore[union-attr]
    assert tuple(ahead.waits()) == (0.0, 0.0, 0.0)
    assert ahead.tails == {}
    assert_at_rest(made.engine)


@pytest.mark.parametrize("aware", [False, True])
def test_a_copy_teaches_how_long_it_had_the_lane(aware: bool):
    """Two loads under way together: the second one waits for the first."""
    made = queued(5.0, aware=aware, policy="always")
    made.ask(2000, PROMPT)
    made.ask(2001, OTHER)
    made.run(2100)
    belief = made.engine.belief.copies["h2d"]
    first, second = made.lanes.held("h2d")
    made.lanes.release(first)
    made.run(2100 + 10**6)
    # 0.1 ms of 7 us each: the slope stays, and a fifth of what is above it is learned.
    made.lanes.release(second)
    made.run()
    assert belief.seen == 3
    (_, _), (_, early), (_, late) = belief._unlearned or belief._window
    assert early == pytest.approx(100e-9, abs=5e-9)
    assert late == pytest.approx(1e-3 if aware else 1e-3 + 100e-9, abs=5e-9)
