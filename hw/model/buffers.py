"""The numbers that say what a step computes, laid out on the host and sent to where kernels read
them.

    ids, positions, slots      one for each token: first the chunks', then one of each decoder
    tile_*, chunk_*            the prefill's tiles and chunks; `last`: whose logits are wanted
    decode_*, given            decoders: length, steps done, and the tokens that a burst takes
    table                      page tables, one after the other

The memory is never moved: CUDA graphs have its addresses in them. What a graph's step has less than
the graph stands for nothing: slot -1, chunk -1, decode_past INACTIVE. Refuses steps that do not fit
the sizes it was made with: InputError.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from hicache.errors import InputError
from hw.device import Step
from hw.model.attention import Batch
from hw.model.fetch import ALIGN, fetch
from hw.model.paged_attention import INACTIVE, NO_CHUNK, Rows
from hw.tokens import expand


class Sizes(NamedTuple):
    """Limits of a step. `table_entries`: pages of all its requests; `given`: steps times decoders
    for which tokens are sent at once.
    """

    tokens: int
    rows: int
    table_entries: int
    given: int = 1 << 16


class Shape(NamedTuple):
    """The sizes of a step's launches: what a CUDA graph is captured for."""

    prefill_tokens: int
    chunks: int
    tiles: int
    decoders: int

    @property
    def tokens(self) -> int:
        """All of them."""
        return self.prefill_tokens + self.decoders

    @property
    def results(self) -> int:
        """Rows of logits."""
        return self.chunks + self.decoders


def tiles_of(chunks: Sequence[Step], tile_tokens: int) -> list[tuple[int, int]]:
    """(chunk, first token) of each prefill tile, those with the longest way to go first."""
    tiles: list[tuple[int, int, int]] = []
    for number, step in enumerate(chunks):
        for first in range(0, step.new_tokens, tile_tokens):
            tiles.append((-(step.past_tokens + first), number, first))
    return [(number, first) for _, number, first in sorted(tiles)]


