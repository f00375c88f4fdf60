"""Logs that have only lengths: Azure's LLM inference traces and BurstGPT, both CSV with a header.

    TIMESTAMP,ContextTokens,GeneratedTokens                                      Azure 2023
    2023-11-16 18:17:03.9799600,4808,10
    2024-05-10 00:00:00.009930+00:00,2399,13                                     Azure 2024

    Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type         BurstGPT 1, 2
    5,ChatGPT,472,18,490,Conversation log
    Timestamp,Session ID,Elapsed time,Model,Request tokens,Response tokens,...   BurstGPT 3

Columns are found by their names, in any order; others are ignored (Azure 2025 has NumImages).
Azure's times are dates, read to 100 ns and counted from midnight of the first day, which is kept as
the hint "first_day"; BurstGPT's are seconds. Sources: AzureLLMInferenceDataset2023.md and
...2024.md of Azure/AzurePublicDataset; the README of HPMLL/BurstGPT.

Nothing says what prompts share: they share nothing (traces/synthetic_prefixes.py can make it up).
A BurstGPT session groups its rows. In a "Conversation log" with elapsed times a row follows the one
before it of its session, and its think time is what was left between them. Requests that failed
(0 response tokens) are kept, with an empty answer; requests of 0 prompt tokens ran nothing and are
left out. Both are counted in the notes.

Refused: a missing column, a row of another number of fields, a blank or negative number, a time
that is none, text that is no UTF-8.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from hicache.errors import InputError
from traces.jsonlines import is_utf8
from traces.made import Hints
from traces.recorded import LATEST_S, Arrivals, milliseconds
from traces.rows import MOST_TOKENS, BadRows, Batch, Layout, ReadOptions, Row
from traces.source import Source

CONVERSATION = "Conversation log"
LONGEST_ROW = 10_000

_NUMBER = re.compile(r"[0-9]{1,12}(?:\.[0-9]{0,9})?", re.ASCII)
_COUNT = re.compile(r"([0-9]{1,12})(?:\.0*)?", re.ASCII)
_DATE = re.compile(
    r"([0-9]{4}-[0-9]{2}-[0-9]{2})[ T]([0-9]{2}:[0-9]{2}:[0-9]{2})"
    r"(?:\.([0-9]{1,9}))?(Z|[+-][0-9]{2}:?[0-9]{2})?",
    re.ASCII,
)
_MS = timedelta(milliseconds=1)


@dataclass(frozen=True, slots=True)
class _Columns:
    """What the columns of a format are called."""

    time: str
    prompt: str
    output: str
    session: str = ""
    elapsed: str = ""
    kind: str = ""


_AZURE = _Columns("TIMESTAMP", "ContextTokens", "GeneratedTokens")
_BURSTGPT = _Columns(
    "Timestamp", "Request tokens", "Response tokens", "Session ID", "Elapsed time", "Log Type"
)


class AzureReader:
    """Reads Azure's LLM inference traces."""

    name = "azure"
    describes = "Azure LLM inference CSV (TIMESTAMP, ContextTokens, GeneratedTokens)"

    def recognises(self, head: bytes) -> bool:
        """Whether the header names one of the two token counts."""
        return _has_one_of(head, _AZURE)

    def open(self, source: Source, options: ReadOptions, bad: BadRows) -> LengthsStream:
        """`InputError` for a block size: there are no blocks."""
        _refuse_block_size(source, options)
        return LengthsStream(source, _AZURE, _Dates, bad)


class BurstGPTReader:
    """Reads BurstGPT's traces."""

    name = "burstgpt"
    describes = "BurstGPT CSV (Timestamp, Request tokens, Response tokens)"

    def recognises(self, head: bytes) -> bool:
        """Whether the header names one of the two token counts."""
        return _has_one_of(head, _BURSTGPT)

    def open(self, source: Source, options: ReadOptions, bad: BadRows) -> LengthsStream:
        """`InputError` for a block size: there are no blocks."""
        _refuse_block_size(source, options)
        return LengthsStream(source, _BURSTGPT, _Seconds, bad)


