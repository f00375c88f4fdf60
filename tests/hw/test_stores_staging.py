"""The berths of the memory that foreign stores are shown."""

from __future__ import annotations

import threading
from contextlib import suppress

import pytest

pytest.importorskip("torch")

from page_store_contract import LAYOUT

from hicache.errors import TransferError
from hw.stores.staging import StagingPool


def test_waiting_for_a_berth_ends_however_little_time_there_is():
    """As SimpleQueue.get(timeout=...) does not when its time is up before it waits."""
    ended = threading.Event()
    pool = StagingPool(LAYOUT, "page_first", 1)

    def waits() -> None:
        for _ in range(2000):
            berth = pool.take_berth(1.0)
            for timeout_s in (1e-9, 43e-9, 300e-9, 2e-6):
                with suppress(TransferError):
                    pool.take_berth(timeout_s)
                    raise AssertionError("it is taken")
            pool.give_berth(berth)
        ended.set()

    threading.Thread(target=waits, daemon=True).start()
    assert ended.wait(20)
