"""A device without a model: its steps take a time that is given, and K and V hold a pattern that
follows from their tokens.

    prefill, decode   what is read is checked against the pattern, what is new is filled with it

Real K and V of a token depend on all tokens before it. So does the pattern: a token's seed is a
hash of the tokens from the request's first one to it. A page that a transfer put in the wrong place
or delivered in part, a stale page, a page of another prefix: each differs in nearly every word, and
the operation ends in a DeviceError that names request, position and page.

On a GPU the pattern is a kernel, on a CPU it is numpy: the same words (`launch` runs the kernel on
either). Time is a kernel that waits, on the GPU's stream; on a CPU the thread sleeps. Filling and
checking are part of the time given, and make it longer only where it is too short for them.
"""

# pyright: reportCallIssue=false
# A kernel's launch is not typed.
from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Literal, NamedTuple, Protocol

import numpy as np
import torch
from numpy.typing import NDArray

from hicache.errors import DeviceError, InputError
from hicache.operations import Decode, Operation, Prefill
from hw import pattern, pattern_host
from hw.clock import StreamClock, run_burst
from hw.device import Control, Step, Timing
from hw.interpreter import check_device, launching
from hw.pools import DevicePool, KvLayout
from hw.tokens import expand, mix

Act = Literal["fill", "check"]

_WORDS: dict[int, torch.dtype] = {4: torch.int32, 2: torch.int16, 1: torch.int8}
KEPT_REQUESTS = 512
_FACTOR = np.uint64(0x5851F42D4C957F2D)  # odd, so that no token's part of a hash vanishes


class Durations(Protocol):
    """How long steps take."""

    def prefill_ns(self, operation: Prefill) -> int:
        """A prefill step, with who decodes in it."""
        ...

    def decode_ns(self, batch: int, context_tokens: int) -> int:
        """One step of a burst; `context_tokens`: the sum of lengths before it."""
        ...


class AffineDurations(NamedTuple):
    """Fixed times and times for each token; for a decode step, each token of context."""

    prefill_fixed_ns: int = 10_000_000
    prefill_ns_per_token: int = 30_000
    decode_fixed_ns: int = 8_000_000
    decode_ns_per_context_token: int = 30

    def prefill_ns(self, operation: Prefill) -> int:
        """See Durations."""
        return self.prefill_fixed_ns + self.prefill_ns_per_token * (
            operation.tokens + operation.decode_batch
        )

    def decode_ns(self, batch: int, context_tokens: int) -> int:
        """See Durations."""
        return self.decode_fixed_ns + self.decode_ns_per_context_token * context_tokens


def token_seeds(tokens: object, upto: int) -> NDArray[np.int32]:
    """The seeds of positions 0 .. upto - 1: each a hash of all tokens up to it, int32.

    A polynomial in the tokens with wrapping 64-bit arithmetic, mixed.
    """
    ids = np.asarray(tokens)[:upto]
    if len(ids) < upto:
        raise InputError(f"{len(ids)} tokens where {upto} are needed")
    powers = np.cumprod(np.full(upto, _FACTOR, np.uint64))
    sums = np.cumsum((ids.astype(np.uint64) + np.uint64(1)) * powers)
    return (mix(sums) >> np.uint64(32)).astype(np.uint32).view(np.int32)


def fill(pool: DevicePool, seeds: NDArray[np.int32], slots: NDArray[np.int32]) -> None:
    """Write the pattern of tokens into their slots, on the current stream."""
    _do(pool, seeds, slots, "fill")


def check(pool: DevicePool, seeds: NDArray[np.int32], slots: NDArray[np.int32]) -> torch.Tensor:
    """How many words of each token differ from its pattern: int32 of shape (tokens,)."""
    return _do(pool, seeds, slots, "check")


