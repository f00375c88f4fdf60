"""Faults that users reported of what a restore costs: each report as a replay on a simulated
machine, with the counters that are right, and the same with the fault put back, which must not
pass.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from msgspec.structs import replace

from hicache.operations import Prefill
from scenario.load import load_scenario
from scenario.profile import Curve, Profile, Surface, dump_profile, load_profile
from sim.host import Host
from sim.link_ways import Way
from sim.plan import Wishes, prepare_plan
from sim.plan_document import document_of
from sim.plan_search import search
from sim.plan_sizes import GIB, Limits
from sim.replay import Outcome, replay
from sim.step_model import CurveStepModel
from sim.sweep_cell import run_job

PAGE, BLOCK = 64, 512
BYTES_PER_TOKEN = 147_456  # Qwen3-8B: 144 KiB
MS = 1_000_000


def write_trace(folder: Path, prompts: Sequence[tuple[int, int]], tail: int = 1) -> str:
    """Prompts `(first block, blocks)` and `tail` tokens more that nobody shares, 200 s apart."""
    path = folder / "prompts.jsonl"
    rows = [
        {
            "timestamp": 200_000 * place,
            "input_length": blocks * BLOCK + tail,
            "output_length": 2,
            "hash_ids": [*range(first, first + blocks), 100_000 + place],
        }
        for place, (first, blocks) in enumerate(prompts)
    ]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(path)


def rows_of(outcome: Outcome) -> list[dict[str, Any]]:
    columns = outcome.columns
    names = list(columns)
    return [dict(zip(names, row, strict=True)) for row in zip(*columns.values(), strict=True)]


# ---------------------------------------------------------------------- restore or recompute
# sglang#26305: reading a prefix from a file took longer than computing it, 2,450 ms for 1,725 ms.
# dynamo#6101: the same on a disk of 0.06 GB/s. Both servers read whatever was there.


class Report(NamedTuple):
    """A prefix of so many tokens: what computing a token of it takes, and what reading it does."""

    blocks: int
    recompute_ns_per_token: float
    read_ms: float

    @property
    def tokens(self) -> int:
        return self.blocks * BLOCK

    @property
    def recompute_ms(self) -> float:
        return self.tokens * self.recompute_ns_per_token / MS

    @property
    def bytes_per_s(self) -> float:
        return self.tokens * BYTES_PER_TOKEN / self.read_ms * 1e3

    def machine(self) -> Profile:
        """mini-group-a with these steps and this disk, and nothing that is not in the report."""
        profile = load_profile("mini-group-a")
        gpu, disk, host = profile.gpu, profile.disk, profile.host
        assert gpu.prefill is not None
        line = tuple((n, round(n * self.recompute_ns_per_token)) for n in (1, 65_536))
        rate = ((BYTES_PER_TOKEN, 1, round(self.bytes_per_s)),)
        engine = {name: replace(getattr(host.engine, name), value=0)
                  for name in ("d2h_ns", "h2d_ns", "h2s_ns", "s2h_ns", "step_ns")}  # fmt: skip
        return replace(
            profile,
            gpu=replace(gpu, prefill=replace(gpu.prefill, points=line)),
            host=replace(host, engine=replace(host.engine, **engine), restore_overhead=None),
            disk=replace(disk, read_bytes_per_s=replace(disk.read_bytes_per_s, points=rate)),
        )

    def options(self, folder: Path, **changes: Any) -> dict[str, Any]:
        """Two prompts that L1 and L2 hold one of; then the first again, which L3 alone has. The
        belief begins where learning it would end.
        """
        prompts = [(0, self.blocks), (1000, self.blocks), (0, self.blocks)]
        pages = self.tokens // PAGE + 10
        return {
            "trace.path": write_trace(folder, prompts), "tiers.page_size_tokens": PAGE,
            "tiers.l1": f"{pages}pages", "tiers.l2": f"{pages}pages",
            "tiers.l3": f"{4 * pages}pages", "scheduler.chunk_tokens": 65_536,
            "restore.prior_recompute_us_per_token": self.recompute_ns_per_token / 1e3,
            "restore.prior_storage_gib_per_s": self.bytes_per_s / GIB, **changes,
        }  # fmt: skip

    def last(self, folder: Path, **changes: Any) -> dict[str, Any]:
        """The row of the request that asks again, and the mean read."""
        scenario = load_scenario(None, self.options(folder, **changes))
        outcome = replay(scenario, profile=self.machine())
        summary: Any = outcome.summary
        read_ms = summary["transfers"]["s2h"]["mean_service_ms"]
        return {**rows_of(outcome)[-1], "read_ms": read_ms}


FILE = Report(16, 1_725 * MS / 8192, 2450)  # sglang#26305: 8,192 tokens of 144 KiB
# dynamo#6101: 20K tokens at 45 us; of 144 KiB here, on a disk that takes as long for them as 0.06
# GB/s does for its own of 120 KB.
SLOW_DISK = Report(40, 45_000, 20_480 * 120_000 / 0.06e9 * 1e3)
REPORTS = pytest.mark.parametrize("report", [FILE, SLOW_DISK], ids=["sglang#26305", "dynamo#6101"])


def assert_recomputed(report: Report, row: dict[str, Any]) -> None:
    assert (row["storage_tokens"], row["computed_tokens"]) == (0, report.tokens + 1)
    assert row["ttft_ns"] / MS == pytest.approx(report.recompute_ms, rel=0.01)


@REPORTS
def test_sglang_26305_dynamo_6101_cost_recomputes(report: Report, tmp_path: Path) -> None:
    assert_recomputed(report, report.last(tmp_path))


@REPORTS
def test_sglang_26305_dynamo_6101_always_shows_what_reading_takes(
    report: Report, tmp_path: Path
) -> None:
    row = report.last(tmp_path, **{"restore.policy": "always"})
    assert row["read_ms"] == pytest.approx(report.read_ms, rel=1e-4)
    assert row["storage_tokens"] == report.tokens
    assert row["ttft_ns"] / MS > report.read_ms > report.recompute_ms


@REPORTS
def test_sglang_26305_dynamo_6101_put_back(
    report: Report, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is read is weighed by its copy to the GPU alone."""
    monkeypatch.setattr("hicache.restore_policy.FROM_STORAGE", ("h2d",))
    row = report.last(tmp_path)
    assert row["ttft_ns"] / MS > report.read_ms
    with pytest.raises(AssertionError):
        assert_recomputed(report, row)


