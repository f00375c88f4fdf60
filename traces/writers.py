"""Rows are written in the formats that others read. Each writer says first what it cannot hold.

    hicache    all of it                           (layout: `native_lines`)
    mooncake   timestamps, lengths, ids of blocks, sessions   (512 tokens, as Mooncake's own)
    bailian    the same, sessions as turns         (16 tokens, as Qwen Bailian's own)
    token-ids  timestamps, lengths, token ids      (`input_tok_ids`, as LLMServingSim's own)
    azure      timestamps and lengths              (CSV, as Azure's own)

What a format has no place for is left out and said; a row that it cannot hold at all is an
`InputError` that names the row. Ids that a format needs and the trace lacks are made up, of the
only kind that says nothing: never the same twice.
"""

from __future__ import annotations

import json
from array import array
from collections.abc import Iterator
from datetime import date
from typing import Any, Protocol

import msgspec

from hicache.errors import InputError
from traces.features import Features, left_out
from traces.made import hints_of
from traces.native_lines import Extendable, header_of, line_of, misfit
from traces.new_ids import BlockIds, TokenIds
from traces.rows import Layout, Row, RowStream

MOONCAKE_BLOCK_TOKENS = 512
# https://github.com/alibaba-edu/qwen-bailian-usagetraces-anon
BAILIAN_BLOCK_TOKENS = 16


class TraceWriter(Protocol):
    """One format to write. A writer has no state: what it must remember, it does during `lines`."""

    @property
    def name(self) -> str:
        """Short name for options and tables."""
        ...

    @property
    def describes(self) -> str:
        """What the format is, in one phrase."""
        ...

    def loses(self, layout: Layout, features: Features | None) -> list[str]:
        """What of a trace would be lost, in whole sentences; none for a trace that is held.

        Without `features` (the trace can be read only once), what may be lost.
        """
        ...

    def lines(self, stream: RowStream) -> Iterator[bytes]:
        """The file, line by line, each with its end. `InputError` for a row it cannot hold."""
        ...


class NativeWriter:
    """Writes what `traces.native` reads, and loses nothing."""

    name = "hicache"
    describes = "HiCache Lab JSON lines: everything a trace can say, closed loops included"

    def loses(self, layout: Layout, features: Features | None) -> list[str]:
        """Nothing."""
        return []

    def lines(self, stream: RowStream) -> Iterator[bytes]:
        """Header and rows."""
        layout = stream.layout
        yield header_of(layout, dict(hints_of(stream)))
        extendable = Extendable(layout)
        encode = msgspec.json.encode
        for number, row, place in _numbered(stream):
            wrong = misfit(row, layout)
            if wrong is not None:
                raise InputError(f"{place}: {wrong[0]}: {wrong[1]}")
            yield encode(line_of(row, number, extendable)) + b"\n"


class MooncakeWriter:
    """Writes Mooncake's JSON lines. One id for each block, the partly filled last one included.

    Ids are kept where the trace has blocks of the same size already; else they are numbered in
    order of appearance, each behind its prefix. `sessions` "left out" writes no `session_id`.
    """

    name = "mooncake"
    describes = "Mooncake JSON lines (timestamp, input_length, output_length, hash_ids)"

    def __init__(
        self, block_tokens: int = MOONCAKE_BLOCK_TOKENS, *, sessions: str = "kept"
    ) -> None:
        self.block_tokens = block_tokens
        self._kept = frozenset({"sessions"} if sessions == "kept" else ())

    def loses(self, layout: Layout, features: Features | None) -> list[str]:
        """All but arrival, lengths, sessions and sharing by whole blocks."""
        return _recut_loss(layout, self.block_tokens) + left_out(features, self._kept)

    def lines(self, stream: RowStream) -> Iterator[bytes]:
        """The rows."""
        ids_of = BlockIds(stream.layout, self.block_tokens)
        for _, row, place in _numbered(stream):
            timestamp = _timestamp(row, place, self.name)
            session = f', "session_id": {json.dumps(row.session)}' * bool(
                self._kept and row.session
            )
            yield (
                f'{{"timestamp": {timestamp}, "input_length": {row.input_length}, '
                f'"output_length": {row.output_length}, "hash_ids": {ids_of(row)}{session}}}\n'
            ).encode()


