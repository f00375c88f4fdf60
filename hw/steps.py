"""What a device that computes needs of each request in a GPU step: its tokens and its pages.

Page tables and lengths change from step to step, so they are asked for at the moment of submission,
on the engine's thread. Tokens do not, and take long to make: whoever carries the step out makes
them, and puts the Steps together.

    engine's thread    StepsOf(operation) -> Asked, Asked, ...     lengths and pages, as they are
    device's thread    the answer, called -> Step, Step, ...       with tokens
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

from hicache.allocator import join
from hicache.engine import Engine
from hicache.operations import Chunk, Decode, Operation, Prefill
from hicache.requests import Request
from hicache.running import Asked
from hw.device import Step

# Token ids of a request from position 0 up to (at least) a length.
TokensOf = Callable[[Request, int], object]


class StepsOf:
    """Makes the Steps of an engine's operations. `engine` is set once there is one.

    `tokens_of` is called on the thread of the device that computes, and on no other.
    """

    def __init__(self, tokens_of: TokensOf) -> None:
        self._tokens_of = tokens_of
        self.engine: Engine | None = None

    def __call__(self, operation: Operation) -> Callable[[], tuple[Step, ...]]:
        """First the prefill's chunks, then who decodes; made when the answer is called."""
        assert self.engine is not None
        scheduler = self.engine.scheduler
        chunks: tuple[Chunk, ...] = ()
        more = 0
        if type(operation) is Prefill:
            chunks = operation.chunks
            more = 1 if operation.decode_batch else 0
        elif type(operation) is Decode:
            more = operation.max_steps
        prefilling = [scheduler.asked(chunk.request, chunk.past_tokens) for chunk in chunks]
        done = 0
        decoding: Sequence[Asked] = ()
        if more:
            done, decoding = scheduler.decoding()
        return partial(self._steps, chunks, prefilling, decoding, done, more)

    def _steps(
        self,
        chunks: Sequence[Chunk],
        prefilling: Sequence[Asked],
        decoding: Sequence[Asked],
        done: int,
        more: int,
    ) -> tuple[Step, ...]:
        """`done`, `more`: tokens that those who decode have made in steps, and may make."""
        steps = [
            self._step(asked, 0, chunk.new_tokens, chunk.new_tokens)
            for chunk, asked in zip(chunks, prefilling, strict=True)
        ]
        steps += [self._step(asked, done, 1, more) for asked in decoding]
        return tuple(steps)

    def _step(self, asked: Asked, done: int, new: int, more: int) -> Step:
        """`more`: tokens behind the past that are needed."""
        request, past, head, tail = asked
        past += done
        tokens = self._tokens_of(request, past + more)
        return Step(request.number, new, past, tokens, join(head, tail))
