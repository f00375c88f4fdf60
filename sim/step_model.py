"""What a step of the GPU takes: prefill over new and past tokens, decode over batch and context.

    step          dense(tokens in the step) + attention
    attention,    between samples of new tokens: a straight line over the pairs of tokens,
      prefill       new * (past + new / 2), which is what causal attention computes; over past:
      straight
    attention,    bilinear over (batch, mean context): exact for time = fixed + k * batch * context
      decode

Samples are made monotone (`sim.curves`); where they are monotone already the model equals them. A
new token alone (a full hit: all but the last token was cached) is one row of decode, not a chunk of
64, unless it was sampled. A decode step has its own dense part where that was sampled: a GPU may
run both from graphs of a few sizes, which then are steps in both curves, at different places.

Beyond the samples the last piece goes on and `sim.ranges` counts it. Contexts under the smallest
sample take that sample's time. Several chunks in one step: the launch floor once, plus what each
takes above it; nobody measured that, it is an estimate.
"""

from __future__ import annotations

from bisect import bisect_right
from typing import Protocol

from hicache.operations import Chunk, Prefill
from scenario.profile import Curve, GpuProfile, Surface
from sim.burst import SHIFT, Burst, Piece
from sim.curves import Line, line, monotone
from sim.ranges import RangeWatch
from sim.scaling import attention_floor


class StepModel(Protocol):
    """The time of one GPU step."""

    # Prefill steps with more than one chunk so far: their attention is an estimate.
    joint_prefills: int

    def prefill_ns(self, step: Prefill) -> int:
        """The time of a prefill step, with the decode steps that ride along."""
        ...

    def decode_ns(self, batch: int, context_tokens: int) -> int:
        """The time of one decode step of `batch` requests with `context_tokens` tokens in all."""
        ...

    def burst(self, batch: int, context_tokens: int, max_steps: int) -> Burst:
        """The ends of `max_steps` steps: the first as `decode_ns`, each adds `batch` tokens."""
        ...


def step_model(gpu: GpuProfile, watch: RangeWatch | None = None) -> StepModel:
    """The model that the profile's samples allow."""
    watch = watch or RangeWatch()
    if gpu.prefill is not None:
        return CurveStepModel(gpu.prefill, watch)
    assert gpu.dense is not None
    assert gpu.attention_prefill is not None
    assert gpu.attention_decode is not None
    return PartsStepModel(
        gpu.dense, gpu.attention_prefill, gpu.attention_decode, watch, gpu.dense_decode
    )


class CurveStepModel:
    """A machine known by one curve over the tokens that a step computes, whatever their past.

    A decode step is a step over `batch` tokens: context costs nothing, because nothing was
    published of it.
    """

    def __init__(self, prefill: Curve, watch: RangeWatch) -> None:
        self.joint_prefills = 0
        self._curve = line(prefill.points)
        self._largest = prefill.points[-1][0]
        self._watch = watch

    def prefill_ns(self, step: Prefill) -> int:
        if len(step.chunks) > 1:
            self.joint_prefills += 1
        return self._tokens_ns(step.tokens + step.decode_batch)

    def decode_ns(self, batch: int, context_tokens: int) -> int:
        return self._tokens_ns(batch)

    def burst(self, batch: int, context_tokens: int, max_steps: int) -> Burst:
        return Burst(((0, 0, self._tokens_ns(batch) << SHIFT, 0),), max_steps)

    def _tokens_ns(self, tokens: int) -> int:
        if tokens > self._largest:
            self._watch.above("tokens of a step", tokens, self._largest)
        return int(self._curve.at(tokens) + 0.5)


