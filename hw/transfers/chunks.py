"""How a staged transfer is cut: chunks that fit a work buffer, and the DMAs of each.

    pages of the lists   |head|  chunk  |  chunk  |tail|     tail: loads only
    runs of host pages   |-|--|---|-----|--|-|----|-|--|     one DMA each, all of a chunk in a batch

Little is one chunk. Otherwise the first is small, because nothing moves before it is cut (and, when
storing, gathered); so is the last of a load, because nothing hides its scatter. Each chunk is cut
when its turn has come, while the device works on those before it. Refuses to know of queues.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from hw.pools import HostPool
from hw.transfers.driver import Direction
from hw.transfers.lists import Lists
from hw.transfers.queues import Batch, Numbers
from hw.transfers.work_buffers import WorkBuffers

# What is so little is one chunk: the marks between two would take longer than they hide.
WHOLE_BYTES = 16 << 20
HEAD_BYTES = 8 << 20
TAIL_BYTES = 4 << 20


class Chunk(NamedTuple):
    """`pages` pages of the lists, from place `first`, and where they are in between.

    buffer: the work buffer's number. batch: a DMA for each run, between L2 and the device's buffer.
    places, addresses: of each run, int64: its first page's place in the chunk, and its address in
    L2. fragmented: its runs are too short for DMAs, and go through the host's buffer.
    """

    number: int
    first: int
    pages: int
    buffer: int
    batch: Batch
    places: Numbers
    addresses: Numbers
    fragmented: bool

    def moves(self, pinned_address: int, page_bytes: int) -> list[tuple[int, int, int]]:
        """(address of a run of pages, address in the host's buffer, bytes)."""
        return [
            (address, pinned_address + place * page_bytes, size)
            for address, place, size in zip(
                self.addresses.tolist(),
                self.places.tolist(),
                self.batch.sizes.tolist(),
                strict=True,
            )
        ]


class Cutter:
    """Cuts operations for work buffers. run_bytes: shorter runs are not worth their own DMA."""

    def __init__(self, host_pool: HostPool, buffers: WorkBuffers, run_bytes: int) -> None:
        self._pool = host_pool
        self._buffers = buffers
        self._run_bytes = run_bytes
        whole = buffers.chunk_pages * host_pool.page_bytes
        self._whole_pages, self._head_pages, self._tail_pages = (
            max(1, min(whole, each) // host_pool.page_bytes)
            for each in (WHOLE_BYTES, HEAD_BYTES, TAIL_BYTES)
        )

    @property
    def limits(self) -> tuple[int, int, int]:
        """In pages: what is one chunk, the first one, and a load's last one, at most."""
        return self._whole_pages, self._head_pages, self._tail_pages

    def borders(self, direction: Direction, pages: int) -> list[int]:
        """Where chunks begin in the lists, and the end."""
        if pages <= self._whole_pages:
            return [0, pages]
        tail = self._tail_pages if direction == "h2d" and pages > self._tail_pages else 0
        head = min(self._head_pages, pages - tail)
        inner = range(head, pages - tail, self._buffers.chunk_pages)
        return [0, *inner, *([pages - tail] if tail else []), pages]

    def chunks(self, direction: Direction, lists: Lists, borders: list[int]) -> Iterator[Chunk]:
        """All of an operation's, each when it is asked for. The buffers must be there."""
        cut = self._few(lists, borders) if lists.few else self._many(lists, borders)
        stride = self._pool.page_bytes
        for number, (places, addresses, sizes) in enumerate(cut):
            first = borders[number]
            pages = borders[number + 1] - first
            buffer = number % self._buffers.count
            base = self._buffers.work_address(buffer)
            if isinstance(places, array):
                there: Numbers = array("q", [base + place * stride for place in places])
            else:
                there = places * stride + base
            batch = (
                Batch(there, addresses, sizes)
                if direction == "h2d"
                else Batch(addresses, there, sizes)
            )
            # One page alone is consecutive, however small.
            is_short = len(places) > 1 and pages * stride < len(places) * self._run_bytes
            yield Chunk(number, first, pages, buffer, batch, places, addresses, is_short)

    def _many(
        self, lists: Lists, borders: list[int]
    ) -> Iterator[tuple[np.ndarray, np.ndarray, np.ndarray]]:
        """Of each chunk's runs: places in the chunk, addresses, sizes."""
        pool, stride = self._pool, self._pool.page_bytes
        for first, stop in pairwise(borders):
            host = lists.arrays().host[first:stop]
            breaks = np.diff(host) != 1
            if pool.pages_per_chunk < pool.pages:
                breaks |= np.diff(host // pool.pages_per_chunk) != 0
            places = np.zeros(1 + np.count_nonzero(breaks), np.int64)
            places[1:] = np.flatnonzero(breaks) + 1
            sizes = np.empty_like(places)
            sizes[:-1] = places[1:]
            sizes[-1] = stop - first
            sizes -= places
            yield places, host[places] * stride + pool.address, sizes * stride

    def _few(
        self, lists: Lists, borders: list[int]
    ) -> Iterator[tuple[array[int], array[int], array[int]]]:
        """The same in plain Python. Neighbours may stay apart: they are few."""
        pool, stride = self._pool, self._pool.page_bytes
        per_chunk, runs = pool.pages_per_chunk, iter(lists.host)
        page, left = 0, 0
        for first, stop in pairwise(borders):
            place, pages = 0, stop - first
            found = (array("q"), array("q"), array("q"))
            while place < pages:
                while not left:
                    page, left = next(runs)
                step = min(left, pages - place, per_chunk - page % per_chunk)
                found[0].append(place)
                found[1].append(pool.address + page * stride)
                found[2].append(step * stride)
                place += step
                page += step
                left -= step
            yield found
