"""Closing a store waits for whoever is inside, lets nobody in any more, and never for itself."""

from __future__ import annotations

import sys
import threading
import time

import pytest

from hw.storage.under_way import UnderWay


@pytest.fixture
def often():
    """Threads take turns all the time."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)


def test_nobody_is_inside_once_it_is_closed(often):
    for _ in range(60):
        under_way, closed, late, refused = UnderWay(), [], [], []

        def come_and_go(under_way=under_way, closed=closed, late=late, refused=refused) -> None:
            try:
                while True:
                    with under_way:
                        late.extend(closed)
            except AssertionError as error:
                refused.append(str(error))

        threads = [threading.Thread(target=come_and_go, daemon=True) for _ in range(4)]
        for thread in threads:
            thread.start()
        time.sleep(0.001)
        under_way.close()
        closed.append("closed")
        for thread in threads:
            thread.join(20)
        assert late == []
        assert refused == ["an operation on a closed file"] * 4


def test_it_does_not_wait_for_an_operation_of_its_own_thread():
    under_way = UnderWay()
    under_way.__enter__()  # and Ctrl-C before it was left
    closing = threading.Thread(target=under_way.close, daemon=True)
    closing.start()
    closing.join(0.05)
    assert closing.is_alive(), "another thread's is waited for"
    under_way.close()
    under_way.__exit__(None, None, None)
    closing.join(20)
    assert not closing.is_alive()
