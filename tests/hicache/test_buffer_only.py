"""L2 as a buffer in front of a store: nothing is kept or hit there, and nothing is leaked."""

from __future__ import annotations

from dataclasses import replace
from random import Random
from typing import Any

import pytest
from bench import FILLER, Bench
from engine_runs import Run, assert_at_rest, assert_good, assert_rows_add_up
from examples import examples
from hypothesis import given
from hypothesis import strategies as st
from naive_caches import InstantLanes
from simpy import Environment
from small_workloads import SWITCHES, Workload, random_workload

from hicache.engine import Engine
from hicache.errors import InputError
from hicache.node import HOST
from hicache.options import EngineOptions, PrefetchOptions, StorageOptions
from hicache.store_contents import StoreContents


def bench_with(
    device: int = 40, host: int = 20, stored: range = range(0), running: int = 256, **options: Any
) -> Bench:
    """A bench with a buffer of `host` pages; what is asked for has no limit."""
    prefetch = {"limit_fraction": 1.0, **options.pop("prefetch", {})}
    bench = Bench(
        device, host, 1000, mode="buffer_only", prefetch=prefetch,
        scheduler={"max_running_requests": running}, **options,
    )  # fmt: skip
    bench.lanes.store.update(dict.fromkeys(stored))
    return bench


def finished(bench: Bench) -> Bench:
    bench.run()
    assert_at_rest(bench.engine)
    assert bench.tree.tiers[HOST].allocator.free == bench.options.host_pages
    assert bench.engine.status()["tiers"]["host"]["free_pages"] == bench.options.host_pages
    for row in bench.rows():
        sources = ("device_tokens", "host_tokens", "storage_tokens", "computed_tokens")
        assert sum(row[name] for name in sources) == row["prompt_tokens"]
        assert row["host_tokens"] == 0
    return bench


def lost(bench: Bench) -> dict[str, int]:
    return {why: n for why, n in bench.metrics.prefetch_unfulfilled_tokens.items() if n}


def pages(bench: Bench, direction: str) -> list[int]:
    return [copy.pages for copy in bench.copies(direction)]


# ---------------------------------------------------------------------- writing


def test_a_write_goes_through_the_buffer_and_leaves_nothing_there() -> None:
    bench = bench_with()
    bench.ask(0, range(8))
    in_use: list[int] = []
    bench.at(25, lambda: in_use.append(20 - bench.tree.tiers[HOST].allocator.free))
    finished(bench)
    assert (pages(bench, "d2h"), pages(bench, "h2s")) == ([8], [8])
    assert in_use == [8]
    assert sorted(bench.lanes.store) == list(range(8))
    assert bench.tree.tiers[HOST].resident == 0


def test_l1_may_evict_what_is_on_its_way_from_the_buffer_to_the_store() -> None:
    bench = bench_with(device=10)
    bench.holding.add("h2s")
    bench.ask(0, range(8))
    bench.ask(500, range(50, 59))
    bench.at(1000, lambda: bench.let("h2s"))
    rows = finished(bench).rows()
    assert rows[1]["queue_ns"] < 100
    assert set(range(8)) <= set(bench.lanes.store)
    assert bench.tree.tiers[0].lost_pages == 0


def test_a_write_waits_for_room_first_come_first_served() -> None:
    bench = bench_with(host=10, device=200)
    bench.holding.add("h2s")
    for place, length in enumerate((8, 7, 2, 6)):
        bench.ask(100 * place, range(20 * place, 20 * place + length))
    bench.at(900, lambda: bench.let("h2s"))
    bench.run(800)
    assert pages(bench, "d2h") == [8]  # two would fit, and wait behind seven
    assert bench.engine.status()["pending_writes"] == 1 + 3
    finished(bench)
    assert pages(bench, "d2h") == [8, 7, 2, 6]
    assert sum(bench.metrics.dropped_pages.values()) == 0


def test_a_write_waits_for_the_room_of_reads_too() -> None:
    bench = bench_with(80, 10, range(100, 108), 1, cache={"write_at": "prefill"})
    bench.ask(0, range(6), output=50)
    bench.ask(1, range(100, 109))  # staged, and waits for its turn
    bench.at(100, lambda: bench.engine.abort(1))
    bench.run(90)
    assert pages(bench, "s2h") == [8]
    assert pages(bench, "d2h") == []
    bench.run(200)
    assert pages(bench, "d2h") == [6]
    finished(bench)


