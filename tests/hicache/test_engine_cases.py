"""The engine, one behaviour at a time, on a machine that is steered by hand."""

from __future__ import annotations

import gc

import pytest
from adversarial_lanes import AdversarialLanes, Fate, in_turn, pages_of
from bench import FILLER, Bench
from engine_runs import assert_at_rest, counters_of, drain, rows_of
from naive_caches import InstantLanes
from simpy import Environment

from hicache.engine import Engine
from hicache.errors import InputError
from hicache.node import DEVICE, HOST
from hicache.operations import Decode, Prefill
from hicache.options import EngineOptions
from hicache.requests import Request

PROMPT = range(8)


# ---------------------------------------------------------------- restores


@pytest.mark.parametrize("overlap", [True, False])
def test_requests_for_one_prefix_wait_for_one_restore(overlap):
    bench = Bench(16, 64, restore={"overlap": overlap})
    start = bench.cool(PROMPT)
    for later in range(4):
        bench.ask(start + later, PROMPT)
    bench.holding = {"h2d"}
    bench.at(start + 500, lambda: bench.let("h2d"))
    bench.run()
    assert [copy.pages for copy in bench.copies("h2d")] == [7]
    assert bench.metrics.joined_restores == 3
    assert bench.metrics.restores == 1
    rows = bench.rows()[2:]
    assert [row["host_tokens"] for row in rows] == [7, 0, 0, 0]
    assert [row["device_tokens"] for row in rows] == [0, 7, 7, 7]
    assert_at_rest(bench.engine)


def test_when_the_restore_fails_the_next_one_tries_and_the_others_wait_for_it():
    bench = Bench(24, 64)
    start = bench.cool(PROMPT)
    for later in range(3):
        bench.ask(start + later, PROMPT)
    bench.holding = {"h2d"}
    bench.at(start + 100, lambda: bench.release("h2d", fails=True))
    bench.at(start + 300, lambda: bench.let("h2d"))
    bench.run()
    assert len(bench.copies("h2d")) == 2
    assert bench.metrics.restore_fallbacks == 1
    assert bench.metrics.directions["h2d"].failed == 1
    assert bench.metrics.joined_restores >= 2
    assert [row["generated_tokens"] for row in bench.rows()] == [1] * 5
    assert bench.rows()[2]["computed_tokens"] == 8
    assert_at_rest(bench.engine)


def test_pages_on_their_way_into_l1_are_never_handed_out():
    bench = Bench(16, 64)
    start = bench.cool(PROMPT)
    bench.ask(start, PROMPT)
    bench.holding = {"h2d"}
    bench.run(start + 100)
    (copy,) = bench.copies("h2d")
    arriving = set(pages_of(copy.target))
    bench.tree.evict(DEVICE, 1000)
    bench.tree.evict(HOST, 1000)
    free = bench.tree.tiers[DEVICE].allocator.free
    pages = bench.tree.take(DEVICE, free)
    assert pages is not None
    assert bench.tree.take(DEVICE, 1) is None
    assert not arriving & set(pages_of(pages))
    bench.engine.check_integrity()
    assert bench.hits(PROMPT)[:2] == (0, 8 - 1)  # its source is pinned, too
    bench.tree.give(DEVICE, pages, free)
    bench.let("h2d")
    bench.run()
    assert bench.rows()[2]["host_tokens"] == 7
    assert_at_rest(bench.engine)


def storage_bench(*times: int, **options) -> Bench:
    bench = Bench(12, 12, 64, cache={"write_backlog_fraction": 1.0}, **options)
    bench.cool(PROMPT)
    for at_ns in times:
        bench.ask(at_ns, PROMPT)
    bench.run(1900)
    assert bench.hits(PROMPT) == (0, 0, 8)
    return bench


def test_a_restore_from_storage_passes_through_the_host():
    bench = storage_bench(2000).run()
    row = bench.rows()[2]
    assert (row["device_tokens"], row["host_tokens"], row["storage_tokens"]) == (0, 0, 7)
    assert bench.hits(PROMPT) == (8, 8, 8)
    assert bench.metrics.promoted_pages == 7
    assert [copy.pages for copy in bench.copies("s2h")] == [7]
    assert [copy.pages for copy in bench.copies("h2d")] == [7]
    assert_at_rest(bench.engine)


