"""The compiled front of copies, over a device whose streams run in any order that they may."""

from __future__ import annotations

import ctypes
import subprocess
import sys
import textwrap
from pathlib import Path

import numpy as np
import pytest
from fake_driver import FakeDriver
from front_rig import LAYOUT, Rig, any_library, front_over, library, random_lists
from hypothesis import given, settings
from hypothesis import strategies as st
from transfer_pools import DEVICE_PAGES, HOST_PAGES, LAYOUTS, LISTS

from hicache.errors import TransferError
from hw.pools import DevicePool, HostPool
from hw.transfers.front_native import DIRECTIONS, Plan
from hw.transfers.lists import Lists

__all__ = ["any_library", "library"]

REPOSITORY = Path(__file__).resolve().parents[2]


@pytest.mark.parametrize("direction", ["h2d", "d2h"])
@pytest.mark.parametrize("way", ["rows", "staged", "zero_copy"])
@pytest.mark.parametrize("layout", LAYOUTS.values(), ids=LAYOUTS)
def test_every_page_arrives_and_no_other_changes(library, layout, way, direction):
    rig = Rig(library, layout, way)
    for lists in LISTS.values():
        rig.check(direction, lists)
    for count in (1, 5, 13):
        rig.check(direction, random_lists(count, count))
        rig.check(direction, random_lists(count, count), at_once=True)


@given(
    seed=st.integers(0, 1 << 30),
    count=st.integers(1, DEVICE_PAGES),
    cut=st.tuples(*[st.integers(1, 4)] * 4, st.integers(0, LAYOUT.layers)),
    direction=st.sampled_from(["h2d", "d2h"]),
    batches=st.sampled_from(["now", "before", "none"]),
    per_chunk=st.integers(1, 5),
)
@settings(max_examples=150, deadline=None)
def test_no_order_of_the_streams_and_no_way_of_cutting_moves_other_bytes(
    library, seed, count, cut, direction, batches, per_chunk
):
    rig = Rig(
        library, LAYOUT, "staged", seed=seed, cut=cut, batches=batches,
        align_bytes=4096, chunk_bytes=per_chunk * 4096,
    )  # fmt: skip
    for again in range(2):  # buffers, events and lists are used again
        rig.check(direction, random_lists(seed + again, count))


@pytest.mark.parametrize("direction", ["h2d", "d2h"])
def test_the_device_shows_a_wait_that_is_missing(library, direction):
    """So the test above can fail."""

    def copy_20_times() -> None:
        for seed in range(20):
            rig = Rig(library, LAYOUT, "staged", seed=seed, cut=(1, 1, 1, 1, 1))
            rig.driver.honours_waits = False
            rig.check(direction, random_lists(seed, 9))

    with pytest.raises(AssertionError):
        copy_20_times()


@pytest.mark.parametrize("way", ["rows", "staged", "zero_copy"])
@pytest.mark.parametrize("direction", ["h2d", "d2h"])
def test_each_call_that_is_refused_is_named_and_the_last_one_enqueued(library, direction, way):
    lists = random_lists(1, 9)
    calls = Rig(library, LAYOUT, way, cut=(1, 1, 1, 1, 1))
    calls.check(direction, lists)
    names = {
        "_copy": "cuMemcpyAsync", "_copy_rows": "cuMemcpy2DAsync_v2",
        "_copy_batch": "cuMemcpyBatchAsync", "_launch": "cuLaunchKernel",
        "_record": "cuEventRecord", "_wait": "cuStreamWaitEvent", "_await": "cuEventSynchronize",
        "_elapsed": "cuEventElapsedTime", "_write": "cuStreamWriteValue32",
        "_query": "cuEventSynchronize",
    }  # fmt: skip
    for number, made in enumerate(calls.driver.made):
        rig = Rig(library, LAYOUT, way, cut=(1, 1, 1, 1, 1), fails=number)
        assert rig.front.read(*lists)
        with pytest.raises(TransferError, match=f"^{names[made]}: 1$"):
            rig.front.run(rig.plan, direction)
        assert rig.driver.calls == number + 1
        rig.driver.fails = None
        rig.driver.settle()
        rig.check(direction, random_lists(2, 7))  # and it goes on


@pytest.mark.parametrize("words", ["writes", "refuses", "has none"])
def test_the_end_is_waited_for_with_and_without_a_word_of_the_devices(library, words):
    rig = Rig(library, LAYOUT, "staged", words=words)
    for seed in range(3):
        rig.check("h2d", random_lists(seed, 9))
    made = rig.driver.made
    assert made.count("_write") == {"writes": 3, "refuses": 1, "has none": 0}[words]
    assert made.count("_await") == (0 if words == "writes" else 3)


