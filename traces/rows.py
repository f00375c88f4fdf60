"""What every format is read into: one row a request, as the trace states it. Knows no format.

    a file's bytes --reader--> batches of rows --cutter--> requests with page keys (the engine's)
                                    |
                                    +--> info, convert, slice, anonymize

A prompt is a list of *content ids*, one for each piece of it. Equal ids mean equal tokens; where a
format's ids also stand for everything before them, nothing changes. How many tokens a piece has is
said by the layout (all alike, but for the last) or by the row (`lengths`). Token ids are content
ids of one token each.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Annotated, NamedTuple, NoReturn, Protocol

import msgspec

from hicache.errors import InputError

LARGEST_ID = (1 << 62) - 1
MOST_TOKENS = (1 << 31) - 1
LISTED_BAD_ROWS = 20

Tokens = Annotated[int, msgspec.Meta(ge=0, le=MOST_TOKENS)]
PromptTokens = Annotated[int, msgspec.Meta(ge=1, le=MOST_TOKENS)]
Id = Annotated[int, msgspec.Meta(ge=0, le=LARGEST_ID)]


class Row(msgspec.Struct, gc=False):
    """One request. Names are Mooncake's where it has one; times are in milliseconds.

    A row with `after` waits for the answer of that row and then for `delay`; one without arrives at
    `timestamp`. A row may have both: then its timestamp says when it came in the recorded run.
    """

    input_length: PromptTokens
    output_length: Tokens
    # Arrival by the trace's clock; it never falls from row to row. None: only `after` and `delay`.
    timestamp: int | float | None = None
    # Content ids of the prompt; none where only lengths are known (`Layout.block_tokens` 0).
    hash_ids: list[Id] = msgspec.field(default_factory=list)
    # Tokens of each of `hash_ids`; None where all have `Layout.block_tokens` and the last the rest.
    lengths: list[int] | None = None
    # Content ids of the answer, following those of the prompt, where the trace names them. With
    # `Layout.block_tokens` > 1: ids of the *full* blocks of prompt + answer from the block on in
    # which the prompt's last, partly filled one lies (so `input_length // block_tokens` onwards).
    output_ids: list[Id] | None = None
    output_lengths: list[int] | None = None
    # Sessions are grouped by this; "" belongs to none.
    session: str = ""
    # Number (0, 1, ... in this stream) of the row whose answer this one waits for; -1: of none.
    after: int = -1
    # Think time between that answer's end and this arrival.
    delay: float = 0
    # Prompt tokens that the recorded server found in its cache; -1: not stated.
    cached_tokens: int = -1


class Batch(NamedTuple):
    """Some consecutive rows, and the line (or the entry) of the file that each was on."""

    rows: list[Row]
    lines: Sequence[int]


@dataclass(frozen=True, slots=True)
class Layout:
    """What all rows of one trace have in common. Known before the first row."""

    # Tokens of a block; 1: ids are token ids; 0: a row's `lengths` say it, or there are no ids.
    block_tokens: int
    # Whether prompts have ids at all. Without, nothing is ever shared.
    has_ids: bool = True
    # Whether every row has a timestamp, so that a replay at these times need not look ahead.
    timed: bool = True


@dataclass(frozen=True, slots=True)
class ReadOptions:
    """What a reader may be told. Whatever a format says of itself is taken from the file."""

    # Block size of formats that do not say it; None: the format's usual one.
    block_tokens: int | None = None
    # A Hugging Face tokenizer.json, for formats that hold text.
    tokenizer: str = ""


@dataclass(slots=True)
class BadRow:
    """A row that was left out: where it is and why."""

    line: int
    field: str
    reason: str
    # The file, where a trace is several; what `BadRows.name` was then.
    file: str = ""

    def __str__(self) -> str:
        return f"line {self.line}{', ' + self.field if self.field else ''}: {self.reason}"


def rows_were(count: int) -> str:
    """The words between a number of malformed rows and what became of them."""
    return "malformed row was" if count == 1 else "malformed rows were"


class BadRows:
    """What becomes of malformed rows: an error at the first, or a list and a count.

    Readers call `refuse` and, if it returns, leave the row out. `name` is what errors call the
    file; a reader of several sets it as it goes from one to the next.
    """

    def __init__(self, name: str, *, skip: bool = False) -> None:
        self.name = name
        self.skip = skip
        self.count = 0
        self.listed: list[BadRow] = []  # the first LISTED_BAD_ROWS

    def refuse(self, line: int, field: str, reason: str) -> None:
        """Say that the row on `line` (from 1) is malformed: an `InputError`, or it is skipped."""
        if not self.skip:
            raise InputError(self.message(line, field, reason))
        self.count += 1
        if len(self.listed) < LISTED_BAD_ROWS:
            self.listed.append(BadRow(line, field, reason, self.name))

    def fatal(self, line: int, field: str, reason: str) -> NoReturn:
        """The same for what no row can be skipped for: the rest of the file cannot be trusted."""
        raise InputError(self.message(line, field, reason))

    def message(self, line: int, field: str, reason: str) -> str:
        """One line that names file, line, field and reason."""
        return f"{self.name}, {BadRow(line, field, reason)}"


class RowStream(Protocol):
    """One pass over a trace. `notes` (warnings in whole sentences) may grow while it runs."""

    @property
    def layout(self) -> Layout:
        """What all rows have in common."""
        ...

    @property
    def notes(self) -> list[str]:
        """What a user should know of how the trace was read."""
        ...

    def batches(self) -> Iterator[Batch]:
        """The rows in order of arrival, a few hundred at a time. `InputError` for a bad one."""
        ...
