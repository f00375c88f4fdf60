"""Running a workload on the adversarial machine, and what must hold of any run once it is over."""

from __future__ import annotations

from collections.abc import Callable

from adversarial_lanes import AdversarialLanes, Memory, in_turn, pages_of
from simpy import Environment
from small_workloads import Workload
from tree_view import claims, count_published, keys_by_page, published

from hicache.engine import Engine
from hicache.metrics import DROP_REASONS, ROW_FIELDS
from hicache.node import TIER_NAMES, TIERS
from hicache.operations import DIRECTIONS
from hicache.ports import Lanes
from hicache.record import Recorder
from hicache.requests import Request
from hicache.restore_policy import Policy

MOST_EVENTS = 200_000  # a run of a dozen small requests that takes more is going round in circles


class Run:
    """A run that is over: the engine, its lanes, and the record that was taken of it."""

    def __init__(
        self, workload: Workload, *, recorded: bool = False, policy: Policy | None = None
    ) -> None:
        """`policy`: the restore policy, instead of the workload's."""
        self.workload = workload
        self.requests = workload.requests()
        self.env = Environment(0)
        self.lanes = AdversarialLanes(self.env, in_turn(workload.fates))
        if workload.options.has_store:
            self.lanes.store_pages = workload.options.storage_pages
            for request in self.requests[::2]:  # somebody else has served it
                self.lanes.store.update(dict.fromkeys(pages_of(tuple(request.prompt_runs))))
        self.lines: list[str] = []
        port: Lanes = self.lanes
        self.recorder: Recorder | None = None
        if recorded:
            self.recorder = Recorder(self.env, self.lanes, self.lines.append, "a small workload")
            port = self.recorder
        self.engine = Engine(self.env, port, workload.options)
        if policy is not None:
            self.engine.scheduler.admission.policy = policy
        if workload.options.page_ids == "named":
            watch_memory(self.engine, self.lanes)
        for at_ns, number in workload.aborts:
            call_at(self.env, at_ns, lambda number=number: self.abort(number))
        self.engine.serve(self.requests)
        drain(self.env)
        if self.recorder is not None:
            self.recorder.close()

    def abort(self, number: int) -> None:
        """Give a request up, the way the run is done."""
        if self.recorder is not None:
            self.recorder.abort(self.engine, number)
        else:
            self.engine.abort(number)


def watch_memory(engine: Engine, lanes: AdversarialLanes) -> None:
    """Let `lanes` keep contents of pages, and check them before every step."""
    lanes.memory = memory = Memory(lambda tier: keys_by_page(engine.tree, tier))
    others = [
        Memory(lambda tier: keys_by_page(engine.tree, tier)) for _ in range(1, engine.options.ranks)
    ]
    lanes.others = others
    before = engine.scheduler.on_step

    def check() -> None:
        if before is not None:
            before()
        for each in (memory, *others):
            each.check()

    engine.scheduler.on_step = check


def call_at(env: Environment, at_ns: int, act: Callable[[], object]) -> None:
    """Call `act()` at `at_ns`, as something outside would."""
    env.timeout(at_ns - int(env.now)).callbacks.append(lambda event: act())


def drain(env: Environment) -> None:
    """Run to the end; AssertionError where there is none."""
    for _ in range(MOST_EVENTS):
        if env.peek() == float("inf"):
            return
        env.step()
    raise AssertionError(f"no end after {MOST_EVENTS} events")


def rows_of(engine: Engine) -> list[dict[str, int]]:
    """The rows by request number."""
    flat, width = engine.metrics.rows, len(ROW_FIELDS)
    rows = [
        dict(zip(ROW_FIELDS, flat[place : place + width], strict=True))
        for place in range(0, len(flat), width)
    ]
    return sorted(rows, key=lambda row: row["request"])


def counters_of(engine: Engine) -> dict[str, object]:
    """Everything that an engine counted, comparable by value."""
    metrics = engine.metrics
    counters = {name: value for name, value in vars(metrics).items() if name != "directions"}
    counters["rows"] = metrics.rows.tobytes()
    for direction, stats in metrics.directions.items():
        for name in type(stats).__slots__:
            counters[f"{direction}.{name}"] = getattr(stats, name)
    counters["status"] = engine.status()
    counters["evicted"] = [(tier.evicted_pages, tier.lost_pages) for tier in engine.tree.tiers]
    counters["published"] = [published(engine.tree, tier) for tier in TIERS]
    return counters


def assert_at_rest(engine: Engine) -> None:
    """Nothing is under way: no pin, arrival or private page, and every page is free or cached."""
    engine.check_integrity()
    status = engine.status()
    for name, tier in zip(TIER_NAMES, engine.tree.tiers, strict=True):
        pages = status["tiers"][name]
        assert pages["private_or_arriving_pages"] == 0, (name, pages)
        assert pages["protected_pages"] == 0, (name, pages)
        assert pages["free_pages"] + tier.resident == pages["capacity_pages"], (name, pages)
        assert count_published(engine.tree, TIER_NAMES.index(name)) == tier.resident
    assert claims(engine.tree) == []
    for name in (
        "waiting_requests", "running_requests", "pending_writes", "pending_restores",
        "pending_prefetches",
    ):  # fmt: skip
        assert status[name] == 0, name
    assert_prefetches_add_up(engine)
    assert status["write_backlog_pages"] == 0


