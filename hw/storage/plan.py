"""From page lists to the fewest requests.

Pages that are consecutive in the file and in memory at once are one extent:

    slots in the file   |----4----|--3--|          3 extents: 2, 2 and 3 pages
    pages in memory     |-2-|----5------|          (as `hicache.allocator.extents` counts them)

An extent that is large is cut again, so that all workers have something to do; an operation on one
huge page is spread over them like one on many small pages. What is far apart is never read to save
a request: no byte is moved that was not asked for.

All of it is in arrays: pages of one token come by the ten thousand, and each would cost Python more
than copying it costs a core.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import chain
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from hicache.operations import PageRuns

SMALLEST_REQUEST_BYTES = 256 << 10
"""Extents are not cut smaller than this to keep workers busy: below it a request costs as much as
the bytes it moves.
"""
ROUND_BYTES = 64 << 10
# Of a page list that is planned first: little, so that somebody can begin. Each further part is
# twice as large as the one before it, which is being moved meanwhile.
PART_RUNS = 2048


Runs = NDArray[np.int64]
"""Shape (n, 2), a row for each run of a page list: first, count."""

Extents = NDArray[np.int64]
"""Shape (n, 3), a row each: slot, page, length: `length` pages, consecutive in both places."""

Requests = NDArray[np.int64]
"""Shape (n, 3), a row for each system call: position in the file, in the memory region, size; all
in bytes. See Request.
"""


class Request(NamedTuple):
    """One row: `size` bytes at `position` in the file and `memory` in the memory region."""

    position: int
    memory: int
    size: int


def as_array(runs: PageRuns) -> Runs:
    """Page runs as an array, column after column: what follows works on columns."""
    flat = np.fromiter(chain.from_iterable(runs), np.int64, 2 * len(runs))
    return np.ascontiguousarray(flat.reshape(-1, 2).T).T


def in_parts(
    slots: PageRuns, pages: PageRuns, first_runs: int | None = None
) -> Iterator[tuple[Runs, Runs]]:
    """Both lists as arrays, one after the other parts that name as many slots as pages: so that the
    first one, of `first_runs` (None: PART_RUNS), can be moved while the next is planned. Lists that
    are short, or cut at different places, are one part.
    """
    at, most, length = 0, first_runs or PART_RUNS, max(len(slots), len(pages))
    while at + most < length:
        part = slice(at, at + most)
        some = as_array(slots[part]), as_array(pages[part])
        if some[0][:, 1].sum() != some[1][:, 1].sum():
            break
        yield some
        at += most
        most *= 2
    yield as_array(slots[at:]), as_array(pages[at:])


def merge(slots: Runs, pages: Runs) -> Extents:
    """The extents of two page lists of the same length, in the order of the lists.

    Runs of one list that meet are one run, even where the list names them apart.
    """
    if len(slots) == len(pages) and bool((slots[:, 1] == pages[:, 1]).all()):
        made = np.empty((3, len(pages)), np.int64).T
        made[:, 0], made[:, 1:] = slots[:, 0], pages
    else:
        # Both lists cut wherever either has a cut.
        ends = np.cumsum(slots[:, 1]), np.cumsum(pages[:, 1])
        totals = [int(each[-1]) if len(each) else 0 for each in ends]
        assert totals[0] == totals[1], "page lists of different lengths"
        if not totals[0]:
            return np.empty((0, 3), np.int64)
        cuts = np.union1d(*ends)
        begins = np.concatenate(([0], cuts[:-1]))
        made = np.empty((len(cuts), 3), np.int64)
        for column, runs, its_ends in ((0, slots, ends[0]), (1, pages, ends[1])):
            run = np.searchsorted(its_ends, begins, side="right")
            made[:, column] = runs[run, 0] + begins - (its_ends[run] - runs[run, 1])
        made[:, 2] = cuts - begins
    if len(made) and made[:, 2].min() < 1:
        made = made[made[:, 2] > 0]  # empty runs make empty pieces
    slot, page, length = made.T
    meets = slot[1:] == slot[:-1] + length[:-1]
    meets &= page[1:] == page[:-1] + length[:-1]
    if not meets.any():
        return made
    begins = np.concatenate(([True], ~meets))
    firsts = np.flatnonzero(begins)
    lengths = np.add.reduceat(length, firsts)
    made = made[firsts]
    made[:, 2] = lengths
    return made


def request_size(total_bytes: int, at_once: int, largest_bytes: int) -> int:
    """How large the requests of an operation on `total_bytes` should be where `at_once` of them are
    served together: an equal share, in reason.
    """
    share = -(-total_bytes // at_once)
    share = -(-share // ROUND_BYTES) * ROUND_BYTES
    return min(max(share, SMALLEST_REQUEST_BYTES), largest_bytes)


def requests(extents: Extents, page_bytes: int, most_bytes: int, fence_bytes: int) -> Requests:
    """The extents as requests of at most `most_bytes`, none of which lies on both sides of a
    multiple of `fence_bytes` in memory.
    """
    whole = extents * page_bytes
    memory, size = whole[:, 1], whole[:, 2]
    if not (memory // fence_bytes != (memory + size - 1) // fence_bytes).any():
        return cut(whole, most_bytes)
    made: list[tuple[int, int, int]] = []
    for position, memory, left in whole.tolist():
        while left:
            size = min(left, most_bytes, fence_bytes - memory % fence_bytes)
            made.append((position, memory, size))
            position, memory, left = position + size, memory + size, left - size
    return np.array(made, np.int64).reshape(-1, 3)


def cut(requests: Requests, most_bytes: int) -> Requests:
    """The same in requests of at most `most_bytes`."""
    pieces = -(-requests[:, 2] // most_bytes)
    if not len(requests) or pieces.max() == 1:
        return requests
    made = np.repeat(requests, pieces, axis=0)
    firsts = np.repeat(np.cumsum(pieces) - pieces, pieces)
    done_bytes = (np.arange(len(made)) - firsts) * most_bytes
    made[:, :2] += done_bytes[:, None]
    made[:, 2] = np.minimum(made[:, 2] - done_bytes, most_bytes)
    return made


def tapered(parts: Iterable[Requests], at_once: int, last_bytes: int) -> Iterator[Requests]:
    """All requests, of which the last `at_once` are no larger than `last_bytes`: so that all that
    are served together end together. Of 16 threads one that copies 4 MiB last would be alone with
    it for as long as all of them take for 64.
    """
    held: Requests = np.empty((0, 3), np.int64)
    for part in parts:
        some = np.concatenate((held, part)) if len(held) else part
        large = len(some) and some[:, 2].max() > last_bytes
        end = max(0, len(some) - at_once) if large else len(some)
        yield some[:end]
        held = some[end:]
    yield cut(held, last_bytes)
