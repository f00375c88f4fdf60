"""The file store against SGLang's: the same folder, written by one and read by the other."""

from __future__ import annotations

import logging
import os
import random
from collections.abc import Iterator
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from file_store_helpers import fill
from published import load

from hw.pools import KvLayout
from hw.storage.host import HostBuffer
from hw.stores.names import Owner
from hw.stores.page_order import MEMORY_LAYOUTS, MemoryLayout, PageOrder, PageShape
from hw.stores.sglang_file import SglangFileStore
from hw.stores.staging import StagingPool
from traces.page_hash import page_hashes

MHA = KvLayout(layers=3, kv_heads=2, head_dim_k=4, head_dim_v=4, page_size_tokens=4, dtype="bf16")
MLA = KvLayout(layers=3, kv_heads=1, head_dim_k=6, head_dim_v=0, page_size_tokens=4, dtype="bf16")
OWNERS = [
    Owner(model="Qwen/Qwen3-8B"),
    Owner(model="/models/a b", tp_rank=1, tp_size=2),
    Owner(model="m", tp_rank=3, tp_size=4, pp_rank=1, pp_size=2),
    Owner(model="m", cp_rank=1, cp_size=2),
    Owner(model="deepseek", kind="mla"),
    Owner(model="deepseek", kind="mla", pp_rank=2, pp_size=3, cp_rank=0, cp_size=2),
]


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    """A miss is a warning there."""
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)


def theirs(folder: Path, owner: Owner, **extra: Any) -> Any:
    module = load("hicache_storage")
    load("storage.file.lru_file_evictor")
    values = {
        "tp_rank": owner.tp_rank, "tp_size": owner.tp_size, "pp_rank": owner.pp_rank,
        "pp_size": owner.pp_size, "attn_cp_rank": owner.cp_rank, "attn_cp_size": owner.cp_size,
        "is_mla_model": owner.kind == "mla", "enable_storage_metrics": False,
        "is_page_first_layout": True, "model_name": owner.model, "extra_config": extra,
    }  # fmt: skip
    known = {field.name for field in fields(module.HiCacheStorageConfig)}
    config = module.HiCacheStorageConfig(**{k: v for k, v in values.items() if k in known})
    return module.HiCacheFile(config, str(folder))


def pool_of(owner: Owner) -> KvLayout:
    return MLA if owner.kind == "mla" else MHA


def ours(
    folder: Path, owner: Owner, host: HostBuffer, order: MemoryLayout = "page_first", **options: Any
) -> SglangFileStore:
    shape = PageShape.of(pool_of(owner))
    return SglangFileStore(folder, owner, PageOrder(shape, order), host, workers=2, **options)


@pytest.mark.parametrize("owner", OWNERS, ids=lambda owner: owner.suffix)
def test_names_are_theirs(tmp_path: Path, owner: Owner) -> None:
    folder = tmp_path / "x"
    folder.mkdir()
    store = theirs(folder, owner)
    store.set("ab" * 32, torch.zeros(8, dtype=torch.uint8))
    assert os.listdir(folder) == [owner.file_name("ab" * 32)]


CASES = [
    (owner, order)
    for owner in OWNERS
    for order in MEMORY_LAYOUTS
    if not (owner.kind == "mla" and order == "page_head")
]


