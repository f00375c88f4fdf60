"""How far the L3 file gets with more threads than this machine has cores: copies that only sleep.

    python benchmarks/hw/l3_threads.py [--threads 16] [--gib-s 2.45]    (quieter: chrt -f 10 ...)

First Python's part of a read: operations whose reads cost nothing, in CPU time of the calling
thread, and the rate beyond which that alone would be the limit. Then reads that take as long as a
thread's copy of `--gib-s` without using a core, as share of what so many threads could do at best:

    planned   all requests made before: what a loop in C would reach
    compiled  pread in compiled threads
    ring      io_uring_cached, each batch slept off at once

It needs the compiled loop and `cc`. It says nothing of memory or disks: that is `l3_file.py`.
"""

from __future__ import annotations

import argparse
import ctypes
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import numpy as np

from hicache.operations import PageRuns
from hw.storage import native
from hw.storage.file_store import FileStore
from hw.storage.host import HostBuffer
from hw.storage.moves import InPlace
from hw.storage.ring import Ring
from hw.storage.uring import UringTransport

KIB, MIB, GIB = 1 << 10, 1 << 20, 1 << 30
TOTAL_BYTES = 1152 * MIB
TURNS = 9

# A thread's reads end one after the other on its own clock; it sleeps once that is 0.4 ms ahead,
# and begins a new one after a pause of 1 ms.
CALLS = r"""
#define _GNU_SOURCE
#include <stdint.h>
#include <time.h>
#include <unistd.h>
double ns_a_byte;
ssize_t nothing(int fd, void *memory, size_t size, off_t position) { return size; }
ssize_t asleep(int fd, void *memory, size_t size, off_t position) {
    static __thread double clock;
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    double now = t.tv_sec * 1e9 + t.tv_nsec;
    if (now - clock > 1e6) clock = now;
    clock += size * ns_a_byte;
    if (clock - now >= 4e5) {
        struct timespec end = {(int64_t)clock / 1000000000, (int64_t)clock % 1000000000};
        clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &end, 0);
    }
    return size;
}
"""


class SleepingRing(Ring):
    """A ring whose requests are done when a thread has slept as long as they take."""

    gib_s = 0.0

    def prepare(self, positions, addresses, sizes, buffers, first_tag) -> None:
        self._tags = np.arange(first_tag, first_tag + len(sizes))
        self._sizes = np.array(sizes)

    def enter(self, wait_for: int) -> None:
        time.sleep(int(self._sizes.sum()) / (self.gib_s * GIB))

    def reap(self):
        return self._tags, self._sizes


class Paged:
    """One memory, as `HostMemory`, with pages of any size."""

    def __init__(self, memory: HostBuffer, page_bytes: int) -> None:
        self.address, self.page_bytes = memory.address, page_bytes
        self.pages = TOTAL_BYTES // page_bytes
        self._whole = memory.view(0, 1)

    def view(self, first: int, count: int) -> memoryview:
        return self._whole[first * self.page_bytes : (first + count) * self.page_bytes]


def calls(folder: Path, gib_s: float) -> tuple[ctypes.CDLL, dict[str, int]]:
    """The library of what takes the place of `pread`, and addresses."""
    source, path = folder / "calls.c", folder / "calls.so"
    source.write_text(CALLS)
    subprocess.run(["cc", "-O2", "-shared", "-fPIC", str(source), "-o", str(path)], check=True)
    library = ctypes.CDLL(str(path))
    ctypes.c_double.in_dll(library, "ns_a_byte").value = 1e9 / (gib_s * GIB)
    return library, {
        name: ctypes.cast(getattr(library, name), ctypes.c_void_p).value or 0
        for name in ("nothing", "asleep")
    }


def page_lists(pages: int) -> Iterator[tuple[PageRuns, PageRuns]]:
    """All pages, from slots at random."""
    for turn in range(TURNS):
        seed = random.Random(turn)
        slots, targets = (seed.sample(range(pages), pages) for _ in range(2))
        yield tuple((slot, 1) for slot in slots), tuple((page, 1) for page in targets)


def seconds(act: Callable[[], object], clock: Callable[[], float]) -> float:
    begun = clock()
    act()
    return clock() - begun


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("--threads", type=int, default=16)
    parser.add_argument("--gib-s", type=float, default=2.45, help="of one thread's copies")
    arguments = parser.parse_args()
    if native.library() is None:
        print("the compiled loop is needed: python scripts/compile_loop.py")
        return 1
    ctypes.CDLL(None).prctl(29, 1, 0, 0, 0)  # timers to the nanosecond, for threads made from here
    SleepingRing.gib_s = arguments.gib_s
    threads, memory = arguments.threads, HostBuffer(1, TOTAL_BYTES)
    best_s = TOTAL_BYTES / (threads * arguments.gib_s * GIB)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        _kept, addresses = calls(folder, arguments.gib_s)
        for block in (64 * KIB, 144 * KIB, MIB, 4 * MIB):
            host = Paged(memory, block)
            store = FileStore(folder, host.pages, block, host, workers=threads)
            _measure(store, host, addresses, best_s, threads)
            store.close()
    return 0


def _measure(
    store: FileStore, host: Paged, addresses: dict[str, int], best_s: float, threads: int
) -> None:
    through = store._moves
    assert isinstance(through, InPlace)
    uring = UringTransport(store.file, host.address, TOTAL_BYTES, "page cache", 512, threads)
    for direction in uring._directions:
        for queue in direction._all:
            queue.ring.__class__ = SleepingRing
    took: dict[str, list[float]] = {"python": [], "planned": [], "compiled": [], "ring": []}
    planned_calls = native._Direction.calls
    plan = store._plan
    for slots, pages in page_lists(host.pages):
        planned_calls["reading"] = addresses["nothing"]
        took["python"].append(seconds(lambda s=slots, p=pages: store.read(s, p), time.thread_time))
        planned_calls["reading"] = addresses["asleep"]
        transport = store._transport
        assert transport is not None
        parts = through.requests(store._extents(slots, pages), transport.last_bytes)
        rows = np.concatenate(list(parts))
        took["planned"].append(seconds(lambda r=rows, t=transport: t.read([r]), time.perf_counter))
        for way in ("compiled", "ring"):
            store._moves = InPlace(uring, host.page_bytes, 4 * MIB) if way == "ring" else through
            store._plan = None if way == "ring" else plan
            took[way].append(seconds(lambda s=slots, p=pages: store.read(s, p), time.perf_counter))
        store._moves = through
    planned_calls.clear()
    uring.close()
    median = {way: statistics.median(each) for way, each in took.items()}
    shares = ", ".join(
        f"{way} {best_s / median[way]:.3f}" for way in ("planned", "compiled", "ring")
    )
    print(
        f"{host.page_bytes // KIB:5}K: Python {median['python'] / host.pages * 1e6:.2f} us a read "
        f"(limit {TOTAL_BYTES / GIB / median['python']:.0f} GiB/s); of {threads} threads {shares}",
        flush=True,
    )


if __name__ == "__main__":
    sys.exit(main())
