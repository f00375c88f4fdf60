"""From page lists to the fewest requests.

Pages that are consecutive in the file and in memory at once are one extent:

    slots in the file   |----4----|--3--|          3 extents: 2, 2 and 3 pages
    pages in memory     |-2-|----5------|          (as `hicache.allocator.extents` counts them)

An extent that is large is cut again, so that all workers have something to do; an operation on one
huge page is spread over them like one on many small pages. What is far apart is never read to save
a request: no byte is moved that was not asked for.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from hicache.operations import PageRuns

SMALLEST_REQUEST_BYTES = 256 << 10
"""Extents are not cut smaller than this to keep workers busy: below it a request costs as much as
the bytes it moves.
"""
ROUND_BYTES = 64 << 10


class Extent(NamedTuple):
    """`length` pages, consecutive in both places: slots from `slot` on, pages from `page` on."""

    slot: int
    page: int
    length: int


class Request(NamedTuple):
    """One system call: `size` bytes at `position` in the file and `memory` in the memory region."""

    position: int
    memory: int
    size: int


def merge(slots: PageRuns, pages: PageRuns) -> list[Extent]:
    """The extents of two page lists of the same length, in the order of the lists.

    Runs of one list that meet are one run, even where the list names them apart.
    """
    extents: list[Extent] = []
    slot = page = slots_left = pages_left = 0
    more_slots, more_pages = iter(slots), iter(pages)
    last_slot = last_page = last_count = 0
    while True:
        while not slots_left:
            slot, slots_left = next(more_slots, (0, -1))
        while not pages_left:
            page, pages_left = next(more_pages, (0, -1))
        if slots_left < 0 or pages_left < 0:
            assert slots_left == pages_left, "page lists of different lengths"
            break
        count = min(slots_left, pages_left)
        if last_count and last_slot + last_count == slot and last_page + last_count == page:
            last_count += count
        else:
            if last_count:
                extents.append(Extent(last_slot, last_page, last_count))
            last_slot, last_page, last_count = slot, page, count
        slot, page = slot + count, page + count
        slots_left, pages_left = slots_left - count, pages_left - count
    if last_count:
        extents.append(Extent(last_slot, last_page, last_count))
    return extents


def request_size(total_bytes: int, at_once: int, largest_bytes: int) -> int:
    """How large the requests of an operation on `total_bytes` should be where `at_once` of them are
    served together: an equal share, in reason.
    """
    share = -(-total_bytes // at_once)
    share = -(-share // ROUND_BYTES) * ROUND_BYTES
    return min(max(share, SMALLEST_REQUEST_BYTES), largest_bytes)


def requests(
    extents: Iterable[Extent], page_bytes: int, most_bytes: int, fence_bytes: int
) -> list[Request]:
    """The extents as requests of at most `most_bytes`, none of which lies on both sides of a
    multiple of `fence_bytes` in memory.
    """
    made: list[Request] = []
    for slot, page, count in extents:
        position, memory = slot * page_bytes, page * page_bytes
        left = count * page_bytes
        while left:
            size = min(left, most_bytes, fence_bytes - memory % fence_bytes)
            made.append(Request(position, memory, size))
            position, memory, left = position + size, memory + size, left - size
    return made
