"""Faults of real runs: copies that fail, a disk that fails, is cut, lost or full, requests given up
in every phase. The run goes on, and nothing is lost, pinned or wrong afterwards.
"""

from __future__ import annotations

import os
import resource
import sys
from collections import Counter
from pathlib import Path

import pytest

pytest.importorskip("torch")

from fault_rigs import DAMAGE, PHASES, CrookedDisk, GivingUp, after, failing
from fault_runs import DEVICES, FaultyRun, scenario_of, transfers, write_inputs
from file_store_helpers import ROOT
from native_calls import compiled_loop

from hicache.node import HOST, STORAGE


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    write_inputs(tmp_path)
    return tmp_path


@pytest.mark.parametrize("device", DEVICES)
def test_without_faults_all_tiers_are_used_and_every_page_is_right(folder, device, monkeypatch):
    """What the tests below rest on."""
    run = FaultyRun(scenario_of(folder), device, monkeypatch)
    outcome = run.to_the_end()
    for direction, counts in transfers(outcome).items():
        assert counts["operations"] >= 5, direction
        assert counts["failed"] == 0
    assert run.checked[HOST] >= 12
    assert run.checked[STORAGE] >= 24


@pytest.mark.parametrize("device", DEVICES)
def test_a_page_that_holds_something_else_is_found_in_every_tier(folder, device, monkeypatch):
    """The checks themselves: one byte of each page of one tier."""
    run = FaultyRun(scenario_of(folder), device, monkeypatch)
    first = run.pool.k[0, :, 0, 0, 0]

    def spoil_storage() -> None:
        for slot in range(run.store.pages):
            os.pwrite(run.store.file.fd, b"#", slot * run.store.slot_bytes)

    spoils = {
        "device": lambda: first.add_(1),
        "host": lambda: run.host.data[:, 0].add_(1),
        "storage": spoil_storage,
    }
    try:
        run.run.execute()
        run.check_pages()
        before = run.pool.data.clone(), run.host.data.clone()
        for tier, spoil in spoils.items():
            spoil()
            with pytest.raises(AssertionError, match=f"the {tier} page of .* holds something else"):
                run.check_pages()
            run.pool.data.copy_(before[0])
            run.host.data.copy_(before[1])
    finally:
        run.run.close()


@pytest.mark.parametrize("device", DEVICES)
def test_copies_that_fail_and_leave_rubbish(folder, device, monkeypatch):
    run = FaultyRun(scenario_of(folder), device, monkeypatch, port=failing(0.3, slow=0.3))
    outcome = run.to_the_end()
    failed = {name: counts["failed"] for name, counts in transfers(outcome).items()}
    assert sum(failed.values()) == run.faulty.failed
    assert min(failed["d2h"], failed["h2s"], failed["h2d"] + failed["s2h"]) >= 1, failed
    assert run.faulty.slowed > 5


@pytest.mark.parametrize(("kind", "backend"), [("EIO", "pread"), ("short", "direct")])
@pytest.mark.parametrize("threads", ["Python's", "compiled"])
@pytest.mark.parametrize("device", DEVICES)
def test_a_disk_that_fails_or_does_less_than_asked(
    folder, device, threads, monkeypatch, kind, backend, tmp_path_factory
):
    """What was moved short is finished, what failed is computed again."""
    disk = CrookedDisk(kind, 4096 if backend == "direct" else 1)
    if threads == "compiled":
        loop = compiled_loop(tmp_path_factory.getbasetemp() / "native")
        monkeypatch.setattr("hw.storage.file_store.library", lambda: loop)
    disk.install(monkeypatch)
    scenario = scenario_of(folder, hw__l3_backend=backend)
    outcome = FaultyRun(scenario, device, monkeypatch).to_the_end(heal=monkeypatch.undo)
    failed = {name: counts["failed"] for name, counts in transfers(outcome).items()}
    assert min(disk.calls["preadv"], disk.calls["pwritev"]) >= 3
    assert failed["d2h"] == failed["h2d"] == 0
    if kind == "EIO":
        assert min(failed["s2h"], failed["h2s"]) >= 1, failed
        assert "restore_failed" in outcome.columns["reason"]
    else:
        assert failed["s2h"] == failed["h2s"] == 0


@pytest.mark.parametrize("kind", DAMAGE)
@pytest.mark.parametrize("device", DEVICES)
def test_a_file_that_somebody_damages_during_the_run(folder, device, monkeypatch, kind):
    """`overwritten` keeps its size, and is full of zeros: what the checksum is for."""
    scenario = scenario_of(folder, hw__checksum="crc32")
    rig = after("s2h", 2, lambda: DAMAGE[kind](folder / "l3"))
    run = FaultyRun(scenario, device, monkeypatch, rig)
    outcome = run.to_the_end(l3="lost")
    failed = {name: counts["failed"] for name, counts in transfers(outcome).items()}
    assert failed["s2h"] >= 1
    assert (failed["h2s"] >= 1) == (kind != "overwritten")
    assert "restore_failed" in outcome.columns["reason"]
    assert failed["d2h"] == failed["h2d"] == 0


@pytest.mark.parametrize("device", DEVICES)
def test_a_file_that_may_not_grow(folder, device, monkeypatch):
    """The kernel refuses writes behind a limit (EFBIG), which is taken for a full disk."""
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    run = FaultyRun(scenario_of(folder), device, monkeypatch)
    resource.setrlimit(
        resource.RLIMIT_FSIZE, (10 * run.store.slot_bytes + run.store.slot_bytes // 2, limits[1])
    )
    try:
        outcome = run.to_the_end()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    counts = transfers(outcome)
    assert counts["h2s"]["failed"] >= 3
    assert counts["h2s"]["operations"] >= 1
    assert counts["s2h"]["failed"] == 0
    assert 0 < run.checked[STORAGE] <= 10


@pytest.mark.parametrize("device", DEVICES)
def test_requests_are_given_up_in_every_phase(folder, device, monkeypatch):
    giving_up = GivingUp()
    run = FaultyRun(scenario_of(folder, trace__speed=5000.0), device, monkeypatch, giving_up.rig)
    giving_up.watch(run)
    run.to_the_end()
    for phase in PHASES:
        assert giving_up.given_up[phase] >= 1, giving_up.given_up
    assert run.engine.metrics.aborted >= 6


def test_the_benchmark_counts_no_fault_that_never_happened(monkeypatch):
    """`benchmarks/hw/faults.py`: it once said that a lost file was survived which nobody read."""
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks" / "hw"))
    monkeypatch.setattr(sys, "path", list(sys.path))  # it makes itself at home there
    from faults import FAULTS, without_effect

    table = {name: Counter() for name in FAULTS}
    assert without_effect(table) == "", "nothing was tried"
    for name, (_, key) in FAULTS.items():
        table[name].update({"runs": 2, key: 1})
    assert without_effect(table) == ""
    table["file removed"]["failed_copies"] = 0
    assert without_effect(table) == "never happened: file removed"