def test_a_device_that_fails_never_writes_its_word_and_is_noticed(library):
    rig = Rig(library, LAYOUT, "rows")
    rig.driver.lost = 700
    assert rig.front.read(*random_lists(1, 5))
    with pytest.raises(TransferError, match=r"^cuEventSynchronize: 700$"):
        rig.front.run(rig.plan, "h2d")


def test_what_it_is_not_for_is_left_to_python(library):
    lists = random_lists(1, 5)
    without_kernels = Rig(library, LAYOUT, "staged", missing=True)
    without_buffers = Rig(library, LAYOUT, "staged")
    without_buffers.plan.work_address = 0
    for rig in (without_kernels, without_buffers):
        assert rig.front.read(*lists)
        assert rig.front.run(rig.plan, "h2d") is None
    assert without_kernels.driver.calls == without_buffers.driver.calls == 0
    # One page alone needs none, if it may go by rows in that direction.
    without_kernels.plan.row_layers[DIRECTIONS["h2d"]] = 1
    without_kernels.check("h2d", LISTS["single"])
    assert without_kernels.front.read(*LISTS["single"])
    assert without_kernels.front.run(without_kernels.plan, "d2h") is None


@pytest.mark.parametrize(
    ("device", "host"),
    [
        (((0, 2),), ((0, 3),)),
        (((DEVICE_PAGES - 1, 2),), ((0, 2),)),
        (((0, 1),), ((HOST_PAGES, 1),)),
        (((-1, 1),), ((0, 1),)),
        ([(0, 1)], ((0, 1),)),
        (((0, 1),), ([0, 1],)),
        (((0, 1, 1),), ((0, 1),)),
        (((0, "1"),), ((0, 1),)),
        (((0, 1 << 70),), ((0, 1),)),
        ((((1 << 63) - 1, 1),), ((0, 1),)),
        (((0, (1 << 63) - 1),), ((0, 1),)),
        (((1, 1), (-1, 1)), ((0, 2),)),
        ((("0", 0), (0, 1)), ((0, 1),)),
        (((0.0, 1),), ((0, 1),)),
        (((0, 1),), ((0, 1), None)),
        (None, ((0, 1),)),
    ],
)
def test_lists_that_are_wrong_or_of_another_form_are_not_its_own(any_library, device, host):
    rig = Rig(any_library, LAYOUT, "rows")
    assert rig.front.read(device, host) is None
    assert rig.front.copy(device, host, "h2d", rig.plan) is None
    assert rig.driver.calls == 0
    for number in (True, np.int64(1)):  # what is a number to Python is one here
        assert rig.front.read(((number, 1), (3, 0)), ((0, number),)) == (1, 1)
    rig.check("h2d", LISTS["fragmented"])
    rig.check("h2d", LISTS["fragmented"], at_once=True)


def test_numbers_of_any_size_are_read_as_they_are(any_library):
    """Small and large ones lie in different ways in Python's memory."""
    device = DevicePool(LAYOUT, DEVICE_PAGES, "cpu")
    host = HostPool(LAYOUT, HOST_PAGES)
    front = front_over(any_library, FakeDriver(LAYOUT), device, host)
    front.ground.device_pages = front.ground.host_pages = 1 << 62
    for first in (0, 1, 255, 1 << 29, (1 << 30) - 1, 1 << 30, (1 << 31) + 5, 1 << 45, 1 << 61):
        assert front.read(((first, 1),), ((first + 1, 1),)) == (1, 1)
        extent = (ctypes.c_int64 * 3).from_address(front.ground.extent)
        assert list(extent) == [first, first + 1, 1]
    host.close()


@given(
    seed=st.integers(0, 1 << 30), count=st.integers(0, DEVICE_PAGES), per_chunk=st.integers(1, 6)
)
@settings(max_examples=60, deadline=None)
def test_it_finds_the_extents_that_python_finds(library, seed, count, per_chunk):
    rig = Rig(library, LAYOUT, "rows", align_bytes=4096, chunk_bytes=per_chunk * 4096)
    generator = np.random.default_rng(seed)
    runs: list[tuple[tuple[int, int], ...]] = []
    for pages in (DEVICE_PAGES, HOST_PAGES):
        # Some neighbours, so that there is something to merge.
        order = np.arange(pages)[generator.integers(0, pages - count + 1) :][:count]
        for _ in range(int(generator.integers(0, 3))):
            order = np.roll(order, int(generator.integers(0, max(1, count))))
        runs.append(tuple((int(page), 1) for page in order))
    wanted = Lists(*runs).extents(rig.host.pages_per_chunk)
    assert rig.front.read(*runs) == (count, len(wanted))
    rig.check("d2h", runs)


