"""The estimates behind the policy `meet`: by hand, and the best goal against all of them."""

from __future__ import annotations

from dataclasses import replace

import pytest
from examples import examples
from hypothesis import given
from hypothesis import strategies as st

from hicache.cost_model import CostModel
from hicache.node import Node
from hicache.options import RestoreOptions
from hicache.outlook import NO_WAITS, Outlook, Waits
from hicache.restore_policy import make_policy
from hicache.tree import Match

PAGE, BYTES = 10, 1000  # a page is 10,000 bytes
LAYERWISE = RestoreOptions(policy="meet", layerwise=True)


def hits(device: int, host: int, storage: int, tokens: int) -> Match:
    deepest = max(device, host, storage)
    return Match(Node(0, 1, None, 0, 0), deepest, device, host, storage, tokens)


def believes(
    compute: tuple[float, float] = (0.0, 0.01),
    load: tuple[float, float] = (0.0, 0.001),
    read: tuple[float, float] = (0.0, 0.002),
) -> CostModel:
    """(fixed seconds, seconds a token) of computing, of a load and of a read."""
    belief = CostModel(RestoreOptions(), BYTES)
    for line, (fixed, slope), unit in (
        (belief.prefill, compute, 1), (belief.copies["h2d"], load, BYTES),
        (belief.copies["s2h"], read, BYTES),
    ):  # fmt: skip
        for tokens in (0, 10_000):
            line.observe(tokens * unit, fixed + tokens * slope)
        assert line.estimate(5000 * unit) == pytest.approx(fixed + 5000 * slope)
    return belief


def outlook(
    belief: CostModel, match: Match, waits: Waits = NO_WAITS, chunk: int = 10**9, **restore
) -> Outlook:
    made = Outlook(replace(LAYERWISE, **restore), PAGE, chunk, belief)
    made.look(match, waits)
    return made


def test_a_page_costs_as_much_to_load_as_to_compute_where_both_end_together():
    # 1,000 tokens in L2 and 5 behind them. A load of 0.01 s a token beside computing at the same
    # pace: half of it each.
    made = outlook(believes(load=(0.0, 0.01)), hits(0, 100, 0, 1005))
    assert made.seconds(100) == pytest.approx(10.0)
    assert made.seconds(0) == pytest.approx(10.05)
    assert made.best_goal() == 50
    assert made.seconds(50) == pytest.approx(5.05)


def test_a_fast_link_leaves_little_to_compute_and_a_slow_one_much():
    fast = outlook(believes(load=(0.0, 0.0002)), hits(0, 100, 0, 1001))
    slow = outlook(believes(load=(0.0, 0.09)), hits(0, 100, 0, 1001))
    assert fast.best_goal() == 99  # 49 tokens for each that is computed
    assert slow.best_goal() == 10
    assert slow.seconds(10) == pytest.approx(9.01)


def test_what_l1_holds_is_neither_loaded_nor_computed():
    made = outlook(believes(load=(0.0, 0.01)), hits(40, 100, 0, 1005))
    assert made.best_goal() == 70
    assert made.seconds(70) == pytest.approx(3.05)
    assert made.seconds(40) == pytest.approx(6.05)


def test_without_layerwise_all_or_nothing_is_best():
    for slope, goal in ((0.009, 100), (0.011, 0)):
        match = hits(0, 100, 0, 1010)
        made = outlook(believes(load=(0.0, slope)), match, layerwise=False)
        assert made.best_goal() == goal
        assert made.seconds(50) == pytest.approx(500 * slope + 5.1)


def test_only_the_first_chunk_goes_beside_the_load():
    # The load has 200 tokens to hide behind, whatever is computed later.
    made = outlook(believes(load=(0.0, 0.008)), hits(0, 100, 0, 2010), chunk=200)
    assert made.seconds(50) == pytest.approx(4.0 + 13.1)
    assert made.seconds(10) == pytest.approx(2.0 + 17.1)
    assert made.best_goal() == 100
    slower = outlook(believes(load=(0.0, 0.02)), hits(0, 100, 0, 2010), chunk=200)
    assert slower.best_goal() == 10  # 100 tokens, as long as the chunk takes


