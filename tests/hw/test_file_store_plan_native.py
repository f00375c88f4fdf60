"""Page lists as requests by C: what `plan.c` makes is what Python makes."""

from __future__ import annotations

import random

import numpy as np
import pytest
from file_store_helpers import content, runs
from native_calls import plan_without_headers
from native_stores import PAGE, made, open_store, use_it

from hicache.operations import PageRuns
from hw.storage import plan_native
from hw.storage.file_store import FileStore
from hw.storage.host import HostBuffer

__all__ = ["made", "use_it"]


@pytest.fixture(params=["with Python's headers", "without"])
def use_either(request, made, use_it, monkeypatch) -> None:
    """`use_it`, with the plan made in either way."""
    if request.param == "without":
        monkeypatch.setattr(plan_native, "library", lambda: plan_without_headers(made))


def glued(rows: list[list[int]]) -> list[list[int]]:
    """Rows that go on where the one before them ended, as one."""
    put: list[list[int]] = []
    for position, memory, size in rows:
        last = put[-1] if put else [0, 0, -1]
        if [last[0] + last[2], last[1] + last[2]] == [position, memory]:
            last[2] += size
        else:
            put.append([position, memory, size])
    return put


def lists_of(seed: random.Random, slots: int, pages: int) -> tuple[PageRuns, PageRuns]:
    """Two lists of one length, of runs that may be empty, or meet."""
    total, cut = seed.choice((0, 1, 2, 40, 900, 3000)), seed.choice((1, 1, 3, 60))
    made: list[PageRuns] = []
    for capacity in (slots, pages):
        some: list[tuple[int, int]] = []
        left = total
        while left:
            count = min(left, seed.randint(seed.choice((0, 1)), cut))
            first = sum(some[-1]) if some and seed.random() < 0.4 else capacity
            if first + count > capacity:
                first = seed.randrange(capacity - count + 1)
            some.append((first, count))
            left -= count
        made.append(tuple(some))
    if seed.random() < 0.3:  # cut at the same places
        made[1] = tuple((seed.randrange(pages - count + 1), count) for _, count in made[0])
    return made[0], made[1]


@pytest.mark.parametrize("last_bytes", [0, 4096, 65536])
def test_the_plan_in_c_is_the_one_of_python(tmp_path, use_either, last_bytes):
    host = HostBuffer(700, 12288)
    store = FileStore(tmp_path, 500, 12288, host, workers=16, request_bytes=1 << 20)
    plan = store._plan
    assert plan is not None
    seed = random.Random(7)
    for _ in range(300):
        slots, pages = lists_of(seed, 500, 700)
        parts = list(plan.parts(slots, pages, last_bytes))
        theirs = list(plan._otherwise(slots, pages, last_bytes))
        rows, others = ([row for part in each for row in part.tolist()] for each in (parts, theirs))
        assert glued(rows) == glued(others)
        if len(parts) == 1 and len(slots) <= plan_native.FIRST_RUNS:
            assert rows == others
        assert not last_bytes or all(size <= last_bytes for *_, size in rows[-16:])
        assert all(part.flags.c_contiguous for part in parts)
    store.close()


@pytest.mark.parametrize("more", [1, 15, 16, 17])
def test_the_last_requests_are_cut_however_little_is_left_behind_the_first_part(
    tmp_path, use_it, more
):
    store, _ = open_store(tmp_path, 2 * (plan_native.FIRST_RUNS + more), workers=16)
    plan, apart = store._plan, runs(range(0, 2 * (plan_native.FIRST_RUNS + more), 2))
    assert plan is not None
    rows = np.concatenate(list(plan.parts(apart, apart, PAGE // 2)))
    assert rows[:, 2].sum() == len(apart) * PAGE
    assert set(rows[-32:, 2].tolist()) == {PAGE // 2}  # 16 pages
    store.close()


def test_what_the_plan_in_c_does_not_take_is_as_before(tmp_path, use_either, monkeypatch):
    monkeypatch.setattr(plan_native, "FIRST_RUNS", 2)
    store, host = open_store(tmp_path, 40)
    store.write(((0, 40),), ((0, 40),))
    pages = content(host)
    order = [(slot, 1) for slot in range(39, -1, -1)]
    store.read(order, tuple((slot + 40, 1) for slot in range(40)))  # type: ignore[arg-type]
    assert content(host)[40:] == pages[39::-1]
    fine = tuple((slot, 1) for slot in range(30))
    wrong = AssertionError, TypeError, ValueError, OverflowError
    for bad in ((80, 1), (-1, 1), (79, 2), (0, -1), (1 << 70, 1), (0,), 7):
        for slots, others in (((*fine, bad), (*fine, (30, 1))), ((*fine, (30, 1)), (*fine, bad))):
            with pytest.raises(wrong):
                store.read(slots, others)  # type: ignore[arg-type]
    with pytest.raises(AssertionError, match="different lengths"):
        store.read(fine, fine[:20])
    store.read(fine, fine)
    store.close()
