"""On a GPU: every back-end is exact, private streams wait for their inputs, and layers are waited
for one by one.
"""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch
from native_calls import compiled_front
from transfer_pools import DEVICE_PAGES, HOST_PAGES, LAYOUTS, LISTS, check_copy, make_pools, pieces

from hicache.errors import InputError, TransferError
from hicache.operations import Copy
from hw.device import Control
from hw.pools import KvLayout
from hw.transfers.auto import BACKENDS, Auto, make_backend
from hw.transfers.device import TransferDevice
from hw.transfers.driver import Driver
from hw.transfers.lists import expand, runs_of
from hw.transfers.queues import Rows
from hw.transfers.staged import Staged
from hw.transfers.zero_copy import ZeroCopy

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU"),
]

DELAY_CYCLES = 400_000_000  # some 0.2 s: far longer than any copy here
MAKE = BACKENDS | {
    "staged_by_cpu": lambda device, host, driver: Staged(
        device, host, driver, chunk_bytes=3 * host.page_bytes, run_bytes=1 << 30, copy_threads=4
    ),
    "staged_by_dma": lambda device, host, driver: Staged(
        device, host, driver, chunk_bytes=3 * host.page_bytes, run_bytes=1
    ),
    "staged_by_rows": lambda device, host, driver: Staged(
        device, host, driver, chunk_bytes=3 * host.page_bytes, run_bytes=1, row_layers=2
    ),
}
LARGER = KvLayout(
    layers=9, kv_heads=8, head_dim_k=128, head_dim_v=128, page_size_tokens=16, dtype="bf16"
)
# Pages of 2.25 MiB, of which half may go by rows.
LONG_ROWS = KvLayout(
    layers=36, kv_heads=8, head_dim_k=128, head_dim_v=128, page_size_tokens=16, dtype="bf16"
)


@pytest.fixture(scope="module")
def driver() -> Driver:
    return Driver(0)


def on_gpu(driver: Driver, layout: KvLayout, **options):
    return make_pools(layout, "cuda", registrar=driver, **options)


@pytest.mark.parametrize("direction", ["h2d", "d2h"])
@pytest.mark.parametrize("layout", [*LAYOUTS.values(), LARGER], ids=[*LAYOUTS, "larger"])
@pytest.mark.parametrize("name", MAKE)
def test_pages_cross_the_link_bit_by_bit(driver, name, layout, direction):
    backend = MAKE[name](*on_gpu(driver, layout), driver)
    for lists in LISTS.values():
        check_copy(backend, direction, lists)
    generator = np.random.default_rng(3)
    for count in (1, 5, 13):
        device = runs_of(generator.permutation(DEVICE_PAGES)[:count])
        host = runs_of(generator.permutation(HOST_PAGES)[:count])
        check_copy(backend, direction, (device, host))
    backend.close()


@pytest.mark.parametrize("direction", ["h2d", "d2h"])
@pytest.mark.parametrize("layout", [LAYOUTS["gqa_bf16"], LONG_ROWS], ids=["short", "long rows"])
@pytest.mark.parametrize(
    "name", ["direct", "staged", "staged_by_dma", "staged_by_rows", "zero_copy", "auto"]
)
def test_copies_by_one_call_are_exact(
    driver, name, layout, direction, monkeypatch, tmp_path_factory
):
    library = compiled_front(tmp_path_factory.getbasetemp() / "native")
    monkeypatch.setattr("hw.transfers.front.library", lambda: library)
    if layout is not LONG_ROWS and name in ("staged", "auto"):
        pytest.skip("pages so short are copied together by the CPU first")
    pools = on_gpu(driver, layout)
    backend = MAKE[name](*pools, driver) if name in MAKE else make_backend(name, *pools, driver)
    check_copy(backend, direction, LISTS["one run"])  # compiles kernels

    def refuse(*_: object) -> int:
        raise AssertionError("Python enqueued it")

    for part in backend.candidates.values() if isinstance(backend, Auto) else [backend]:
        if part.name != "direct_batch":  # which is not for the front
            monkeypatch.setattr(part, "_move", refuse)
    for lists in LISTS.values():
        check_copy(backend, direction, lists)
    with pytest.raises(TransferError, match="2 pages of L1 against 3 of L2"):
        backend.copy("h2d", ((0, 3),), ((0, 2),))
    backend.close()


