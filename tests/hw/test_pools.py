"""Pages lie where the layout says, and both pools show them in one shape."""

from __future__ import annotations

import os
from itertools import pairwise

import pytest
import torch
from transfer_pools import LAYOUTS, make_pools

from hicache.errors import InputError
from hw.pools import TORCH_DTYPES, DevicePool, HostPool, KvLayout
from scenario.geometry import KV_ITEMSIZES, load_geometry, model_names


@pytest.mark.parametrize("model", model_names())
@pytest.mark.parametrize("page_size", [1, 64])
def test_a_page_of_every_known_model_has_the_bytes_its_geometry_says(model, page_size):
    geometry = load_geometry(model)
    layout = KvLayout.of(geometry, page_size)
    assert layout.page_bytes == geometry.kv_bytes_per_token * page_size
    assert layout.parts == (1 if geometry.kind == "mla" else 2)


def test_every_dtype_of_a_scenario_has_its_size():
    assert {name: dtype.itemsize for name, dtype in TORCH_DTYPES.items()} == KV_ITEMSIZES


def test_qwen3_8b_and_deepseek_are_laid_out_as_published():
    qwen = KvLayout.of(load_geometry("qwen3-8b"), 64)
    assert (qwen.k_bytes, qwen.page_bytes) == (64 * 8 * 128 * 2, 9 << 20)
    latent = KvLayout.of(load_geometry("deepseek-v3"), 1)
    assert (latent.head_dim_k, latent.v_bytes, latent.parts) == (512 + 64, 0, 1)


@pytest.mark.parametrize("layout", LAYOUTS.values(), ids=LAYOUTS)
def test_views_and_addresses_name_the_same_bytes(layout):
    device_pool, host_pool = make_pools(layout)
    for pool in (device_pool, host_pool):
        for part, view in enumerate([pool.k, pool.v][: layout.parts]):
            head_dim = layout.head_dim_v if part else layout.head_dim_k
            shape = (layout.page_size_tokens, layout.kv_heads, head_dim)
            assert view.shape == (layout.layers, pool.pages, *shape)
            for layer in range(layout.layers):
                for page in (0, 3, pool.pages - 1):
                    piece = view[layer, page]
                    assert piece.is_contiguous()
                    assert piece.data_ptr() == pool.piece_address(part, layer, page)
                    assert piece.nbytes == layout.piece_bytes(part)


@pytest.mark.parametrize("layout", LAYOUTS.values(), ids=LAYOUTS)
def test_no_byte_belongs_to_two_pieces(layout):
    for pool in make_pools(layout):
        taken = sorted(
            (pool.piece_address(part, layer, page), layout.piece_bytes(part))
            for part in range(layout.parts)
            for layer in range(layout.layers)
            for page in range(pool.pages)
        )
        for (first, size), (following, _) in pairwise(taken):
            assert first + size <= following
        assert taken[0][0] >= pool.address
        assert taken[-1][0] + taken[-1][1] <= pool.address + pool.data.numel()


def test_equal_k_and_v_are_also_one_tensor():
    pool, _ = make_pools(LAYOUTS["gqa_bf16"])
    assert pool.kv is not None
    assert pool.kv[1, 2, 5].data_ptr() == pool.v[2, 5].data_ptr()
    assert make_pools(LAYOUTS["unequal_fp16"])[0].kv is None
    assert make_pools(LAYOUTS["mla_fp8"])[0].v is None


def test_a_host_page_is_one_piece_and_may_be_padded_for_direct_io():
    layout = LAYOUTS["gqa_bf16"]
    dense = HostPool(layout, 5)
    assert dense.page_bytes == layout.page_bytes
    padded = HostPool(layout, 5, align_bytes=4096)
    assert padded.page_bytes == 4096
    assert padded.aligned
    assert all(padded.page_address(page) % 4096 == 0 for page in range(5))
    part = padded.view(3, 2)
    assert len(part) == 2 * 4096
    part[layout.piece_offset(1, 2)] = 77
    assert padded.v[2, 3].view(torch.uint8).flatten()[0] == 77


def test_a_file_can_be_read_straight_into_a_page(tmp_path):
    pool = HostPool(LAYOUTS["mla_fp8"], 4, align_bytes=4096)
    content = os.urandom(pool.page_bytes)
    path = tmp_path / "page"
    path.write_bytes(content)
    descriptor = os.open(path, os.O_RDONLY | getattr(os, "O_DIRECT", 0))
    try:
        assert os.preadv(descriptor, [pool.view(2, 1)], 0) == pool.page_bytes
    finally:
        os.close(descriptor)
    assert bytes(pool.view(2, 1)) == content
    assert pool.k[0, 2].view(torch.uint8).flatten()[:8].tolist() == list(content[:8])


def test_a_layout_that_cannot_be_is_refused():
    good = {"layers": 1, "kv_heads": 1, "head_dim_k": 8, "head_dim_v": 8, "page_size_tokens": 1}
    with pytest.raises(InputError, match=r"int4.*bf16"):
        KvLayout(**good, dtype="int4")
    with pytest.raises(InputError, match="at least 1"):
        KvLayout(**(good | {"layers": 0}), dtype="bf16")
    with pytest.raises(InputError, match="one head"):
        KvLayout(**(good | {"kv_heads": 2, "head_dim_v": 0}), dtype="bf16")


def test_a_pool_beyond_the_devices_memory_is_refused_with_its_size():
    layout = LAYOUTS["mla_fp8"]
    with pytest.raises(InputError, match=f"{1 << 45} pages of {layout.page_bytes} bytes"):
        DevicePool(layout, 1 << 45, "cpu")
