"""What `transfers.py` measured, as tables and against the targets. It refuses to measure.

python benchmarks/hw/transfers_report.py transfers.json        of an earlier run
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

GIB = 1 << 30
MIB = 1 << 20
# Loads by SGLang 0.4.6's kernel at its default setting, on an H200: of 3,500 tokens, and of 350,
# which stand for what is under 64 MiB. (Its stores reach 48.3: 1.3 times that is more than a Gen5
# x16 link does, so that stores have the plain copy as their only measure.)
SGLANG_LOADS_GIB_S, SGLANG_SMALL_GIB_S = 32.5, 29.6


def gib_s(size_bytes: int, time_us: float) -> float:
    return size_bytes / GIB / (time_us / 1e6)


def report(result: dict) -> list[str]:
    """Print the tables; returns the targets that were missed."""
    missed = []

    def target(what: str, holds: bool) -> None:
        print(f"  {'ok    ' if holds else 'MISSED'} {what}")
        if not holds:
            missed.append(what)

    print_scattered(result["scattered"])
    print("\n350 tokens from L2, us")
    for row in result["restore_350"]:
        print("  " + "  ".join(f"{k} {v:.0f}" if k != "picked" else v for k, v in row.items()))
    print("\nkernel between pool and packed buffer, share of a plain device copy")
    for row in result["gather"]:
        print(
            f"  page {row['page_tokens']:>2} {row['bytes'] / MIB:>7.0f} MiB  "
            f"plain {2 * row['bytes'] / row['plain'] / 1e3:.0f} GB/s read + write  "
            f"gather {row['plain'] / row['gather']:.3f}  "
            f"scatter {row['plain'] / row['scatter']:.3f}"
        )
    print("\nzero_copy, 512 MiB, GiB/s")
    for row in result["zero_copy_sweep"]:
        print(
            f"  programs {row['programs']:>3}  tile {row['tile_kib']:>2} KiB  warps {row['warps']}"
            f"  h2d {row['h2d']:.1f}  d2h {row['d2h']:.1f}"
        )
    print("\nlayer by layer, us")
    for row in result["layerwise"]:
        print(
            f"  {row['backend']:<13} load {row['load']:>7.0f}  compute {row['compute']:>7.0f}  "
            f"both {row['both']:>7.0f}  hidden {row['hidden']:.0%}"
        )
    print("\nboth directions at once, GiB/s each way")
    print("  " + "  ".join(f"{r['backend']} {r['each_way_gib_s']:.1f}" for r in result["duplex"]))
    print("\ntargets")
    for row in result["scattered"]:
        what = f"auto, page {row['page_tokens']}, {row['bytes'] / MIB:.0f} MiB {row['direction']}"
        speed = gib_s(row["bytes"], row["auto"])
        share = row["plain"] / row["auto"]
        target(f"{what}: {share:.3f} >= 0.95", share >= 0.95)
        if row["direction"] == "h2d":
            least = 1.3 * (SGLANG_LOADS_GIB_S if row["bytes"] >= 64 * MIB else SGLANG_SMALL_GIB_S)
            target(f"{what}: {speed:.1f} GiB/s >= {least:.1f}", speed >= least)
    for row in result["restore_350"]:
        target(
            f"350 tokens, page {row['page_tokens']}: {row['auto']:.0f} <= {row['limit']:.0f} us",
            row["auto"] <= row["limit"],
        )
    for row in result["gather"]:
        for name in ("gather", "scatter"):
            limit = row["plain"] / 0.85 + (0 if row["bytes"] >= 2 * GIB else 40)
            target(
                f"{name}, page {row['page_tokens']}, {row['bytes'] / MIB:.0f} MiB: "
                f"{row[name]:.0f} <= {limit:.0f} us",
                row[name] <= limit,
            )
    for row in result["layerwise"]:
        what = f"layer-wise {row['backend']}, compute {row['compute']:.0f} us"
        target(f"{what}: {row['hidden']:.0%} hidden >= 80 %", row["hidden"] >= 0.8)
    return missed


def print_scattered(rows: list[dict]) -> None:
    names = ("staged", "zero_copy", "direct", "direct_batch", "auto")
    print("\nscattered pages, share of one plain pinned copy of the same bytes")
    print(
        "page  MiB    dir  plain GiB/s  spread  "
        + "".join(f"{each:>13}" for each in names)
        + "  device  picked"
    )
    for row in rows:
        print(
            f"{row['page_tokens']:>4} {row['bytes'] / MIB:>6.1f}  {row['direction']}"
            f" {gib_s(row['bytes'], row['plain']):>12.1f} {row['plain_spread']:>7.1%}  "
            + "".join(f"{row['plain'] / row[n]:>13.3f}" if n in row else " " * 13 for n in names)
            + f"  {row['plain_device'] / row['auto_device']:>6.3f}  {row['picked']}"
        )


if __name__ == "__main__":
    sys.exit(1 if report(json.loads(Path(sys.argv[1]).read_text(encoding="ascii"))) else 0)
