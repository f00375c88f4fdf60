"""The files of `scenarios/` are the published workloads, and `hicache replay` takes them."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from scenarios import make_traces
from scenarios.reproduce import (
    COUNTED_ITERATIONS,
    COUNTED_REQUESTS,
    GROUPS,
    HERE,
    LATENCY,
    PREFIX_TOKENS,
    PUBLISHED,
    THROUGHPUT,
    Run,
    latency_run,
    throughput_run,
)
from sim.replay import Run as PreparedRun
from sim.replay import prepare

RUNS = [
    *(throughput_run(group, variant) for group in GROUPS for variant in THROUGHPUT),
    *(
        latency_run(group, tokens, variant)
        for group in GROUPS
        for tokens in PREFIX_TOKENS
        for variant in LATENCY
    ),
]


def test_the_script_writes_the_traces_that_lie_here(tmp_path):
    make_traces.main(tmp_path / "new")
    made = {each.name: each.read_bytes() for each in (tmp_path / "new").iterdir()}
    kept = {each.name: each.read_bytes() for each in make_traces.FOLDER.iterdir()}
    assert made == kept


def test_runs_count_the_requests_that_the_traces_are_made_for():
    assert make_traces.COUNTED_REQUESTS == COUNTED_REQUESTS
    assert make_traces.COUNTED_ITERATIONS == COUNTED_ITERATIONS
    assert make_traces.ALTERNATING_TOKENS == PREFIX_TOKENS
    counted = PUBLISHED["counted_requests"]
    assert counted["group_a"] == make_traces.ROTATING_REQUESTS
    assert counted["group_b"] == make_traces.COUNTED_REQUESTS


def test_every_file_belongs_to_a_run():
    files = {str(each.relative_to(HERE)) for each in HERE.rglob("*.toml")}
    assert files == {run.file for run in RUNS}
    used = {Path(run.scenario().trace.path) for run in RUNS}
    assert used == set(make_traces.FOLDER.iterdir())


@pytest.mark.parametrize("run", RUNS, ids=lambda run: run.command.partition("scenarios/")[2])
def test_what_all_workloads_share(run: Run):
    prepared = prepare(run.scenario())
    options, geometry = prepared.options, PUBLISHED["kv_geometry"]
    assert options.page_size_tokens == geometry["page_size_tokens"]
    assert options.bytes_per_token == geometry["bytes_per_token"]
    assert options.scheduler.max_running_requests == 1
    assert prepared.geometry.name == prepared.profile.gpu.model.name
    assert run.file.startswith(f"{prepared.profile.name}/")
    assert {request.output_tokens for request in prepared.trace.requests(1)} == {1}


@pytest.mark.parametrize("group", GROUPS)
@pytest.mark.parametrize("variant", LATENCY)
def test_the_latency_workload(group, variant):
    ratios = {"host": 0, "storage": 0} | PUBLISHED["latency_ratios"].get(variant, {})
    for pages, tokens in zip(*published_pages(), strict=True):
        prepared = prepare(latency_run(group, tokens, variant).scenario())
        assert prepared.options.restore.policy == "always"
        assert sizes(prepared) == (pages, ratios["host"] * pages, ratios["storage"] * pages)
        requests = list(prepared.trace.requests(1))
        assert {request.prompt_tokens for request in requests} == {tokens}
        assert sum(request.ideal_pages == 0 for request in requests) == 2
        assert tokens <= pages < 2 * tokens, "L1 holds one of the two"


@pytest.mark.parametrize("group", GROUPS)
@pytest.mark.parametrize(
    ("variant", "host", "storage", "policy"),
    [
        ("recompute", 0, 0, "cost"),
        ("l2", 8, 0, "cost"),
        ("l3_cost", 1, 8, "cost"),
        ("l3_always", 1, 8, "always"),
    ],
)
def test_the_throughput_workload(group, variant, host, storage, policy):
    assert "L1 512 pages, host_ratio 1, storage_ratio 8 for L3" in PUBLISHED["throughput_workload"]
    assert PUBLISHED["host_ratio_of_the_l2_throughput_run"].endswith("use 8")
    prepared = prepare(throughput_run(group, variant).scenario())
    assert prepared.options.restore.policy == policy
    assert sizes(prepared) == (512, host * 512, storage * 512)
    requests = list(prepared.trace.requests(1))
    assert {request.prompt_tokens for request in requests} == {350}
    assert sum(request.ideal_pages == 0 for request in requests) == 8


def sizes(prepared: PreparedRun) -> tuple[int, int, int]:
    """Pages of the three tiers."""
    options = prepared.options
    return options.device_pages, options.host_pages, options.storage_pages


def published_pages() -> tuple[list[int], list[int]]:
    """L1 pages and prefix tokens of the latency workload, from the golden file's words."""
    found = re.search(r"([\d /]+) pages for ([\d /]+) tokens", PUBLISHED["latency_workload"])
    assert found is not None
    pages, tokens = ([int(each) for each in part.split(" / ")] for part in found.groups())
    return pages, tokens


@pytest.mark.parametrize(
    ("run", "expected"),
    [
        (throughput_run("a", "l3_cost"), {"device": 0, "host": 0, "storage": 4 * 349}),
        (latency_run("b", 3500, "l2"), {"device": 0, "host": 10 * 3499, "storage": 0}),
    ],
)
def test_the_command_makes_the_run(run: Run, expected, tmp_path, latencies):
    command = [sys.executable, "-m", "cli.main", *run.command.split()[1:]]
    done = subprocess.run(
        [*command, "--out", str(tmp_path / "out"), "--quiet"],
        cwd=HERE.parent, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (0, "")
    summary = json.loads((tmp_path / "out" / "summary.json").read_text())
    assert summary["cached_tokens_total"] == expected
    if "latency" in run.file:
        # What the command prints as the median TTFT is the published kind of number.
        median_ms = latencies["b", 3500].median_ms["l2"]
        assert summary["ttft_ms"]["p50"] == pytest.approx(median_ms, rel=1e-6)
