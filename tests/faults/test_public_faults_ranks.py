"""Faults that users reported of several ranks of one server: each report as a run of the engine on
the simulated machine, with the counters that are right, and the same run with the fault put back,
which must not pass.
"""

from __future__ import annotations

import gc
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from random import Random
from typing import Any

import pytest
from by_hand import H200_BY_HAND
from simpy import Environment

import sim.plan
from hicache.engine import Engine
from hicache.errors import InputError
from hicache.kernel import Pending
from hicache.operations import Completion, Copy, Lookup, Operation
from hicache.options import EngineOptions, PrefetchOptions, RestoreOptions, StorageOptions
from hicache.prefetch import Prefetcher
from hicache.requests import Request
from hicache.store_contents import StoreContents
from hw.stores.names import Owner
from scenario.geometry import load_geometry
from scenario.load import load_scenario
from scenario.profile import load_profile
from scenario.resolve import resolve
from scenario.sglang_args import with_server_args
from sim.faulty import FaultyLanes
from sim.lanes import SimMachine
from sim.plan import Wishes, prepare_plan
from sim.plan_search import search
from sim.plan_sizes import GIB, Limits
from sim.sweep_cell import run_job

QWEN = load_geometry("Qwen3-8B")
MS, SECOND = 1_000_000, 1_000_000_000
PAGE = 64
BROKEN = "ignore::pytest.PytestUnraisableExceptionWarning"


@pytest.fixture(autouse=True)
def nothing_is_left() -> Iterator[None]:
    """Whatever a broken run left under way goes now."""
    yield
    gc.collect()


@dataclass
class Server:
    """One engine of `tp` ranks and what it asked for. `contents`: a rank's part of the store, or
    one for all.
    """

    env: Environment
    tp: int
    contents: Sequence[StoreContents]
    late_ns: Sequence[int] = ()
    stop: Any = "wait_complete"
    asked: list[Operation] = field(default_factory=list)

    def __post_init__(self) -> None:
        options = EngineOptions(
            PAGE, QWEN.kv_bytes_per_token // self.tp, 300, 600, 2000,
            restore=RestoreOptions(policy="always"), check_every_steps=1,
            storage=StorageOptions("store"),
            prefetch=PrefetchOptions("queued", stop=self.stop, read_batch_pages=32),
            ranks=self.tp, writing_ranks=self.tp,
        )  # fmt: skip
        machine = SimMachine(
            self.env, load_profile(H200_BY_HAND), QWEN, contents=self.contents, ranks=self.tp,
            writing_ranks=self.tp,
        )  # fmt: skip
        self._lanes = FaultyLanes(self.env, machine.lanes(), Random(0), rank_late_ns=self.late_ns)
        self.engine = Engine(self.env, self, options)
        self.metrics = self.engine.metrics

    def submit(self, operation: Operation) -> Pending[Completion]:
        self.asked.append(operation)
        return self._lanes.submit(operation)

    def end_burst(self, pending: Pending[Completion]) -> None:
        self._lanes.end_burst(pending)

    def serve(self, at_ns: int = 0) -> None:
        """A prompt of 100 pages, and another one of which nobody has heard."""
        prompts = [(((0, 100),), at_ns), (((5000, 100),), at_ns + 1)]
        self.engine.serve(
            Request(number, at, 100 * PAGE + 1, 2, runs, 100)
            for number, (runs, at) in enumerate(prompts)
        )

    def decisions(self, rank: int) -> dict[str, list[tuple[object, ...]]]:
        """What a rank was told to ask, read and write, each in order."""
        found: dict[str, list[tuple[object, ...]]] = {"": [], "s2h": [], "h2s": []}
        for each in self.asked:
            if isinstance(each, Copy | Lookup) and each.keys and each.rank == rank:
                found[getattr(each, "direction", "")].append((each.pages, each.keys))
        return found


def stored(*keys: int) -> StoreContents:
    """A store that has these pages of 100, and no others."""
    contents = StoreContents()
    for first in keys:
        contents.write(((first, 1),))
    return contents


