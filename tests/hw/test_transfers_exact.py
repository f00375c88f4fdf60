"""Every back-end puts every byte where it belongs and touches no other, for any page lists."""

from __future__ import annotations

import threading

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from transfer_pools import DEVICE_PAGES, HOST_PAGES, LAYOUTS, LISTS, check_copy, make_pools, pieces

from hicache.errors import TransferError
from hw.transfers.auto import BACKENDS
from hw.transfers.backend import TransferBackend
from hw.transfers.direct import Direct
from hw.transfers.lists import Lists, runs_of
from hw.transfers.staged import Staged
from hw.transfers.zero_copy import ZeroCopy

DIRECTIONS = ("h2d", "d2h")

# Those that differ in more than how the driver is called, small enough that everything is cut up.
MAKE = {
    "zero_copy": ZeroCopy,
    "direct": Direct,
    "direct_batch": BACKENDS["direct_batch"],
    "staged": lambda device, host: Staged(
        device, host, chunk_bytes=3 * host.page_bytes, buffers=3, run_bytes=128 << 10
    ),
    "staged_by_cpu": lambda device, host: Staged(
        device, host, chunk_bytes=3 * host.page_bytes, run_bytes=1 << 30, copy_threads=2
    ),
    "staged_by_dma": lambda device, host: Staged(
        device, host, chunk_bytes=3 * host.page_bytes, run_bytes=1
    ),
}


@st.composite
def page_lists(draw: st.DrawFn):
    """Two lists of one length, each of different pages."""
    count = draw(st.integers(0, DEVICE_PAGES))
    device = draw(st.permutations(range(DEVICE_PAGES)))[:count]
    host = draw(st.permutations(range(HOST_PAGES)))[:count]
    runs = []
    for pages in (device, host):
        if draw(st.booleans()):
            pages = sorted(pages)
        runs.append(runs_of(torch.tensor(pages, dtype=torch.int64).numpy()))
    return tuple(runs)


# The variants of one back-end differ from each other in what no layout changes.
PAIRS = [
    (name, layout)
    for name in MAKE
    for layout in (["gqa_bf16", "odd_fp8"] if name.startswith("staged_") else LAYOUTS)
]


@pytest.mark.parametrize("direction", DIRECTIONS)
@pytest.mark.parametrize(("name", "layout"), PAIRS)
def test_pages_arrive_bit_by_bit_and_nothing_else_moves(name, layout, direction):
    backend = MAKE[name](*make_pools(LAYOUTS[layout]))
    for lists in LISTS.values():
        check_copy(backend, direction, lists)
    backend.close()


@pytest.mark.parametrize("name", ["direct", "direct_batch"])
@given(
    lists=page_lists(), layout=st.sampled_from(list(LAYOUTS)), direction=st.sampled_from(DIRECTIONS)
)
@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_any_page_lists_by_dma(name, lists, layout, direction):
    check_copy(MAKE[name](*make_pools(LAYOUTS[layout])), direction, lists)


