"""Without time: an answer that is in the cache already is not cached twice, nor freed twice."""

from __future__ import annotations

import pytest

from hicache.integrity import check_integrity
from hicache.metrics import Metrics
from hicache.options import CacheOptions, EngineOptions
from hicache.requests import Request
from hicache.tree import HiRadixTree
from hicache.untimed import UntimedServer


@pytest.mark.parametrize("page_ids", ["named", "counted"])
def test_the_same_answer_again_leaves_every_page_in_one_place(page_ids) -> None:
    options = EngineOptions(
        page_size_tokens=2,
        bytes_per_token=1,
        device_pages=40,
        cache=CacheOptions(eviction_granularity="node"),
        page_ids=page_ids,
    )
    tree, metrics = HiRadixTree(options), Metrics()
    server = UntimedServer(tree, metrics, options)

    def ask(number: int, prompt: int, answer: int) -> None:
        """A prompt of so many pages, and an answer that fills so many: keys 0, 1, 2, ..."""
        server.serve(
            [
                Request(
                    number, -1, 2 * prompt, 2 * answer + 1, ((0, prompt),), prompt,
                    output_runs=((prompt, answer),),
                )
            ]
        )  # fmt: skip

    ask(0, 3, 4)
    ask(1, 3, 4)  # its answer, too, is there
    ask(2, 2, 7)  # so is the beginning of this one
    device = tree.tiers[0]
    assert device.resident == 9
    assert device.allocator.free == 40 - 9
    check_integrity(tree)