# ---------------------------------------------------------------------- rank divergence
# sglang#26921, sglang#30760: two ranks, one of which answers 50 ms later and lacks one page: each
# went by what it had found for itself, so that one read, loaded and computed what the other did
# not, and the collective operations behind that never met.


def two_ranks(stop: str = "wait_complete") -> Server:
    """Rank 1 is late and has no page 60."""
    whole, holed = stored(*range(100)), stored(*range(60), *range(61, 100))
    server = Server(Environment(0), 2, [whole, holed], (0, 50 * MS), stop)
    server.serve()
    server.env.run()
    return server


def assert_they_agreed(server: Server) -> None:
    metrics = server.metrics
    assert metrics.requests == 2, "a request waits for ever"
    server.engine.check_integrity()
    assert metrics.prefetch_hit_tokens == 60 * PAGE, "not what both of them have"
    lost = sum(metrics.prefetch_unfulfilled_tokens.values())
    assert metrics.prefetch_fulfilled_tokens + lost == 60 * PAGE
    assert server.decisions(0) == server.decisions(1), "the ranks did different things"


def test_sglang_26921_all_ranks_do_what_the_least_of_them_can() -> None:
    server = two_ranks()
    assert_they_agreed(server)
    assert server.metrics.cached_pages == [0, 0, 60]
    assert [pages for pages, _ in server.decisions(1)["s2h"]] == [32, 28]


def test_sglang_26921_a_stop_is_that_of_all_too() -> None:
    """Under best_effort the late rank has nothing when the turn comes, so that nobody has."""
    server = two_ranks("best_effort")
    assert server.metrics.requests == 2
    assert server.metrics.cached_pages == [0, 0, 0]
    assert not server.decisions(0)["s2h"] + server.decisions(1)["s2h"]


