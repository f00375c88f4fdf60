"""Layer-wise restores: a request is prefilled while its pages come, and what comes of that counts
only once they are there.
"""

from __future__ import annotations

from random import Random

import pytest
from adversarial_lanes import Fate
from bench import Bench
from engine_runs import Run, assert_at_rest, assert_good
from small_workloads import random_workload

from hicache.errors import InputError
from hicache.operations import Copy, Prefill
from hicache.options import RestoreOptions

PROMPT, OTHER = range(8), range(100, 108)


def bench(device: int = 24, *asked: range, **options) -> tuple[Bench, int]:
    """A bench with the prompts in L2, which are asked for again, and whose loads are held."""
    made = Bench(device, 64, restore={"layerwise": True}, **options)
    start = max(made.cool(each) for each in asked)
    for each in asked:
        made.ask(start, each, output=3)
    made.at(start - 1, lambda: made.holding.add("h2d"))
    return made, start


def early(made: Bench, since_ns: int) -> list[Prefill]:
    """The prefills that named a load, from a time on."""
    return [each for each in made.steps(since_ns) if isinstance(each, Prefill) and each.load >= 0]


def loads(made: Bench, since_ns: int) -> list[int]:
    """Numbers of the copies into L1 from a time on."""
    return [
        pending.number
        for pending, operation in made.lanes.submitted
        if isinstance(operation, Copy) and operation.direction == "h2d"
        if pending.submitted_ns >= since_ns
    ]


def test_a_request_is_prefilled_at_once_and_names_its_load():
    made, start = bench(24, PROMPT)
    made.run(start + 1)
    (step,) = early(made, start)
    assert [step.load] == loads(made, start)
    assert [(chunk.past_tokens, chunk.new_tokens) for chunk in step.chunks] == [(7, 1)]
    made.let("h2d")
    made.run()
    assert made.metrics.restores == 1
    assert made.rows()[-1]["host_tokens"] == 7
    assert_at_rest(made.engine)


def test_nothing_is_published_and_no_token_is_made_before_the_load_has_ended():
    made, start = bench(24, PROMPT)
    made.run(start + 500)  # the prefill is long over
    assert made.hits(PROMPT)[0] < 7
    assert len(made.rows()) == 2
    made.let("h2d")
    made.run()
    assert made.rows()[-1]["ttft_ns"] > 500
    assert made.hits(PROMPT)[0] == 8
    assert_at_rest(made.engine)


@pytest.mark.parametrize("after_ns", [1, 500], ids=["during the prefill", "after it"])
def test_where_the_load_fails_all_is_computed_and_nothing_of_it_published(after_ns):
    made, start = bench(24, PROMPT)
    made.at(start + after_ns, lambda: made.release("h2d", fails=True))
    made.run()
    assert [each.chunks[0].past_tokens for each in made.steps(start) if isinstance(each, Prefill)] \
        == [7, 0]  # fmt: skip
    assert made.rows()[-1]["computed_tokens"] == 8
    assert made.metrics.restore_fallbacks == 1
    assert made.metrics.reasons[-1] == "restore_failed"
    assert_at_rest(made.engine)


@pytest.mark.parametrize("chunk_tokens", [1, 2])
def test_a_load_may_end_or_fail_between_two_chunks(chunk_tokens):
    for fails in (False, True):
        made = Bench(24, 64, restore={"layerwise": True}, scheduler={"chunk_tokens": chunk_tokens})
        start = made.cool(PROMPT)
        made.ask(start, [*PROMPT, *OTHER], output=2)
        made.at(start - 1, lambda made=made: made.holding.add("h2d"))
        made.at(start + 25, lambda made=made, fails=fails: made.release("h2d", fails=fails))
        made.run()
        assert 2 <= len(early(made, start)) <= 4
        row = made.rows()[-1]
        assert (row["host_tokens"], row["computed_tokens"]) == ((0, 16) if fails else (8, 8))
        assert_at_rest(made.engine)


def test_a_prefill_that_failed_with_its_load_is_done_again():
    made, start = bench(24, PROMPT)
    dealt = made.fate
    made.lanes.fate = lambda each: (
        Fate(10, fails=True) if isinstance(each, Prefill) and each.load >= 0 else dealt(each)
    )
    made.at(start + 300, lambda: made.release("h2d", fails=True))
    made.run()
    assert made.rows()[-1]["generated_tokens"] == 3
    assert made.rows()[-1]["computed_tokens"] == 8
    assert_at_rest(made.engine)


def test_a_load_behind_another_one_does_not_hold_the_gpu_up():
    made, start = bench(40, PROMPT, OTHER)
    made.run(start + 500)
    first, second = loads(made, start)
    assert [each.load for each in early(made, start)] == [first]
    made.lanes.release(first)
    made.run(start + 550)
    assert [each.load for each in early(made, start)] == [first, second]
    made.let("h2d")
    made.run()
    assert_at_rest(made.engine)


def test_others_do_not_share_a_step_with_one_that_waits():
    made, start = bench(40, PROMPT)
    made.ask(start, OTHER)
    made.ask(start, range(200, 208))
    made.at(start + 400, lambda: made.let("h2d"))
    made.run()
    first, second = (each for each in made.steps(start) if isinstance(each, Prefill))
    assert first.load >= 0
    assert len(first.chunks) == 1
    assert (second.load, len(second.chunks)) == (-1, 2)
    assert_at_rest(made.engine)


@pytest.mark.parametrize("abort_ns", [1, 5, 100], ids=["at once", "during its step", "after it"])
@pytest.mark.parametrize("fails", [False, True])
def test_an_aborted_request_keeps_its_pages_until_the_load_has_ended(abort_ns, fails):
    made, start = bench(24, PROMPT)
    number = len(made.requests) - 1
    made.at(start + abort_ns, lambda: made.engine.abort(number))
    made.run(start + 300)
    tier = made.engine.status()["tiers"]["device"]
    assert tier["private_or_arriving_pages"] >= 7
    made.release("h2d", fails=fails)
    made.run()
    assert made.metrics.reasons[-1] == "aborted"
    assert_at_rest(made.engine)


def test_time_spent_waiting_for_pages_teaches_nothing_about_computing():
    made, start = bench(24, PROMPT)
    made.run(start - 1)
    seen = made.engine.belief.prefill.seen
    made.at(start + 1000, lambda: made.let("h2d"))
    made.run()
    assert len(early(made, start)) == 1
    assert made.engine.belief.prefill.seen == seen


def test_an_engine_that_waits_for_restores_cannot_prefill_meanwhile():
    with pytest.raises(InputError, match=r"restore\.layerwise is true and restore\.overlap false"):
        RestoreOptions(layerwise=True, overlap=False)


def test_all_this_happens_in_runs_of_random_workloads():
    """Otherwise the random runs of the other tests show less than they say."""
    named = failed = fallbacks = aborted = 0
    for seed in range(500):
        workload = random_workload(Random(seed), most_calls=25)
        if not workload.options.restore.layerwise:
            continue
        run = Run(workload)
        assert_good(run)
        for pending, operation in run.lanes.submitted:
            if isinstance(operation, Prefill) and operation.load >= 0:
                named += 1
                failed += not pending.ok
        fallbacks += run.engine.metrics.restore_fallbacks
        aborted += run.engine.metrics.aborted
    assert min(named, failed, fallbacks, aborted) > 5, (named, failed, fallbacks, aborted)
