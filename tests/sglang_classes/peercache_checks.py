"""PeerCache, a class that another project published for SGLang's `dynamic` (PyPI: peercache).

Its threads go on after it is closed, and leave sockets open: `test_published_dynamic` runs this
file in a process of its own.
"""

from __future__ import annotations

import importlib.util
import logging
import socket
import sys
from pathlib import Path
from typing import Any

import pytest
from page_store_contract import LAYOUT, PageStoreContract, host, names
from published import THIRD_PARTY, load

from hicache.errors import TransferError
from hw.storage.host import HostBuffer
from hw.stores.dynamic import DynamicStore
from hw.stores.names import Owner

__all__ = ["host"]
OWNER = Owner(model="Qwen/Qwen3-8B")
load("hicache_storage")
sys.path.insert(0, str(THIRD_PARTY))
logging.disable(logging.CRITICAL)


def peercache(host: HostBuffer, **options: Any) -> DynamicStore:
    """PeerCache (PyPI), one node that is its own directory, over TCP on this machine."""
    if importlib.util.find_spec("peercache") is None:
        pytest.skip("peercache is not under build/sglang/third-party: `make test-sglang`")
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    here = {f"{what}_bind_host": "127.0.0.1" for what in ("rdma", "control", "meta")}
    return DynamicStore(
        "peercache.store",
        "PeerCacheStore",
        OWNER,
        LAYOUT,
        host,
        extra_config={
            "backend_name": "peercache",
            "interface_v1": 1,
            "discovery_addr": f"127.0.0.1:{port}",
            "local_hostname": "127.0.0.1",
            "protocol": "tcp",
            "global_segment_size": 4 << 20,
            "disk_enabled": False,
            "metrics_enabled": False,
            **here,
        },
        **options,
    )


class TestPeerCache(PageStoreContract):
    """A class that another project published for SGLang's `dynamic`, by its v1 calls."""

    def make(self, folder: Path, host: HostBuffer) -> DynamicStore:
        return peercache(host)

    def test_a_name_that_is_there_is_left_as_it_is(self, tmp_path: Path, host: HostBuffer) -> None:
        """It is the class that decides, and this one takes the new page (same name, same KV)."""
        store, keys = self.make(tmp_path, host), names(2)
        assert store.write(((0, 2),), keys) == 2
        assert store.write(((8, 2),), keys) == 2
        assert store.read(keys, ((20, 2),)) == 2
        store.close()


def test_it_is_sglangs_interface(host: HostBuffer) -> None:
    store = peercache(host)
    assert store.interface == "v1"
    interface = sys.modules["sglang.srt.mem_cache.hicache_storage"].HiCacheStorage
    assert isinstance(store._store, interface)
    store.close()


def test_a_store_that_breaks_down_fails_its_operations_and_no_more(host: HostBuffer) -> None:
    store, keys = peercache(host, timeout_s=5.0), names(3)
    store.write(((0, 3),), keys)
    store._store.close()
    for _ in range(3):
        try:
            outcome: object = store.read(keys, ((20, 3),))
        except TransferError as error:
            outcome = str(error)
        assert outcome in range(4) or "PeerCacheStore" in str(outcome)
    store.close()
