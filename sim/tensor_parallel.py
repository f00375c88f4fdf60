"""The steps of one tensor-parallel rank, from samples of one GPU that holds the whole model.

    step of a rank = step of a model of its part (`sim.scaling`) + all-reduces between the layers

A rank is a model with a part of the weights, of the heads and of the arithmetic, and the same
layers. After the attention and after the MLP of each layer the ranks add up what they have: an
all-reduce of tokens * hidden size * 2 bytes, of which each GPU sends and receives 2 (n - 1) / n.
Nobody measured that here: the rate and the time of one all-reduce are assumed, and results say so.
A profile whose samples are of as many ranks (`gpu.ranks`) takes the place of all this.
"""

from __future__ import annotations

import msgspec

from hicache.errors import InputError
from scenario.geometry import ModelGeometry
from scenario.profile import Curve, Estimate, GpuProfile
from scenario.ranks import RankOptions, rank_geometry
from sim.scaling import Geometry, scaled

# NVLink 4 has 450 GB/s each way (NVIDIA's H100 and H200 data sheets); of that, assumed, 80 %.
LINK_BYTES_PER_S = 360e9
# One all-reduce of next to nothing: assumed.
ALL_REDUCE_NS = 10_000
ACTIVATION_BYTES = 2
ALL_REDUCES_OF_LAYER = 2


def of_ranks(
    gpu: GpuProfile, geometry: Geometry, tp: int
) -> tuple[GpuProfile, tuple[Estimate, ...]]:
    """The samples as one of `tp` ranks of `geometry`, the whole model, would give them, and what to
    say about it. Raises InputError for samples of another number of ranks.
    """
    sampled = gpu.ranks.value if gpu.ranks is not None else 1
    if sampled == tp:
        return scaled(gpu, geometry)
    if sampled != 1:
        raise InputError(
            f"ranks.tp is {tp}: the profile's steps are those of one of {sampled} ranks "
            f"(gpu.ranks); allowed: {sampled}, or another machine.profile"
        )
    assert isinstance(geometry, ModelGeometry), "what was sampled has no heads to split"
    part = rank_geometry(geometry, RankOptions(tp))
    changed, _ = scaled(gpu, part)
    changed = msgspec.structs.replace(
        changed,
        dense=_with_all_reduces(changed.dense, geometry, tp),
        dense_decode=_with_all_reduces(changed.dense_decode, geometry, tp),
        prefill=_with_all_reduces(changed.prefill, geometry, tp),
    )
    how = (
        f"{tp} ranks of {geometry.name}: inferred from one GPU's steps of {gpu.model.name}, each "
        f"rank as a model of its part of the weights, heads and FLOPs; "
        f"{ALL_REDUCES_OF_LAYER} all-reduces a layer of {ALL_REDUCE_NS / 1000:g} us and "
        f"{LINK_BYTES_PER_S / 1e9:g} GB/s each way are assumed; a profile measured with {tp} ranks "
        "(gpu.ranks) would replace it"
    )
    return changed, (Estimate("gpu.ranks", how),)


def all_reduce_ns(geometry: ModelGeometry, tp: int, tokens: int) -> float:
    """What the all-reduces of a step over `tokens` tokens take, all layers."""
    size_bytes = tokens * geometry.hidden_size * ACTIVATION_BYTES
    one_ns = ALL_REDUCE_NS + size_bytes * 2 * (tp - 1) / tp / LINK_BYTES_PER_S * 1e9
    return geometry.layers * ALL_REDUCES_OF_LAYER * one_ns


def _with_all_reduces(curve: Curve | None, geometry: ModelGeometry, tp: int) -> Curve | None:
    """A curve over the tokens of a step; straight between its points, as all-reduces are."""
    if curve is None:
        return None
    points = tuple(
        (tokens, round(ns + all_reduce_ns(geometry, tp, tokens))) for tokens, ns in curve.points
    )
    return msgspec.structs.replace(curve, points=points)