def test_sglang_26305_a_belief_that_began_wrong_is_learned(tmp_path: Path) -> None:
    """With the usual priors, which trust the disk, the first reads are the last ones."""
    lengths = [16, 12, 8, 14, 10, 6]
    prompts = [(1000 * place, n) for place, n in enumerate(lengths)] * 3
    options = FILE.options(tmp_path)
    options = {key: options[key] for key in options if not key.startswith("restore.prior")}
    options["trace.path"] = write_trace(tmp_path, prompts)
    rows = rows_of(replay(load_scenario(None, options), profile=FILE.machine()))
    assert sum(row["storage_tokens"] for row in rows[:12]) > 0
    assert [row["storage_tokens"] for row in rows[12:]] == [0] * 6


def test_sglang_26305_the_break_even_bandwidth_is_reported(tmp_path: Path) -> None:
    options = FILE.options(tmp_path)
    machine = tmp_path / "machine.json"
    machine.write_text(dump_profile(FILE.machine()))
    options["machine.profile"] = str(machine)
    del options["tiers.l2"], options["tiers.l3"]
    wishes = Wishes(None, options, (PAGE,), ("cost",), (FILE.tokens * BYTES_PER_TOKEN,), (5 * GIB,))
    limits = Limits("node", 4 * GIB, 0.9, 16 * GIB, 1, 4.0, 0.1, None)
    plan = prepare_plan(wishes, lambda _: limits)
    search(plan, lambda jobs, _: (run_job(job) for job in jobs), "GiB")
    found = document_of(plan, "GiB")["break_even"]
    # 1,725 ms less the copy to the GPU, which reading has to wait for: 30 GiB/s.
    left_s = (1725 - 37.5) / 1e3
    assert found["bytes_per_s"] == pytest.approx(8192 * BYTES_PER_TOKEN / left_s, rel=0.01)
    assert found["machine_bytes_per_s"] == pytest.approx(FILE.bytes_per_s, rel=0.01)


# ---------------------------------------------------------------------- simulator book-keeping
# inference-sim#1699, inference-sim#806, LLMServingSim PR 59: simulators that billed a hit of host
# memory as if it were computed, whose bandwidths changed nothing, and which took the size of the KV
# pool from something else than the user.

