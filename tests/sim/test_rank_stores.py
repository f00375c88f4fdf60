"""Ranks on the simulated machine, each with its own part of a page in a store."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import count
from random import Random

import pytest
from by_hand import H200_BY_HAND
from lanes_contract import Watched
from simpy import Environment

from hicache.engine import Engine
from hicache.operations import Completion, Copy, Lookup, Operation
from hicache.options import EngineOptions, PrefetchOptions, RestoreOptions, StorageOptions
from hicache.requests import Request
from hicache.store_contents import StoreContents
from scenario.geometry import load_geometry
from scenario.profile import load_profile
from scenario.ranks import RankOptions, rank_geometry
from scenario.stores import STORES
from sim.faulty import FaultyLanes
from sim.lanes import SimMachine

QWEN, DEEPSEEK = load_geometry("Qwen3-8B"), load_geometry("DeepSeek-V3")
MIB, MS, SECOND = 1 << 20, 1_000_000, 1_000_000_000
PAGE = 64
OPTIONS = EngineOptions(
    page_size_tokens=PAGE,
    bytes_per_token=1,  # of one rank; set in `server`
    device_pages=300,
    host_pages=600,
    storage_pages=2000,
    restore=RestoreOptions(policy="always"),
    check_every_steps=1,
    storage=StorageOptions("store"),
    prefetch=PrefetchOptions("queued"),
)


class Server:
    """An engine of `tp` ranks whose parts of the pages lie in `contents`."""

    def __init__(
        self,
        env: Environment,
        tp: int,
        contents: Sequence[StoreContents],
        *,
        store: str = "",
        late_ns: Sequence[int] = (),
        model=QWEN,
    ) -> None:
        ranks = RankOptions(tp)
        self.options = replace(
            OPTIONS, ranks=tp, writing_ranks=ranks.writing_ranks(model),
            bytes_per_token=rank_geometry(model, ranks).kv_bytes_per_token,
        )  # fmt: skip
        machine = SimMachine(
            env, load_profile(H200_BY_HAND), model, contents=contents, ranks=tp,
            writing_ranks=self.options.writing_ranks, store=STORES[store] if store else None,
        )  # fmt: skip
        self.done: list[Completion] = []
        self.lanes = FaultyLanes(env, machine.lanes(), Random(0), rank_late_ns=late_ns)
        self.engine = Engine(env, self, self.options)

    def submit(self, operation: Operation):
        """Pass on and keep what came of it."""
        pending = self.lanes.submit(operation)
        assert pending.callbacks is not None
        pending.callbacks.append(lambda event: self.done.append(event.value))
        return pending

    def end_burst(self, pending) -> None:
        self.lanes.end_burst(pending)

    def serve(self, *at_ns: int) -> None:
        """The same prompt of 100 pages, so often."""
        self.engine.serve(
            [Request(n, at, 100 * PAGE + 1, 2, ((0, 100),), 100) for n, at in enumerate(at_ns)]
        )

    @property
    def hits(self) -> list[int]:
        return self.engine.metrics.cached_pages


def stores(parts: int, pages: int = 0) -> list[StoreContents]:
    made = [StoreContents() for _ in range(parts)]
    for each in made:
        each.write(((0, pages),))
    return made


def finished(env: Environment, *servers: Server) -> None:
    env.run()
    for server in servers:
        assert server.engine.scheduler.waiting == server.engine.running == 0
        server.engine.check_integrity()


# ---------------------------------------------------------------------- who finds what


def test_every_rank_writes_and_finds_its_own_part() -> None:
    env, contents = Environment(0), stores(4)
    a, b = Server(env, 4, contents), Server(env, 4, contents)
    a.serve(0)
    b.serve(5 * SECOND)
    finished(env, a, b)
    assert [each.pages for each in contents] == [100] * 4
    assert (a.hits, b.hits) == ([0, 0, 0], [0, 0, 100])
    reads = [done for done in b.done if isinstance(done.operation, Copy) and done.operation.keys]
    assert [done.operation.rank for done in reads] == [0, 1, 2, 3]
    assert {done.operation.size_bytes for done in reads} == {100 * PAGE * 147_456 // 4}


@pytest.mark.parametrize(("pages", "hit"), [((100, 100), 100), ((100, 40), 40), ((0, 100), 0)])
def test_what_one_rank_lacks_is_a_miss_for_all(pages: tuple[int, int], hit: int) -> None:
    env, contents = Environment(0), [stores(1, each)[0] for each in pages]
    server = Server(env, 2, contents)
    server.serve(0)
    finished(env, server)
    assert server.hits == [0, 0, hit]
    assert server.engine.metrics.prefetch_hit_tokens == hit * PAGE


def test_one_rank_writes_a_latent_and_all_read_it() -> None:
    env, contents = Environment(0), stores(1)
    a, b = (Server(env, 4, contents, model=DEEPSEEK) for _ in range(2))
    a.serve(0)
    b.serve(20 * SECOND)
    finished(env, a, b)
    moved = [
        (done.operation.direction, done.operation.rank)
        for server in (a, b)
        for done in server.done
        if isinstance(done.operation, Copy) and done.operation.keys
    ]
    assert moved == [("h2s", 0), *(("s2h", rank) for rank in range(4))]
    assert b.hits == [0, 0, 100]


# ---------------------------------------------------------------------- servers of other sizes


def after(tp: int, parts: Sequence[StoreContents], writer: int = 2) -> list[int]:
    """What a server of `tp` hits of what one of `writer` ranks has written."""
    env = Environment(0)
    a, b = Server(env, writer, stores_of(parts, writer)), Server(env, tp, stores_of(parts, tp))
    a.serve(0)
    b.serve(5 * SECOND)
    finished(env, a, b)
    return b.hits


def stores_of(parts: Sequence[StoreContents], tp: int) -> Sequence[StoreContents]:
    """Shards that all share; or, where there are fewer, keys of its own, which say how many."""
    return parts if len(parts) >= tp else stores(tp)


@pytest.mark.parametrize("tp", [1, 2, 4, 8])
def test_head_shards_are_found_by_servers_of_any_size(tp: int) -> None:
    assert after(tp, stores(8)) == [0, 0, 100]


def test_without_shards_a_server_of_another_size_finds_nothing() -> None:
    assert after(4, stores(2)) == [0, 0, 0]


def test_a_page_is_there_when_all_its_shards_are() -> None:
    """Half of a rank's shards are not there: it can use none of that page."""
    contents = stores(8, 100)
    contents[5] = stores(1, 30)[0]
    env = Environment(0)
    server = Server(env, 2, contents)
    server.serve(0)
    finished(env, server)
    assert server.hits == [0, 0, 30]
    assert [each.pages for each in contents] == [100] * 8, "what was missing is written"