def test_what_l1_evicts_before_there_was_room_is_dropped_and_written_when_it_comes_again() -> None:
    bench = bench_with(host=10, device=20)
    bench.holding.add("h2s")
    bench.ask(0, range(8))
    bench.ask(100, range(20, 26))  # waits for room
    bench.ask(200, range(50, 70))  # pushes both out of L1, and is larger than the buffer
    bench.at(900, lambda: bench.let("h2s"))
    bench.ask(2000, range(20, 26))
    finished(bench)
    assert bench.metrics.dropped_pages["host_pressure"] == 6
    assert set(range(20, 26)) <= set(bench.lanes.store)


def test_a_path_larger_than_the_buffer_goes_in_parts() -> None:
    bench = bench_with(host=6, device=100)
    bench.ask(0, range(20))
    finished(bench)
    assert pages(bench, "d2h") == [6, 6, 6, 2]
    assert sorted(bench.lanes.store) == list(range(20))


def test_a_node_larger_than_the_buffer_is_dropped() -> None:
    bench = bench_with(host=6, device=100, cache={"write_unit": "node"})
    bench.ask(0, range(20))
    bench.ask(500, [*range(5), 50])
    finished(bench)
    # The first prompt's node was cut: what is left of it is small enough by the second request.
    assert bench.metrics.dropped_pages["host_pressure"] == 20
    assert sorted(bench.lanes.store) == [*range(5), 50]


def test_what_the_store_has_is_not_written_again_until_it_says_that_it_lacks_it() -> None:
    bench = bench_with(device=20)
    bench.ask(0, range(8))
    bench.ask(500, range(50, 70))
    bench.ask(1000, range(8))  # read from the store
    bench.ask(1500, range(8))  # in L1
    bench.at(1900, bench.lanes.store.clear)
    bench.ask(2000, range(8))  # in L1: nobody asks the store
    bench.ask(2500, range(50, 70))
    bench.ask(3000, range(9))  # not in L1, and the store says that it lacks it
    rows = finished(bench).rows()
    assert rows[2]["storage_tokens"] == 7
    assert rows[6]["computed_tokens"] == 9
    written = [copy.keys for copy in bench.copies("h2s")]
    assert [keys for keys in written if keys[0][0] == 0] == [((0, 8),), ((0, 9),)]
    assert set(range(9)) <= set(bench.lanes.store)


@pytest.mark.parametrize("direction", ["d2h", "h2s"])
def test_a_write_that_fails_gives_its_pages_back_and_is_tried_when_it_is_hit(
    direction: str,
) -> None:
    bench = bench_with()
    bench.failing.add(direction)
    bench.ask(0, range(8))
    bench.at(300, bench.failing.clear)
    bench.ask(500, range(8), output=3)
    finished(bench)
    assert bench.metrics.dropped_pages["transfer_failed"] == 8
    assert set(range(8)) <= set(bench.lanes.store)


def test_no_more_waits_than_twice_what_l1_holds() -> None:
    bench = bench_with(host=5, device=12)
    bench.holding.add("h2s")
    bench.ask(0, range(5))
    for place in range(1, 6):
        bench.ask(100 * place, range(20 * place, 20 * place + 5))
        bench.ask(100 * place + 50, range(20, 25))  # keeps the head of those that wait in L1
    bench.at(900, lambda: bench.let("h2s"))
    finished(bench)
    assert bench.metrics.dropped_pages["write_backlog"] == 2 * 5  # 20 of 24 wait: not 5 more
    assert bench.metrics.dropped_pages["host_pressure"] == 2 * 5  # left L1 before it was their turn
    assert sorted(bench.lanes.store) == [*range(5), *range(20, 25)]


# ---------------------------------------------------------------------- reading


def test_what_the_store_has_is_read_into_the_buffer_and_loaded_into_l1() -> None:
    bench = bench_with(stored=range(6))
    bench.ask(0, range(8))
    row = finished(bench).rows()[0]
    assert (row["storage_tokens"], row["computed_tokens"]) == (6, 2)
    assert (pages(bench, "s2h"), pages(bench, "h2d")) == ([6], [6])
    assert bench.metrics.prefetch_fulfilled_tokens == 6
    assert bench.hits(range(8))[:2] == (8, 0)


def test_what_is_staged_is_seen_by_its_own_request_alone() -> None:
    bench = bench_with(stored=range(8), running=1, prefetch={"stop": "best_effort"})
    bench.ask(0, [FILLER], output=30)  # decodes, so that the others wait
    bench.ask(5, range(9))
    finished_at: list[tuple[int, int, int]] = []
    bench.at(200, lambda: finished_at.append(bench.hits(range(8))))
    finished(bench)
    assert finished_at == [(0, 0, 0)]  # read by then, and nobody's
    assert bench.rows()[1]["storage_tokens"] == 8