@pytest.mark.filterwarnings(BROKEN)
def test_sglang_26921_put_back(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rank 0 goes by its own answer, and drags the others along."""
    monkeypatch.setattr("hicache.ranks.agreed", lambda found: found[0])
    with pytest.raises(AssertionError, match="not what both of them have"):
        assert_they_agreed(two_ranks())


@pytest.mark.filterwarnings(BROKEN)
def test_sglang_30760_put_back(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rank 1 finds too little for itself and reads nothing, while rank 0 waits for both."""
    read = Prefetcher._read  # pyright: ignore[reportPrivateUsage]

    async def alone(self: Prefetcher, rank: int) -> None:
        if not rank:
            await read(self, rank)

    monkeypatch.setattr(Prefetcher, "_read", alone)
    with pytest.raises(AssertionError, match="waits for ever"):
        assert_they_agreed(two_ranks())


# ---------------------------------------------------------------------- key without rank or type
# sglang#15175, sglang#33268: two configurations write into one directory under the same names, so
# that one takes the other's bytes for its own.


def by_name(shared: dict[str, StoreContents], owner: Owner) -> list[StoreContents]:
    """What each rank of a server finds in a directory that is told apart by names alone."""
    owners = [replace(owner, tp_rank=rank) for rank in range(owner.tp_size)]
    return [shared.setdefault(each.file_name(""), StoreContents()) for each in owners]


def foreign_hits(first: Owner, second: Owner) -> int:
    """Pages that the second server takes from the directory that the first has filled."""
    env, shared = Environment(0), dict[str, StoreContents]()
    servers = [Server(env, each.tp_size, by_name(shared, each)) for each in (first, second)]
    for place, server in enumerate(servers):
        server.serve(5 * SECOND * place)
    env.run()
    filled, asking = servers
    assert filled.metrics.directions["h2s"].pages >= 100
    assert asking.metrics.requests == 2
    return asking.metrics.cached_pages[2]


def typed(dtype: str, marks: Any = "format") -> Owner:
    return Owner(model="Qwen/Qwen3-8B", marks=marks, format=f"{dtype}-page_first-64")


SPLIT = [Owner(model="Qwen/Qwen3-8B", tp_size=size) for size in (1, 2, 4)]


@pytest.mark.parametrize("first", SPLIT)
@pytest.mark.parametrize("second", SPLIT)
def test_sglang_15175_servers_of_other_ranks_share_no_page(first: Owner, second: Owner) -> None:
    same = first.tp_size == second.tp_size
    assert (foreign_hits(first, second) > 0) == same


def test_sglang_15175_put_back() -> None:
    """Names without a rank, as they are for MLA: half of the heads is taken for all of them."""
    with pytest.raises(AssertionError):
        assert foreign_hits(*(replace(each, kind="mla") for each in SPLIT[1:])) == 0


def test_sglang_33268_servers_of_another_type_share_no_page() -> None:
    assert foreign_hits(typed("bf16"), typed("fp8")) == 0
    assert foreign_hits(typed("bf16"), typed("bf16")) == 200


def test_sglang_33268_as_sglang_does() -> None:
    """SGLang's own names know no type: with them the fault is there."""
    with pytest.raises(AssertionError):
        assert foreign_hits(typed("bf16", "sglang"), typed("fp8", "sglang")) == 0


# ---------------------------------------------------------------------- size per rank
# sglang#5372, sglang#29263: the ratio is of each rank's L1, and four ranks pinned four times what
# the user had in mind, more than the node has.


@pytest.fixture(scope="module")
def trace(tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp("trace") / "few.jsonl"
    rows = [
        {"timestamp": 100 * n, "input_length": 1024, "output_length": 4, "hash_ids": [n % 3, 9]}
        for n in range(8)
    ]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(path)


def refusal(trace: str, ratio: str, tp: int) -> str:
    """What the planner says to an L2 of so many times L1; "" if it plans."""
    from cli.plan_run import PlanArguments, _sizes  # pyright: ignore[reportPrivateUsage]

    given = PlanArguments(trace, l2=ratio, l3="0")
    options = {"trace.path": trace, "tiers.l1": "20GiB", "ranks.tp": tp}
    wishes = Wishes(
        None, options, (64,), ("cost",), _sizes("--l2", given.l2), _sizes("--l3", given.l3)
    )
    node = Limits("node", 128 * GIB, 0.9, None, 0, 1.0, 1.0, None)
    try:
        search(prepare_plan(wishes, lambda _profile: node), lambda jobs, _: map_jobs(jobs), "GiB")
    except InputError as error:
        return str(error)
    return ""


def map_jobs(jobs: Sequence[Any]):
    yield from map(run_job, jobs)


def test_sglang_5372_the_planner_counts_every_rank(trace: str) -> None:
    said = refusal(trace, "2x", 4)
    assert "--l2: L2 of 40 GiB x 4 ranks needs 160 GiB: node has 128 GiB of host memory" in said
    assert refusal(trace, "2x", 1) == refusal(trace, "1x", 4) == ""


def test_sglang_5372_put_back(trace: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A size that is taken for the whole node's seems to fit."""
    monkeypatch.setattr(sim.plan, "_of_node", lambda limits, _options: replace(limits, ranks=1))
    with pytest.raises(AssertionError):
        test_sglang_5372_the_planner_counts_every_rank(trace)


def test_sglang_29263_a_replay_of_the_server_says_it() -> None:
    """`--hicache-size 40` is 40 GB for each of four ranks."""
    text = "--enable-hierarchical-cache --page-size 64 --tp-size 4 --hicache-size 40"
    options, _ = with_server_args(text, None, {"tiers.l1": "10GiB"})
    profile = load_profile(H200_BY_HAND)
    said = resolve(load_scenario(None, options), profile, QWEN).warnings
    assert profile.memory.host_bytes.value == 128 * GIB
    assert any(
        "37.25 GiB a rank, 149 GiB for 4 ranks, but nvidia-h200 has" in each for each in said
    )
