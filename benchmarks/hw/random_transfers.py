"""Random transfers over all back-ends, dtypes and layouts, compared page by page on the GPU.

Part of `transfers.py`. Every page holds a pattern of its tag. A transfer moves tags from list to
list in NumPy and bytes by the code under test; after every few transfers each page of both pools is
compared with its tag's pattern, whether it was moved or not, and all get new tags.
"""

from __future__ import annotations

import time

import numpy as np
import torch

from hw.pools import DevicePool, HostPool, KvLayout
from hw.transfers.auto import BACKENDS
from hw.transfers.backend import TransferBackend
from hw.transfers.driver import Driver
from hw.transfers.lists import runs_of
from hw.transfers.staged import Staged
from hw.transfers.zero_copy import ZeroCopy

# Transfers between two comparisons. After five, half of all pages have been written, and 95 of 144
# hold different tags; after 200 only 12 do: a page from the wrong place would hardly be seen.
BATCH = 5


def checked_layouts(dtypes: tuple[str, ...]) -> list[KvLayout]:
    """(layers, heads, K's dim, V's dim, page size): GQA, one-token pages, K unlike V, MLA, odd."""
    shapes = (
        (5, 2, 64, 64, 16), (3, 4, 128, 128, 1), (4, 2, 96, 64, 4), (6, 1, 576, 0, 1),
        (2, 1, 5, 3, 3),
    )  # fmt: skip
    return [
        KvLayout(
            layers=layers, kv_heads=heads, head_dim_k=k, head_dim_v=v, page_size_tokens=page_size,
            dtype=dtype,
        )
        for dtype in dtypes
        for layers, heads, k, v, page_size in shapes
    ]  # fmt: skip


