"""How a page lies in L2, and what SGLang makes of a layout that a way of moving cannot use.

    page_major          [page][layer][K/V][token][head][dim]    this project's own pools
    layer_first         [K/V][layer][page, token][head][dim]
    page_first          [K/V][page, token][layer][head][dim]
    page_first_direct   [K/V][page][layer][token][head][dim]
    page_head           [K/V][page][head][token][layer][dim]

The last four are SGLang's (--hicache-mem-layout). A simulation takes them as differences in cost
(`sim.host_pieces`); a real run has page-major pools alone. Refuses to know what a piece costs.
"""

from __future__ import annotations

from typing import Literal

from hicache.errors import InputError
from scenario.transfer_mode import TransferMode

HostLayout = Literal["page_major", "layer_first", "page_first", "page_first_direct", "page_head"]


def used_layout(layout: HostLayout, mode: TransferMode) -> HostLayout:
    """What pages lie in where `mode` (a settled one) moves them: "page_first" becomes
    "page_first_direct" for memory copies, as in SGLang. Raises InputError for "page_head", of which
    SGLang makes no memory copies.
    """
    if mode != "dma":
        return layout
    if layout == "page_head":
        raise InputError(
            'machine.host_layout is page_head and machine.transfer_mode "dma": SGLang makes no '
            'memory copies of this layout; allowed here: "layer_first", "page_first_direct" or '
            '"page_major", or another transfer mode'
        )
    return "page_first_direct" if layout == "page_first" else layout


def idle_layout(
    layout: HostLayout, mode: TransferMode, l3: Literal["none", "disk", "store"]
) -> str:
    """Why a layout is as good as page-major pages here; "" where it makes a difference."""
    if layout == "page_major" or mode == "dma":
        return ""
    if layout != "layer_first":
        return 'only memory copies (machine.transfer_mode "dma") are others than of page_major'
    if mode == "kernel" and l3 != "disk":
        return 'machine.transfer_mode is "kernel" and L3 no disk: pieces make no difference'
    return ""