def test_what_was_read_from_storage_stays_in_the_host_when_the_load_fails():
    bench = storage_bench(2000)
    bench.failing = {"h2d"}
    bench.at(2500, lambda: None)
    bench.run(2400)
    row = bench.rows()[2]
    assert (row["computed_tokens"], row["storage_tokens"]) == (8, 0)
    assert bench.metrics.promoted_pages == 7
    assert bench.metrics.restore_fallbacks == 1
    assert bench.hits(PROMPT)[1] >= 7
    assert bench.metrics.reasons[2] == "restore_failed"
    bench.run()
    assert_at_rest(bench.engine)


def test_a_failed_read_from_storage_leaves_nothing_and_is_computed():
    bench = storage_bench(2000)
    bench.failing = {"s2h", "d2h"}
    bench.run()
    assert bench.rows()[2]["computed_tokens"] == 8
    assert bench.hits(PROMPT) == (8, 0, 8)
    assert bench.copies("h2d") == []
    assert bench.metrics.promoted_pages == 0
    assert_at_rest(bench.engine)


def test_without_overlap_no_gpu_step_begins_during_a_restore():
    for overlap in (True, False):
        bench = Bench(24, 64, restore={"overlap": overlap})
        start = bench.cool(PROMPT)
        bench.ask(start, [50, 51], output=12)
        bench.ask(start + 25, PROMPT)
        bench.holding = {"h2d"}
        bench.at(start + 90, lambda bench=bench: bench.let("h2d"))
        bench.run()
        (began,) = [
            place
            for place, (_, operation) in enumerate(bench.lanes.submitted)
            if operation in bench.copies("h2d")
        ]
        begun = [
            operation
            for pending, operation in bench.lanes.submitted[began:]
            if pending.submitted_ns < start + 90 and isinstance(operation, Prefill | Decode)
        ]
        assert bool(begun) == overlap
        assert (bench.metrics.restore_under_decode_ns > 20) == overlap
        assert_at_rest(bench.engine)


# ---------------------------------------------------------------- writes


def test_a_failed_write_is_not_published_and_is_counted():
    bench = Bench(16, 64, 64)
    bench.ask(0, PROMPT)
    bench.ask(1000, PROMPT)
    bench.failing = {"d2h"}
    bench.run(500)
    assert bench.hits(PROMPT) == (8, 0, 0)
    assert bench.metrics.dropped_pages["transfer_failed"] == 8
    assert bench.metrics.directions["d2h"].failed == 1
    assert bench.copies("h2s") == []
    bench.failing = set()
    bench.run()  # the next request that ends there writes again
    assert bench.hits(PROMPT) == (8, 8, 8)
    assert_at_rest(bench.engine)


def test_nothing_is_published_before_its_copy_has_ended():
    bench = Bench(16, 64, 64, cache={"write_backlog_fraction": 1.0})
    bench.ask(0, PROMPT)
    bench.holding = {"d2h", "h2s"}
    bench.run(500)
    assert bench.hits(PROMPT) == (8, 0, 0)
    assert bench.engine.status()["pending_writes"] >= 1
    bench.release("d2h")
    bench.run(600)
    assert bench.hits(PROMPT) == (8, 8, 0)
    bench.release("h2s")
    bench.run()
    assert bench.hits(PROMPT) == (8, 8, 8)


def test_a_slow_disk_does_not_pin_the_host():
    bench = Bench(16, 40, 400, cache={"write_backlog_fraction": 0.25, "writes_in_flight": 1})
    for turn in range(12):
        bench.ask(1000 * turn, range(100 * turn, 100 * turn + 4))
    bench.holding = {"h2s"}
    most = 0

    def look() -> None:
        nonlocal most
        status = bench.engine.status()
        most = max(most, status["write_backlog_pages"])
        assert status["tiers"]["host"]["protected_pages"] <= 10 + 4

    for turn in range(12):
        bench.at(1000 * turn + 900, look)
    bench.at(12_000, lambda: bench.let("h2s"))
    bench.run()
    assert most == 8  # two of 4 pages fit under a quarter of 40
    assert bench.metrics.dropped_pages["write_backlog"] == 10 * 4
    assert bench.engine.status()["write_backlog_pages"] == 0
    assert_at_rest(bench.engine)