class Checker:
    """Pools whose every page holds a pattern of its tag; copies move tags, and the GPU compares.

    The pattern is written and compared through tensors of pages in L2's order, made without any of
    the code under test.
    """

    def __init__(
        self, layout: KvLayout, driver: Driver | None, generator: np.random.Generator
    ) -> None:
        self.layout, self.generator = layout, generator
        self.device = "cpu" if driver is None else "cuda"
        self.device_pool = DevicePool(layout, 61, self.device)
        self.host_pool = HostPool(layout, 83, driver, chunk_bytes=40 * layout.page_bytes)
        small = 7 * self.host_pool.page_bytes
        pools = (self.device_pool, self.host_pool, driver)
        self.backends: dict[str, TransferBackend] = {
            "zero_copy": ZeroCopy(*pools),
            "direct": BACKENDS["direct"](*pools),
            "staged": Staged(*pools),
            "staged_by_cpu": Staged(*pools, chunk_bytes=small, run_bytes=1 << 30),
            "staged_by_dma": Staged(*pools, chunk_bytes=small, run_bytes=1),
            "staged_by_rows": Staged(*pools, chunk_bytes=small, run_bytes=1, row_layers=2),
        }
        if driver is None or driver.copies_batches:
            self.backends["direct_batch"] = BACKENDS["direct_batch"](*pools)
        self.device_tags = np.zeros(61, np.int64)
        self.host_tags = np.zeros(83, np.int64)

    def pattern(self, tags: np.ndarray) -> torch.Tensor:
        """uint8 tensor of shape (pages, page_bytes), as L2 holds them."""
        places = torch.arange(self.layout.page_bytes, dtype=torch.int64, device=self.device)
        mixed = torch.from_numpy(tags).to(self.device)[:, None] * 0x9E3779B1 + places * 0x85EBCA6B
        mixed ^= mixed >> 15
        return ((mixed * 0x2C1B3C6D) >> 13 & 0xFF).to(torch.uint8)

    def device_pages(self) -> torch.Tensor:
        """L1's bytes in L2's order, a view of the pool cut and put together by PyTorch."""
        layout, pages = self.layout, self.device_pool.pages
        k_total = layout.layers * pages * layout.k_bytes
        parts = [self.device_pool.data[:k_total].view(layout.layers, pages, layout.k_bytes)]
        if layout.v_bytes:
            rest = self.device_pool.data[k_total:]
            parts.append(rest.view(layout.layers, pages, layout.v_bytes))
        return torch.cat(parts, 2).permute(1, 0, 2).reshape(pages, -1)

    def refill(self) -> None:
        """New tags, new bytes, everywhere."""
        layout, pages = self.layout, self.device_pool.pages
        tags = self.generator.integers(1, 1 << 40, pages + self.host_pool.pages)
        self.device_tags, self.host_tags = tags[:pages].copy(), tags[pages:].copy()
        page = self.pattern(self.device_tags).view(pages, layout.layers, layout.layer_bytes)
        page = page.permute(1, 0, 2)
        parts = [page[:, :, : layout.k_bytes], page[:, :, layout.k_bytes :]]
        self.device_pool.data.copy_(torch.cat([part.reshape(-1) for part in parts]))
        self.host_pool.data[:, : layout.page_bytes].copy_(self.pattern(self.host_tags).cpu())
        if self.device == "cuda":
            torch.cuda.synchronize()

    def wrong_pages(self) -> int:
        """How many pages of both pools hold another pattern than their tag's."""
        wrong = (self.device_pages() != self.pattern(self.device_tags)).any(1).sum()
        host = self.host_pool.data[:, : self.layout.page_bytes].clone().to(self.device)
        wrong += (host != self.pattern(self.host_tags)).any(1).sum()
        return int(wrong)

    def page_list(self, pages: int, count: int) -> np.ndarray:
        """Different pages: in random order, sorted, backwards, or one run."""
        kind = self.generator.integers(4)
        if kind == 0:
            first = self.generator.integers(pages - count + 1)
            return np.arange(first, first + count)
        found = self.generator.permutation(pages)[:count]
        return found if kind == 1 else np.sort(found)[:: 1 if kind == 2 else -1]

    def step(self) -> None:
        """One random transfer."""
        names = list(self.backends)
        backend = self.backends[names[self.generator.integers(len(names))]]
        count = int(self.generator.choice([0, 1, 2, 7, 20, 61]))
        device = self.page_list(self.device_pool.pages, count)
        host = self.page_list(self.host_pool.pages, count)
        lists = runs_of(device), runs_of(host)
        how = self.generator.integers(5)
        if how == 0:
            self.device_tags[device] = self.host_tags[host]
            load = backend.load_layers(lists[1], lists[0])
            load.wait_layer(self.layout.layers - 1)
            load.finish()
        elif how < 3:
            self.device_tags[device] = self.host_tags[host]
            backend.copy("h2d", lists[1], lists[0])
        else:
            self.host_tags[host] = self.device_tags[device]
            backend.copy("d2h", *lists)

    def close(self) -> None:
        for backend in self.backends.values():
            backend.close()
        self.host_pool.close()


def check(
    transfers: int, dtypes: tuple[str, ...], driver: Driver | None, batch: int = BATCH
) -> dict:
    """So many random transfers, spread over all layouts; every page compared after each batch."""
    generator = np.random.default_rng(1)
    layouts = checked_layouts(dtypes)
    each = -(-transfers // len(layouts))
    wrong = done = compared = found = 0
    start = time.monotonic()
    for layout in layouts:
        checker = Checker(layout, driver, generator)
        for first in range(0, each, BATCH):
            checker.refill()
            for _ in range(min(BATCH, each - first)):
                checker.step()
                done += 1
            found = checker.wrong_pages()
            if found:
                print(f"WRONG: {found} pages after {done} transfers, {layout}")
            wrong += found
            compared += len(checker.device_tags) + len(checker.host_tags)
        # That the comparison can see one wrong byte.
        checker.device_pool.data[17] ^= 1
        assert checker.wrong_pages() == found + 1
        checker.close()
    seconds = time.monotonic() - start
    print(
        f"check: {done} transfers, {len(layouts)} layouts, {compared} pages compared, "
        f"{wrong} wrong, {seconds:.1f} s"
    )
    return {
        "transfers": done, "layouts": len(layouts), "pages_compared": compared, "wrong": wrong,
        "seconds": round(seconds, 1),
    }  # fmt: skip
