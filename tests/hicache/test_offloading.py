"""Decode offload: what is written of an answer while it is made, when, and what an abort leaves."""

from __future__ import annotations

from typing import Any

import pytest
from bench import Bench
from engine_runs import assert_at_rest
from simpy import Environment

from hicache.engine import Engine
from hicache.errors import InputError
from hicache.options import EngineOptions, OffloadOptions
from hicache.store_contents import StoreContents
from sim.instant import InstantLanes


def bench_with(
    page: int = 1, device: int = 200, host: int = 100, stride: int = 4, **options: Any
) -> Bench:
    """A bench whose answers are cached and offloaded to a store that is asked by key."""
    cache = {"outputs": "cached", "write_policy": "none", **options.pop("cache", {})}
    offload = {"decode": True, "stride_tokens": stride}
    return Bench(
        device, host, 1000, page=page, cache=cache, prefetch=options.pop("prefetch", {}),
        offload=offload, **options,
    )  # fmt: skip


def finished(bench: Bench) -> Bench:
    bench.run()
    assert_at_rest(bench.engine)
    for row in bench.rows():
        sources = ("device_tokens", "host_tokens", "storage_tokens", "computed_tokens")
        assert sum(row[name] for name in sources) == row["prompt_tokens"]
    return bench


def test_every_stride_goes_to_l2_and_to_the_store_while_the_request_decodes() -> None:
    bench = bench_with()
    bench.ask(0, range(3), output=14)  # 13 tokens of the answer have KV: three strides of four
    written: list[int] = []
    bench.at(100, lambda: written.append(len(bench.lanes.store)))
    finished(bench)
    assert [copy.pages for copy in bench.copies("d2h")] == [3 + 4, 4, 4]  # the prompt goes along
    assert [copy.pages for copy in bench.copies("h2s")] == [3 + 4, 4, 4]
    assert written == [7]  # in the middle of the answer
    assert bench.metrics.offloaded_pages == 12
    assert bench.metrics.decode_steps == 13
    assert bench.metrics.decode_bursts == 4  # cut at each stride, and where it ends


@pytest.mark.parametrize(
    ("page", "stride", "pages"), [(4, 0, 1), (4, 3, 1), (4, 11, 2), (4, 16, 4), (1, 0, 1)]
)
def test_a_stride_is_whole_pages_and_one_at_least(page: int, stride: int, pages: int) -> None:
    bench = bench_with(page, stride=stride)
    assert bench.options.offload_pages == pages
    bench.ask(0, range(2), output=16 * page + 1)
    copies = finished(bench).copies("d2h")
    assert {copy.pages for copy in copies[1:]} == {pages}
    assert sum(copy.pages for copy in copies) == 2 + 16


def test_one_cut_serves_the_whole_batch() -> None:
    bench = bench_with(device=300, stride=8)
    for first in range(5):
        bench.ask(first * 7, range(20 * first, 20 * first + 3), output=41)
    finished(bench)
    assert bench.metrics.offloaded_pages == 5 * 40
    # One in eight steps, and one where somebody came or ended; not one a request and stride.
    assert bench.metrics.decode_bursts <= bench.metrics.decode_steps // 8 + 2 * 5


def test_without_it_nothing_is_cut_and_nothing_written() -> None:
    bench = Bench(200, 100, 1000, cache={"outputs": "cached", "write_policy": "none"}, prefetch={})
    bench.ask(0, range(3), output=14)
    finished(bench)
    assert (bench.metrics.decode_bursts, bench.copies("d2h")) == (1, [])
    assert bench.engine.scheduler.decode.offload is None


def test_under_write_through_the_end_writes_what_is_no_stride() -> None:
    bench = bench_with(cache={"write_policy": "write_through"})
    bench.ask(0, range(3), output=14)
    finished(bench)
    assert [copy.pages for copy in bench.copies("d2h")] == [7, 4, 4, 1]
    assert sum(copy.pages for copy in bench.copies("h2s")) == 16


def test_what_was_offloaded_is_a_hit_of_who_goes_on_from_there() -> None:
    bench = bench_with(device=30, host=20)
    bench.ask(0, range(3), output=9)
    bench.requests[0].output_runs = ((3, 8),)
    bench.ask(1000, range(500, 530))  # L1 is full of something else
    bench.ask(2000, range(12))
    row = finished(bench).rows()[2]
    assert (row["host_tokens"], row["computed_tokens"]) == (11, 1)


