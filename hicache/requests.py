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
    applied). Answers whose pages the trace names count as held, too.

    It arrives at `arrival_ns`, -1 where the trace gives no time for it; or, with `after`, once the
    request of that number has ended and `delay_ns` more have passed. Both have the trace's speed in
    them. A request may have both: then `arrival_ns` says when it came in the recorded run.

    `output_runs` are keys of the full pages behind the prompt's full ones, of prompt and answer but
    for the answer's last token (whose KV is never computed): the very keys that a later prompt
    which goes on from here has there. None: the trace does not name the answer. There may be fewer
    than the answer fills; what follows them is named by nobody.

        prompt_tokens 10, output_tokens 8, pages of 4
        pages         0 1 | 2 3           17 tokens with KV, 4 full pages
                      prompt_runs | output_runs

    `cached_tokens` is how much of the prompt the recorded server found in its cache, -1 if that is
    not known.
    """

    __slots__ = (
        "after", "arrival_ns", "cached_tokens", "delay_ns", "ideal_pages", "number",
        "output_runs", "output_tokens", "priority", "prompt_pages", "prompt_runs",
        "prompt_tokens", "session",
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
        output_runs: KeyRuns | None = None,
        after: int = -1,
        delay_ns: int = 0,
        cached_tokens: int = -1,
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
        self.output_runs = output_runs
        self.after = after
        self.delay_ns = delay_ns
        self.cached_tokens = cached_tokens

    def __repr__(self) -> str:
        return f"Request({self.number}, {self.prompt_tokens}+{self.output_tokens} tokens)"


def without_last_page(runs: KeyRuns) -> KeyRuns:
    """A prompt's key runs without its last page."""
    if not runs:
        return runs
    start, count = runs[-1]
    return [*runs[:-1], (start, count - 1)] if count > 1 else runs[:-1]


def hittable(request: Request, capped_page_tokens: int) -> KeyRuns:
    """The key runs of the pages of a prompt that may hit: not a last page that its last token
    fills, which every server computes. `capped_page_tokens`: `EngineOptions.capped_page_tokens`.
    """
    if capped_page_tokens and request.prompt_pages * capped_page_tokens >= request.prompt_tokens:
        return without_last_page(request.prompt_runs)
    return request.prompt_runs


def answer_runs(request: Request, pages: int, private_key: int) -> KeyRuns:
    """Keys of the `pages` pages behind the prompt's full ones: those that the trace names, then
    private ones, from `private_key` on.
    """
    named = request.output_runs
    if named is None:
        return ((private_key, pages),)
    runs: list[tuple[int, int]] = []
    for start, count in named:
        if not pages:
            break
        part = count if count < pages else pages
        runs.append((start, part))
        pages -= part
    if pages:
        runs.append((private_key, pages))
    return runs
