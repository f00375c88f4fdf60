"""io_uring, with the page cache and without, keeps the store's contract; how requests are shared by
rings.
"""

from __future__ import annotations

import random
import threading
import time

import numpy as np
import pytest
import test_file_store_contract as contract
from file_store_contract import ALIGNED, StoreContract
from file_store_helpers import content, fill, needs_io_uring, runs, without_registering

from hicache.errors import TransferError
from hw.storage import crew, uring
from hw.storage.file_store import FileStore
from hw.storage.host import HostBuffer
from hw.storage.ring import Ring


class RingContract(StoreContract):
    """What holds of io_uring, with the page cache and without."""

    # A request may be answered with so many whole blocks and a bit, as at the end of a file. Past
    # the page cache the bit is asked for again.
    one_block_bytes, bit = 4096, 100

    @pytest.fixture
    def shorten(self, monkeypatch):
        def start(blocks: int):
            prepare_it, reap_it, cut = Ring.prepare, Ring.reap, []
            most, bit = blocks * self.one_block_bytes, self.bit
            tags: set[tuple[int, int]] = set()

            def prepare(ring, positions, addresses, sizes, buffers, first_tag):
                # The kernel is told of less than the transport wants, and says that it did less.
                told = sizes.copy()
                for i in np.flatnonzero(sizes > most + bit).tolist():
                    cut.append(int(sizes[i]))
                    tags.add((ring.fd, first_tag + i))
                    told[i] = most
                prepare_it(ring, positions, addresses, told, buffers, first_tag)

            def reap(ring):
                its_tags, results = reap_it(ring)
                for i, tag in enumerate(its_tags.tolist()):
                    if (ring.fd, tag) in tags:
                        tags.discard((ring.fd, tag))
                        results[i] += bit
                return its_tags, results

            monkeypatch.setattr(Ring, "prepare", prepare)
            monkeypatch.setattr(Ring, "reap", reap)
            return lambda: cut

        return start

    @pytest.fixture
    def break_one(self, monkeypatch):
        real, left = Ring.reap, [-1]

        def reap(ring):
            tags, results = real(ring)
            for i in range(len(tags)):
                left[0] -= 1
                if left[0] == -1:
                    results[i] = -5
            return tags, results

        monkeypatch.setattr(Ring, "reap", reap)

        def start(nth: int) -> None:
            left[0] = nth

        return start

    def test_after_a_failure_no_further_request_begins(self, tmp_path, break_one, monkeypatch):
        host = HostBuffer(80, ALIGNED)
        store = self.open(tmp_path, 80, host)
        real, begun, threads, failures = Ring.prepare, [], [], []

        class Job(crew._Job):
            def __init__(self, work, parts, errors):
                super().__init__(work, parts, errors)
                failures.append(errors)

        def prepare(ring, positions, *arguments):
            threads.append(threading.get_ident())
            begun.extend(positions)
            if threads[0] != threads[-1]:  # the others are slow: the first one fails meanwhile
                deadline_s = time.monotonic() + 10
                while not any(failures) and time.monotonic() < deadline_s:
                    time.sleep(0.001)
            real(ring, positions, *arguments)

        monkeypatch.setattr(crew, "_Job", Job)
        monkeypatch.setattr(Ring, "prepare", prepare)
        break_one(0)
        with pytest.raises(TransferError, match="EIO"):
            store.write(runs(range(0, 80, 2)), runs(range(0, 80, 2)))
        assert 1 <= len(begun) <= 8 * len(set(threads)), "a ring is 8 deep"
        assert len(set(threads)) == len(threads), "a thread went on"
        store.write(((0, 80),), ((0, 80),))
        store.close()

    def test_requests_that_are_given_back_are_sent_again_but_not_for_ever(
        self, tmp_path, monkeypatch
    ):
        host = HostBuffer(8, ALIGNED)
        pages = fill(host)
        store = self.open(tmp_path, 4, host)
        store.write(((0, 4),), ((0, 4),))
        real, refusals = Ring.reap, [5]

        def reap(ring):
            tags, results = real(ring)
            for i in range(len(tags)):
                refusals[0] -= 1
                if refusals[0] >= 0:
                    results[i] = -11
            return tags, results

        monkeypatch.setattr(Ring, "reap", reap)
        store.read(((0, 4),), ((4, 4),))
        assert refusals[0] < 0
        assert content(host) == pages[:4] * 2
        refusals[0] = 1 << 40
        with pytest.raises(TransferError, match="EAGAIN"):
            store.read(((0, 4),), ((4, 4),))
        refusals[0] = 0
        store.read(((0, 4),), ((4, 4),))
        store.close()

    def test_memory_and_file_are_registered_where_they_can_be(self, tmp_path):
        store = self.open(tmp_path, 2, HostBuffer(2, ALIGNED))
        assert "depth 8 each way" in store.describe()
        store.close()