DIRECTIONS = {"h2d": "pcie.h2d", "d2h": "pcie.d2h", "s2h": "disk.read", "h2s": "disk.write"}


def from_host(folder: Path, l1_pages: int = 138, profile: Profile | None = None) -> Outcome:
    """The prompt that comes back is in L2 alone."""
    changes = {"restore.policy": "always", "tiers.l2": "1000pages", "tiers.l1": f"{l1_pages}pages"}
    options = FILE.options(folder, **changes)
    return replay(load_scenario(None, options), profile=profile or FILE.machine())


def assert_billed_as_a_load(outcome: Outcome) -> None:
    summary: Any = outcome.summary
    row = rows_of(outcome)[-1]
    assert (row["host_tokens"], row["computed_tokens"]) == (8192, 1)
    assert summary["bytes"]["h2d"] == 8192 * BYTES_PER_TOKEN
    load_ns = summary["transfers"]["h2d"]["service_s"] * 1e9
    assert load_ns == pytest.approx(37.5 * MS), "1.125 GiB at 30 GiB/s"
    one_token_ns = FILE.recompute_ns_per_token
    assert row["ttft_ns"] == pytest.approx(load_ns + one_token_ns, abs=2)
    assert summary["gpu"]["prefill_s"] * 1e9 == pytest.approx(2 * 8193 * one_token_ns, rel=1e-3)


def test_inference_sim_1699_a_host_hit_is_billed_as_a_load(tmp_path: Path) -> None:
    assert_billed_as_a_load(from_host(tmp_path))


def test_inference_sim_1699_put_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A step computes what it has loaded, too."""
    prefill_ns = CurveStepModel.prefill_ns

    def past_too(self: CurveStepModel, step: Prefill) -> int:
        past = sum(chunk.past_tokens for chunk in step.chunks)
        return prefill_ns(self, Prefill(step.chunks, step.tokens + past, step.decode_batch))

    monkeypatch.setattr(CurveStepModel, "prefill_ns", past_too)
    with pytest.raises(AssertionError):
        assert_billed_as_a_load(from_host(tmp_path))


def half(profile: Profile, direction: str) -> Profile:
    """Half the bandwidth of a direction."""
    if direction in ("h2d", "d2h"):
        curve: Curve = getattr(profile.pcie, direction)
        longer = replace(curve, points=tuple((size, 2 * ns) for size, ns in curve.points))
        return replace(profile, pcie=replace(profile.pcie, **{direction: longer}))
    key = f"{'read' if direction == 's2h' else 'write'}_bytes_per_s"
    surface: Surface = getattr(profile.disk, key)
    points = tuple((*place, rate // 2) for *place, rate in surface.points)
    return replace(profile, disk=replace(profile.disk, **{key: replace(surface, points=points)}))


def totals(folder: Path, profile: Profile) -> dict[str, float]:
    """Seconds of each direction, in a replay that uses all of them."""
    options = FILE.options(folder, **{"restore.policy": "always"})
    summary: Any = replay(load_scenario(None, options), profile=profile).summary
    return {way: summary["transfers"][way]["service_s"] for way in DIRECTIONS}


def assert_each_counts(folder: Path) -> None:
    before = totals(folder, FILE.machine())
    for direction in DIRECTIONS:
        after = totals(folder, half(FILE.machine(), direction))
        for way in DIRECTIONS:
            times = 2 if way == direction else 1
            assert after[way] == pytest.approx(times * before[way], rel=1e-6), (direction, way)


def test_inference_sim_806_half_of_any_bandwidth_doubles_its_total(tmp_path: Path) -> None:
    assert_each_counts(tmp_path)


@pytest.mark.parametrize("way", ["link", "disk"])
def test_inference_sim_806_put_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, way: str
) -> None:
    """Copies of the link, or of the disk, take what the simulator has made up."""
    if way == "link":
        monkeypatch.setattr(Way, "alone_ns", lambda self, operation, pieces: 1_000_000)
    else:
        monkeypatch.setattr("sim.disk.BlockTimes.alone_ns", lambda self, block: 1e6)
    with pytest.raises(AssertionError):
        assert_each_counts(tmp_path)


def assert_the_pool_is_as_asked_for(folder: Path) -> None:
    for pages, hit in ((138, 0), (300, 8192)):
        outcome = from_host(folder, pages)
        summary: Any = outcome.summary
        assert summary["tiers"]["device"]["capacity_pages"] == pages
        assert rows_of(outcome)[-1]["device_tokens"] == hit
        assert f'l1 = "{pages}pages"' in outcome.scenario_text


def test_llmservingsim_pr_59_the_size_of_the_kv_pool_is_an_input(tmp_path: Path) -> None:
    assert_the_pool_is_as_asked_for(tmp_path)


def test_llmservingsim_pr_59_put_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The engine takes what the GPU has room for, whatever was asked."""
    from hicache.engine import Engine

    made = Engine.__init__

    def with_all_there_is(self: Engine, env: Any, lanes: Any, options: Any) -> None:
        import dataclasses

        made(self, env, lanes, dataclasses.replace(options, device_pages=10_000))

    monkeypatch.setattr(Engine, "__init__", with_all_there_is)
    with pytest.raises(AssertionError):
        assert_the_pool_is_as_asked_for(tmp_path)


