"""Where pages of KV cache lie: L1 in the device's memory, L2 in the host's, and the map from a page
to its addresses.

    L1  [K/V][layer][page][token][head][dim]     attention reads a layer's pages, wherever they are
        |K: layer 0: page 0, page 1, ...|K: layer 1: ...|...|V: layer 0: ...|

    L2  [page][layer][K/V][token][head][dim]     a page is one piece: one DMA, one slot of a file
        |page 0: |layer 0: K V|layer 1: K V|...| pad |page 1: ...

A *piece* is what both have in one: K, or V, of one page in one layer. Within an L2 page a layer's
bytes are consecutive, so that layers can be loaded one by one. K and V may differ in size; MLA has
one latent instead (no V). Refuses to know which pages are in use: the engine's allocators do.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import torch

from hicache.errors import InputError
from hw.pinned import ALIGNMENT_BYTES, PinnedMemory, Registrar

if TYPE_CHECKING:
    from scenario.geometry import ModelGeometry

# By the names that scenarios give them.
TORCH_DTYPES: dict[str, torch.dtype] = {
    "bf16": torch.bfloat16,
    "fp16": torch.float16,
    "fp8": torch.float8_e4m3fn,
    "fp32": torch.float32,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class KvLayout:
    """The shape of one page of KV cache.

    `head_dim_v` is 0 for MLA: then there is one head, and `head_dim_k` is the latent with its
    positional part (512 + 64). `dtype`: a key of TORCH_DTYPES.
    """

    layers: int
    kv_heads: int
    head_dim_k: int
    head_dim_v: int
    page_size_tokens: int
    dtype: str

    def __post_init__(self) -> None:
        sizes = (self.layers, self.kv_heads, self.head_dim_k, self.page_size_tokens)
        if min(sizes) < 1 or self.head_dim_v < 0:
            raise InputError(f"a KV layout needs sizes of at least 1, this one is {self}")
        if self.dtype not in TORCH_DTYPES:
            raise InputError(f"KV dtype {self.dtype!r}: it must be {', '.join(TORCH_DTYPES)}")
        if self.head_dim_v == 0 and self.kv_heads != 1:
            raise InputError(f"a layout without V (MLA) has one head, not {self.kv_heads}")

    @classmethod
    def of(cls, geometry: ModelGeometry, page_size_tokens: int) -> KvLayout:
        """The layout of a model's cache."""
        if geometry.kind == "mla":
            latent = geometry.kv_lora_rank + geometry.rope_head_dim
            heads, head_dim_k, head_dim_v = 1, latent, 0
        else:
            heads, head_dim_k, head_dim_v = (
                geometry.kv_heads, geometry.head_dim, geometry.v_head_dim
            )  # fmt: skip
        return cls(
            layers=geometry.layers,
            kv_heads=heads,
            head_dim_k=head_dim_k,
            head_dim_v=head_dim_v,
            page_size_tokens=page_size_tokens,
            dtype=geometry.kv_dtype,
        )

    @property
    def parts(self) -> int:
        """Pieces of a page in one layer: K and V, or the latent alone."""
        return 2 if self.head_dim_v else 1

    @property
    def k_bytes(self) -> int:
        """Size of a K piece: one page, one layer."""
        return self._piece_bytes(self.head_dim_k)

    @property
    def v_bytes(self) -> int:
        """Size of a V piece; 0 for MLA."""
        return self._piece_bytes(self.head_dim_v)

    @property
    def layer_bytes(self) -> int:
        """One layer of one page, K and V."""
        return self.k_bytes + self.v_bytes

    @property
    def page_bytes(self) -> int:
        """One page: all layers, K and V, without padding."""
        return self.layers * self.layer_bytes

    @property
    def torch_dtype(self) -> torch.dtype:
        """The elements' type."""
        return TORCH_DTYPES[self.dtype]

    def piece_bytes(self, part: int) -> int:
        """Size of a piece of part 0 (K, latent) or 1 (V)."""
        return self.v_bytes if part else self.k_bytes

    def piece_offset(self, part: int, layer: int) -> int:
        """Where a piece begins within its L2 page, in bytes."""
        return layer * self.layer_bytes + part * self.k_bytes

    def _piece_bytes(self, head_dim: int) -> int:
        return self.page_size_tokens * self.kv_heads * head_dim * self.torch_dtype.itemsize


