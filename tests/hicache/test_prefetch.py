"""L3 behind a store: what is asked, read, waited for, kept and given back, one behaviour a test."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
from bench import FILLER, Bench
from engine_runs import assert_at_rest, assert_prefetches_add_up

from hicache.errors import InputError
from hicache.node import HOST
from hicache.operations import Lookup
from hicache.options import EngineOptions, PrefetchOptions, StorageOptions
from hicache.prefetch_rules import allowed_ns, limit_tokens

GOLDEN = Path(__file__).resolve().parents[1] / "goldens" / "prefetch_timeout.json"
S = 1e-9  # options are in seconds, the bench in ns


def bench_with(
    stored: Iterable[int],
    device: int = 200,
    host: int = 40,
    page: int = 1,
    running: int = 256,
    **prefetch: Any,
) -> Bench:
    """A bench whose store holds some pages; what it is asked for has no limit."""
    options = {"limit_fraction": 1.0, **prefetch}
    scheduler = {"max_running_requests": running}
    bench = Bench(device, host, 1000, page=page, prefetch=options, scheduler=scheduler)
    bench.lanes.store.update(dict.fromkeys(stored))
    return bench


def busy(bench: Bench, output: int = 30) -> int:
    """A request that decodes for a while, so that those behind it wait; returns when it is over."""
    bench.ask(0, [FILLER], output)
    return 10 * output + 10


def lost(bench: Bench) -> dict[str, int]:
    return {why: n for why, n in bench.metrics.prefetch_unfulfilled_tokens.items() if n}


def lookups(bench: Bench) -> list[int]:
    return [op.pages for _, op in bench.lanes.submitted if isinstance(op, Lookup)]


def finished(bench: Bench) -> Bench:
    bench.run()
    assert_at_rest(bench.engine)
    return bench


# ---------------------------------------------------------------------- asking and reading


def test_what_the_store_holds_is_a_storage_hit() -> None:
    bench = bench_with(range(6))
    bench.ask(0, range(8))
    row = finished(bench).rows()[0]
    assert (row["device_tokens"], row["host_tokens"], row["storage_tokens"]) == (0, 0, 6)
    assert bench.metrics.prefetch_hit_tokens == bench.metrics.prefetch_fulfilled_tokens == 6
    assert [copy.keys for copy in bench.copies("s2h")] == [((0, 6),)]
    assert lookups(bench) == [7]  # the last token is always computed


def test_only_what_follows_the_hit_is_asked_for() -> None:
    bench = bench_with(range(100), device=12)
    bench.ask(bench.cool(range(4)), range(8))
    row = finished(bench).rows()[2]
    assert (row["host_tokens"], row["storage_tokens"]) == (4, 3)
    assert bench.copies("s2h")[-1].keys == ((4, 3),)


def test_questions_and_reads_go_in_batches_up_to_the_first_that_lacks_a_page() -> None:
    bench = bench_with(range(7), query_batch_pages=2, read_batch_pages=3)
    bench.ask(0, range(12))
    finished(bench)
    assert lookups(bench) == [2, 2, 2, 2]  # 11 may hit; the fourth question lacks page 7
    assert [copy.pages for copy in bench.copies("s2h")] == [3, 3, 1]
    assert bench.rows()[0]["storage_tokens"] == 7


def test_too_few_to_be_worth_a_read() -> None:
    bench = bench_with(range(3), threshold_tokens=4)
    bench.ask(0, range(8))
    bench.ask(1000, range(50, 54))  # not even worth a question
    finished(bench)
    assert lost(bench) == {"below_threshold": 3}
    assert lookups(bench) == [7]
    assert bench.copies("s2h") == []


def test_the_threshold_is_at_least_a_page() -> None:
    bench = bench_with((), page=4, threshold_tokens=0)
    bench.ask(0, [1], tail=3)
    bench.ask(100, [2, 3])
    finished(bench)
    assert lookups(bench) == [1, 1]
    assert lost(bench) == {}


def test_nothing_is_asked_for_behind_a_gap_in_l2() -> None:
    bench = bench_with(range(100), host=3)
    bench.ask(0, range(6))  # too long for L2: in L1 alone
    bench.lanes.store.clear()
    bench.lanes.store.update(dict.fromkeys(range(100)))
    bench.ask(1000, range(10))
    finished(bench)
    assert bench.metrics.prefetches == 1
    assert bench.rows()[1]["device_tokens"] >= 3


def test_a_question_that_fails_has_no_answer() -> None:
    bench = bench_with(range(8))
    usual = bench.lanes.fate
    bench.lanes.fate = lambda operation: usual(operation)._replace(
        fails=isinstance(operation, Lookup)
    )
    bench.ask(0, range(8))
    row = finished(bench).rows()[0]
    assert (row["computed_tokens"], bench.metrics.lookups_failed) == (8, 1)


def test_a_read_that_fails_keeps_what_came_before_it() -> None:
    bench = bench_with(range(8), read_batch_pages=3)
    bench.holding.add("s2h")
    bench.ask(0, range(8))
    bench.at(100, lambda: bench.release("s2h"))
    bench.at(200, lambda: bench.release("s2h", fails=True))
    row = finished(bench).rows()[0]
    assert row["storage_tokens"] == 3
    assert lost(bench) == {"storage_transfer": 4}


def test_pages_that_left_the_store_after_the_answer_are_no_hit() -> None:
    bench = bench_with(range(8))
    bench.holding.add("s2h")
    bench.ask(0, range(8))
    bench.at(100, lambda: bench.lanes.store.pop(5))
    bench.at(200, lambda: bench.let("s2h"))
    assert finished(bench).rows()[0]["storage_tokens"] == 5
    assert lost(bench) == {"storage_transfer": 2}
    assert bench.metrics.directions["s2h"].pages == 5


# ---------------------------------------------------------------------- stop policies


def test_waiting_holds_nobody_up_behind() -> None:
    bench = bench_with(range(8), stop="wait_complete")
    bench.holding.add("s2h")
    bench.ask(0, range(8))
    bench.ask(5, [70, 71])
    bench.at(500, lambda: bench.let("s2h"))
    first, second = finished(bench).rows()
    assert second["queue_ns"] < 50
    assert first["queue_ns"] >= 495
    assert first["storage_tokens"] == 7


def test_best_effort_keeps_what_has_come_by_its_turn() -> None:
    bench = bench_with(range(10), running=1, stop="best_effort", read_batch_pages=2)
    bench.holding.add("s2h")
    over = busy(bench)
    bench.ask(5, range(10))
    bench.at(over // 2, lambda: bench.release("s2h"))
    prefetcher = bench.engine.scheduler.prefetcher
    assert prefetcher is not None
    bench.run(over + 200)
    assert bench.metrics.requests == 2
    assert bench.rows()[1]["storage_tokens"] == 2
    assert lost(bench) == {"deadline": 7}
    # The second batch is still being written to: nobody else may have its pages.
    assert prefetcher.lent()[0] == 7
    assert prefetcher.occupied_tokens == 0
    bench.let("s2h")
    finished(bench)


def test_best_effort_without_a_queue_reads_nothing() -> None:
    bench = bench_with(range(8), stop="best_effort")
    bench.ask(0, range(8))
    assert finished(bench).rows()[0]["computed_tokens"] == 8
    assert bench.copies("s2h") == []
    assert bench.metrics.prefetch_hit_tokens == 0  # the answer came too late to be known


def test_timeout_waits_as_long_as_it_says() -> None:
    """Clock from the queue on: base alone until the answer, then with its tokens."""
    bench = bench_with(
        range(8), stop="timeout", timeout_base_s=1000 * S, timeout_per_ki_token_s=1024 * 100 * S
    )
    bench.holding.add("s2h")
    bench.ask(0, range(8))
    bench.at(5000, lambda: bench.let("s2h"))
    row = finished(bench).rows()[0]
    assert row["queue_ns"] == 1701  # 7 tokens: 1,000 + 700, and not a ns less
    assert lost(bench) == {"deadline": 7}


def test_timeout_has_a_maximum() -> None:
    bench = bench_with(
        range(8), stop="timeout", timeout_base_s=1000 * S, timeout_per_ki_token_s=1.0,
        timeout_max_s=1200 * S,
    )  # fmt: skip
    bench.holding.add("s2h")
    bench.ask(0, range(8))
    bench.at(5000, lambda: bench.let("s2h"))
    assert finished(bench).rows()[0]["queue_ns"] == 1201


def test_timeout_of_a_read_that_is_done_in_time_waits_no_longer() -> None:
    bench = bench_with(range(8), stop="timeout")
    bench.ask(0, range(8))
    row = finished(bench).rows()[0]
    assert row["queue_ns"] < 50
    assert row["storage_tokens"] == 7


# The golden file's names of the rules: base, seconds a Ki tokens, maximum (0: none).
RULES = {
    "0.5.9 (base1, .25/Ki, no max)": (1.0, 0.25, 0.0),
    "0.5.12-0.5.20 hiradix (base2,.1/Ki,max30)": (2.0, 0.1, 30.0),
}


@pytest.mark.parametrize("rule", RULES)
def test_timeouts_are_those_of_the_servers(rule: str) -> None:
    golden = json.loads(GOLDEN.read_text())["prefetch_timeout_s"]
    assert set(golden) == set(RULES)
    base, per_ki, most = RULES[rule]
    options = PrefetchOptions(
        timeout_base_s=base, timeout_per_ki_token_s=per_ki, timeout_max_s=most
    )
    assert len(golden[rule]) >= 4
    for tokens, seconds in golden[rule].items():
        assert allowed_ns(options, int(tokens)) == round(seconds * 1e9), tokens


# ---------------------------------------------------------------------- limits and room


def test_declined_while_as_much_as_the_limit_is_asked_for() -> None:
    bench = bench_with(range(100), host=40, limit_fraction=0.25)  # 10 tokens
    bench.holding.add("s2h")
    for first in (0, 20, 40):
        bench.ask(0, range(first, first + 8))
    bench.at(300, lambda: bench.let("s2h"))
    finished(bench)
    assert bench.metrics.prefetches == 2  # 0 and 7 are below 10, 14 is not
    assert bench.metrics.prefetches_declined["rate_limited"] == 1
    assert bench.metrics.prefetch_declined_tokens["rate_limited"] == 7
    assert [row["storage_tokens"] for row in bench.rows()] == [7, 7, 0]


@pytest.mark.parametrize(
    ("limit", "fraction", "host", "device", "tokens"),
    [
        ("host", 0.5, 40, 30, 80),
        ("host_less_device", 0.8, 40, 30, 32),
        ("host_less_device", 0.8, 20, 30, 0),
        ("host", 0.3, 11, 30, 13),
    ],
)
def test_limit(limit: Any, fraction: float, host: int, device: int, tokens: int) -> None:
    options = EngineOptions(
        4, 1, device, host, 10, storage=StorageOptions("store"),
        prefetch=PrefetchOptions("queued", limit=limit, limit_fraction=fraction),
    )  # fmt: skip
    assert limit_tokens(options) == tokens


def full_host(**prefetch: Any) -> Bench:
    """L2 has 10 pages, 6 of them written to by somebody; the store has 9 that follow nothing."""
    bench = bench_with(range(9), host=10, **prefetch)
    bench.holding.add("d2h")
    bench.ask(0, range(50, 56))
    bench.ask(1000, range(10))
    bench.at(3000, lambda: bench.let("d2h"))
    return finished(bench)


def test_too_little_room_trims() -> None:
    bench = full_host(shortfall="trim")
    assert bench.rows()[1]["storage_tokens"] == 4
    assert lost(bench) == {"host_capacity": 5}


def test_trimmed_below_the_threshold_is_nothing() -> None:
    bench = full_host(shortfall="trim", threshold_tokens=5)
    assert bench.rows()[1]["storage_tokens"] == 0
    assert lost(bench) == {"host_capacity": 9}


def test_too_little_room_revokes() -> None:
    bench = full_host(shortfall="revoke")
    assert bench.rows()[1]["storage_tokens"] == 0
    assert lost(bench) == {"host_capacity": 9}
    assert bench.copies("s2h") == []


def test_room_that_is_taken_before_the_question_must_be_there() -> None:
    bench = full_host(allocate="before_lookup")
    assert bench.metrics.prefetches_declined["host_capacity"] == 1
    assert lookups(bench) == [5]  # of the first one


def test_room_taken_before_the_question_is_given_back_after_the_answer() -> None:
    bench = bench_with(range(2), host=20, allocate="before_lookup")
    bench.holding.add("s2h")
    prefetcher = bench.engine.scheduler.prefetcher
    assert prefetcher is not None
    bench.ask(0, range(10))
    bench.run(5)
    assert prefetcher.lent()[0] == 9
    bench.run(500)
    assert prefetcher.lent()[0] == 2
    bench.let("s2h")
    assert finished(bench).rows()[0]["storage_tokens"] == 2


# ---------------------------------------------------------------------- publishing


@pytest.mark.parametrize(("publish", "seen"), [("done", 7), ("turn", 0)])
def test_when_others_may_hit_what_came(publish: str, seen: int) -> None:
    bench = bench_with(range(8), running=1, publish=publish)
    over = busy(bench)
    bench.ask(5, range(8))
    bench.run(over // 2)
    assert bench.hits(range(7))[HOST] == seen
    row = finished(bench).rows()[1]
    assert row["storage_tokens"] == 7
    assert bench.metrics.prefetch_fulfilled_tokens == 7


def test_pages_that_l2_got_meanwhile_are_freed() -> None:
    bench = bench_with(range(8), running=1, stop="best_effort")
    bench.holding.add("s2h")
    bench.ask(0, range(4))
    bench.ask(0, [FILLER], 60)
    bench.ask(1, range(8))
    bench.at(400, lambda: bench.let("s2h"))
    finished(bench)
    metrics = bench.metrics
    assert metrics.prefetch_fulfilled_tokens == metrics.directions["s2h"].pages == 7
    assert metrics.promoted_pages == 3


def test_pages_behind_one_that_is_on_its_way_wait_for_it() -> None:
    """The same prompt is being written to L2 when its read ends."""
    for fails in (False, True):
        bench = bench_with(range(8), running=1, stop="best_effort")
        bench.holding |= {"s2h", "d2h"}
        bench.ask(0, range(4))  # computed, and being written from about 30 on
        bench.ask(0, [FILLER], 40)
        bench.ask(2, range(8))
        bench.run(100)
        bench.let("s2h")
        bench.run(200)
        assert bench.hits(range(8))[HOST] == 0
        assert bench.engine.status()["pending_prefetches"] == 1
        bench.holding.discard("d2h")
        bench.release("d2h", fails=fails)
        bench.run(300)
        assert bench.hits(range(7))[HOST] == 7
        finished(bench)
        assert bench.metrics.promoted_pages == (7 if fails else 3)


def test_a_prefetch_is_no_hit_of_its_nodes() -> None:
    bench = bench_with(range(8), stop="wait_complete")
    bench.holding.add("h2d")
    bench.ask(0, range(8))
    bench.run(100)
    match = bench.tree.match([(0, 7)])
    assert (match.host, match.node.hit_count) == (7, 0)
    bench.let("h2d")
    finished(bench)


def test_two_workers_do_not_wait_for_each_other() -> None:
    for workers, tokens in ((1, 0), (2, 7)):
        bench = bench_with(
            range(30), workers=workers, stop="timeout", timeout_base_s=500 * S,
            timeout_per_ki_token_s=0.0,
        )  # fmt: skip
        bench.holding.add("s2h")
        bench.ask(0, range(10, 18))
        bench.ask(1, range(8))
        bench.at(200, lambda bench=bench: release_second(bench))
        bench.at(2000, lambda bench=bench: bench.let("s2h"))
        assert finished(bench).rows()[1]["storage_tokens"] == tokens


def release_second(bench: Bench) -> None:
    for number in bench.lanes.held("s2h")[1:]:
        bench.lanes.release(number)


def test_what_was_declined_is_asked_for_again() -> None:
    for retries, tokens in ((0, 0), (2, 7)):
        bench = bench_with(
            range(100),
            running=1,
            limit_fraction=0.1,
            retries=retries,
            retry_passes=1,
            stop="best_effort",
        )
        bench.holding.add("s2h")
        bench.ask(0, [FILLER], 100)
        bench.ask(1, [FILLER + 1], 100)
        bench.ask(2, range(10, 18))
        bench.ask(3, range(8))  # the limit is 4
        bench.at(100, lambda bench=bench: bench.let("s2h"))
        finished(bench)
        assert bench.rows()[3]["storage_tokens"] == tokens


# ---------------------------------------------------------------------- endings


PHASES = {"asked": 5, "reading": 15, "second batch": 25, "read": 45, "waiting": 500}


@pytest.mark.parametrize("stop", ["best_effort", "wait_complete", "timeout"])
@pytest.mark.parametrize("at_ns", PHASES.values(), ids=PHASES)
def test_aborted_in_each_phase_nothing_is_left(at_ns: int, stop: str) -> None:
    """A thousand times in all: the budget, the pages and the pins are as before."""
    bench = bench_with(range(8), running=1, stop=stop, read_batch_pages=3, publish="turn")
    times = 70
    if at_ns == PHASES["waiting"]:
        bench.holding.add("s2h")
    for turn in range(times):
        began = 1000 * turn
        bench.ask(began, [FILLER], 60)
        number = bench.ask(began + 1, range(8))
        bench.at(began + at_ns, lambda number=number: bench.engine.abort(number))
        bench.at(began + 900, lambda: bench.release("s2h"))
    bench.run()
    assert bench.metrics.aborted == times
    assert_at_rest(bench.engine)
    free = bench.tree.tiers[HOST].allocator.free
    assert free + bench.tree.tiers[HOST].resident == 40
    assert bench.metrics.prefetch_fulfilled_tokens == 0


def test_aborted_while_it_is_read_the_pages_stay_until_the_copy_has_ended() -> None:
    bench = bench_with(range(8))
    bench.holding.add("s2h")
    bench.ask(0, range(8))
    bench.at(50, lambda: bench.engine.abort(0))
    bench.run(100)
    prefetcher = bench.engine.scheduler.prefetcher
    assert prefetcher is not None
    assert prefetcher.lent()[0] == 7
    assert lost(bench) == {"dropped": 7}
    assert_prefetches_add_up_but_for_pages(bench)
    bench.let("s2h")
    finished(bench)


def assert_prefetches_add_up_but_for_pages(bench: Bench) -> None:
    metrics = bench.metrics
    assert metrics.prefetch_hit_tokens == sum(metrics.prefetch_unfulfilled_tokens.values())


# ---------------------------------------------------------------------- writing


def test_a_write_goes_in_batches_by_key_and_skips_what_is_there() -> None:
    bench = bench_with([2, 3], read_batch_pages=3)
    bench.ask(0, range(8))
    finished(bench)
    assert [copy.keys for copy in bench.copies("h2s")] == [((0, 3),), ((3, 3),), ((6, 2),)]
    assert bench.metrics.directions["h2s"].pages == 6
    assert set(bench.lanes.store) == set(range(8))


def test_a_batch_that_fails_ends_the_write() -> None:
    bench = bench_with((), read_batch_pages=3)
    bench.holding.add("h2s")
    bench.ask(0, range(8))
    bench.at(100, lambda: bench.release("h2s"))
    bench.at(200, lambda: bench.release("h2s", fails=True))
    finished(bench)
    assert set(bench.lanes.store) == {0, 1, 2}
    assert bench.metrics.dropped_pages["transfer_failed"] == 5


def test_l2_keeps_what_is_not_written_yet() -> None:
    bench = bench_with((), device=8, host=8)
    bench.holding.add("h2s")
    bench.ask(0, range(8))
    bench.ask(500, range(50, 58))
    bench.run(900)
    assert bench.hits(range(8))[HOST] == 8
    assert bench.metrics.dropped_pages["host_pressure"] == 8
    bench.let("h2s")
    finished(bench)


def test_a_slow_store_does_not_pin_all_of_l2() -> None:
    bench = bench_with((), device=8, host=16)
    bench.holding.add("h2s")
    for turn in range(4):
        bench.ask(500 * turn, range(50 * turn, 50 * turn + 4))
    bench.at(3000, lambda: bench.let("h2s"))
    finished(bench)
    assert bench.metrics.dropped_pages["write_backlog"] == 8  # 4 + 4 are half of L2


def test_a_store_needs_prefetches_and_the_tree_restores() -> None:
    for storage, mode in (("store", "restore"), ("tree", "queued")):
        with pytest.raises(InputError, match=r"storage\.index is .* and prefetch\.mode"):
            EngineOptions(
                1, 1, 1, storage=StorageOptions(storage),  # type: ignore[arg-type]
                prefetch=PrefetchOptions(mode),  # type: ignore[arg-type]
            )  # fmt: skip


def test_prefetches_are_checked_by_the_bench() -> None:
    bench = bench_with(range(8))
    bench.ask(0, range(8))
    assert_prefetches_add_up(finished(bench).engine)
