"""L1 and L2 against SGLang's HiRadixCache (0.5.20) under write_back: hits in both tiers.

Theirs copies an evicted node alone, ours with what L2 lacks in front of it, so that L2 holds whole
prefixes. That is all that differs, and it costs room in L2: with an L2 smaller than L1 its hits
were up to a fifth fewer, those of both tiers together at most 3 in 100.
"""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
from published import missing, version
from served import Ask, branches, rewinds, sessions
from served_hi import OursWithL2, TheirsWithL2

SEEDS = 8
REQUESTS = 150
PAGES = 40

Work = Callable[[int, int], list[Ask]]
WORKS = pytest.mark.parametrize("work", [sessions, rewinds, branches], ids=lambda f: f.__name__)


@pytest.fixture(autouse=True)
def _only_where_it_is() -> None:
    if not missing() and version() != "0.5.20":
        pytest.skip("0.5.20 alone publishes HiRadixCache as a class of its own")


class WritesBack(TheirsWithL2):
    """HiRadixCache under write_back; its controller is done with a copy at once."""

    def make(self, params: Any) -> Any:
        cache = super().make(params)
        controller, write = self.controller, self.controller.write
        controller.write_policy = "write_back"

        def noted(device_indices: Any, node_id: int, **more: Any) -> Any:
            taken = write(device_indices, node_id, **more)
            if taken is not None:
                done = SimpleNamespace(synchronize=lambda: None)
                controller.ack_write_queue.append(
                    SimpleNamespace(finish_event=done, node_ids=[node_id], num_tokens_by_pool={})
                )
            return taken

        controller.write = noted
        return cache


def hits(work: Work, host_pages: int, monkeypatch: pytest.MonkeyPatch) -> list[list[int]]:
    """Hit pages by tier: ours, theirs; of all seeds together."""
    totals = [[0, 0], [0, 0]]
    for seed in range(SEEDS):
        ours = OursWithL2(
            PAGES, host_pages, write_policy="write_back", l2_victims="not_in_l1",
            l2_eviction_amount="request",
        )  # fmt: skip
        theirs = WritesBack(PAGES, host_pages)
        for ask in work(seed, REQUESTS):
            for total, outcome in zip(
                totals, (ours.serve_hi(ask, monkeypatch), theirs.serve_hi(ask)), strict=True
            ):
                total[0] += outcome.device_hits
                total[1] += outcome.host_hits
    return totals


@WORKS
def test_with_room_in_l2_hits_are_theirs(work: Work, monkeypatch: pytest.MonkeyPatch) -> None:
    ours, theirs = hits(work, 4000, monkeypatch)
    assert ours == theirs
    assert ours[1] > 20


@WORKS
@pytest.mark.parametrize("host_pages", [30, 60, 80])
def test_with_a_small_l2_hits_are_close(
    work: Work, host_pages: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    ours, theirs = hits(work, host_pages, monkeypatch)
    assert sum(ours) == pytest.approx(sum(theirs), rel=0.03)
