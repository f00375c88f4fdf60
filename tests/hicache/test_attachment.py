"""L3 attached and detached at run time: when it happens, and what the engine does without it."""

from __future__ import annotations

from typing import Any

import pytest
from bench import Bench
from engine_runs import assert_at_rest

from hicache.operations import Lookup

S = 1e-9  # options are in seconds, the bench in ns


def bench_with(attach_ns: int = 0, detach_ns: int = 0, **options: Any) -> Bench:
    switches = {"attach_s": attach_ns * S, "detach_s": detach_ns * S}
    return Bench(200, 100, 1000, prefetch={}, switches=switches, **options)


def finished(bench: Bench) -> Bench:
    bench.run()
    assert_at_rest(bench.engine)
    for row in bench.rows():
        sources = ("device_tokens", "host_tokens", "storage_tokens", "computed_tokens")
        assert sum(row[name] for name in sources) == row["prompt_tokens"]
    return bench


def asked_at(bench: Bench) -> list[int]:
    """When L3 was asked, read or written."""
    return [
        pending.submitted_ns
        for pending, operation in bench.lanes.submitted
        if isinstance(operation, Lookup) or getattr(operation, "direction", "") in ("s2h", "h2s")
    ]


def test_between_a_detach_and_an_attach_l3_is_neither_asked_nor_written() -> None:
    bench = bench_with(attach_ns=6000, detach_ns=3000)
    for place in range(8):
        bench.ask(1500 * place, range(20 * place, 20 * place + 8))
    times = asked_at(finished(bench))
    assert {at // 1500 for at in times} == {0, 1, 4, 5, 6, 7}  # not those that came at 3000, 4500
    assert sorted(bench.lanes.store) == [
        key for place in (0, 1, 4, 5, 6, 7) for key in range(20 * place, 20 * place + 8)
    ]
    assert (bench.metrics.attached, bench.metrics.detached) == (1, 1)


def test_what_is_in_the_store_stays() -> None:
    bench = bench_with(attach_ns=6000, detach_ns=3000)
    bench.lanes.store.update(dict.fromkeys(range(100, 200)))
    bench.ask(4000, range(100, 108))
    bench.ask(7000, range(150, 158))
    without, again = finished(bench).rows()
    assert (without["computed_tokens"], again["storage_tokens"]) == (8, 7)
    assert set(range(100, 200)) <= set(bench.lanes.store)


def test_attached_later_it_is_not_there_before() -> None:
    bench = bench_with(attach_ns=3000)
    bench.lanes.store.update(dict.fromkeys(range(100)))
    bench.ask(0, range(8))
    bench.ask(4000, range(20, 28))
    first, second = finished(bench).rows()
    assert (first["computed_tokens"], second["storage_tokens"]) == (8, 7)
    assert min(asked_at(bench)) >= 4000
    assert not set(range(8)) & set(asked_keys(bench))  # what came without it is not made good for


def asked_keys(bench: Bench) -> list[int]:
    """Page keys that were written to L3."""
    return [
        key
        for copy in bench.copies("h2s")
        for first, count in copy.keys
        for key in range(first, first + count)
    ]


def test_it_waits_until_no_request_is_in_the_engine() -> None:
    bench = bench_with(detach_ns=100)
    bench.ask(0, range(8), output=100)  # decodes until 1000 and more
    bench.ask(300, range(20, 28))  # refused so far
    bench.ask(5000, range(40, 48))
    finished(bench)
    assert set(range(20, 28)) <= set(bench.lanes.store)
    assert not set(range(40, 48)) & set(bench.lanes.store)
    assert bench.metrics.detached == 1


def test_it_waits_for_what_is_on_its_way_to_l3() -> None:
    bench = bench_with(detach_ns=1000)
    bench.holding.add("h2s")
    bench.ask(0, range(8))
    bench.ask(2000, range(20, 28))  # what the first one left is still being written
    bench.at(3000, lambda: bench.let("h2s"))
    bench.ask(4000, range(40, 48))
    finished(bench)
    assert set(range(28)) - set(range(8, 20)) <= set(bench.lanes.store)
    assert not set(range(40, 48)) & set(bench.lanes.store)


def test_a_read_for_an_aborted_request_is_waited_for() -> None:
    bench = bench_with(detach_ns=1000)
    bench.lanes.store.update(dict.fromkeys(range(100)))
    bench.holding.add("s2h")
    bench.ask(0, range(8))
    bench.at(100, lambda: bench.engine.abort(0))
    bench.ask(2000, range(20, 28))
    bench.at(3000, lambda: bench.let("s2h"))
    bench.ask(4000, range(40, 48))
    rows = finished(bench).rows()
    assert rows[1]["storage_tokens"] == 7  # L3 was still there
    assert rows[2]["computed_tokens"] == 8


def test_a_moment_in_which_it_went_and_came_back_leaves_it_there() -> None:
    bench = bench_with(attach_ns=200, detach_ns=100)
    bench.ask(0, range(8), output=100)
    bench.ask(5000, range(20, 28))
    finished(bench)
    assert set(range(20, 28)) <= set(bench.lanes.store)
    assert (bench.metrics.attached, bench.metrics.detached) == (1, 1)


def test_write_through_goes_on_to_l2_alone() -> None:
    bench = bench_with(attach_ns=1_000_000_000)
    bench.ask(0, range(8))
    finished(bench)
    assert [copy.pages for copy in bench.copies("d2h")] == [8]
    assert asked_at(bench) == []
    assert bench.metrics.attached == 0


@pytest.mark.parametrize("at_ns", range(1, 120, 13))
def test_an_abort_beside_a_switch_leaks_nothing(at_ns: int) -> None:
    bench = bench_with(attach_ns=200, detach_ns=50)
    bench.lanes.store.update(dict.fromkeys(range(100)))
    for place in range(6):
        bench.ask(60 * place, range(20 * place, 20 * place + 8), output=3)
        bench.at(60 * place + at_ns, lambda place=place: bench.engine.abort(place))
    finished(bench)
