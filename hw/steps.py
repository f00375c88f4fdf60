"""What a device that computes needs of each request in a GPU step: its tokens and its pages.

To be asked at the moment of submission, on the engine's thread: page tables change from step to
step.
"""

from __future__ import annotations

from collections.abc import Callable

from hicache.engine import Engine
from hicache.operations import Decode, Operation, Prefill
from hicache.requests import Request
from hw.device import Step

# Token ids of a request from position 0 up to (at least) a length.
TokensOf = Callable[[Request, int], object]


class StepsOf:
    """Makes the Steps of an engine's operations. `engine` is set once there is one."""

    def __init__(self, tokens_of: TokensOf) -> None:
        self._tokens_of = tokens_of
        self.engine: Engine | None = None

    def __call__(self, operation: Operation) -> tuple[Step, ...]:
        """First the prefill's chunks, then who decodes."""
        assert self.engine is not None
        scheduler = self.engine.scheduler
        steps: list[Step] = []
        more = 0
        if type(operation) is Prefill:
            for chunk in operation.chunks:
                steps.append(self._step(chunk.request, chunk.new_tokens, chunk.past_tokens))
            more = 1 if operation.decode_batch else 0
        elif type(operation) is Decode:
            more = operation.max_steps
        if more:
            for number, kv_tokens in scheduler.decoding():
                steps.append(self._step(number, 1, kv_tokens, more - 1))
        return tuple(steps)

    def _step(self, number: int, new_tokens: int, past_tokens: int, ahead: int = 0) -> Step:
        assert self.engine is not None
        scheduler = self.engine.scheduler
        tokens = self._tokens_of(scheduler.request(number), past_tokens + new_tokens + ahead)
        return Step(number, new_tokens, past_tokens, tokens, scheduler.page_table(number))
