"""The parts of the back-ends: how lists are cut, which copies are made, which buffers are kept, and
what the link says to the engine.
"""

from __future__ import annotations

import signal
import threading
import time
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from transfer_pools import LAYOUTS, LISTS, check_copy, make_pools, pieces

from hicache.allocator import extents as count_extents
from hicache.errors import InputError, TransferError
from hicache.operations import Copy
from hw.device import Control
from hw.pools import DevicePool, HostPool, KvLayout
from hw.transfers import timing
from hw.transfers.auto import (
    BACKENDS,
    KERNEL_MARGIN,
    LAYERWISE,
    Auto,
    Traffic,
    make_backend,
)
from hw.transfers.device import TransferDevice
from hw.transfers.direct import Direct
from hw.transfers.kernels import tiling
from hw.transfers.lists import Extent, Pages, expand, extents, runs_of
from hw.transfers.staged import Staged
from hw.transfers.timing import Case, Timed, _copying, estimate_ns, measure

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


# The one that chooses ---------------------------------------------------------------------------

LINE = [Timed(1, 100, 100), Timed(4, 160, 400), Timed(16, 400, 1600)]


@pytest.mark.parametrize(
    ("pages", "cuts", "wanted"),
    [
        (1, 1, 100),
        (4, 1, 160),
        (4, 4, 400),
        (10, 1, 280),
        (16, 16, 1600),
        (28, 1, 640),
        (4, 2, 240),
    ],
)
def test_times_are_read_between_the_measured_ones_and_beyond(pages, cuts, wanted):
    assert estimate_ns(LINE, pages, cuts) == pytest.approx(wanted)


def equal_table() -> dict[Case, list[Timed]]:
    """Every back-end takes the same time for everything."""
    return {
        Case(name, direction, busy): [Timed(1, 100, 100), Timed(8, 800, 800)]
        for name in BACKENDS
        for direction in ("h2d", "d2h")
        for busy in ("idle", "busy")
    }


def test_the_quickest_is_picked_by_direction_size_cuts_and_the_other_direction():
    pools = make_pools(LAYOUTS["gqa_bf16"])
    candidates = {name: BACKENDS[name](*pools, None) for name in ("zero_copy", "direct", "staged")}
    table = equal_table()
    fast = [Timed(1, 50, 50), Timed(8, 90, 9000)]
    table[Case("direct", "h2d", "idle")] = fast
    table[Case("staged", "d2h", "idle")] = fast
    table[Case("zero_copy", "h2d", "busy")] = fast
    traffic = Traffic()
    auto = Auto(candidates, table, traffic)
    auto.copy("h2d", ((0, 6),), ((0, 6),))
    assert auto.picked == "direct"
    auto.copy("d2h", ((0, 6),), ((0, 6),))
    assert auto.picked == "staged"
    scattered = tuple((page, 1) for page in (8, 3, 5, 0))
    auto.copy("h2d", scattered, scattered)
    assert auto.picked == "zero_copy"  # of those that take the same, the first
    assert traffic.enter("d2h") == "idle"
    auto.copy("h2d", ((0, 6),), ((0, 6),))
    assert auto.picked == "zero_copy"
    traffic.leave("d2h")
    auto.load_layers(((0, 6),), ((0, 6),)).finish()
    assert auto.picked == "direct"
    auto.close()


def test_what_was_picked_by_exact_cuts_is_what_copies():
    """Where the front counts cuts and then leaves the copy to Python, which only estimates them."""
    layout = LAYOUTS["gqa_bf16"]
    device, host = DevicePool(layout, 40, "cpu"), HostPool(layout, 40)
    candidates = {name: BACKENDS[name](device, host, None) for name in ("zero_copy", "direct")}
    table = equal_table()
    table[Case("direct", "h2d", "idle")] = [Timed(1, 50, 50), Timed(40, 90, 90000)]
    auto = Auto(candidates, table)
    runs = tuple((page, 1) for page in range(20))
    auto.copy("h2d", runs, runs)
    assert auto.picked == "zero_copy"  # as far as Python can tell, twenty pieces
    auto._front = SimpleNamespace(read=lambda *_: (20, 1))
    auto.copy("h2d", runs, runs)
    assert auto.picked == "direct"
    auto.close()
    host.close()


