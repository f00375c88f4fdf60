"""What every back-end of the file store keeps to: inherit StoreContract and name the back-end."""

from __future__ import annotations

import os
import random
import threading
import time
from pathlib import Path

import pytest
from file_store_helpers import content, fill, have_direct, pattern, runs

from hicache.allocator import extents
from hicache.errors import TransferError
from hicache.operations import Copy
from hw.device import Control
from hw.storage import plan
from hw.storage.file_store import Backend, FileStore
from hw.storage.host import HostBuffer

ALIGNED, CROOKED = 16384, 3000  # bytes of a page


class StoreContract:
    """All tests run with pages that O_DIRECT takes, and with pages that it does not."""

    backend: Backend

    @pytest.fixture(params=[ALIGNED, CROOKED])
    def page_bytes(self, request):
        return request.param

    def open(self, folder: Path, pages: int, host, **options) -> FileStore:
        if self.backend in {"direct", "io_uring"} and not have_direct(folder):
            pytest.skip("the file system does not do O_DIRECT")
        options = {"workers": 4, "depth": 8} | options
        return FileStore(folder, pages, host.page_bytes, host, backend=self.backend, **options)

    @pytest.fixture
    def shorten(self, monkeypatch):
        """Let every request be answered with less than it asked for: `shorten(blocks of 4096)`."""
        raise NotImplementedError

    @pytest.fixture
    def break_one(self, monkeypatch):
        """Let the n-th request from now fail with EIO: `break_one(n)`."""
        raise NotImplementedError

    @pytest.mark.parametrize("checksum", ["none", "crc32"])
    def test_any_page_lists_are_bit_exact_and_nothing_else_moves(
        self, tmp_path, page_bytes, checksum
    ):
        slots, pages, seed = 40, 60, random.Random(page_bytes)
        host = HostBuffer(pages, page_bytes)
        in_host = fill(host)
        in_file: dict[int, bytes] = {}
        store = self.open(tmp_path, slots, host, checksum=checksum)
        for turn in range(60):
            many = seed.choice([0, 1, 1, 2, 7, 20, slots])
            where = seed.choice([_any, _reversed, _consecutive, _halves])
            to_slots = where(seed, slots, many)
            of_pages = seed.choice([_any, _reversed, _consecutive, _halves])(seed, pages, many)
            if turn % 2:
                for slot, page in zip(to_slots, of_pages, strict=True):
                    host.view(page, 1)[:] = in_host[page] = pattern(1000 * turn + page, page_bytes)
                    in_file[slot] = in_host[page]
                store.write(runs(of_pages), runs(to_slots))
            else:
                from_slots = [slot for slot in to_slots if slot in in_file]
                of_pages = of_pages[: len(from_slots)]
                for slot, page in zip(from_slots, of_pages, strict=True):
                    in_host[page] = in_file[slot]
                store.read(runs(from_slots), runs(of_pages))
            assert content(host) == in_host
        assert len(in_file) == slots
        store.close()

    def test_the_whole_pool_there_and_back_reversed(self, tmp_path, page_bytes):
        host = HostBuffer(64, page_bytes)
        pages = fill(host)
        store = self.open(tmp_path, 64, host)
        store.write(((0, 64),), ((0, 64),))
        store.read(runs(range(63, -1, -1)), ((0, 64),))
        assert content(host) == pages[::-1]
        store.close()

    @pytest.mark.parametrize("checksum", ["none", "crc32"])
    def test_lists_that_are_planned_in_parts(self, tmp_path, page_bytes, checksum, monkeypatch):
        monkeypatch.setattr(plan, "PART_RUNS", 7)
        host = HostBuffer(120, page_bytes)
        pages = fill(host)
        store = self.open(tmp_path, 60, host, checksum=checksum)
        seed = random.Random(page_bytes)
        slots, sources = seed.sample(range(60), 60), seed.sample(range(60), 60)
        targets = seed.sample(range(60, 120), 60)
        store.write(runs(sources), runs(slots))
        store.read(runs(slots), runs(targets))
        now = content(host)
        assert now[:60] == pages[:60]
        assert [now[target] for target in targets] == [pages[source] for source in sources]
        store.close()

    def test_an_empty_operation_is_nothing(self, tmp_path, page_bytes):
        host = HostBuffer(2, page_bytes)
        pages = fill(host)
        store = self.open(tmp_path, 2, host)
        store.write((), ())
        store.read((), ())
        assert content(host) == pages
        store.close()

    @pytest.mark.parametrize("way", ["read", "write"])
    def test_closing_waits_for_what_other_threads_are_at(
        self, tmp_path, page_bytes, way, monkeypatch
    ):
        host = HostBuffer(16, page_bytes)
        pages = fill(host)
        store = self.open(tmp_path, 8, host)
        store.write(((0, 8),), ((0, 8),))
        begun, go_on = threading.Event(), threading.Event()
        transport, fd, errors = store._transport, store.file.fd, []
        real = getattr(transport, way)

        def late(parts) -> None:
            begun.set()
            assert go_on.wait(20)
            real(parts)

        monkeypatch.setattr(transport, way, late)

        def move() -> None:
            try:
                if way == "read":
                    store.read(((0, 8),), ((8, 8),))
                else:
                    store.write(((0, 8),), ((0, 8),))
            except BaseException as error:
                errors.append(error)

        moving, closing = threading.Thread(target=move), threading.Thread(target=store.close)
        moving.start()
        assert begun.wait(20)
        closing.start()
        closing.join(0.05)
        assert closing.is_alive(), "closed under an operation"
        os.fstat(fd)
        go_on.set()
        moving.join()
        closing.join()
        assert errors == []
        assert store.file.closed
        assert way == "write" or content(host) == pages[:8] * 2

    @pytest.mark.parametrize("extra_bytes", [0, 1])
    def test_one_large_page_is_cut_and_put_together(self, tmp_path, extra_bytes):
        host = HostBuffer(3, (3 << 20) + 4096 + extra_bytes)
        for page in range(2):
            host.view(page, 1)[:] = random.Random(page).randbytes(host.page_bytes)
        store = self.open(tmp_path, 2, host, request_bytes=1 << 20)
        store.write(((0, 2),), ((0, 2),))
        store.read(((1, 1),), ((2, 1),))
        assert host.view(2, 1) == host.view(1, 1)
        store.close()

    def test_many_threads_at_once(self, tmp_path, page_bytes):
        threads, each = 8, 10
        host = HostBuffer(2 * threads * each, page_bytes)
        first = fill(host)
        store = self.open(tmp_path, threads * each, host)
        wrong: list[object] = []

        def work(thread: int) -> None:
            seed = random.Random(thread)
            mine = range(thread * each, (thread + 1) * each)
            aside = [threads * each + page for page in mine]
            try:
                for _ in range(6):
                    slots = seed.sample(mine, each)
                    store.write(runs(mine), runs(slots))
                    store.read(runs(slots), runs(aside))
                    wrong.extend(
                        page
                        for page, copy in zip(mine, aside, strict=True)
                        if host.view(copy, 1) != first[page]
                    )
            except BaseException as error:
                wrong.append(error)

        workers = [threading.Thread(target=work, args=(i,)) for i in range(threads)]
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join()
        assert wrong == []
        store.close()

    @pytest.mark.parametrize("blocks", [1, 3])
    def test_short_answers_are_completed(self, tmp_path, page_bytes, shorten, blocks):
        host = HostBuffer(40, page_bytes)
        pages = fill(host)
        store = self.open(tmp_path, 20, host)
        cut = shorten(blocks)
        store.write(((0, 20),), ((0, 20),))
        store.read(runs(range(19, -1, -1)), ((20, 20),))
        assert content(host) == pages[:20] + pages[19::-1]
        assert cut(), "no answer was short"
        store.close()

    @pytest.mark.parametrize("nth", [0, 5])
    def test_a_failed_request_fails_its_operation_and_no_other(
        self, tmp_path, page_bytes, break_one, nth
    ):
        host = HostBuffer(40, page_bytes)
        pages = fill(host)
        store = self.open(tmp_path, 20, host)
        every_second = runs(range(0, 20, 2))
        break_one(nth)
        with pytest.raises(TransferError, match=r"writing slot \d+ .*\(EIO\)"):
            store.write(every_second, every_second)
        store.write(((0, 20),), ((0, 20),))
        break_one(nth)
        with pytest.raises(TransferError, match=r"reading slot \d+ .*\(EIO\)"):
            store.read(every_second, runs(range(20, 40, 2)))
        store.read(((0, 20),), ((20, 20),))
        assert content(host) == pages[:20] * 2
        store.close()

    @pytest.mark.parametrize("size", ["cut", "empty", "longer"])
    def test_a_file_of_another_size_is_an_error_of_each_operation(self, tmp_path, size):
        host = HostBuffer(8, ALIGNED)
        fill(host)
        store = self.open(tmp_path / ".", 8, host)
        store.write(((0, 8),), ((0, 8),))
        real = store.file.size_bytes
        with store.file.path.open("r+b") as file:
            file.truncate({"cut": 3 * ALIGNED, "empty": 0, "longer": real + 1}[size])
        for _ in range(2):
            with pytest.raises(TransferError, match=r"reading .* bytes instead of"):
                store.read(((0, 8),), ((0, 8),))
            with pytest.raises(TransferError, match=r"writing .* bytes instead of"):
                store.write(((0, 8),), ((0, 8),))
        with store.file.path.open("r+b") as file:
            file.truncate(real)
        store.write(((0, 8),), ((0, 8),))  # and the store goes on
        store.close()

    def test_a_file_that_is_cut_under_an_operation_is_an_error(self, tmp_path, monkeypatch):
        host = HostBuffer(8, ALIGNED)
        fill(host)
        store = self.open(tmp_path, 8, host)
        store.write(((0, 8),), ((0, 8),))
        with store.file.path.open("r+b") as file:
            file.truncate(5 * ALIGNED + 4096 + 100)
        monkeypatch.setattr(store.file, "check", lambda verb: None)  # it was whole when it began
        with pytest.raises(TransferError, match=r"reading slot 5 .*the file ends here"):
            store.read(((5, 1),), ((0, 1),))
        with pytest.raises(TransferError, match="the file ends here"):
            store.read(((0, 8),), ((0, 8),))
        store.close()

    @pytest.mark.parametrize("how", ["removed", "replaced"])
    def test_a_file_that_is_gone_is_an_error_of_each_operation(self, tmp_path, how):
        host = HostBuffer(8, ALIGNED)
        store = self.open(tmp_path, 8, host)
        path = store.file.path
        path.unlink()
        if how == "replaced":
            path.write_bytes(b"precious")
        for _ in range(2):
            with pytest.raises(TransferError, match="removed or replaced"):
                store.read(((0, 8),), ((0, 8),))
            with pytest.raises(TransferError, match="removed or replaced"):
                store.write(((0, 8),), ((0, 8),))
        store.close()
        assert path.exists() == (how == "replaced"), "only our own file is removed at exit"

    def test_a_page_that_changed_in_the_file_is_an_error(self, tmp_path, page_bytes):
        host = HostBuffer(8, page_bytes)
        pages = fill(host)
        store = self.open(tmp_path, 8, host, checksum="crc32")
        with pytest.raises(TransferError, match="reading slot 3 failed: nothing was written"):
            store.read(((3, 1),), ((3, 1),))
        host.view(3, 1)[:] = pages[3]
        store.write(((0, 8),), ((0, 8),))
        with store.file.path.open("r+b") as file:
            file.seek(5 * store.slot_bytes + 77)
            byte = file.read(1)
            file.seek(-1, 1)
            file.write(bytes([byte[0] ^ 0x10]))
        store.read(((0, 5), (6, 2)), ((0, 5), (6, 2)))
        with pytest.raises(TransferError, match="reading slot 5 failed: the page's checksum is"):
            store.read(((0, 8),), ((0, 8),))
        host.view(5, 1)[:] = pages[5]
        store.write(((5, 1),), ((5, 1),))  # written again, it is whole again
        store.read(((0, 8),), ((0, 8),))
        assert content(host) == pages
        store.close()

    def test_the_two_devices_move_what_a_copy_says(self, tmp_path, page_bytes):
        host = HostBuffer(12, page_bytes)
        pages = fill(host)
        store = self.open(tmp_path, 12, host)
        reader, writer = store.devices()
        assert reader.name == writer.name == f"L3 file ({self.backend})"
        pairs = ((0, 2), (5, 1)), ((9, 3),)
        before_ns = time.monotonic_ns()
        done = writer.run(Copy("h2s", 3, 3 * page_bytes, extents(*pairs), *pairs), Control())
        assert before_ns <= done.started_ns <= done.finished_ns <= time.monotonic_ns()
        back = ((9, 3),), ((6, 3),)
        reader.run(Copy("s2h", 3, 3 * page_bytes, extents(*back), *back), Control())
        assert content(host)[6:9] == [pages[0], pages[1], pages[5]]
        with pytest.raises(AssertionError):
            reader.run(Copy("h2s", 3, 3 * page_bytes, 1, *back), Control())
        with pytest.raises(AssertionError, match="3 pages, of which 0 are named"):
            reader.run(Copy("s2h", 3, 3 * page_bytes, 1), Control())
        with pytest.raises(AssertionError, match="no such slot"):
            reader.run(Copy("s2h", 3, 3 * page_bytes, 1, ((10, 3),), ((0, 3),)), Control())
        writer.close()
        assert store.file.path.exists()
        reader.close()
        assert not store.file.path.exists()

    @pytest.mark.parametrize(
        "run", [(1 << 62, (1 << 62) + 1), ((1 << 63) - 1, 2), (2, (1 << 63) - 1)]
    )
    def test_numbers_whose_sum_or_bytes_overflow_are_no_pages(self, tmp_path, run):
        host = HostBuffer(4, 4096)
        store = self.open(tmp_path, 4, host)
        before = fill(host)
        for act in (store.read, store.write):
            with pytest.raises(AssertionError, match="no such slot"):
                act((run,), (run,))
        assert content(host) == before
        store.close()


def _any(seed, capacity, many):
    return seed.sample(range(capacity), many)


def _consecutive(seed, capacity, many):
    first = seed.randint(0, capacity - many)
    return list(range(first, first + many))


def _reversed(seed, capacity, many):
    return _consecutive(seed, capacity, many)[::-1]


def _halves(seed, capacity, many):
    pages = _consecutive(seed, capacity, many)
    return pages[many // 2 :] + pages[: many // 2]
