"""Makes profiles from their sources: the mini-HiCache article, and measurements of an H200's parts.

    python -m scenario.profile_sources MEASUREMENTS.json PUBLISHED.json FOLDER

Every number of a profile is either copied from a source here, converted to bytes and ns, or
computed here from such numbers; what is neither is an estimate and says so.
`scenario/profiles/README.md` tells the reasoning in one piece.
"""

from __future__ import annotations

import json
import os
import sys
from typing import Any

from scenario.geometry import load_geometry
from scenario.profile import (
    SCHEMA,
    Curve,
    DiskProfile,
    EngineTimes,
    GpuProfile,
    HostProfile,
    Memory,
    PcieProfile,
    Profile,
    Provenance,
    Quantity,
    SampledModel,
    Surface,
    dump_profile,
)

GIB = 1 << 30
MS = 1_000_000
US = 1_000
ARTICLE = "the mini-HiCache article (two machines measured with the same code)"
# Bytes of KV cache of one token of Qwen3-8B and Qwen3-4B, in bf16: both have 36 layers, 8 KV heads
# of 128.
KV_BYTES = 147_456


def h200(measured: dict[str, Any]) -> Profile:
    """The H200, from the raw measurements."""
    parts, host_copy = (
        measured["qwen3_8b_step_parts_ms"],
        measured["storage"]["tmpfs_read"]["4194304"],
    )
    copies = measured["pinned_copy"]["rows"]
    gather = measured["triton_gather_GB_s_read_plus_write"]["page_1"]
    zero_copy, storage = measured["zero_copy_kernel_GiB_s"], measured["storage"]
    step = "torch, no engine around it"
    return Profile(
        schema=SCHEMA,
        name="nvidia-h200",
        machine="NVIDIA H200 (SXM, PCIe Gen5 x16), 16 vCPU Xeon, 128 GiB RAM, virtual disk",
        software="torch 2.11.0+cu130, triton 3.6.0",
        date=measured["date"],
        source="raw measurements of this project",
        memory=Memory(
            device_bytes=_published(139 * GIB, "what the driver shows of the 141 GB"),
            host_bytes=_measured(128 * GIB, "RAM of the virtual machine"),
        ),
        gpu=GpuProfile(
            model=_sampled(
                "Qwen3-8B", "the model whose steps were timed, its shape from its config.json"
            ),
            dense=Curve(
                provenance="measured",
                how=f"all 36 layers and the head in one CUDA graph, without attention; {step}",
                points=tuple((int(n), _ns(ms, MS)) for n, ms in parts["dense"].items()),
            ),
            attention_prefill=Surface(
                provenance="measured",
                how=f"36 layers of SDPA, contiguous KV, causal, new tokens over a past; {step}",
                points=_surface(parts["attention_prefill"]),
            ),
            attention_decode=Surface(
                provenance="measured",
                how=f"36 layers of SDPA, contiguous KV, one new token a request; {step}",
                points=_surface(parts["attention_decode"]),
            ),
        ),
        pcie=PcieProfile(
            h2d=_curve(
                [(row[0], row[3]) for row in copies], "torch copy of pinned memory, host to device"
            ),
            d2h=_curve(
                [(row[0], row[4]) for row in copies], "torch copy of pinned memory, device to host"
            ),
            duplex_bytes_per_s=_measured(
                int(measured["duplex_each_way_GiB_s"] * GIB), "both directions at once, each way"
            ),
            gather_scatter=Curve(
                provenance="measured",
                how="Triton gather of random one-token pages of Qwen3-8B, read + write; the "
                "scatter was not timed and is taken to be as fast",
                points=tuple(
                    (int(n) * KV_BYTES, round(2 * int(n) * KV_BYTES / rate))
                    for n, rate in gather.items()
                ),
            ),
            zero_copy_h2d=_zero_copy(zero_copy["load"], "reading"),
            zero_copy_d2h=_zero_copy(zero_copy["store"], "writing"),
        ),
        host=HostProfile(
            engine=EngineTimes(
                d2h_ns=_estimate(
                    100 * US, "Python that enqueues a kernel and a copy and polls an event"
                ),
                h2d_ns=_estimate(
                    100 * US, "Python that enqueues a copy and a kernel and polls an event"
                ),
                h2s_ns=_estimate(50 * US, "Python that hands a job to a thread and takes it back"),
                s2h_ns=_estimate(50 * US, "Python that hands a job to a thread and takes it back"),
                step_ns=_estimate(200 * US, "scheduling that does not hide under the step before"),
            ),
            copy_threads=_estimate(8, "one thread for each physical core of 16 vCPU"),
            copy_bytes_per_s=Curve(
                provenance="estimate",
                how="no CPU copy was timed: reads of 4 MiB from tmpfs, a copy in memory by threads",
                points=tuple((int(n), int(rate * GIB)) for n, rate in host_copy.items()),
            ),
        ),
        disk=DiskProfile(
            read_bytes_per_s=Surface(
                provenance="measured",
                how="preadv with O_DIRECT into pinned memory, Python threads; no page cache",
                points=_rates(
                    {
                        size: {n: of[0] for n, of in row.items()}
                        for size, row in storage["read"].items()
                    }
                ),
            ),
            write_bytes_per_s=Surface(
                provenance="measured",
                how="pwrite with O_DIRECT, Python threads",
                points=_rates(storage["write_direct"]),
            ),
            read_latency_ns=_estimate(
                60 * US, "a virtual disk's first answer; the sampled reads ran back to back"
            ),
            write_latency_ns=_estimate(60 * US, "as for a read"),
            workers=_published(2, "mini-HiCache's bounded pool of I/O threads"),
            mixed_permille=_estimate(
                1000, "no mix was timed: reads and writes share the device's time, no loss"
            ),
        ),
    )


