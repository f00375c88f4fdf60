"""The host's and the disk's parts of a profile."""

from __future__ import annotations

from collections.abc import Mapping

from calibrate.disk_fit import (
    WayFit,
    first_write_permille,
    fit_way,
    mixed_permille,
    read_share_permille,
)
from calibrate.fits import report
from calibrate.ground import LIMITS, NS, Ground, noise_permille
from scenario.profile import Curve, DiskProfile, EngineTimes, HostProfile, Quantity, Surface
from sim.disk import BlockTimes


def build_host(ground: Ground) -> HostProfile:
    """The engine's time, and copies by the CPU."""
    base = ground.base.host
    times: dict[str, Quantity] = {}
    for kind in ("d2h", "h2d", "h2s", "s2h"):
        key = f"{kind}_ns"
        measured = ground.median(
            f"engine.{kind}", "from submission to the device's call, in a live run"
        )
        times[key] = measured or ground.borrow(getattr(base.engine, key), f"host.engine.{key}")
    step = ground.median("engine.prefill", "from a step's submission to its call, in a live run")
    if ground.server:
        step = Quantity(provenance="inferred", how="part of the server's own times", value=0)
    times["step_ns"] = step or ground.borrow(base.engine.step_ns, "host.engine.step_ns")
    engine = EngineTimes(**times, burst_ns=_burst(ground))
    threads, rates = _copies(ground)
    return HostProfile(
        engine=engine,
        restore_overhead=None if ground.measured.samples("engine.h2d") else (
            ground.borrow(base.restore_overhead, "host.restore_overhead")
            if base.restore_overhead is not None else None
        ),
        copy_threads=threads or ground.borrow(base.copy_threads, "host.copy_threads"),
        copy_bytes_per_s=rates or ground.borrow(base.copy_bytes_per_s, "host.copy_bytes_per_s"),
    )  # fmt: skip


def _burst(ground: Ground) -> Quantity | None:
    """A burst's own: its wait, and what its first step takes more than a later one."""
    wait = ground.measured.samples("engine.burst")
    first = ground.measured.samples("steps.burst")
    if not wait or not first:
        return None
    more = sorted(each.median_ns for each in first)[len(first) // 2]
    return Quantity(
        provenance="measured",
        how="from a burst's submission to its call in a live run, and what its first step "
        "takes more than a later one",
        value=round(wait[0].median_ns + more),
        spread_permille=noise_permille(wait[0]),
    )


def _copies(ground: Ground) -> tuple[Quantity | None, Curve | None]:
    samples = ground.measured.samples("host.copy")
    if not samples:
        return None, None
    how = "memmove within the host's memory, cut among threads"
    rates = {each.at[0]: each.at[1] * NS / each.median_ns for each in samples}
    best = max(rates.values())
    threads = min(n for n, rate in rates.items() if rate >= 0.95 * best)
    points = tuple((n, max(1, round(rate))) for n, rate in sorted(rates.items()))
    return (
        Quantity(provenance="measured", how=f"{how}: no more helps", value=threads),
        Curve(
            provenance="measured", how=how, points=points,
            spread_permille=max(noise_permille(each) for each in samples),
        ),
    )  # fmt: skip


def build_disk(ground: Ground) -> DiskProfile:
    """Reads and writes of L3."""
    base = ground.base.disk
    ways: dict[str, WayFit] = {}
    for way in ("read", "write"):
        fit = fit_way(ground.measured.samples(f"disk.{way}"))
        if fit is None:
            return ground.borrow_all(base, "disk")
        ways[way] = fit
        ground.fits.append(
            report(
                f"disk.{way}_bytes_per_s, disk.{way}_latency_ns", (f"disk.{way}",),
                "latency + pieces * time of a piece", fit.errors, LIMITS["disk"],
            )
        )  # fmt: skip
    how = ground.measured.series["disk.read"].how

    def surface(way: str) -> Surface:
        return Surface(
            provenance="measured",
            how=f"{how.removesuffix('read')}{way}",
            points=ways[way].points,
            spread_permille=ways[way].spread_permille,
        )

    def latency(way: str) -> Quantity:
        return Quantity(
            provenance="measured",
            how="the fixed term of operations by their pieces",
            value=ways[way].latency_ns,
        )

    mixed, read_share = _mixed(ground, ways)
    one_each_way = "a run has one operation of L3 under way in each direction"
    return DiskProfile(
        read_bytes_per_s=surface("read"),
        write_bytes_per_s=surface("write"),
        read_latency_ns=latency("read"),
        write_latency_ns=latency("write"),
        workers=Quantity(provenance="measured", how=one_each_way, value=2),
        each_way=Quantity(provenance="measured", how=one_each_way, value=1),
        mixed_permille=mixed or ground.borrow(base.mixed_permille, "disk.mixed"),
        read_share_permille=read_share,
        first_write_permille=_first_write(ground, ways["write"]),
    )


def _first_write(ground: Ground, again: WayFit) -> Quantity | None:
    kept = first_write_permille(ground.measured.samples("disk.first_write"), again)
    how = "writes of slots that were never written, against writing them again"
    return None if kept is None else Quantity(provenance="measured", how=how, value=kept)


def _mixed(ground: Ground, ways: Mapping[str, WayFit]) -> tuple[Quantity | None, Quantity | None]:
    """What the disk does while it reads and writes at once, and what the read gets of it."""
    alone: dict[str, float] = {}
    together: dict[str, float] = {}
    gains: dict[str, float] = {}
    for way, fit in ways.items():
        samples = ground.measured.samples(f"disk.{way}_mixed")
        if not samples:
            return None, None
        size = samples[0].at[0]
        together[way] = samples[0].median_ns
        times = BlockTimes(Surface(provenance="measured", how="a fit", points=fit.points))
        alone[way] = fit.latency_ns + times.alone_ns(size)
        gains[way] = times.gain(size, 2) / 1000
    kept = "the parts of their own speed that reads and writes keep beside each other"
    return (
        Quantity(provenance="measured", how=kept, value=mixed_permille(alone, together, gains)),
        Quantity(
            provenance="measured",
            how=f"{kept}: the read's part of both",
            value=read_share_permille(alone, together),
        ),
    )