@pytest.mark.parametrize(("owner", "order"), CASES, ids=lambda part: getattr(part, "suffix", part))
def test_pages_go_both_ways(tmp_path: Path, owner: Owner, order: MemoryLayout) -> None:
    """Their pool's pages, as their controller stores them, are ours element by element."""
    host = HostBuffer(20, pool_of(owner).page_bytes)
    before = fill(host)
    names = page_hashes(range(24), 4)
    pool = StagingPool(pool_of(owner), order, 1)  # its flat pages: see the test of shapes below
    mine, other = ours(tmp_path, owner, host, order), theirs(tmp_path, owner)
    # We write, they read.
    assert mine.write(((0, 3),), names[:3]) == 3
    assert other.batch_exists(names) == 3
    targets = [pool.get_dummy_flat_data_page() for _ in names[:3]]
    for i, page in enumerate(other.batch_get(names[:3], targets)):
        pool.set_from_flat_data_page(pool.first_token(0, i), page)
    pool.unload(0, host, [10, 11, 12])
    assert [bytes(host.view(10 + i, 1)) for i in range(3)] == before[:3]
    # They write, we read.
    pool.load(0, host, [3, 4, 5])
    values = [pool.get_data_page(pool.first_token(0, i)) for i in range(3)]
    assert other.batch_set(names[3:], values)
    assert mine.leading(names) == 6
    assert mine.read(names[3:], ((14, 3),)) == 3
    assert [bytes(host.view(14 + i, 1)) for i in range(3)] == before[3:6]
    mine.close()


def test_flat_pages_have_the_shapes_of_their_pools() -> None:
    """By what the package's pools say of a flat page, read from their source's own reshape."""
    import ast

    from published import FOLDER, version

    source = FOLDER / version() / "sglang" / "srt" / "mem_cache" / "pool_host" / "mha.py"
    tree = ast.parse(source.read_text())
    method = next(
        node
        for node in ast.walk(tree)
        if isinstance(node, ast.FunctionDef) and node.name == "set_from_flat_data_page"
    )
    found: list[list[str]] = []
    for call in ast.walk(method):
        if isinstance(call, ast.Call) and getattr(call.func, "attr", "") == "reshape":
            found.append([ast.unparse(each).removeprefix("self.") for each in call.args])
    shapes = {tuple(each for each in shape if each != "1") for shape in found}
    assert {
        ("2", "layer_num", "page_size", "head_num", "head_dim"),  # layer_first, page_first_direct
        ("2", "page_size", "layer_num", "head_num", "head_dim"),  # page_first
        ("2", "head_num", "page_size", "layer_num", "head_dim"),  # page_head
    } == shapes


@pytest.mark.parametrize("pages", [10, 33])
def test_the_same_files_leave(tmp_path: Path, pages: int) -> None:
    """A cap, random reads and writes: what is left in both folders is the same, all the time."""
    owner, rng = OWNERS[0], random.Random(pages)
    size = MHA.page_bytes
    host = HostBuffer(2, size)
    names = page_hashes(range(4 * 80), 4)
    folders = [tmp_path / "a", tmp_path / "b"]
    for folder in folders:
        folder.mkdir()
        for i, name in enumerate(names[:20]):
            path = folder / owner.file_name(name)
            path.write_bytes(bytes(size))
            os.utime(path, (1000 + i, 1000 + i))
    mine = ours(folders[0], owner, host, limit_bytes=pages * size)
    other = theirs(folders[1], owner, max_size=pages * size)
    for _ in range(600):
        name = rng.choice(names)
        if rng.random() < 0.5:
            wrote = mine.write(((0, 1),), [name])
            assert other.set(name, torch.zeros(size, dtype=torch.uint8)) == bool(wrote)
        else:
            got = other.get(name, torch.zeros(size, dtype=torch.uint8))
            assert (got is not None) == (mine.read([name], ((0, 1),)) == 1)
        there = [set(os.listdir(folder)) for folder in folders]
        assert there[0] == there[1]
    assert mine.room.evicted > 100
    mine.close()


def test_an_mla_replica_that_writes_nothing_finds_the_writers_pages(tmp_path: Path) -> None:
    owner = Owner(model="deepseek", kind="mla", tp_size=2)
    host = HostBuffer(4, MLA.page_bytes)
    names = page_hashes(range(4), 4)
    writer, reader = ours(tmp_path, owner, host), theirs(tmp_path, replace(owner, tp_rank=1))
    writer.write(((0, 1),), names)
    assert reader.batch_exists(names) == 1
    writer.close()