def test_of_those_that_take_the_same_the_one_without_kernels_is_picked():
    pools = make_pools(LAYOUTS["gqa_bf16"])
    candidates = {name: BACKENDS[name](*pools, None) for name in ("staged", "zero_copy", "direct")}
    auto = Auto(candidates, equal_table())
    auto.copy("h2d", ((0, 6),), ((0, 6),))
    assert auto.picked == "direct"
    auto.copy("d2h", ((0, 6),), ((0, 6),))  # asked again, it is remembered
    auto.copy("d2h", ((0, 6),), ((0, 6),))
    assert auto.picked == "direct"


def test_a_kernel_under_a_prefill_must_be_quicker_by_more():
    pools = make_pools(LAYOUTS["gqa_bf16"])
    table = equal_table()
    table[Case("zero_copy", "h2d", "idle")] = [Timed(1, 90, 90), Timed(8, 700, 700)]
    auto = Auto({name: BACKENDS[name](*pools, None) for name in ("zero_copy", "direct")}, table)
    auto.copy("h2d", ((0, 6),), ((0, 6),))
    assert auto.picked == "zero_copy"
    auto.load_layers(((0, 6),), ((0, 6),)).finish()
    assert auto.picked == "direct"


def test_what_a_load_of_scattered_pages_goes_by_says_what_it_wants_to_find_free():
    pools = make_pools(LAYOUTS["gqa_bf16"])
    assert all(make(*pools, None).layer_multiprocessors == 0 for make in BACKENDS.values())
    candidates = {name: BACKENDS[name](*pools, None) for name in ("zero_copy", "direct")}
    candidates["zero_copy"].layer_multiprocessors = 4  # as on a GPU
    table = equal_table()
    assert Auto(candidates, table).layer_multiprocessors == 0
    case = Case("direct", "h2d", "idle")
    table[case] = [each._replace(scattered_ns=2 * each.scattered_ns) for each in table[case]]
    auto = Auto(candidates, table)
    assert auto.layer_multiprocessors == 4
    auto.load_layers(((0, 6),), ((0, 6),)).finish()
    assert auto.picked == "direct"  # a run


def test_what_is_measured_decides_and_the_bytes_are_right(monkeypatch):
    monkeypatch.setitem(measure.__kwdefaults__, "repeats", 1)
    auto = make_backend("auto", *make_pools(LAYOUTS["gqa_bf16"]))
    assert isinstance(auto, Auto)
    assert set(auto.candidates) == set(BACKENDS) - {"direct_batch"}
    for name in auto.candidates:
        for direction in ("h2d", "d2h"):
            timed = auto.table[Case(name, direction, "idle")]
            assert [each.pages for each in timed] == [1, 4, 13]
            assert all(min(each.run_ns, each.scattered_ns) > 0 for each in timed)
    for direction in ("h2d", "d2h"):
        check_copy(auto, direction, LISTS["whole pool"])
        cases = {
            name: estimate_ns(auto.table[Case(name, direction, "idle")], 13, 2)
            for name in auto.candidates
        }
        quickest = min(cases.values())
        assert cases[auto.picked] <= quickest * (1 + KERNEL_MARGIN)
    assert set(LAYERWISE) <= set(BACKENDS)


def test_a_table_that_is_given_is_not_measured_again():
    pools = make_pools(LAYOUTS["gqa_bf16"])
    table = measure({"direct": Direct(*pools)}, repeats=1)
    assert set(table) == {
        Case("direct", direction, busy) for direction in ("h2d", "d2h") for busy in ("idle", "busy")
    }
    given_table = equal_table()
    auto = make_backend("auto", *pools, table=given_table)
    assert isinstance(auto, Auto)
    assert auto.table is given_table


class Sleeper:
    """Takes 1 ms, and 8 more while its twin copies the other way; fails on demand."""

    def __init__(self, others: list[str], mine: list[str], fails: str = "") -> None:
        self.device_pool, self.host_pool = make_pools(LAYOUTS["gqa_bf16"])
        self.driver = None
        self.asked: set[str] = set()
        self._others, self._mine, self._fails = others, mine, fails

    def copy(self, direction, source, target, *, alone=False) -> None:
        if direction == self._fails:
            raise TransferError("refused")
        self.asked.add(direction)
        self._mine.append(direction)
        try:
            time.sleep(0.001)
            if self._others and self._others[-1] != direction:
                time.sleep(0.008)
        finally:
            self._mine.pop()


