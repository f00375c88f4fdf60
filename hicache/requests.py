"""What the engine is asked to serve: a prompt as runs of page keys, and how long its answer is.

A page key is an int; equal keys mean the same tokens after the same prefix. A prompt's keys are
written as runs `((first key, count), ...)` of consecutive keys, because traces number new pages
consecutively and matching a run is integer arithmetic:

    keys   40 41 42 43 | 90 91     prompt of 6 full pages
    runs   (40, 4), (90, 2)
"""

from __future__ import annotations

from collections.abc import Sequence

KeyRuns = Sequence[tuple[int, int]]


class Request:
    """One request of a trace.

    `prompt_runs` covers `prompt_pages` pages: the full ones, and the last partly filled one where
    the engine caches partial pages. `ideal_pages` is how many of them an infinite cache would hit
    when every request before this one, in the order of the trace, is in it (the hit cap not
    applied).
    """

    __slots__ = (
        "arrival_ns", "ideal_pages", "number", "output_tokens", "priority", "prompt_pages",
        "prompt_runs", "prompt_tokens", "session",
    )  # fmt: skip

    def __init__(
        self,
        number: int,
        arrival_ns: int,
        prompt_tokens: int,
        output_tokens: int,
        prompt_runs: KeyRuns,
        prompt_pages: int,
        ideal_pages: int = 0,
        session: str = "",
        priority: int = 0,
    ) -> None:
        self.number = number
        self.arrival_ns = arrival_ns
        self.prompt_tokens = prompt_tokens
        self.output_tokens = output_tokens
        self.prompt_runs = prompt_runs
        self.prompt_pages = prompt_pages
        self.ideal_pages = ideal_pages
        self.session = session
        self.priority = priority

    def __repr__(self) -> str:
        return f"Request({self.number}, {self.prompt_tokens}+{self.output_tokens} tokens)"


def without_last_page(runs: KeyRuns) -> KeyRuns:
    """A prompt's key runs without its last page."""
    if not runs:
        return runs
    start, count = runs[-1]
    return [*runs[:-1], (start, count - 1)] if count > 1 else runs[:-1]
