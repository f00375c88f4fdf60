"""Tensor-parallel ranks: how many GPUs hold a part of the model each, and what that part is.

    heads    | 0 1 2 3 4 5 6 7 |              one GPU
             | 0 1 | 2 3 | 4 5 | 6 7 |        tp = 4: what each rank holds, stores and moves
             |0|1|2|3|4|5|6|7|                tp_lcm_size = 8: head shards, an object in L3 each

Every rank takes the same decisions and runs the same steps, so that a simulation needs one of them;
what each asks of a store and gets of it is its own (`hicache.ranks`). KV heads are split, but each
rank has at least one: beyond the number of KV heads they are copied. The latent of MLA is no head:
all ranks hold the same. This module refuses to know times (`sim.tensor_parallel`).
"""

from __future__ import annotations

import msgspec

from hicache.errors import InputError
from scenario.geometry import ModelGeometry


class RankOptions(msgspec.Struct, frozen=True):
    """How many, and how L3 is cut."""

    # GPUs of one server (SGLang's --tp-size). Sizes of tiers are those of one of them.
    tp: int = 1
    # The least common multiple of `tp` over all servers that share the store, so that they find
    # each other's pages: one object for each of so many shards of the heads. 0: one for each rank.
    tp_lcm_size: int = 0

    def __post_init__(self) -> None:
        if self.tp < 1:
            raise InputError(f"ranks.tp is {self.tp}: it must be at least 1")
        if self.tp_lcm_size < 0 or self.tp_lcm_size % self.tp:
            raise InputError(
                f"ranks.tp_lcm_size is {self.tp_lcm_size}: it must be a multiple of ranks.tp, "
                f"{self.tp}, or 0"
            )

    def store_parts(self, geometry: ModelGeometry) -> int:
        """Objects that a store has of a page, of all ranks together: what `geometry`'s page is cut
        into.
        """
        return 1 if geometry.kind == "mla" else self.tp_lcm_size or self.tp

    def writing_ranks(self, geometry: ModelGeometry) -> int:
        """Ranks that write L3: one, where all hold the same pages."""
        return 1 if geometry.kind == "mla" else self.tp


def rank_geometry(geometry: ModelGeometry, ranks: RankOptions) -> ModelGeometry:
    """What one rank holds of a model, as a model: its heads, weights and arithmetic.

    Weights and the operations of a token are split evenly, rounded up; K and V of a head that
    several ranks hold are projected by each. Small parts that servers copy instead (norms, routers,
    the down-projections of MLA) are split here, too. Raises InputError where heads cannot be split.
    """
    tp = ranks.tp
    _check_heads(geometry, ranks)
    if tp == 1:
        return geometry
    copied = 0
    if geometry.kind == "mha" and tp > geometry.kv_heads:
        of_head = geometry.layers * geometry.hidden_size * (geometry.head_dim + geometry.v_head_dim)
        copied = of_head * (tp - geometry.kv_heads) // tp
    copied_bytes = copied * geometry.weight_bytes // geometry.parameter_count
    return msgspec.structs.replace(
        geometry,
        name=f"{geometry.name} (1 of {tp} ranks)",
        q_heads=geometry.q_heads // tp,
        kv_heads=max(1, geometry.kv_heads // tp),
        intermediate_size=_part(geometry.intermediate_size, tp),
        vocab_size=_part(geometry.vocab_size, tp),
        expert_parameter_count=_part(geometry.expert_parameter_count, tp),
        parameter_count=_part(geometry.parameter_count, tp) + copied,
        active_parameter_count=_part(geometry.active_parameter_count, tp) + copied,
        weight_bytes=_part(geometry.weight_bytes, tp) + copied_bytes,
    )


def _part(whole: int, tp: int) -> int:
    return -(-whole // tp)


def _check_heads(geometry: ModelGeometry, ranks: RankOptions) -> None:
    tp, name = ranks.tp, geometry.name
    if geometry.q_heads % tp:
        raise InputError(
            f"ranks.tp is {tp}: it must divide the {geometry.q_heads} attention heads of {name}"
        )
    if geometry.kind == "mla":
        return
    heads = geometry.kv_heads
    if heads % tp and tp % heads:
        raise InputError(
            f"ranks.tp is {tp}: {name} has {heads} KV heads, so that it must divide {heads} or be "
            f"a multiple of it"
        )
    shards = ranks.tp_lcm_size
    if shards > tp and heads % shards:
        raise InputError(
            f"ranks.tp_lcm_size is {shards}: a shard is whole KV heads, and {name} has {heads}; it "
            f"must divide {heads}"
        )