class _Seconds:
    """Times that are numbers."""

    def milliseconds(self, text: str) -> int | float | None:
        """None where `text` is no time."""
        if not _NUMBER.fullmatch(text) or float(text) > LATEST_S:
            return None
        return milliseconds(float(text))


class _Dates:
    """Times that are dates, counted from midnight of the first one's day."""

    def __init__(self) -> None:
        self.midnight: datetime | None = None

    def milliseconds(self, text: str) -> int | float | None:
        """None where `text` is no date."""
        match = _DATE.fullmatch(text)
        if match is None:
            return None
        day, clock, fraction, zone = match.groups()
        try:
            moment = datetime.fromisoformat(f"{day}T{clock}{zone or 'Z'}").astimezone(UTC)
        except (ValueError, OverflowError):
            return None
        if self.midnight is None:
            self.midnight = moment.replace(hour=0, minute=0, second=0)
        whole_ms = (moment - self.midnight) // _MS
        return whole_ms + int(fraction.ljust(9, "0")) / 1_000_000 if fraction else whole_ms


class LengthsStream:
    """One pass over a CSV of lengths."""

    layout = Layout(block_tokens=0, has_ids=False)

    def __init__(
        self,
        source: Source,
        columns: _Columns,
        clock: Callable[[], _Seconds | _Dates],
        bad: BadRows,
    ) -> None:
        self._source = source
        self._columns = columns
        self._clock = clock
        self._bad = bad
        self._pass: _Pass | None = None
        self.hints: Hints = _first_day(source.head()) if clock is _Dates else {}

    @property
    def notes(self) -> list[str]:
        """What the trace lacks, what was left out, and what was changed."""
        notes = ["the trace has lengths only: it does not say what prompts share"]
        return notes + (self._pass.notes() if self._pass else [])

    def batches(self) -> Iterator[Batch]:
        """Yield the rows in file order, a piece of the file at a time."""
        this_pass = self._pass = _Pass(self._columns, self._clock(), self._bad)
        for first_line, piece in self._source.pieces():
            sound = is_utf8(piece)
            rows: list[Row] = []
            lines: list[int] = []
            for number, raw in enumerate(piece.split(b"\n"), first_line):
                if not raw or raw.isspace():
                    continue
                if not sound and not is_utf8(raw):
                    self._bad.refuse(number, "", "is no UTF-8 text")
                    continue
                row = this_pass.row(raw.decode().rstrip("\r"), number)
                if row is not None:
                    rows.append(row)
                    lines.append(number)
            if rows:
                yield Batch(rows, lines)


def _first_day(head: bytes) -> Hints:
    """The hint of the day from which the dates of a table are counted, given its start."""
    header, _, rows = head.lstrip().decode("utf-8", "replace").partition("\n")
    names = [_plain(each.strip('\r"')) for each in header.split(",")]
    row = rows.lstrip().partition("\n")[0].rstrip("\r").split(",")
    place = names.index(_plain(_AZURE.time)) if _plain(_AZURE.time) in names else len(row)
    clock = _Dates()
    if place < len(row) and clock.milliseconds(row[place].strip('" ')) is not None:
        assert clock.midnight is not None
        return {"first_day": f"{clock.midnight.date()}"}
    return {}


