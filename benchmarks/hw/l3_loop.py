"""The ceiling of `l3_file.py`: blocks between a file and memory by as little as can be.

A loop of `pread` or `pwrite` in C, in as many threads as are asked for, compiled when it is made;
where there is no compiler, the same in Python threads. It refuses to plan: who asks says which
block goes where.
"""

from __future__ import annotations

import ctypes
import os
import shutil
import subprocess
import threading
import time
from pathlib import Path
from typing import Any, NamedTuple

from hw.storage.host import HostMemory

C_LOOP = r"""
#define _GNU_SOURCE
#include <pthread.h>
#include <stdatomic.h>
#include <stdint.h>
#include <time.h>
#include <unistd.h>
struct job {
    int fd, writes;
    long n, size;
    int64_t *offsets, *addresses;
    atomic_long next, failed;
};
static void *work(void *argument) {
    struct job *job = argument;
    long i;
    while ((i = atomic_fetch_add(&job->next, 1)) < job->n) {
        long done = 0;
        while (done < job->size) {
            char *at = (char *)job->addresses[i] + done;
            long n = job->writes ? pwrite(job->fd, at, job->size - done, job->offsets[i] + done)
                                 : pread(job->fd, at, job->size - done, job->offsets[i] + done);
            if (n <= 0) { atomic_store(&job->failed, 1); return 0; }
            done += n;
        }
    }
    return 0;
}
int64_t run(int fd, int writes, int threads, long n, long size, int64_t *offsets,
            int64_t *addresses) {
    struct job job = {fd, writes, n, size, offsets, addresses, 0, 0};
    struct timespec a, b;
    pthread_t ids[256];
    clock_gettime(CLOCK_MONOTONIC, &a);
    for (int i = 1; i < threads; i++) pthread_create(&ids[i], 0, work, &job);
    work(&job);
    for (int i = 1; i < threads; i++) pthread_join(ids[i], 0);
    clock_gettime(CLOCK_MONOTONIC, &b);
    if (job.failed) return -1;
    return (b.tv_sec - a.tv_sec) * 1000000000LL + b.tv_nsec - a.tv_nsec;
}
"""


class Moves(NamedTuple):
    """Blocks between a file and memory, as the C takes them."""

    size: int
    memory: HostMemory
    offsets: ctypes.Array[ctypes.c_int64]
    addresses: ctypes.Array[ctypes.c_int64]


class Loop:
    """The ceiling: a tight loop in threads."""

    def __init__(self, folder: Path) -> None:
        compiler = shutil.which("cc") or shutil.which("gcc")
        self.name = "C loop" if compiler else "Python loop"
        self._run: Any = None
        if compiler:
            source, library = folder / "loop.c", folder / "loop.so"
            source.write_text(C_LOOP)
            subprocess.run(
                [compiler, "-O2", "-shared", "-fPIC", "-pthread", source, "-o", library],
                check=True,
            )
            self._run = ctypes.CDLL(str(library)).run
            self._run.restype = ctypes.c_int64
            self._run.argtypes = [
                *[ctypes.c_int] * 3, *[ctypes.c_long] * 2, *[ctypes.c_void_p] * 2,
            ]  # fmt: skip

    def moves(self, size: int, offsets: list[int], memory: HostMemory, places: list[int]) -> Moves:
        """Blocks of `size` bytes between `offsets` in the file and `places` in memory, ready to be
        moved.
        """
        return Moves(
            size, memory, (ctypes.c_int64 * len(offsets))(*offsets),
            (ctypes.c_int64 * len(places))(*(memory.address + place for place in places)),
        )  # fmt: skip

    def seconds(self, fd: int, threads: int, moves: Moves, writes: int) -> float:
        """How long all blocks take."""
        size, memory, offsets, addresses = moves
        if self._run is not None:
            ns = self._run(fd, writes, threads, len(offsets), size, offsets, addresses)
            if ns < 0:
                raise RuntimeError("the loop's pread or pwrite failed")
            return ns / 1e9
        call = os.pwritev if writes else os.preadv
        whole = memory.view(0, memory.pages)
        places = [address - memory.address for address in addresses]
        blocks = iter([(whole[p : p + size], o) for o, p in zip(offsets, places, strict=True)])

        def work() -> None:
            for view, offset in blocks:
                assert call(fd, [view], offset) == size

        helpers = [threading.Thread(target=work) for _ in range(threads - 1)]
        begun = time.perf_counter()
        for helper in helpers:
            helper.start()
        work()
        for helper in helpers:
            helper.join()
        return time.perf_counter() - begun
