"""What may go wrong with a store while a real run goes on: operations, folders and foreign classes
that fail, hang, lose pages or have no room, requests given up. The run goes on, and every page that
is read is checked.
"""

from __future__ import annotations

import errno
import os
import shutil
import threading
import time
from collections import Counter
from pathlib import Path

import pytest

pytest.importorskip("torch")

from fault_rigs import GivingUp, after, failing
from fault_runs import DEVICES, PAGE, Front, quick, transfers
from store_runs import MODULE, STORES, failed, folder, lookups, run_of, stored, to_the_end

from hicache.operations import Copy, Lookup
from hw.stores import sglang_file

__all__ = ["folder"]


@pytest.mark.parametrize("kind", STORES)
@pytest.mark.parametrize("device", DEVICES)
def test_operations_that_fail_and_leave_rubbish(folder, device, monkeypatch, kind):
    run = run_of(folder, device, monkeypatch, kind, port=failing(0.3, slow=0.3))
    outcome, _ = to_the_end(run)
    counts = failed(outcome)
    assert min(counts["d2h"], counts["h2s"], counts["s2h"] + counts["h2d"]) >= 1, counts
    assert lookups(run)["failed"] >= 2
    assert sum(counts.values()) + lookups(run)["failed"] == run.faulty.failed


class CrookedFolder:
    """`open` of the store's module: each third call for a page fails."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, number: int) -> None:
        self.calls: Counter[str] = Counter()
        self._lock, self._number = threading.Lock(), number
        monkeypatch.setattr(sglang_file, "open", self._open, raising=False)

    def _open(self, path, mode, **options):
        with self._lock:
            self.calls[mode] += 1
            fails = not self.calls[mode] % 3
        if fails:
            raise OSError(self._number, os.strerror(self._number))
        return open(path, mode, **options)


@pytest.mark.parametrize("number", [errno.EIO, errno.ENOSPC])
@pytest.mark.parametrize("device", DEVICES)
def test_a_folder_that_fails(folder, device, monkeypatch, number):
    crooked = CrookedFolder(monkeypatch, number)
    run = run_of(folder, device, monkeypatch)
    outcome, checked = to_the_end(run, heal=lambda: monkeypatch.delattr(sglang_file, "open"))
    assert min(crooked.calls.values()) >= 3
    counts = failed(outcome)
    assert min(counts["s2h"], counts["h2s"]) >= 1, counts
    assert counts["d2h"] == counts["h2d"] == 0
    assert checked > 0
    assert not list((folder / "pages").glob("*.tmp"))


def truncate_all(pages: Path) -> None:
    for each in pages.glob("*.bin"):
        os.truncate(each, each.stat().st_size // 3)


def remove_all(pages: Path) -> None:
    for each in pages.glob("*.bin"):
        each.unlink()


def remove_folder(pages: Path) -> None:
    """At once: file by file it would race with who writes there."""
    shutil.rmtree(pages.rename(pages.with_name("gone")), ignore_errors=True)


@pytest.mark.parametrize("damage", [truncate_all, remove_all, remove_folder])
@pytest.mark.parametrize("device", DEVICES)
def test_pages_that_somebody_damages_between_the_question_and_the_read(
    folder, device, monkeypatch, damage
):
    """Reads find less than they were told there was; what is written later is whole again."""
    rig = after("s2h", 2, lambda: damage(folder / "pages"))
    run = run_of(folder, device, monkeypatch, rig=rig)
    outcome, checked = to_the_end(run)
    lost = outcome.summary["storage_prefetch_unfulfilled_tokens_total"]
    assert lost["storage_transfer"] >= PAGE
    assert failed(outcome)["d2h"] == failed(outcome)["h2d"] == 0
    if damage is remove_folder:
        assert failed(outcome)["h2s"] >= 1
    else:
        assert checked > 0


@pytest.mark.parametrize("device", DEVICES)
def test_a_folder_that_hangs_now_and_then(folder, device, monkeypatch):
    """Operations fail after their time limit, far below the watchdog's."""
    lock, calls, go_on = threading.Lock(), Counter(), threading.Event()

    def slow(path, mode, **options):
        with lock:
            calls[mode] += 1
            # The first read, since a fast machine may not read often; not the first write, without
            # which nothing is read.
            hangs = calls[mode] % 9 == (1 if mode == "rb" else 5)
        if hangs:
            assert go_on.wait(60)
        return open(path, mode, **options)

    monkeypatch.setattr(sglang_file, "open", slow, raising=False)
    run = run_of(folder, device, monkeypatch, hw__store_timeout_s=0.1)

    def heal() -> None:
        go_on.set()
        monkeypatch.delattr(sglang_file, "open")
        for _ in range(500):
            if not run.store._fence.late:
                return
            time.sleep(0.01)

    outcome, _ = to_the_end(run, heal)
    assert min(failed(outcome)["s2h"], failed(outcome)["h2s"]) >= 1, transfers(outcome)


