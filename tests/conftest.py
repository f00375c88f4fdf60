"""All tests run from the sources: they patch classes, which a compiled engine does not allow. What
is about the compiled engine (tests/compiled) asks for it in processes of its own.
"""

import gc
import os

import pytest

os.environ["HICACHE_COMPILED"] = "0"
# The tests already take every core, and small tensors are not worth a second thread, which waits
# for its work in a loop: a third of what the tests of the model took.
for each in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
    os.environ.setdefault(each, "1")


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
