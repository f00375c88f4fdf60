"""The back-end that chooses: what it times, what it picks by that, and that its twins end."""

from __future__ import annotations

import signal
import threading
import time
import tracemalloc
from types import SimpleNamespace

import numpy as np
import pytest
from transfer_pools import LAYOUTS, LISTS, check_copy, equal_table, make_pools

from hicache.errors import TransferError
from hicache.operations import PageRuns
from hw.pools import DevicePool, HostPool
from hw.transfers import timing
from hw.transfers.auto import (
    BACKENDS,
    KERNEL_MARGIN,
    LAYERWISE,
    Auto,
    Traffic,
    make_backend,
)
from hw.transfers.direct import Direct
from hw.transfers.lists import expand
from hw.transfers.timing import DRAWS, TRIED, Case, Timed, _copying, estimate_ns, measure

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
        self.copies: list[PageRuns] = []
        self._more_s = more_ms / 1000

    def copy(self, direction, source, target, *, alone=False) -> None:
        self.pages.add(sum(count for _, count in source))
        self.copies.append(source)
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


def test_who_is_far_slower_takes_few_turns_and_the_others_copy_several_lists():
    backends = {name: Counting(more_ms) for name, more_ms in (("quick", 0), ("slow", 9))}
    table = measure(backends, repeats=9)  # pyright: ignore[reportArgumentType]
    sizes = [each.pages for each in table[Case("slow", "h2d", "idle")]]
    assert sizes == [1, 4, 13]
    ways, warm_up = 2 * 2, 1  # directions; in a run and scattered
    for name, turns in (("quick", 9), ("slow", TRIED)):
        asked = [pages for pages in backends[name].copies if expand(pages).size == 4]
        assert len(asked) == ways * (warm_up + turns)
        assert len(set(asked)) == 1 + 2 * min(turns, DRAWS)  # each side's, and the run


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


class Large:
    """Copies nothing between pools of many pages; keeps the lists that it was given."""

    driver = None

    def __init__(self, device_pages: int, host_pages: int) -> None:
        self.device_pool = SimpleNamespace(pages=device_pages)
        self.host_pool = SimpleNamespace(pages=host_pages, page_bytes=4096)
        self.asked: list[tuple[PageRuns, PageRuns]] = []

    def copy(self, direction, source, target, *, alone=False) -> None:
        self.asked.append((source, target) if direction == "d2h" else (target, source))


@pytest.mark.parametrize("pages", [(50_000_000, 40_000_000), (50, 3_000), (3_000, 50), (1, 1)])
def test_scattered_pages_come_from_the_whole_pools_however_many_they_have(pages):
    backend = Large(*pages)
    tracemalloc.start()
    try:
        measure({"x": backend}, repeats=1, measured_bytes=4096 << 10)  # pyright: ignore[reportArgumentType]
        _, most_bytes = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert most_bytes < 8 << 20  # a number for each page of the pools would be 400 MB
    for side, there in enumerate(pages):
        lists = [expand(asked[side]) for asked in backend.asked]
        assert all(len(set(each)) == len(each) for each in lists)
        taken = np.concatenate(lists)
        assert 0 <= taken.min() <= there // 20
        assert there - 1 - there // 20 <= taken.max() < there
