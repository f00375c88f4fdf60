"""Figures of a profile: samples, the curve that a simulation reads, and what hardware allows.

Dots made the curve, rings were held out of it; the dashed line is the roofline, where the machine
told one (the link's rate, the GPU's memory and matrix rate). A profile without samples shows its
curves alone. Refuses to open a window: figures are made for files.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

from calibrate.build_peers import SERIES as PEERS
from calibrate.build_peers import of_pairs
from calibrate.fits import fit_curve
from hicache.operations import Chunk, Prefill
from scenario.measurement import Measurement, Sample
from scenario.profile import Curve, GpuProfile, Profile
from sim.curves import line
from sim.step_model import StepModel, step_model

MS = 1e6
NS = 1e9
GIB = 1 << 30
WAYS = ("h2d", "d2h")
BACKENDS = ("auto", "staged", "zero_copy", "direct")


class Plot(NamedTuple):
    """A figure, with a name for its file and a sentence below it."""

    name: str
    title: str
    figure: Any


def plots(profile: Profile) -> Iterator[Plot]:
    """All that the profile has."""
    measurement = profile.measurement
    yield from _gpu_plots(profile.gpu, measurement)
    yield from _link_plots(profile, measurement)
    yield from _disk_plots(profile, measurement)
    yield _curve_plot(
        "host_copy", "Copies in the host's memory by threads", "threads", "GiB/s",
        [("", [(x, y / GIB) for x, y in profile.host.copy_bytes_per_s.points])],
    )  # fmt: skip
    if profile.host.restore_overhead is not None:
        points = [(x / GIB, y / MS) for x, y in profile.host.restore_overhead.points]
        yield _curve_plot(
            "restore_overhead", "Engine time that a restore takes besides", "GiB", "ms",
            [("", points)],
        )  # fmt: skip
    yield from _peer_plots(measurement)


# ---------------------------------------------------------------------- GPU


def _gpu_plots(gpu: GpuProfile, measurement: Measurement | None) -> Iterator[Plot]:
    model = step_model(gpu)
    if gpu.prefill is not None:
        yield _curve_plot(
            "prefill", f"Prefill steps of {gpu.model.name}", "tokens computed", "ms",
            [("", [(x, y / MS) for x, y in gpu.prefill.points])],
        )  # fmt: skip
        return
    assert gpu.dense is not None
    assert gpu.attention_prefill is not None
    assert gpu.attention_decode is not None
    yield _prefill_plot(gpu, model, measurement)
    yield _past_plot(gpu, model, measurement)
    yield _decode_plot(gpu, model, measurement)


def _prefill_plot(gpu: GpuProfile, model: StepModel, measurement: Measurement | None) -> Plot:
    assert gpu.dense is not None
    figure, axes = _figure("new tokens", "ms")
    largest = gpu.dense.points[-1][0]
    xs = sorted({x for x, _ in gpu.dense.points} | {max(1, largest * i // 60) for i in range(61)})
    axes.plot(xs, [_prefill_ns(model, x, 0) / MS for x in xs], label="curve")
    samples = [each for each in _samples(measurement, "prefill") if each.at[1] == 0]
    _scatter(axes, [(each.at[0], each) for each in samples], MS)
    floor = _step_floor(gpu, measurement)
    if floor is not None:
        axes.plot(xs, [floor(x, 0, x) / MS for x in xs], "--", color="gray", label="roofline")
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.legend()
    return Plot("prefill", f"Prefill of {gpu.model.name} without a past", figure)


def _past_plot(gpu: GpuProfile, model: StepModel, measurement: Measurement | None) -> Plot:
    assert gpu.attention_prefill is not None
    figure, axes = _figure("past tokens", "ms")
    news = sorted({new for new, _, _ in gpu.attention_prefill.points})
    for number, new in enumerate(news):
        pasts = sorted(past for each, past, _ in gpu.attention_prefill.points if each == new)
        xs = [pasts[-1] * i // 40 for i in range(41)]
        color = f"C{number % 10}"
        axes.plot(xs, [_prefill_ns(model, new, x) / MS for x in xs], color=color, label=f"{new}")
        _scatter(
            axes,
            [(each.at[1], each) for each in _samples(measurement, "prefill") if each.at[0] == new],
            MS, color, labelled="",
        )  # fmt: skip
    axes.set_yscale("log")
    axes.set_xscale("symlog", linthresh=512)
    axes.legend(title="new tokens", fontsize="small")
    return Plot("prefill_past", f"Prefill of {gpu.model.name} over a past", figure)


def _decode_plot(gpu: GpuProfile, model: StepModel, measurement: Measurement | None) -> Plot:
    assert gpu.attention_decode is not None
    figure, axes = _figure("context of each request", "ms")
    floor = _step_floor(gpu, measurement)
    batches = sorted({batch for batch, _, _ in gpu.attention_decode.points})
    for number, batch in enumerate(batches):
        row = sorted(context for each, context, _ in gpu.attention_decode.points if each == batch)
        xs = sorted({*row, *(row[-1] * i // 40 for i in range(1, 41))})
        color = f"C{number % 10}"
        times = [model.decode_ns(batch, batch * x) / MS for x in xs]
        axes.plot(xs, times, color=color, label=f"{batch}")
        _scatter(
            axes,
            [(each.at[1], each) for each in _samples(measurement, "decode") if each.at[0] == batch],
            MS, color, labelled="",
        )  # fmt: skip
        if floor is not None:
            axes.plot(
                xs, [floor(batch, batch * x, 0) / MS for x in xs], "--", color=color, linewidth=0.7
            )
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.legend(title="requests", fontsize="small")
    return Plot("decode", f"Decode steps of {gpu.model.name}; dashed: the memory's rate", figure)


def _step_floor(
    gpu: GpuProfile, measurement: Measurement | None
) -> Callable[[int, int, int], float] | None:
    """ns of (tokens, tokens of KV read, causal pairs' new tokens) that the GPU needs at least."""
    if measurement is None:
        return None
    memory = measurement.ceilings.get("memory_bytes_per_s", 0)
    flops = 0.0
    for each in _of(measurement, "gpu.matmul"):
        flops = 2 * each.at[0] ** 3 * NS / each.median_ns
    if not memory and not flops:
        return None
    model = gpu.model

    def floor(tokens: int, kv_tokens: int, new: int) -> float:
        read = model.weight_bytes + kv_tokens * model.kv_bytes_per_token
        work = model.dense_flops_per_token * tokens + model.attention_flops_per_pair * new**2 / 2
        return max(read * NS / memory if memory else 0.0, work * NS / flops if flops else 0.0)

    return floor


def _prefill_ns(model: StepModel, new: int, past: int) -> int:
    return model.prefill_ns(Prefill((Chunk(0, new, past),), new))


def _samples(measurement: Measurement | None, kind: str) -> Sequence[Sample]:
    """Of the model's steps, or else of a server's."""
    return _of(measurement, f"steps.{kind}") or _of(measurement, f"server.{kind}")


# ---------------------------------------------------------------------- link and disk


def _link_plots(profile: Profile, measurement: Measurement | None) -> Iterator[Plot]:
    pcie = profile.pcie
    groups: list[tuple[str, str, list[tuple[str, Curve, str]]]] = [
        (
            "copies", "Plain copies between host and GPU",
            [(way, getattr(pcie, way), f"pcie.copy.{way}") for way in WAYS],
        )
    ]  # fmt: skip
    if pcie.zero_copy_h2d is not None and pcie.zero_copy_d2h is not None and pcie.backends is None:
        curves = [("h2d", pcie.zero_copy_h2d, ""), ("d2h", pcie.zero_copy_d2h, "")]
        groups.append(("zero_copy_kernel", "Zero-copy kernels", curves))
    if pcie.gather_scatter is not None:
        groups.append(
            ("gather_scatter", "Gather and scatter kernels", [("", pcie.gather_scatter, "")])
        )
    for name in BACKENDS:
        copies = getattr(pcie.backends, name) if pcie.backends is not None else None
        if copies is not None:
            rows = [
                (f"{way} {kind}", getattr(copies, way + suffix), f"pcie.{name}.{way}.{kind}")
                for way in WAYS
                for kind, suffix in (("run", ""), ("scattered", "_scattered"))
            ]
            groups.append((f"backend_{name}", f"Operations of back-end {name}", rows))
    link = measurement.ceilings.get("link_bytes_per_s", 0) if measurement is not None else 0
    for name, title, rows in groups:
        figure, axes = _figure("bytes", "GiB/s")
        for number, (label, curve, series) in enumerate(rows):
            color = f"C{number}"
            through = line(curve.points)
            xs = _between([x for x, _ in curve.points if x > 0])
            axes.plot(xs, [x * NS / through.at(x) / GIB for x in xs], color=color, label=label)
            _rates(axes, _of(measurement, series), color)
        if link and name != "gather_scatter":
            axes.axhline(link / GIB, linestyle="--", color="gray", label="link")
        axes.set_xscale("log")
        axes.set_ylim(bottom=0)
        if name != "gather_scatter":
            axes.legend(fontsize="small")
        yield Plot(name, title, figure)


def _disk_plots(profile: Profile, measurement: Measurement | None) -> Iterator[Plot]:
    for way in ("read", "write"):
        surface = getattr(profile.disk, f"{way}_bytes_per_s")
        figure, axes = _figure("bytes of a piece", "GiB/s of all together")
        for number, at_once in enumerate(sorted({n for _, n, _ in surface.points})):
            row = [(block, rate / GIB) for block, n, rate in surface.points if n == at_once]
            axes.plot(*zip(*row, strict=True), "o-", color=f"C{number}", label=f"{at_once} at once")
        samples = [each for each in _of(measurement, f"disk.{way}") if each.role == "check"]
        rings = [
            (each.at[0] / each.at[1], each.at[0] * each.at[2] * NS / each.median_ns / GIB)
            for each in samples
        ]
        if rings:
            axes.plot(*zip(*rings, strict=True), "o", fillstyle="none", color="C0",
                      label="held out, latency included")  # fmt: skip
        axes.set_xscale("log")
        axes.set_ylim(bottom=0)
        axes.legend(fontsize="small")
        yield Plot(f"disk_{way}", f"L3: {way}s", figure)


def _peer_plots(measurement: Measurement | None) -> Iterator[Plot]:
    pairs = of_pairs(_of(measurement, PEERS))
    if not pairs:
        return
    figure, axes = _figure("bytes", "GiB/s")
    for number, ((source, target), samples) in enumerate(pairs.items()):
        color = f"C{number % 10}"
        points = fit_curve(samples).points
        through = line(points)
        xs = _between([x for x, _ in points])
        rates = [x * NS / through.at(x) / GIB for x in xs]
        axes.plot(xs, rates, color=color, label=f"GPU {source} to {target}")
        _rates(axes, samples, color)
    axes.set_xscale("log")
    axes.set_ylim(bottom=0)
    axes.legend(fontsize="small")
    yield Plot("peers", "Copies between GPUs", figure)


def _between(xs: Sequence[int]) -> list[float]:
    """The places, and more between them: a straight line over bytes is none over a rate."""
    steps = 40
    ratio = (xs[-1] / xs[0]) ** (1 / steps)
    return sorted({*map(float, xs), *(xs[0] * ratio**step for step in range(1, steps))})


# ---------------------------------------------------------------------- drawing


def _figure(x: str, y: str) -> tuple[Any, Any]:
    """A figure that belongs to no window."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(6.4, 3.6), layout="constrained")
    axes = figure.add_subplot()
    axes.set_xlabel(x)
    axes.set_ylabel(y)
    axes.grid(visible=True, alpha=0.3)
    return figure, axes


def _curve_plot(
    name: str, title: str, x: str, y: str, rows: list[tuple[str, list[tuple[float, float]]]]
) -> Plot:
    figure, axes = _figure(x, y)
    for label, points in rows:
        axes.plot(*zip(*points, strict=True), "o-", label=label)
    axes.set_ylim(bottom=0)
    return Plot(name, title, figure)


def _scatter(
    axes: Any,
    points: list[tuple[float, Sample]],
    unit: float,
    color: str = "C1",
    labelled: str = "samples",
) -> None:
    """Medians with the range of their repetitions: dots, and rings for what was held out."""
    for role, style, label in (("fit", "full", labelled), ("check", "none", "held out")):
        chosen = [(x, each) for x, each in points if each.role == role]
        if not chosen:
            continue
        xs = [x for x, _ in chosen]
        ys = [each.median_ns / unit for _, each in chosen]
        below = [y - min(each.ns) / unit for y, (_, each) in zip(ys, chosen, strict=True)]
        above = [max(each.ns) / unit - y for y, (_, each) in zip(ys, chosen, strict=True)]
        axes.errorbar(
            xs, ys, [below, above], fmt="o", markersize=4, fillstyle=style, color=color,
            elinewidth=0.7, label=label if labelled else None,
        )  # fmt: skip


def _rates(axes: Any, samples: Sequence[Sample], color: str) -> None:
    for role, style in (("fit", "full"), ("check", "none")):
        chosen = [
            (each.at[0], each.at[0] * NS / each.median_ns / GIB)
            for each in samples
            if each.role == role
        ]
        if chosen:
            axes.plot(*zip(*chosen, strict=True), "o", markersize=4, fillstyle=style, color=color)


def _of(measurement: Measurement | None, key: str) -> Sequence[Sample]:
    if measurement is None:
        return ()
    return next((each.samples for each in measurement.series if each.key == key), ())