@pytest.mark.parametrize(
    ("tokens", "copied"), [(1000, [3, 9]), (6, [3, 6, 3]), (2, [3] * 4), (0, [3] * 4)]
)
def test_writes_that_wait_together_become_one_operation(tokens, copied):
    bench = Bench(30, 64, cache={"writes_in_flight": 1, "merge_writes_tokens": tokens})
    for turn in range(4):
        bench.ask(100 * turn, range(100 * turn, 100 * turn + 3))
    bench.holding = {"d2h"}
    bench.at(1000, lambda: bench.let("d2h"))
    bench.run()
    assert [copy.pages for copy in bench.copies("d2h")] == copied
    assert bench.metrics.merged_writes == 4 - len(copied)
    for turn in range(4):
        assert bench.hits(range(100 * turn, 100 * turn + 3)) == (3, 3, 0)
    assert_at_rest(bench.engine)


def test_writes_that_were_joined_fail_together():
    bench = Bench(30, 64, cache={"writes_in_flight": 1})
    for turn in range(4):
        bench.ask(100 * turn, range(100 * turn, 100 * turn + 3))
    bench.holding = {"d2h"}
    bench.at(1000, lambda: bench.release("d2h"))
    bench.at(1100, lambda: bench.release("d2h", fails=True))
    bench.run()
    assert bench.metrics.dropped_pages["transfer_failed"] == 9
    assert bench.hits(range(3)) == (3, 3, 0)
    assert bench.hits(range(100, 103)) == (3, 0, 0)
    assert_at_rest(bench.engine)


def test_a_write_behind_one_that_failed_is_not_published():
    """The second request's pages stand behind the first one's, whose copy is still under way."""
    bench = Bench(30, 64)
    bench.ask(0, range(4))
    bench.ask(100, range(8))
    bench.holding = {"d2h"}
    bench.run(500)
    first, second = bench.lanes.held("d2h")
    bench.lanes.release(second)  # its own bytes have arrived
    bench.run(600)
    assert bench.hits(range(8)) == (8, 0, 0)
    bench.lanes.release(first, fails=True)
    bench.run()
    assert bench.hits(range(8)) == (8, 0, 0)
    assert bench.metrics.dropped_pages["transfer_failed"] == 8
    assert_at_rest(bench.engine)


@pytest.mark.parametrize("write_at", ["finish", "prefill"])
def test_when_a_prompt_is_written(write_at):
    bench = Bench(30, 64, cache={"write_at": write_at})
    bench.ask(0, PROMPT, output=10)
    bench.run(60)
    assert len(bench.copies("d2h")) == (write_at == "prefill")
    bench.run()
    assert bench.hits(PROMPT) == (8, 8, 0)


# ---------------------------------------------------------------- the GPU and its memory


def test_long_prompts_are_computed_in_chunks():
    bench = Bench(64, scheduler={"chunk_tokens": 5})
    bench.ask(0, range(8))
    bench.ask(0, range(100, 104))
    bench.run()
    chunks = [tuple(chunk) for step in bench.steps() for chunk in step.chunks]
    assert chunks == [(0, 5, 0), (0, 3, 5), (1, 2, 0), (1, 2, 2)]
    assert [step.tokens for step in bench.steps()] == [5, 5, 2]


def test_with_mixed_chunks_decode_rides_along():
    for mixed in (False, True):
        bench = Bench(64, scheduler={"chunk_tokens": 2, "mixed_chunk": mixed})
        bench.ask(0, range(4), output=12)
        bench.ask(25, range(100, 108))
        bench.run()
        riders = [step.decode_batch for step in bench.steps() if isinstance(step, Prefill)]
        assert any(riders) == mixed
        assert [row["generated_tokens"] for row in bench.rows()] == [12, 1]


