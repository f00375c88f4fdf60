"""In how many pieces the pages of a copy lie: a layout of L2 as a difference in cost.

    a run of n pages    in L2               memory copies between L2 and L1 (mode dma)
    page_major          1                   1
    layer_first         parts * layers      parts * layers
    page_first          1                   as page_first_direct, which SGLang makes of it
    page_first_direct   1                   parts * layers * n
    page_head           1                   none: SGLang moves it with kernels

parts: K and V are 2, MLA's latent is 1. L1 holds each layer's pages apart, so that memory copies of
SGLang's layouts are one a layer at least; a page-major run is taken as one copy, as before there
were layouts. That SGLang keeps K apart from V in all of its own is left out where whole pages are
moved: two places for a page of many layers. Kernels gather token by token, whatever the layout.

All of it is inferred from where bytes lie: nobody measured it. Refuses to know what a piece takes.
"""

from __future__ import annotations

from typing import final

from hicache.operations import Copy
from scenario.host_layout import HostLayout, used_layout
from scenario.profile import Estimate
from scenario.transfer_mode import TransferMode


@final
class HostPieces:
    """Counts pieces for one model and one way of moving pages."""

    def __init__(self, layout: HostLayout, mode: TransferMode, layers: int, parts: int) -> None:
        """`mode`: a settled one. Raises InputError for a layout that it cannot move."""
        self.layout: HostLayout = used_layout(layout, mode)
        self._mode: TransferMode = mode
        self._each = layers * parts  # pieces of a page, or of a run of them

    @property
    def differ(self) -> bool:
        """Whether any copy has other pieces than page-major pages would."""
        by_page = self.layout == "page_first_direct" and self._mode == "dma"
        return by_page or self.layout == "layer_first"

    def on_link(self, copy: Copy) -> int:
        """Pieces of a copy between L1 and L2: what `Copy.extents` is for page-major pages."""
        if self.layout == "layer_first":
            return copy.extents * self._each
        if self.layout == "page_first_direct" and self._mode == "dma":
            return copy.pages * self._each
        return copy.extents

    def on_disk(self, copy: Copy) -> int:
        """Pieces of a copy between L2 and the disk, read and written where they lie."""
        return copy.extents * self._each if self.layout == "layer_first" else copy.extents

    def estimate(self) -> Estimate:
        """What a result that rests on it says."""
        how = (
            f"{self.layout}: how many pieces a copy has is inferred from where its bytes lie, "
            "and what one takes from copies of whole pages; nobody measured it"
        )
        return Estimate("machine.host_layout", how)
