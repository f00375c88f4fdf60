"""A recorded run is repeated exactly, and what does not fit the record is refused."""

from __future__ import annotations

import gc
import json
from functools import cache
from random import Random

import pytest
from engine_runs import Run, assert_good, counters_of, drain
from examples import examples
from hypothesis import given
from hypothesis import strategies as st
from simpy import Environment
from small_workloads import Workload, random_call, random_fate, random_workload, workloads

from hicache.engine import Engine
from hicache.errors import RecordEnded, RecordError, ReplayDivergence, TransferError
from hicache.kernel import Pending
from hicache.operations import DIRECTIONS, Copy
from hicache.options import CacheOptions, EngineOptions, RestoreOptions, SchedulerOptions
from hicache.record import Record, ReplayLanes


def replay(workload: Workload, lines: list[str]) -> Engine:
    """Run `workload` on a record, to the end."""
    env = Environment(0)
    lanes = ReplayLanes(env, Record(lines, "the record"))
    engine = Engine(env, lanes, workload.options)
    lanes.deliver_inputs(engine)
    engine.serve(workload.requests())
    drain(env)
    lanes.finish()
    return engine


@given(workloads)
@examples(70)
def test_a_replay_repeats_every_decision(workload):
    run = Run(workload, recorded=True)
    assert_good(run)
    engine = replay(workload, run.lines)
    engine.check_integrity()
    again = counters_of(engine)
    for name, value in counters_of(run.engine).items():
        assert again[name] == value, name


def test_recording_changes_nothing():
    for seed in range(30):
        workload = random_workload(Random(seed))
        # Aborts come a moment later where they are recorded.
        workload = Workload(workload.options, workload.calls, workload.fates)
        plain, recorded = Run(workload), Run(workload, recorded=True)
        assert counters_of(plain.engine) == counters_of(recorded.engine)


EVERYTHING = EngineOptions(
    1, 1, 16, 12, 60,
    CacheOptions(eviction_granularity="page", write_backlog_fraction=1.0),
    RestoreOptions("always"),
    SchedulerOptions(output_reserve_fraction=0.0),
    "named",
    1,
)  # fmt: skip


@cache
def eventful() -> tuple[Workload, list[str]]:
    """A run with everything in its record."""
    for seed in range(200):
        rng = Random(seed)
        calls = tuple(random_call(rng) for _ in range(24))
        fates = tuple(random_fate(rng, 8) for _ in range(17))
        workload = Workload(EVERYTHING, calls, fates, ((30, 1), (700, 5), (2500, 9)))
        run = Run(workload, recorded=True)
        lines = [json.loads(line) for line in run.lines]
        directions = {op.direction for _, op in run.lanes.submitted if isinstance(op, Copy)}
        if (
            {line[0] for line in lines}
            == {"record", "done", "failed", "end", "abort", "end of record"}
            and {line[2][0] for line in lines if line[0] == "done"} == {"Copy", "Prefill", "Decode"}
            and directions == set(DIRECTIONS)
        ):
            assert_good(run)
            return workload, run.lines
    raise AssertionError("no seed gives an eventful run")


def endings(lines: list[str]) -> list[int]:
    """Places of the lines that end an operation."""
    return [place for place, line in enumerate(lines) if line.startswith(('["done"', '["failed"'))]