def test_a_busy_direction_is_kept_so_by_the_same_backend():
    here: list[str] = []
    there: list[str] = []
    first, twin = Sleeper(there, here), Sleeper([], there)
    table = measure({"x": first}, {"x": twin}, repeats=1)  # pyright: ignore[reportArgumentType]
    assert twin.asked == {"h2d", "d2h"}
    for direction in ("h2d", "d2h"):
        alone, beside = (table[Case("x", direction, busy)] for busy in ("idle", "busy"))
        assert len(alone) == len(beside) == 3
        for before, after in zip(alone, beside, strict=True):
            assert min(after.run_ns, after.scattered_ns) >= 9_000_000 > before.run_ns
    assert not [each for each in threading.enumerate() if each.name == "other way"]


@pytest.mark.parametrize("fails", ["h2d", "d2h"])
def test_a_twin_that_fails_ends_the_measuring_with_its_error(fails):
    twin = Sleeper([], [], fails)
    with pytest.raises(TransferError, match="refused"):
        measure({"x": Sleeper([], [])}, {"x": twin}, repeats=1)  # pyright: ignore[reportArgumentType]


class Counting(Sleeper):
    """Says how many pages it was asked for; takes as many more ms as it is told."""

    def __init__(self, more_ms: int = 0) -> None:
        super().__init__([], [])
        self.pages: set[int] = set()
        self._more_s = more_ms / 1000

    def copy(self, direction, source, target, *, alone=False) -> None:
        self.pages.add(sum(count for _, count in source))
        time.sleep(self._more_s)
        super().copy(direction, source, target, alone=alone)


def test_from_where_a_size_is_sure_twins_copy_it_and_what_is_hopeless_is_left_out(monkeypatch):
    quick, slow, twin = Counting(), Counting(9), Counting()
    monkeypatch.setattr(timing, "SURE_BYTES", 4 * quick.host_pool.page_bytes)
    table = measure(
        {"quick": quick, "slow": slow},  # pyright: ignore[reportArgumentType]
        {"quick": twin, "slow": twin},  # pyright: ignore[reportArgumentType]
        repeats=1,
    )
    assert twin.pages == {4}
    assert (quick.pages, slow.pages) == ({1, 4, 13}, {1, 4})
    for case, timed in table.items():
        assert [each.pages for each in timed] == [1, 4, 13][: 2 if case.backend == "slow" else 3]


class SlowTwin(Sleeper):
    """Its second copy takes 0.3 s, in the middle of which Ctrl-C comes."""

    def copy(self, direction, source, target, *, alone=False) -> None:
        is_second = len(self._others) == 1
        self._mine.append(direction)
        self._others.append(direction)
        if is_second:
            time.sleep(0.1)
            signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)
            time.sleep(0.2)
        self._mine.pop()


def test_ctrl_c_waits_for_the_copy_of_a_twin():
    inside: list[str] = []
    begun: list[str] = []
    twin, lists = SlowTwin(begun, inside), (((0, 1),), ((0, 1),))

    def measure_beside_it() -> None:
        with _copying(twin, "d2h", lists):  # pyright: ignore[reportArgumentType]
            while len(begun) < 2:
                time.sleep(0.001)

    with pytest.raises(KeyboardInterrupt):
        measure_beside_it()
    assert inside == []
    assert not [each for each in threading.enumerate() if each.name == "other way"]


def test_ctrl_c_while_a_twin_is_started_leaves_nothing_that_copies(monkeypatch):
    start = threading.Thread.start

    def interrupted(thread: threading.Thread) -> None:
        start(thread)
        raise KeyboardInterrupt

    monkeypatch.setattr(threading.Thread, "start", interrupted)
    inside: list[str] = []
    twin, lists = Sleeper([], inside), (((0, 1),), ((0, 1),))
    with pytest.raises(KeyboardInterrupt), _copying(twin, "d2h", lists):  # pyright: ignore[reportArgumentType]
        pass
    assert not [each for each in threading.enumerate() if each.name == "other way"]


def test_the_last_two_sizes_lie_so_far_apart_that_their_slope_says_something():
    backend = Sleeper([], [])
    page_bytes = backend.host_pool.page_bytes
    for most, sizes in ((1, [1]), (2, [1, 2]), (5, [1, 5]), (6, [1, 4, 6]), (99, [1, 4, 13])):
        table = measure({"x": backend}, repeats=1, measured_bytes=most * page_bytes)  # pyright: ignore[reportArgumentType]
        assert [each.pages for each in table[Case("x", "d2h", "idle")]] == sizes


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