@needs_io_uring
class TestUring(RingContract, contract.TestDirect):
    backend = "io_uring"


@needs_io_uring
class TestUringCached(RingContract):
    backend = "io_uring_cached"
    one_block_bytes, bit = 1000, 0

    def test_thousands_of_small_pages_come_by_many_rings(self, tmp_path):
        host = HostBuffer(3000, 512)
        pages = fill(host)
        store = self.open(tmp_path, 3000, host, depth=32)
        seed = random.Random(1)
        slots, sources = (seed.sample(range(3000), 3000) for _ in range(2))
        store.write(runs(sources), runs(slots))
        targets = seed.sample(range(3000), 3000)
        store.read(runs(slots), runs(targets))
        now = content(host)
        assert all(now[t] == pages[s] for s, t in zip(sources, targets, strict=True))
        store.close()


class TestUringInManyBuffers(TestUring):
    """Memory that takes several registered buffers, which no request may straddle."""

    @pytest.fixture(autouse=True)
    def small_buffers(self, monkeypatch):
        monkeypatch.setattr(uring, "LARGEST_BUFFER_BYTES", 24576)


class TestUringUnregistered(TestUring):
    """A kernel that registers nothing."""

    @pytest.fixture(autouse=True)
    def nothing_registered(self, monkeypatch):
        without_registering(monkeypatch)

    def test_memory_and_file_are_registered_where_they_can_be(self, tmp_path):
        store = self.open(tmp_path, 2, HostBuffer(2, ALIGNED))
        said = store.describe()
        assert "buffers not registered: Cannot allocate memory" in said
        assert "file not registered: Cannot allocate memory" in said
        store.close()


@pytest.mark.parametrize("counts", [[0], [1], [5], [16], [17], [300], [18432], [2048, 4096, 1, 0]])
@pytest.mark.parametrize("size", [512, 65536, 1 << 20, 1 << 22])
@pytest.mark.parametrize("rings", [1, 16])
def test_shares_are_all_requests_in_few_turns_that_end_together(counts, size, rings):
    total = sum(counts)
    requests = np.full((total, 3), size, np.int64)
    requests[:, 0] = np.arange(total)
    parts = np.split(requests, np.cumsum(counts)[:-1])
    lists = list(uring.shares(iter(parts), rings, 512))
    shares = [share for each in lists for share in each]
    assert [row[0] for share in shares for row in share.tolist()] == list(range(total))
    assert all(0 < len(share) <= 512 for share in shares)
    # Each list is a round of all threads, of which there are few; none is empty but for nothing.
    assert len(lists) <= len(counts) + 10
    assert len(shares) <= rings * len(lists) + total // 512
    if shares:
        # The last turns move little: nobody works alone for long.
        fair = 2 * total // (3 * rings) + 1
        assert len(shares[-1]) * size <= max(uring.SMALLEST_BATCH_BYTES, size)
        assert len(shares[0]) <= max(fair, uring.SMALLEST_BATCH_BYTES // size)
    if size == 1 << 22:
        assert len(shares) >= min(total, rings), "large requests are spread over all threads"


def test_shares_of_the_first_part_are_there_before_the_next_part_is():
    made = []

    def parts():
        for number in range(3):
            made.append(number)
            yield np.full((100, 3), 65536, np.int64)

    lists = uring.shares(parts(), 4, 512)
    assert next(lists)
    assert made == [0]


def test_auto_is_a_ring_for_small_pages_where_there_is_one(tmp_path, monkeypatch):
    def picked(page_bytes: int) -> str:
        host = HostBuffer(1, page_bytes)
        store = FileStore(tmp_path, 1, page_bytes, host, backend="auto", workers=2)
        name = store.backend
        store.write(((0, 1),), ((0, 1),))
        store.read(((0, 1),), ((0, 1),))
        assert name in store.describe()
        store.close()
        return name

    assert picked(2 << 20) == "pread"
    if uring.allowed():
        assert picked(65536) == "io_uring_cached"
    monkeypatch.setattr("hw.storage.file_store.allowed", lambda: False)
    assert picked(65536) == "pread"
