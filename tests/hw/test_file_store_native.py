"""The transport in C keeps the store's contract, faults included."""

from __future__ import annotations

import _thread
import random
import signal
import threading
import time
from collections.abc import Iterator
from itertools import chain
from types import SimpleNamespace

import numpy as np
import pytest
import test_file_store_contract as contract
from file_store_contract import StoreContract
from file_store_helpers import content, runs
from native_stores import PAGE, instead, made, open_store, settled, tasks, use_it

from hicache.errors import TransferError
from hw.storage import native, plan_native
from hw.storage.file_store import FileStore
from hw.storage.host import HostBuffer

__all__ = ["instead", "made", "use_it"]


class Faults:
    """Faults below the C, for the contract."""

    BIT = 0

    @pytest.fixture(autouse=True)
    def in_c(self, use_it) -> None:
        pass

    @pytest.fixture
    def shorten(self, instead):
        def start(blocks: int):
            most = blocks * 4096 if self.BIT else blocks * 1000 + 24
            cut: list[int] = []

            def act(real, fd, address, size, position) -> int:
                if size <= most + self.BIT:
                    return real(fd, address, size, position)
                cut.append(size)
                return real(fd, address, most, position) + self.BIT

            instead(act)
            return lambda: cut

        return start

    @pytest.fixture
    def break_one(self, instead):
        left, lock = [-1], threading.Lock()

        def act(real, fd, address, size, position) -> int:
            with lock:
                left[0] -= 1
                broken = left[0] == -1
            return -5 if broken else real(fd, address, size, position)

        instead(act)

        def start(nth: int) -> None:
            left[0] = nth

        return start

    def test_it_says_what_it_is(self, tmp_path):
        store = self.open(tmp_path, 2, HostBuffer(2, PAGE))  # type: ignore[attr-defined]
        writers = 4 if self.BIT else 1
        assert f"compiled: 4 threads for reading, {writers} for writing" in store.describe()
        store.close()


class TestNative(Faults, StoreContract):
    backend = "pread"


class TestNativePlannedInPython(TestNative):
    @pytest.fixture(autouse=True)
    def in_python(self, in_c, monkeypatch) -> None:
        monkeypatch.setattr(plan_native, "library", lambda: None)


class TestNativeDirect(Faults, contract.TestDirect):
    """With a whole block and a bit, as at the end of a file: the bit is asked for again."""

    BIT = 100


def test_an_interrupted_call_is_made_again(tmp_path, use_it, instead):
    store, host = open_store(tmp_path, 8)
    refused: list[int] = []

    def act(real, fd, address, size, position) -> int:
        if position not in refused:
            refused.append(position)
            return -4
        return real(fd, address, size, position)

    instead(act)
    pages = content(host)[:8]
    places = runs(range(0, 16, 2))
    store.write(((0, 8),), ((0, 8),))
    store.read(runs(range(8)), places)
    assert content(host)[0:16:2] == pages
    assert len(refused) >= 8
    store.close()


def test_after_a_failure_no_further_request_begins_and_the_first_one_is_raised(
    tmp_path, use_it, instead
):
    store, _ = open_store(tmp_path, 200)
    store.write(((0, 200),), ((0, 200),))
    begun, under_way = [], [0]

    def act(real, fd, address, size, position) -> int:
        begun.append(position)
        under_way[0] += 1
        time.sleep(0.002 if position else 0.02)
        under_way[0] -= 1
        return -5 if position == 10 * PAGE else real(fd, address, size, position)

    instead(act)
    order = [0, 10, *[page for page in range(2, 200, 2) if page != 10]]
    with pytest.raises(TransferError, match=r"reading slot 10 .*\(EIO\)"):
        store.read(runs(order), runs(range(200, 400, 2))[: len(order)])
    assert under_way == [0], "a request is still under way"
    assert len(begun) < 20
    store.close()


def test_of_several_failures_the_first_is_raised(tmp_path, use_it, instead):
    store, _ = open_store(tmp_path, 8)
    together = threading.Barrier(4)

    def act(real, fd, address, size, position) -> int:
        together.wait(20)
        if position:
            time.sleep(0.05)
        return -28 if position else -5

    instead(act)
    with pytest.raises(TransferError, match=r"reading slot 0 .*\(EIO\)"):
        store.read(runs(range(0, 8, 2)), runs(range(0, 8, 2)))
    store.close()