class PartsStepModel:
    """A machine with samples of the dense part and of attention."""

    def __init__(
        self,
        dense: Curve,
        prefill: Surface,
        decode: Surface,
        watch: RangeWatch,
        dense_decode: Curve | None = None,
    ) -> None:
        self.joint_prefills = 0
        self._watch = watch
        self._dense = line(dense.points)
        self._dense_largest = dense.points[-1][0]
        self._dense_decode = self._dense if dense_decode is None else line(dense_decode.points)
        self._decode = _DecodeAttention(decode, watch)
        self._prefill = _PrefillAttention(prefill, self._decode.row(1)[0], watch)
        self._floor = float(min(attention_floor(prefill.points), attention_floor(decode.points)))
        # For each batch: the time of a whole step over the mean context, and the largest context
        # sampled.
        self._rows: dict[int, tuple[Line, int]] = {}

    def prefill_ns(self, step: Prefill) -> int:
        chunks = step.chunks
        took = self._dense_ns(step.tokens + step.decode_batch)
        if len(chunks) == 1 and not step.decode_batch:
            return int(took + self._prefill.ns(chunks[0]) + 0.5)
        floor = self._floor
        above = 0.0
        for chunk in chunks:
            above += max(0.0, self._prefill.beside_ns(chunk) - floor)
        if step.decode_batch:
            self.joint_prefills += 1
            batch = step.decode_batch
            attention = self._decode.within(batch, step.decode_context_tokens)
            above += max(0.0, attention.at(step.decode_context_tokens / batch) - floor)
        elif len(chunks) > 1:
            self.joint_prefills += 1
        return int(took + floor + above + 0.5)

    def decode_ns(self, batch: int, context_tokens: int) -> int:
        return int(self._row(batch, context_tokens).at(context_tokens / batch) + 0.5)

    def burst(self, batch: int, context_tokens: int, max_steps: int) -> Burst:
        row = self._row(batch, context_tokens)
        bends, times, slopes = row.xs, row.ys, row.slopes
        mean = context_tokens / batch
        piece = bisect_right(bends, mean, 1, len(bends) - 1) - 1
        last = len(slopes) - 1
        pieces: list[Piece] = []
        done = base = 0
        while True:
            at = mean + done
            first = int((times[piece] + (at - bends[piece]) * slopes[piece]) * (1 << SHIFT))
            more = int(slopes[piece] * (1 << SHIFT))
            pieces.append((done, base, first, more))
            if piece == last or mean + max_steps <= bends[piece + 1]:
                return Burst(pieces, max_steps)
            # Steps that begin before the bend; the bend lies ahead, so there is at least one.
            steps = -int(-(bends[piece + 1] - at) // 1)
            base += steps * first + (steps * (steps - 1) >> 1) * more
            done += steps
            piece += 1

    def _row(self, batch: int, context_tokens: int) -> Line:
        """The time of a whole decode step of `batch` requests, over their mean context."""
        found = self._rows.get(batch)
        if found is None:
            attention, largest = self._decode.row(batch)
            dense = self._dense_decode.at(batch)
            whole = Line(attention.xs, [dense + ns for ns in attention.ys])
            found = self._rows[batch] = (whole, largest)
        self._decode.check(batch, context_tokens, found[1])
        return found[0]

    def _dense_ns(self, tokens: int) -> float:
        if tokens > self._dense_largest:
            self._watch.above("tokens of a step", tokens, self._dense_largest)
        return self._dense.at(tokens)


class _PrefillAttention:
    """Attention of one chunk, all layers: ns over (new tokens, past tokens)."""

    def __init__(self, surface: Surface, one_token: Line, watch: RangeWatch) -> None:
        heights = monotone(
            [(new, past) for new, past, _ in surface.points], [ns for *_, ns in surface.points]
        )
        columns: dict[int, tuple[list[int], list[float]]] = {}
        for (new, past, _), ns in zip(surface.points, heights, strict=True):
            pasts, times = columns.setdefault(new, ([], []))
            pasts.append(past)
            times.append(ns)
        self._news = [1, *(new for new in columns if new > 1)]
        # One token is one row of decode unless it was sampled; a function of its past, as all are.
        first = Line(*columns[1]) if 1 in columns else one_token
        self._columns = [first, *(Line(*of) for new, of in columns.items() if new > 1)]
        if len(self._news) == 1:
            self._news.append(2)
            self._columns.append(one_token)
        self._inner = self._news[1:-1]
        # Without the padding that a graph's size adds to a step of one chunk: that belongs to a
        # step as a whole, not to each of its chunks.
        own = [
            place
            for place, column in enumerate(self._columns)
            if place in (0, len(self._columns) - 1) or not column.same_as(self._columns[place + 1])
        ]
        self._own_news = [self._news[place] for place in own]
        self._own_columns = [self._columns[place] for place in own]
        self._own_inner = self._own_news[1:-1]
        self._largest_new = self._news[-1]
        self._largest_past = min(pasts[-1] for pasts, _ in columns.values())
        self._watch = watch

    def ns(self, chunk: Chunk) -> float:
        """What the attention of `chunk` takes in a step of its own."""
        return self._ns(chunk, self._news, self._columns, self._inner)

    def beside_ns(self, chunk: Chunk) -> float:
        """What the attention of `chunk` takes in a step with others."""
        return self._ns(chunk, self._own_news, self._own_columns, self._own_inner)

    def _ns(self, chunk: Chunk, news: list[int], columns: list[Line], inner: list[int]) -> float:
        new, past = chunk.new_tokens, chunk.past_tokens
        if new > self._largest_new:
            self._watch.above("new tokens of a prefill chunk", new, self._largest_new)
        if past > self._largest_past:
            self._watch.above("past tokens of a prefill chunk", past, self._largest_past)
        left = bisect_right(inner, new)
        low, high = news[left], news[left + 1]
        upper = columns[left + 1].at(past)
        lower = columns[left].at(past)
        if lower > upper:
            lower = upper
        # Pairs of tokens, twice, at both neighbours and here.
        twice = past + past
        pairs = low * (twice + low)
        share = (new * (twice + new) - pairs) / (high * (twice + high) - pairs)
        return lower + share * (upper - lower)


class _DecodeAttention:
    """Attention of one decode step, all layers: for each batch a line over the mean context."""

    def __init__(self, surface: Surface, watch: RangeWatch) -> None:
        heights = monotone(
            [(batch, context) for batch, context, _ in surface.points],
            [ns for *_, ns in surface.points],
        )
        rows: dict[int, tuple[list[int], list[float]]] = {}
        for (batch, context, _), ns in zip(surface.points, heights, strict=True):
            contexts, times = rows.setdefault(batch, ([], []))
            contexts.append(context)
            times.append(ns)
        self._batches = list(rows)
        # Under the smallest context its time holds.
        self._lines = [
            Line([0, *contexts], [times[0], *times]) if contexts[0] else Line(contexts, times)
            for contexts, times in rows.values()
        ]
        self._smallest = max(contexts[0] for contexts, _ in rows.values())
        self._watch = watch
        self._made: dict[int, tuple[Line, int]] = {}

    def within(self, batch: int, context_tokens: int) -> Line:
        """The line for `batch` requests, after a look at whether the samples reach that far."""
        row, largest = self.row(batch)
        self.check(batch, context_tokens, largest)
        return row

    def row(self, batch: int) -> tuple[Line, int]:
        """Attention of `batch` requests over their mean context, and the largest one sampled."""
        made = self._made.get(batch)
        if made is None:
            made = self._made[batch] = self._make(batch)
        return made

    def check(self, batch: int, context_tokens: int, largest: int) -> None:
        """Count a question outside the samples."""
        if batch > self._batches[-1]:
            self._watch.above("requests of a decode step", batch, self._batches[-1])
        if context_tokens > largest * batch:
            self._watch.above("mean context of a decode step", context_tokens // batch, largest)
        elif context_tokens < self._smallest * batch:
            self._watch.below(
                "mean context of a decode step", context_tokens // batch, self._smallest
            )

    def _make(self, batch: int) -> tuple[Line, int]:
        batches, lines = self._batches, self._lines
        if len(batches) == 1:
            return lines[0], int(lines[0].xs[-1])
        left = min(max(bisect_right(batches, batch) - 1, 0), len(batches) - 2)
        low, high = lines[left], lines[left + 1]
        share = (batch - batches[left]) / (batches[left + 1] - batches[left])
        if share <= 0.0:
            return low, int(low.xs[-1])
        if share == 1.0:
            return high, int(high.xs[-1])
        bends = sorted({*low.xs, *high.xs})
        times: list[float] = []
        for context in bends:
            below, above = low.at(context), high.at(context)
            ns = below + share * (above - below)
            times.append(max(ns, times[-1]) if times else max(ns, 0.0))
        return Line(bends, times), int(min(low.xs[-1], high.xs[-1]))
