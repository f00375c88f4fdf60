"""How fast the L3 file is, each figure beside a ceiling measured in the same minute.

    python benchmarks/hw/l3_file.py [--folder DIR] [--out l3_file.json] [--fio fio] [--budget 100]
                                    [--sizes 288,1152,4608]

Correctness first: every back-end writes and reads random page lists, bit for bit. Then reads and
writes by back-end, block and threads: page cache warm, cold, and past it (`l3_bench`). Beside each
stands a loop of `pread` in C with the same threads, blocks, offsets and target addresses (compiled
here with `cc`; where there is none, the same loop in Python threads), and, where `fio` is found and
something is claimed, fio with the same block, depth and flags (`l3_fio`).

`--sizes`: instead of all that, cached reads in operations of these sizes in MiB, beside fio and a
loop that go on without an end (`l3_sizes`).

Memory is pinned by torch where there is a GPU, otherwise plain. What is left when the budget is
used up is skipped, and said; what something is claimed of comes first.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import random
import sys
import tempfile
import time
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import l3_sizes
from l3_bench import GIB, KIB, KV_PAGE, MIB, Bench, Row

from hicache.errors import InputError
from hw.storage import native
from hw.storage.file_store import FileStore
from hw.storage.host import HostBuffer


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
    """All rows."""
    cached = bench.cached_bytes
    for some in (claimed(cached), others(cached)):
        _warm(bench)
        for row in some:
            bench.measure(row)


def _fill(bench: Bench) -> None:
    """A file."""
    filler = bench.open("direct" if direct_works(bench.path.parent) else "pread", 8 * MIB, 8)
    begun = time.perf_counter()
    step = bench.memory.paged(8 * MIB).pages
    for first in range(0, filler.pages, step):
        count = min(step, filler.pages - first)
        filler.write(((0, count),), ((first, count),))
    bench.notes["first_write_gib_s"] = bench.file_bytes / GIB / (time.perf_counter() - begun)
    filler.close()


def _warm(bench: Bench) -> None:
    """The whole file into the page cache."""
    if bench.late("warming the page cache"):
        return
    target = bench.memory.view(0, 72 * MIB)
    with bench.path.open("rb", buffering=0) as file:
        while file.readinto(target):
            pass


def claimed(cached: int) -> Iterator[Row]:
    """What something is claimed of. The last ones drop the cache. `cached`: bytes of one operation
    through the cache.
    """
    disk = 288 * MIB
    for block in (4 * MIB, 64 * KIB, KV_PAGE, MIB):
        yield Row("warm", "auto", block, 16, cached, fio=True, hot=block == 4 * MIB)
    for workers in (1, 4):
        for block in (64 * KIB, KV_PAGE, MIB):
            yield Row("warm", "auto", block, workers, disk)
    yield Row("warm", "auto", 8 * MIB, 16, cached)
    for block in (4 * MIB, MIB, KV_PAGE):
        yield Row("direct", "direct", block, 16, disk, fio=True)
        yield Row("direct", "io_uring", block, 16, disk, fio=True)
    for block in (4 * MIB, KV_PAGE):
        yield Row("cold", "pread", block, 16, disk, fio=True)


def others(cached: int) -> Iterator[Row]:
    """The rest, to see why. What is to be read warm comes before anything drops the cache."""
    disk = 288 * MIB
    for block in (64 * KIB, KV_PAGE, MIB, 4 * MIB):
        yield Row("warm", "io_uring_cached", block, 16, cached)
    for depth in (16, 64):
        yield Row("warm", "io_uring_cached", 64 * KIB, 16, cached, depth=depth)
    for workers in (1, 4):
        yield Row("warm", "pread", 4 * MIB, workers, disk)
    for workers in (4, 8):
        yield Row("warm", "io_uring_cached", KV_PAGE, workers, disk)
    for total in (4, 48, 512):
        yield Row("warm", "pread", MIB, 16, total * MIB, consecutive=True)
    for most in (MIB, 16 * MIB):
        yield Row("warm", "pread", MIB, 16, 512 * MIB, consecutive=True, request_bytes=most)
    for block in (4 * MIB, KV_PAGE):
        yield Row("warm", "auto", block, 16, disk, "write")
        yield Row("warm", "io_uring_cached", block, 16, disk, "write")
    yield Row("cold", "io_uring_cached", KV_PAGE, 16, disk)
    yield Row("cold", "pread", 4 * MIB, 16, disk, readahead=True)
    for block in (4 * MIB, KV_PAGE):
        yield Row("direct", "direct", block, 16, disk, "write")
        yield Row("direct", "io_uring", block, 16, disk, "write")
    for depth in (4, 16):
        yield Row("direct", "io_uring", MIB, 16, disk, depth=depth)
    for block in (64 * KIB, 8 * MIB):
        yield Row("direct", "direct", block, 16, disk)
        yield Row("direct", "io_uring", block, 16, disk)
        yield Row("cold", "pread", block, 16, disk)
    for workers in (1, 4):
        yield Row("direct", "direct", 4 * MIB, workers, disk)


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
    reads = [row for row in bench.rows if row["verb"] == "read" and not row["consecutive"]]
    # What "auto" would not pick through the cache is there to see why.
    reads = [row for row in reads if row["kind"] != "warm" or row["backend"] == "auto"]
    made: dict[str, Any] = {}
    for row in reads:
        if row["kind"] == "warm" and (row["block"], row["width"]) == (4 * MIB, 16):
            made["warm 4 MiB reads, 16 workers >= 20 GiB/s"] = [row["gib_s"], row["gib_s"] >= 20]
    for beside in ("loop", "fio"):
        key = f"of_{beside}"
        worst = min((row for row in reads if key in row), key=lambda row: row[key], default=None)
        if worst is not None:
            label = f"reads >= 0.95 of {beside}; the worst: {worst['name']}"
            made[label] = [worst[key], worst[key] >= 0.95]
    return made


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("--folder", type=Path, default=Path(tempfile.gettempdir()))
    parser.add_argument("--out", type=Path, help="JSON with all rows")
    parser.add_argument("--fio", default="fio", help="the fio to compare with")
    parser.add_argument("--budget", type=float, default=100, help="seconds")
    parser.add_argument(
        "--cached", type=int, default=1152, help="MiB of one operation through the page cache"
    )
    parser.add_argument("--units", type=int, default=56, help="size of the file, in 72 MiB")
    parser.add_argument("--smoke", action="store_true", help="a few MB, judges nothing")
    parser.add_argument("--sizes", default="", help="MiB of operations, with commas: only these")
    arguments = parser.parse_args()
    sizes = [int(size) for size in arguments.sizes.split(",") if size]
    arguments.cached = max([arguments.cached, *sizes])
    with tempfile.TemporaryDirectory(dir=arguments.folder, prefix="l3-bench-") as name:
        folder = Path(name)
        for line in (stores := [] if sizes else correct(folder)):
            print("bit-exact:" if "left out" not in line else "", line.replace(name, "DIR"))
        bench = Bench(arguments, folder)
        print(
            f"{platform.machine()}, {os.cpu_count()} CPUs, Linux {platform.release()}, Python "
            f"{platform.python_version()}; memory {bench.memory_kind}; file "
            f"{bench.file_bytes / GIB:.1f} GiB; ceiling: {bench.loop.name}"
            f"{f', {bench.fio.version}' if bench.fio else ' (no fio here)'}; "
            f"our loop {'compiled' if native.library() else 'not compiled'}"
        )
        _fill(bench)
        if sizes:
            _warm(bench)
            bench.rows += l3_sizes.measure(bench, [size * MIB for size in sizes])
        else:
            measure(bench)
            checksums(bench)
    for what, value in bench.notes.items():
        print(f"{what}: {value:.2f}")
    for line in bench.skipped:
        print("skipped:", line)
    judged = {} if bench.smoke or sizes else verdicts(bench)
    for what, (value, holds) in judged.items():
        print(f"{'HOLDS' if holds else 'MISSED'}  {what}: {value:.2f}")
    print(f"{time.monotonic() - bench.begun:.0f} s")
    if arguments.out:
        result = {
            "cpus": os.cpu_count(), "kernel": platform.release(), "memory": bench.memory_kind,
            "python": platform.python_version(), "ceiling": bench.loop.name,
            "fio": bench.fio and bench.fio.version,
            "stores": [s.replace(name, "DIR") for s in stores],
            "rows": bench.rows, "notes": bench.notes, "skipped": bench.skipped,
            "verdicts": judged,
        }  # fmt: skip
        arguments.out.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