@pytest.mark.parametrize("name", ["zero_copy", "staged", "staged_by_cpu"])
@given(
    lists=page_lists(), layout=st.sampled_from(list(LAYOUTS)), direction=st.sampled_from(DIRECTIONS)
)
@settings(max_examples=8, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_any_page_lists_by_kernel(name, lists, layout, direction):
    check_copy(MAKE[name](*make_pools(LAYOUTS[layout])), direction, lists)


@pytest.mark.parametrize("name", ["zero_copy", "direct", "staged_by_cpu", "staged_by_dma"])
def test_padded_host_pages_and_small_pieces_of_pinned_memory_change_nothing(name):
    pools = make_pools(LAYOUTS["gqa_bf16"], align_bytes=4096, chunk_bytes=2 * 4096)
    assert pools[1].pages_per_chunk == 2
    backend = MAKE[name](*pools)
    for direction in DIRECTIONS:
        check_copy(backend, direction, LISTS["whole pool"])
        check_copy(backend, direction, LISTS["fragmented"])


def test_a_buffer_is_not_used_again_before_the_cpu_has_emptied_it():
    # The first and the fourth chunk of three pages are fragmented and share a buffer; those between
    # are not, and nothing of them waits for the CPU.
    host = ((0, 1), (5, 1), (9, 7), (1, 1), (6, 1), (3, 1))
    backend = MAKE["staged"](*make_pools(LAYOUTS["gqa_bf16"]))
    backend.buffers.prepare_work(backend.queue)
    lists = Lists(((0, 12),), host)
    chunks = backend.cutter.chunks("d2h", lists, backend.cutter.borders("d2h", 12))
    assert [chunk.fragmented for chunk in chunks] == [True, False, False, True]
    check_copy(backend, "d2h", (((0, 12),), host))
    check_copy(backend, "h2d", (((0, 12),), host))


@pytest.mark.parametrize("name", MAKE)
def test_a_store_and_a_load_bring_everything_back(name):
    backend = MAKE[name](*make_pools(LAYOUTS["unequal_fp16"]))
    before = pieces(backend.device_pool)
    device, host = LISTS["whole pool"]
    backend.copy("d2h", device, host)
    backend.device_pool.data.zero_()
    backend.copy("h2d", host, device)
    assert all(map(torch.equal, pieces(backend.device_pool), before))


def test_the_kernel_does_the_same_with_any_number_of_programs_and_any_tile():
    for programs, tile_bytes in ((1, 256), (3, 256), (1000, 2048)):
        backend = ZeroCopy(*make_pools(LAYOUTS["gqa_bf16"]), tile_bytes=tile_bytes)
        backend.programs = programs
        check_copy(backend, "h2d", LISTS["fragmented"])
        check_copy(backend, "d2h", LISTS["fragmented"])


def test_lists_that_are_tensors_already_are_used_as_they_are():
    backend = ZeroCopy(*make_pools(LAYOUTS["mla_fp8"]))
    device = torch.tensor([3, 9, 0, 12, 5], dtype=torch.int32)[::2]  # not contiguous
    host = torch.tensor([16, 2, 7], dtype=torch.int32)
    wanted = pieces(backend.host_pool)[0][:, [16, 2, 7]]
    backend.copy_listed("h2d", device, host)
    assert torch.equal(pieces(backend.device_pool)[0][:, [3, 0, 5]], wanted)
    with pytest.raises(TransferError, match="int32"):
        backend.copy_listed("h2d", device.long(), host)
    with pytest.raises(TransferError, match="one length"):
        backend.copy_listed("h2d", device, host[:2])


@pytest.mark.parametrize("name", MAKE)
def test_lists_that_cannot_be_are_refused_before_anything_moves(name):
    backend = MAKE[name](*make_pools(LAYOUTS["gqa_bf16"]))
    before = pieces(backend.device_pool) + pieces(backend.host_pool)
    for source, target, text in (
        (((0, 2),), ((0, 3),), "3 pages of L1 against 2"),
        (((HOST_PAGES - 1, 2),), ((0, 2),), f"beyond the {HOST_PAGES} of L2"),
        (((0, 1),), ((DEVICE_PAGES, 1),), f"beyond the {DEVICE_PAGES} of L1"),
    ):
        with pytest.raises(TransferError, match=text):
            backend.copy("h2d", source, target)
    assert all(map(torch.equal, pieces(backend.device_pool) + pieces(backend.host_pool), before))


class Broken:
    """Lets `copies` copies through, then refuses one, then works again."""

    def __init__(self, queue, copies: int) -> None:
        self._queue = queue
        self._left = copies

    def __getattr__(self, name):
        inner = getattr(self._queue, name)
        if name not in {"copy", "copy_rows", "copy_batch"}:
            return inner

        def tried(*arguments):
            self._left -= 1
            if self._left == -1:
                raise TransferError("the device refuses")
            return inner(*arguments)

        return tried


@pytest.mark.parametrize("direction", DIRECTIONS)
@pytest.mark.parametrize("name", ["direct", "direct_batch", "staged_by_cpu", "staged_by_dma"])
def test_a_copy_that_fails_says_so_and_the_next_one_works(name, direction):
    backend: TransferBackend = MAKE[name](*make_pools(LAYOUTS["gqa_bf16"]))
    after = 0 if name == "direct_batch" else 1
    backend.queue = Broken(backend.queue, after)
    lists = LISTS["whole pool"]
    source, target = lists if direction == "d2h" else reversed(lists)
    with pytest.raises(TransferError, match="refuses"):
        backend.copy(direction, source, target)
    check_copy(backend, direction, LISTS["reversed"])


@pytest.mark.parametrize("name", ["zero_copy", "staged"])
def test_both_directions_at_once_lose_nothing(name):
    pools = make_pools(LAYOUTS["odd_fp8"])
    before_device, before_host = pieces(pools[0]), pieces(pools[1])

    def work(direction: str) -> None:
        backend = MAKE[name](*pools)
        for page in range(6):
            # Loads fill the pages 0 .. 5 of L1 from 11 .. 16, stores 0 .. 5 of L2 from 7 .. 12.
            if direction == "h2d":
                backend.copy("h2d", ((11 + page, 1),), ((page, 1),))
            else:
                backend.copy("d2h", ((7 + page, 1),), ((page, 1),))

    threads = [threading.Thread(target=work, args=(direction,)) for direction in DIRECTIONS]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for found, device, host in zip(pieces(pools[0]), before_device, before_host, strict=True):
        assert torch.equal(found, torch.cat((host[:, 11:17], device[:, 6:]), 1))
    for found, device, host in zip(pieces(pools[1]), before_device, before_host, strict=True):
        assert torch.equal(found, torch.cat((device[:, 7:13], host[:, 6:]), 1))
