"""A store that is asked by page key, on the simulated machine: times, bytes, and who finds what."""

from __future__ import annotations

import json
from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest
from by_hand import H200_BY_HAND
from lanes_contract import Watched
from simpy import Environment

from hicache.engine import Engine
from hicache.operations import Copy, Lookup, Operation
from hicache.options import EngineOptions, PrefetchOptions, RestoreOptions, StorageOptions
from hicache.record import Record
from hicache.requests import Request
from hicache.store_contents import StoreContents
from scenario.load import load_scenario
from scenario.profile import load_profile
from scenario.stores import STORES
from sim.lanes import SimLanes, SimMachine
from sim.replay import replay

REPOSITORY = Path(__file__).resolve().parents[2]
MIB = 1 << 20
PAGE = 64


def machine_with(contents: StoreContents, store: str = "") -> tuple[Environment, SimMachine]:
    env = Environment(0)
    known = STORES[store] if store else None
    return env, SimMachine(env, load_profile(H200_BY_HAND), store=known, contents=contents)


def took_ns(env: Environment, lanes: SimLanes, operation: Operation) -> tuple[int, int]:
    """How long an operation takes alone, and its answer."""
    watched = Watched(env, lanes.submit(operation))
    env.run()
    done = watched.done
    return done.finished_ns - done.started_ns, done.answer


@pytest.mark.parametrize("store", ["", "mooncake"])
def test_only_what_is_moved_takes_bandwidth(store: str) -> None:
    contents = StoreContents()
    contents.write(((0, 40),))
    env, machine = machine_with(contents, store)
    lanes = machine.lanes()
    whole = Copy("s2h", 100, 800 * MIB, 1, (), (), ((0, 100),))
    part, came = took_ns(env, lanes, whole)
    alone, _ = took_ns(env, lanes, Copy("s2h", 40, 320 * MIB, 1, (), (), ((0, 40),)))
    assert came == 40
    assert abs(part - alone) <= 2
    contents.write(((0, 100),))
    longer, came = took_ns(env, lanes, whole)
    assert came == 100
    assert longer > 2 * part


def test_a_write_of_what_is_there_moves_nothing() -> None:
    contents = StoreContents()
    env, machine = machine_with(contents)
    lanes = machine.lanes()
    write = Copy("h2s", 8, 80 * MIB, 1, (), (), ((0, 8),))
    first, new = took_ns(env, lanes, write)
    again, old = took_ns(env, lanes, write)
    assert (new, old) == (8, 0)
    assert again < first / 10


def test_a_question_takes_what_the_model_says() -> None:
    contents = StoreContents()
    contents.write(((0, 10),))
    for store, look_ns in (("mooncake", 100_000 + 64 * 1000), ("simm", 20_000 + 64 * 1000)):
        env, machine = machine_with(contents, store)
        took, answer = took_ns(env, machine.lanes(), Lookup(64, ((0, 64),)))
        assert (took, answer) == (look_ns, 10)


def test_questions_do_not_wait_for_one_another() -> None:
    env, machine = machine_with(StoreContents(), "mooncake")
    lanes = machine.lanes()
    asked = [Watched(env, lanes.submit(Lookup(pages, ((0, pages),)))) for pages in (128, 1)]
    env.run()
    took = [each.done.finished_ns - each.done.submitted_ns for each in asked]
    assert took == [100_000 + 128 * 1000, 100_000 + 1000]


# ---------------------------------------------------------------------- two engines, one store

OPTIONS = EngineOptions(
    page_size_tokens=PAGE,
    bytes_per_token=147_456,
    device_pages=300,
    host_pages=600,
    storage_pages=2000,
    restore=RestoreOptions(policy="always"),
    check_every_steps=1,
    storage=StorageOptions("store"),
    prefetch=PrefetchOptions("queued"),
)


def prompt(number: int, at_ns: int, first_key: int = 0) -> Request:
    return Request(number, at_ns, 100 * PAGE + 1, 2, ((first_key, 100),), 100)


def two_engines(a_ns: int, b_ns: int, options: EngineOptions = OPTIONS) -> list[Engine]:
    """Each gets the same prompt, at its time."""
    env, machine = machine_with(StoreContents(options.storage_pages))
    engines = [Engine(env, machine.lanes(), options) for _ in range(2)]
    for engine, at_ns in zip(engines, (a_ns, b_ns), strict=True):
        engine.serve([prompt(0, at_ns)])
    env.run()
    for engine in engines:
        engine.check_integrity()
    return engines


def test_what_one_engine_has_written_is_a_hit_on_the_other() -> None:
    a, b = two_engines(0, 5_000_000_000)
    assert a.metrics.cached_pages == [0, 0, 0]
    assert b.metrics.cached_pages == [0, 0, 100]
    assert b.metrics.directions["h2s"].pages == 0  # it was there