@pytest.mark.parametrize("device", DEVICES)
def test_a_folder_with_a_cap_forgets_what_was_used_longest_ago(folder, device, monkeypatch):
    run = run_of(folder, device, monkeypatch, tiers__l3="30pages")
    outcome, _ = to_the_end(run)
    assert run.store.room.evicted >= 5
    assert len(os.listdir(folder / "pages")) <= 30
    assert stored(outcome)["pages_written"] > 30


@pytest.mark.parametrize("device", DEVICES)
def test_a_foreign_class_in_a_bad_mood(folder, device, monkeypatch):
    run = run_of(
        folder, device, monkeypatch, "dynamic", hw__store_class=f"{MODULE}:Moody",
        hw__store_timeout_s=0.1,
    )  # fmt: skip
    moody = run.store._store
    outcome, _ = to_the_end(run, heal=lambda: setattr(moody, "_mood", lambda: "good"))
    assert failed(outcome)["s2h"] + failed(outcome)["h2s"] >= 3
    assert lookups(run)["failed"] >= 1
    assert lookups(run)["done"] >= 1


@pytest.mark.parametrize("kind", STORES)
@pytest.mark.parametrize("device", DEVICES)
def test_requests_are_given_up_in_every_phase(folder, device, monkeypatch, kind):
    """And while their pages are asked for, read, and written."""
    giving_up = GivingUp(most=3)
    during: Counter[str] = Counter()
    give_up = giving_up.give_up

    def counting(operation) -> None:
        before = giving_up.given_up.total()
        give_up(operation)
        if giving_up.given_up.total() > before and isinstance(operation, Copy | Lookup):
            during[getattr(operation, "direction", "lookup")] += 1

    giving_up.give_up = counting  # type: ignore[method-assign]
    run = run_of(folder, device, monkeypatch, kind, rig=giving_up.rig, trace__speed=5000.0)
    giving_up.watch(run)
    to_the_end(run)
    for phase in ("queued", "prefilling", "decoding"):
        assert giving_up.given_up[phase] >= 1, giving_up.given_up
    assert during["lookup"] + during["s2h"] >= 1, during
    assert run.engine.metrics.aborted >= 5


@pytest.mark.parametrize("stop", ["best_effort", "timeout", "wait_complete"])
def test_prefetches_with_every_stop_policy_end_at_rest(folder, monkeypatch, stop):
    """Slow reads, which all but one policy cut; everything that came is checked."""
    to_the_end(run_of(folder, "cpu", monkeypatch))
    pause_s = 0.02 if stop == "wait_complete" else 0.5

    class Slow(Front):
        def run(self, operation, control, steps=()):
            time.sleep(pause_s)
            return super().run(operation, control, steps)

    def rig(name: str, device):
        return Slow(device) if name == "s2h" else quick(name, device)

    run = run_of(
        folder, "cpu", monkeypatch, rig=rig, prefetch__stop=stop, prefetch__read_batch_pages=2,
        prefetch__query_batch_pages=3, prefetch__workers=2, prefetch__timeout_base_s=0.05,
        prefetch__retries=2, load__parallel=5,
    )  # fmt: skip
    outcome, _ = to_the_end(run)
    lost = outcome.summary["storage_prefetch_unfulfilled_tokens_total"]
    assert (lost["deadline"] > 0) == (stop != "wait_complete")
