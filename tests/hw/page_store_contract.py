"""What every store of pages must do: inherited by the tests of each."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
from file_store_helpers import content, fill, runs

from hw.pools import KvLayout
from hw.storage.host import HostBuffer
from hw.stores.contract import PageStore
from traces.page_hash import page_hashes

LAYOUT = KvLayout(
    layers=3, kv_heads=2, head_dim_k=4, head_dim_v=4, page_size_tokens=4, dtype="bf16"
)
MLA = KvLayout(layers=3, kv_heads=1, head_dim_k=6, head_dim_v=0, page_size_tokens=4, dtype="bf16")
PAGES = 300


def names(pages: int, start: int = 0) -> list[str]:
    """Names of a prompt's first pages."""
    return page_hashes(range(start, start + 4 * pages), 4)


@pytest.fixture
def host() -> HostBuffer:
    """L2, each page with bytes of its own."""
    memory = HostBuffer(PAGES, LAYOUT.page_bytes)
    fill(memory)
    return memory


class PageStoreContract:
    """`make(folder, host)` opens a store; what it keeps lies in `folder`, if it keeps anything."""

    def make(self, folder: Path, host: HostBuffer) -> PageStore:
        raise NotImplementedError

    def test_pages_come_back_as_they_went(self, tmp_path: Path, host: HostBuffer) -> None:
        store, keys, before = self.make(tmp_path, host), names(7), content(host)
        there = [3, 4, 5, 40, 2, 1, 0]
        assert store.leading(keys) == 0
        assert store.write(runs(there), keys) == 7
        assert store.leading(keys) == 7
        target = [10, 11, 30, 31, 32, 7, 9]
        assert store.read(keys, runs(target)) == 7
        after = content(host)
        for source, page in zip(there, target, strict=True):
            assert after[page] == before[source]
        untouched = set(range(PAGES)) - set(target)
        assert all(after[page] == before[page] for page in untouched)
        store.close()
        store.close()

    def test_answers_end_at_the_first_gap(self, tmp_path: Path, host: HostBuffer) -> None:
        store, keys, before = self.make(tmp_path, host), names(6), content(host)
        assert store.write(((0, 3),), keys[:3]) == 3
        assert store.write(((4, 2),), keys[4:]) == 2
        assert store.leading(keys) == 3
        assert store.leading(keys[3:]) == 0
        assert store.leading(keys[4:]) == 2
        assert store.leading([]) == 0
        assert store.read(keys, ((20, 6),)) == 3
        assert content(host)[20:23] == before[:3]
        store.close()

    def test_a_name_that_is_there_is_left_as_it_is(self, tmp_path: Path, host: HostBuffer) -> None:
        store, keys, before = self.make(tmp_path, host), names(2), content(host)
        assert store.write(((0, 2),), keys) == 2
        assert store.write(((8, 2),), keys) == 2
        assert store.read(keys, ((20, 2),)) == 2
        assert content(host)[20:22] == before[:2]
        store.close()

    def test_more_pages_than_one_batch(self, tmp_path: Path, host: HostBuffer) -> None:
        store, keys, before = self.make(tmp_path, host), names(140), content(host)
        order = list(range(140))
        random.Random(1).shuffle(order)
        assert store.write(runs(order), keys) == 140
        assert store.leading(keys) == 140
        assert store.read(keys, ((150, 140),)) == 140
        assert content(host)[150:290] == [before[page] for page in order]
        store.close()

    def test_it_says_what_it_is(self, tmp_path: Path, host: HostBuffer) -> None:
        store = self.make(tmp_path, host)
        assert store.name in store.describe()
        assert "\n" not in store.describe()
        store.close()
