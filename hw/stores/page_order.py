"""The bytes of a page, in our order and in SGLang's.

    ours                [layer][K/V][token][head][dim]      a layer's bytes lie together
    layer_first         [K/V][layer][token][head][dim]      page_first_direct: the same bytes
    page_first          [K/V][token][layer][head][dim]
    page_head           [K/V][head][token][layer][dim]

MLA has one latent and no V: [layer][token][dim], and under page_first [token][layer][dim]. What is
written is the page as SGLang's flat view of its host memory shows it. Models whose K and V differ
in size have no such view there, so none here. This module moves bytes about; it reads no file.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, get_args

import numpy as np
import numpy.typing as npt

from hicache.errors import InputError

if TYPE_CHECKING:
    from hw.pools import KvLayout

MemoryLayout = Literal["layer_first", "page_first", "page_first_direct", "page_head"]
MEMORY_LAYOUTS: tuple[MemoryLayout, ...] = get_args(MemoryLayout)
Bytes = npt.NDArray[np.uint8]

# Where our axes (layer 0, K/V 1, token 2, head 3, bytes of a head 4) go.
_AXES: dict[MemoryLayout, tuple[int, ...]] = {
    "layer_first": (1, 0, 2, 3, 4),
    "page_first": (1, 2, 0, 3, 4),
    "page_first_direct": (1, 0, 2, 3, 4),
    "page_head": (1, 3, 2, 0, 4),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class PageShape:
    """One page of one rank. `parts`: 2 for K and V, 1 for MLA. `head_bytes`: one head of one token
    of one part.
    """

    layers: int
    parts: int
    tokens: int
    heads: int
    head_bytes: int

    @classmethod
    def of(cls, layout: KvLayout) -> PageShape:
        """Of a pool's pages. Raises InputError where K and V differ in size."""
        if layout.parts == 2 and layout.k_bytes != layout.v_bytes:
            raise InputError(
                f"pages whose K and V differ in size ({layout.head_dim_k} and {layout.head_dim_v} "
                "a head) cannot be stored in SGLang's format: it has none for them"
            )
        return cls(
            layers=layout.layers,
            parts=layout.parts,
            tokens=layout.page_size_tokens,
            heads=layout.kv_heads,
            head_bytes=layout.head_dim_k * layout.torch_dtype.itemsize,
        )

    @property
    def page_bytes(self) -> int:
        """One page, without padding."""
        return self.layers * self.parts * self.tokens * self.heads * self.head_bytes

    @property
    def axes(self) -> tuple[int, ...]:
        """The shape of our order."""
        return (self.layers, self.parts, self.tokens, self.heads, self.head_bytes)


class PageOrder:
    """Turns pages of `shape` into a memory layout's order and back."""

    def __init__(self, shape: PageShape, layout: MemoryLayout) -> None:
        if layout not in MEMORY_LAYOUTS:
            raise InputError(f"memory layout {layout!r}: allowed are {', '.join(MEMORY_LAYOUTS)}")
        if layout == "page_head" and shape.parts == 1:
            raise InputError("memory layout page_head: MLA has one head and no such layout")
        self.shape = shape
        self.layout: MemoryLayout = layout
        self._to = _AXES[layout]
        self._back = tuple(int(axis) for axis in np.argsort(self._to))
        self._theirs = tuple(shape.axes[axis] for axis in self._to)

    def encode(self, page: memoryview | Bytes) -> Bytes:
        """uint8 array of shape (page_bytes,): the page, ours first, in the layout's order. Always a
        copy, also where both orders are the same.
        """
        ours = np.frombuffer(page, np.uint8, self.shape.page_bytes).reshape(self.shape.axes)
        return np.array(ours.transpose(self._to), order="C", copy=True).reshape(-1)

    def decode(self, content: memoryview | Bytes, page: memoryview) -> None:
        """Put `content`, in the layout's order and of one page, into `page`, in ours."""
        theirs = np.frombuffer(content, np.uint8, self.shape.page_bytes).reshape(self._theirs)
        ours = np.frombuffer(page, np.uint8, self.shape.page_bytes).reshape(self.shape.axes)
        ours[...] = theirs.transpose(self._back)
