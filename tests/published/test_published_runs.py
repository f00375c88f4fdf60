"""The engine replays the published mini-HiCache runs: predictions against published numbers.

Inputs must come back as they went in; what was held out must meet the golden numbers. No tolerance
here is wider than the golden file and its caveats allow.
"""

from __future__ import annotations

from itertools import permutations
from typing import Any

import msgspec
import pytest

from hicache.cost_model import SAFETY
from scenarios.reproduce import (
    GROUPS,
    LATENCY,
    PREFIX_TOKENS,
    PUBLISHED,
    THROUGHPUT,
    latency_run,
    published,
    throughput_run,
)
from sim.replay import replay

HIT_TOKENS = 349  # of a prompt of 350: the last token is always computed
# Of this run not all inputs are known: it read from another, perhaps slower, partition.
UNKNOWN_INPUT = ("a", "l3_always")


# ---------------------------------------------------------------------- latency


@pytest.mark.parametrize(("group", "tokens"), [("a", 2000), ("a", 3500), ("b", 3500)])
def test_l2_speedups_follow_from_the_inputs(latencies, group, tokens):
    known = published(group)["l2_speedup"][str(tokens)]
    assert latencies[group, tokens].speedup("l2") == pytest.approx(known, rel=1e-3)


def test_input_times_come_back(latencies):
    for tokens, restore_ms in published("a")["l2_restore_ms"].items():
        assert latencies["a", int(tokens)].median_ms["l2"] == pytest.approx(restore_ms, rel=1e-3)
    recompute_ms = published("b")["recompute_ms"]["3500"]
    assert latencies["b", 3500].median_ms["recompute"] == pytest.approx(recompute_ms, rel=1e-3)
    per_token_us = latencies["a", 3500].median_ms["recompute"] / 3.5
    known = published("a")["recompute_us_per_token_at_3500"]
    assert per_token_us == pytest.approx(known, rel=0.02)


def test_l2_speedup_of_a_short_prefix_on_b_was_held_out(latencies):
    known = published("b")["l2_speedup"]["350"]
    assert latencies["b", 350].speedup("l2") == pytest.approx(known, rel=0.05)


@pytest.mark.parametrize(("group", "tokens"), [("a", 2000), ("a", 3500), ("b", 3500)])
def test_l3_speedups_meet_the_held_out_rule(latencies, group, tokens):
    rule = PUBLISHED["held_out"]["l3_speedup"][f"group_{group}"][str(tokens)]
    assert latencies[group, tokens].speedup("l3") == pytest.approx(rule, rel=0.05)


def test_l3_speedups_beside_the_published_ones(latencies):
    known = PUBLISHED["held_out"]["published"]
    assert latencies["b", 3500].speedup("l3") == pytest.approx(known["group_b"]["3500"], rel=0.02)
    # The rule itself is 5 and 10 % under what was published of group A: S2H was faster there than
    # the 4.3 GiB/s given.
    for tokens, limit in ((2000, 0.07), (3500, 0.11)):
        speedup = latencies["a", tokens].speedup("l3")
        assert 1 < speedup < known["group_a"][str(tokens)]
        assert speedup == pytest.approx(known["group_a"][str(tokens)], rel=limit)


def test_l3_of_short_prefixes_on_a(latencies):
    words = published("a")["l3_speedup"]
    assert (words["350"], words["1000"]) == ("below 1", "just above 1")
    assert latencies["a", 350].speedup("l3") < 1
    assert 1 < latencies["a", 1000].speedup("l3") < 1.1


@pytest.mark.parametrize("group", GROUPS)
def test_the_tier_that_is_named_serves_every_counted_request(group):
    for tokens in PREFIX_TOKENS:
        for variant in LATENCY:
            columns = replay(latency_run(group, tokens, variant).scenario()).columns
            for tier, served in (("host", "l2"), ("storage", "l3"), ("device", "")):
                expected = tokens - 1 if variant == served else 0
                assert set(list(columns[f"{tier}_tokens"])[2:]) == {expected}
            assert set(columns["queue_ns"]) == {0}, "the writes were done before each request"


# ---------------------------------------------------------------------- the cost policy