class _Pass:
    """Turns lines into rows, the header first."""

    def __init__(self, columns: _Columns, clock: _Seconds | _Dates, bad: BadRows) -> None:
        self._num_rows = 0
        self._columns = columns
        self._clock = clock
        self._bad = bad
        self._arrivals = Arrivals()
        self._num_fields = 0
        # Place of each column, in the order of `_Columns`; -1: the file does not have it.
        self._places: list[int] = []
        self._names: list[str] = []
        self._empty_prompts = self._failures = 0
        # Number of the latest row of a conversation, and when its answer ended.
        self._latest: dict[str, tuple[int, int | float]] = {}

    def notes(self) -> list[str]:
        notes = self._arrivals.notes()
        if self._failures:
            notes.append(
                f"{self._failures} requests have no answer; their prompts are computed all the same"
            )
        if self._empty_prompts:
            notes.append(f"{self._empty_prompts} requests without prompt tokens were left out")
        return notes

    def row(self, text: str, line: int) -> Row | None:
        """The row of a line; None for the header and where there is none."""
        fields = self._split(text, line)
        if fields is None:
            return None
        if not self._num_fields:
            self._take_header(fields, line)
            return None
        if len(fields) != self._num_fields:
            found = f"{len(fields)} field{'s' if len(fields) != 1 else ''}"
            self._bad.refuse(line, "", f"{found}, but the header has {self._num_fields}")
            return None
        time, prompt, output, session, elapsed, kind = self._places
        time_ms = self._clock.milliseconds(fields[time].strip())
        if time_ms is None:
            self._refuse(line, 0, fields[time], "no time")
            return None
        prompt_tokens = self._count(fields[prompt], 1, line)
        output_tokens = None if prompt_tokens is None else self._count(fields[output], 2, line)
        if prompt_tokens is None or output_tokens is None:
            return None
        if not prompt_tokens:
            self._empty_prompts += 1
            return None
        answer_ms = None
        if elapsed >= 0 and fields[elapsed].strip():
            answer_ms = _Seconds().milliseconds(fields[elapsed].strip())
            if answer_ms is None:
                self._refuse(line, 3, fields[elapsed], "no number of seconds")
                return None
        row = Row(prompt_tokens, output_tokens, self._arrivals.take(time_ms, line))
        self._failures += not output_tokens
        if session >= 0:
            row.session = fields[session].strip()
            in_conversation = kind < 0 or fields[kind].strip() == CONVERSATION
            if row.session and in_conversation and answer_ms is not None:
                self._follow(row, answer_ms)
        self._num_rows += 1
        return row

    def _follow(self, row: Row, answer_ms: int | float) -> None:
        """Let a row wait for the one before it in its conversation."""
        assert row.timestamp is not None
        before = self._latest.get(row.session)
        if before is not None:
            row.after = before[0]
            row.delay = max(0, round(row.timestamp - before[1], 3))
        self._latest[row.session] = (self._num_rows, row.timestamp + answer_ms)

    def _split(self, text: str, line: int) -> list[str] | None:
        if len(text) > LONGEST_ROW:
            self._bad.refuse(line, "", f"is no row: it has more than {LONGEST_ROW:,} characters")
            return None
        if '"' not in text:
            return text.split(",")
        try:
            return next(csv.reader([text], strict=True))
        except csv.Error as error:
            self._bad.refuse(line, "", f"is no CSV: {error}")
            return None

    def _take_header(self, fields: list[str], line: int) -> None:
        found = [_plain(each) for each in fields]
        columns = self._columns
        self._names = [columns.time, columns.prompt, columns.output, columns.elapsed]
        for name in self._names[:3]:
            if _plain(name) not in found:
                self._bad.fatal(line, name, "is not among the columns of the header")
        wanted = [*self._names[:3], columns.session, columns.elapsed, columns.kind]
        self._places = [
            found.index(_plain(name)) if _plain(name) in found else -1 for name in wanted
        ]
        self._num_fields = len(fields)

    def _count(self, text: str, column: int, line: int) -> int | None:
        match = _COUNT.fullmatch(text.strip())
        tokens = int(match[1]) if match else -1
        if not 0 <= tokens <= MOST_TOKENS:
            self._refuse(line, column, text, "no number of tokens")
            return None
        return tokens

    def _refuse(self, line: int, column: int, text: str, what: str) -> None:
        shown = f"{text[:40]!r} is {what}" if text.strip() else "is blank"
        self._bad.refuse(line, self._names[column], shown)


def _plain(name: str) -> str:
    """A column's name without case, blanks and underscores: "SessionID" is "Session ID"."""
    return name.casefold().replace(" ", "").replace("_", "").strip()


def _has_one_of(head: bytes, columns: _Columns) -> bool:
    header = head.lstrip().split(b"\n", 1)[0].decode("utf-8", "replace")
    if header.startswith(("{", "[")):
        return False
    found = {_plain(each.strip('\r"')) for each in header.split(",")}
    return _plain(columns.prompt) in found or _plain(columns.output) in found


def _refuse_block_size(source: Source, options: ReadOptions) -> None:
    if options.block_tokens is not None:
        raise InputError(f"{source.name}: a block size was given, but the trace has no blocks")
