"""GPU steps of the real model: prefills over (new, past), several at once, decode over a context.

A sample of a prefill is the whole blocking call of `ModelDevice.run`, less what will not recur: it
is what a run's engine waits for. Where no graph runs it, decode steps go before it that take about
as long: after a row of long prefills a GPU's clock is lower than in a run, which does both in turn
(4 % on an H200, also where decode had half of that time). A sample of decode is the mean of the
steps of a burst between the end of its first and that of its last; what the first takes more is
measured apart (`burst`). Sizes at which graphs change are points of the fit; sizes between them are
held out.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from calibrate.points import NO_FLOOR, Described, Effort, Floor, Point
from scenario.measurement import Role

if TYPE_CHECKING:
    from calibrate.probes.bench import Bench
    from hw.device import Step

BURST_STEPS = 9
SAMPLES = 6  # that a point wants
# Two calls are enough, in a quick calibration, of what hardly varies: on an H200 the first two of
# decode bursts were within 0.05 % of the median of all, of prefills as long as this within 0.3 %.
STEADY, STEADY_S = 2, 0.2
BETWEEN = (4, 256)  # batch and context of the decode steps before a long prefill
BETWEEN_S = 0.08  # about what one burst of them takes
MOST_BETWEEN = 3  # bursts; one, where most of a step is attention over a long past
LONG_PAST = 16_384
# Sizes of a GPU's calibration; what is beyond the scale is left out.
# Over a past: the graphs' sizes but two that cost what their neighbours do, and longer ones.
NEWS = (16, 64, 128, 192, 256, 384, 512, 640, 768, 896, 1024, 2048, 4096, 8192)
NEWS_ALONE = (1025, 1280, 1536, 2048, 3072, 4096, 6144, 8192)
PASTS = (512, 2048, 8192, 32_768, 122_880)
MORE_PASTS = (16_384,)  # for what is not a graph: the GPU's cache makes a bend there
CHECKS = (
    (1, 4000), (40, 0), (300, 0), (700, 0), (1000, 0), (1700, 0), (2500, 0), (3500, 0), (5000, 0),
    (7000, 0),
    (40, 1000), (200, 5000), (350, 8000), (700, 20_000), (1500, 3000), (3000, 12_000),
    (6000, 5000), (350, 60_000), (8192, 24_000), (4096, 4096), (100, 30_000), (900, 50_000),
)  # fmt: skip
JOINT = ((2, 500, 0), (4, 250, 2000), (3, 1000, 4000), (8, 100, 8000), (2, 2000, 1000))
BATCHES = (1, 2, 4, 8, 16, 32, 64, 128)
CONTEXTS = (128, 1024, 4096, 16_384, 65_536, 122_880)
DECODE_CHECKS = ((1, 2500), (3, 2000), (6, 6000), (12, 3000), (20, 8000), (28, 1500), (40, 2000),
                 (56, 6000), (90, 1500), (3, 90_000), (12, 40_000), (40, 12_000),
                 (100, 6000))  # fmt: skip
MOST_DECODE_TOKENS = 64 * 16_384
BURST_BATCHES = (1, 8, 32)


class StepsProbe:
    """See `calibrate.points.Probe`."""

    name = "steps"

    def __init__(self, bench: Bench, hbm_bytes_per_s: float = 0.0) -> None:
        """`hbm_bytes_per_s`: of the GPU's memory; 0: not known."""
        self._bench = bench
        self._hbm = hbm_bytes_per_s

    def describe(self) -> dict[str, Described]:
        model = self._bench.geometry.name
        return {
            "steps.prefill": Described(
                ("new_tokens", "past_tokens"), f"a whole prefill step of {model}, one request"
            ),
            "steps.joint": Described(
                ("requests", "new_tokens_each", "past_tokens_each"),
                f"a whole prefill step of {model}, several requests",
            ),
            "steps.decode": Described(
                ("batch", "context_tokens_each"), f"a decode step of {model} within a burst"
            ),
            "gpu.matmul": Described(("size",), "a product of two square matrices in bf16"),
            "steps.burst": Described(
                ("batch",), "a decode burst's call to the end of its first step, less a later step"
            ),
        }

    def points(self, effort: Effort) -> list[Point]:
        points = [*self._prefills(effort), *self._decodes(effort), *self._joint()]
        if self._bench.where.type == "cuda":
            points.append(Point("gpu.matmul", (8192,), "fit", 0.2))
        return points

    def _prefills(self, effort: Effort) -> list[Point]:
        from hw.model.graphs import Buckets

        scale = self._bench.scale
        alone = {*NEWS, *NEWS_ALONE, *Buckets().prefill_tokens, scale.chunk_tokens}
        if effort == "thorough":
            alone |= {1152, 1792, 2560, 3584, 5120, 7168}
        sizes = {(new, 0) for new in alone} | {(new, past) for new in NEWS for past in PASTS}
        sizes |= {(new, past) for new in NEWS[-4:] for past in MORE_PASTS}
        sizes |= {(scale.chunk_tokens, past) for past in PASTS if scale.chunk_tokens < NEWS[-1]}
        checks = set(CHECKS) - sizes
        if scale.chunk_tokens <= NEWS[2]:  # a small scale has small points of its own
            checks |= {(scale.chunk_tokens // 3, scale.context_tokens // 3)}
            sizes |= {(new, scale.context_tokens // 2) for new in (16, scale.chunk_tokens)}
        points = [_prefill_point(at, "fit", effort) for at in sorted(sizes)]
        points += [_prefill_point(at, "check", effort) for at in sorted(checks)]
        room = self._bench.scale.device_tokens
        return [
            each for each in points
            if each.at[0] <= scale.chunk_tokens and each.at[1] <= scale.context_tokens
            and sum(each.at) <= room
        ]  # fmt: skip

    def _decodes(self, effort: Effort) -> list[Point]:
        from hw.model.graphs import Buckets

        scale = self._bench.scale
        sizes = {(batch, context) for batch in BATCHES for context in CONTEXTS}
        sizes |= {(batch, each) for batch in Buckets().decoders for each in CONTEXTS[:3]}
        # No batch's row ends before the tokens of all its requests would fill an L1.
        sizes |= {(batch, min(scale.context_tokens, MOST_DECODE_TOKENS // batch))
                  for batch in (*BATCHES, *Buckets().decoders)}  # fmt: skip
        if effort == "thorough":
            sizes |= {(batch, 8192) for batch in BATCHES}
        checks = set(DECODE_CHECKS) - sizes
        if scale.context_tokens < CONTEXTS[1]:
            sizes |= {(batch, scale.context_tokens - BURST_STEPS) for batch in BATCHES}
            checks |= {(3, scale.context_tokens // 2)}
        wanted = STEADY if effort == "quick" else SAMPLES
        points = [
            Point(
                "steps.decode", at, "check" if at in checks else "fit", wanted * _decode_s(*at),
                least=STEADY, warm_ups=0,  # each burst's first step is one
            )
            for at in (*sorted(sizes), *sorted(checks))
        ]  # fmt: skip
        points += [Point("steps.burst", (batch,), "fit", 1.0) for batch in BURST_BATCHES]
        return [
            each for each in points
            if each.at[0] <= scale.batch and max(each.at[1:], default=0) <= scale.context_tokens
            and each.at[0] * max(each.at[1:], default=0) <= MOST_DECODE_TOKENS
            and max(each.at[1:], default=0) + BURST_STEPS <= scale.device_tokens
        ]  # fmt: skip

    def _joint(self) -> list[Point]:
        scale = self._bench.scale
        points = [
            Point("steps.joint", at, "check", at[0] * _prefill_s(at[1], at[2])) for at in JOINT
        ]
        if scale.chunk_tokens < JOINT[0][0] * JOINT[0][1]:
            points = [Point("steps.joint", (2, scale.chunk_tokens // 4, 0), "check")]
        return [
            each for each in points
            if each.at[0] * each.at[1] <= scale.chunk_tokens and each.at[0] <= scale.batch
        ]  # fmt: skip

    def open(self) -> None:
        _ = self._bench.model

    def sampler(self, point: Point) -> Callable[[], int]:
        if point.series == "gpu.matmul":
            return self._matmul(point.at[0])
        if point.series == "steps.prefill":
            new, past = point.at
            return self._prefill(1, new, past)
        if point.series == "steps.joint":
            return self._prefill(*point.at)
        if point.series == "steps.decode":
            batch, context = point.at
            return self._decode(batch, context)
        return self._burst(point.at[0])

    def floor(self, point: Point) -> Floor:
        """All weights that one step reads, at the memory's bandwidth."""
        if point.series in ("steps.burst", "gpu.matmul") or not self._hbm:
            return NO_FLOOR
        geometry = self._bench.geometry
        read = geometry.weight_bytes * geometry.active_parameter_count / geometry.parameter_count
        if not geometry.tied_embeddings:  # the input embedding is a look-up
            share = geometry.vocab_size * geometry.hidden_size / geometry.parameter_count
            read -= geometry.weight_bytes * share
        return Floor(read * 1e9 / self._hbm, "the GPU's memory can read the weights")

    def close(self) -> None:
        """The bench is closed by who made it."""

    def _matmul(self, size: int) -> Callable[[], int]:
        """What the matrix units reach: the roofline of a prefill."""
        import torch

        where = self._bench.where
        one = torch.randn(size, size, device=where, dtype=torch.bfloat16)
        product = torch.empty_like(one)

        def act() -> int:
            torch.cuda.synchronize(where)
            begun_ns = time.monotonic_ns()
            torch.mm(one, one, out=product)
            torch.cuda.synchronize(where)
            return time.monotonic_ns() - begun_ns

        return act

    def _step(self, request: int, past: int, new: int, upto: int) -> Step:
        """A request in pages of its own choice; requests may share some."""
        from hw.device import Step

        bench = self._bench
        pages = -(-upto // bench.page_size_tokens)
        tokens = bench.random.integers(0, bench.geometry.vocab_size, upto, dtype="int32")
        return Step(request, new, past, tokens, bench.pages(bench.pool, pages))

    def in_a_row(self, new: int) -> Callable[[], int]:
        """Prefills of so many tokens with nothing between them, for what runs beside others."""
        return self._prefill(1, new, 0, between=lambda: None)

    def _prefill(
        self, requests: int, new: int, past: int, *, between: Callable[[], object] | None = None
    ) -> Callable[[], int]:
        from hicache.operations import Chunk, Prefill
        from hw.device import Control

        steps = tuple(self._step(number, past, new, past + new) for number in range(requests))
        chunks = tuple(Chunk(number, new, past) for number in range(requests))
        operation = Prefill(chunks, requests * new)
        device = self._bench.model
        between, warm = between or self._between(requests * new, past), False

        def act() -> int:
            nonlocal warm
            if warm:  # the first call is not kept
                between()
            warm = True
            begun_ns = time.monotonic_ns()
            timing = device.run(operation, Control(), steps)
            return time.monotonic_ns() - begun_ns - timing.setup_ns

        return act

    def _between(self, tokens: int, past: int) -> Callable[[], object]:
        """What goes before a prefill of so many tokens behind so many."""
        bursts = _bursts_between(tokens, past)
        if not bursts:
            return lambda: None
        scale = self._bench.scale
        burst = self._run_burst(
            min(BETWEEN[0], scale.batch), min(BETWEEN[1], scale.context_tokens // 2)
        )
        return lambda: [burst() for _ in range(bursts)]

    def _run_burst(self, batch: int, context: int) -> Callable[[], tuple[int, tuple[int, ...]]]:
        """What carries a burst out: when it was called, and the ends of its steps."""
        from hicache.operations import Decode
        from hw.device import Control

        steps = tuple(self._step(row, context, 1, context + BURST_STEPS) for row in range(batch))
        operation = Decode(batch, batch * context, BURST_STEPS)
        device = self._bench.model

        def act() -> tuple[int, tuple[int, ...]]:
            begun_ns = time.monotonic_ns()
            timing = device.run(operation, Control(), steps)
            return begun_ns + timing.setup_ns, timing.step_ends_ns

        return act

    def _decode(self, batch: int, context: int) -> Callable[[], int]:
        run = self._run_burst(batch, context)

        def act() -> int:
            _, ends = run()
            return (ends[-1] - ends[0]) // (len(ends) - 1)

        return act

    def _burst(self, batch: int) -> Callable[[], int]:
        run = self._run_burst(batch, min(2048, self._bench.scale.context_tokens // 2))

        def act() -> int:
            begun_ns, ends = run()
            return max(1, ends[0] - begun_ns - (ends[-1] - ends[0]) // (len(ends) - 1))

        return act


def _prefill_point(at: tuple[int, int], role: Role, effort: Effort) -> Point:
    """Its time holds what goes before each call, and the call before those that count."""
    call_s = _prefill_s(*at) / SAMPLES
    steady = call_s >= STEADY_S
    samples = 1 + STEADY if steady and effort == "quick" else SAMPLES
    weight = max(0.15, samples * (call_s + _bursts_between(*at) * BETWEEN_S))
    return Point("steps.prefill", at, role, weight, STEADY if steady else 3)


def _bursts_between(tokens: int, past: int) -> int:
    """Of decode, before a prefill of so many tokens; none before one that a graph runs."""
    from hw.model.graphs import Buckets

    if tokens <= max(Buckets().prefill_tokens):
        return 0
    most = 1 if past > LONG_PAST else MOST_BETWEEN
    return min(most, math.ceil(_prefill_s(tokens, past) / SAMPLES / BETWEEN_S))


def _prefill_s(new: int, past: int) -> float:
    """Seconds that a point wants: six calls on a fast GPU with a model of 8 B parameters."""
    return max(0.15, SAMPLES * (new * 35e-6 + new * (past + new / 2) * 1.5e-9))


def _decode_s(batch: int, context: int) -> float:
    """Seconds of one burst there."""
    return max(0.08, BURST_STEPS * (0.009 + batch * context * 4e-8))
