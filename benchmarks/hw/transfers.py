"""Copies between L1 and L2 on a GPU: right first, then how fast, against ceilings of the same run.

    python benchmarks/hw/transfers.py --out transfers.json          everything, 71 s on an H200
    python benchmarks/hw/transfers.py --check 100000                random transfers, no timing
    compute-sanitizer --tool memcheck python benchmarks/hw/transfers.py --sanitize
    compute-sanitizer --tool racecheck python benchmarks/hw/transfers.py --sanitize

For the sanitizer set PYTORCH_NO_CUDA_MEMORY_CACHING=1: PyTorch's cache would hide what lies beyond
a tensor. Times are of the whole blocking call on the host's clock, medians, by a thread that works
for the link alone, as a run's does; the ceiling (one plain pinned copy of the same bytes) goes
through the same queue, between the same two marks, and is waited for by the driver's own call; a
copy in C is by a word that the device writes, 1.5 us sooner (`device` compares without waits).
Without a GPU only the check runs, by the interpreter and slowly. Geometry: Qwen3-8B, bf16.
Exit code 1: something was not right, or a target was missed (`--targets none` only reports).
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import numpy as np
import torch
import triton
from random_transfers import check
from transfers_bench import DIRECTIONS, Bench, timed_us
from transfers_beside import duplex, layerwise
from transfers_report import GIB, MIB, gib_s, report

from hw.transfers.driver import Direction, Driver
from hw.transfers.kernels import Mover
from hw.transfers.queues import Listed
from hw.transfers.zero_copy import ZeroCopy

ROUNDS = 5  # of scattered pages
SLOW_US = 1e5  # what takes so long, one round shows

# How fast? --------------------------------------------------------------------------------------


def scattered(bench: Bench, sizes: tuple[int, ...]) -> list[dict]:
    """Scattered pages by every back-end, against the plain copy of the same bytes."""
    return [
        scattered_row(bench, -(-size // bench.layout.page_bytes), direction)
        for size in sizes
        for direction in DIRECTIONS
    ]


def scattered_row(bench: Bench, count: int, direction: Direction) -> dict:
    """Microseconds, medians over ROUNDS of medians. In each round all take their turn, on other
    pages and in another order than before: so that a drift of the link is everybody's, and so is
    coming after one whose hundreds of pieces leave other caches behind.
    """
    moved = count * bench.layout.page_bytes
    repeats = 9 if moved < 64 * MIB else 3
    plain = bench.plain(direction, moved)
    names = (*bench.backends, "auto")
    times: dict[str, list[float]] = {name: [] for name in ("plain", *names)}
    device_us: dict[str, list[float]] = {"plain": [], "auto": []}
    for number in range(ROUNDS):
        lists = bench.lists(count)
        acts = {name: bench.copy(name, direction, lists) for name in names}
        acts["plain"] = plain
        for name in bench.generator.permutation(list(acts)):
            act = acts[name]
            if number and times[name][0] > SLOW_US:
                continue
            once_us = timed_us(act, 1)
            times[name].append(timed_us(act, repeats if once_us < SLOW_US else 2))
        device_us["plain"] += [plain() / 1e3 for _ in range(repeats)]
        device_us["auto"] += [acts["auto"]().device_ns / 1e3 for _ in range(repeats)]
    return {
        "page_tokens": bench.page_size_tokens, "bytes": moved, "pages": count,
        "direction": direction, "picked": bench.auto.picked,
        **{name: statistics.median(each) for name, each in times.items()},
        **{f"{name}_device": statistics.median(each) for name, each in device_us.items()},
        "plain_spread": (max(times["plain"]) - min(times["plain"])) / min(times["plain"]),
    }  # fmt: skip


def restore_of_350(bench: Bench) -> dict:
    """350 tokens from L2, against 1.25 plain copies + 60 us."""
    count = -(-350 // bench.page_size_tokens)
    lists = bench.lists(count)
    plain = bench.plain("h2d", count * bench.layout.page_bytes)
    plain()
    row: dict = {"page_tokens": bench.page_size_tokens, "plain": timed_us(plain, 31)}
    for name in (*bench.backends, "auto"):
        act = bench.copy(name, "h2d", lists)
        act()
        row[name] = timed_us(act, 31)
    row["picked"] = bench.auto.picked
    row["limit"] = 1.25 * row["plain"] + 60
    return row


def gather(bench: Bench, tokens: tuple[int, ...]) -> list[dict]:
    """The kernel between the pool and a packed buffer on the device, against a plain copy there."""
    rows = []
    mover = Mover(bench.device_pool)
    largest = max(tokens) // bench.page_size_tokens * bench.layout.page_bytes
    packed = torch.empty(largest, dtype=torch.uint8, device="cuda")
    pool = bench.device_pool
    # One bandwidth for all sizes: a small copy would partly stay in the cache.
    torch.cuda.synchronize()
    large_us = events_us(lambda: packed.copy_(pool.data[:largest]))
    for wanted in tokens:
        count = wanted // bench.page_size_tokens
        size = count * bench.layout.page_bytes
        pages = torch.from_numpy(bench.generator.permutation(pool.pages)[:count].astype(np.int32))
        listed = Listed.of(pages.cuda())
        row: dict = {
            "page_tokens": bench.page_size_tokens, "bytes": size,
            "plain": large_us * size / largest,
        }  # fmt: skip
        directions: tuple[tuple[str, Direction], ...] = (("gather", "d2h"), ("scatter", "h2d"))
        for name, direction in directions:
            row[name] = events_us(
                lambda listed=listed, direction=direction: mover.move(
                    direction,
                    bench.queue,
                    listed,
                    None,
                    packed_address=packed.data_ptr(),
                    packed_stride_bytes=bench.layout.page_bytes,
                )
            )
        rows.append(row)
    return rows


def events_us(act: Callable[[], object], repeats: int = 9) -> float:
    """The median time of `act()` on the device, by events."""
    act()
    times = []
    for _ in range(repeats):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        act()
        end.record()
        end.synchronize()
        times.append(begin.elapsed_time(end) * 1e3)
    return statistics.median(times)


def programs_sweep(bench: Bench) -> list[dict]:
    """zero_copy with more and fewer programs, warps, and bytes under way in each."""
    rows = []
    count = 512 * MIB // bench.layout.page_bytes
    lists = bench.lists(count)
    settings = [(programs, 16, 4) for programs in (4, 8, 16, 24, 32, 64, 132)]
    settings += [(32, 8, 4), (32, 32, 8), (16, 32, 8), (64, 8, 4), (132, 4, 4), (264, 8, 4)]
    for programs, tile_kib, warps in settings:
        backend = ZeroCopy(
            bench.device_pool, bench.host_pool, bench.queue.driver,
            programs=programs, tile_bytes=tile_kib << 10, warps=warps,
        )  # fmt: skip
        row: dict = {"programs": programs, "tile_kib": tile_kib, "warps": warps}
        for direction in DIRECTIONS:
            source, target = lists if direction == "d2h" else lists[::-1]
            backend.copy(direction, source, target)
            time_us = timed_us(
                lambda b=backend, d=direction, s=source, t=target: b.copy(d, s, t, alone=True), 3
            )
            row[direction] = gib_s(count * bench.layout.page_bytes, time_us)
        rows.append(row)
    return rows


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--out", help="a file for the numbers, JSON")
    parser.add_argument("--check", type=int, metavar="N", help="N random transfers, nothing else")
    parser.add_argument("--sanitize", action="store_true", help="a small check, nothing else")
    parser.add_argument("--targets", choices=("all", "none"), default="all")
    options = parser.parse_args()
    driver = Driver(torch.cuda.current_device()) if torch.cuda.is_available() else None
    if driver is None and options.check is None and not options.sanitize:
        print("this needs a CUDA GPU")
        return 2
    result: dict = {
        "machine": torch.cuda.get_device_name() if driver else "CPU", "torch": torch.__version__,
        "triton": triton.__version__, "batches": driver is not None and driver.copies_batches,
        "date": time.strftime("%Y-%m-%d"), "command": " ".join(sys.argv),
    }  # fmt: skip
    everything = ("bf16", "fp16", "fp8", "fp32")
    if options.sanitize:
        result["check"] = check(100, ("bf16", "fp8"), driver)
    elif options.check is not None:
        result["check"] = check(options.check, everything, driver)
    else:
        assert driver is not None
        start = time.monotonic()
        result["check"] = check(1500, ("bf16", "fp8"), driver)
        measure_speed(result, driver)
        print(f"took {time.monotonic() - start:.0f} s")
    missed = report(result) if "scattered" in result else []
    if options.out:
        Path(options.out).write_text(json.dumps(result, indent=1) + "\n", encoding="ascii")
    wrong = result["check"]["wrong"] > 0
    return 1 if wrong or (missed and options.targets == "all") else 0


def measure_speed(result: dict, driver: Driver) -> None:
    """Fill `result`."""
    for name in ("scattered", "restore_350", "gather"):
        result[name] = []
    for page_size in (64, 16, 1):
        bench = Bench(page_size, driver)
        print(
            f"page {page_size}: pinned at {bench.pin_s_per_gib:.2f} s/GiB, "
            f"back-ends timed in {bench.measure_s:.1f} s"
        )
        sizes = (8 * MIB, 32 * MIB, 128 * MIB, 512 * MIB)
        sizes += (GIB,) if page_size == 64 else ()
        with bench.queue.running():
            result["scattered"] += scattered(bench, sizes)
            result["restore_350"].append(restore_of_350(bench))
            result["gather"] += gather(bench, (384, 3584, 16128))
        if page_size == 64:
            result["pin_s_per_gib"] = bench.pin_s_per_gib
            result["zero_copy_sweep"] = programs_sweep(bench)
            result["layerwise"] = layerwise(bench, 3584)
            result["duplex"] = duplex(bench)
            result["auto_table"] = {"/".join(case): rows for case, rows in bench.auto.table.items()}
        bench.close()


if __name__ == "__main__":
    sys.exit(main())
