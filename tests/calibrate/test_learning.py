"""What is learned is measured against a truth that the test knows."""

from __future__ import annotations

from pathlib import Path

import pytest
from by_hand import H200_BY_HAND
from made_up_runs import machine_in, scenario_of, trace_in

from calibrate.learning import Hit, OraclePolicy, Truth, draw, learn, settled
from calibrate.validate.runs import play
from scenario.profile import load_profile


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("learning")
    trace_in(place)
    return place


def test_the_truth_is_that_of_the_profile(folder: Path) -> None:
    scenario = scenario_of(folder / "trace.jsonl", H200_BY_HAND)
    fast = Truth(scenario, load_profile(H200_BY_HAND))
    slow = Truth(scenario, load_profile(machine_in(folder, "slow", slower=2.0, disk=0.05)))
    hit = Hit(device=0, host=20, storage=40, prompt_tokens=3000)
    assert fast.gain_ns(hit, 0) == 0
    assert slow.gain_ns(hit, 20) > fast.gain_ns(hit, 20) > 0
    assert slow.copy_ns("s2h", 40) > 10 * fast.copy_ns("s2h", 40)
    assert slow.copy_ns("h2d", 40) == fast.copy_ns("h2d", 40)
    # On a disk a twentieth as fast what L3 alone holds is computed.
    assert slow.best_goal(hit) == 20
    # A prompt in two chunks costs both.
    assert fast.prefill_ns(hit, 0) > fast.prefill_ns(hit, 1000) > fast.prefill_ns(hit, 2999) > 0


def test_a_policy_that_knows_the_truth_makes_no_wrong_choice(folder: Path) -> None:
    scenario = scenario_of(folder / "trace.jsonl", H200_BY_HAND, restore__policy="cost")
    truth = Truth(scenario, load_profile(H200_BY_HAND))
    oracle = play(scenario, "oracle", policy_of=lambda engine, _own: OraclePolicy(engine, truth))
    prompts = dict(zip(oracle.columns["request"], oracle.columns["prompt_tokens"], strict=True))
    assert len(oracle.asked) > 10
    for each in oracle.asked:
        hit = Hit(each.device, each.host, each.storage, prompts[each.request])
        goals = (each.device, each.host, each.storage)
        assert truth.gain_ns(hit, each.goal) == max(truth.gain_ns(hit, goal) for goal in goals)


def test_a_wrong_prior_is_a_wrong_choice_until_samples_correct_it(folder: Path) -> None:
    """L3 is believed to be a thousand times as fast as it is."""
    machine = machine_in(folder, "dead-slow", disk=0.02)
    scenario = scenario_of(
        folder / "trace.jsonl", machine, restore__policy="cost",
        restore__prior_storage_gib_per_s=40.0,
    )  # fmt: skip
    found = learn(scenario, "wrong prior")
    table = found.table
    wrong = table[~table["right"]]
    assert len(wrong) >= 1
    assert set(wrong["from"]) == {"L3"}
    assert (wrong["regret_ms"] > 0).all()
    assert (table[table["right"]]["regret_ms"] == 0).all()
    assert table["s2h_believed_ms"].iloc[0] < table["s2h_true_ms"].iloc[0] / 10
    summary = found.summary()
    assert summary["decisions"] == len(table)
    assert summary["right_choices"] == len(table) - len(wrong)
    assert summary["settled_at_decision"] > int(wrong.index[0])
    assert summary["samples_until_settled"]["s2h"] >= 1
    assert summary["regret_of_decisions_ms"] == pytest.approx(table["regret_ms"].sum())
    assert summary["regret_ttft_mean_ms"] > 0
    assert [axes.get_ylabel() for axes in draw(found).axes] == [
        "believed / true", "ms of GPU or link time"
    ]  # fmt: skip


def test_a_probe_is_no_wrong_choice_but_costs(folder: Path) -> None:
    machine = machine_in(folder, "probed", disk=0.02)
    scenario = scenario_of(
        folder / "trace.jsonl", machine, restore__policy="cost", restore__probe_every=1,
        restore__prior_storage_gib_per_s=0.05,
    )  # fmt: skip
    table = learn(scenario, "probes").table
    probes = table[table["reason"] == "probe"]
    assert len(probes) >= 1
    assert probes["right"].all()
    assert (probes["regret_ms"] > 0).any()


@pytest.mark.parametrize(
    ("right", "at"),
    [
        ([], None),
        ([True] * 5, 0),
        ([False] * 5, None),
        ([False, False, True, True], 2),
        ([True, True, False], None),
        ([False] * 10 + [True] * 30, 10),
        ([True] * 10 + [False] + [True] * 30, 0),
        ([True] * 10 + [False] * 2 + [True] * 30, 12),
    ],
)
def test_settled_is_where_at_most_one_in_twenty_is_wrong(right: list[bool], at: int | None) -> None:
    assert settled(right) == at
