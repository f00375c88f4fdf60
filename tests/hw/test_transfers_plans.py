"""Which copies would be made: every piece of every page once, whatever the lists and the cuts."""

from __future__ import annotations

import ctypes
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from transfer_pools import DEVICE_PAGES, HOST_PAGES, LAYOUTS, make_pools

from hicache.errors import TransferError
from hw.transfers.chunks import Cutter
from hw.transfers.direct import BATCH_PIECES, Direct, send
from hw.transfers.kernels import _Compiled
from hw.transfers.lists import FEW_RUNS, Extent, Lists, Pages, expand, extents, runs_of
from hw.transfers.queues import Batch, HostQueue
from hw.transfers.work_buffers import WorkBuffers

POOLS = {name: make_pools(LAYOUTS[name]) for name in ("gqa_bf16", "unequal_fp16", "mla_fp8")}


RUNS = st.lists(st.tuples(st.integers(0, 12), st.integers(0, 5)), max_size=2 * FEW_RUNS)


def cut_to(runs: list[tuple[int, int]], pages: int) -> tuple[tuple[int, int], ...]:
    """The first `pages` pages of runs, of which the last is cut short."""
    found = []
    for first, count in runs:
        found.append((first, min(count, pages)))
        pages -= found[-1][1]
    assert not pages
    return tuple(found)


@given(device=RUNS, host=RUNS, per_chunk=st.sampled_from([1, 4, 1000]))
def test_a_few_runs_are_cut_as_many_are(device, host, per_chunk):
    count = min(sum(pages for _, pages in runs) for runs in (device, host))
    lists = cut_to(device, count), cut_to(host, count)
    pages = Pages(*(expand(runs) for runs in lists))
    found = Lists(*lists)
    assert found.extents(per_chunk) == extents(pages, per_chunk)
    assert found.pages == found.host_pages == len(pages.device)
    if found.few:
        assert found.count_extents(per_chunk) == len(found.extents(per_chunk))
    assert all(map(np.array_equal, found.arrays(), pages))


@pytest.mark.parametrize("copies", [1, 2 * FEW_RUNS])
def test_lists_that_cannot_be_are_refused_however_many_runs_they_have(copies):
    pools = POOLS["gqa_bf16"]
    fits = ((3, 1),) * copies
    Lists(fits, fits).check("x", *pools)
    for device, host, text in (
        (((DEVICE_PAGES, 1), *fits), (*fits, (0, 1)), f"x: pages beyond the {DEVICE_PAGES} of L1"),
        ((*fits, (0, 1)), (*fits, (HOST_PAGES - 1, 2))[-copies - 1 :], "of L2"),
        ((*fits, (-1, 1)), (*fits, (0, 1)), "of L1"),
    ):
        with pytest.raises(TransferError, match=text):
            Lists(device, host).check("x", *pools)


@given(
    layout=st.sampled_from(list(POOLS)),
    pages=st.integers(1, 9),
    device=st.integers(0, DEVICE_PAGES - 9),
    host=st.integers(0, HOST_PAGES - 9),
    first=st.integers(0, 1),
    max_pitch=st.sampled_from([1, 200, 2000, 1 << 40]),
)
def test_rows_are_every_piece_once_and_no_pitch_is_too_long(
    layout, pages, device, host, first, max_pitch
):
    pools = POOLS[layout]
    backend = Direct(*pools)
    backend._max_pitch = max_pitch
    count = LAYOUTS[layout].layers - first
    for part in range(LAYOUTS[layout].parts):
        copied = []
        for rows in backend.rows_of(Extent(device, host, pages), part, first, count):
            assert rows.height == 1 or max(rows.device_pitch, rows.host_pitch) <= max_pitch
            assert rows.width == LAYOUTS[layout].piece_bytes(part)
            copied += [
                (rows.device + row * rows.device_pitch, rows.host + row * rows.host_pitch)
                for row in range(rows.height)
            ]
        assert sorted(copied) == sorted(
            (pool.piece_address(part, layer, device + page), there)
            for layer in range(first, first + count)
            for page in range(pages)
            for pool, there in ((pools[0], pools[1].piece_address(part, layer, host + page)),)
        )


