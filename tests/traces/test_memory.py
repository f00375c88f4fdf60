"""What is kept of each request of a long trace of conversations: bytes, not objects."""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable

from traces.cut import cutter_for
from traces.reuse import HitPlaces
from traces.rows import Layout, Row

SESSIONS, TURNS = 400, 16


def _kept_bytes(make: Callable[[], object]) -> int:
    tracemalloc.start()
    try:
        kept = make()
        size, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert kept is not None
    return size


def _rows(first_id: int):
    """Every turn goes on from the one before: two new pieces, of the user and of the answer."""
    for session in range(SESSIONS):
        ids: list[int] = []
        for turn in range(TURNS):
            place = first_id + 2 * (session * TURNS + turn)
            ids = [*ids, place]
            yield Row(
                576 * turn + 512, 64, 0, ids, [512, 64] * turn + [512], [place + 1], [64]
            )  # fmt: skip
            ids = [*ids, place + 1]


def test_a_piece_that_follows_another_takes_some_40_bytes() -> None:
    def cut() -> object:
        cutter = cutter_for(Layout(0), 64, "full")
        hits = sum(cutter.cut_row(row)[2] for row in _rows(1 << 40))
        assert hits == SESSIONS * sum(9 * turn for turn in range(TURNS)) - SESSIONS * (TURNS - 1)
        assert cutter.unique_blocks == 2 * SESSIONS * TURNS
        return cutter

    assert 40 < _kept_bytes(cut) / (2 * SESSIONS * TURNS) < 75


def test_hit_places_take_some_200_bytes_a_request() -> None:
    def take() -> object:
        places = HitPlaces()
        for session in range(SESSIONS):
            first = 10_000 * session
            for turn in range(TURNS):
                places.add([(first, 9 * (turn + 1))], 9 * (turn + 1))
        assert places.hits == SESSIONS * sum(9 * turn for turn in range(TURNS))
        return places

    assert _kept_bytes(take) / (SESSIONS * TURNS) < 250
