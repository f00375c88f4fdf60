"""Reads this project's own format, which holds all that rows can say. Layout: `native_lines`.

The first line is the header; every further line is one row, numbered from 0, and `after` names rows
by that number (a blank line counts too, but is no row). Nothing is guessed: an unknown field, ids
that do not match the lengths, a time that falls, a reference to a row that does not come before or
cannot be extended are malformed. Of the rows read it keeps the latest of each session, no more.

Where malformed rows are left out, rows that wait for one of them are malformed too: what they would
wait for, or extend, is not there.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator

import msgspec

from hicache.errors import InputError
from traces.jsonlines import TWICE, UNDECODABLE, decode_lines, what_is_wrong
from traces.made import Hints
from traces.native_lines import VERSION, Extendable, Header, Line, misfit, row_of
from traces.repeated_keys import repeated_key
from traces.rows import BadRows, Batch, Layout, ReadOptions, Row, RowStream
from traces.source import HEAD_BYTES, Source

_HEADER = msgspec.json.Decoder(Header)
_LINE = msgspec.json.Decoder(Line)
_HEADER_LINES = 1


class NativeReader:
    """Reads traces that start with {"hicache_trace": 1, ...}."""

    name = "hicache"
    describes = 'HiCache Lab JSON lines (first line {"hicache_trace": 1, ...})'

    def recognises(self, head: bytes) -> bool:
        """Whether the first line is an object with the key "hicache_trace", sound or not."""
        line = head.lstrip().split(b"\n", 1)[0]
        return line.startswith(b"{") and b'"hicache_trace"' in line

    def open(self, source: Source, options: ReadOptions, bad: BadRows) -> RowStream:
        """The rows of `source`. The header is read and checked; it cannot be left out."""
        header = _read_header(source, bad)
        if options.block_tokens not in (None, header.block_tokens):
            own = f"its blocks have {header.block_tokens} tokens"
            if header.block_tokens < 2:
                own = (
                    "its ids are token ids"
                    if header.block_tokens
                    else "its pieces have lengths of their own"
                )
            raise InputError(
                f"{source.name}: block size is {options.block_tokens}, but the trace says that "
                f"{own}: leave the option out"
            )
        return _NativeRows(source, header, bad)


def _read_header(source: Source, bad: BadRows) -> Header:
    line, end, _ = source.head().partition(b"\n")
    if not end and len(line) >= HEAD_BYTES - 3:  # without a byte order mark
        bad.fatal(1, "", "the header is longer than 64 KiB")
    try:
        header = _HEADER.decode(line)
        line.decode()
    except UNDECODABLE as error:
        bad.fatal(1, *what_is_wrong(line, error))
    if twice := repeated_key(Header, line):
        bad.fatal(1, twice, TWICE)
    if header.hicache_trace != VERSION:
        bad.fatal(1, "hicache_trace", f"is version {header.hicache_trace}; known is {VERSION}")
    return header


class _NativeRows:
    """One pass."""

    def __init__(self, source: Source, header: Header, bad: BadRows) -> None:
        self.layout = Layout(header.block_tokens, header.has_ids, header.timed)
        self.hints: Hints = header.hints
        self.notes: list[str] = []
        self._source = source
        self._bad = bad

    def batches(self) -> Iterator[Batch]:
        """The rows of each piece of the file."""
        check = _Check(self.layout, self._bad)
        for first_line, piece in self._source.pieces():
            if first_line == 1:
                _, _, piece = piece.partition(b"\n")
                first_line += _HEADER_LINES
            if not piece:
                continue
            decoded, lines = decode_lines(_LINE, first_line, piece, self._bad)
            rows: list[Row] = []
            rows_lines: list[int] = []
            for line, number in zip(decoded, lines, strict=True):
                row = check.row(line, number)
                if row is not None:
                    rows.append(row)
                    rows_lines.append(number)
            if rows:
                yield Batch(rows, rows_lines)


class _Check:
    """Turns lines into rows, in order, and refuses what does not fit the rows before."""

    def __init__(self, layout: Layout, bad: BadRows) -> None:
        self._layout = layout
        self._bad = bad
        self._extendable = Extendable(layout)
        self._last_ms: int | float | None = None
        # Stretches of lines so far that are no rows, blank or left out: the number of the first,
        # the one behind the last, and how many lines are missing up to there.
        self._missing_from: list[int] = []
        self._missing_to: list[int] = []
        self._num_missing: list[int] = []
        self._next = 0

    def row(self, line: Line, file_line: int) -> Row | None:
        """The row on line `file_line` of the file; None if it is left out."""
        number = file_line - 1 - _HEADER_LINES
        row = self._checked(line, number, file_line)
        if row is None:
            return None
        if number > self._next:
            before = self._num_missing[-1] if self._num_missing else 0
            self._missing_from.append(self._next)
            self._missing_to.append(number)
            self._num_missing.append(before + number - self._next)
        self._next = number + 1
        if row.timestamp is not None:
            self._last_ms = row.timestamp
        self._extendable.keep(number, row)
        if row.after > 0 and (stretches := bisect_left(self._missing_from, row.after)):
            row.after -= self._num_missing[stretches - 1]
        return row

    def _checked(self, line: Line, number: int, file_line: int) -> Row | None:
        refuse = self._bad.refuse
        waits = self._waits_for(line.after, number)
        if waits:
            refuse(file_line, "after", waits)
            return None
        given = [
            field
            for field in ("ids", "pieces", "append_ids", "append")
            if getattr(line, field) is not None
        ]
        if len(given) > 1:
            refuse(file_line, given[1], f"the prompt is given twice: as {given[0]} too")
            return None
        if line.answer is not None and line.answer_ids is not None:
            refuse(file_line, "answer_ids", "the answer is given twice: as answer too")
            return None
        base = None
        if given and given[0].startswith("append"):
            base = self._extendable.prompt_and_answer(line.session, line.after)
            reason = _not_appendable(line, given[0], base)
            if reason:
                refuse(file_line, given[0], reason)
                return None
        row = row_of(line, base)
        wrong = misfit(row, self._layout)
        if wrong is not None:
            field, reason = wrong
            refuse(file_line, given[0] if given and field in ("ids", "pieces") else field, reason)
            return None
        last_ms = self._last_ms
        if row.timestamp is not None and last_ms is not None and row.timestamp < last_ms:
            refuse(
                file_line,
                "timestamp",
                f"{row.timestamp} is earlier than {last_ms} of a request before; requests must be "
                "in the order of their arrival",
            )
            return None
        return row

    def _waits_for(self, after: int, number: int) -> str:
        """Why a row cannot wait for row `after`; "" if it can."""
        if after >= number:
            return f"row {after} does not come before this one, which is row {number}"
        stretches = bisect_right(self._missing_from, after)
        is_missing = stretches > 0 and after < self._missing_to[stretches - 1]
        if after >= self._next or is_missing:
            return f"row {after} is blank or was left out"
        return ""


def _not_appendable(line: Line, field: str, base: tuple[list[int], list[int] | None] | None) -> str:
    if line.after < 0:
        return "there is no row to append to: `after` is missing"
    if not line.session:
        return "only a row of a session can be appended to: `session` is missing"
    if base is None:
        return (
            f"row {line.after} cannot be appended to: it names no answer, is not the latest row "
            f"of session {line.session!r}, or lies too far back; write the whole prompt"
        )
    if (base[1] is None) != (field == "append_ids"):
        other = "append_ids" if base[1] is None else "append"
        return f"row {line.after} gives its ids in the other way: this must be {other}"
    return ""