def test_what_is_not_written_yet_is_no_hit() -> None:
    _, b = two_engines(0, 1000)
    assert b.metrics.cached_pages == [0, 0, 0]


def test_a_store_that_is_full_forgets_the_oldest() -> None:
    _, b = two_engines(0, 5_000_000_000, replace(OPTIONS, storage_pages=60))
    assert b.metrics.cached_pages == [0, 0, 0]


# ---------------------------------------------------------------------- every option of it

OTHERS: dict[str, object] = {
    "prefetch.threshold_tokens": 6000,
    "prefetch.stop": "best_effort",
    "prefetch.timeout_base_s": 0.01,
    "prefetch.timeout_per_ki_token_s": 0.002,
    "prefetch.timeout_max_s": 0.05,
    "prefetch.query_batch_pages": 4,
    "prefetch.read_batch_pages": 4,
    "prefetch.workers": 4,
    "prefetch.limit": "host_less_device",
    "prefetch.limit_fraction": 0.02,
    "prefetch.allocate": "before_lookup",
    "prefetch.shortfall": "revoke",
    "prefetch.publish": "turn",
    "prefetch.retries": 3,
    "machine.store": "mooncake",
    "ranks.tp": 4,
    "ranks.tp_lcm_size": 8,
    "tiers.l3": "300pages",
}
# What a change shows only beside another one.
WITH: dict[str, dict[str, object]] = {
    "prefetch.timeout_per_ki_token_s": {"prefetch.timeout_base_s": 0.0},
    "prefetch.retries": {"prefetch.limit_fraction": 0.05, "scheduler.max_running_requests": 2},
    "prefetch.publish": {"scheduler.max_running_requests": 2},
    "ranks.tp_lcm_size": {"machine.store": "mooncake", "ranks.tp": 2},
}


@pytest.fixture(scope="module")
def trace(tmp_path_factory: pytest.TempPathFactory) -> Path:
    lines = (REPOSITORY / "data" / "agents.jsonl").read_text().splitlines()[:120]
    path = tmp_path_factory.mktemp("trace") / "some.jsonl"
    path.write_text("\n".join(lines) + "\n")
    return path


@cache
def result(trace: Path, changed: tuple[tuple[str, object], ...]) -> str:
    options: dict[str, object] = {
        "preset": "sglang-0.5.20", "trace.path": str(trace), "tiers.l1": "700pages",
        "tiers.l2": "900pages", "tiers.l3": "50000pages", "trace.speed": 4.0, **dict(changed),
    }  # fmt: skip
    outcome = replay(load_scenario(None, options))
    summary = dict(outcome.summary)
    hits, lost = summary["storage_prefetch_hit_tokens_total"], 0
    unfulfilled = summary["storage_prefetch_unfulfilled_tokens_total"]
    assert isinstance(unfulfilled, dict)
    lost = sum(unfulfilled.values())
    assert summary["prefetch_fulfilled_tokens"] + lost == hits  # type: ignore[operator]
    del summary["estimates"], summary["warnings"]
    columns = {name: list(column) for name, column in outcome.columns.items()}
    return json.dumps([summary, columns], default=str)


@pytest.mark.parametrize("key", OTHERS)
def test_each_option_changes_the_result(trace: Path, key: str) -> None:
    beside = tuple(WITH.get(key, {}).items())
    assert result(trace, beside) != result(trace, (*beside, (key, OTHERS[key])))


@pytest.mark.parametrize("preset", ["sglang-0.5.9", "sglang-0.5.20"])
def test_a_record_of_it_replays(trace: Path, preset: str) -> None:
    scenario = load_scenario(
        None,
        {
            "preset": preset, "trace.path": str(trace), "tiers.l1": "700pages",
            "tiers.l2": "900pages", "tiers.l3": "50000pages", "engine.page_ids": "named",
        },
    )  # fmt: skip
    first = replay(scenario, record=True)
    text = first.extras["completions.jsonl"]
    assert '"Lookup"' in text
    second = replay(scenario, replay_of=Record(text.splitlines()))
    for outcome in (first, second):
        del outcome.summary["estimates"]
        del outcome.summary["warnings"]
    assert second.summary == first.summary
    assert second.columns == first.columns


def test_a_record_holds_questions_and_their_answers() -> None:
    line = '["done",0,["Lookup",3,[[7,3]]],0,0,5,5,0,2,[]]'
    record = Record(['["record",1,""]', line])
    done = record.endings[0]
    assert done[2] == Lookup(3, ((7, 3),))
    assert done[8] == 2
