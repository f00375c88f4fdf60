"""What one pass over a trace found out: counts and warnings. It draws no conclusions."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(slots=True)
class TraceFacts:
    """Filled while a trace is read, piece by piece; complete once `complete` is True.

    Counts cover the requests read so far. `blocks`, `unique_blocks` and `ideal_blocks` are the
    trace's own: one for each id of a prompt, told apart by all ids before it, whatever number of
    tokens it stands for; for token ids, pages. The pages are those of the page size and page rule
    that was asked for.
    """

    requests: int = 0
    prompt_tokens: int = 0
    output_tokens: int = 0
    # Requests whose answer the trace names, and pages of such answers that an earlier prompt or
    # answer had: in another order than the trace's these may be hit before they are asked for.
    answers: int = 0
    known_answer_pages: int = 0
    longest_prompt_tokens: int = 0
    blocks: int = 0
    unique_blocks: int = 0
    prompt_pages: int = 0
    # The ceiling: leading blocks and pages of prompts, and tokens on those pages, that an infinite
    # cache holding all earlier prompts and their named answers would hit.
    ideal_blocks: int = 0
    ideal_pages: int = 0
    ideal_tokens: int = 0
    # Requests whose ids do not reach the prompt's end (often the partly filled last block has
    # none), so that the tokens behind them can never hit.
    requests_without_tail_id: int = 0
    first_timestamp_ms: float = 0
    last_timestamp_ms: float = 0
    # Malformed rows that were left out.
    bad_rows: int = 0
    # SHA-256 of the trace's text (after decompression), hexadecimal; empty until the pass is
    # complete.
    sha256: str = ""
    complete: bool = False
    warnings: list[str] = field(default_factory=list)

    @property
    def duration_s(self) -> float:
        """Seconds between the first and the last request, by the trace's clock (speed 1)."""
        return (self.last_timestamp_ms - self.first_timestamp_ms) / 1000


def no_id_to_the_end(prompts: int, requests: int) -> str:
    """What to say of prompts whose ids, and those of their named answers, do not cover them."""
    return (
        f"{prompts:,} of {requests:,} prompts have tokens behind their last id (a partly filled "
        "last block, most often), which never hit and are always computed"
    )