def test_cost_turns_l3_down_on_a_after_a_few_probes(throughputs):
    run = throughputs["a", "l3_cost"]
    assert run.prompt_tokens == 33_600
    assert run.storage_tokens % HIT_TOKENS == 0
    assert run.storage_tokens <= 5 * HIT_TOKENS
    # The article had 2 hits. Here it is 4: the believed gain of the first is 3 % of the prefill.
    assert run.storage_tokens == 4 * HIT_TOKENS


def test_cost_turns_l3_down_because_it_believes_so():
    outcome = replay(throughput_run("a", "l3_cost").scenario())
    hits = list(outcome.columns["storage_tokens"])
    last_hit = max(number for number, tokens in enumerate(hits) if tokens)
    assert last_hit < 16, "while warming up"
    assert set(list(outcome.columns["reason"])[last_hit + 1 :]) == {"recompute_cheaper"}
    belief: Any = outcome.summary["belief"]
    size_bytes = HIT_TOKENS * PUBLISHED["kv_geometry"]["bytes_per_token"]
    restore_s = sum(
        belief[name]["fixed_seconds"] + size_bytes * belief[name]["slope_seconds"]
        for name in ("s2h", "h2d")
    )
    recompute_s = (
        belief["prefill"]["fixed_seconds"] + HIT_TOKENS * belief["prefill"]["slope_seconds"]
    )
    assert restore_s < recompute_s < SAFETY * restore_s
    assert belief["s2h"]["samples"] == belief["h2d"]["samples"] == 4


def test_cost_takes_l3_on_b(throughputs):
    run = throughputs["b", "l3_cost"]
    assert run.prompt_tokens == 28_000
    assert run.storage_tokens == published("b")["l3_cost_hit_tokens"] == 80 * HIT_TOKENS
    assert run.prompt_tokens - run.storage_tokens == published("b")["l3_cost_recomputed_tokens"]


# ---------------------------------------------------------------------- throughput


@pytest.mark.parametrize("group", GROUPS)
def test_variants_come_in_the_published_order(throughputs, group):
    rates = published(group)["throughput_req_s"]
    order = sorted(rates, key=rates.__getitem__, reverse=True)
    predicted = [throughputs[group, variant].predicted for variant in order]
    assert predicted == sorted(predicted, reverse=True)
    for fast, slow, one, other in zip(order, order[1:], predicted, predicted[1:], strict=False):
        # On B both restore every request; the article has them 2 % apart.
        assert one > other or {fast, slow} == {"l3_cost", "l3_always"}


@pytest.mark.parametrize("group", GROUPS)
def test_ratios_within_a_quarter_where_all_inputs_are_known(throughputs, group):
    variants = [each for each in THROUGHPUT if (group, each) != UNKNOWN_INPUT]
    for one, other in permutations(variants, 2):
        first, second = throughputs[group, one], throughputs[group, other]
        ratio = first.predicted / second.predicted
        assert ratio == pytest.approx(first.published / second.published, rel=0.25)


def test_always_on_a_is_what_the_given_inputs_say(throughputs):
    """The golden file's caveat: 36.9 against 39.2, not the 19.33 of the other partition."""
    always = throughputs[UNKNOWN_INPUT]
    assert "36.9 against 39.2" in PUBLISHED["caveat"]
    assert always.predicted == pytest.approx(36.9, rel=0.02)
    assert always.predicted_ratio == pytest.approx(36.9 / 39.2, rel=0.25)
    assert always.predicted_ratio < 1


# ---------------------------------------------------------------------- the engine's books


@pytest.mark.parametrize("group", GROUPS)
@pytest.mark.parametrize("variant", THROUGHPUT)
def test_runs_keep_every_invariant_also_with_named_pages(group, variant):
    scenario = throughput_run(group, variant).scenario()
    books = msgspec.structs.replace(scenario.engine, page_ids="named", check_every_steps=1)
    checked = replay(msgspec.structs.replace(scenario, engine=books))
    plain = replay(scenario)
    assert {name: list(rows) for name, rows in checked.columns.items()} == {
        name: list(rows) for name, rows in plain.columns.items()
    }