class BailianWriter:
    """Writes Qwen Bailian's JSON lines: block ids in seconds, and whose turn a request is.

    `chat_id` is the number of the row, `parent_chat_id` that of the row it waits for, or else of
    the turn before in its session.
    """

    name = "bailian"
    describes = "Qwen Bailian JSON lines (chat_id, parent_chat_id, timestamp, hash_ids)"

    def __init__(self, block_tokens: int = BAILIAN_BLOCK_TOKENS) -> None:
        self.block_tokens = block_tokens

    def loses(self, layout: Layout, features: Features | None) -> list[str]:
        """Names of sessions, think times, answers; and sharing below whole blocks."""
        lost = _recut_loss(layout, self.block_tokens)
        if features is None or features.sessions:
            lost.append("Sessions keep their turns, but not their names.")
        return lost + left_out(features, frozenset({"sessions"}))

    def lines(self, stream: RowStream) -> Iterator[bytes]:
        """The rows."""
        ids_of = BlockIds(stream.layout, self.block_tokens)
        latest: dict[str, int] = {}
        turns = array("i")
        for number, row, place in _numbered(stream):
            parent = row.after if row.after >= 0 else latest.get(row.session, -1)
            if row.session:
                latest[row.session] = number
            turns.append(turns[parent] + 1 if parent >= 0 else 1)
            seconds = _timestamp(row, place, self.name) / 1000
            yield (
                f'{{"chat_id": {number}, "parent_chat_id": {parent}, "timestamp": {seconds}, '
                f'"input_length": {row.input_length}, "output_length": {row.output_length}, '
                f'"type": "text", "turn": {turns[number]}, "hash_ids": {ids_of(row)}}}\n'
            ).encode()


class TokenWriter:
    """Writes token ids, in the fields of LLMServingSim's data sets, times in nanoseconds.

    The ids of a trace of token ids are kept. Every other piece gets a run of made-up ones, the
    same wherever the piece stands.
    """

    name = "token-ids"
    describes = "token-id JSON lines (arrival_time_ns, input_tok_ids, output_toks)"

    def loses(self, layout: Layout, features: Features | None) -> list[str]:
        """What is not a token; and how tokens were put together to pieces."""
        lost = []
        if not layout.has_ids:
            lost.append("The trace has no ids: every token gets one that is like no other.")
        elif layout.block_tokens != 1:
            lost.append("Token ids are made up from the trace's ids: they are no words of a model.")
        kept = frozenset({"answers"} if layout.block_tokens in (0, 1) else ())
        return lost + left_out(features, kept)

    def lines(self, stream: RowStream) -> Iterator[bytes]:
        """The rows."""
        tokens = TokenIds(stream.layout)
        encode = msgspec.json.encode
        for _, row, place in _numbered(stream):
            timestamp = _timestamp(row, place, self.name)
            if isinstance(timestamp, int):
                arrival_ns = timestamp * 10**6
            else:
                arrival_ns = round(timestamp * 1e6)
            line: dict[str, Any] = {
                "input_toks": row.input_length,
                "output_toks": row.output_length,
                "arrival_time_ns": arrival_ns,
                "input_tok_ids": tokens.prompt(row),
            }
            if row.output_ids is not None and tokens.names_answers:
                line["output_tok_ids"] = tokens.answer(row)
            yield encode(line) + b"\n"


