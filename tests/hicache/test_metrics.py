"""Rows that are put off are the same rows, later."""

from __future__ import annotations

from random import Random

from adversarial_lanes import AdversarialLanes, in_turn
from engine_runs import counters_of, drain
from simpy import Environment
from small_workloads import Workload, random_call

from hicache.engine import Engine
from hicache.options import EngineOptions, RestoreOptions

OPTIONS = EngineOptions(1, 1, 40, 40, 100, restore=RestoreOptions("always"), page_ids="named")


def served() -> Engine:
    """An engine with requests that nobody has begun to serve."""
    env = Environment(0)
    rng = Random(5)
    workload = Workload(OPTIONS, tuple(random_call(rng) for _ in range(20)))
    engine = Engine(env, AdversarialLanes(env, in_turn(workload.fates)), OPTIONS)
    engine.serve(workload.requests())
    return engine


def test_rows_that_are_put_off_are_the_same_rows():
    at_once, later = served(), served()
    add = later.metrics.put_off()
    for engine in (at_once, later):
        drain(engine.env)
    assert at_once.metrics.requests == later.metrics.requests == 20
    assert not later.metrics.rows
    assert later.metrics.prompt_tokens == 0
    for _ in range(2):  # the second time nothing is left
        add()
        counted = counters_of(later)
        for name, value in counters_of(at_once).items():
            assert name == "_waiting" or counted[name] == value, name
