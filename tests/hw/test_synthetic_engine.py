"""Whole engines on real pools, copies and files, their pages checked against their tokens."""

from __future__ import annotations

from dataclasses import replace
from random import Random

import pytest

pytest.importorskip("torch")

from fault_runs import QUICK
from hypothesis import given, settings
from hypothesis import strategies as st
from live_runs import Fate, replayed  # makes the engine's test helpers importable
from real_tiers import Machine, conversations

# isort: split
from engine_runs import assert_at_rest, rows_of
from small_workloads import random_workload

from hicache.errors import DeviceError, TransferError
from hicache.options import OffloadOptions, PrefetchOptions, StorageOptions
from hw.pools import KvLayout
from hw.synthetic import SyntheticDevice
from hw.transfers.direct import Direct


def run(workload, folder, spoil=None) -> Machine:
    """To the end."""
    layout = KvLayout(
        layers=2, kv_heads=1, head_dim_k=8, head_dim_v=8,
        page_size_tokens=workload.options.page_size_tokens, dtype="bf16",
    )  # fmt: skip
    return Machine(workload, folder, layout, lambda pool: SyntheticDevice(pool, QUICK), spoil)


def test_all_three_tiers_hold_what_was_computed(tmp_path):
    workload = conversations()
    machine = run(workload, tmp_path)
    copied = machine.copied()
    assert min(copied[each] for each in ("d2h", "h2d", "h2s", "s2h")) >= 3, copied
    assert machine.gpu.checked_tokens > 100
    assert_at_rest(machine.engine)
    assert rows_of(replayed(workload, machine.lines)) == rows_of(machine.engine)


def test_requests_are_prefilled_while_their_pages_come_and_read_all_of_them(tmp_path):
    workload = conversations(turns=2, layerwise=True)
    machine = run(workload, tmp_path)
    overlapped = machine.overlapped()
    assert overlapped
    # No prefill is over before all that it reads is there.
    assert min(after_ns for _, _, after_ns in overlapped) >= 0
    assert machine.engine.metrics.restores >= 2
    assert_at_rest(machine.engine)
    assert rows_of(replayed(workload, machine.lines)) == rows_of(machine.engine)


def test_answers_are_written_while_they_are_made_and_hold_what_was_computed(tmp_path):
    workload = conversations(turns=2)
    calls = tuple(replace(call, output_tokens=15) for call in workload.calls)
    workload = replace(workload.but(offload=OffloadOptions(decode=True)), calls=calls)
    machine = run(workload, tmp_path)
    metrics = machine.engine.metrics
    assert metrics.offloaded_pages >= 2 * len(calls)
    assert machine.copied()["d2h"] > 2 * len(calls)
    assert machine.gpu.checked_tokens > 100
    assert_at_rest(machine.engine)
    assert rows_of(replayed(workload, machine.lines)) == rows_of(machine.engine)


@pytest.mark.parametrize("broken", ["at once", "after one layer"])
def test_where_a_load_fails_its_prefill_is_done_again_without_it(tmp_path, monkeypatch, broken):
    move, failures = Direct._move_layers, []

    def fails_now_and_then(self, lists, load):
        failures.append(len(failures) % 2 == 0)
        if not failures[-1]:
            return move(self, lists, load)
        if broken == "after one layer":
            load.loaded()
        raise TransferError("the link is gone")

    monkeypatch.setattr(Direct, "_move_layers", fails_now_and_then)
    workload = conversations(turns=2, layerwise=True)
    machine = run(workload, tmp_path)
    metrics = machine.engine.metrics
    assert metrics.restore_fallbacks == sum(failures) == metrics.directions["h2d"].failed >= 1
    assert metrics.restores >= 1
    assert any('"failed"' in line and '"Prefill"' in line for line in machine.lines)
    assert_at_rest(machine.engine)
    assert rows_of(replayed(workload, machine.lines)) == rows_of(machine.engine)


@pytest.mark.parametrize("direction", ["h2d", "d2h"])
def test_one_page_that_is_copied_wrong_once_is_found_out(tmp_path, direction):
    spoiled: list[object] = []

    def spoil(way, source, target):
        """The first copy of several pages: two of them change places."""
        pages = [page for first, count in source for page in range(first, first + count)]
        if way == direction and len(pages) > 1 and not spoiled:
            spoiled.append(source)
            pages[0], pages[1] = pages[1], pages[0]
            source = tuple((page, 1) for page in pages)
        return source, target

    with pytest.raises(DeviceError, match="are not what their requests computed"):
        run(conversations(), tmp_path, spoil)
    assert spoiled


@given(seed=st.integers(0, 10_000))
@settings(deadline=None, max_examples=2)
def test_any_engine_reads_what_its_requests_computed(tmp_path_factory, seed):
    workload = random_workload(Random(seed), faults=False)
    options = workload.options
    # What a real run refuses, or has not yet (`hw.run`), left out.
    cache = replace(options.cache, hit_cap="last_token_computed", pages="full")
    plain = {
        "cache": cache, "storage": StorageOptions(), "prefetch": PrefetchOptions(),
        "host_mode": "cache",
    }  # fmt: skip
    workload = replace(workload.but(page_ids="named", **plain), fates=(Fate(),), aborts=())
    machine = run(workload, tmp_path_factory.mktemp("l3"))
    assert_at_rest(machine.engine)
