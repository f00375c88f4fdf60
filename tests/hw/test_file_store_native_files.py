"""Descriptors of the transport in C: an open file for each reading thread, where there can be."""

from __future__ import annotations

import gc
import os
import resource
import threading
import time

import pytest
from file_store_helpers import content, runs
from native_stores import instead, made, open_store, use_it

__all__ = ["instead", "made", "use_it"]


def test_each_reading_thread_has_an_open_file_of_its_own(tmp_path, use_it, instead):
    store, _ = open_store(tmp_path, 40)
    assert "4 open files" in store.describe()
    used: dict[str, set[tuple[int, int]]] = {"reading": set(), "writing": set()}
    now = "writing"

    def act(real, fd, address, size, position) -> int:
        used[now].add((threading.get_native_id(), fd))
        time.sleep(0.005)
        return real(fd, address, size, position)

    instead(act)
    store.write(runs(range(0, 40, 2)), runs(range(0, 40, 2)))
    now = "reading"
    store.read(runs(range(0, 40, 2)), runs(range(40, 80, 2)))
    assert used["writing"] == {(threading.get_native_id(), store.file.fd)}
    assert (threading.get_native_id(), store.file.fd) in used["reading"]
    threads, files = (set(column) for column in zip(*used["reading"], strict=True))
    assert len(used["reading"]) == len(threads) == len(files) > 1
    assert files <= {store.file.fd, *store.file.more_fds}
    store.close()


def refuse(*arguments) -> int:
    raise PermissionError(13, "Permission denied")


def another(path, flags, *mode) -> int:
    return os.memfd_create("another")


@pytest.mark.parametrize("instead_of_open", [refuse, another])
def test_where_the_file_cannot_be_opened_again_all_threads_share_it(
    tmp_path, use_it, monkeypatch, instead_of_open
):
    real = os.open

    def opening(path, flags, *rest, **named) -> int:
        if str(path).startswith("/proc/self/fd/"):
            return instead_of_open(path, flags)
        return real(path, flags, *rest, **named)

    monkeypatch.setattr(os, "open", opening)
    before = len(os.listdir("/proc/self/fd"))
    store, host = open_store(tmp_path, 40)
    assert len(os.listdir("/proc/self/fd")) == before + 1
    assert "open files" not in store.describe()
    pages = content(host)
    store.write(((0, 40),), ((0, 40),))
    store.read(runs(range(39, -1, -1)), ((40, 40),))
    assert content(host)[40:] == pages[39::-1]
    store.close()


def test_no_more_than_half_of_the_descriptors_are_taken(tmp_path, use_it):
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    used = max(map(int, os.listdir("/proc/self/fd")))
    resource.setrlimit(resource.RLIMIT_NOFILE, (2 * used + 20, hard))
    try:
        store, _ = open_store(tmp_path, 4, workers=200)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert 0 < len(store.file.more_fds) <= used + 10
    store.close()


def test_a_store_that_is_forgotten_leaves_no_descriptor_either(tmp_path, use_it):
    gc.collect()  # what other tests have forgotten
    before = len(os.listdir("/proc/self/fd"))
    store, _ = open_store(tmp_path, 4)
    assert len(os.listdir("/proc/self/fd")) == before + 4
    del store
    gc.collect()
    assert len(os.listdir("/proc/self/fd")) == before