# ---------------------------------------------------------------------- times


def took_ns(operation: Operation, parts: int, store: str = "") -> int:
    env = Environment(0)
    machine = SimMachine(
        env, load_profile(H200_BY_HAND), QWEN, contents=stores(parts, 64),
        store=STORES[store] if store else None, numbers=count(),
    )  # fmt: skip
    watched = Watched(env, machine.lanes().submit(operation))
    env.run()
    return watched.done.finished_ns - watched.done.started_ns


def test_every_object_takes_its_time() -> None:
    """Mooncake: 100 us for a question and 1 us an object; 5 us for each object of a copy."""
    keys = ((0, 64),)
    look = [took_ns(Lookup(64, keys), parts, "mooncake") for parts in (1, 4)]
    assert look == [100_000 + 64_000, 100_000 + 4 * 64_000]
    read = [
        took_ns(Copy("s2h", 64, 64 * MIB, 1, (), (), keys), parts, "mooncake") for parts in (1, 4)
    ]
    assert read[1] - read[0] == pytest.approx(3 * 64 * 5000, abs=2)


@pytest.mark.parametrize("store", ["", "mooncake"])
def test_ranks_share_what_their_host_can_read(store: str) -> None:
    """Each rank's read of a quarter takes about as long as one read of all of it."""

    def read_ns(tp: int) -> int:
        env = Environment(0)
        server = Server(env, tp, stores(tp, 100), store=store)
        server.serve(0)
        finished(env, server)
        reads = [each for each in server.done if getattr(each.operation, "direction", "") == "s2h"]
        assert len(reads) == tp
        return max(each.finished_ns for each in reads) - min(each.started_ns for each in reads)

    one, four = read_ns(1), read_ns(4)
    assert 0.4 * one < four < 1.1 * one


def test_a_late_rank_makes_all_late_and_changes_no_decision() -> None:
    def rows(late_ns: Sequence[int]) -> tuple[list[int], int]:
        env = Environment(0)
        server = Server(env, 2, stores(2, 100), late_ns=late_ns)
        server.serve(0)
        finished(env, server)
        return server.hits, server.engine.metrics.column("queue_ns")[0]

    (hits, soon), (same, late) = rows(()), rows((0, 50 * MS))
    assert hits == same == [0, 0, 100]
    # Once for the question and once for the one batch that is read.
    assert late - soon == pytest.approx(100 * MS, rel=0.2)