def test_what_copies_such_lists_is_remembered_by_size_cuts_and_way(library):
    rig = Rig(library, LAYOUT, "rows")
    front = rig.front
    four, cut = ((0, 4),), ((0, 3), (4, 1))
    assert front.copy(four, four, "h2d") is None
    assert front.read(four, four)
    front.remember(rig.plan, "h2d", busy=False)
    assert front.copy(four, ((5, 4),), "h2d") == 250_000  # other pages, as many
    assert front.ground.plan == rig.plan.at
    for lists, direction, busy in (
        ((four, four), "h2d", True),
        ((four, four), "d2h", False),
        ((four, cut), "h2d", False),
        ((((0, 3),), ((0, 3),)), "h2d", False),
    ):
        calls = rig.driver.calls
        assert front.copy(*lists, direction, busy=busy) is None
        assert rig.driver.calls == calls
    assert front.copy((), (), "h2d") is None


def test_more_than_can_be_remembered_is_forgotten_not_mistaken(library):
    device, host = DevicePool(LAYOUT, 60, "cpu"), HostPool(LAYOUT, 200)
    front = front_over(library, FakeDriver(LAYOUT), device, host)
    plans = {
        (pages, cuts): Plan.of("rows") for pages in range(1, 61) for cuts in range(1, pages + 1)
    }
    lists = {
        (pages, cuts): (
            ((0, pages),),
            (*((2 * each, 1) for each in range(1, cuts)), (2 * cuts, pages - cuts + 1)),
        )
        for pages, cuts in plans
    }
    for asked, plan in plans.items():
        assert front.read(*lists[asked]) == asked
        front.remember(plan, "h2d", busy=False)
    known = 0
    for asked, plan in plans.items():
        if front.copy(*lists[asked], "h2d") is not None:
            assert front.ground.plan == plan.at
            known += 1
    assert 500 < known <= 1024 < len(plans)
    host.close()


@pytest.mark.parametrize("way", ["staged", "zero_copy"])
def test_the_first_copy_at_once_makes_room_for_its_lists(library, way):
    rig = Rig(library, LAYOUT, way)
    assert rig.front.ground.list_room == 0
    rig.check("h2d", random_lists(1, 9), at_once=True)
    assert rig.front.ground.list_room >= 18


def test_short_runs_over_borders_of_pinned_memory_have_room(library):
    """Each of two pages on either side of a border: twice as many extents as runs."""
    device = DevicePool(LAYOUT, 40, "cpu")
    host = HostPool(LAYOUT, 2200, align_bytes=4096, chunk_bytes=100 * 4096)
    front = front_over(library, FakeDriver(LAYOUT), device, host)
    runs = tuple((100 * border - 1, 2) for border in range(1, 21))
    assert front.read(((0, 40),), runs) == (40, 40)
    assert front.ground.extents <= front.ground.extent_room
    assert len(Lists(((0, 40),), runs).extents(host.pages_per_chunk)) == 40
    assert front.run(Plan.of("rows"), "d2h") is not None
    host.close()


def test_a_thread_that_still_copies_at_exit_ends_nobodys_process_badly(library, tmp_path):
    """Workers are daemons: one whose device hangs is left behind, in C and without Python."""
    source, slow = tmp_path / "slow.c", tmp_path / "slow.so"
    source.write_text("#include <unistd.h>\nint slow(void) { return usleep(2000); }\n")
    subprocess.run(["cc", "-shared", "-fPIC", str(source), "-o", str(slow)], check=True)
    program = f"""
        import ctypes, sys, threading, time
        sys.path[:0] = {[str(each) for each in (REPOSITORY, REPOSITORY / "tests" / "hw")]}
        from fake_driver import FakeDriver
        from front_rig import LAYOUT, front_over
        from hw.pools import DevicePool, HostPool
        from hw.transfers import front_native
        slow = ctypes.cast(ctypes.CDLL({str(slow)!r}).slow, ctypes.c_void_p).value
        driver = FakeDriver(LAYOUT)
        driver.addresses = lambda: ((slow,) * 10, False)
        pools = DevicePool(LAYOUT, 1000, "cpu"), HostPool(LAYOUT, 1000)
        front = front_over(front_native.Library(sys.argv[1]), driver, *pools)
        runs = tuple((page, 1) for page in range(0, 1000, 2))
        assert front.read(runs, runs) == (500, 500)
        plan = front_native.Plan.of("rows")
        threading.Thread(target=front.run, args=(plan, "h2d"), daemon=True).start()
        time.sleep(0.1)
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(program), library.path],
        capture_output=True, text=True, check=False, timeout=60,
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (0, "")