def test_a_copy_after_closing_has_new_buffers(driver, monkeypatch, tmp_path_factory):
    library = compiled_front(tmp_path_factory.getbasetemp() / "native")
    monkeypatch.setattr("hw.transfers.front.library", lambda: library)
    backend = MAKE["staged_by_dma"](*on_gpu(driver, LAYOUTS["gqa_bf16"]), driver)
    for _ in range(3):
        check_copy(backend, "h2d", LISTS["fragmented"])
    backend.close()
    for _ in range(2):
        check_copy(backend, "h2d", LISTS["reversed"])
    backend.close()


@pytest.mark.parametrize("name", MAKE)
def test_padding_and_separately_pinned_pieces_change_nothing(driver, name):
    pools = on_gpu(driver, LAYOUTS["gqa_bf16"], align_bytes=4096, chunk_bytes=2 * 4096)
    backend = MAKE[name](*pools, driver)
    for direction in ("h2d", "d2h"):
        check_copy(backend, direction, LISTS["whole pool"])
        check_copy(backend, direction, LISTS["fragmented"])


def load_by_late_lists(backend: ZeroCopy) -> bool:
    """Load pages whose list is still being written, on another stream; whether they came."""
    device_pool = backend.device_pool
    device_pool.data.zero_()
    right = torch.tensor([11, 2, 7, 5], dtype=torch.int32, device="cuda")
    other = torch.tensor([0, 1, 3, 4], dtype=torch.int32, device="cuda")
    host = torch.tensor([16, 0, 9, 4], dtype=torch.int32, device="cuda")
    wanted = pieces(backend.host_pool)[0][:, [16, 0, 9, 4]]
    torch.cuda.synchronize()
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        lists = other.clone()
        stream.synchronize()
        torch.cuda._sleep(DELAY_CYCLES)
        lists.copy_(right)
        backend.copy_listed("h2d", lists, host)
    torch.cuda.synchronize()
    return torch.equal(pieces(device_pool)[0][:, [11, 2, 7, 5]], wanted)


def test_a_page_list_still_being_written_is_waited_for(driver, monkeypatch):
    backend = ZeroCopy(*on_gpu(driver, LARGER), driver)
    assert load_by_late_lists(backend)  # compiles, too: that would hide the race
    assert load_by_late_lists(backend)
    # Without the wait the same load reads the list too early.
    monkeypatch.setattr(backend.queue, "after_caller", lambda: None)
    assert not load_by_late_lists(backend)


@pytest.mark.parametrize("name", [*BACKENDS, "staged_by_cpu"])
def test_pages_still_being_computed_are_stored_only_then(driver, name, monkeypatch):
    backend = MAKE[name](*on_gpu(driver, LARGER), driver)
    pool, lists = backend.device_pool, LISTS["fragmented"]
    backend.copy("d2h", *lists)

    def stored() -> bool:
        pool.data.zero_()
        torch.cuda.synchronize()
        stream = torch.cuda.Stream()
        with torch.cuda.stream(stream):
            torch.cuda._sleep(DELAY_CYCLES)
            pool.data.fill_(7)
            backend.copy("d2h", *lists)
        torch.cuda.synchronize()
        host = pieces(backend.host_pool)
        return all((each[:, expand(lists[1])] == 7).all() for each in host)

    assert stored()
    monkeypatch.setattr(backend.queue, "after_caller", lambda: None)
    assert not stored()