def test_a_read_comes_first_and_hides_behind_nothing():
    belief = believes(load=(0.0, 0.001), read=(0.0, 0.002))
    made = outlook(belief, hits(0, 50, 100, 1001))
    assert made.seconds(50) == pytest.approx(5.01)
    assert made.seconds(100) == pytest.approx(1.0 + 1.0)
    # From 91 on, what is loaded takes longer than what is computed.
    assert made.best_goal() == 91
    assert made.seconds(91) == pytest.approx(0.82 + 0.91)
    dear = outlook(believes(load=(0.0, 0.001), read=(0.0, 0.011)), hits(0, 50, 100, 1001))
    assert dear.best_goal() == 50


def test_a_gpu_that_is_busy_makes_a_load_free():
    belief, match = believes(load=(0.0, 0.02)), hits(0, 100, 0, 1005)
    busy = Waits(gpu=6.0)
    plain = outlook(belief, match, busy, layerwise=False)
    assert plain.best_goal() == 30  # as much as comes in these 6 s
    assert plain.seconds(30) == pytest.approx(6.0 + 7.05)
    assert outlook(belief, match, busy).best_goal() == 53  # and more, layer by layer
    assert outlook(belief, match, Waits(gpu=30.0)).best_goal() == 100


def test_a_load_that_waits_behind_others_is_no_gain():
    belief, match = believes(load=(0.0, 0.001)), hits(0, 100, 0, 1005)
    assert outlook(belief, match).best_goal() == 92
    assert outlook(belief, match, Waits(link=20.0)).best_goal() == 0
    assert outlook(belief, match, Waits(link=4.0)).best_goal() == 92  # later, but all of it
    deep = hits(0, 0, 100, 1010)
    assert outlook(belief, deep).best_goal() > 0
    assert outlook(belief, deep, Waits(read=20.0)).best_goal() == 0


def test_a_load_that_begins_with_its_step_waits_for_no_link_but_for_the_gpu():
    belief, match = believes(load=(0.0, 0.01)), hits(0, 100, 0, 1005)
    waits = Waits(link=20.0, gpu=7.0)
    made = outlook(belief, match, waits, start="prefill")
    assert made.seconds(0) == pytest.approx(7.0 + 10.05)
    assert made.seconds(50) == pytest.approx(7.0 + 5.05)
    assert made.best_goal() == 50
    deep = outlook(belief, hits(0, 0, 100, 1005), waits, start="prefill")
    assert deep.seconds(50) == pytest.approx(7.0 + 5.05)  # its read is over by then


SECONDS = st.sampled_from([0.0, 0.001, 0.003, 0.02, 0.5])
LINES = st.tuples(SECONDS, SECONDS)
PAGES = st.integers(0, 60)
WAITS = st.builds(Waits, *[st.sampled_from([0.0, 0.0, 0.05, 0.7, 4.0, 90.0])] * 3)


@given(
    LINES, LINES, LINES, PAGES, PAGES, PAGES, st.integers(0, 500), WAITS,
    st.sampled_from([1, 30, 100, 8192]), st.booleans(), st.sampled_from(["admission", "prefill"]),
)  # fmt: skip
@examples(600)
def test_no_goal_is_better_by_the_estimate(
    compute, load, read, device, host, storage, behind, waits, chunk, layerwise, start
):
    tokens = max(device, host, storage) * PAGE + behind
    match = hits(device, host, storage, tokens)
    made = outlook(
        believes(compute, load, read), match, waits, chunk, layerwise=layerwise, start=start
    )
    chosen = made.best_goal()
    goals = range(device, max(device, host, storage) + 1)
    assert chosen in goals
    smallest = min(made.seconds(goal) for goal in goals)
    # The pieces are straight but for the rounding of floats.
    assert made.seconds(chosen) <= smallest * (1 + 1e-9)


# ---------------------------------------------------------------- the policy


def test_the_word_says_whether_all_was_restored():
    belief = believes(load=(0.0, 0.01))
    policy = make_policy(LAYERWISE, PAGE, belief)
    assert policy(hits(0, 100, 0, 1005)) == (50, "meet")
    assert policy(hits(0, 100, 0, 9999)) == (100, "cost")
    never = make_policy(LAYERWISE, PAGE, believes(load=(50.0, 0.01)))
    assert never(hits(0, 100, 0, 1010)) == (0, "recompute_cheaper")


def test_a_refusal_may_be_a_probe():
    policy = make_policy(replace(LAYERWISE, probe_every=3), PAGE, believes(load=(50.0, 0.01)))
    said = [policy(hits(2, 5, 7, 80)) for _ in range(3)]
    assert said == [(2, "recompute_cheaper")] * 2 + [(7, "probe")]