@given(
    device=st.permutations(range(DEVICE_PAGES)),
    host=st.permutations(range(HOST_PAGES)),
    count=st.integers(1, DEVICE_PAGES),
    chunk_pages=st.integers(1, 5),
    direction=st.sampled_from(["h2d", "d2h"]),
    is_sorted=st.booleans(),
)
@settings(max_examples=60)
def test_chunks_cover_all_pages_and_no_buffer_is_too_small(
    device, host, count, chunk_pages, direction, is_sorted
):
    pools = make_pools(LAYOUTS["gqa_bf16"], chunk_bytes=3 * 4096)
    stride, queue = pools[1].page_bytes, HostQueue()
    buffers = WorkBuffers(*pools, None, chunk_pages, 2)
    buffers.prepare_work(queue)
    cutter = Cutter(pools[1], buffers, 2 * stride)
    numbers = np.array(sorted(host[:count]) if is_sorted else host[:count], np.int64)
    seen: list[tuple[int, int]] = []
    borders = cutter.borders(direction, count)
    assert borders == sorted(set(borders))
    for few in (True, False):
        lists = Lists(runs_of(np.array(device[:count], np.int64)), runs_of(numbers))
        lists.few = few
        seen.clear()
        for chunk in cutter.chunks(direction, lists, borders):
            assert (chunk.first, chunk.pages) == (
                borders[chunk.number], borders[chunk.number + 1] - borders[chunk.number]
            )  # fmt: skip
            assert 1 <= chunk.pages <= chunk_pages
            targets, sources = chunk.batch.targets, chunk.batch.sources
            there, pages = (targets, sources) if direction == "h2d" else (sources, targets)
            for at, page, size in zip(there, pages, chunk.batch.sizes, strict=True):
                place = (at - buffers.work_address(chunk.buffer)) // stride
                assert 0 <= place < place + size // stride <= chunk.pages
                seen += [
                    (chunk.first + place + step, (page - pools[1].address) // stride + step)
                    for step in range(size // stride)
                ]
        assert sorted(seen) == list(enumerate(numbers.tolist()))


def test_batches_are_sent_in_parts_of_which_the_first_is_small():
    class Told(HostQueue):
        def copy_batch(self, batch, first, stop):
            parts.append((first, stop))

    parts: list[tuple[int, int]] = []
    count = 2 * BATCH_PIECES + 1
    numbers = np.arange(count)
    send(Told(), Batch.of(numbers, numbers, numbers))
    assert parts[0] == (0, BATCH_PIECES // 8)
    assert [stop for _, stop in parts[:-1]] == [first for first, _ in parts[1:]]
    assert parts[-1][1] == count
    assert max(stop - first for first, stop in parts) == BATCH_PIECES


def test_a_kernel_launched_without_triton_gets_every_argument_at_its_own_alignment():
    signature = {"a": "i64", "p": "*i32", "x": "constexpr", "n": "i32", "b": "i64", "m": "i32"}
    kernel = SimpleNamespace(
        function=77,
        metadata=SimpleNamespace(shared=16, global_scratch_size=0),
        src=SimpleNamespace(signature=signature),
    )
    seen = {}

    def launch(function, programs, threads, shared_bytes, stream, arguments):
        kinds = [ctypes.c_int64, ctypes.c_uint64, ctypes.c_int32, ctypes.c_int64, ctypes.c_int32]
        kinds += [ctypes.c_uint64] * 2
        seen["how"] = (function, programs, threads, shared_bytes, stream)
        seen["values"] = [
            kind.from_address(place).value for kind, place in zip(kinds, arguments, strict=True)
        ]

    compiled = _Compiled.of(kernel, 4)
    assert compiled is not None
    queue = SimpleNamespace(handle=5, driver=SimpleNamespace(launch=launch))
    values = (1 << 40, (1 << 63) + 1, 7, -3, 9, 0, 0)
    compiled.launch(queue, 11, values)  # type: ignore[arg-type]
    assert seen == {"how": (77, 11, 128, 16, 5), "values": list(values)}
    signature["n"] = "fp32"
    assert _Compiled.of(kernel, 4) is None  # then Triton launches
