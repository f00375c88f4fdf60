"""The whole engine on the adversarial machine: any workload, options, faults and aborts."""

from __future__ import annotations

from dataclasses import replace

from engine_runs import (
    Run,
    assert_at_rest,
    assert_bytes_add_up,
    assert_good,
    assert_rows_add_up,
    rows_of,
)
from examples import examples
from hypothesis import given
from naive_caches import InstantLanes
from simpy import Environment
from small_workloads import calm_workloads, workloads

from hicache.engine import Engine


@given(workloads)
@examples(120)
def test_any_run_ends_at_rest_and_adds_up(workload):
    assert_good(Run(workload))


@given(calm_workloads)
@examples(60)
def test_any_run_without_faults_moves_exactly_what_it_counts(workload):
    assert_good(Run(workload))


@given(calm_workloads)
@examples(60)
def test_any_untimed_run_ends_at_rest_and_adds_up(workload):
    env = Environment(0)
    engine = Engine(env, InstantLanes(env), workload.options)
    requests = workload.requests()

    def checked():
        for request in requests:
            yield request
            assert_at_rest(engine)

    engine.serve_untimed(checked())
    assert_rows_add_up(engine, requests, timed=False)
    assert_bytes_add_up(engine, workload, sum(engine.metrics.cached_pages[1:]))


@given(calm_workloads)
@examples(60)
def test_one_at_a_time_a_cache_with_room_for_all_hits_all_it_can(workload):
    """Less the last token's page, where hits are capped."""
    calls = tuple(replace(call, gap_ns=1_000_000) for call in workload.calls)
    workload = replace(workload, calls=calls, aborts=()).but(device_pages=10_000)
    run = Run(workload)
    assert_good(run)
    page = workload.options.page_size_tokens
    for request, row in zip(run.requests, rows_of(run.engine), strict=True):
        most = request.ideal_pages
        if workload.options.cache.hit_cap == "last_token_computed":
            most = min(most, (request.prompt_tokens - 1) // page)
        assert row["device_pages"] == most