class SyntheticDevice:
    """See `hw.device.Device`."""

    def __init__(self, pool: DevicePool, durations: Durations = AffineDurations()) -> None:  # noqa: B008  # immutable
        check_device(pool.device)
        self._pool = pool
        self._durations = durations
        gpu = pool.device.type == "cuda"
        self._stream = torch.cuda.Stream(pool.device) if gpu else None
        self._clock = StreamClock(self._stream)
        self._began = torch.zeros(1, dtype=torch.int64, device=pool.device)
        self._began_ns = 0
        self._kept: dict[int, tuple[object, NDArray[np.int32]]] = {}  # by request, oldest first
        self.loads_of: Callable[[int], Callable[[int], object]] | None = None
        self.checked_tokens = 0
        self.filled_tokens = 0

    @property
    def name(self) -> str:
        """For messages."""
        return f"{'GPU' if self._stream else 'CPU'} (synthetic)"

    def warm_up(self) -> int:
        """Compile the kernels; how long it took, in ns."""
        start_ns = time.monotonic_ns()
        with torch.cuda.stream(self._stream):
            nothing = np.empty(0, np.int32)
            fill(self._pool, nothing, nothing)
            check(self._pool, nothing, nothing)
            self._begin()
            self._last(0)
        if self._stream is not None:
            self._stream.synchronize()
        return time.monotonic_ns() - start_ns

    def run(self, operation: Operation, control: Control, steps: tuple[Step, ...] = ()) -> Timing:
        """Check, fill and take time. Raises DeviceError where a page holds something else than its
        tokens' pattern.
        """
        if self._stream is not None:  # first, what the caller's stream was given
            self._stream.wait_stream(torch.cuda.current_stream(self._pool.device))
        with torch.cuda.stream(self._stream):
            if type(operation) is Prefill:
                return self._prefill(operation, steps)
            if type(operation) is Decode:
                return self._burst(operation, control, steps)
        raise InputError(f"{self.name} does not carry out {operation}")

    def close(self) -> None:
        """Nothing is held."""

    def _prefill(self, operation: Prefill, steps: Sequence[Step]) -> Timing:
        clock = self._clock
        begin = clock.mark()
        self._begin()
        if operation.load >= 0:
            self._wait(operation)
        wrong = self._read(steps)
        self._write([(step, step.past_tokens, step.new_tokens) for step in steps])
        self._last(self._durations.prefill_ns(operation))
        seen_ns = clock.wait(end := clock.mark())
        self._judge(steps, wrong)
        started_ns, _ = clock.host_times((begin, end), (seen_ns,))
        return Timing(started_ns, max(seen_ns, started_ns + 1))

    def _wait(self, operation: Prefill) -> None:
        """Let the stream wait for the load that the step overlaps with, all of it: what is read is
        checked in one go. Raises TransferError if it failed.
        """
        if self.loads_of is None:
            raise InputError(f"{self.name} knows no loads, {operation} names one")
        load = self.loads_of(operation.load)
        for layer in range(self._pool.layout.layers):
            load(layer)

    def _burst(self, operation: Decode, control: Control, steps: Sequence[Step]) -> Timing:
        context = sum(step.past_tokens for step in steps)
        wrong: list[torch.Tensor] = []

        def launch(number: int) -> None:
            self._begin()
            if not number:
                wrong.append(self._read(steps))
            self._write([(step, step.past_tokens + number, 1) for step in steps])
            batch = operation.batch
            self._last(self._durations.decode_ns(batch, context + number * batch))

        timing = run_burst(self._clock, control, operation.max_steps, launch)
        self._judge(steps, wrong[0])
        return timing

    def _read(self, steps: Sequence[Step]) -> torch.Tensor:
        """Check what each request has computed before."""
        seeds, slots = self._place([(step, 0, step.past_tokens) for step in steps])
        self.checked_tokens += len(seeds)
        return check(self._pool, seeds, slots)

    def _write(self, parts: Sequence[tuple[Step, int, int]]) -> None:
        seeds, slots = self._place(parts)
        self.filled_tokens += len(seeds)
        fill(self._pool, seeds, slots)

    def _place(
        self, parts: Sequence[tuple[Step, int, int]]
    ) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
        """Seeds and slots of (request, first position, count), one part after the other."""
        size = self._pool.layout.page_size_tokens
        seeds: list[NDArray[np.int32]] = [np.empty(0, np.int32)]
        slots: list[NDArray[np.int32]] = [np.empty(0, np.int32)]
        for step, first, count in parts:
            if not count:
                continue
            pages = expand(step.pages)
            page, within = np.divmod(np.arange(first, first + count), size)
            if page[-1] >= len(pages):
                raise InputError(
                    f"request {step.request}: {len(pages)} pages of {size} tokens do not hold "
                    f"{first + count}"
                )
            seeds.append(self._seeds(step, first + count)[first : first + count])
            slots.append((pages[page] * size + within).astype(np.int32))
        return np.concatenate(seeds), np.concatenate(slots)

    def _seeds(self, step: Step, upto: int) -> NDArray[np.int32]:
        """Seeds of a request's tokens: kept while the same array of tokens is given."""
        tokens, seeds = self._kept.pop(step.request, (None, None))
        if tokens is not step.tokens or seeds is None or len(seeds) < upto:
            seeds = token_seeds(step.tokens, max(upto, len(np.asarray(step.tokens))))
        self._kept[step.request] = (step.tokens, seeds)
        if len(self._kept) > KEPT_REQUESTS:
            del self._kept[next(iter(self._kept))]
        return seeds

    def _judge(self, steps: Sequence[Step], wrong: torch.Tensor) -> None:
        """Raises DeviceError at the first token that was not what it should be."""
        counts = wrong.cpu().numpy()
        bad = np.flatnonzero(counts)
        if not len(bad):
            return
        position, size = int(bad[0]), self._pool.layout.page_size_tokens
        for step in steps:
            if position < step.past_tokens:
                page = int(expand(step.pages)[position // size])
                raise DeviceError(
                    f"{self.name}: {len(bad)} of {len(counts)} tokens read are not what their "
                    f"requests computed; the first is position {position} of request "
                    f"{step.request}, in L1 page {page}, {counts[bad[0]]} words wrong"
                )
            position -= step.past_tokens
        raise AssertionError("a token of no request")

    def _begin(self) -> None:
        self._began_ns = time.monotonic_ns()
        if self._stream is not None:
            pattern.stamp_kernel[(1,)](self._began, num_warps=1)

    def _last(self, duration_ns: int) -> None:
        """Take up what is left of the time."""
        if self._stream is not None:
            pattern.spin_kernel[(1,)](self._began, duration_ns, num_warps=1)
        else:
            time.sleep(max(0, self._began_ns + duration_ns - time.monotonic_ns()) * 1e-9)


class _Words(NamedTuple):
    """A pool as words, in the largest integers that K and V of a token are multiples of."""

    data: torch.Tensor
    token_words: tuple[int, int]  # of K and V in a layer
    v_start: int
    pitches: tuple[int, int]  # from a layer to the next one, of K and V

    @classmethod
    def of(cls, pool: DevicePool) -> _Words:
        layout = pool.layout
        k_bytes, v_bytes = (
            each // layout.page_size_tokens for each in (layout.k_bytes, layout.v_bytes)
        )
        size = next(each for each in _WORDS if k_bytes % each == 0 and v_bytes % each == 0)
        return cls(
            pool.data.view(_WORDS[size]), (k_bytes // size, v_bytes // size),
            pool.v_start_bytes // size,
            (pool.layer_pitch_bytes(0) // size, pool.layer_pitch_bytes(1) // size),
        )  # fmt: skip

    @property
    def width(self) -> int:
        """The power of two that holds the words of a token in a layer."""
        return 1 << (max(self.token_words) - 1).bit_length()

    def planes(self, layout: KvLayout) -> list[pattern_host.Plane]:
        """K of all layers, then V of them."""
        starts = (0, self.v_start)
        return [
            pattern_host.Plane(starts[part] + layer * self.pitches[part], self.token_words[part])
            for part in range(layout.parts)
            for layer in range(layout.layers)
        ]


def launch(
    pool: DevicePool, seeds: NDArray[np.int32], slots: NDArray[np.int32], act: Act
) -> torch.Tensor:
    """Fill or check by the kernel, on a CPU by Triton's interpreter: int32 of shape (tokens,), how
    many words differ.
    """
    words, layout, device = _Words.of(pool), pool.layout, pool.device
    count = len(seeds)
    both = torch.from_numpy(np.stack((seeds, slots)))
    sent = both.pin_memory().to(device, non_blocking=True) if device.type == "cuda" else both
    wrong = torch.zeros(count, dtype=torch.int32, device=device)
    if device.type == "cpu":  # an interpreted program costs the same for one token as for many
        block = 1 << max(6, min((count - 1).bit_length(), 12))
    else:
        block = 1 << (max(1, 2048 // max(words.token_words)).bit_length() - 1)
    with launching(device):
        pattern.pattern_kernel[(max(1, -(-count // block)), layout.layers * layout.parts)](
            words.data, sent[0], sent[1], wrong, count, layout.layers, words.v_start,
            *words.pitches, K_WORDS=words.token_words[0], V_WORDS=words.token_words[1],
            WORDS_P2=words.width, BLOCK=block, CHECK=act == "check", num_warps=4,
        )  # fmt: skip
    return wrong


def _on_host(
    pool: DevicePool, seeds: NDArray[np.int32], slots: NDArray[np.int32], act: Act
) -> torch.Tensor:
    """The same in numpy, for a pool in the memory of the CPU."""
    words = _Words.of(pool)
    given = (words.data.numpy(), words.planes(pool.layout), words.width, seeds, slots)
    if act == "check":
        return torch.from_numpy(pattern_host.check(*given))
    pattern_host.fill(*given)
    return torch.zeros(len(seeds), dtype=torch.int32)


def _do(
    pool: DevicePool, seeds: NDArray[np.int32], slots: NDArray[np.int32], act: Act
) -> torch.Tensor:
    return (_on_host if pool.device.type == "cpu" else launch)(pool, seeds, slots, act)
