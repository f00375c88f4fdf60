"""The GPU as a device of the engine's: prefill steps and decode bursts of a real transformer.

    steps -> StepBuffers -> [CUDA graph of the shape, or transformers' forward] -> greedy tokens
                                   |
                     K and V read and written in the L1 pool, in place

A prefill that overlaps with a load waits before each layer: between the parts of its graph, or in
transformers' forward.

A burst is teacher-forced: its tokens go to the GPU beforehand, positions advance there, and the
host only launches: one step ahead, so that the GPU need not wait for it and a burst that is asked
to end does one step more at most. Refuses to know the engine: pages, tokens and lengths come in
Steps, and what comes out is when it was done.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from typing import Literal

import torch
from transformers import PreTrainedModel

from hicache.errors import InputError, TransferError
from hicache.operations import Decode, Operation, Prefill
from hw.clock import StreamClock, run_burst
from hw.device import Control, Step, Timing
from hw.interpreter import check_device
from hw.model import paged_attention
from hw.model.attention import PagedAttention, WaitLayer, attach
from hw.model.buffers import Shape, Sizes, StepBuffers, tiles_of
from hw.model.graphs import Buckets, StepGraphs, graph_shape
from hw.model.paged_attention import Heads, tuned_heads
from hw.model.products import leaving
from hw.pools import DevicePool

# By the number of a copy under way, what makes a layer wait for its part of it.
LoadsOf = Callable[[int], WaitLayer]


class ModelDevice:
    """A model on an L1 pool. See `hw.device.Device`.

    `loads_of` is asked for the load that a prefill overlaps with (`Prefill.load`): it has to be set
    before `warm_up` for the graphs of such prefills to be made there. Where the load fails the
    prefill ends in a TransferError, and the pages of its tokens hold rubbish.
    """

    def __init__(
        self,
        model: PreTrainedModel,
        pool: DevicePool,
        sizes: Sizes,
        *,
        name: str = "",
        graphs: Literal["auto", "whole", "never"] = "auto",
        buckets: Buckets = Buckets(),  # noqa: B008  # immutable
        keep_logits: Literal["no", "yes"] = "no",
        heads: Heads | None = None,
        spare_multiprocessors: int = 0,
    ) -> None:
        """`sizes`: the largest step that will come. `keep_logits`: so that `logits` can be read.
        `heads`: how kernels are cut, if not as tuned. `graphs`: "whole" has none of steps that wait
        for layers, as it was before there were any. `spare_multiprocessors`: what the products of
        such steps leave to the load.
        """
        check_device(pool.device)
        self.device = pool.device
        self.pool = pool
        self._model = model
        self._name = name or type(model).__name__
        fitting = self._heads_of(model, pool)
        self.heads = heads or fitting
        self._attention = PagedAttention(self.heads, pool)
        attach(model, self._attention)
        self._stream = torch.cuda.Stream(self.device) if self.device.type == "cuda" else None
        self._clock = StreamClock(self._stream)
        self._sizes = sizes
        self._most = Shape(sizes.tokens, sizes.rows, sizes.tokens + sizes.rows, sizes.rows)
        self._buffers = StepBuffers(self.device, pool.layout.page_size_tokens, sizes)
        capturable = self._stream is not None and graphs != "never" and not _has_experts(model)
        self._graphs = StepGraphs(self._stream) if self._stream and capturable else None
        self._in_parts = graphs == "auto"
        self._spare = spare_multiprocessors if self._stream else 0
        self._buckets = buckets
        self._buckets_waiting = buckets.waiting(sizes.tokens)
        self._compiled: set[tuple[int, int, int]] = set()
        self.loads_of: LoadsOf | None = None
        rows = 2 * sizes.rows
        self._greedy = torch.zeros(rows, dtype=torch.int64, device=self.device)
        vocab = model.config.vocab_size
        self._logits = (
            torch.zeros(rows, vocab, dtype=model.dtype, device=self.device)
            if keep_logits == "yes"
            else None
        )
        self._results: list[int] = []  # rows of the last step's answers

    @property
    def name(self) -> str:
        """For messages."""
        return f"{'GPU' if self._stream else 'CPU'} ({self._name})"

    @property
    def graphs(self) -> int:
        """How many steps there are CUDA graphs of."""
        return 0 if self._graphs is None else len(self._graphs)

    def greedy(self) -> list[int]:
        """The likeliest next token of each request of the last step, in the order of its Steps."""
        return self._greedy[self._results].tolist()

    def logits(self) -> torch.Tensor:
        """Float32 logits of the last step, of shape (requests, vocabulary)."""
        assert self._logits is not None, "the device was not told to keep logits"
        return self._logits[self._results].float()

    def warm_up(self, decoders: int | None = None, prefill_tokens: int | None = None) -> int:
        """Compile kernels and capture the graphs of pure prefills and of decode, up to sizes that
        are wanted (all); how long it took, in ns. What is left out is made when it first comes.
        """
        start_ns = time.monotonic_ns()
        most_rows = min(self._sizes.rows, decoders or self._sizes.rows)
        most_tokens = min(self._sizes.tokens, prefill_tokens or self._sizes.tokens)
        plain = {*self._buckets.prefill_tokens, most_tokens}
        waits = self._in_parts and self.loads_of is not None
        waiting = {*self._buckets_waiting.prefill_tokens, most_tokens} if waits else set()
        with self._running():
            # The largest first: what it leaves in the graphs' memory is enough for the others.
            for size in sorted(plain | waiting, reverse=True):
                if size > most_tokens or (self._stream is None and size > 64):
                    continue  # an interpreter compiles nothing
                shape = Shape(size, 1, -(-size // self.heads.tile_tokens), 0)
                if size in waiting:
                    self._prepare_waiting(self._fitted(shape, self._buckets_waiting))
                if size in plain:
                    self._prepare(self._fitted(shape, self._buckets))
            for size in self._buckets.decoders:
                if size <= most_rows:
                    self._prepare(self._fitted(Shape(0, 0, 0, size), self._buckets))
        return time.monotonic_ns() - start_ns

    def run(self, operation: Operation, control: Control, steps: tuple[Step, ...] = ()) -> Timing:
        """Compute. See `hw.device.Device`."""
        with self._running():
            if type(operation) is Prefill:
                count = len(operation.chunks)
                chunks, decoders = steps[:count], steps[count:]
                self._check(operation, chunks, decoders, operation.decode_batch)
                return self._prefill(operation, chunks, decoders)
            if type(operation) is Decode:
                self._check(operation, (), steps, operation.batch)
                return self._burst(operation.max_steps, steps, control)
        raise InputError(f"{self.name} does not carry out {operation}")

    def close(self) -> None:
        """Let go of graphs, buffers and the model."""
        if self._graphs is not None:
            self._graphs.close()
        self.loads_of = None
        self._attention.batch = None
        del self._model, self._buffers, self._greedy, self._logits

    # ------------------------------------------------------------------ steps

    def _prefill(
        self, operation: Prefill, chunks: Sequence[Step], decoders: Sequence[Step]
    ) -> Timing:
        tiles = tiles_of(chunks, self.heads.tile_tokens)
        wait_layer: WaitLayer | None = None
        if operation.load >= 0:
            if self.loads_of is None:
                raise InputError(f"{self.name} knows no loads, {operation} names one")
            wait_layer = self.loads_of(operation.load)
        tokens = sum(step.new_tokens for step in chunks)
        shape = Shape(tokens, len(chunks), len(tiles), len(decoders))
        if wait_layer is None:
            shape, graphed = fitted = self._fitted(shape, self._buckets)
            setup_ns = self._prepare(fitted)
        else:
            fitted = (shape, False)
            if self._in_parts:
                fitted = self._fitted(shape, self._buckets_waiting)
            shape, graphed = fitted
            setup_ns = self._prepare_waiting(fitted)
        self._buffers.lay_out(shape, chunks, decoders, tiles)
        self._buffers.send()
        begin = self._clock.mark()
        if wait_layer is None:
            self._launch(shape, graphed)
        else:
            self._launch_waiting(shape, graphed, wait_layer)
        end = self._clock.mark()
        seen_ns = self._clock.wait(end)
        started_ns, _ = self._clock.host_times((begin, end), (seen_ns,))
        self._results = self._rows(shape, len(chunks), len(decoders))
        return Timing(started_ns, max(seen_ns, started_ns + 1), setup_ns)

    def _burst(self, max_steps: int, decoders: Sequence[Step], control: Control) -> Timing:
        shape, graphed = self._fitted(Shape(0, 0, 0, len(decoders)), self._buckets)
        setup_ns = self._prepare((shape, graphed))
        buffers = self._buffers
        portion = buffers.portion(shape)
        buffers.lay_out(shape, (), decoders, (), max_steps)
        buffers.send()

        def launch(step: int) -> None:
            if step and step % portion == 0:
                # The host's copy of the last portion is free: a step with its tokens has ended.
                buffers.lay_given(shape, decoders, step, min(portion, max_steps - step))
                buffers.send()
            self._launch(shape, graphed)

        timing = run_burst(self._clock, control, max_steps, launch)
        self._results = self._rows(shape, 0, len(decoders))
        return timing._replace(setup_ns=setup_ns)

    def _launch(self, shape: Shape, graphed: bool) -> None:
        if graphed:
            assert self._graphs is not None
            self._graphs.replay(shape)
        else:
            self._forward(shape)

    def _launch_waiting(self, shape: Shape, graphed: bool, wait_layer: WaitLayer) -> None:
        """A step whose layers wait for their pages."""
        try:
            if graphed:
                assert self._graphs is not None
                self._graphs.replay_parts(shape, wait_layer)
            else:
                self._forward_waiting(shape, wait_layer)
        except TransferError:
            if self._stream is not None:
                self._stream.synchronize()  # the layers before still compute
            raise

    def _forward_waiting(self, shape: Shape, wait_layer: WaitLayer) -> None:
        """One step that calls `wait_layer(i)` before layer i reads its pages."""
        self._attention.wait_layer = wait_layer
        try:
            with leaving(self._spare):
                self._forward(shape)
        finally:
            self._attention.wait_layer = None

    def _forward(self, shape: Shape) -> None:
        """One step, from buffers to answers: what graphs are captured from."""
        buffers, split = self._buffers, shape.prefill_tokens
        batch = buffers.batch(shape)
        ids, positions = (buffers.view(each, shape.tokens) for each in ("ids", "positions"))
        if shape.decoders:
            paged_attention.advance(
                self.heads,
                batch.rows,
                buffers.view("decode_done", shape.decoders),
                buffers.view("given"),
                ids[split:],
                positions[split:],
                batch.slots[split:],
            )
        self._attention.batch = batch
        hidden = self._model.model(
            input_ids=ids[None], position_ids=positions[None], use_cache=False
        ).last_hidden_state[0]
        if split:
            hidden = hidden.index_select(0, buffers.view("last", shape.results))
        logits = self._model.lm_head(hidden)
        self._greedy[: shape.results] = logits.argmax(-1)
        if self._logits is not None:
            self._logits[: shape.results] = logits

    def _fitted(self, shape: Shape, buckets: Buckets) -> tuple[Shape, bool]:
        """The shape that a step is run with, and whether as a graph."""
        if self._graphs is not None:
            graphed = graph_shape(shape, self.heads, buckets, self._most)
            if graphed is not None:
                return graphed, True
        return shape, False

    def _prepare(self, fitted: tuple[Shape, bool]) -> int:
        """Compile and capture what a step needs and has not yet; how long it took, in ns."""
        shape, graphed = fitted
        if graphed:
            assert self._graphs is not None
            if shape in self._graphs:
                return 0
            self._buffers.lay_nothing(shape)
            return self._graphs.capture(shape, lambda: self._forward(shape))
        heads = self.heads
        kernels = (
            heads.prefill_splits(shape.prefill_tokens) if shape.prefill_tokens else 0,
            heads.decode_splits(shape.decoders) if shape.decoders else 0,
            shape.prefill_tokens % 4 if shape.decoders else 0,  # alignment of the decoders' rows
        )
        if self._stream is None or kernels in self._compiled:
            return 0
        start_ns = time.monotonic_ns()
        self._buffers.lay_nothing(shape)
        self._forward(shape)
        self._stream.synchronize()
        self._compiled.add(kernels)
        return time.monotonic_ns() - start_ns

    def _prepare_waiting(self, fitted: tuple[Shape, bool]) -> int:
        """`_prepare`, for a step whose layers wait."""
        shape, graphed = fitted
        if not graphed:
            return self._prepare(fitted)
        assert self._graphs is not None
        if self._graphs.has_parts(shape):
            return 0
        self._buffers.lay_nothing(shape)
        return self._graphs.capture_parts(shape, partial(self._forward_waiting, shape))

    # ------------------------------------------------------------------ the rest

    def _running(self) -> AbstractContextManager[object]:
        return _running(self.device, self._stream)

    def _rows(self, shape: Shape, chunks: int, decoders: int) -> list[int]:
        return [*range(chunks), *range(shape.chunks, shape.chunks + decoders)]

    def _check(
        self, operation: Operation, chunks: Sequence[Step], decoders: Sequence[Step], batch: int
    ) -> None:
        if len(decoders) != batch or not (chunks or decoders):
            raise InputError(
                f"{self.name}: {operation} came with Steps of {len(chunks)} chunks and "
                f"{len(decoders)} decoders"
            )

    def _heads_of(self, model: PreTrainedModel, pool: DevicePool) -> Heads:
        config, layout = model.config, pool.layout
        q_heads, kv_heads = config.num_attention_heads, config.num_key_value_heads
        dim = getattr(config, "head_dim", None) or config.hidden_size // q_heads
        wanted = (config.num_hidden_layers, kv_heads, dim, dim)
        has = (layout.layers, layout.kv_heads, layout.head_dim_k, layout.head_dim_v)
        if wanted != has:
            raise InputError(
                f"{self._name} needs a KV cache of (layers, heads, K, V) {wanted}, "
                f"the pool is of {has}"
            )
        page = layout.page_size_tokens
        return tuned_heads(q_heads, kv_heads, dim, dim, page, self.device, model.dtype)


@contextmanager
def _running(device: torch.device, stream: torch.cuda.Stream | None) -> Iterator[None]:
    """Compute on `stream`, without gradients, after what the caller's stream was given."""
    with torch.inference_mode():
        if stream is None:
            yield
            return
        with torch.cuda.device(device):
            stream.wait_stream(torch.cuda.current_stream(device))
            with torch.cuda.stream(stream):
                yield


def _has_experts(model: PreTrainedModel) -> bool:
    """Whether tokens choose experts: then a step has sizes that only it knows."""
    return any(getattr(model.config, each, None) for each in ("num_experts", "num_local_experts"))