def group_a(published: dict[str, Any]) -> Profile:
    """Group A of the article: Qwen3-8B on a Blackwell data-centre GPU, no NVMe."""
    facts = published["group_a"]
    restored = {n: facts["l2_restore_ms"][n] * MS for n in ("2000", "3500")}
    recomputed = {n: facts["l2_speedup"][n] * restored[n] for n in restored}
    slope = (recomputed["3500"] - recomputed["2000"]) / 1500
    first = recomputed["2000"] - 1999 * slope
    link = facts["h2d_gib_s"] * GIB / 1e9
    # An L2 hit of n tokens copies n - 1 of them and computes the last.
    engine = restored["2000"] - 1999 * KV_BYTES / link - first
    more = restored["3500"] - 3499 * KV_BYTES / link - first - engine
    return Profile(
        schema=SCHEMA,
        name="mini-group-a",
        machine="group A of the mini-HiCache article: a Blackwell data-centre GPU, no NVMe",
        software="mini-sglang, branch mini-hicache",
        date="not published",
        source=ARTICLE,
        memory=Memory(
            device_bytes=_estimate(180 * 10**9, "the GPU is not named; a B200's memory"),
            host_bytes=_estimate(256 * GIB, "not published"),
        ),
        gpu=GpuProfile(
            model=_sampled(
                "Qwen3-8B", "the model the article names, its shape from its config.json"
            ),
            prefill=Curve(
                provenance="inferred",
                how="L2 speed-up times L2 restore at 2,000 and 3,500 tokens, a straight line "
                "through both down to one token",
                points=((1, round(first)), *((int(n), round(ns)) for n, ns in recomputed.items())),
            ),
        ),
        pcie=_published_link(facts["h2d_gib_s"]),
        host=_published_host(
            round(engine),
            "the L2 restore of 2,000 tokens less its bytes at 30 GiB/s and a one-token step",
            Curve(
                provenance="inferred",
                how="the L2 restore of 3,500 tokens less its bytes, a one-token step and the "
                "engine time; none up to 2,000 tokens, a straight line from there",
                points=((1999 * KV_BYTES, 0), (3499 * KV_BYTES, round(more))),
            ),
        ),
        disk=_published_disk(facts["s2h_gib_s"]),
    )


def group_b(published: dict[str, Any]) -> Profile:
    """Group B of the article: Qwen3-4B on an RTX 5070, local NVMe."""
    facts = published["group_b"]
    model = load_geometry("Qwen3-4B")
    floor = model.weight_bytes / 672e9 * 1e9
    recomputed = facts["recompute_ms"]["3500"] * MS
    restored = recomputed / facts["l2_speedup"]["3500"]
    engine = restored - 3499 * KV_BYTES / (facts["h2d_gib_s"] * GIB / 1e9) - floor
    return Profile(
        schema=SCHEMA,
        name="mini-group-b",
        machine="group B of the mini-HiCache article: RTX 5070, local NVMe",
        software="mini-sglang, branch mini-hicache",
        date="not published",
        source=ARTICLE,
        memory=Memory(
            device_bytes=_published(12 * GIB, "NVIDIA's data sheet of the RTX 5070"),
            host_bytes=_estimate(32 * GIB, "not published"),
        ),
        gpu=GpuProfile(
            model=_sampled(
                "Qwen3-4B", "the model the article names, its shape from its config.json"
            ),
            prefill=Curve(
                provenance="inferred",
                how="one token: reading the weights, 8.04 GB, at the RTX 5070's 672 GB/s (NVIDIA's "
                "data sheet); 3,500 tokens: the published recompute; a straight line between",
                points=((1, round(floor)), (3500, round(recomputed))),
            ),
        ),
        pcie=_published_link(facts["h2d_gib_s"]),
        host=_published_host(
            round(engine),
            "the L2 restore of 3,500 tokens (recompute / speed-up) less its bytes at 30 GiB/s and "
            "a one-token step",
            None,
        ),
        disk=_published_disk(facts["s2h_gib_s"]),
    )


