"""Faults that users reported of reading a store ahead of need: each report as a run of the engine,
with the counters that are right, and the same run with the fault put back, which must not pass.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator
from typing import Any

import pytest
from bench import FILLER, Bench
from engine_runs import assert_at_rest

from hicache.node import HOST
from hicache.operations import Copy, Lookup
from hicache.prefetch import Prefetcher
from hicache.prefetch_rules import Prefetch
from scenario.presets import preset_options

SECOND = 1_000_000_000
BROKEN = "ignore::pytest.PytestUnraisableExceptionWarning"


@pytest.fixture(autouse=True)
def nothing_is_left() -> Iterator[None]:
    """Whatever a broken run left under way goes now."""
    yield
    gc.collect()


def of_preset(version: str) -> dict[str, Any]:
    """The prefetch options that a preset sets."""
    options = preset_options(f"sglang-{version}")
    return {
        key.removeprefix("prefetch."): value
        for key, value in options.items()
        if key.startswith("prefetch.") and key != "prefetch.mode"
    }


def bench_of(device: int, host: int, page: int, running: int = 256, **prefetch: Any) -> Bench:
    """A bench with a store; `prefetch` changes the options of a preset."""
    return Bench(
        device, host, 1_000_000, page=page, prefetch=prefetch,
        scheduler={"max_running_requests": running},
    )  # fmt: skip


def store(bench: Bench, first: int, count: int) -> None:
    bench.lanes.store.update(dict.fromkeys(range(first, first + count)))


def lost(bench: Bench) -> dict[str, int]:
    return {why: n for why, n in bench.metrics.prefetch_unfulfilled_tokens.items() if n}


# ---------------------------------------------------------------------- limit formula
# sglang#33984: four prefetches of 40K tokens at once, L1 of 200K tokens, 0.8 * (host - device).


def four_at_once(ratio: float, **changes: Any) -> tuple[int, int]:
    """How many of them were asked for, and how many were declined for the rate."""
    device = 3125  # pages of 64 tokens
    bench = bench_of(device, int(device * ratio), 64, **{**of_preset("0.5.9"), **changes})
    for place in range(4):
        bench.ask(0, range(10_000 * place, 10_000 * place + 625))
    bench.run()
    assert_at_rest(bench.engine)
    metrics = bench.metrics
    return metrics.prefetches, metrics.prefetches_declined["rate_limited"]


def test_sglang_33984_the_limit_is_of_what_l2_has_beyond_l1() -> None:
    assert four_at_once(2.0) == (4, 0)
    assert four_at_once(1.6) == (3, 1)


def test_sglang_33984_put_back() -> None:
    """A limit that forgets what L1 has lets all four through."""
    assert four_at_once(1.6, limit="host") != (3, 1)


# ---------------------------------------------------------------------- silent trimming
# sglang#40193: a hit of 16,010 pages of one token, room for 2,551.


def a_hit_with_little_room(**changes: Any) -> Bench:
    options = {**of_preset("0.5.20"), "stop": "wait_complete", **changes}
    bench = bench_of(20_000, 2551, 1, **options)
    store(bench, 0, 16_010)
    bench.ask(0, range(16_011))
    bench.run()
    assert_at_rest(bench.engine)
    return bench


@pytest.mark.parametrize(("shortfall", "fulfilled"), [("trim", 2551), ("revoke", 0)])
def test_sglang_40193_what_is_trimmed_is_counted(shortfall: str, fulfilled: int) -> None:
    bench = a_hit_with_little_room(shortfall=shortfall)
    assert bench.metrics.prefetch_hit_tokens == 16_010
    assert bench.metrics.prefetch_fulfilled_tokens == fulfilled
    assert lost(bench) == {"host_capacity": 16_010 - fulfilled}
    assert bench.rows()[0]["storage_tokens"] == fulfilled


@pytest.mark.filterwarnings(BROKEN)
def test_sglang_40193_put_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Prefetcher, "_count_lost", lambda *_: None)
    with pytest.raises(AssertionError):
        a_hit_with_little_room(shortfall="trim")


# ---------------------------------------------------------------------- head-of-line blocking
# sglang#31797: a read of 60 s is ahead of one of 10,048 tokens, which waits 2.98 s at most.


def behind_a_slow_read(workers: int) -> Bench:
    bench = bench_of(1000, 1000, 64, **{**of_preset("0.5.20"), "workers": workers})
    store(bench, 0, 300)
    usual = bench.lanes.fate

    def fate(operation: Any) -> Any:
        slow = isinstance(operation, Copy) and operation.keys[:1] == ((0, 100),)
        return usual(operation)._replace(took_ns=60 * SECOND) if slow else usual(operation)

    bench.lanes.fate = fate
    bench.ask(0, range(101))
    bench.ask(0, [*range(100, 257), 999])
    bench.run()
    assert_at_rest(bench.engine)
    return bench


def test_sglang_31797_two_workers_do_not_wait() -> None:
    bench = behind_a_slow_read(2)
    assert bench.rows()[1]["storage_tokens"] == 10_048
    assert lost(bench) == {"deadline": 6400}  # the slow one, which has a deadline, too


def test_sglang_31797_one_worker_waits_and_says_so() -> None:
    bench = behind_a_slow_read(1)
    row = bench.rows()[1]
    assert row["storage_tokens"] == 0
    assert row["queue_ns"] == 2_981_250_001
    assert lost(bench) == {"deadline": 6400 + 10_048}


# ---------------------------------------------------------------------- allocation before lookup
# sglang#19320: L2 is full, L3 empty, and a request of 4K tokens comes.


def asks_an_empty_store(allocate: str) -> int:
    """Pages that left L2 before the answer was known to be nothing."""
    bench = bench_of(500, 80, 64, 1, **{**of_preset("0.5.20"), "allocate": allocate})
    bench.ask(0, range(80))
    bench.ask(1000, [FILLER], 300)  # keeps the GPU
    bench.at(900, bench.lanes.store.clear)
    bench.ask(1100, range(500, 565))
    bench.run(2000)
    assert [op.pages for _, op in bench.lanes.submitted if isinstance(op, Lookup)][-1] == 64
    gone = bench.tree.tiers[HOST].evicted_pages
    bench.run()
    assert_at_rest(bench.engine)
    return gone


def test_sglang_19320_nothing_is_evicted_for_what_is_not_there() -> None:
    assert asks_an_empty_store("after_lookup") == 0


def test_sglang_19320_put_back() -> None:
    assert asks_an_empty_store("before_lookup") > 0


# ---------------------------------------------------------------------- leaked budget
# sglang#9874, #9927: queue and abort, 1,000 times in each phase.

PHASES = {"asked": 5, "reading": 15, "second batch": 25, "read": 45}


def aborted_a_thousand_times(at_ns: int) -> Bench:
    options = {**of_preset("0.5.20"), "threshold_tokens": 1, "read_batch_pages": 3}
    bench = bench_of(200, 40, 1, 1, **{**options, "publish": "turn", "limit_fraction": 1.0})
    store(bench, 0, 8)
    free = bench.tree.tiers[HOST].allocator.free
    for turn in range(1000):
        bench.ask(1000 * turn, [FILLER], 20)
        number = bench.ask(1000 * turn + 1, range(8))
        bench.at(1000 * turn + at_ns, lambda number=number: bench.engine.abort(number))
    bench.run()
    assert bench.metrics.aborted == 1000
    assert bench.metrics.prefetches >= 1000
    assert_at_rest(bench.engine)
    host = bench.tree.tiers[HOST]
    assert host.allocator.free + host.resident == free
    return bench


@pytest.mark.parametrize("at_ns", PHASES.values(), ids=PHASES)
def test_sglang_9874_an_aborted_prefetch_gives_all_back(at_ns: int) -> None:
    bench = aborted_a_thousand_times(at_ns)
    if at_ns > PHASES["asked"]:
        assert lost(bench) == {"dropped": 7000}


@pytest.mark.filterwarnings(BROKEN)
def test_sglang_9874_put_back(monkeypatch: pytest.MonkeyPatch) -> None:
    """One that was aborted keeps its share of the limit."""
    finish = Prefetcher._finish  # pyright: ignore[reportPrivateUsage]

    def leaks(self: Prefetcher, prefetch: Prefetch, reason: str) -> None:
        finish(self, prefetch, reason)
        if reason == "dropped":
            self.occupied_tokens += prefetch.asked

    monkeypatch.setattr(Prefetcher, "_finish", leaks)
    with pytest.raises(AssertionError):
        aborted_a_thousand_times(PHASES["reading"])


# ---------------------------------------------------------------------- arrival noticed late
# sglang#32724: a read is done at 1, its request has its turn at 6.


def hit_by_others(publish: str) -> tuple[int, int]:
    """What others could hit of it before its turn came, and after."""
    options = {**of_preset("0.5.20"), "threshold_tokens": 1, "limit_fraction": 1.0}
    bench = bench_of(200, 40, 1, 1, **{**options, "publish": publish})
    store(bench, 0, 8)
    bench.ask(0, [FILLER], 60)
    bench.ask(1, range(8))
    bench.run(100)
    assert bench.metrics.directions["s2h"].operations == 1
    before = bench.hits(range(7))[HOST]
    bench.run()
    assert_at_rest(bench.engine)
    return before, bench.rows()[1]["storage_tokens"]


def test_sglang_32724_what_has_come_is_for_all_at_once() -> None:
    assert hit_by_others("done") == (7, 7)


def test_sglang_32724_put_back() -> None:
    assert hit_by_others("turn") == (0, 7)


# ---------------------------------------------------------------------- timeout without limit
# sglang#23309: a prefetch of 1,048,576 tokens.


def waited_ns(version: str) -> int:
    options = {**of_preset(version), "stop": "timeout", "limit_fraction": 1.0}
    bench = bench_of(1100, 4000, 1024, **options)
    store(bench, 0, 1024)
    bench.holding.add("s2h")
    bench.ask(0, range(1025))
    bench.at(400 * SECOND, lambda: bench.let("s2h"))
    bench.run()
    assert_at_rest(bench.engine)
    assert bench.metrics.prefetch_hit_tokens == 1_048_576
    assert lost(bench) == {"deadline": 1_048_576}
    return bench.rows()[0]["queue_ns"]


def test_sglang_23309_a_timeout_has_a_maximum() -> None:
    assert waited_ns("0.5.20") == 30 * SECOND + 1


def test_sglang_23309_as_it_was() -> None:
    assert waited_ns("0.5.9") == 257 * SECOND + 1
