"""The parts of the back-ends: how lists are cut, which copies are made, which buffers are kept, and
what the link says to the engine.
"""

from __future__ import annotations

import time

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from transfer_pools import LAYOUTS, LISTS, check_copy, equal_table, make_pools, pieces

from hicache.allocator import extents as count_extents
from hicache.errors import InputError
from hicache.operations import Copy
from hw.device import Control
from hw.pools import KvLayout
from hw.transfers.auto import (
    BACKENDS,
    make_backend,
)
from hw.transfers.device import TransferDevice
from hw.transfers.direct import Direct
from hw.transfers.kernels import tiling
from hw.transfers.lists import Extent, Pages, expand, extents, runs_of
from hw.transfers.staged import Staged

numbers = st.lists(st.integers(0, 40), unique=True, max_size=30)


@given(numbers)
def test_runs_and_page_numbers_say_the_same(pages):
    assert expand(runs_of(np.array(pages, np.int64))).tolist() == pages


def test_runs_of_any_length_expand_in_their_order():
    assert expand(((5, 2), (9, 0), (1, 3))).tolist() == [5, 6, 1, 2, 3]
    assert expand(()).tolist() == []


@given(numbers, numbers, st.integers(1, 50))
def test_extents_cover_the_lists_and_cross_no_border(device, host, per_chunk):
    count = min(len(device), len(host))
    pages = Pages(np.array(device[:count], np.int64), np.array(host[:count], np.int64))
    found = extents(pages, per_chunk)
    covered = [
        (each.device + place, each.host + place) for each in found for place in range(each.pages)
    ]
    assert covered == list(zip(device[:count], host[:count], strict=True))
    assert all(
        each.host // per_chunk == (each.host + each.pages - 1) // per_chunk for each in found
    )
    if per_chunk == 50 and count:  # nothing is pinned apart: as few as the engine counts
        assert len(found) == count_extents(runs_of(pages.device), runs_of(pages.host))


def test_long_runs_are_copied_by_layer_and_single_pages_by_page():
    backend = Direct(*make_pools(LAYOUTS["gqa_bf16"]))
    layers = LAYOUTS["gqa_bf16"].layers
    by_layer = backend.rows_of(Extent(0, 0, 9), 0, 0, layers)
    assert [rows.height for rows in by_layer] == [9] * layers
    by_page = backend.rows_of(Extent(0, 0, 1), 1, 0, layers)
    assert [rows.height for rows in by_page] == [layers]
    assert by_page[0].device_pitch == backend.device_pool.layer_pitch_bytes(1)


def test_a_pitch_that_the_device_cannot_do_becomes_single_rows():
    backend = Direct(*make_pools(LAYOUTS["gqa_bf16"]))
    backend._max_pitch = 1
    assert {rows.height for rows in backend.rows_of(Extent(0, 0, 1), 0, 0, 3)} == {1}
    check_copy(backend, "h2d", LISTS["whole pool"])
    check_copy(backend, "d2h", LISTS["fragmented"])


class OldDriver:
    """Of the driver, what `Direct` asks before it copies."""

    copies_batches = False
    max_pitch_bytes = 1 << 30


def test_what_was_asked_for_by_name_is_never_replaced():
    pools = make_pools(LAYOUTS["gqa_bf16"])
    with pytest.raises(InputError, match="copies no batches"):
        make_backend("direct_batch", *pools, OldDriver())  # type: ignore[arg-type]
    with pytest.raises(InputError, match="must be auto, staged, zero_copy, direct"):
        make_backend("dma", *pools)
    for name in BACKENDS:
        assert make_backend(name, *pools).name == name


def test_buffers_are_made_when_needed_and_kept():
    backend = Staged(*make_pools(LAYOUTS["mla_fp8"]), run_bytes=1 << 30)
    assert backend.copy("d2h", *LISTS["one run"]).setup_ns > 0
    work = backend.buffers.work_address(0)
    assert not backend.buffers.has_pinned  # one run: no copy by the CPU
    assert backend.copy("d2h", *LISTS["one run"]).setup_ns == 0
    assert backend.copy("d2h", *LISTS["fragmented"]).setup_ns > 0
    pinned = backend.buffers.pinned_address(0)
    assert backend.copy("h2d", *reversed(LISTS["fragmented"])).setup_ns == 0
    assert backend.buffers.work_address(0) == work
    assert backend.buffers.pinned_address(0) == pinned
    backend.close()


def test_lazily_pinned_host_pages_are_part_of_the_set_up():
    class Slow:
        def register(self, address, size_bytes):
            time.sleep(0.01)

        def unregister(self, address):
            pass

    pools = make_pools(LAYOUTS["mla_fp8"], register="lazy", registrar=Slow())
    backend = Direct(*pools)
    assert backend.copy("d2h", *LISTS["single"]).setup_ns >= 10_000_000
    assert backend.copy("d2h", *LISTS["single"]).setup_ns == 0


@pytest.mark.parametrize(
    ("page_size", "dims", "cols"),
    [(64, (128, 128), 2048), (1, (128, 128), 256), (1, (576, 0), 32), (1, (192, 128), 128)],
)
def test_tiles_waste_little_and_move_16_bytes_at_a_time(page_size, dims, cols):
    heads = 8 if dims[1] else 1
    layout = KvLayout(
        layers=36, kv_heads=heads, head_dim_k=dims[0], head_dim_v=dims[1],
        page_size_tokens=page_size, dtype="bf16",
    )  # fmt: skip
    shape = tiling(layout)
    assert (shape.cols, shape.rows * shape.cols * shape.bits) == (cols, 16384 * 8)
    assert shape.vector * shape.bits == 128
    moved = shape.tiles(1000) * 16384
    assert moved <= 1000 * max(layout.k_bytes, layout.v_bytes) * layout.parts * 1.15


# The link, as the engine sees it ----------------------------------------------------------------


@pytest.mark.parametrize("name", ["zero_copy", "direct", "staged", "auto"])
def test_the_link_runs_copies_of_its_direction_and_says_when(name):
    backend = make_backend(name, *make_pools(LAYOUTS["gqa_bf16"]), table=equal_table())
    device, host = LISTS["fragmented"]
    wanted = pieces(backend.host_pool)[0][:, expand(host)]
    link = TransferDevice(backend, "h2d")
    assert link.name == f"PCIe h2d ({name})"
    before_ns = time.monotonic_ns()
    timing = link.run(Copy("h2d", 6, 6 * 768, 4, host, device), Control())
    assert before_ns <= timing.started_ns <= timing.finished_ns <= time.monotonic_ns()
    assert 0 <= timing.setup_ns <= timing.finished_ns - before_ns
    assert torch.equal(pieces(backend.device_pool)[0][:, expand(device)], wanted)
    with pytest.raises(AssertionError):
        link.run(Copy("d2h", 1, 768, 1, ((0, 1),), ((0, 1),)), Control())
    link.close()
