"""A folder of page files that hangs: the operation fails in time, and nothing reaches L2 later."""

from __future__ import annotations

import os
import threading
import time
from dataclasses import replace
from pathlib import Path

import pytest
from file_store_helpers import content
from page_store_contract import LAYOUT, host, names

from hicache.errors import TransferError
from hw.storage.host import HostBuffer
from hw.stores import sglang_file
from hw.stores.lease import Lease
from hw.stores.names import Owner
from hw.stores.page_order import PageOrder, PageShape
from hw.stores.sglang_file import SglangFileStore

__all__ = ["host"]


def open_store(folder: Path, host: HostBuffer, timeout_s: float = 0.2) -> SglangFileStore:
    order = PageOrder(PageShape.of(LAYOUT), "page_first")
    return SglangFileStore(folder, Owner(model="m"), order, host, workers=2, timeout_s=timeout_s)


class Hanging:
    """`open` of a module, for files whose name holds `part`: waits until `go_on` is set."""

    def __init__(self, part: str, monkeypatch: pytest.MonkeyPatch) -> None:
        self.go_on = threading.Event()
        self.ended = 0
        monkeypatch.setattr(sglang_file, "open", self._open, raising=False)
        self._part = part

    def _open(self, path, *arguments, **options):
        if self._part in os.path.basename(path):
            assert self.go_on.wait(30)
            self.ended += 1
        return open(path, *arguments, **options)

    def let_go(self, store: SglangFileStore) -> None:
        self.go_on.set()
        assert store._fence is not None
        for _ in range(500):
            if not store._fence.late:
                return
            time.sleep(0.01)
        raise AssertionError("a call that came back is still counted as late")


def test_a_read_that_hangs_fails_and_brings_nothing_later(
    tmp_path: Path, host: HostBuffer, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, keys, before = open_store(tmp_path, host), names(5), content(host)
    assert store.write(((0, 5),), keys) == 5
    hanging = Hanging(keys[2], monkeypatch)
    with pytest.raises(TransferError, match=r"reading did not return within 0\.2 s"):
        store.read(keys, ((20, 5),))
    for page in range(20, 25):  # they are somebody else's now
        host.view(page, 1)[:] = bytes(LAYOUT.page_bytes)
    assert store.read(keys[3:], ((30, 2),)) == 2, "others are served meanwhile"
    assert content(host)[30:32] == before[3:5]
    hanging.let_go(store)
    assert hanging.ended == 1
    assert all(not any(host.view(page, 1)) for page in range(20, 25))
    assert store.read(keys, ((20, 5),)) == 5
    assert content(host)[20:25] == before[:5]
    store.close()


def test_a_write_that_hangs_fails_and_a_page_is_never_half_of_another(
    tmp_path: Path, host: HostBuffer, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, keys, before = open_store(tmp_path, host), names(4), content(host)
    hanging = Hanging(".tmp", monkeypatch)
    with pytest.raises(TransferError, match="writing did not return"):
        store.write(((0, 4),), keys)
    for page in range(4):
        host.view(page, 1)[:] = bytes(LAYOUT.page_bytes)
    hanging.let_go(store)
    there = [name for name in keys if store.leading([name])]
    assert len(there) <= 2, "pages that nobody had begun with are left"
    for name in there:
        assert store.read([name], ((40, 1),)) == 1
        assert content(host)[40] == before[keys.index(name)]
    assert not list(tmp_path.glob(".*.tmp"))
    store.close()


def test_what_is_written_late_is_what_the_page_was(tmp_path: Path, monkeypatch) -> None:
    """Also where our order of a page's bytes is the file's: one layer."""
    one = replace(LAYOUT, layers=1)
    memory = HostBuffer(2, one.page_bytes)
    memory.view(0, 1)[:] = b"\x07" * one.page_bytes
    order = PageOrder(PageShape.of(one), "page_first")
    store = SglangFileStore(tmp_path, Owner(model="m"), order, memory, workers=2, timeout_s=0.2)
    hanging = Hanging(".tmp", monkeypatch)
    with pytest.raises(TransferError, match="writing did not return"):
        store.write(((0, 1),), names(1))
    memory.view(0, 1)[:] = bytes(one.page_bytes)
    hanging.let_go(store)
    assert store.read(names(1), ((1, 1),)) == 1
    assert content(memory)[1] == b"\x07" * one.page_bytes
    store.close()


def test_a_store_whose_call_never_returns_can_be_closed(
    tmp_path: Path, host: HostBuffer, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, keys = open_store(tmp_path, host), names(3)
    assert store.write(((0, 3),), keys) == 3
    hanging = Hanging(keys[0], monkeypatch)
    with pytest.raises(TransferError):
        store.read(keys, ((20, 3),))
    began = time.monotonic()
    store.close()
    assert time.monotonic() - began < 5
    hanging.go_on.set()


def test_what_goes_wrong_in_time_is_said_as_it_is(
    tmp_path: Path, host: HostBuffer, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, keys = open_store(tmp_path, host), names(1)

    def broken(path, *arguments, **options):
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(sglang_file, "open", broken, raising=False)
    with pytest.raises(TransferError, match=r"^SGLang file store: .*: Input/output error$"):
        store.write(((0, 1),), keys)
    monkeypatch.undo()
    with pytest.raises(AssertionError, match="2 names for 1 pages"):
        store.write(((0, 1),), names(2))
    store.close()


def test_a_lease_waits_for_whoever_is_inside() -> None:
    lease, inside, leave = Lease(), threading.Event(), threading.Event()
    done: list[str] = []

    def act() -> None:
        inside.set()
        assert leave.wait(20)
        done.append("touched")

    def end() -> None:
        lease.end()
        done.append("ended")

    threads = [threading.Thread(target=lambda: lease.touch(act)), threading.Thread(target=end)]
    threads[0].start()
    assert inside.wait(20)
    threads[1].start()
    while not lease.ended:
        time.sleep(0.001)
    assert not lease.touch(lambda: done.append("too late"))
    leave.set()
    for thread in threads:
        thread.join()
    assert done == ["touched", "ended"]


def test_a_file_of_another_size_is_written_anew(tmp_path: Path, host: HostBuffer) -> None:
    store, keys, before = open_store(tmp_path, host), names(2), content(host)
    assert store.write(((0, 2),), keys) == 2
    broken = tmp_path / Owner(model="m").file_name(keys[0])
    os.truncate(broken, 7)
    assert store.read(keys, ((20, 2),)) == 0
    assert store.write(((0, 2),), keys) == 2
    assert (store.written, store.present) == (3, 1)
    assert store.read(keys, ((20, 2),)) == 2
    assert content(host)[20:22] == before[:2]
    store.close()