# ---------------------------------------------------------------------- starved copy threads
# sglang#21880: in a container of few cores, reads of L3 took ten times as long; of what they were
# made up, allocation, I/O or copies, only the log of each operation told.

READ_TWICE = (0, 8)  # the prompt that is read from L3 in the end
OTHERS = [(1000 * place, 2) for place in range(1, 11)]
SCATTERED = [READ_TWICE, *OTHERS, *OTHERS[::2], READ_TWICE]


def read_by(folder: Path, cores: int) -> dict[str, Any]:
    """What the parts of the same read take: it comes from L3 to pages of L2 that lie apart, which
    CPU threads gather for the GPU, 1 GB/s each.
    """
    machine = FILE.machine()
    host = machine.host
    rates = replace(host.copy_bytes_per_s, points=((1, 10**9), (16, 16 * 10**9)))
    threads = replace(host.copy_threads, value=cores)
    machine = replace(machine, host=replace(host, copy_threads=threads, copy_bytes_per_s=rates))
    options = FILE.options(folder) | {
        "tiers.l1": "80pages", "tiers.l2": "160pages", "engine.page_ids": "named",
        "restore.policy": "always", "machine.transfer_mode": "staged",
        "trace.path": write_trace(folder, SCATTERED),
    }  # fmt: skip
    outcome = replay(load_scenario(None, options), profile=machine)
    summary: Any = outcome.summary
    row = rows_of(outcome)[-1]
    assert row["storage_tokens"] == 4096
    return {**summary["transfers"], "restore_ns": row["restore_ns"]}


def assert_apart(folder: Path) -> None:
    few, many = read_by(folder, 2), read_by(folder, 16)
    size = 4096 * BYTES_PER_TOKEN
    for parts in (few, many):
        assert parts["s2h"]["operations"] == 1
        io_ns = parts["s2h"]["service_s"] * 1e9
        assert io_ns == pytest.approx(size * 1e9 / FILE.bytes_per_s, rel=1e-6), "not I/O alone"
    assert few["s2h"] == many["s2h"], "I/O needs no copy threads"
    # The copies are what waits for cores: 2 GB/s for 16.
    more_ns = size * (1 / 2 - 1 / 16)
    assert few["restore_ns"] - many["restore_ns"] == pytest.approx(more_ns, rel=1e-6)
    assert few["h2d"]["service_s"] - many["h2d"]["service_s"] >= more_ns / 1e9 * 0.999
    assert few["h2d"]["operations"] == many["h2d"]["operations"]


def test_sglang_21880_few_cores_show_in_the_copies_and_there_alone(tmp_path: Path) -> None:
    assert_apart(tmp_path)


@pytest.mark.parametrize("fault", ["free", "one number"])
def test_sglang_21880_put_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fault: str) -> None:
    """Copies of the CPU cost nothing; or they are part of what I/O is said to take."""
    if fault == "free":
        monkeypatch.setattr(Host, "copy", lambda self, ready_ns, size: (ready_ns, ready_ns))
    else:
        issue = Host.issue_copy

        def copied_first(self: Host, now_ns: int, operation: Any) -> int:
            ready_ns = issue(self, now_ns, operation)
            if operation.direction != "s2h":
                return ready_ns
            self.free_ns = self.copy(ready_ns, operation.size_bytes)[1]
            return self.free_ns

        monkeypatch.setattr(Host, "issue_copy", copied_first)
    with pytest.raises(AssertionError):
        assert_apart(tmp_path)
