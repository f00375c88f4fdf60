"""What a device that computes needs of each request in a GPU step: its tokens and its pages.

Page tables and lengths change from step to step, so they are asked for at the moment of submission,
on the engine's thread. Tokens do not, and take long to make: whoever carries the step out makes
them, and puts the Steps together.

    engine's thread    StepsOf(operation) -> Asked, Asked, ...     lengths and pages, as they are
    device's thread    the answer, called -> Step, Step, ...       with tokens
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from hicache.allocator import join
from hicache.engine import Engine
from hicache.operations import Decode, Operation, PageRuns, Prefill
from hicache.requests import Request
from hw.device import Step

# Token ids of a request from position 0 up to (at least) a length.
TokensOf = Callable[[Request, int], object]


class Asked(NamedTuple):
    """A Step that is to be: tokens up to `upto` are needed; the pages are `head`, then `tail`."""

    request: Request
    new_tokens: int
    past_tokens: int
    upto: int
    head: PageRuns
    tail: PageRuns


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
        asked: list[Asked] = []
        more = 0
        if type(operation) is Prefill:
            for chunk in operation.chunks:
                number, new, past = chunk.request, chunk.new_tokens, chunk.past_tokens
                request, pages = scheduler.request(number), scheduler.page_lists(number)
                asked.append(Asked(request, new, past, past + new, *pages))
            more = 1 if operation.decode_batch else 0
        elif type(operation) is Decode:
            more = operation.max_steps
        if more:
            for number, kv_tokens in scheduler.decoding():
                request, pages = scheduler.request(number), scheduler.page_lists(number)
                asked.append(Asked(request, 1, kv_tokens, kv_tokens + more, *pages))
        return lambda: tuple([self._step(each) for each in asked])

    def _step(self, asked: Asked) -> Step:
        request, new, past, upto, head, tail = asked
        tokens = self._tokens_of(request, upto)
        return Step(request.number, new, past, tokens, join(head, tail))
