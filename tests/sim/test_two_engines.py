"""Engines that live in one environment: apart from the devices they share, they know nothing of
each other.
"""

from __future__ import annotations

from by_hand import H200_BY_HAND
from simpy import Environment

from hicache.engine import Engine
from hicache.options import EngineOptions, RestoreOptions
from hicache.requests import Request
from scenario.profile import load_profile
from sim.lanes import SimMachine

PAGE = 64
OPTIONS = EngineOptions(
    page_size_tokens=PAGE,
    bytes_per_token=147_456,
    device_pages=200,
    host_pages=300,
    storage_pages=2000,
    restore=RestoreOptions(policy="always"),
    check_every_steps=1,
)


def requests(first_key: int) -> list[Request]:
    """Four prompts of 100 pages, asked for three times: L1 holds two of them, L2 three, L3 all."""
    return [
        Request(
            number=number,
            arrival_ns=number * 2_000_000_000,
            prompt_tokens=100 * PAGE + 1,
            output_tokens=2,
            prompt_runs=((first_key + number % 4 * 1000, 100),),
            prompt_pages=100,
        )
        for number in range(12)
    ]


def served(engines: int) -> tuple[SimMachine, list[Engine]]:
    env = Environment(0)
    machine = SimMachine(env, load_profile(H200_BY_HAND))
    running = [Engine(env, machine.lanes(), OPTIONS) for _ in range(engines)]
    for place, engine in enumerate(running):
        engine.serve(requests(place * 1_000_000))
    env.run()
    for engine in running:
        engine.check_integrity()
    return machine, running


def test_each_engine_takes_its_own_decisions_and_keeps_its_own_books():
    _, (alone,) = served(1)
    _, pair = served(2)
    for engine in pair:
        assert engine.metrics.requests == 12
        assert engine.metrics.cached_pages == alone.metrics.cached_pages
        assert engine.metrics.cached_pages[2] > 0


def test_engines_share_the_bandwidth_of_the_disk_and_nothing_else():
    _, (alone,) = served(1)
    _, pair = served(2)
    read, write = (alone.metrics.directions[name] for name in ("s2h", "h2s"))
    for engine in pair:
        stats = engine.metrics.directions
        assert stats["s2h"].size_bytes == read.size_bytes
        assert stats["s2h"].service_ns > 1.2 * read.service_ns
        assert stats["h2s"].service_ns > 1.2 * write.service_ns
        assert stats["d2h"].service_ns == alone.metrics.directions["d2h"].service_ns


def test_two_engines_end_the_same_way_every_time():
    rows = [[engine.metrics.rows for engine in served(2)[1]] for _ in range(2)]
    assert rows[0] == rows[1]