class StepBuffers:
    """A step's numbers, on `device`."""

    def __init__(self, device: torch.device, page_size: int, sizes: Sizes) -> None:
        self.sizes = sizes
        self._page_size = page_size
        self._room = max(sizes.given, 4 * sizes.rows)
        rows, tokens = sizes.rows, sizes.tokens + sizes.rows
        lengths = {
            "ids": tokens, "positions": tokens, "slots": tokens, "last": 2 * rows,
            "tile_chunk": sizes.tokens + rows, "tile_first": sizes.tokens + rows,
            "chunk_past": rows, "chunk_new": rows, "chunk_query": rows, "chunk_start": rows,
            "decode_past": rows, "decode_done": rows, "decode_start": rows,
            "given": self._room, "table": sizes.table_entries,
        }  # fmt: skip
        lengths["spans"] = 2 * len(lengths)
        self._places: dict[str, slice] = {}
        end = 0
        for name, length in lengths.items():
            self._places[name] = slice(end, end + length)
            end += -(-length // ALIGN) * ALIGN
        self._device = torch.zeros(end, dtype=torch.int32, device=device)
        self._host = torch.zeros(end, dtype=torch.int32, pin_memory=device.type == "cuda")
        self._numbers: NDArray[np.int32] = self._host.numpy()
        self._used: dict[str, int] = {}
        self._pages = 0

    def view(self, name: str, length: int | None = None) -> torch.Tensor:
        """A region on the device, or its beginning."""
        place = self._places[name]
        return self._device[place.start : place.stop if length is None else place.start + length]

    def batch(self, shape: Shape) -> Batch:
        """What attention reads, for a step of this shape."""
        view, tiles, chunks, decoders = self.view, shape.tiles, shape.chunks, shape.decoders
        rows = Rows(
            tile_chunk=view("tile_chunk", tiles),
            tile_first=view("tile_first", tiles),
            chunk_past=view("chunk_past", chunks),
            chunk_new=view("chunk_new", chunks),
            chunk_query=view("chunk_query", chunks),
            chunk_start=view("chunk_start", chunks),
            decode_past=view("decode_past", decoders),
            decode_start=view("decode_start", decoders),
            table=view("table"),
        )
        return Batch(shape.prefill_tokens, self.view("slots", shape.tokens), rows)

    def lay_nothing(self, shape: Shape) -> None:
        """A step in which every row stands for nothing: to compile and capture with."""
        self._begin()
        self._lay_padding(shape)
        self.send()

    def lay_out(
        self,
        shape: Shape,
        chunks: Sequence[Step],
        decoders: Sequence[Step],
        tiles: Sequence[tuple[int, int]],
        steps: int = 1,
    ) -> None:
        """A step of `chunks` and `decoders`, or a burst of `steps` of the latter; then `send`."""
        self._begin()
        self._lay_padding(shape)
        at = 0
        for number, step in enumerate(chunks):
            past, new = step.past_tokens, step.new_tokens
            table = self._lay_pages(step, past + new, "chunk_start", number)
            positions = np.arange(past, past + new, dtype=np.int32)
            part = slice(at, at + new)
            self._region("ids")[part] = np.asarray(step.tokens)[past : past + new]
            self._region("positions")[part] = positions
            page, within = np.divmod(positions, self._page_size)
            self._region("slots")[part] = table[page] * self._page_size + within
            self._region("chunk_past")[number] = past
            self._region("chunk_new")[number] = new
            self._region("chunk_query")[number] = at
            at += new
            self._region("last")[number] = at - 1
        if tiles:
            self._region("tile_chunk")[: len(tiles)], self._region("tile_first")[: len(tiles)] = (
                np.asarray(tiles, np.int32).T
            )
        for row, step in enumerate(decoders):
            self._lay_pages(step, step.past_tokens + steps, "decode_start", row)
            self._region("decode_past")[row] = step.past_tokens - 1
        self.lay_given(shape, decoders, 0, min(steps, self.portion(shape)))

    def portion(self, shape: Shape) -> int:
        """Steps of a burst for which tokens are sent at once."""
        return self._room // max(1, shape.decoders)

    def lay_given(self, shape: Shape, decoders: Sequence[Step], first: int, steps: int) -> None:
        """The tokens that `decoders` take in `steps` steps of a burst from its step `first` on."""
        width = shape.decoders
        if not width:
            return
        self._used["given"] = steps * width
        self._used["decode_done"] = width
        self._region("decode_done")[:width] = 0
        given = self._region("given")[: steps * width].reshape(steps, width)
        given[:, len(decoders) :] = 0
        for row, step in enumerate(decoders):
            begin = step.past_tokens + first
            tokens = np.asarray(step.tokens)[begin : begin + steps]
            if len(tokens) < steps:
                raise InputError(
                    f"request {step.request}: tokens up to {begin + len(tokens)}, a burst needs "
                    f"them up to {begin + steps}"
                )
            given[:, row] = tokens

    def send(self) -> None:
        """What was laid out since the last time, to the device, in order of the current stream."""
        used = [(self._places[name].start, length) for name, length in self._used.items()]
        self._used.clear()
        if not used:
            return
        if self._device.device.type == "cuda":
            self._region("spans")[: 2 * len(used)] = np.asarray(used, np.int32).ravel()
            fetch(self._host, self._device, self._places["spans"].start, len(used))
            return
        for start, length in used:
            self._device[start : start + length] = self._host[start : start + length]

    def _region(self, name: str) -> NDArray[np.int32]:
        return self._numbers[self._places[name]]

    def _begin(self) -> None:
        self._used.clear()
        self._pages = 0

    def _lay_padding(self, shape: Shape) -> None:
        if shape.prefill_tokens > self.sizes.tokens or max(shape.chunks, shape.decoders) > (
            self.sizes.rows
        ):
            raise InputError(
                f"a step of {shape.prefill_tokens} tokens in {shape.chunks} chunks, and of "
                f"{shape.decoders} decoders: at most {self.sizes.tokens} tokens and "
                f"{self.sizes.rows} requests were said"
            )
        for length, names, nothing in (
            (shape.prefill_tokens, ("ids", "positions"), 0),
            (shape.prefill_tokens, ("slots",), -1),
            (shape.tiles, ("tile_chunk",), NO_CHUNK),
            (shape.tiles, ("tile_first",), 0),
            (shape.chunks, ("chunk_past", "chunk_new", "chunk_query", "chunk_start", "last"), 0),
            (shape.decoders, ("decode_past",), INACTIVE),
            (shape.decoders, ("decode_start", "decode_done"), 0),
        ):
            for name in names:
                self._region(name)[:length] = nothing
                self._used[name] = length
        # `last`: the chunks' last tokens, then every decoder.
        last = self._region("last")[shape.chunks : shape.results]
        last[:] = np.arange(shape.prefill_tokens, shape.tokens)
        self._used["last"] = shape.results

    def _lay_pages(self, step: Step, tokens: int, starts: str, row: int) -> NDArray[np.int32]:
        needed = -(-tokens // self._page_size)
        pages = expand(step.pages)[:needed]
        if len(pages) < needed:
            raise InputError(
                f"request {step.request}: {len(pages)} pages of {self._page_size} tokens do not "
                f"hold {tokens}"
            )
        if self._pages + needed > self.sizes.table_entries:
            raise InputError(
                f"a step with more than the {self.sizes.table_entries} pages that were said"
            )
        part = slice(self._pages, self._pages + needed)
        table = self._region("table")[part]
        table[:] = pages
        self._region(starts)[row] = self._pages
        self._pages += needed
        self._used["table"] = self._pages
        return table