def assert_prefetches_add_up(engine: Engine) -> None:
    """Whatever a store said it holds was put into L2, or was not for one reason; nothing is kept
    for it.
    """
    metrics, prefetcher = engine.metrics, engine.scheduler.prefetcher
    lost = sum(metrics.prefetch_unfulfilled_tokens.values())
    assert metrics.prefetch_fulfilled_tokens + lost == metrics.prefetch_hit_tokens
    if prefetcher is not None:
        assert prefetcher.occupied_tokens == 0
        assert prefetcher.lent() == (0, [])


def assert_rows_add_up(engine: Engine, requests: list[Request], *, timed: bool = True) -> None:
    """Every request has one row, and its tokens and times are consistent."""
    rows, metrics = rows_of(engine), engine.metrics
    options = engine.options
    assert [row["request"] for row in rows] == [request.number for request in requests]
    assert len(metrics.reasons) == len(metrics.sessions) == len(rows) == metrics.requests
    reasons = dict(zip(metrics.column("request"), metrics.reasons, strict=True))
    capped = options.cache.hit_cap == "last_token_computed"
    for request, row in zip(requests, rows, strict=True):
        sources = ("device_tokens", "host_tokens", "storage_tokens", "computed_tokens")
        assert all(row[name] >= 0 for name in sources), row
        assert sum(row[name] for name in sources) == row["prompt_tokens"] == request.prompt_tokens
        cached = row["device_pages"] + row["host_pages"] + row["storage_pages"]
        # A store may hold what nobody here has computed.
        assert row["ideal_pages"] == request.ideal_pages, row
        assert cached <= row["ideal_pages"] or options.has_store, row
        if capped:
            assert row["computed_tokens"] >= 1, row
        if not timed:
            continue
        if reasons[request.number] == "aborted":
            assert row["e2e_ns"] == -1
            continue
        assert row["generated_tokens"] == max(request.output_tokens, 1), row
        assert 0 < row["ttft_ns"] <= row["e2e_ns"], row
        assert row["queue_ns"] >= 0
        assert row["restore_ns"] >= 0
        assert 0 < row["prefill_ns"] <= row["ttft_ns"]
    for column, total in (
        ("prompt_tokens", metrics.prompt_tokens),
        ("computed_tokens", metrics.computed_tokens),
        ("device_tokens", metrics.cached_tokens[0]),
        ("host_tokens", metrics.cached_tokens[1]),
        ("storage_tokens", metrics.cached_tokens[2]),
        ("generated_tokens", metrics.output_tokens),
        ("retractions", metrics.retractions),
    ):
        assert sum(row[column] for row in rows) == total, column
    assert metrics.aborted == metrics.reasons.count("aborted")


def assert_bytes_add_up(engine: Engine, workload: Workload, restored_pages: int) -> None:
    """What moved is what was restored, promoted and written, and nothing was lost on the way."""
    metrics, page_bytes = engine.metrics, engine.options.page_bytes
    moved = metrics.directions
    for direction in DIRECTIONS:
        assert moved[direction].size_bytes == moved[direction].pages * page_bytes
        if workload.faultless:
            assert moved[direction].failed == 0
    assert moved["h2d"].size_bytes == restored_pages * page_bytes
    assert moved["s2h"].pages >= metrics.promoted_pages
    assert set(metrics.dropped_pages) == set(DROP_REASONS)
    if workload.faultless:
        assert metrics.dropped_pages["transfer_failed"] == 0
        if not engine.options.has_store:  # what is read may have come to L2 meanwhile
            assert moved["s2h"].pages == metrics.promoted_pages
    _, host, storage = engine.tree.tiers
    arrived = moved["d2h"].pages + metrics.promoted_pages
    assert host.resident + host.evicted_pages <= arrived
    if engine.options.has_store:
        assert storage.resident == storage.evicted_pages == 0
        return
    assert storage.resident + storage.evicted_pages <= moved["h2s"].pages
    if workload.faultless:
        assert host.resident + host.evicted_pages == arrived
        assert storage.resident + storage.evicted_pages == moved["h2s"].pages


def assert_good(run: Run) -> None:
    """All of the above."""
    assert_at_rest(run.engine)
    assert_rows_add_up(run.engine, run.requests)
    assert_bytes_add_up(run.engine, run.workload, run.engine.metrics.restored_pages)
    assert not run.lanes.under_way
    if run.lanes.memory is not None:
        for memory in (run.lanes.memory, *run.lanes.others):
            memory.check()