def test_a_part_is_read_while_the_next_is_planned(tmp_path, use_it, instead):
    store, host = open_store(tmp_path, 16)
    store.write(((0, 16),), ((0, 16),))
    pages, read = content(host), threading.Event()

    def act(real, fd, address, size, position) -> int:
        read.set()
        return real(fd, address, size, position)

    instead(act)
    rows = [[slot * PAGE, (16 + slot) * PAGE, PAGE] for slot in range(16)]

    def parts() -> Iterator[np.ndarray]:
        yield np.array(rows[:4])
        assert read.wait(20), "nobody began with the first part"
        yield np.empty((0, 3), np.int64)
        yield np.array(rows[4:], order="F")

    assert store._transport is not None
    store._transport.read(parts())
    assert content(host)[16:] == pages[:16]
    store.close()


def test_a_part_that_cannot_be_planned_is_raised_when_nothing_is_under_way(
    tmp_path, use_it, instead
):
    store, _ = open_store(tmp_path, 16)
    store.write(((0, 16),), ((0, 16),))
    under_way, all_begun, begun = [0], [], threading.Event()

    def act(real, fd, address, size, position) -> int:
        under_way[0] += 1
        all_begun.append(position)
        begun.set()
        time.sleep(0.02)
        under_way[0] -= 1
        return real(fd, address, size, position)

    instead(act)

    def parts() -> Iterator[np.ndarray]:
        yield np.array([[slot * PAGE, (16 + slot) * PAGE, PAGE] for slot in range(16)])
        assert begun.wait(20)
        raise LookupError("no plan")

    assert store._transport is not None
    with pytest.raises(LookupError, match="no plan"):
        store._transport.read(parts())
    assert under_way == [0]
    assert len(all_begun) <= 8, "requests began after planning had failed"
    store.close()


def test_ctrl_c_behind_the_last_part_leaves_no_thread(tmp_path, use_it):
    before = tasks()
    store, _ = open_store(tmp_path, 16)
    store.write(((0, 16),), ((0, 16),))
    part = np.array([[slot * PAGE, (16 + slot) * PAGE, PAGE] for slot in range(16)])
    # The end of the parts comes with the signal, and no line of Python in between.
    parts = chain([part], filter(_thread.interrupt_main, [signal.SIGINT]))
    transport = store._transport
    assert isinstance(transport, native.NativeTransport)
    with pytest.raises(KeyboardInterrupt):
        transport.read(parts)
    store.read(((0, 16),), ((0, 16),))
    # Threads of an operation that was not finished would wait for it, and read what was planned.
    store.close()
    assert settled(before) == before


def test_ctrl_c_behind_the_begin_leaves_no_thread(tmp_path, use_it, monkeypatch):
    before = tasks()
    store, _ = open_store(tmp_path, 16)
    store.write(((0, 16),), ((0, 16),))
    store.read(runs(range(0, 16, 2)), runs(range(16, 32, 2)))
    transport = store._transport
    assert isinstance(transport, native.NativeTransport)
    direction = transport._directions[0]
    library = direction._library

    def begin(*arguments: int) -> int:
        library.begin(*arguments)
        raise KeyboardInterrupt

    interrupted = SimpleNamespace(begin=begin, feed=library.feed, finish=library.finish)
    monkeypatch.setattr(direction, "_library", interrupted)
    with pytest.raises(KeyboardInterrupt):
        store.read(((0, 16),), ((0, 16),))
    store.close()
    assert settled(before) == before


def test_thousands_of_small_pages_by_many_threads(tmp_path, use_it):
    page_bytes, slots = 512, 20_000
    host = HostBuffer(2 * slots, page_bytes)
    words = np.frombuffer(host.view(0, slots), np.int64).reshape(slots, -1)
    words[:] = np.arange(slots)[:, None]
    store = FileStore(tmp_path, slots, page_bytes, host, workers=16)
    seed = random.Random(5)
    for _ in range(3):
        order = seed.sample(range(slots), slots)
        store.write(((0, slots),), tuple((slot, 1) for slot in order))
        store.read(tuple((slot, 1) for slot in order), ((slots, slots),))
        assert host.view(slots, slots) == host.view(0, slots)
        host.view(slots, slots)[:] = bytes(slots * page_bytes)
    store.close()


def test_auto_is_pread_at_every_size_where_its_threads_are_compiled(tmp_path, use_it):
    for page_bytes in (4096, 2 << 20):
        host = HostBuffer(1, page_bytes)
        store = FileStore(tmp_path, 1, page_bytes, host, backend="auto", workers=2)
        assert store.backend == "pread"
        store.close()
