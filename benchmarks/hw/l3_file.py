"""How fast the L3 file is, each figure beside a ceiling measured in the same minute.

    python benchmarks/hw/l3_file.py [--folder DIR] [--out l3_file.json] [--fio fio] [--budget 100]

Correctness first: every back-end writes and reads random page lists, bit for bit. Then reads and
writes by back-end, block and threads: page cache warm, cold, and past it. The ceiling is a loop of
`pread` in C with the same threads, blocks, offsets and target addresses (compiled here with `cc`;
where there is none, the same loop in Python threads), and, where `fio` is found, fio with the same
block, depth and flags, before and after. Ours and the loop take turns, three times; medians are
compared.

fio must do the same work. A cached read is a copy, and fio's `psync` copies into one small buffer a
thread over and over, which stays in the core's cache ("hot": told, not compared). With io_uring and
as many buffers as we read into it writes to memory, as a restore does. A cold one reads no block
twice, each job in a part of the file of its own.

Memory is pinned by torch where there is a GPU, otherwise plain. What is left when the budget is
used up is skipped, and said.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import os
import platform
import random
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
import zlib
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from l3_loop import Loop

from hicache.errors import InputError
from hw.storage.file_store import Backend, FileStore
from hw.storage.host import HostBuffer, HostMemory

KIB, MIB, GIB = 1 << 10, 1 << 20, 1 << 30
KV_PAGE = 144 * KIB  # one token of Qwen3-8B in bf16
UNIT = 72 * MIB  # all block sizes below divide it


class Pinned:
    """Page-locked memory of torch, as `HostMemory`, with pages of any size."""

    def __init__(self, base: HostMemory | Any, address: int, view: memoryview) -> None:
        self._base, self.address, self._view = base, address, view
        self.page_bytes, self.pages = 1, len(view)

    def paged(self, page_bytes: int) -> Pinned:
        made = Pinned(self._base, self.address, self._view)
        made.page_bytes, made.pages = page_bytes, len(self._view) // page_bytes
        return made

    def view(self, first: int, count: int) -> memoryview:
        return self._view[first * self.page_bytes : (first + count) * self.page_bytes]


def memory(size: int) -> tuple[Pinned, str]:
    """`size` bytes and what they are; every byte touched."""
    try:
        import torch

        pinned = torch.cuda.is_available()
    except ImportError:
        pinned = False
    if pinned:
        tensor = torch.empty(size, dtype=torch.uint8, pin_memory=True)
        made = Pinned(tensor, tensor.data_ptr(), memoryview(tensor.numpy()))
        kind = f"pinned, {torch.cuda.get_device_name()}"
    else:
        buffer = HostBuffer(1, size)
        made, kind = Pinned(buffer, buffer.address, buffer.view(0, 1)), "not pinned"
    ctypes.memset(made.address, 1, size)
    return made, kind


class Bench:
    """One file, one memory, one table."""

    def __init__(self, arguments: argparse.Namespace, folder: Path) -> None:
        self.begun = time.monotonic()
        self.budget_s = arguments.budget
        self.smoke = arguments.smoke
        self.path = folder / "l3"
        self.file_bytes = (1 if self.smoke else arguments.units) * UNIT
        self.memory, self.memory_kind = memory(
            (72 if self.smoke else min(1440, 72 * arguments.units)) * MIB
        )
        self.loop = Loop(folder)
        self.fio = shutil.which(arguments.fio)
        self._known: dict[tuple[str, int, int], list[float]] = {}  # what fio said of warm reads
        self.rows: list[dict[str, Any]] = []
        self.skipped: list[str] = []
        self.notes: dict[str, Any] = {}

    def open(self, backend: Backend, block: int, workers: int, **options: Any) -> FileStore:
        return FileStore(
            self.path, self.file_bytes // block, block, self.memory.paged(block),
            backend=backend, workers=workers, **options,
        )  # fmt: skip

    def late(self, what: str) -> bool:
        """Whether the budget is used up; then `what` is skipped."""
        if time.monotonic() - self.begun < self.budget_s:
            return False
        self.skipped.append(what)
        return True

    def drop_cache(self, fd: int) -> None:
        os.fsync(fd)
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)

    def row(
        self, kind: str, backend: Backend, block: int, workers: int, total: int, *,
        writes: int = 0, consecutive: int = 0, depth: int | None = None, fio: int = 0,
        readahead: int = 0, **options: Any,
    ) -> None:  # fmt: skip
        """Time one setting against the loop; `kind`: warm, cold, direct."""
        verb = "write" if writes else "read"
        width = (depth or 64) if backend == "io_uring" else workers
        what = f"{verb} {kind} {backend} {size_name(block)} x{width}"
        if self.late(what):
            return
        if self.smoke:
            total = min(total, 16 * MIB)
        try:
            store = self.open(backend, block, workers, depth=depth, **options)
        except InputError as error:
            self.skipped.append(f"{what}: {error}")
            return
        count = max(1, min(total // block, store.pages, self.memory.paged(block).pages))
        before = 0.0
        if fio and self.fio and not self.late(f"fio {what}"):
            before = self._fio(kind, backend, block, width, verb, count)
        direct = os.O_DIRECT if kind == "direct" else 0
        fd = os.open(self.path, os.O_RDWR | direct)
        advice = os.POSIX_FADV_NORMAL if readahead else os.POSIX_FADV_RANDOM  # as fio does
        for each in (fd, store.file.fd):
            os.posix_fadvise(each, 0, 0, advice)
        ours, theirs = [], []
        pages = self.memory.paged(block).pages
        for turn in range(1 if self.smoke else 3):
            seed = random.Random(turn * 1000 + count)
            slots = list(range(count)) if consecutive else seed.sample(range(store.pages), count)
            places = list(range(count)) if consecutive else seed.sample(range(pages), count)
            slot_runs = ((0, count),) if consecutive else tuple((s, 1) for s in slots)
            page_runs = ((0, count),) if consecutive else tuple((p, 1) for p in places)
            offsets = [slot * block for slot in slots]
            for who in ("ours", "loop") if turn % 2 == 0 else ("loop", "ours"):
                if kind == "cold":
                    self.drop_cache(fd)
                if who == "ours":
                    begun = time.perf_counter()
                    if writes:
                        store.write(page_runs, slot_runs)
                    else:
                        store.read(slot_runs, page_runs)
                    ours.append(time.perf_counter() - begun)
                else:
                    theirs.append(
                        self.loop.seconds(
                            fd, width, block, offsets, self.memory,
                            [place * block for place in places], writes,
                        )
                    )  # fmt: skip
            if writes and kind != "direct":
                os.fsync(fd)
        store.close()
        os.close(fd)
        gib = count * block / GIB
        made = {
            "op": verb, "kind": kind, "backend": backend, "picked": store.backend,
            "block": block, "width": width,
            "bytes": count * block, "consecutive": consecutive, **options,
            "readahead": readahead, "depth": depth,
            "gib_s": gib / statistics.median(ours), "loop_gib_s": gib / statistics.median(theirs),
            "spread": (max(ours) - min(ours)) / statistics.median(ours),
        }  # fmt: skip
        made["of_loop"] = made["gib_s"] / made["loop_gib_s"]
        if before:
            after = self._fio(kind, backend, block, width, verb, count)
            made["fio_gib_s"] = (before + after) / 2
            made["of_fio"] = made["gib_s"] / made["fio_gib_s"]
            if kind == "warm":
                made["fio_hot_gib_s"] = self._fio("hot", "pread", block, width, verb, count)
        self.rows.append(made)
        extra = f" {'in a row' if consecutive else ''} {options or ''}"
        extra += " readahead" if readahead else ""
        extra += f" depth {depth}" if depth else ""
        beside = f"  fio {made['fio_gib_s']:6.2f} {made['of_fio']:5.2f}" if "of_fio" in made else ""
        if "fio_hot_gib_s" in made:
            beside += f" (hot {made['fio_hot_gib_s']:.1f})"
        print(
            f"{verb:5} {kind:6} {backend:15} {size_name(block):>8} x{width:<3} "
            f"{made['gib_s']:6.2f} GiB/s  loop {made['loop_gib_s']:6.2f} {made['of_loop']:5.2f}"
            f"{beside}{extra}",
            flush=True,
        )

    def _fio(self, kind: str, backend: str, block: int, width: int, verb: str, count: int) -> float:
        """GiB/s of fio with the same block, depth and flags, for `count` blocks."""
        key = kind, block, width
        if kind in ("warm", "hot") and len(self._known.get(key, ())) == (1 if kind == "hot" else 2):
            return statistics.mean(self._known[key])
        ring = backend == "io_uring" or kind == "warm"
        jobs = 1 if backend == "io_uring" else width
        depth = width if backend == "io_uring" else 1
        command = [
            str(self.fio), "--name=l3", f"--filename={self.path}", f"--rw=rand{verb}",
            f"--bs={block}", f"--direct={int(kind == 'direct')}", f"--numjobs={jobs}", "--thread",
            f"--ioengine={'io_uring' if ring else 'psync'}", "--group_reporting",
            "--randrepeat=0", "--output-format=json", "--overwrite=1",
        ]  # fmt: skip
        if kind == "cold":
            part = self.file_bytes // jobs // block * block
            each = -(-count // jobs) * block
            command += [f"--size={part}", f"--offset_increment={part}", f"--io_size={each}"]
            fd = os.open(self.path, os.O_RDWR)
            self.drop_cache(fd)
            os.close(fd)
        else:
            command += ["--invalidate=0", "--norandommap", f"--size={self.file_bytes}"]
            command += ["--time_based", "--runtime=1"]
        if kind == "warm":
            depth = max(1, min(1024, count // jobs))
            command += [f"--iodepth_batch_submit={depth}", "--ramp_time=300ms"]
            command += [f"--iodepth_batch_complete_min={depth}", f"--iodepth_batch={depth}"]
        command += [f"--iodepth={depth}"]
        if ring:
            command += ["--registerfiles"] if kind == "warm" else ["--registerfiles", "--fixedbufs"]
        done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60)
        said = json.loads(done.stdout[done.stdout.index("{") :])
        gib_s = said["jobs"][0][verb]["bw_bytes"] / GIB
        self._known.setdefault(key, []).append(gib_s)
        return gib_s


def size_name(size: int) -> str:
    return f"{size // MIB}M" if size % MIB == 0 else f"{size // KIB}K"


def correct(folder: Path) -> list[str]:
    """Random page lists over all back-ends, bit for bit; the descriptions of the stores."""
    said: list[str] = []
    for backend in ("auto", "pread", "direct", "io_uring", "io_uring_cached"):
        for block in (KV_PAGE, 3000, 5 * MIB + 4096):
            host = HostBuffer(32, block)
            try:
                store = FileStore(folder, 16, block, host, backend=backend, checksum="crc32")
            except InputError as error:
                said.append(f"{backend} left out: {error}")
                break
            seed = random.Random(block)
            contents = [seed.randbytes(block) for _ in range(16)]
            for page, content in enumerate(contents):
                host.view(page, 1)[:] = content
            for _ in range(3):
                slots, pages = seed.sample(range(16), 16), seed.sample(range(16), 16)
                store.write(tuple((p, 1) for p in pages), tuple((s, 1) for s in slots))
                targets = seed.sample(range(16, 32), 16)
                store.read(tuple((s, 1) for s in slots), tuple((t, 1) for t in targets))
                for page, target in zip(pages, targets, strict=True):
                    assert host.view(target, 1) == contents[page], (backend, block)
            said.append(store.describe())
            store.close()
    return said


def measure(bench: Bench) -> None:
    """All rows, the ones that something is claimed of first."""
    disk, cached = 288 * MIB, 1152 * MIB
    filler = bench.open("direct" if direct_works(bench.path.parent) else "pread", 8 * MIB, 8)
    begun = time.perf_counter()
    step = bench.memory.paged(8 * MIB).pages
    for first in range(0, filler.pages, step):
        count = min(step, filler.pages - first)
        filler.write(((0, count),), ((first, count),))
    bench.notes["first_write_gib_s"] = bench.file_bytes / GIB / (time.perf_counter() - begun)
    filler.close()

    fd = os.open(bench.path, os.O_RDONLY)
    while os.preadv(
        fd, [bench.memory.view(0, 72 * MIB)], os.lseek(fd, 72 * MIB, os.SEEK_CUR) - 72 * MIB
    ):
        pass  # warm the cache
    os.close(fd)
    bench.row("warm", "auto", 4 * MIB, 16, cached, fio=1)
    for block in (64 * KIB, KV_PAGE, MIB, 8 * MIB):
        bench.row("warm", "auto", block, 16, cached, fio=1)
    for block in (64 * KIB, KV_PAGE):
        bench.row("warm", "pread", block, 16, cached)
    for block in (MIB, 4 * MIB):
        bench.row("warm", "io_uring_cached", block, 16, cached)
    for depth in (16, 64):
        bench.row("warm", "io_uring_cached", 64 * KIB, 16, cached, depth=depth)
    for workers in (1, 4):
        bench.row("warm", "pread", 4 * MIB, workers, disk)
    for workers in (4, 8):
        bench.row("warm", "auto", KV_PAGE, workers, disk)
    for total in (4, 48, 512):
        bench.row("warm", "pread", MIB, 16, total * MIB, consecutive=1)
    for most in (MIB, 16 * MIB):
        bench.row("warm", "pread", MIB, 16, 512 * MIB, consecutive=1, request_bytes=most)
    bench.row("warm", "pread", 4 * MIB, 16, disk, writes=1)
    for block in (4 * MIB, MIB, KV_PAGE):
        bench.row("direct", "direct", block, 16, disk, fio=1)
        bench.row("direct", "io_uring", block, 16, disk, fio=1)
    bench.row("cold", "pread", 4 * MIB, 16, disk, fio=1)
    bench.row("cold", "io_uring_cached", KV_PAGE, 16, disk, fio=1)
    bench.row("cold", "pread", 4 * MIB, 16, disk, readahead=1)
    for block in (4 * MIB, KV_PAGE):
        bench.row("direct", "direct", block, 16, disk, writes=1)
        bench.row("direct", "io_uring", block, 16, disk, writes=1)
    for depth in (4, 16):
        bench.row("direct", "io_uring", MIB, 16, disk, depth=depth)
    for block in (64 * KIB, 8 * MIB):
        bench.row("direct", "direct", block, 16, disk)
        bench.row("direct", "io_uring", block, 16, disk)
        bench.row("cold", "pread", block, 16, disk)
    bench.row("direct", "direct", 4 * MIB, 1, disk)
    bench.row("direct", "direct", 4 * MIB, 4, disk)
    bench.row("cold", "pread", KV_PAGE, 16, disk)


def checksums(bench: Bench) -> None:
    """What a CRC-32 costs."""
    part = bench.memory.view(0, 64 * MIB)
    begun = time.perf_counter()
    zlib.crc32(part)
    bench.notes["crc32_gib_s_one_thread"] = len(part) / GIB / (time.perf_counter() - begun)
    store = bench.open("pread", 4 * MIB, 16, checksum="crc32")
    runs = ((0, min(256, bench.memory.paged(4 * MIB).pages, store.pages)),)
    store.write(runs, runs)
    store.read(runs, runs)
    begun = time.perf_counter()
    store.read(runs, runs)
    gib = runs[0][1] * 4 * MIB / GIB
    bench.notes["warm_4M_x16_with_crc32_gib_s"] = gib / (time.perf_counter() - begun)
    store.close()


def direct_works(folder: Path) -> bool:
    try:
        FileStore(folder, 1, 4096, HostBuffer(1, 4096), backend="direct", workers=1).close()
    except InputError:
        return False
    return True


def verdicts(bench: Bench) -> dict[str, Any]:
    """What was asked for, and what came out."""
    reads = [row for row in bench.rows if row["op"] == "read" and not row["consecutive"]]
    # Without fio: what "auto" would not pick through the cache is there to see why.
    reads = [row for row in reads if row["kind"] != "warm" or row["backend"] == "auto"]
    warm = next(r for r in reads if r["kind"] == "warm" and r["block"] == 4 * MIB)
    beside = "of_fio" if any("of_fio" in row for row in reads) else "of_loop"
    worst = min((row for row in reads if beside in row), key=lambda row: row[beside])
    label = f"{worst['kind']} {worst['backend']} {size_name(worst['block'])} x{worst['width']}"
    return {
        "warm 4 MiB reads, 16 workers >= 20 GiB/s": [warm["gib_s"], warm["gib_s"] >= 20],
        f"reads >= 0.95 of {beside[3:]}; the worst: {label}": [
            worst[beside], worst[beside] >= 0.95,
        ],
    }  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--folder", type=Path, default=Path(tempfile.gettempdir()))
    parser.add_argument("--out", type=Path, help="JSON with all rows")
    parser.add_argument("--fio", default="fio", help="the fio to compare with")
    parser.add_argument("--budget", type=float, default=100, help="seconds")
    parser.add_argument("--units", type=int, default=56, help="size of the file, in 72 MiB")
    parser.add_argument("--smoke", action="store_true", help="a few MB, judges nothing")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=arguments.folder, prefix="l3-bench-") as name:
        folder = Path(name)
        for line in (stores := correct(folder)):
            print("bit-exact:" if "left out" not in line else "", line.replace(name, "DIR"))
        bench = Bench(arguments, folder)
        print(
            f"{platform.machine()}, {os.cpu_count()} CPUs, Linux {platform.release()}, Python "
            f"{platform.python_version()}; memory {bench.memory_kind}; file "
            f"{bench.file_bytes / GIB:.1f} GiB; ceiling: {bench.loop.name}"
            f"{', fio' if bench.fio else ' (no fio here)'}"
        )
        measure(bench)
        checksums(bench)
    for what, value in bench.notes.items():
        print(f"{what}: {value:.2f}")
    for line in bench.skipped:
        print("skipped:", line)
    judged = {} if bench.smoke else verdicts(bench)
    for what, (value, holds) in judged.items():
        print(f"{'HOLDS' if holds else 'MISSED'}  {what}: {value:.2f}")
    print(f"{time.monotonic() - bench.begun:.0f} s")
    if arguments.out:
        result = {
            "cpus": os.cpu_count(), "kernel": platform.release(), "memory": bench.memory_kind,
            "python": platform.python_version(), "ceiling": bench.loop.name,
            "fio": bench.fio is not None, "stores": [s.replace(name, "DIR") for s in stores],
            "rows": bench.rows, "notes": bench.notes, "skipped": bench.skipped,
            "verdicts": judged,
        }  # fmt: skip
        arguments.out.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