def test_an_arrival_ends_the_burst_at_its_next_step():
    bench = Bench(200)
    bench.ask(0, range(4), output=100)
    bench.ask(123, range(50, 54))
    bench.run()
    decode = [done for done in bench.steps() if isinstance(done, Decode)]
    assert decode[0].max_steps == 99
    # Steps end at 21, 31, ...; the one under way at 123 ends at 131, and its notice comes at 132.
    assert bench.rows()[1]["queue_ns"] <= 10
    assert bench.rows()[1]["ttft_ns"] <= 25


def test_when_memory_runs_out_the_newest_is_retracted_and_all_finish():
    bench = Bench(12, scheduler={"chunk_tokens": 100})
    for number in range(3):
        bench.ask(number, range(100 * number, 100 * number + 4), output=9)
    bench.run()
    rows = bench.rows()
    assert [row["generated_tokens"] for row in rows] == [9, 9, 9]
    assert rows[0]["retractions"] == 0
    assert rows[2]["retractions"] > 0
    assert bench.metrics.retractions == sum(row["retractions"] for row in rows)
    assert rows[0]["e2e_ns"] < rows[2]["e2e_ns"]
    assert_at_rest(bench.engine)


def test_one_that_computed_what_another_restored_can_still_finish_alone():
    """Request 2 computes its prompt because its restore failed; request 3 meanwhile restores the
    same pages. Then memory runs out: request 2 holds its own copies and pins the restored ones.
    """
    bench = Bench(15, 30, cache={"eviction_granularity": "page"}, scheduler={"chunk_tokens": 1})
    bench.ask(0, range(6))
    bench.ask(1000, range(FILLER, FILLER + 13))  # leaves two pages of the first
    bench.ask(2000, range(6), output=10)
    bench.ask(2020, range(6), output=10)
    bench.holding = {"h2d"}
    bench.at(2010, lambda: bench.release("h2d", fails=True))
    bench.at(2061, lambda: bench.let("h2d"))
    bench.run()
    assert [row["generated_tokens"] for row in bench.rows()] == [1, 1, 10, 10]
    assert_at_rest(bench.engine)


def test_after_a_retraction_no_more_is_taken_as_cached_than_the_prompt():
    """The prompt's last page is not full, and is cached; the output that stood in it is gone."""
    bench = Bench(6, page=4, cache={"pages": "partial", "hit_cap": "none"})
    for number, first in enumerate((0, 10, 20)):
        bench.requests.append(Request(number, 0, 6, 9, ((first, 2),), 2, 2))
    bench.run()
    assert bench.metrics.retractions
    chunks = [chunk for step in bench.steps() if isinstance(step, Prefill) for chunk in step.chunks]
    again = [chunk for chunk in chunks if chunk.past_tokens]
    assert again
    assert all(chunk.past_tokens <= 6 for chunk in again), again


def test_a_prompt_larger_than_l1_is_an_input_error_naming_it():
    bench = Bench(8)
    bench.ask(0, range(4))
    bench.ask(50, range(9))
    with pytest.raises(InputError, match=r"request 1\b.*9 tokens"):
        bench.run()


def test_an_output_that_l1_could_never_hold_is_an_input_error():
    bench = Bench(8)
    bench.ask(0, range(8), output=2)
    with pytest.raises(InputError, match=r"request 0\b"):
        bench.run()


def test_when_the_head_of_the_queue_goes_the_next_one_is_looked_at():
    """The head waits for room; the one behind it fits, and comes in as soon as the head is given
    up.
    """
    bench = Bench(16)
    bench.ask(0, range(8), output=5)
    bench.ask(1, range(100, 116))
    bench.ask(2, range(200, 202))
    bench.at(15, lambda: bench.engine.abort(1))
    bench.run()
    rows = bench.rows()
    assert rows[2]["ttft_ns"] < rows[0]["e2e_ns"]


def test_several_engines_live_in_one_environment():
    def requests(shift: int) -> list[Request]:
        return [
            Request(number, 7 * number, 6, 4, ((shift * number, 6),), 6, 6) for number in range(8)
        ]

    fates = [Fate(10), Fate(3), Fate(40), Fate(5, 2)]
    options = EngineOptions(1, 1, 24, 30, check_every_steps=1)
    alone = []
    for shift in (3, 5):
        env = Environment(0)
        engine = Engine(env, AdversarialLanes(env, in_turn(fates)), options)
        engine.serve(requests(shift))
        drain(env)
        alone.append(counters_of(engine))
    env = Environment(0)
    engines = [Engine(env, AdversarialLanes(env, in_turn(fates)), options) for _ in range(2)]
    for engine, shift in zip(engines, (3, 5), strict=True):
        engine.serve(requests(shift))
    drain(env)
    assert [counters_of(engine) for engine in engines] == alone