def _published_link(h2d_gib_s: int) -> PcieProfile:
    """A link of which only H2D GiB/s is published."""

    def copy(provenance: Provenance, how: str) -> Curve:
        sizes = (KV_BYTES, 8192 * KV_BYTES)
        points = tuple((size, round(size * 1e9 / (h2d_gib_s * GIB))) for size in sizes)
        return Curve(provenance=provenance, how=how, points=points)

    return PcieProfile(
        h2d=copy("published", f"{h2d_gib_s} GiB/s at every size, unpacking included"),
        d2h=copy("estimate", "not published: as fast as H2D, packing included"),
        duplex_bytes_per_s=_estimate(
            h2d_gib_s * GIB * 9 // 10,
            "not published: nine tenths each way, as measured on nvidia-h200",
        ),
    )


def _published_host(engine_ns: int, how: str, restore_overhead: Curve | None) -> HostProfile:
    """A host of which the L2 restore alone says something."""
    return HostProfile(
        engine=EngineTimes(
            d2h_ns=_estimate(
                engine_ns // 2,
                "half of h2d: a write is issued and reaped, a restore is also waited for",
            ),
            h2d_ns=Quantity(provenance="inferred", how=how, value=engine_ns),
            h2s_ns=_estimate(
                engine_ns // 4, "a quarter of h2d: handed to a thread, no kernel, no stream"
            ),
            s2h_ns=_estimate(
                engine_ns // 4, "a quarter of h2d: handed to a thread, no kernel, no stream"
            ),
            step_ns=Quantity(provenance="inferred", how="part of the recompute curve", value=0),
        ),
        restore_overhead=restore_overhead,
        copy_threads=_estimate(8, "not published"),
        copy_bytes_per_s=Curve(
            provenance="estimate",
            how="not published: memory copies at 2 GiB/s a thread, 16 GiB/s at most",
            points=((1, 2 * GIB), (8, 16 * GIB)),
        ),
    )


def _published_disk(s2h_gib_s: float) -> DiskProfile:
    """A disk of which only S2H GiB/s is published."""
    rate = int(s2h_gib_s * GIB)
    return DiskProfile(
        read_bytes_per_s=Surface(
            provenance="published",
            how=f"{s2h_gib_s} GiB/s; taken to hold at every size, and for all operations together",
            points=((KV_BYTES, 1, rate),),
        ),
        write_bytes_per_s=Surface(
            provenance="estimate",
            how="not published: as fast as reads",
            points=((KV_BYTES, 1, rate),),
        ),
        read_latency_ns=Quantity(
            provenance="inferred",
            how="none: part of the published rate and of the engine time",
            value=0,
        ),
        write_latency_ns=Quantity(provenance="inferred", how="none: as for a read", value=0),
        workers=_published(2, "mini-HiCache's bounded pool of I/O threads"),
        mixed_permille=_estimate(
            1000, "not published: reads and writes share the device's time, no loss"
        ),
    )


def _sampled(name: str, how: str) -> SampledModel:
    return SampledModel.of(load_geometry(name), "published", how)


def _zero_copy(rates: dict[str, float], verb: str) -> Curve:
    return Curve(
        provenance="measured",
        how=f"one Triton kernel {verb} random pinned page-major host pages of Qwen3-8B",
        points=tuple(
            (int(n) * KV_BYTES, round(int(n) * KV_BYTES * 1e9 / (rate * GIB)))
            for n, rate in rates.items()
        ),
    )


def _rates(table: dict[str, dict[str, float]]) -> tuple[tuple[int, int, int], ...]:
    return tuple(
        (int(size), int(n), int(rate * GIB))
        for size, row in table.items()
        for n, rate in row.items()
    )


def _surface(table: dict[str, float]) -> tuple[tuple[int, int, int], ...]:
    rows = [(*map(int, key.split(",")), _ns(ms, MS)) for key, ms in table.items()]
    return tuple(sorted((first, second, ns) for first, second, ns in rows))


def _curve(rows: list[tuple[int, float]], how: str) -> Curve:
    return Curve(
        provenance="measured", how=how, points=tuple((size, _ns(us, US)) for size, us in rows)
    )


def _ns(value: float, unit: int) -> int:
    return round(value * unit)


def _measured(value: int, how: str) -> Quantity:
    return Quantity(provenance="measured", how=how, value=value)


def _published(value: int, how: str) -> Quantity:
    return Quantity(provenance="published", how=how, value=value)


def _estimate(value: int, how: str) -> Quantity:
    return Quantity(provenance="estimate", how=how, value=value)


def main(measurements: str, published: str, folder: str) -> None:
    """Write the two published machines, and the H200 by hand, to `folder`."""
    with open(measurements, encoding="utf-8") as opened:
        measured = json.load(opened)
    with open(published, encoding="utf-8") as opened:
        article = json.load(opened)
    for name, profile in (
        ("h200-by-hand", h200(measured)),
        ("mini-group-a", group_a(article)),
        ("mini-group-b", group_b(article)),
    ):
        with open(os.path.join(folder, f"{name}.json"), "w", encoding="utf-8") as opened:
            opened.write(dump_profile(profile))


if __name__ == "__main__":
    main(*sys.argv[1:])