def tampered(value, choose: int):
    """The nearest other value."""
    if isinstance(value, int):
        return value + 1
    if isinstance(value, str):
        return "h2d" if value != "h2d" else "d2h"
    if not value:
        return [[1, 1]]
    value = list(value)
    place = choose % len(value)
    value[place] = tampered(value[place], choose // len(value))
    return value


def with_line(lines: list[str], place: int, items: list) -> list[str]:
    """The record with another line in one place."""
    return [*lines[:place], json.dumps(items), *lines[place + 1 :]]


def test_every_field_of_an_operation_is_compared():
    workload, lines = eventful()
    for turn, place in enumerate(endings(lines)):
        items = json.loads(lines[place])
        number, operation = items[1], items[2]
        for field in range(1 + turn % 2, len(operation), 2):
            if operation[0] == "Decode" and field == 4 and not operation[4]:
                other = [5]
            else:
                other = tampered(operation[field], place)
            items[2] = [*operation[:field], other, *operation[field + 1 :]]
            with pytest.raises(ReplayDivergence, match=rf"operation {number}\b"):
                replay(workload, with_line(lines, place, items))


def test_another_kind_of_operation_is_refused():
    workload, lines = eventful()
    for place in endings(lines)[::5]:
        items = json.loads(lines[place])
        items[2] = ["Copy", "d2h", 1, 1, 1, [], []] if items[2][0] != "Copy" else [
            "Decode", 1, 1, 1, []
        ]  # fmt: skip
        with pytest.raises(ReplayDivergence, match=rf"operation {items[1]}\b"):
            replay(workload, with_line(lines, place, items))


def test_another_time_of_submission_is_refused():
    workload, lines = eventful()
    for place in endings(lines)[::5]:
        items = json.loads(lines[place])
        items[3] += 1
        with pytest.raises(ReplayDivergence, match=rf"operation {items[1]}\b"):
            replay(workload, with_line(lines, place, items))


def test_another_end_of_a_burst_is_refused():
    workload, lines = eventful()
    places = [place for place, line in enumerate(lines) if line.startswith('["end"')]
    assert places
    for place in places:
        for field in (1, 2):
            items = json.loads(lines[place])
            items[field] += 1
            with pytest.raises(ReplayDivergence):
                replay(workload, with_line(lines, place, items))
        with pytest.raises(ReplayDivergence):
            replay(workload, [*lines[:place], *lines[place + 1 :]])


def test_another_workload_is_refused():
    workload, lines = eventful()
    calls = list(workload.calls)
    calls[0] = calls[0].__class__(0, (1, 1, 1, 1, 1, 1), 0, 7)
    other = Workload(workload.options, tuple(calls), workload.fates, workload.aborts)
    with pytest.raises(ReplayDivergence):
        replay(other, lines)
    fewer = Workload(workload.options, workload.calls[:1], workload.fates, workload.aborts)
    with pytest.raises(RecordError):
        replay(fewer, lines)


def test_the_first_difference_is_the_one_reported():
    """Also where the engine's own tidying up goes on submitting after it."""
    for seed in range(40):
        workload = random_workload(Random(seed))
        run = Run(workload, recorded=True)
        for place in endings(run.lines):
            items = json.loads(run.lines[place])
            if items[2][0] != "Copy":
                continue
            items[2][3] += 1
            with pytest.raises(ReplayDivergence, match=rf"operation {items[1]}\b"):
                replay(workload, with_line(run.lines, place, items))


def test_a_record_cut_off_anywhere_ends_in_record_ended():
    workload, lines = eventful()
    for length in range(1, len(lines)):
        with pytest.raises(RecordEnded):
            replay(workload, lines[:length])
    replay(workload, lines)
    gc.collect()  # what was under way is let go of in silence


@given(workloads, st.integers(0, 10_000))
@examples(60)
def test_any_record_cut_off_anywhere_ends_in_record_ended(workload, place):
    run = Run(workload, recorded=True)
    length = 1 + place % (len(run.lines) - 1)
    with pytest.raises(RecordEnded):
        replay(workload, run.lines[:length])


def test_a_header_alone_is_a_record_that_was_cut_off():
    workload, lines = eventful()
    header = json.dumps(["record", *json.loads(lines[0])[1:2], ""])
    with pytest.raises(RecordEnded):
        replay(workload, [header])


def test_a_last_line_that_was_cut_off_is_where_the_record_ends():
    """A run that dies leaves half a line."""
    workload, lines = eventful()
    with pytest.raises(RecordEnded):
        replay(workload, [*lines[:20], lines[20][:-7]])


HEADER = '["record",1,"x"]'
COPY = '["Copy","d2h",1,1,1,[],[]]'


@pytest.mark.parametrize(
    "line",
    [
        "",
        "nonsense",
        "[]",
        "5",
        "null",
        '{"done": 1}',
        '["what is this"]',
        '["done"]',
        '["done",0]',
        f'["done",0,{COPY}]',
        f'["done",0,{COPY},0,0,0]',
        f'["done","0",{COPY},0,0,0,1,0,0,[]]',
        f'["done",0,{COPY},0,0,0,"1",0,0,[]]',
        '["done",0,["Sleep",1],0,0,0,1,0,0,[]]',
        '["done",0,["Copy","d2h"],0,0,0,1,0,0,[]]',
        '["done",0,["Copy","sideways",1,1,1,[],[]],0,0,0,1,0,0,[]]',
        '["done",0,["Prefill",[[1,2]],3,0,0],0,0,0,1,0,0,[]]',
        '["done",0,["Decode",1,2,3],0,0,0,1,0,0,[]]',
        f'["failed",0,{COPY},0]',
        '["end",1]',
        '["end","a","b"]',
        '["abort",1]',
        '["abort","soon",1]',
        '["record",99,"of the future"]',
        '["record"]',
    ],
)
def test_what_is_not_a_line_of_a_record_is_named(line):
    with pytest.raises(RecordError, match="the record, line 2"):
        Record([HEADER, line, '["end of record"]'], "the record")


def test_no_line_at_all_is_no_record():
    with pytest.raises(RecordError, match="the record"):
        Record([], "the record")


def test_a_completion_before_its_submission_is_a_record_error():
    workload, lines = eventful()
    place = endings(lines)[3]
    items = json.loads(lines[place])
    items[6 if items[0] == "done" else 4] = 0
    with pytest.raises(RecordError):
        replay(workload, with_line(lines, place, items))


def test_a_failure_is_replayed_as_one():
    env = Environment(0)
    failed = '["failed",0,["Copy","d2h",1,1,1,[],[]],0,25,"it broke"]'
    lanes = ReplayLanes(env, Record([HEADER, failed, '["end of record"]']))
    pending: Pending = lanes.submit(Copy("d2h", 1, 1, 1))
    seen = []

    def look(event):
        event._defused = True
        seen.append((env.now, event.value))

    pending.callbacks.append(look)
    drain(env)
    ((now, error),) = seen
    assert now == 25
    assert isinstance(error, TransferError)
    assert error.args == ("it broke",)
    lanes.finish()
