"""A recorded run is repeated exactly, and what does not fit the record is refused."""

from __future__ import annotations

import gc
import json
from functools import cache
from random import Random

import pytest
from adversarial_lanes import AdversarialLanes, in_turn
from engine_runs import Run, assert_good, counters_of, drain, rows_of
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
from hicache.record import Record, Recorder, ReplayLanes


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


def test_lines_that_are_put_off_are_the_same_lines():
    workload = eventful()[0]
    lines: list[list[str]] = []
    for put_off in (False, True):
        lines.append([])
        env = Environment(0)
        recorder = Recorder(env, AdversarialLanes(env, in_turn(workload.fates)), lines[-1].append)
        if put_off:
            write = recorder.put_off()
        engine = Engine(env, recorder, workload.options)
        engine.serve(workload.requests())
        drain(env)
        if put_off:
            assert len(lines[1]) == 1
            write()
            assert len(lines[1]) == len(lines[0]) - 1 > 10
        recorder.close()
    assert lines[0] == lines[1]


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


@given(workloads, st.integers(0, 10_000))
@examples(60)
def test_what_a_cut_record_holds_is_replayed_to_its_end(workload, place):
    """Whoever was done when the last completion was seen is done in the replay: operations that
    were under way beside it hold nobody up.
    """
    run = Run(workload, recorded=True)
    lines = run.lines[: 1 + place % (len(run.lines) - 1)]
    last_ns = Record(lines).last_ns
    env = Environment(0)
    lanes = ReplayLanes(env, Record(lines))
    engine = Engine(env, lanes, workload.options)
    lanes.deliver_inputs(engine)
    engine.serve(workload.requests())
    with pytest.raises(RecordEnded):
        drain(env)
    assert int(env.now) == last_ns + 1
    again = {row["request"]: row for row in rows_of(engine)}
    for row in rows_of(run.engine):
        if row["e2e_ns"] < 0:
            continue
        end_ns = row["arrival_ns"] + row["e2e_ns"]
        if end_ns < last_ns:
            assert again[row["request"]] == row
        elif end_ns > last_ns:
            assert row["request"] not in again


def test_every_line_is_missed():
    """Whatever line is deleted: one named error, never a broken invariant or a result."""
    workload, lines = eventful()
    for place, line in enumerate(lines):
        kind = json.loads(line)[0]
        ending = {"record": RecordError, "end of record": RecordEnded}.get(kind, ReplayDivergence)
        with pytest.raises(RecordError) as refused:
            replay(workload, [*lines[:place], *lines[place + 1 :]])
        assert type(refused.value) is ending, line


def test_a_missing_completion_is_named():
    workload, lines = eventful()
    for place in endings(lines):
        number = json.loads(lines[place])[1]
        with pytest.raises(ReplayDivergence, match=rf"does not hold operation {number},"):
            replay(workload, [*lines[:place], *lines[place + 1 :]])


def test_a_record_cut_off_at_any_character_ends_in_a_record_error():
    """The first line cut leaves no record; the last one but for its end is whole."""
    workload, lines = eventful()
    text = "\n".join(lines)
    for length in range(0, len(text), 41):
        with pytest.raises(RecordError) as refused:
            replay(workload, text[:length].splitlines())
        assert (type(refused.value) is RecordEnded) == (length >= len(lines[0]))


def test_a_time_on_which_no_decision_rests_is_held_by_the_hash():
    """Started, finished, setup: nothing that the engine does depends on them."""
    workload, lines = eventful()
    refused = 0
    for place in endings(lines)[::3]:
        items = json.loads(lines[place])
        if items[0] == "failed" or items[5] == items[6]:
            continue
        for field in (4, 5, 7):
            changed = list(items)
            changed[field] += -1 if field == 4 and items[4] == items[5] else 1
            text = json.dumps(changed, separators=(",", ":"))
            with pytest.raises(ReplayDivergence, match=r"changed after it|operation"):
                replay(workload, [*lines[:place], text, *lines[place + 1 :]])
            refused += 1
    assert refused > 5


def test_a_record_without_a_hash_is_one_of_an_older_version():
    workload, lines = eventful()
    assert len(json.loads(lines[-1])) == 2
    replay(workload, [*lines[:-1], '["end of record"]'])
    other = ["end of record", "0" * 64]
    with pytest.raises(ReplayDivergence, match="changed after it was written"):
        replay(workload, with_line(lines, len(lines) - 1, other))


def test_nothing_comes_after_the_end_of_a_record():
    _, lines = eventful()
    with pytest.raises(RecordError, match=f"the record, line {len(lines) + 1}"):
        Record([*lines, lines[1]], "the record")


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