@pytest.mark.parametrize("lists", ["fragmented", "one run"])
@pytest.mark.parametrize("by", ["python", "front"])
@pytest.mark.parametrize("name", MAKE)
def test_a_layer_is_read_only_when_it_is_there(
    driver, name, by, lists, monkeypatch, tmp_path_factory
):
    if by == "front":
        if name not in ("direct", "zero_copy"):
            pytest.skip("loads layer by layer by Python alone")
        library = compiled_front(tmp_path_factory.getbasetemp() / "native")
        monkeypatch.setattr("hw.transfers.front.library", lambda: library)
    backend = MAKE[name](*on_gpu(driver, LARGER), driver)
    device, host = LISTS[lists]
    backend.load_layers(host, device).finish()
    if by == "front":
        monkeypatch.setattr(backend, "_move_layers", None)  # it is not asked any more
    wanted = pieces(backend.host_pool)[0][:, expand(host)]
    pages = torch.from_numpy(expand(device)).cuda()
    for _ in range(3):
        backend.device_pool.data.zero_()
        read = torch.zeros(wanted.shape, dtype=torch.uint8, device="cuda")
        torch.cuda.synchronize()
        stream = torch.cuda.Stream()
        # What the load waits for comes late, so a reader that does not wait reads zeros.
        late = torch.cuda.Stream()
        with torch.cuda.stream(late):
            torch.cuda._sleep(DELAY_CYCLES // 4)
            event = torch.cuda.Event()
            event.record(late)
        load = backend.load_layers(host, device, [event])
        with torch.cuda.stream(stream):
            for layer in range(LARGER.layers):
                load.wait_layer(layer)
                piece = backend.device_pool.k[layer, pages].view(torch.uint8)
                read[layer] = piece.reshape(len(pages), -1)
        assert load.finish().device_ns > 0
        torch.cuda.synchronize()
        assert torch.equal(read.cpu(), wanted)


def test_a_thread_that_has_called_nothing_before_loads_by_the_front(
    driver, monkeypatch, tmp_path_factory
):
    """No context is current there, which the driver refuses to copy without."""
    library = compiled_front(tmp_path_factory.getbasetemp() / "native")
    monkeypatch.setattr("hw.transfers.front.library", lambda: library)
    backend = MAKE["direct"](*on_gpu(driver, LARGER), driver)
    monkeypatch.setattr(backend, "_move_layers", None)  # it is not asked
    device, host = LISTS["fragmented"]
    with ThreadPoolExecutor(1) as worker:
        loaded = worker.submit(lambda: backend.load_layers(host, device, alone=True).finish())
        assert loaded.result().device_ns > 0
    for there, here in zip(pieces(backend.device_pool), pieces(backend.host_pool), strict=True):
        assert torch.equal(there[:, expand(device)], here[:, expand(host)])


def test_auto_times_all_it_has_and_copies_exactly(driver):
    auto = make_backend("auto", *on_gpu(driver, LARGER), driver)
    assert isinstance(auto, Auto)
    assert ("direct_batch" in auto.candidates) == driver.copies_batches
    assert {case.busy for case in auto.table} == {"idle", "busy"}
    for direction in ("h2d", "d2h"):
        for lists in LISTS.values():
            check_copy(auto, direction, lists)
        assert auto.picked in auto.candidates
    auto.close()


@pytest.mark.parametrize("name", MAKE)
def test_both_directions_run_at_once_in_threads(driver, name):
    pools = on_gpu(driver, LARGER)
    before_device, before_host = pieces(pools[0]), pieces(pools[1])
    failures: list[BaseException] = []

    def work(direction: str) -> None:
        try:
            link = TransferDevice(MAKE[name](*pools, driver), direction)
            size = LARGER.page_bytes
            for page in range(6):
                source = 11 + page if direction == "h2d" else 7 + page
                link.run(Copy(direction, 1, size, 1, ((source, 1),), ((page, 1),)), Control())
            link.close()
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=work, args=(direction,)) for direction in ("h2d", "d2h")]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures
    for found, device, host in zip(pieces(pools[0]), before_device, before_host, strict=True):
        assert torch.equal(found, torch.cat((host[:, 11:17], device[:, 6:]), 1))
    for found, device, host in zip(pieces(pools[1]), before_device, before_host, strict=True):
        assert torch.equal(found, torch.cat((device[:, 7:13], host[:, 6:]), 1))


def test_a_copy_that_the_driver_refuses_is_an_error_of_that_copy(driver):
    backend = BACKENDS["direct"](*on_gpu(driver, LARGER), driver)
    overlapping = Rows(backend.device_pool.address, backend.host_pool.address, 8, 8, 16, 2)
    with pytest.raises(TransferError, match="cuMemcpy2DAsync_v2: CUDA_ERROR_INVALID_VALUE"):
        backend.queue.copy_rows("h2d", overlapping)
    check_copy(backend, "h2d", LISTS["fragmented"])


def test_memory_that_is_pinned_already_is_refused(driver):
    _, host_pool = on_gpu(driver, LARGER)
    with pytest.raises(InputError, match="would not pin"):
        driver.register(host_pool.address, 4096)
