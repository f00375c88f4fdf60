"""When loads from L2 begin and in how many copies (`restore.start`, `restore.merge_loads`)."""

from __future__ import annotations

import gc
from typing import Any

import pytest
from bench import Bench
from engine_runs import assert_at_rest

from hicache.errors import InputError
from hicache.loads import QueuedLoad
from hicache.operations import Copy, Operation, Prefill
from hicache.options import RestoreOptions

PROMPTS = [range(100 * place, 100 * place + 4) for place in range(3)]
START = 9000


def asked_again(device: int = 80, chunk_tokens: int = 8192, **restore: Any) -> Bench:
    """Three prompts that only L2 has, asked for at once while somebody decodes."""
    bench = Bench(device, 64, restore=restore, scheduler={"chunk_tokens": chunk_tokens})
    for place, prompt in enumerate(PROMPTS):
        bench.ask(1000 * place, prompt)
    bench.ask(5000, range(5000, 5000 + device))
    bench.ask(START - 100, range(900, 904), output=40)
    for prompt in PROMPTS:
        bench.ask(START, prompt, tail=1)
    bench.at(START - 1, lambda: bench.holding.add("h2d"))
    return bench


def since(bench: Bench, start_ns: int = START) -> list[Operation]:
    """What was submitted from a time on, but for writes."""
    return [
        operation
        for pending, operation in bench.lanes.submitted
        if pending.submitted_ns >= start_ns
        and not (isinstance(operation, Copy) and operation.direction != "h2d")
    ]


@pytest.mark.parametrize("start", ["admission", "prefill"])
@pytest.mark.parametrize(("merge", "copies"), [(False, [4, 4, 4]), (True, [12])])
def test_loads_that_begin_together_are_one_copy(start: str, merge: bool, copies: list[int]) -> None:
    bench = asked_again(start=start, merge_loads=merge)
    bench.run(START + 300)
    assert [copy.pages for copy in bench.copies("h2d")] == copies
    bench.let("h2d")
    bench.run()
    assert [row["host_tokens"] for row in bench.rows()[-3:]] == [4, 4, 4]
    assert bench.metrics.restores == 3
    assert bench.metrics.merged_loads == 3 - len(copies)
    assert_at_rest(bench.engine)


@pytest.mark.parametrize("layerwise", [False, True])
def test_a_load_that_begins_with_its_step_hides_under_no_decode(layerwise: bool) -> None:
    bench = asked_again(start="prefill", merge_loads=True, layerwise=layerwise)
    bench.run(START + 400)
    first, *rest = since(bench)
    assert isinstance(first, Copy)
    if layerwise:  # this machine's steps wait for no load; after it everybody may decode
        assert isinstance(rest[0], Prefill)
        assert (len(rest[0].chunks), rest[0].load >= 0) == (3, True)
    else:
        assert rest == []
    bench.let("h2d")
    bench.run()
    (step,) = [step for step in since(bench) if isinstance(step, Prefill)]
    assert [(chunk.past_tokens, chunk.new_tokens) for chunk in step.chunks] == [(4, 1)] * 3
    assert layerwise or bench.metrics.restore_under_decode_ns == 0
    assert_at_rest(bench.engine)


def test_a_load_that_begins_at_admission_hides_under_decode() -> None:
    bench = asked_again(merge_loads=True)
    bench.run(START + 50)
    assert any(not isinstance(each, Copy | Prefill) for each in since(bench)), "nobody decoded"
    bench.let("h2d")
    bench.run()
    assert bench.metrics.restore_under_decode_ns > 0


def test_merged_loads_are_prefilled_together_layer_by_layer() -> None:
    bench = asked_again(merge_loads=True, layerwise=True)
    bench.run(START + 50)
    (step,) = [step for step in since(bench) if isinstance(step, Prefill)]
    assert len(step.chunks) == 3
    assert step.load >= 0
    bench.let("h2d")
    bench.run()
    assert bench.metrics.restores == 3
    assert_at_rest(bench.engine)


@pytest.mark.parametrize("start", ["admission", "prefill"])
@pytest.mark.parametrize("layerwise", [False, True])
def test_loads_that_fail_together_are_computed(start: str, layerwise: bool) -> None:
    bench = asked_again(start=start, merge_loads=True, layerwise=layerwise)
    bench.at(START + 200, lambda: bench.release("h2d", fails=True))
    bench.run()
    assert [row["computed_tokens"] for row in bench.rows()[-3:]] == [5, 5, 5]
    assert bench.metrics.restore_fallbacks == 3
    assert bench.metrics.directions["h2d"].failed == 1
    assert_at_rest(bench.engine)


def test_what_does_not_fit_into_the_step_is_loaded_with_the_next() -> None:
    """A step of two tokens has room for two requests, which lack one token each."""
    bench = asked_again(start="prefill", merge_loads=True, chunk_tokens=2)
    bench.run(START + 300)
    assert [copy.pages for copy in bench.copies("h2d")] == [8]
    bench.let("h2d")
    bench.run()
    assert [copy.pages for copy in bench.copies("h2d")] == [8, 4]
    assert_at_rest(bench.engine)


def given_up() -> Bench:
    """The last of three requests is given up while its load waits for the second step."""
    bench = asked_again(start="prefill", merge_loads=True, chunk_tokens=2)
    last = bench.requests[-1].number
    bench.at(START + 100, lambda: bench.engine.abort(last))
    bench.at(START + 300, lambda: bench.let("h2d"))
    return bench.run()


def test_a_request_that_is_given_up_before_its_load_began_loads_nothing() -> None:
    bench = given_up()
    assert [copy.pages for copy in bench.copies("h2d")] == [8]
    assert bench.metrics.aborted == 1
    assert bench.metrics.restore_fallbacks == 0
    assert_at_rest(bench.engine)


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_a_load_that_nobody_gives_up_would_keep_its_pins(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(QueuedLoad, "give_up", lambda self: None)
    with pytest.raises(AssertionError):
        assert_at_rest(given_up().engine)
    gc.collect()  # what was left under way goes here, not in another test


def test_a_step_that_waits_for_others_computes_who_needs_no_load_too() -> None:
    """It fails with the load, and what needed none of it is computed again."""
    bench = asked_again(start="prefill", merge_loads=True, layerwise=True)
    bench.ask(START, range(800, 806))
    bench.at(START + 200, lambda: bench.release("h2d", fails=True))
    bench.run(START + 100)
    (step,) = [step for step in since(bench) if isinstance(step, Prefill)]
    assert sorted(chunk.new_tokens for chunk in step.chunks) == [1, 1, 1, 6]
    bench.run()
    assert [row["computed_tokens"] for row in bench.rows()[-4:]] == [5, 5, 5, 6]
    assert_at_rest(bench.engine)


def test_an_engine_that_waits_for_restores_cannot_begin_them_later() -> None:
    with pytest.raises(InputError, match=r"restore\.start is prefill and restore\.overlap false"):
        RestoreOptions(start="prefill", overlap=False)