class AzureWriter:
    """Writes Azure's table of arrival and lengths: no prompt has anything in common with another.

    Times are dates in UTC, to 100 ns; the clock's 0 is the start of the trace's first day where it
    names that, else of 1970.
    """

    name = "azure"
    describes = "Azure CSV (TIMESTAMP, ContextTokens, GeneratedTokens): lengths only"

    def loses(self, layout: Layout, features: Features | None) -> list[str]:
        """All but arrival and lengths."""
        lost = ["All ids: no request shares a prefix any more."] if layout.has_ids else []
        kept = frozenset({"answers"} if layout.has_ids else ())
        return lost + left_out(features, kept)

    def lines(self, stream: RowStream) -> Iterator[bytes]:
        """The table, with its head."""
        yield b"TIMESTAMP,ContextTokens,GeneratedTokens\r\n"
        first_day = _first_day(stream)
        for _, row, place in _numbered(stream):
            moment = _date(_timestamp(row, place, self.name), first_day, place)
            yield f"{moment},{row.input_length},{row.output_length}\r\n".encode()


def writer_of(name: str, *, block_tokens: int | None = None) -> TraceWriter:
    """The writer of a format by its name. `InputError` for an unknown one.

    `block_tokens` is for the formats of blocks (others refuse it); None: the format's usual size.
    """
    if name in _BLOCK_WRITERS:
        maker = _BLOCK_WRITERS[name]
        return maker() if block_tokens is None else maker(block_tokens)
    if name not in _PLAIN_WRITERS:
        known = ", ".join(WRITER_NAMES)
        raise InputError(f"format is {name!r}: what can be written is {known}")
    if block_tokens is not None:
        raise InputError(f"block size is {block_tokens}, but {name} has no blocks of one size")
    return _PLAIN_WRITERS[name]()


_BLOCK_WRITERS: dict[str, Any] = {"mooncake": MooncakeWriter, "bailian": BailianWriter}
_PLAIN_WRITERS: dict[str, Any] = {
    "hicache": NativeWriter, "token-ids": TokenWriter, "azure": AzureWriter,
}  # fmt: skip
WRITER_NAMES = ("hicache", "mooncake", "bailian", "token-ids", "azure")


def _numbered(stream: RowStream) -> Iterator[tuple[int, Row, str]]:
    """Number and row, and what an error calls it."""
    number = 0
    for rows, lines in stream.batches():
        for row, line in zip(rows, lines, strict=True):
            yield number, row, f"request {number} (line {line})"
            number += 1


def _timestamp(row: Row, place: str, name: str) -> int | float:
    if row.timestamp is None:
        raise InputError(
            f"{place}: has no timestamp, which {name} needs: when it comes is known only in a "
            "replay; hicache holds it as it is"
        )
    return row.timestamp


def _recut_loss(layout: Layout, block_tokens: int) -> list[str]:
    if not layout.has_ids:
        return ["The trace has no ids: every block gets one that is like no other."]
    if layout.block_tokens == block_tokens:
        return []
    # A block that the new size divides keeps all its boundaries: ids are new, nothing is lost.
    if layout.block_tokens > 1 and layout.block_tokens % block_tokens == 0:
        return []
    return [
        f"Ids are new ones, of blocks of {block_tokens} tokens: what requests share beyond their "
        "common whole blocks is no longer shared."
    ]


def _first_day(stream: RowStream) -> date:
    try:
        return date.fromisoformat(str(hints_of(stream).get("first_day")))
    except ValueError:
        return date(1970, 1, 1)


def _date(timestamp_ms: int | float, first_day: date, place: str) -> str:
    ticks = round(timestamp_ms * 10_000)
    seconds, fraction = divmod(ticks, 10**7)
    days, second = divmod(seconds, 86_400)
    try:
        day = date.fromordinal(first_day.toordinal() + days)
    except (ValueError, OverflowError):
        raise InputError(f"{place}: {timestamp_ms} ms is no date in this calendar") from None
    hour, second = divmod(second, 3600)
    return f"{day} {hour:02}:{second // 60:02}:{second % 60:02}.{fraction:07}"
