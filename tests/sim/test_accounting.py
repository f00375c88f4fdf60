"""Nothing is lost or counted twice in any run: presets, policies, stores, instances, ranks, faults
and aborts drawn at random, on the simulated machine, from the scenario to the summary.

    prompts      device + host + storage + computed = prompt tokens
    prefetches   fulfilled + unfulfilled{reason} = what the store said it has
    pages        free + held + in transfer = capacity, in each tier of each instance, at each look
"""

from __future__ import annotations

import gc
import json
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any

import pytest
from engine_runs import assert_at_rest
from examples import examples
from hypothesis import given
from hypothesis import strategies as st

from hicache.engine import Engine
from hicache.eviction import STRATEGIES
from hicache.holdings import Holdings
from hicache.metrics import DECLINED_REASONS, UNFULFILLED_REASONS, Metrics
from hicache.node import TIER_NAMES
from hicache.options import EVICTION_NAMES
from hicache.prefetch import Prefetcher
from scenario.load import load_scenario
from scenario.presets import PRESET_NAMES
from scenario.stores import store_names
from sim.faulty import FaultyLanes
from sim.lanes import SimLanes, SimMachine
from sim.replay import Run, prepare

MS = 1_000_000
BLOCK = 64

# Options of which each is changed now and then; the latter where L3 is asked by key.
CHANGES: dict[str, list[Any]] = {
    "cache.write_policy": ["write_through", "write_through_selective", "write_back", "none"],
    "cache.eviction": [*STRATEGIES, *EVICTION_NAMES],
    "cache.eviction_granularity": ["node", "page"],
    "cache.l2_victims": ["any", "not_in_l1", "duplicates_first"],
    "cache.outputs": ["cached", "dropped"],
    "restore.layerwise": [True, False],
    "restore.probe_every": [0, 2],
    "ranks.tp": [1, 2],
    "machine.store": ["", *store_names()],
    "storage.admit_after_hits": [1, 2],
    "scheduler.mixed_chunk": [True, False],
    "offload.decode": [True, False],
}
STORE_CHANGES: dict[str, list[Any]] = {
    "prefetch.stop": ["best_effort", "wait_complete", "timeout"],
    "prefetch.shortfall": ["trim", "revoke"],
    "prefetch.allocate": ["after_lookup", "before_lookup"],
    "prefetch.publish": ["done", "turn"],
    "prefetch.limit": ["host", "host_less_device"],
    "prefetch.workers": [1, 2],
    "prefetch.retries": [0, 2],
    "prefetch.threshold_tokens": [0, 16, 256],
    "prefetch.read_batch_pages": [1, 128],
    "storage.attach_s": [0.0, 0.3],
    "storage.detach_s": [0.0, 0.9],
}


@dataclass(frozen=True)
class Case:
    """A scenario, the rows of its trace, and what goes wrong. `aborts`: (ms, request). `late_ns`:
    by how much each rank's answers of a store are late.
    """

    options: dict[str, Any]
    rows: tuple[dict[str, Any], ...]
    fail: float
    slow: float
    aborts: tuple[tuple[int, int], ...]
    late_ns: tuple[int, ...]
    seed: int


def random_rows(rng: Random) -> tuple[dict[str, Any], ...]:
    """Prompts that share prefixes all the time, some of them at the same moment."""
    rows: list[dict[str, Any]] = []
    now = 0
    for number in range(rng.randrange(4, 40)):
        now += rng.choice([0, 0, 5, 60, 900, 900])
        family, shared = rng.randrange(4), rng.choice([0, 2, 5, 6, 6])
        own = rng.randrange(3)
        ids = [100 * family + n for n in range(shared)] + [10_000 + 10 * number + n
                                                           for n in range(own)]  # fmt: skip
        ids = ids or [7]
        length = BLOCK * len(ids) - rng.choice([0, 0, 1, 40])
        rows.append({"timestamp": now, "input_length": length,
                     "output_length": rng.randrange(1, 60), "hash_ids": ids})  # fmt: skip
    return tuple(rows)


