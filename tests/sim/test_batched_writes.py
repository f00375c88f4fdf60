"""Batches of a write that nobody sees begin and end: what comes of them is what comes of each by
itself, to the ns and the page.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from by_hand import H200_BY_HAND
from hypothesis import given, settings
from hypothesis import strategies as st
from simpy import Environment

from hicache.allocator import cut
from hicache.kernel import Sleep, Task
from hicache.operations import Batches, Chunk, Copy, Lookup, Operation, Prefill
from hicache.store_contents import StoreContents
from scenario.load import load_scenario
from scenario.profile import load_profile
from scenario.sglang_rules import SGLANG_PRESETS
from scenario.stores import STORES
from sim.lanes import SimMachine
from sim.replay import Run, prepare
from traces.generator import AgentOptions, write_trace

PAGE_BYTES = 147456
REQUESTS = AgentOptions(
    hours=0.02, turns_mean=6, sessions_per_hour=2500, system_prompt_median_tokens=600,
    longest_prompt_tokens=4000,
)  # fmt: skip


@pytest.fixture(scope="module")
def trace(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("traces") / "agents.jsonl"
    write_trace(REQUESTS, path)
    return path


def run_of(options: dict[str, object], *, batches: bool) -> Run:
    run = prepare(load_scenario(None, options))
    if not batches:
        for engine in run.instances:
            writer = engine.scheduler.store_writer
            assert writer is not None
            writer._batches = None  # pyright: ignore[reportPrivateUsage]
    run.execute()
    return run


def results(run: Run) -> tuple[Any, Any]:
    outcome = run.outcome()
    return outcome.summary, {name: list(column) for name, column in outcome.columns.items()}


@settings(max_examples=25, deadline=None)
@given(
    preset=st.sampled_from(SGLANG_PRESETS),
    page=st.sampled_from([1, 4]),
    batch=st.sampled_from([3, 16, 128]),
    l1=st.sampled_from(["9000tokens", "20000tokens"]),
    l2=st.sampled_from(["1.5x", "3x"]),
    l3=st.sampled_from(["2x", "10x"]),
    seed=st.integers(0, 5),
)
def test_nobody_can_tell_batches_from_one_after_the_other(
    trace: Path, preset: str, page: int, batch: int, l1: str, l2: str, l3: str, seed: int
) -> None:
    options: dict[str, object] = {
        "preset": preset, "trace.path": str(trace), "tiers.page_size_tokens": page,
        "tiers.l1": l1, "tiers.l2": l2, "tiers.l3": l3, "prefetch.read_batch_pages": batch,
        "load.arrivals": "poisson", "load.rate": 6.0, "seed": seed,
    }  # fmt: skip
    batched, single = (run_of(options, batches=each) for each in (True, False))
    assert results(batched) == results(single)


def test_a_batch_costs_no_event(trace: Path) -> None:
    options: dict[str, object] = {
        "preset": "sglang-0.5.20", "trace.path": str(trace), "tiers.page_size_tokens": 1,
        "tiers.l1": "20000tokens", "tiers.l2": "3x", "tiers.l3": "10x",
    }  # fmt: skip
    events = [next(run_of(options, batches=each).env._eid) for each in (True, False)]
    assert events[0] < events[1] / 2, events


BATCH, BATCHES = 128, 40
KEYS = ((1000, BATCH * BATCHES - 28),)  # the last is not full
PAGES = KEYS[0][1]


class Machine:
    """One engine's lanes and what is in its store. `batches`: or else one write after the other."""

    def __init__(self, *, batches: bool, there: int = 0) -> None:
        self.env = Environment(0)
        self.contents = StoreContents()
        self.contents.write(((1000, there),) if there else ())
        self.machine = SimMachine(self.env, load_profile(H200_BY_HAND), contents=self.contents)
        self.lanes = self.machine.lanes()
        self.batches = batches
        self.ends_ns: list[int] = []
        self.came: list[Batches] = []
        self.seen: list[tuple[int, object]] = []
        Task(self._write())

    async def _write(self) -> None:
        left, keys = PAGES, KEYS
        while left:
            copy = Copy("h2s", left, left * PAGE_BYTES, 1, (), (), keys)
            many = self.lanes.submit_batches(copy, BATCH) if self.batches else None
            if many is not None:
                part = await many
                self.came.append(part)
                count = part.pages
            else:
                count = min(BATCH, left)
                mine = cut(keys, count)[0]
                copy = Copy("h2s", count, count * PAGE_BYTES, 1, (), (), mine)
                done = await self.lanes.submit(copy)
                self.came.append(
                    Batches(
                        1, count, done.answer, done.started_ns - done.submitted_ns,
                        done.finished_ns - done.started_ns, done.recurring_ns,
                    )
                )  # fmt: skip
            keys = cut(keys, count)[1]
            left -= count
        self.ends_ns.append(int(self.env.now))

    def at(self, when_ns: int, operation: Operation) -> None:
        """Submit something else then; what it took and its answer are kept."""
        Task(self._do(when_ns, operation))

    async def _do(self, when_ns: int, operation: Operation) -> None:
        await Sleep(self.env, when_ns)
        done = await self.lanes.submit(operation)
        self.seen.append((when_ns, (done.started_ns, done.finished_ns, done.stamp_ns, done.answer)))

    def result(self) -> tuple[object, ...]:
        self.env.run()
        fields = zip(*(each.fields() for each in self.came), strict=True)
        totals = [sum(each) for each in fields]
        return self.ends_ns, totals, self.seen, self.contents.pages, self.machine.outside_range()


