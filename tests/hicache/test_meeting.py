"""Restores of a part of a hit: its head is loaded, its tail computed, and both are what they are
called; nothing is lost where one of them fails or nobody wants it any more.
"""

from __future__ import annotations

from random import Random

import pytest
from bench import Bench
from engine_runs import Run, assert_at_rest, assert_good
from small_workloads import random_workload

from hicache.operations import Prefill
from hicache.restore_policy import Choice
from hicache.tree import Match

PROMPT, BEHIND = range(8), range(50, 54)
# By default a token is believed to take 50 us to compute; here a page of one takes as long to load.
AS_LONG = 1 / (50e-6 * (1 << 30))


def meeting(device: int, host: int, storage: int = 0, load_us: float = 50.0, **options) -> Bench:
    """A bench whose prompt is in the tiers below L1, and whose cost model believes that a page is
    loaded in `load_us`.
    """
    restore = {
        "policy": "meet", "layerwise": True, "prior_host_gib_per_s": AS_LONG * 50 / load_us,
        "prior_storage_gib_per_s": AS_LONG * 100, **options.pop("restore", {}),
    }  # fmt: skip
    made = Bench(device, host, storage, restore=restore, **options)
    made.cool(PROMPT)
    made.at(1999, lambda: believe(made, load_us))
    return made


def believe(made: Bench, load_us: float) -> None:
    """Equal sizes leave the slope at its prior."""
    line = made.engine.belief.copies["h2d"]
    line.observe(1, load_us * 1e-6)
    assert (line.fixed, line.slope) == (pytest.approx(0.0), pytest.approx(load_us * 1e-6))


def chunks(made: Bench, since_ns: int = 2000) -> list[tuple[int, int]]:
    """(past, new) tokens of the chunks from a time on."""
    return [
        (chunk.past_tokens, chunk.new_tokens)
        for step in made.steps(since_ns)
        if isinstance(step, Prefill)
        for chunk in step.chunks
    ]


def test_the_head_is_loaded_and_the_tail_computed_meanwhile():
    made = meeting(24, 64)
    number = made.ask(2000, PROMPT)
    made.run()
    row = made.rows()[number]
    assert (row["host_tokens"], row["computed_tokens"]) == (4, 4)
    assert made.metrics.reasons[number] == "meet"
    assert [copy.pages for copy in made.copies("h2d")] == [4]
    assert chunks(made) == [(4, 4)]
    (step,) = (each for each in made.steps(2000) if isinstance(each, Prefill))
    assert step.load >= 0
    assert_at_rest(made.engine)


def test_what_was_computed_is_cached_in_l1_and_not_written_again():
    made = meeting(24, 64)
    made.ask(2000, PROMPT)
    made.run(1998)
    written = sum(copy.pages for copy in made.copies("d2h"))
    made.run()
    assert made.hits(PROMPT) == (8, 8, 0)
    assert sum(copy.pages for copy in made.copies("d2h")) == written
    assert made.metrics.restored_pages == 4
    assert_at_rest(made.engine)


@pytest.mark.parametrize(("load_us", "loaded"), [(5.0, 7), (26.0, 5), (150.0, 2), (500.0, 0)])
def test_the_slower_the_link_the_less_is_loaded(load_us: float, loaded: int):
    made = meeting(24, 64, load_us=load_us)
    number = made.ask(2000, PROMPT)
    made.run()
    assert made.rows()[number]["host_tokens"] == loaded
    assert made.rows()[number]["computed_tokens"] == 8 - loaded
    assert_at_rest(made.engine)


def test_what_stands_behind_the_hit_is_computed_too_and_so_more_is_loaded():
    made = meeting(24, 64)
    number = made.ask(2000, [*PROMPT, *BEHIND])
    made.run()
    assert made.rows()[number]["host_tokens"] == 6
    assert chunks(made) == [(6, 6)]
    assert_at_rest(made.engine)


def test_of_l3_only_what_is_loaded_is_read():
    made = meeting(12, 12, 64, cache={"write_backlog_fraction": 1.0})
    number = made.ask(2000, PROMPT)
    made.run(1998)
    assert made.hits(PROMPT) == (0, 0, 8)
    made.run(2100)
    row = made.rows()[number]
    assert (row["host_tokens"], row["storage_tokens"], row["computed_tokens"]) == (0, 4, 4)
    assert [copy.pages for copy in made.copies("s2h")] == [4]
    assert made.metrics.promoted_pages == 4
    made.run()
    assert_at_rest(made.engine)