def test_what_the_belief_learns_from_a_run():
    """Recurring time only, and no prefill step under 16 tokens."""
    bench = Bench(64, 64)
    bench.ask(0, range(8))
    bench.ask(100, range(100, 116))
    bench.setup_ns = 4
    bench.run()
    belief = bench.engine.status()["belief"]
    assert belief["prefill"]["samples"] == 1
    assert belief["d2h"]["samples"] == 2
    # Took 10 ns and one until the notice; 4 of them will not recur.
    stats = bench.metrics.directions["d2h"]
    assert (stats.recurring_ns, stats.setup_ns) == (2 * (11 - 4), 8)
    # 8 and 16 bytes took 7 ns each: a level line through both.
    assert belief["d2h"]["fixed_seconds"] == pytest.approx(7e-9)
    assert belief["d2h"]["slope_seconds"] == pytest.approx(0, abs=1e-12)


# ---------------------------------------------------------------- aborts


TURNS = 1000
EACH_NS = 1000


class Giving:
    """Requests that are given up 1,000 times in one phase; each turn has EACH_NS."""

    def __init__(self, bench: Bench, first_turn_ns: int) -> None:
        self.bench = bench
        self.first = first_turn_ns
        self.victims: list[int] = []
        self.free: list[int] = []

    def give_up(self, turn: int, number: int, after_ns: int, expect) -> None:
        """Abort `number` some time into the turn, where `expect()` must hold."""
        at_ns = self.first + turn * EACH_NS + after_ns

        def act() -> None:
            assert expect(), f"request {number} is not where it should be"
            assert self.bench.engine.abort(number)
            assert not self.bench.engine.abort(number)

        self.bench.at(at_ns, act)
        self.victims.append(number)
        self.bench.at(at_ns + EACH_NS - after_ns - 1, self.look)

    def look(self) -> None:
        """At the end of a turn nothing is under way."""
        tiers = self.bench.tree.tiers
        self.free.append(tiers[DEVICE].allocator.free)
        assert tiers[DEVICE].allocator.free + tiers[DEVICE].resident == tiers[DEVICE].capacity

    def check(self) -> None:
        self.bench.run()
        assert_at_rest(self.bench.engine)
        assert len(set(self.free)) == 1, "pages got lost on the way"
        assert self.bench.metrics.aborted == TURNS == len(self.victims)
        rows = {row["request"]: row for row in self.bench.rows()}
        assert len(rows) == len(self.bench.requests)
        assert all(rows[number]["e2e_ns"] == -1 for number in self.victims)


def fillers(turn: int) -> range:
    """A prompt as large as L1 that is new in each turn."""
    return range(FILLER + 16 * turn, FILLER + 16 * turn + 16)


def running(bench: Bench, kind: type, number: int) -> bool:
    """Whether the GPU works on a step of `kind` that `number` takes part in."""
    for operation in bench.lanes.under_way.values():
        if isinstance(operation, Prefill) and kind is Prefill:
            return any(chunk.request == number for chunk in operation.chunks)
        if isinstance(operation, Decode) and kind is Decode:
            return number in operation.requests
    return False


def test_given_up_while_queued():
    bench = Bench(16, scheduler={"max_running_requests": 1})
    giving = Giving(bench, 0)
    for turn in range(TURNS):
        bench.ask(turn * EACH_NS, range(4), output=9)
        number = bench.ask(turn * EACH_NS + 5, range(6))
        giving.give_up(turn, number, 50, lambda: bench.engine.status()["waiting_requests"] == 1)
    giving.check()


@pytest.mark.parametrize("after_ns", [15, 25])
def test_given_up_while_prefilling(after_ns):
    bench = Bench(16, scheduler={"chunk_tokens": 2})
    giving = Giving(bench, 0)
    for turn in range(TURNS):
        number = bench.ask(turn * EACH_NS, range(6), output=9)
        giving.give_up(
            turn, number, after_ns, lambda number=number: running(bench, Prefill, number)
        )
    giving.check()


