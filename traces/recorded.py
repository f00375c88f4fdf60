"""What formats of recorded logs share: seconds that never fall, and ids that cover their prompt.

Traces hold milliseconds; most logs write seconds. `Arrivals` keeps times from falling, for a log
whose rows are a little out of order is still worth reading, and counts what it changed, for the
reader's notes. It knows no format and decodes nothing.
"""

from __future__ import annotations

from typing import Annotated

import msgspec

LATEST_S = 10**12
# Where only arrivals are known.
THINK_TIME_NOTE = (
    "when an answer ended is not in the trace: the think time of a later turn is the time since "
    "its parent arrived, which includes that answer"
)
# A time in seconds, from the start of a trace or of 1970. No NaN, no infinity: JSON has neither.
Seconds = (
    Annotated[int, msgspec.Meta(ge=0, le=LATEST_S)]
    | Annotated[float, msgspec.Meta(ge=0, le=LATEST_S)]
)


def milliseconds(seconds: int | float) -> int | float:
    """`seconds` in milliseconds, to the microsecond; an int where they are whole."""
    if isinstance(seconds, int):
        return seconds * 1000
    rounded = round(seconds * 1000, 3)
    return int(rounded) if rounded.is_integer() else rounded


class Arrivals:
    """Arrival times that do not fall: an earlier one becomes that of the row before."""

    def __init__(self) -> None:
        self.latest_ms: int | float = 0
        self.steps_back = 0
        self.first_step_line = 0

    def take(self, time_ms: int | float, line: int) -> int | float:
        """The time at which the row on `line` arrives, given what the file says."""
        if time_ms < self.latest_ms:
            self.steps_back += 1
            self.first_step_line = self.first_step_line or line
            return self.latest_ms
        self.latest_ms = time_ms
        return time_ms

    def notes(self) -> list[str]:
        """What was changed, in at most one sentence."""
        if not self.steps_back:
            return []
        return [
            f"{self.steps_back} request{'s' if self.steps_back > 1 else ''} (first on line "
            f"{self.first_step_line}) had an earlier time than the one before; each was taken to "
            "arrive together with the one before it"
        ]


def ids_mismatch(tokens: int, num_ids: int, block_tokens: int) -> str:
    """Why `num_ids` ids cannot be those of a prompt's blocks; "" where they can.

    There is one for each block, with or without the partly filled last one.
    """
    blocks = (tokens - 1) // block_tokens + 1
    if num_ids in (blocks, tokens // block_tokens):
        return ""
    return (
        f"{num_ids} ids do not match the length {tokens}, "
        f"which is {blocks} block{'s' if blocks > 1 else ''} of {block_tokens} tokens"
    )
