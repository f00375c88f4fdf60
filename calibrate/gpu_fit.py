"""Whole GPU steps taken apart, so that the simulator puts the very same steps together again.

    prefill   dense(new) = whole(new, 0) - pairs(new)       pairs: what the past costs for each pair
              attention(new, past) = whole(new, past) - dense(new)        of tokens, times new / 2
    decode    dense(batch) = the line over the context, at context 0
              attention(batch, context) = whole - dense

So dense + attention is the measured whole at every sample, whatever the parting; the parting
matters for what several requests in one step share, and for models that are scaled. Where steps run
as CUDA graphs of a few sizes, dense is a step function: all sizes up to a graph's cost what the
graph does.

What disturbs a sample only adds to it. So one that took clearly longer than a step that does all of
its work and more was disturbed, and is left out of the fit (`disturbed`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from calibrate.fits import Errors, errors_of, slope_through, spread_permille
from hicache.operations import Chunk, Prefill
from scenario.measurement import Sample
from scenario.profile import Curve, GpuProfile, SampledModel, Surface
from sim.curves import Line, monotone
from sim.step_model import step_model

Wholes = dict[tuple[int, int], float]
# How much longer than a larger step a sample may have taken: what repeats of one point differ by.
DISTURBED = 1.05


class Graphs(NamedTuple):
    """Sizes of the graphs that steps run as; () where there are none."""

    prefill_tokens: tuple[int, ...] = ()
    decoders: tuple[int, ...] = ()


class GpuFit(NamedTuple):
    """The parts, and their errors at held-out steps (None: none were held out)."""

    gpu: GpuProfile
    prefill: Errors | None
    joint: Errors | None
    decode: Errors | None
    # Of the samples that were left out as disturbed.
    left_out: tuple[tuple[int, ...], ...] = ()


def fit_gpu(
    model: SampledModel,
    prefills: Sequence[Sample],
    decodes: Sequence[Sample],
    joint: Sequence[Sample],
    graphs: Graphs,
    how: str,
) -> GpuFit | None:
    """The GPU's curves from whole steps; None where too few were measured.

    `prefills`: at (new, past); `decodes`: at (batch, context of each); `joint`: at (requests, new
    of each, past of each), held out all of them. `how`: in words, for the profile.
    """
    left_out = {*disturbed(prefills), *disturbed(decodes)}
    prefills = [each for each in prefills if each not in left_out]
    decodes = [each for each in decodes if each not in left_out]
    wholes, steps = _fit_points(prefills), _fit_points(decodes)
    if len({new for new, past in wholes if not past}) < 2 or not _columns(wholes):
        return None
    if not _columns(steps):
        return None
    dense, attention = _prefill_parts(wholes, graphs.prefill_tokens)
    dense_decode, attention_decode = _decode_parts(steps, graphs.decoders)
    gpu = GpuProfile(
        model=model,
        dense=Curve(provenance="measured", how=f"{how}: without attention", points=dense),
        attention_prefill=Surface(
            provenance="measured", how=f"{how}: what a past adds, and half of it", points=attention
        ),
        attention_decode=Surface(
            provenance="measured", how=f"{how}: what a context adds", points=attention_decode
        ),
        dense_decode=Curve(
            provenance="measured", how=f"{how}: a decode step without context", points=dense_decode
        ),
    )
    judged = _judge(gpu, prefills, decodes, joint)
    return judged._replace(
        gpu=_with_spread(judged, prefills, decodes),
        left_out=tuple(sorted(each.at for each in left_out)),
    )


def disturbed(samples: Sequence[Sample]) -> list[Sample]:
    """Those for the fit that a larger step (both coordinates, held out or not) was clearly quicker
    than.
    """
    found: list[Sample] = []
    for each in samples:
        larger = [
            other.median_ns
            for other in samples
            if other is not each and all(a <= b for a, b in zip(each.at, other.at, strict=True))
        ]
        if each.role == "fit" and larger and each.median_ns > DISTURBED * min(larger):
            found.append(each)
    return found


def _judge(
    gpu: GpuProfile,
    prefills: Sequence[Sample],
    decodes: Sequence[Sample],
    joint: Sequence[Sample],
) -> GpuFit:
    """What the simulator says of held-out steps."""
    model = step_model(gpu)

    def prefill_ns(at: tuple[int, ...]) -> float:
        return model.prefill_ns(Prefill((Chunk(0, at[0], at[1]),), at[0]))

    def joint_ns(at: tuple[int, ...]) -> float:
        count, new, past = at
        chunks = tuple(Chunk(number, new, past) for number in range(count))
        return model.prefill_ns(Prefill(chunks, count * new))

    def decode_ns(at: tuple[int, ...]) -> float:
        return model.decode_ns(at[0], at[0] * at[1])

    checks = [
        (prefill_ns, [each for each in prefills if each.role == "check"]),
        (joint_ns, list(joint)),
        (decode_ns, [each for each in decodes if each.role == "check"]),
    ]
    prefill, together, decode = (errors_of(of, held) if held else None for of, held in checks)
    return GpuFit(gpu, prefill, together, decode)


def _with_spread(fit: GpuFit, prefills: Sequence[Sample], decodes: Sequence[Sample]) -> GpuProfile:
    import msgspec

    replace = msgspec.structs.replace
    prefill = spread_permille(prefills, fit.prefill)
    decode = spread_permille(decodes, fit.decode)
    gpu = fit.gpu
    assert gpu.dense is not None
    assert gpu.dense_decode is not None
    assert gpu.attention_prefill is not None
    assert gpu.attention_decode is not None
    return replace(
        gpu,
        dense=replace(gpu.dense, spread_permille=prefill),
        attention_prefill=replace(gpu.attention_prefill, spread_permille=prefill),
        dense_decode=replace(gpu.dense_decode, spread_permille=decode),
        attention_decode=replace(gpu.attention_decode, spread_permille=decode),
    )


def _prefill_parts(
    wholes: Wholes, graphs: tuple[int, ...]
) -> tuple[tuple[tuple[int, int], ...], tuple[tuple[int, int, int], ...]]:
    """Points of dense and of attention."""
    columns = _columns(wholes)
    news = sorted(columns)
    # What one more token of the past costs all new ones.
    slopes = {
        new: slope_through([float(x) for x in column], list(column.values()))[1]
        for new, column in columns.items()
    }
    per_pair = Line(news, [slopes[new] / new for new in news])
    sizes = sorted(new for new, past in wholes if not past)
    inside = [_clamped(per_pair, new, news) * new * new / 2 for new in sizes]
    bare = [max(1.0, wholes[new, 0] - own) for new, own in zip(sizes, inside, strict=True)]
    dense = stepped(dict(zip(sizes, bare, strict=True)), graphs)
    through = Line([x for x, _ in dense], [float(y) for _, y in dense])
    attention: list[tuple[int, int, int]] = []
    for first, new in _reach(news, graphs):
        column = columns[new] | ({0: wholes[new, 0]} if (new, 0) in wholes else {})
        for size in sorted({first, new}):
            for past in sorted(column):
                attention.append((size, past, max(0, round(column[past] - through.at(new)))))
    return dense, _rising(attention)


def _reach(news: Sequence[int], graphs: tuple[int, ...]) -> list[tuple[int, int]]:
    """For each size that was measured over pasts, the smallest that costs the same: within the
    graphs' sizes attention, too, is cut as for the whole graph.
    """
    reach: list[tuple[int, int]] = []
    largest = max(graphs, default=0)
    for new in news:
        if new > largest:
            reach.append((new, new))
        elif new in graphs:
            smaller = max((each for each in graphs if each < new), default=0)
            reach.append((smaller + 1, new))
    return reach


def _decode_parts(
    steps: Wholes, graphs: tuple[int, ...]
) -> tuple[tuple[tuple[int, int], ...], tuple[tuple[int, int, int], ...]]:
    """Points of a decode step without context, and of what context adds."""
    columns = _columns(steps)
    bare: dict[int, float] = {}
    for batch, column in columns.items():
        contexts = sorted(column)
        first, second = contexts[0], contexts[1]
        slope = max(0.0, (column[second] - column[first]) / (second - first))
        bare[batch] = max(1.0, column[first] - slope * first)
    dense = stepped(bare, graphs)
    through = Line([x for x, _ in dense], [float(y) for _, y in dense])
    attention = [
        (batch, context, max(0, round(column[context] - through.at(batch))))
        for batch, column in sorted(columns.items())
        for context in sorted(column)
    ]
    # Batches with one context only: what attention says there, taken off, gives their dense part.
    rows = {batch: _row(attention, batch) for batch in columns}
    batches = sorted(columns)
    for (batch, context), ns in sorted(steps.items()):
        if batch in columns:
            continue
        low = max((each for each in batches if each < batch), default=batches[0])
        high = min((each for each in batches if each > batch), default=batches[-1])
        share = (batch - low) / (high - low) if high != low else 0.0
        own = rows[low].at(context) + share * (rows[high].at(context) - rows[low].at(context))
        bare[batch] = max(1.0, ns - own)
    return stepped(bare, graphs), _rising(attention)


def _rising(points: Sequence[tuple[int, int, int]]) -> tuple[tuple[int, int, int], ...]:
    """The points with their noise taken out as the simulator would: nothing goes down."""
    places = [(first, second) for first, second, _ in points]
    heights = monotone(places, [float(ns) for *_, ns in points])
    return tuple((*at, round(ns)) for at, ns in zip(places, heights, strict=True))


def stepped(times: Mapping[int, float], graphs: tuple[int, ...]) -> tuple[tuple[int, int], ...]:
    """Points of a curve over sizes that rise, as steps up to the largest graph that was measured.

    `times` by size. Between two graphs every size costs what the larger does; a size between them
    that was measured all the same says nothing new.
    """
    sizes = sorted(times)
    heights = monotone([(each,) for each in sizes], [times[each] for each in sizes])
    height = dict(zip(sizes, heights, strict=True))
    steps = [each for each in graphs if each in height]
    points: dict[int, int] = {}
    before = 0
    for size in steps:
        points[before + 1] = points[size] = max(1, round(height[size]))
        before = size
    points |= {size: max(1, round(height[size])) for size in sizes if size > before}
    return tuple(sorted(points.items()))


def _columns(wholes: Wholes) -> dict[int, dict[int, float]]:
    """By the first coordinate: those that were measured at two or more of the second."""
    columns: dict[int, dict[int, float]] = {}
    for (first, second), ns in sorted(wholes.items()):
        columns.setdefault(first, {})[second] = ns
    return {first: column for first, column in columns.items() if len(column) >= 2}


def _row(attention: Sequence[tuple[int, int, int]], batch: int) -> Line:
    points = [(context, ns) for row, context, ns in attention if row == batch]
    return Line([x for x, _ in points], [float(y) for _, y in points])


def _clamped(line: Line, x: int, xs: Sequence[int]) -> float:
    """The line's value, its ends held beyond it."""
    return line.at(min(max(x, xs[0]), xs[-1]))


def _fit_points(samples: Sequence[Sample]) -> Wholes:
    return {(each.at[0], each.at[1]): each.median_ns for each in samples if each.role == "fit"}
