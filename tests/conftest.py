"""All tests run from the sources: they patch classes, which a compiled engine does not allow. What
is about the compiled engine (tests/compiled) asks for it in processes of its own.
"""

import gc
import os

import pytest

os.environ["HICACHE_COMPILED"] = "0"


@pytest.fixture(scope="module", autouse=True)
def put_aside() -> None:
    """What stays to the end, some million objects of all tests and libraries, is not looked through
    at each collection: a full one takes most of a second then, and some runs make one a cell.
    """
    if not gc.get_freeze_count():
        gc.collect()
        gc.freeze()


def pytest_sessionfinish() -> None:
    """Let go of it as without."""
    gc.unfreeze()
