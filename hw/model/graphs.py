"""CUDA graphs of steps: a step of a shape that was seen before is launched as one.

A transformer's step from Python is hundreds of launches, which for few tokens take longer than the
GPU's work. A graph is captured once for each shape, with the shape's sizes rounded up so that few
shapes exist; what a step has less stands for nothing. All graphs share one memory pool, for only
one runs at a time.

A graph cannot wait for what is enqueued after its launch, as the layers of a load are. So a step
that waits for layers is captured in parts, one after the other on the same stream, and the waits
stand between them:

    part 0 | wait for layer 0 | part 1 | wait for layer 1 | part 2
    ^ all that comes before     ^ from where layer 0        ^ from where layer 1 reads its pages
      layer 0 reads its pages     reads them on               on, to the end

What one part leaves for the next lies in the pool and is not used again before the last part.
Refuses to know what a step computes, and what a wait waits for.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, NamedTuple

import torch

from hw.model.attention import WaitLayer
from hw.model.buffers import Shape
from hw.model.paged_attention import Heads


class Buckets(NamedTuple):
    """The sizes for which graphs exist. A longer prefill keeps the GPU busy without one.

    waiting_tokens: of prefills that wait for layers, the longer sizes. Their first layers would be
    launched while another thread enqueues the load, which takes twice as long from Python.
    """

    prefill_tokens: tuple[int, ...] = (16, 32, 64, 128, 192, 256, 384, 512, 640, 768, 896, 1024)
    decoders: tuple[int, ...] = (1, 2, 4, 8, 16, 24, 32, 48, 64, 96, 128, 192, 256)
    chunks: int = 8
    waiting_tokens: tuple[int, ...] = (1152, 1280, 1408, 1536, 1664, 1792, 1920, 2048)

    def waiting(self, most: int) -> Buckets:
        """Those of prefills that wait for layers. `most`: tokens of a full chunk, which has a graph
        of its own where it is not longer than all of them.
        """
        sizes = {*self.prefill_tokens, *self.waiting_tokens}
        own = {most} if most <= max(sizes, default=0) else set()
        return self._replace(prefill_tokens=tuple(sorted(sizes | own)))


def rounded_up(size: int, buckets: tuple[int, ...], most: int) -> int | None:
    """The smallest bucket that holds `size` and is at most `most`; 0 for 0, None if none does."""
    if size == 0:
        return 0
    for bucket in buckets:
        if size <= bucket:
            return bucket if bucket <= most else None
    return None


def graph_shape(shape: Shape, heads: Heads, buckets: Buckets, most: Shape) -> Shape | None:
    """The shape of a graph that can run a step of `shape`; None if there can be none.

    `most`: limits of tokens, chunks and decoders.
    """
    tokens = rounded_up(shape.prefill_tokens, buckets.prefill_tokens, most.prefill_tokens)
    decoders = rounded_up(shape.decoders, buckets.decoders, most.decoders)
    chunks = min(buckets.chunks, most.chunks)
    if tokens is None or decoders is None or shape.chunks > chunks:
        return None
    if not tokens:
        return Shape(0, 0, 0, decoders)
    # Chunks that do not end where tiles do need a tile more, each.
    tiles = -(-tokens // heads.tile_tokens) + chunks - 1
    return Shape(tokens, chunks, tiles, decoders)


class StepGraphs:
    """The graphs of one model, captured on `stream`."""

    def __init__(self, stream: torch.cuda.Stream) -> None:
        self._stream = stream
        self._graphs: dict[Shape, torch.cuda.CUDAGraph] = {}
        self._parts: dict[Shape, list[torch.cuda.CUDAGraph]] = {}
        self._pool: Any = None

    def __len__(self) -> int:
        """Steps that can be launched: each as a whole, or in parts."""
        return len(self._graphs) + len(self._parts)

    def __contains__(self, shape: Shape) -> bool:
        return shape in self._graphs

    def has_parts(self, shape: Shape) -> bool:
        """Whether a step of `shape` was captured in parts."""
        return shape in self._parts

    def capture(self, shape: Shape, body: Callable[[], object]) -> int:
        """Record `body`, whose inputs stand for nothing; how long it took, in ns."""
        start_ns = time.monotonic_ns()
        body()  # compiles kernels, makes workspaces
        self._stream.synchronize()
        graph = torch.cuda.CUDAGraph()
        # Other threads go on using the device meanwhile.
        with torch.cuda.graph(
            graph, pool=self._pool, stream=self._stream, capture_error_mode="thread_local"
        ):
            body()
        self._pool = graph.pool()
        self._graphs[shape] = graph
        self._stream.synchronize()
        return time.monotonic_ns() - start_ns

    def capture_parts(self, shape: Shape, body: Callable[[WaitLayer], object]) -> int:
        """Record `body`, whose inputs stand for nothing, in parts; how long it took, in ns.

        `body` calls what it is given with 0, 1, ... before layer 0, 1, ... reads its pages: there
        one part ends and the next begins.
        """
        start_ns = time.monotonic_ns()
        body(_no_wait)
        self._stream.synchronize()
        torch.cuda.empty_cache()  # as torch.cuda.graph does: the pool is to have that memory
        parts: list[torch.cuda.CUDAGraph] = []

        def begin() -> None:
            parts.append(torch.cuda.CUDAGraph())
            parts[-1].capture_begin(pool=self._pool, capture_error_mode="thread_local")

        def end() -> None:
            parts[-1].capture_end()
            self._pool = parts[-1].pool()

        def cut(layer: int) -> None:
            assert layer == len(parts) - 1, "layers wait in order"
            end()
            begin()

        with torch.cuda.stream(self._stream):
            begin()
            try:
                body(cut)
            finally:
                end()
        self._parts[shape] = parts
        self._stream.synchronize()
        return time.monotonic_ns() - start_ns

    def replay(self, shape: Shape) -> None:
        """Launch the graph of `shape` on the current stream."""
        self._graphs[shape].replay()

    def replay_parts(self, shape: Shape, wait_layer: WaitLayer) -> None:
        """Launch the parts of `shape` on the current stream, which `wait_layer(0)`, ... makes wait
        in between. If that raises, what has been launched runs, and nothing more.
        """
        first, *rest = self._parts[shape]
        first.replay()
        for layer, part in enumerate(rest):
            wait_layer(layer)
            part.replay()

    def close(self) -> None:
        """Let go of the graphs."""
        self._graphs.clear()
        self._parts.clear()
        self._pool = None


def _no_wait(layer: int) -> None:
    """What is captured stands for nothing: no layer of it comes."""