def test_given_up_while_decoding():
    bench = Bench(16)
    giving = Giving(bench, 0)
    for turn in range(TURNS):
        number = bench.ask(turn * EACH_NS, range(6), output=9)
        giving.give_up(turn, number, 45, lambda number=number: running(bench, Decode, number))
    giving.check()
    assert all(1 < row["generated_tokens"] < 9 for row in bench.rows())


@pytest.mark.parametrize("fails", [False, True])
def test_given_up_while_restoring(fails):
    bench = Bench(16, 64)
    bench.ask(0, PROMPT)
    giving = Giving(bench, EACH_NS)
    for turn in range(TURNS):
        now = (turn + 1) * EACH_NS
        bench.ask(now, fillers(turn))  # pushes the prompt out of L1
        number = bench.ask(now + 300, PROMPT, output=5)
        giving.give_up(
            turn,
            number,
            310,
            lambda: bench.engine.status()["pending_restores"] == 1,
        )
        bench.at(now + 400, lambda: bench.release("h2d", fails=fails))
    bench.holding = {"h2d"}
    giving.check()
    assert len(bench.copies("h2d")) == TURNS
    assert bench.metrics.directions["h2d"].failed == TURNS * fails


def test_given_up_while_waiting_for_the_restore_of_another():
    bench = Bench(16, 64)
    bench.ask(0, PROMPT)
    giving = Giving(bench, EACH_NS)
    for turn in range(TURNS):
        now = (turn + 1) * EACH_NS
        bench.ask(now, fillers(turn))
        bench.ask(now + 300, PROMPT, output=5)
        number = bench.ask(now + 305, PROMPT, output=5)
        joined = turn + 1
        giving.give_up(
            turn, number, 310, lambda joined=joined: bench.metrics.joined_restores == joined
        )
        bench.at(now + 400, lambda: bench.release("h2d"))
    bench.holding = {"h2d"}
    giving.check()
    assert bench.metrics.restores == TURNS


def test_given_up_before_it_came_or_after_it_ended_is_nothing():
    bench = Bench(16)
    number = bench.ask(100, range(4))
    bench.at(50, lambda: bench.engine.abort(number) and pytest.fail("not there yet"))
    bench.run()
    assert not bench.engine.abort(number)
    assert not bench.engine.abort(99)
    assert rows_of(bench.engine)[0]["generated_tokens"] == 1


def test_an_engine_that_is_dropped_in_the_middle_asks_for_nothing_more():
    """An interrupted run: what was under way is let go of, not gone on with."""
    bench = Bench(30, 64, cache={"writes_in_flight": 1, "merge_writes_tokens": 0})
    for turn in range(4):
        bench.ask(100 * turn, range(100 * turn, 100 * turn + 3))
    bench.holding = {"d2h"}
    bench.run(1000)
    bench.lanes.memory = None
    asked: list[str] = []  # holds on to nothing of the engine

    def fate(operation) -> Fate:
        asked.append(str(operation))
        return Fate(held=True)

    bench.lanes.fate = fate
    del bench
    gc.collect()
    assert asked == []


def test_untimed_requests_may_come_in_several_calls():
    env = Environment(0)
    engine = Engine(env, InstantLanes(env), EngineOptions(1, 1, 30))
    for number in range(3):
        engine.serve_untimed([Request(number, 0, 2, 4, ((0, 2),), 2, 2)])
    assert [row["device_tokens"] for row in rows_of(engine)] == [0, 1, 1]
    assert_at_rest(engine)


def test_what_is_computed_again_after_a_retraction_is_counted():
    bench = Bench(12, cache={"hit_cap": "none"})
    for number in range(3):
        bench.ask(number, range(100 * number, 100 * number + 4), output=9)
    bench.run()
    assert bench.metrics.retractions
    computed = sum(step.tokens for step in bench.steps() if isinstance(step, Prefill))
    assert bench.metrics.recomputed_tokens == computed - bench.metrics.computed_tokens
