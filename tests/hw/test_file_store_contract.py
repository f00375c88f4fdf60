"""`pread` and O_DIRECT in threads of Python keep the store's contract."""

from __future__ import annotations

import os
import threading

import pytest
from file_store_contract import ALIGNED, CROOKED, StoreContract
from file_store_helpers import CrookedMemory, content, fill, runs

from hw.storage import moves
from hw.storage.host import HostBuffer


class TestPread(StoreContract):
    backend = "pread"

    @pytest.fixture
    def shorten(self, monkeypatch):
        def start(blocks: int):
            return _shorten_calls(monkeypatch, blocks * 1000 + 24)

        return start

    @pytest.fixture
    def break_one(self, monkeypatch):
        return _break_calls(monkeypatch)


class TestDirect(TestPread):
    backend = "direct"

    @pytest.fixture
    def shorten(self, monkeypatch):
        def start(blocks: int):
            # A whole block and a bit, as at the end of a file: the bit is asked for again.
            return _shorten_calls(monkeypatch, blocks * 4096, bit=100)

        return start

    def test_memory_that_begins_anywhere_goes_through_a_bounce_buffer(self, tmp_path):
        host = CrookedMemory(24, ALIGNED)
        pages = fill(host)
        store = self.open(tmp_path, 12, host)
        assert store.bounces == "L2 does not begin at a multiple of 4096"
        assert "bounce" in store.describe()
        store.write(((0, 12),), ((0, 12),))
        store.read(runs(range(11, -1, -1)), ((12, 12),))
        assert content(host) == pages[:12] + pages[11::-1]
        store.close()

    def test_what_bounces_may_be_larger_than_the_bounce_buffer(self, tmp_path, monkeypatch):
        monkeypatch.setattr(moves, "BOUNCE_BYTES", 3 * 4096)
        host = HostBuffer(40, CROOKED)
        pages = fill(host)
        store = self.open(tmp_path, 20, host)
        store.write(((0, 7), (9, 13)), ((0, 20),))
        store.read(((0, 20),), ((20, 20),))
        assert content(host)[20:] == pages[:7] + pages[9:22]
        store.close()

    def test_aligned_pages_do_not_bounce(self, tmp_path):
        store = self.open(tmp_path, 2, HostBuffer(2, ALIGNED))
        assert store.bounces == ""
        store.close()


def _shorten_calls(monkeypatch, most: int, bit: int = 0):
    """`os.preadv` and `os.pwritev` move `most` bytes at most and claim `bit` more."""
    cut: list[int] = []
    for name in ("preadv", "pwritev"):
        real = getattr(os, name)

        def call(fd, buffers, position, real=real):
            (view,) = buffers
            if len(view) <= most + bit:
                return real(fd, [view], position)
            cut.append(len(view))
            return real(fd, [view[:most]], position) + bit

        monkeypatch.setattr(os, name, call)
    return lambda: cut


def _break_calls(monkeypatch):
    """The n-th call of `os.preadv` or `os.pwritev` from now fails."""
    left, lock = [-1], threading.Lock()
    for name in ("preadv", "pwritev"):
        real = getattr(os, name)

        def call(fd, buffers, position, real=real):
            with lock:
                left[0] -= 1
                broken = left[0] == -1
            if broken:
                raise OSError(5, "Input/output error")
            return real(fd, buffers, position)

        monkeypatch.setattr(os, name, call)

    def start(nth: int) -> None:
        left[0] = nth

    return start