QUESTION = Lookup(PAGES, KEYS)
STEP = Prefill((Chunk(0, 512, 0),), 512)


@pytest.mark.parametrize("there", [0, 5 * BATCH, 5 * BATCH + 3, PAGES])
@pytest.mark.parametrize("whole", [0, 1, 12345, 10**6 + 7, 10**7 + 1, 10**8 + 3, 3 * 10**8 + 1])
@pytest.mark.parametrize(
    "operation",
    [
        QUESTION, STEP, Copy("s2h", 64, 64 * PAGE_BYTES, 1, (), (), KEYS),
        Copy("d2h", 64, 64 * PAGE_BYTES, 1),
    ],
    ids=["question", "step", "read", "copy"],
)  # fmt: skip
def test_what_comes_between_sees_each_batch(operation: Operation, whole: int, there: int) -> None:
    results: list[tuple[object, ...]] = []
    for batches in (True, False):
        machine = Machine(batches=batches, there=there)
        for number in range(3):  # also where the host's thread is still busy
            machine.at(whole + number * 1000, operation)
        results.append(machine.result())
    assert results[0] == results[1]
    assert results[0][3] == PAGES


def test_a_question_in_the_middle_is_answered_by_what_has_come() -> None:
    machine = Machine(batches=True)
    machine.at(10**8, QUESTION)
    machine.result()
    _, seen = machine.seen[0]
    assert isinstance(seen, tuple)
    assert 0 < seen[3] < PAGES
    assert seen[3] % BATCH == 0


@pytest.mark.parametrize("read_ns", [0, 99_000_000], ids=["alone", "with a read"])
def test_a_run_that_ends_early_counts_the_batches_that_are_over(read_ns: int) -> None:
    machine, single = (Machine(batches=each) for each in (True, False))
    for each in (machine, single):
        if read_ns:  # under way at the end, and so is the batch that has given way
            each.at(read_ns, Copy("s2h", 64, 64 * PAGE_BYTES, 1, (), (), KEYS))
        each.env.run(until=10**8)
    assert machine.came == []
    machine.machine.end_batches()
    assert sum(each.pages for each in machine.came) == sum(each.pages for each in single.came)
    assert machine.contents.pages == single.contents.pages > 0


def test_two_engines_on_one_machine_write_one_batch_after_the_other() -> None:
    machine = Machine(batches=True)
    lanes = machine.machine.lanes()
    assert lanes.submit_batches(Copy("h2s", 512, 512 * PAGE_BYTES, 1, (), (), KEYS), 128) is None
    with_store = SimMachine(
        Environment(0), load_profile(H200_BY_HAND), contents=StoreContents(), store=STORES["eic"]
    )
    copy = Copy("h2s", 512, 512 * PAGE_BYTES, 1, (), (), KEYS)
    assert with_store.lanes().submit_batches(copy, 128) is None