@pytest.mark.parametrize(("load_us", "host", "storage"), [(49.0, 7, 0), (21.0, 8, 1)])
def test_what_a_store_held_is_told_from_what_l2_had(load_us: float, host: int, storage: int):
    made = meeting(24, 64, 64, prefetch={}, load_us=load_us)
    made.lanes.store.update(dict.fromkeys(BEHIND))
    number = made.ask(2000, [*PROMPT, *BEHIND, 99])
    made.run()
    assert made.metrics.prefetch_fulfilled_tokens == 4  # the last four of a hit of 12
    row = made.rows()[number]
    assert (row["host_tokens"], row["storage_tokens"]) == (host, storage)
    assert row["computed_tokens"] == 13 - host - storage
    assert_at_rest(made.engine)


@pytest.mark.parametrize("after_ns", [1, 500], ids=["during the prefill", "after it"])
def test_where_the_load_fails_all_is_computed(after_ns: int):
    made = meeting(24, 64)
    made.at(1999, lambda: made.holding.add("h2d"))
    number = made.ask(2000, PROMPT)
    made.at(2000 + after_ns, lambda: made.release("h2d", fails=True))
    made.run()
    assert chunks(made) == [(4, 4), (0, 8)]
    assert made.rows()[number]["computed_tokens"] == 8
    assert made.metrics.reasons[number] == "restore_failed"
    assert made.hits(PROMPT) == (8, 8, 0)
    assert_at_rest(made.engine)


@pytest.mark.parametrize("abort_ns", [1, 5, 100], ids=["at once", "during its step", "after it"])
@pytest.mark.parametrize("fails", [False, True])
def test_an_abort_keeps_the_pages_until_the_load_has_ended(abort_ns: int, fails: bool):
    made = meeting(24, 64)
    made.at(1999, lambda: made.holding.add("h2d"))
    number = made.ask(2000, PROMPT)
    made.at(2000 + abort_ns, lambda: made.engine.abort(number))
    made.run(2300)
    assert made.engine.status()["tiers"]["device"]["private_or_arriving_pages"] >= 4
    made.release("h2d", fails=fails)
    made.run()
    assert made.metrics.reasons[-1] == "aborted"
    assert made.hits(PROMPT) == ((4, 8, 0) if not fails else (0, 8, 0))
    assert_at_rest(made.engine)


def test_one_who_waits_for_the_load_asks_again_for_what_it_did_not_bring():
    made = meeting(40, 64)
    made.at(1999, lambda: made.holding.add("h2d"))
    first, second = made.ask(2000, PROMPT), made.ask(2000, [*PROMPT, *BEHIND])
    made.at(2200, lambda: made.let("h2d"))
    made.run()
    assert made.metrics.joined_restores == 1
    rows = made.rows()
    assert (rows[first]["host_tokens"], rows[first]["computed_tokens"]) == (4, 4)
    # By then the tail is computed: all of the prompt is a hit in L1.
    assert (rows[second]["device_tokens"], rows[second]["computed_tokens"]) == (8, 4)
    assert_at_rest(made.engine)


def test_without_layerwise_all_is_loaded_or_nothing():
    for load_us, loaded in ((49.0, 7), (51.0, 0)):
        made = meeting(24, 64, load_us=load_us, restore={"layerwise": False})
        number = made.ask(2000, PROMPT)
        made.run()
        assert made.rows()[number]["host_tokens"] == loaded
        assert_at_rest(made.engine)


class AnyPart:
    """Restores any part of a hit."""

    def __init__(self, seed: int) -> None:
        self._rng = Random(seed)
        self.parts = 0

    def __call__(self, hits: Match) -> Choice:
        deepest = max(hits.host, hits.storage)
        goal = self._rng.randint(hits.device, deepest)
        self.parts += hits.device < goal < deepest
        return Choice(goal, "any")


def test_any_part_of_a_hit_may_be_restored_in_any_run():
    """With failures, aborts, tiers that are short of room, layer-wise and not."""
    parts = failed = aborted = 0
    for seed in range(500):
        policy = AnyPart(seed)
        run = Run(random_workload(Random(seed), most_calls=25), policy=policy)
        assert_good(run)
        if policy.parts:
            parts += policy.parts
            failed += run.engine.metrics.restore_fallbacks
            aborted += run.engine.metrics.aborted
    assert parts > 200, parts
    assert min(failed, aborted) > 20, (failed, aborted)
