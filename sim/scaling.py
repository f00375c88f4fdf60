"""The steps of a model that nobody sampled, from the samples of another: by FLOPs and by bytes.

    dense        floor (one token): bytes of weights read; what grows with the tokens: FLOPs of a
    token attention    floor (the launches): layers; prefill above it: FLOPs of a pair of tokens;
                 decode above it: bytes of KV cache read

Where the shapes agree every ratio is 1 and the samples stay as they are. Everything made here is an
estimate.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import msgspec

from scenario.profile import Curve, Estimate, GpuProfile, Surface


class Geometry(Protocol):
    """What scaling asks of a model; `ModelGeometry` and `SampledModel` of `scenario` have it."""

    @property
    def name(self) -> str: ...
    @property
    def layers(self) -> int: ...
    @property
    def parameter_count(self) -> int: ...
    @property
    def active_parameter_count(self) -> int: ...
    @property
    def weight_bytes(self) -> int: ...
    @property
    def kv_bytes_per_token(self) -> int: ...
    @property
    def dense_flops_per_token(self) -> int: ...
    @property
    def attention_flops_per_pair(self) -> int: ...


_SHAPE = (
    "layers", "parameter_count", "active_parameter_count", "weight_bytes", "kv_bytes_per_token",
    "dense_flops_per_token", "attention_flops_per_pair",
)  # fmt: skip


def scaled(gpu: GpuProfile, geometry: Geometry) -> tuple[GpuProfile, tuple[Estimate, ...]]:
    """The samples as `geometry` would give them, and what to say about it (nothing if they fit)."""
    if all(getattr(geometry, key) == getattr(gpu.model, key) for key in _SHAPE):
        return gpu, ()
    model = gpu.model
    layers = geometry.layers / model.layers
    changed = msgspec.structs.replace(
        gpu,
        dense=_tokens(gpu.dense, model, geometry),
        dense_decode=_tokens(gpu.dense_decode, model, geometry),
        prefill=_tokens(gpu.prefill, model, geometry),
        attention_prefill=_attention(
            gpu.attention_prefill,
            layers,
            geometry.attention_flops_per_pair / model.attention_flops_per_pair,
        ),
        attention_decode=_attention(
            gpu.attention_decode, layers, geometry.kv_bytes_per_token / model.kv_bytes_per_token
        ),
    )
    how = (
        f"{geometry.name} was not sampled: scaled from {model.name} by weight bytes and FLOPs, "
        "attention by FLOPs (prefill) and KV bytes (decode)"
    )
    return changed, (Estimate("gpu", how),)


def weight_bytes_read(geometry: Geometry, tokens: int) -> float:
    """Bytes of weights that a step over `tokens` tokens reads.

    A dense model reads all. A mixture of experts reads those that its tokens choose: one token the
    active part a = active / all, n tokens (chosen independently) 1 - (1 - a)^n of all.
    """
    active = geometry.active_parameter_count / geometry.parameter_count
    return geometry.weight_bytes * (1.0 - (1.0 - active) ** tokens)


def _tokens(curve: Curve | None, model: Geometry, geometry: Geometry) -> Curve | None:
    """A curve over a step's tokens: its floor by the weights read, what is above by FLOPs."""
    if curve is None:
        return None
    flops = geometry.dense_flops_per_token / model.dense_flops_per_token
    floor = curve.points[0][1]
    points = tuple(
        (
            tokens,
            round(
                floor * weight_bytes_read(geometry, tokens) / weight_bytes_read(model, tokens)
                + (ns - floor) * flops
            ),
        )
        for tokens, ns in curve.points
    )
    return msgspec.structs.replace(curve, points=points)


def _attention(surface: Surface | None, layers: float, above: float) -> Surface | None:
    """Samples of attention: their floor by the number of layers, what is above it by `above`."""
    if surface is None:
        return None
    floor = attention_floor(surface.points)
    points = tuple(
        (one, other, round(floor * layers + (ns - floor) * above))
        for one, other, ns in surface.points
    )
    return msgspec.structs.replace(surface, points=points)


def attention_floor(points: Sequence[tuple[int, int, int]]) -> int:
    """What attention takes for next to no work: the smallest sample."""
    return min(ns for _, _, ns in points)