class DevicePool:
    """L1: `pages` pages in a device's memory, cleared.

    data: uint8 tensor of shape (pages * page_bytes,), everything.
    k: tensor of shape (layers, pages, page_size, kv_heads, head_dim_k), a view of it.
    v: the same with head_dim_v; None for MLA.
    kv: tensor of shape (2, layers, pages, page_size, kv_heads, head_dim); None if K and V differ.
    """

    def __init__(self, layout: KvLayout, pages: int, device: torch.device | str) -> None:
        """Raises InputError if the device has not that much memory."""
        self.layout = layout
        self.pages = pages
        self.device = torch.device(device)
        size_bytes = pages * layout.page_bytes
        try:
            self.data = torch.zeros(size_bytes, dtype=torch.uint8, device=self.device)
        except RuntimeError as error:  # torch.OutOfMemoryError is one, the CPU allocator's another
            raise InputError(
                f"L1: {pages} pages of {layout.page_bytes} bytes do not fit into the memory of "
                f"{self.device}: {error}"
            ) from None
        self.address = self.data.data_ptr()
        self.v_start_bytes = layout.layers * pages * layout.k_bytes
        shape = (layout.layers, pages, layout.page_size_tokens, layout.kv_heads)
        typed = self.data.view(layout.torch_dtype)
        split = self.v_start_bytes // typed.element_size()
        self.k = typed[:split].view(*shape, layout.head_dim_k)
        self.v = typed[split:].view(*shape, layout.head_dim_v) if layout.head_dim_v else None
        same = layout.head_dim_v == layout.head_dim_k
        self.kv = typed.view(2, *shape, layout.head_dim_k) if same else None

    def piece_address(self, part: int, layer: int, page: int) -> int:
        """Where a piece lies."""
        size = self.layout.piece_bytes(part)
        return self.address + part * self.v_start_bytes + (layer * self.pages + page) * size

    def layer_pitch_bytes(self, part: int) -> int:
        """From a piece to that of the same page in the next layer."""
        return self.pages * self.layout.piece_bytes(part)


class HostPool:
    """L2: `pages` pages in host memory, page-major, each beginning at a multiple of `page_bytes`.

    page_bytes: from one page to the next; more than the layout's where pages are padded to
    `align_bytes` (4096 lets O_DIRECT read straight into any page).
    k, v: the permuted views: the same shapes as DevicePool's, over this memory.
    It is what a file store calls host memory: address, page_bytes, pages, view.
    """

    def __init__(
        self,
        layout: KvLayout,
        pages: int,
        registrar: Registrar | None = None,
        *,
        align_bytes: int = 1,
        register: Literal["start", "lazy"] = "start",
        limit_bytes: int | None = None,
        progress: Callable[[int, int], object] | None = None,
        **options: Any,
    ) -> None:
        """The rest: see `hw.pinned.PinnedMemory`. Raises InputError."""
        self.layout = layout
        self.pages = pages
        # 16, so that the device can move 16 bytes at a time wherever the pieces allow it.
        wanted = max(align_bytes, 16 if layout.page_bytes % 16 == 0 else 1)
        self.page_bytes = -(-layout.page_bytes // wanted) * wanted
        self.memory = PinnedMemory(
            pages * self.page_bytes,
            registrar,
            page_bytes=self.page_bytes,
            register=register,
            limit_bytes=limit_bytes,
            progress=progress,
            **options,
        )
        self.address = self.memory.address
        # Pages from one of its multiples to the next are pinned as one: a copy may span them.
        self.pages_per_chunk = self.memory.chunk_bytes // self.page_bytes
        data = torch.frombuffer(self.memory.view, dtype=torch.uint8)
        self.data = data.view(pages, self.page_bytes)
        self.k = self._permuted(0, layout.head_dim_k)
        self.v = self._permuted(1, layout.head_dim_v) if layout.head_dim_v else None

    def view(self, first: int, count: int) -> memoryview:
        """The bytes of `count` pages, padding too, to read and write."""
        assert 0 <= first <= first + count <= self.pages, (first, count, self.pages)
        return self.memory.view[first * self.page_bytes : (first + count) * self.page_bytes]

    def piece_address(self, part: int, layer: int, page: int) -> int:
        """Where a piece lies."""
        return self.address + page * self.page_bytes + self.layout.piece_offset(part, layer)

    def page_address(self, page: int) -> int:
        """Where a page begins."""
        return self.address + page * self.page_bytes

    def pin(self, first: int, count: int) -> int:
        """See that pages are pinned; how long that took, in ns. See `PinnedMemory.pin`."""
        return self.memory.pin(first * self.page_bytes, count * self.page_bytes)

    @property
    def aligned(self) -> bool:
        """Whether every page begins where O_DIRECT can read to."""
        return self.page_bytes % ALIGNMENT_BYTES == 0

    def close(self) -> None:
        """Unpin the memory and give it back. Its tensors must not be used afterwards."""
        del self.data, self.k, self.v
        self.memory.close()

    def _permuted(self, part: int, head_dim: int) -> torch.Tensor:
        """(layers, pages, tokens, heads, dim) over page-major bytes: strides do it, no copy."""
        layout, size = self.layout, self.layout.torch_dtype.itemsize
        start = layout.piece_offset(part, 0)
        if self.page_bytes % size:
            raise InputError(f"a page of {self.page_bytes} bytes holds no whole {layout.dtype}")
        typed = self.data.view(-1).view(layout.torch_dtype)
        token = layout.kv_heads * head_dim
        return typed.as_strided(
            (layout.layers, self.pages, layout.page_size_tokens, layout.kv_heads, head_dim),
            (layout.layer_bytes // size, self.page_bytes // size, token, head_dim, 1),
            start // size,
        )