def test_only_what_l1_lacks_by_then_is_loaded() -> None:
    bench = bench_with(stored=range(8), device=60, running=2)
    bench.ask(0, [FILLER], output=40)
    bench.ask(1, [FILLER + 1], output=60)
    bench.ask(2, range(9))  # both wait, and each has the same read for it
    bench.ask(3, range(12))
    rows = finished(bench).rows()
    assert pages(bench, "s2h") == [8, 8]
    assert rows[2]["storage_tokens"] == 8
    assert (rows[3]["device_tokens"], rows[3]["storage_tokens"]) == (9, 0)
    assert pages(bench, "h2d") == [8]
    assert bench.metrics.prefetch_fulfilled_tokens == 16
    assert lost(bench) == {}


def test_what_follows_pages_that_l1_has_evicted_is_of_no_use() -> None:
    bench = bench_with(device=24, host=60, running=1)
    bench.ask(0, range(4))  # in L1
    bench.at(50, lambda: bench.lanes.store.update(dict.fromkeys(range(8))))
    bench.ask(100, range(50, 60), output=9)
    bench.ask(101, range(70, 89))  # pushes the first four out before ...
    bench.ask(102, range(9))  # ... it is the turn of who needs them
    row = finished(bench).rows()[3]
    assert lost(bench) == {"device_capacity": 4}
    assert row["computed_tokens"] == 9


def test_what_the_policy_does_not_want_is_given_back() -> None:
    bench = bench_with(stored=range(8), restore={"policy": "never"})
    bench.ask(0, range(9))
    row = finished(bench).rows()[0]
    assert (row["computed_tokens"], lost(bench)) == (9, {"dropped": 8})


def test_reads_take_what_room_the_buffer_has() -> None:
    for shortfall, storage in (("trim", 5), ("revoke", 0)):
        bench = bench_with(host=5, stored=range(8), prefetch={"shortfall": shortfall})
        bench.ask(0, range(9))
        row = finished(bench).rows()[0]
        assert row["storage_tokens"] == storage
        assert lost(bench) == {"host_capacity": 8 - storage}


def test_a_load_that_fails_is_computed_and_gives_its_pages_back() -> None:
    bench = bench_with(stored=range(8))
    bench.failing.add("h2d")
    bench.ask(0, range(9))
    row = finished(bench).rows()[0]
    assert (row["computed_tokens"], lost(bench)) == (9, {"dropped": 8})
    assert bench.metrics.restore_fallbacks == 1


@pytest.mark.parametrize("publish", ["done", "turn"])
@pytest.mark.parametrize("stop", ["best_effort", "wait_complete", "timeout"])
def test_stop_policies_keep_what_has_come(stop: str, publish: str) -> None:
    prefetch = {
        "stop": stop, "publish": publish, "read_batch_pages": 2, "timeout_base_s": 5e-7,
        "timeout_per_ki_token_s": 0.0,
    }  # fmt: skip
    bench = bench_with(stored=range(8), running=1, prefetch=prefetch)
    bench.holding.add("s2h")
    bench.ask(0, [FILLER], output=30)
    bench.ask(5, range(9))
    bench.at(100, lambda: bench.release("s2h"))
    bench.at(2000, lambda: bench.let("s2h"))
    row = finished(bench).rows()[1]
    assert row["storage_tokens"] == (8 if stop == "wait_complete" else 2)
    assert lost(bench) == ({} if stop == "wait_complete" else {"deadline": 6})


def test_of_several_ranks_the_least_is_staged_and_each_writes_its_part() -> None:
    bench = bench_with(ranks=2)
    for store, stored in zip(bench.lanes.stores, (8, 5), strict=True):
        store.update(dict.fromkeys(range(stored)))
    bench.ask(0, range(9))
    assert finished(bench).rows()[0]["storage_tokens"] == 5
    assert all(set(range(9)) <= set(store) for store in bench.lanes.stores)


def test_what_is_admitted_by_reuse_is_written_and_nothing_else() -> None:
    bench = bench_with(device=80, admit_after_hits=2)
    bench.ask(0, range(8))
    bench.ask(500, [*range(4), 20, 21])
    finished(bench)
    assert sorted(bench.lanes.store) == [0, 1, 2, 3]
    assert pages(bench, "d2h") == [4]


# ---------------------------------------------------------------------- aborts, and any workload


@pytest.mark.parametrize("restore", [{}, {"layerwise": True}, {"start": "prefill"}])
@pytest.mark.parametrize("held", ["", "s2h", "h2d", "d2h", "h2s"])
@pytest.mark.parametrize("at_ns", [3, 8, 14, 22, 31, 48, 70, 95, 140])
def test_an_abort_in_any_phase_leaks_nothing(
    at_ns: int, held: str, restore: dict[str, Any]
) -> None:
    bench = bench_with(
        stored=range(8), restore=restore, prefetch={"read_batch_pages": 3},
        cache={"write_at": "prefill"},
    )  # fmt: skip
    if held:
        bench.holding.add(held)
    bench.ask(0, range(12), output=5)
    bench.ask(10, range(10), output=3)
    bench.at(at_ns, lambda: bench.engine.abort(0))
    bench.at(at_ns + 11, lambda: bench.engine.abort(1))
    bench.at(1000, lambda: bench.let(held))
    finished(bench)
    assert bench.metrics.requests == 2


