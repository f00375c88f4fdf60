"""The host memory that a foreign store is shown: pages in SGLang's order, between it and L2.

    L2 page (our order) <-- encode, decode --> staging page (SGLang's) <-- the store

L2 keeps a layer's bytes together; SGLang's zero-copy layouts keep K and V apart, so a store that
reads its pool in place cannot be given L2. It gets this pool instead. The pool is cut into berths:
an operation takes one, and a call that never returns keeps its own, so that whatever it writes, and
whenever, lands in memory that nobody else uses.

    | berth 0: 128 pages | berth 1: 128 pages | ...

The attributes and methods are those of SGLang's host pools that its stores use, by their names.
"""

from __future__ import annotations

import queue
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
import torch

from hicache.errors import InputError, TransferError
from hw.stores.page_order import MemoryLayout, PageOrder, PageShape

if TYPE_CHECKING:
    from hw.pools import KvLayout
    from hw.storage.host import HostMemory

# What SGLang's stores are given at once.
BATCH_PAGES = 128


class StagingPool:
    """`berths` times `BATCH_PAGES` pages.

    kv_buffer: everything, in the shape of SGLang's pools of this layout. `size`: tokens.
    """

    def __init__(self, layout: KvLayout, memory_layout: MemoryLayout, berths: int) -> None:
        """Raises InputError for a model or a layout that SGLang stores no pages of, and without the
        memory.
        """
        self.order = PageOrder(PageShape.of(layout), memory_layout)
        shape = self.order.shape
        self.layout: MemoryLayout = memory_layout
        self.page_size = shape.tokens
        self.page_num = berths * BATCH_PAGES
        self.size = self.logical_size = self.page_num * self.page_size
        self.layer_num = shape.layers
        self.start_layer, self.end_layer = 0, shape.layers
        self.head_num = shape.heads
        self.head_dim = layout.head_dim_k
        self.dtype = layout.torch_dtype
        self.device = "cpu"
        self.pin_memory = False
        self.size_per_token = shape.page_bytes // shape.tokens
        self._mla = shape.parts == 1
        try:
            self.kv_buffer = torch.zeros(self._dims(), dtype=self.dtype)
        except RuntimeError as error:
            raise InputError(
                f"no memory for a staging pool of {self.page_num} pages of {shape.page_bytes} "
                f"bytes: {error}"
            ) from None
        if not self._mla:
            self.k_buffer, self.v_buffer = self.kv_buffer[0], self.kv_buffer[1]
        # Not a SimpleQueue: a `get` whose time is up may wait for ever there (see hw.machine).
        self._berths: queue.Queue[int] = queue.Queue()
        for berth in range(berths):
            self._berths.put(berth)

    def take_berth(self, timeout_s: float) -> int:
        """A berth that nobody uses. Raises TransferError if none becomes free in time."""
        try:
            return self._berths.get(timeout=timeout_s)
        except queue.Empty:
            raise TransferError(
                "no staging memory is free: every earlier call to the store still holds its own"
            ) from None

    def give_berth(self, berth: int) -> None:
        """Its user is done with it."""
        self._berths.put(berth)

    def first_token(self, berth: int, index: int = 0) -> int:
        """Where page `index` of a berth begins, in tokens, as SGLang's indices count."""
        return (berth * BATCH_PAGES + index) * self.page_size

    def host_indices(self, berth: int, pages: int) -> torch.Tensor:
        """int64 tensor of shape (pages * page_size,): the tokens of a berth's first pages."""
        first = self.first_token(berth)
        return torch.arange(first, first + pages * self.page_size, dtype=torch.int64)

    def load(self, berth: int, host: HostMemory, pages: Sequence[int]) -> None:
        """L2 pages -> the berth's first pages."""
        for i, page in enumerate(pages):
            content = torch.from_numpy(self.order.encode(host.view(page, 1)))
            self.set_from_flat_data_page(self.first_token(berth, i), content.view(self.dtype))

    def unload(self, berth: int, host: HostMemory, pages: Sequence[int]) -> None:
        """The berth's first pages -> L2 pages."""
        for i, page in enumerate(pages):
            content = self.get_data_page(self.first_token(berth, i))
            self.put(content, host, page)

    def put(self, content: torch.Tensor, host: HostMemory, page: int) -> None:
        """One flat page in SGLang's order -> an L2 page."""
        flat = content.detach().contiguous().reshape(-1).view(torch.uint8)
        self.order.decode(np.asarray(flat.numpy()), host.view(page, 1))

    # ------------------------------------------------------------------ as SGLang's pools

    def get_size_per_token(self) -> int:
        """Bytes of a token, all layers, K and V."""
        return self.size_per_token

    def get_ksize_per_token(self) -> int:
        """Bytes of a token's K, all layers."""
        return self.size_per_token // self.order.shape.parts

    def get_data_page(self, index: int, flat: bool = True) -> torch.Tensor:
        """The page whose first token is `index`."""
        page = self._page(int(index))
        return page.flatten() if flat else page

    def get_dummy_flat_data_page(self) -> torch.Tensor:
        """Room for one page, cleared."""
        elements = self.order.shape.page_bytes // self.dtype.itemsize
        return torch.zeros(elements, dtype=self.dtype)

    def set_from_flat_data_page(self, index: int, data_page: torch.Tensor) -> None:
        """Put a flat page where the page of token `index` is."""
        page = self._page(int(index))
        page.copy_(data_page.reshape(page.shape))

    def get_page_buffer_meta(self, indices: torch.Tensor) -> tuple[list[int], list[int]]:
        """Addresses and sizes of the pieces of the pages with these tokens: K, V, K, V, ..., or one
        piece a page for MLA.
        """
        if self.layout == "layer_first":
            raise ValueError("pages of layout layer_first are no single pieces of memory")
        shape = self.order.shape
        piece_bytes = shape.page_bytes // shape.parts
        base = self.kv_buffer.data_ptr()
        addresses: list[int] = []
        for index in indices.tolist()[:: self.page_size]:
            for part in range(shape.parts):
                place = part * self.page_num + index // self.page_size
                addresses.append(base + place * piece_bytes)
        return addresses, [piece_bytes] * len(addresses)

    def _dims(self) -> tuple[int, ...]:
        tokens, layers, heads = self.page_size, self.layer_num, self.head_num
        dims: dict[MemoryLayout, tuple[int, ...]] = {
            "layer_first": (layers, self.size, heads, self.head_dim),
            "page_first": (self.size, layers, heads, self.head_dim),
            "page_first_direct": (self.page_num, layers, tokens, heads, self.head_dim),
            "page_head": (self.page_num, heads, tokens, layers, self.head_dim),
        }
        chosen = dims[self.layout]
        return chosen if self._mla else (2, *chosen)

    def _page(self, index: int) -> torch.Tensor:
        tokens = slice(index, index + self.page_size)
        number = index // self.page_size
        pages = slice(number, number + 1)
        where: dict[MemoryLayout, tuple[slice, ...]] = {
            "layer_first": (slice(None), tokens),
            "page_first": (tokens,),
            "page_first_direct": (pages,),
            "page_head": (pages,),
        }
        chosen = where[self.layout]
        return self.kv_buffer[chosen if self._mla else (slice(None), *chosen)]