def test_hits_are_counted_as_without_it() -> None:
    """For the strategies and policies that go by hits."""
    counts: dict[tuple[str, bool], list[int]] = {}
    for counting in ("request", "insert"):
        for decode in (False, True):
            cache = {"outputs": "cached", "write_policy": "none", "hit_counting": counting}
            bench = Bench(
                200, 100, 1000, cache=cache, prefetch={},
                offload={"decode": decode, "stride_tokens": 4},
            )  # fmt: skip
            bench.ask(0, range(3), output=12)
            bench.run()
            node, hits = bench.tree.root, []
            while node.children:
                (node,) = node.children.values()
                hits += [node.hit_count] * node.length
            counts[counting, decode] = hits
        assert counts[counting, True] == counts[counting, False], counting
        assert len(counts[counting, True]) == 3 + 11


def test_no_room_in_l2_is_tried_again_with_the_next_stride() -> None:
    bench = bench_with(host=20)
    bench.holding.add("h2s")  # what is being written to the store cannot leave L2
    bench.ask(0, range(100, 112), output=6)
    bench.ask(100, range(3), output=18)
    bench.at(205, lambda: bench.let("h2s"))
    finished(bench)
    pages = [copy.pages for copy in bench.copies("d2h")]
    assert pages[0] == 12 + 4
    assert pages[1] > 3 + 4  # several strides at once, when there was room again
    assert sum(pages[1:]) == 3 + 16
    assert sum(bench.metrics.dropped_pages.values()) == 0


@pytest.mark.parametrize("at_ns", range(5, 400, 23))
@pytest.mark.parametrize("held", ["", "d2h", "h2s"])
def test_an_abort_at_any_time_leaks_nothing(at_ns: int, held: str) -> None:
    bench = bench_with()
    if held:
        bench.holding.add(held)
    bench.ask(0, range(3), output=30)
    bench.ask(40, [0, 1, 2, 50, 51], output=20)
    bench.at(at_ns, lambda: bench.engine.abort(0))
    bench.at(at_ns + 37, lambda: bench.engine.abort(1))
    bench.at(1000, lambda: bench.let(held))
    finished(bench)
    _, host, _ = bench.tree.tiers
    assert host.resident == sum(copy.pages for copy in bench.copies("d2h"))


def test_a_copy_that_fails_is_tried_again_with_the_next_stride() -> None:
    bench = bench_with()
    bench.failing.add("d2h")
    bench.ask(0, range(3), output=14)
    bench.at(70, lambda: bench.failing.discard("d2h"))
    finished(bench)
    assert bench.metrics.dropped_pages["transfer_failed"] == 7
    assert [copy.pages for copy in bench.copies("d2h")] == [7, 11, 4]


def test_who_is_retracted_goes_on_with_what_it_left() -> None:
    bench = bench_with(device=34, host=100, scheduler={"output_reserve_fraction": 0.0})
    bench.ask(0, range(3), output=24)
    bench.ask(0, range(50, 53), output=24)
    finished(bench)
    assert bench.metrics.retractions > 0
    assert [row["generated_tokens"] for row in bench.rows()] == [24, 24]
    # Each page of both answers went to the store once: 20 and 23 whole strides of four.
    assert len(bench.lanes.store) == 2 * (3 + 20)


@pytest.mark.parametrize("policy", ["none", "write_through_selective", "write_back"])
def test_untimed_it_writes_what_the_policy_would_not(policy: str) -> None:
    for decode, offloaded in ((False, 0), (True, 3 + 8)):
        env = Environment(0)
        bench = Bench(
            30, 20, 100, prefetch={}, cache={"outputs": "cached", "write_policy": policy},
            offload={"decode": decode, "stride_tokens": 4},
        )  # fmt: skip
        bench.ask(0, range(3), output=11)  # ten tokens with KV: two strides
        engine, contents = Engine(env, InstantLanes(env), bench.options), StoreContents()
        engine.serve_untimed(bench.requests, contents)
        engine.check_integrity()
        assert contents.pages == engine.metrics.directions["d2h"].pages == offloaded
        assert engine.metrics.offloaded_pages == (8 if decode else 0)


def test_untimed_write_through_is_the_same_with_it() -> None:
    rows = []
    for decode in (False, True):
        env = Environment(0)
        bench = Bench(
            9, 20, 100, cache={"outputs": "cached"}, prefetch={}, offload={"decode": decode}
        )
        bench.ask(0, range(3), output=5)
        bench.ask(0, range(20, 26))
        bench.ask(0, range(5))
        engine = Engine(env, InstantLanes(env), bench.options)
        engine.serve_untimed(bench.requests)
        rows.append((engine.metrics.rows.tobytes(), engine.metrics.directions["d2h"].operations))
    assert rows[0] == rows[1]


def test_it_is_off_without_an_l3_and_without_cached_answers() -> None:
    on = OffloadOptions(decode=True)
    assert EngineOptions(1, 1, 10, 10, 10, offload=on).offload_pages == 1
    assert EngineOptions(1, 1, 10, 10, offload=on).offload_pages == 0
    with pytest.raises(InputError, match=r"offload\.stride_tokens is -1"):
        OffloadOptions(True, -1)
