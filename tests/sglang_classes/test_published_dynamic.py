"""Foreign classes as stores: one of another project, and SGLang's own, loaded by name."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from page_store_contract import LAYOUT, host, names
from published import ROOT, THIRD_PARTY, load

from hw.storage.host import HostBuffer
from hw.stores.dynamic import DynamicStore
from hw.stores.foreign import storage_config
from hw.stores.names import Owner
from hw.stores.page_order import PageOrder, PageShape
from hw.stores.sglang_file import SglangFileStore

__all__ = ["host"]
OWNER = Owner(model="Qwen/Qwen3-8B")


@pytest.fixture(autouse=True)
def interface() -> Iterator[None]:
    """SGLang's interface can be imported; nobody logs."""
    load("hicache_storage")
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)


def test_a_class_of_another_project() -> None:
    """PeerCache by its v1 calls: the contract of every store, and what becomes of it broken."""
    if not (THIRD_PARTY / "peercache").is_dir():
        pytest.skip("peercache is not under build/sglang/third-party: `make test-sglang`")
    ran = subprocess.run(
        [
            sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-o", "filterwarnings=",
            "peercache_checks.py",
        ],
        cwd=Path(__file__).parent,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )  # fmt: skip
    assert ran.returncode == 0, ran.stdout[-3000:]
    assert " passed" in ran.stdout
    assert "skipped" not in ran.stdout


def test_sglangs_file_store_by_name_is_our_file_store(tmp_path: Path, host: HostBuffer) -> None:
    """Their class through `dynamic` and our store take each other's pages from one folder."""
    load("storage.file.lru_file_evictor")
    module = "sglang.srt.mem_cache.hicache_storage"
    config = {"file_storage_path": str(tmp_path)}
    if "file_storage_path" not in Path(sys.modules[module].__file__ or "").read_text():
        pytest.skip("in this version `dynamic` cannot tell it its folder")
    theirs = DynamicStore(module, "HiCacheFile", OWNER, LAYOUT, host, extra_config=config)
    ours = SglangFileStore(tmp_path, OWNER, PageOrder(PageShape.of(LAYOUT), "page_first"), host)
    keys, before = names(8), [bytes(host.view(i, 1)) for i in range(8)]
    assert theirs.write(((0, 4),), keys[:4]) == 4
    assert ours.write(((4, 4),), keys[4:]) == 4
    for store, at in ((ours, 20), (theirs, 40)):
        assert store.leading(keys) == 8
        assert store.read(keys, ((at, 8),)) == 8
        assert [bytes(host.view(at + i, 1)) for i in range(8)] == before
    ours.close()
    theirs.close()


def test_their_configuration_is_theirs(host: HostBuffer) -> None:
    """Where SGLang is there, a class gets its configuration object, not one that looks like it."""
    module = "sglang.srt.mem_cache.hicache_storage"
    config = storage_config(OWNER, {"a": 1}, "page_first")
    assert isinstance(config, sys.modules[module].HiCacheStorageConfig)
    assert (config.model_name, config.extra_config) == ("Qwen/Qwen3-8B", {"a": 1})