def random_options(rng: Random) -> dict[str, Any]:
    """Any preset, and some of its options changed; tiers that are nearly always short of room."""
    pick = rng.choice
    page = pick([16, 64])
    least = 9 * BLOCK // page + 60 // page + 2
    l1 = least + pick([0, 1, 10, 40])
    l2 = pick([0, *[least] * 6, 2 * l1, 4 * l1])
    l3 = pick([0, 4, 200, 2000])
    options: dict[str, Any] = {
        "preset": pick(PRESET_NAMES),
        "mode": pick(["timed"] * 5 + ["untimed"]),
        "trace.block_tokens": BLOCK,
        "tiers.page_size_tokens": page, "tiers.l1": f"{l1}pages",
        "tiers.l2": f"{l2}pages" if l2 else "0",
        "tiers.l3": f"{l3}pages" if l2 and l3 else "0",
        "restore.policy": pick(["cost", "always", "always", "never", "threshold", "meet"]),
        "instances": pick([1, 1, 2, 3]),
        "router": pick(["round_robin", "least_loaded", "cache_aware"]),
        "engine.check_every_steps": 1,
        "engine.page_ids": pick(["named", "counted"]),
        "scheduler.chunk_tokens": pick([64, 200, 8192]),
        "scheduler.max_running_requests": pick([1, 3, 256]),
    }  # fmt: skip
    changes = CHANGES
    if options["preset"].startswith("sglang") or pick([True, False]):
        options |= {"storage.index": "store", "prefetch.mode": "queued"}
        changes = CHANGES | STORE_CHANGES
    for key in sorted(changes):
        if rng.random() < 0.3:
            options[key] = pick(changes[key])
    if options["preset"] == "block-lru":  # answers cannot go on in a page that is partly filled
        options["cache.outputs"] = "dropped"
    return options


def random_case(rng: Random) -> Case:
    rows = random_rows(rng)
    aborts = tuple(
        (rng.randrange(3000), rng.randrange(len(rows))) for _ in range(rng.choice([0, 0, 2, 6]))
    )
    fail, slow = rng.choice([(0.0, 0.0), (0.1, 0.3), (0.5, 0.5)])
    late_ns = rng.choice([(), (), (0, 50 * MS), (7 * MS, 0)])
    return Case(random_options(rng), rows, fail, slow, aborts, late_ns, rng.randrange(1000))


def opened(case: Case, folder: Path) -> Run:
    """The run of a case, not yet started, on a machine that fails as the case says."""
    path = folder / "rows.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in case.rows))
    lanes = SimMachine.lanes
    rng = Random(case.seed)

    def faulty(self: SimMachine) -> SimLanes:
        inner = lanes(self)
        return FaultyLanes(  # type: ignore[return-value]
            self._env,
            inner,
            rng,
            fail=case.fail,
            slow=case.slow,
            slow_ns=30 * MS,
            rank_late_ns=case.late_ns,
        )

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(SimMachine, "lanes", faulty)
        return prepare(load_scenario(None, {**case.options, "trace.path": str(path)}))


def watched(run: Run, engine: Engine) -> None:
    """Count the pages of each tier at each step, besides all that `check_integrity` asserts."""
    before = engine.scheduler.on_step

    def look() -> None:
        if before is not None:
            before()
        for name, tier in zip(TIER_NAMES, engine.tree.tiers, strict=True):
            pages = engine.status()["tiers"][name]
            held = pages["evictable_pages"] + pages["protected_pages"]
            in_transfer = pages["private_or_arriving_pages"]
            assert min(pages["free_pages"], held, in_transfer) >= 0, (name, pages)
            assert pages["free_pages"] + held + in_transfer == tier.capacity, (name, pages)

    engine.scheduler.on_step = look


def played(case: Case, folder: Path) -> Run:
    """A case from beginning to end."""
    run = opened(case, folder)
    for engine in run.instances:
        watched(run, engine)
    if case.options["mode"] == "timed":
        for at_ms, number in case.aborts:

            def abort(event: object, number: int = number) -> None:
                for engine in run.instances:
                    engine.abort(number)

            run.env.timeout(at_ms * MS).callbacks.append(abort)
    run.execute()
    return run


