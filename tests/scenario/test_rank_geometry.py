"""What one tensor-parallel rank holds of a model, and what sizes mean then."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from hicache.errors import InputError
from hicache.options import EngineOptions
from scenario.geometry import load_geometry
from scenario.load import load_scenario
from scenario.ranks import RankOptions, rank_geometry
from scenario.resolve import Resolved, resolve

GIB = 1 << 30
QWEN, DEEPSEEK = load_geometry("Qwen3-8B"), load_geometry("DeepSeek-V3")


def test_one_rank_is_the_model() -> None:
    assert rank_geometry(QWEN, RankOptions()) is QWEN


@pytest.mark.parametrize(("tp", "heads"), [(2, 4), (4, 2), (8, 1), (16, 1), (32, 1)])
def test_kv_heads_are_split_but_each_rank_has_one(tp: int, heads: int) -> None:
    part = rank_geometry(QWEN, RankOptions(tp))
    assert part.kv_heads == heads
    assert part.kv_bytes_per_token == QWEN.kv_bytes_per_token * heads // QWEN.kv_heads
    assert part.q_heads * tp == QWEN.q_heads
    assert part.attention_flops_per_pair * tp == QWEN.attention_flops_per_pair


def test_weights_and_arithmetic_are_split() -> None:
    part = rank_geometry(QWEN, RankOptions(4))
    for name in ("weight_bytes", "parameter_count", "dense_flops_per_token"):
        assert getattr(part, name) == pytest.approx(getattr(QWEN, name) / 4, rel=1e-6), name
    assert part.layers == QWEN.layers
    assert part.hidden_size == QWEN.hidden_size


def test_heads_that_several_ranks_hold_are_projected_by_each() -> None:
    """Two ranks share a KV head: each has half of the model and half of a head's K and V more."""
    part = rank_geometry(QWEN, RankOptions(16))
    head = QWEN.layers * QWEN.hidden_size * (QWEN.head_dim + QWEN.v_head_dim)
    assert part.parameter_count == -(-QWEN.parameter_count // 16) + head // 2
    assert part.weight_bytes == pytest.approx(part.parameter_count * 2, rel=1e-6)


def test_a_latent_is_no_head() -> None:
    part = rank_geometry(DEEPSEEK, RankOptions(8))
    assert part.kv_bytes_per_token == DEEPSEEK.kv_bytes_per_token
    assert RankOptions(8).writing_ranks(DEEPSEEK) == RankOptions(8).store_parts(DEEPSEEK) == 1
    assert RankOptions(8).writing_ranks(QWEN) == RankOptions(8).store_parts(QWEN) == 8
    assert RankOptions(2, 8).store_parts(QWEN) == 8


BAD = [
    ({"ranks.tp": 0}, "ranks.tp is 0: it must be at least 1"),
    ({"ranks.tp": 3}, "ranks.tp is 3: it must divide the 32 attention heads of Qwen3-8B"),
    ({"ranks.tp": 64}, "ranks.tp is 64: it must divide the 32 attention heads"),
    ({"ranks.tp": 2, "ranks.tp_lcm_size": 3}, "ranks.tp_lcm_size is 3: it must be a multiple of"),
    ({"ranks.tp": 2, "ranks.tp_lcm_size": 16}, "ranks.tp_lcm_size is 16: a shard is whole KV"),
    ({"ranks.tp_lcm_size": -1}, "ranks.tp_lcm_size is -1"),
    ({"ranks.tp": 2.5}, "ranks.tp"),
]


@pytest.mark.parametrize(("options", "said"), BAD)
def test_what_cannot_be_split_is_named(options: dict[str, object], said: str) -> None:
    with pytest.raises(InputError, match=said):
        resolved({"tiers.l1": "4GiB", **options})


def test_kv_heads_that_do_not_go_into_ranks() -> None:
    import msgspec

    odd = msgspec.structs.replace(QWEN, kv_heads=6, q_heads=24)
    with pytest.raises(InputError, match="6 KV heads, so that it must divide 6 or be a multiple"):
        rank_geometry(odd, RankOptions(4))


# ---------------------------------------------------------------------- sizes


def machine(device_gib: int = 80, host_gib: int = 100, storage_gib: int = 500) -> Any:
    def memory(gib: int) -> SimpleNamespace:
        return SimpleNamespace(value=gib * GIB)

    found = SimpleNamespace(
        device_bytes=memory(device_gib), host_bytes=memory(host_gib),
        storage_bytes=memory(storage_gib),
    )  # fmt: skip
    return SimpleNamespace(name="m", memory=found)


def resolved(options: dict[str, object], model: Any = QWEN) -> Resolved:
    return resolve(load_scenario(None, options), machine(), model)


def sizes(options: EngineOptions) -> tuple[int, int, int]:
    return options.device_pages, options.host_pages, options.storage_pages


def test_sizes_are_one_rank_s() -> None:
    given: dict[str, object] = {"tiers.l1": "4GiB", "tiers.l2": "2x", "tiers.l3": "40GiB"}
    one, four = resolved(given).options, resolved({**given, "ranks.tp": 4}).options
    assert sizes(four) == tuple(4 * pages for pages in sizes(one))
    assert four.page_bytes * 4 == one.page_bytes
    assert (four.ranks, four.writing_ranks) == (4, 4)
    assert (one.ranks, one.writing_ranks) == (1, 1)


def test_l1_is_what_a_gpu_has_left_after_its_part_of_the_weights() -> None:
    part = rank_geometry(QWEN, RankOptions(4))
    options = resolved({"ranks.tp": 4, "tiers.l2": "0"}).options
    room = int(80 * GIB * 0.9) - part.weight_bytes
    assert options.device_pages == room // (64 * part.kv_bytes_per_token)


def test_what_does_not_fit_the_node_is_said_of_a_rank_and_of_the_node() -> None:
    given: dict[str, object] = {
        "ranks.tp": 4, "tiers.l1": "20GiB", "tiers.l2": "2x", "tiers.l3": "200GiB",
    }  # fmt: skip
    said = " ".join(resolved(given).warnings)
    assert "tiers.l2 is 2x: 40 GiB a rank, 160 GiB for 4 ranks, but m has 100 GiB of host" in said
    assert "tiers.l3 is 200GiB: 200 GiB a rank, 800 GiB for 4 ranks, but m has 500 GiB of" in said
    assert not resolved({**given, "tiers.l2": "1x", "tiers.l3": "100GiB"}).warnings


def test_what_all_ranks_hold_alike_is_in_storage_once() -> None:
    given: dict[str, object] = {"ranks.tp": 16, "tiers.l1": "20GiB", "tiers.l2": "6GiB",
                                "tiers.l3": "400GiB"}  # fmt: skip
    found = resolved(given, DEEPSEEK)
    assert (found.options.ranks, found.options.writing_ranks) == (16, 1)
    assert not [each for each in found.warnings if "tiers.l3" in each]


STORE: dict[str, object] = {
    "storage.index": "store", "prefetch.mode": "queued", "tiers.l1": "4GiB", "tiers.l2": "8GiB",
    "tiers.l3": "40GiB", "ranks.tp": 2, "ranks.tp_lcm_size": 8,
}  # fmt: skip


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({}, ""),
        ({"tiers.l3": "0"}, "tiers.l3 is 0"),
        ({"storage.index": "tree", "prefetch.mode": "restore"}, "storage.index is tree"),
        ({"mode": "untimed"}, "mode is untimed"),
        ({"ranks.tp_lcm_size": 2}, "it is ranks.tp"),
    ],
)
def test_shards_that_change_nothing_are_said(changes: dict[str, object], why: str) -> None:
    said = [each for each in resolved({**STORE, **changes}).warnings if "tp_lcm_size" in each]
    assert len(said) == bool(why)
    assert not why or f"has no effect: {why}" in said[0]


def test_shards_of_a_latent_change_nothing() -> None:
    (said,) = [w for w in resolved(STORE, DEEPSEEK).warnings if "tp_lcm_size" in w]
    assert "all ranks of DeepSeek-V3 hold the same pages" in said
