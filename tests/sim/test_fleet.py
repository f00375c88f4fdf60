"""Several engines behind a router: who gets what, what they share, and what they are together."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from by_hand import H200_BY_HAND
from simpy import Environment

from hicache.engine import Engine
from hicache.errors import InputError
from hicache.metrics import Metrics
from hicache.options import EngineOptions, LoadOptions, RouterName
from hicache.requests import Request
from hicache.router import Router, held_pages
from scenario.load import load_scenario
from scenario.profile import load_profile
from sim.fleet import Fleet, together
from sim.instant import InstantLanes
from sim.lanes import SimMachine
from sim.replay import prepare, replay

REPOSITORY = Path(__file__).resolve().parents[2]
PAGE = 64
ROUTERS: tuple[RouterName, ...] = ("round_robin", "cache_aware")
OPTIONS = EngineOptions(PAGE, 147_456, 400, 800, check_every_steps=1)


def request(number: int, first_key: int, at_ns: int = 0, pages: int = 20) -> Request:
    return Request(number, at_ns, pages * PAGE + 1, 20, ((first_key, pages),), pages)


def idle(count: int) -> list[Engine]:
    env = Environment(0)
    return [Engine(env, InstantLanes(env), OPTIONS) for _ in range(count)]


def picks(router: Router, engines: list[Engine], requests: list[Request]) -> list[int]:
    return [engines.index(router.pick(each)) for each in requests]


# ---------------------------------------------------------------------- who serves


def test_round_robin() -> None:
    engines = idle(3)
    router = Router(engines, "round_robin")
    assert picks(router, engines, [request(n, 0) for n in range(7)]) == [0, 1, 2, 0, 1, 2, 0]


def load(engine: Engine, count: int, first: int = 0) -> None:
    for number in range(count):
        engine.scheduler.enqueue(request(first + number, 10_000 + 100 * number))


def test_least_loaded_and_the_first_of_equals() -> None:
    engines = idle(3)
    router = Router(engines, "least_loaded")
    assert picks(router, engines, [request(0, 0)]) == [0]
    load(engines[0], 2)
    load(engines[1], 1)
    load(engines[2], 1)
    assert picks(router, engines, [request(0, 0)]) == [1]


def test_cache_aware_goes_where_the_prompt_is() -> None:
    engines = idle(3)
    router = Router(engines, "cache_aware")
    engines[2].serve_untimed([request(0, 0)])
    assert picks(router, engines, [request(1, 0)]) == [2]
    assert picks(router, engines, [request(1, 500)]) == [0]
    # Half of the prompt is enough, less is not.
    assert picks(router, engines, [request(1, 0, pages=40)]) == [2]
    assert picks(router, engines, [request(1, 0, pages=41)]) == [0]


def test_cache_aware_of_equal_hits_takes_the_idler() -> None:
    engines = idle(3)
    router = Router(engines, "cache_aware")
    for engine in engines[1:]:
        engine.serve_untimed([request(0, 0)])
    load(engines[1], 2)
    assert picks(router, engines, [request(1, 0)]) == [2]


@pytest.mark.parametrize(("least", "most", "to"), [(0, 64, 2), (0, 65, 0), (150, 220, 2)])
def test_cache_aware_gives_way_to_load(least: int, most: int, to: int) -> None:
    """By more than 64 requests, and more than one and a half times."""
    engines = idle(3)
    router = Router(engines, "cache_aware")
    engines[2].serve_untimed([request(0, 0)])
    load(engines[0], least)
    load(engines[1], least)
    load(engines[2], most)
    assert picks(router, engines, [request(1000, 0)]) == [to]


def test_a_router_does_not_touch() -> None:
    (engine,) = idle(1)
    engine.serve_untimed([request(0, 0), request(1, 0, pages=30)])
    tree = engine.tree
    before = (tree.clock, tree.nodes, tree.splits)
    assert held_pages(tree, ((0, 7),)) == 7
    assert held_pages(tree, ((0, 30), (900, 5))) == 30
    assert held_pages(tree, ((0, 20), (900, 5))) == 20
    assert held_pages(tree, ((900, 5),)) == 0
    assert (tree.clock, tree.nodes, tree.splits) == before


# ---------------------------------------------------------------------- together


def served(router: RouterName, count: int) -> tuple[Fleet, SimMachine]:
    env = Environment(0)
    machine = SimMachine(env, load_profile(H200_BY_HAND))
    fleet = Fleet(env, [Engine(env, machine.lanes(), OPTIONS) for _ in range(count)], router)
    requests = [request(n, n % 3 * 1000, n * 1_000_000_000) for n in range(12)]
    fleet.serve(requests, LoadOptions())
    env.run()
    fleet.check_integrity()
    return fleet, machine


def test_totals_are_those_of_all() -> None:
    fleet, _ = served("round_robin", 4)
    parts = [engine.metrics for engine in fleet.engines]
    total = fleet.metrics
    assert [part.requests for part in parts] == [3, 3, 3, 3]
    assert total.requests == 12
    assert total.prompt_tokens == sum(part.prompt_tokens for part in parts)
    assert total.cached_tokens == [
        sum(each) for each in zip(*(p.cached_tokens for p in parts), strict=True)
    ]
    assert total.max_running == max(part.max_running for part in parts)
    assert total.first_arrival_ns == 0
    assert total.last_token_ns == max(part.last_token_ns for part in parts)
    assert total.directions["d2h"].pages == sum(part.directions["d2h"].pages for part in parts)
    assert sorted(total.column("request")) == list(range(12))
    assert len(total.reasons) == 12
    assert [tier.capacity for tier in fleet.tree.tiers] == [1600, 3200, 0]


def test_the_total_of_one_is_that_one() -> None:
    fleet, _ = served("least_loaded", 1)
    (only,) = fleet.engines
    total = together([only.metrics])
    for name, value in vars(only.metrics).items():
        if name != "directions":
            assert getattr(total, name) == value, name
    assert vars(Metrics()).keys() == vars(total).keys()


def test_cache_aware_hits_more_than_one_after_the_other() -> None:
    by_turns, aware = (sum(served(name, 4)[0].metrics.cached_pages) for name in ROUTERS)
    assert (by_turns, aware) == (0, 9 * 20)


# ---------------------------------------------------------------------- in a scenario


def options(trace: Path, **changed: object) -> dict[str, object]:
    given: dict[str, object] = {
        "preset": "sglang-0.5.20", "trace.path": str(trace), "tiers.l1": "700pages",
        "tiers.l2": "900pages", "tiers.l3": "50000pages", "engine.check_every_steps": 50,
    }  # fmt: skip
    return given | {key.replace("__", "."): value for key, value in changed.items()}


@pytest.fixture(scope="module")
def trace(tmp_path_factory: pytest.TempPathFactory) -> Path:
    lines = (REPOSITORY / "data" / "agents.jsonl").read_text().splitlines()[:120]
    path = tmp_path_factory.mktemp("trace") / "some.jsonl"
    path.write_text("\n".join(lines) + "\n")
    return path


@pytest.mark.parametrize("mode", ["timed", "untimed"])
def test_a_store_is_shared_and_a_private_l3_is_not(trace: Path, mode: str) -> None:
    for preset, shares in (("sglang-0.5.20", True), ("mini-hicache", False)):
        given = options(trace, mode=mode, preset=preset, restore__policy="always")
        one = replay(load_scenario(None, given)).summary
        four = replay(load_scenario(None, given | {"instances": 4})).summary
        assert ("instances" in one, len(four["instances"])) == (False, 4)  # type: ignore[arg-type]
        written = [each["backuped_tokens_total"] for each in (one, four)]
        if shares:  # pages that another one wrote are not written again
            assert written[1] <= written[0] * 1.002  # type: ignore[operator]
        else:
            assert written[1] > written[0] * 2  # type: ignore[operator]
        for key in ("requests", "prompt_tokens", "computed_tokens"):
            assert four[key] == sum(each[key] for each in four["instances"])  # type: ignore
        assert four["prompt_tokens"] == one["prompt_tokens"]


def test_the_same_twice(trace: Path) -> None:
    given = options(trace, instances=3, router="least_loaded")
    texts = [json.dumps(replay(load_scenario(None, given)).summary) for _ in range(2)]
    assert texts[0] == texts[1]


def test_a_closed_loop_of_several(trace: Path) -> None:
    given = options(trace, instances=2, load__loop="closed", load__clients=4)
    assert replay(load_scenario(None, given)).summary["requests"] == 120


def test_what_is_of_one_engine_is_refused(trace: Path) -> None:
    scenario = load_scenario(None, options(trace, instances=2))
    for asked in ({"record": True}, {"timeline": True}):
        with pytest.raises(InputError, match="instances is 2"):
            prepare(scenario, **asked)
    with pytest.raises(InputError, match="instances is 0: it must lie between 1 and 1024"):
        load_scenario(None, options(trace, instances=0))


def test_a_router_without_a_choice_is_said(trace: Path) -> None:
    scenario = load_scenario(None, options(trace, router="least_loaded"))
    assert any("router is least_loaded but has no effect" in w for w in prepare(scenario).warnings)
