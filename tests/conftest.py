"""All tests run from the sources: they patch classes, which a compiled engine does not allow. What
is about the compiled engine (tests/compiled) asks for it in processes of its own.
"""

import gc
import os

import pytest

os.environ["HICACHE_COMPILED"] = "0"


_frozen = 0


@pytest.fixture(scope="module", autouse=True)
def put_aside() -> None:
    """What stays to the end, some million objects of all tests and libraries, is not looked through
    at each collection: a full one takes most of a second then, and some runs make one a cell.
    """
    global _frozen  # noqa: PLW0603
    now = gc.get_freeze_count()
    if now and now <= _frozen:
        return
    # The first time; or a run of the file before has let go of it, or put away what it left.
    gc.unfreeze()
    gc.collect()
    gc.freeze()
    _frozen = gc.get_freeze_count()


def pytest_sessionfinish() -> None:
    """Let go of it as without."""
    gc.unfreeze()
