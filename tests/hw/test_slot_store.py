"""Names for the pages of a slot file: the contract of every store, and what leaves for what."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest
from file_store_helpers import content
from page_store_contract import LAYOUT, PAGES, PageStoreContract, host, names

from hicache.errors import TransferError
from hw.storage.file_store import FileStore
from hw.storage.host import HostBuffer
from hw.stores.slot_store import SlotStore

__all__ = ["host"]


def open_store(folder: Path, host: HostBuffer, slots: int) -> SlotStore:
    return SlotStore(FileStore(folder, slots, LAYOUT.page_bytes, host, workers=2))


class TestSlotStore(PageStoreContract):
    def make(self, folder: Path, host: HostBuffer) -> SlotStore:
        return open_store(folder, host, PAGES)


def test_the_least_recently_used_leave(tmp_path: Path, host: HostBuffer) -> None:
    store, before = open_store(tmp_path, host, 6), content(host)
    keys = names(10)
    assert store.write(((0, 4),), keys[:4]) == 4
    assert store.write(((4, 2),), keys[4:6]) == 2
    assert store.read(keys[:2], ((20, 2),)) == 2
    assert store.write(((6, 3),), keys[6:9]) == 3
    assert store.evicted == 3
    assert [store.leading([key]) for key in keys] == [1, 1, 0, 0, 0, 1, 1, 1, 1, 0]
    assert store.read(keys[5:9], ((30, 4),)) == 4
    assert content(host)[30:34] == before[5:9]
    store.close()


def test_more_pages_than_there_are_slots_are_declined(tmp_path: Path, host: HostBuffer) -> None:
    store, before = open_store(tmp_path, host, 4), content(host)
    keys = names(6)
    assert store.write(((0, 6),), keys) == 4
    assert store.declined == 1
    assert store.read(keys, ((20, 6),)) == 4
    assert content(host)[20:24] == before[:4]
    store.close()


def test_a_page_that_is_being_read_is_no_victim(
    tmp_path: Path, host: HostBuffer, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, before = open_store(tmp_path, host, 2), content(host)
    keys = names(4)
    assert store.write(((0, 2),), keys[:2]) == 2
    begun, go_on = threading.Event(), threading.Event()
    read = store._file.read

    def slowly(slots, pages) -> None:
        begun.set()
        assert go_on.wait(20)
        read(slots, pages)

    monkeypatch.setattr(store._file, "read", slowly)
    reader = threading.Thread(target=lambda: store.read(keys[:2], ((20, 2),)))
    reader.start()
    assert begun.wait(20)
    assert store.write(((2, 2),), keys[2:]) == 0
    go_on.set()
    reader.join()
    assert content(host)[20:22] == before[:2]
    assert store.write(((2, 2),), keys[2:]) == 2
    store.close()


def test_a_write_that_fails_leaves_no_name_and_loses_no_slot(
    tmp_path: Path, host: HostBuffer, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, keys = open_store(tmp_path, host, 4), names(4)
    write = store._file.write

    def broken(pages, slots) -> None:
        raise TransferError("no")

    monkeypatch.setattr(store._file, "write", broken)
    for _ in range(5):
        with pytest.raises(TransferError):
            store.write(((0, 4),), keys)
    assert store.leading(keys) == 0
    monkeypatch.setattr(store._file, "write", write)
    assert store.write(((0, 4),), keys) == 4
    assert store.evicted == 0
    store.close()