def with_buffer(rng: Random) -> Workload:
    """Any small workload, with a small buffer."""
    workload = random_workload(rng)
    options, pick = workload.options, rng.choice
    policy = pick(["write_through", "write_through", "write_through_selective", "none"])
    prefetch = options.prefetch
    if prefetch.mode != "queued":
        prefetch = PrefetchOptions(
            "queued", pick([0, 1, 4]), pick(["best_effort", "wait_complete", "timeout"]),  # type: ignore[arg-type]
            pick([0.0, 3e-7]), read_batch_pages=pick([1, 2, 128]), limit_fraction=1.0,
            allocate=pick(["after_lookup", "before_lookup"]),  # type: ignore[arg-type]
            shortfall=pick(["trim", "revoke"]), publish=pick(["done", "turn"]),  # type: ignore[arg-type]
            retries=pick([0, 2]), retry_passes=1,
        )  # fmt: skip
    return replace(
        workload,
        options=replace(
            options,
            host_pages=pick([1, 3, 9, 30]),
            storage_pages=pick([6, 60, 200]),
            cache=replace(options.cache, write_policy=policy),  # type: ignore[arg-type]
            storage=StorageOptions("store", pick([1, 1, 2]), **pick(SWITCHES)),
            prefetch=prefetch,
            host_mode="buffer_only",
        ),
    )


buffered = st.randoms(use_true_random=False).map(with_buffer)


@given(buffered)
@examples(150)
def test_any_run_ends_at_rest_and_hits_nothing_in_l2(workload: Workload) -> None:
    run = Run(workload)
    assert_good(run)
    assert run.engine.metrics.cached_tokens[HOST] == 0
    host = run.engine.tree.tiers[HOST]
    assert host.resident == host.evicted_pages == 0


@given(buffered)
@examples(60)
def test_any_untimed_run_ends_at_rest_and_hits_nothing_in_l2(workload: Workload) -> None:
    env = Environment(0)
    engine = Engine(env, InstantLanes(env), workload.options)
    requests = workload.requests()

    def checked():
        for request in requests:
            yield request
            assert_at_rest(engine)

    engine.serve_untimed(checked())
    assert_rows_add_up(engine, requests, timed=False)
    assert engine.metrics.cached_tokens[HOST] == 0
    assert engine.metrics.directions["h2d"].pages == sum(engine.metrics.cached_pages[1:])


def test_one_at_a_time_timed_and_untimed_hit_the_same() -> None:
    for cache in ({}, {"write_unit": "node"}):
        bench = bench_with(device=20, host=12, cache=cache)
        for place in range(30):
            first = 40 * (place * 7 % 5)
            bench.ask(3000 * place, range(first, first + 9 + place % 3), output=2)
        env = Environment(0)
        engine = Engine(env, InstantLanes(env), bench.options)
        requests = [*bench.requests]
        contents = StoreContents()
        engine.serve_untimed(requests, contents)
        finished(bench)
        timed = [(row["device_tokens"], row["storage_tokens"]) for row in bench.rows()]
        columns = (engine.metrics.column("device_tokens"), engine.metrics.column("storage_tokens"))
        assert timed == list(zip(*columns, strict=True))
        assert sum(storage for _, storage in timed) > 50
        assert contents.pages == len(bench.lanes.store)


# ---------------------------------------------------------------------- what cannot be


@pytest.mark.parametrize(
    ("changed", "named"),
    [
        ({"storage_pages": 0}, "tiers.l3 is 0"),
        (
            {"storage": StorageOptions(), "prefetch": PrefetchOptions()},
            "storage.index is tree",
        ),
        ({"write_policy": "write_back"}, "cache.write_policy is write_back"),
    ],
)
def test_a_buffer_needs_a_store_that_is_written_through(
    changed: dict[str, Any], named: str
) -> None:
    options = EngineOptions(
        1, 1, 10, 10, 10, storage=StorageOptions("store"), prefetch=PrefetchOptions("queued"),
        host_mode="buffer_only",
    )  # fmt: skip
    policy = changed.pop("write_policy", "")
    if policy:
        changed["cache"] = replace(options.cache, write_policy=policy)
    with pytest.raises(InputError, match=f"tiers.l2_mode is buffer_only and {named}"):
        replace(options, **changed)