def assert_counts_close(metrics: Any) -> None:
    """Of one instance, or of all together."""
    assert sum(metrics.cached_tokens) + metrics.computed_tokens == metrics.prompt_tokens
    lost = metrics.prefetch_unfulfilled_tokens
    assert set(lost) == set(UNFULFILLED_REASONS)
    assert min(lost.values()) >= 0
    assert metrics.prefetch_fulfilled_tokens + sum(lost.values()) == metrics.prefetch_hit_tokens
    assert set(metrics.prefetches_declined) == set(DECLINED_REASONS)


def assert_summary_closes(summary: Any) -> None:
    """What a user reads adds up, for all and for each instance."""
    for part in (summary, *summary.get("instances", [])):
        cached = part["cached_tokens_total"]
        assert sum(cached.values()) + part["computed_tokens"] == part["prompt_tokens"]
        if "storage_prefetch_hit_tokens_total" in part:
            lost = part["storage_prefetch_unfulfilled_tokens_total"]
            fulfilled = part["prefetch_fulfilled_tokens"]
            assert fulfilled + sum(lost.values()) == part["storage_prefetch_hit_tokens_total"]
    for tier in summary["tiers"].values():
        assert 0 <= tier["used_pages_at_end"] <= tier["capacity_pages"]


def assert_closes(case: Case, run: Run) -> None:
    served = 0
    for engine in run.instances:
        assert_at_rest(engine)
        assert_counts_close(engine.metrics)
        served += engine.metrics.requests
    assert served == len(case.rows)
    assert_counts_close(run.engine.metrics)
    outcome = run.outcome()
    assert_summary_closes(outcome.summary)
    columns: Any = outcome.columns
    sources = (columns[f"{name}_tokens"] for name in (*TIER_NAMES, "computed"))
    for *parts, tokens in zip(*sources, columns["prompt_tokens"], strict=True):
        assert min(parts) >= 0
        assert sum(parts) == tokens


cases = st.randoms(use_true_random=False).map(random_case)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("accounts")


@given(case=cases)
@examples(150)
def test_all_accounts_close_in_any_run(case: Case, folder: Path) -> None:
    assert_closes(case, played(case, folder))


# ---------------------------------------------------------------------- each of them can fail


def tokens_counted_twice(patch: pytest.MonkeyPatch) -> None:
    """What was loaded from L2 counts as computed, too."""
    finish_row = Metrics.finish_row

    def twice(self: Metrics, request: Any, page: int, pages: Any, *rest: Any) -> None:
        finish_row(self, request, page, pages, *rest)
        self.computed_tokens += pages[1] * page

    patch.setattr(Metrics, "finish_row", twice)


def losses_not_counted(patch: pytest.MonkeyPatch) -> None:
    """A prefetch that comes to nothing is forgotten."""
    patch.setattr(Prefetcher, "_count_lost", lambda *_: None)


def pages_forgotten(patch: pytest.MonkeyPatch) -> None:
    """An aborted request keeps a page of L1."""
    release = Holdings.release

    def forget(self: Holdings, run: Any) -> None:
        release(self, run)
        if run.aborting:
            self._tree.take(0, 1)  # pyright: ignore[reportPrivateUsage]

    patch.setattr(Holdings, "release", forget)


def an_instance_left_out(patch: pytest.MonkeyPatch) -> None:
    """What the last of several instances computed is in no total."""
    import sim.fleet

    together = sim.fleet.together

    def without_the_last(parts: Any) -> Metrics:
        total = together(parts)
        total.computed_tokens -= parts[-1].computed_tokens
        return total

    patch.setattr(sim.fleet, "together", without_the_last)


MUTANTS = [tokens_counted_twice, losses_not_counted, pages_forgotten, an_instance_left_out]
SEEDS = 60  # cases that a mutant may survive before it counts as not seen


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize("mutant", MUTANTS)
def test_a_fault_in_the_accounts_is_seen(
    mutant: Any, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mutant(monkeypatch)
    seen = 0
    for seed in range(SEEDS):
        case = random_case(Random(seed))
        try:
            assert_closes(case, played(case, folder))
        except AssertionError:
            seen += 1
            break
    gc.collect()  # what the broken run left under way goes in this test
    assert seen, "no case sees this fault"
