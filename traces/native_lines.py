"""The lines of this project's own trace format, and how they and rows stand for one another.

    {"hicache_trace":1,"block_tokens":0,"hints":{"clients":2}}
    {"input_length":512,"output_length":64,"timestamp":0,"session":"a",
     "pieces":[[0,512]],"answer":[[1,64]]}
    {"input_length":1088,"output_length":64,"session":"a","after":0,"delay":500,
     "append":[[2,512]],"answer":[[3,64]]}

(each on one line). The first line says what all rows have in common, as `Layout` does, and gives
hints for the replay. Each further line is a row: the fields are `Row`'s, and what has its default
is left out. Ids are written in one of two ways: as they are where the layout says how many tokens
each has ("ids", "append_ids", "answer_ids"), with their tokens where the row says it ("pieces",
"append", "answer").

**Delta form.** A prompt may be written as what it adds: prompt = prompt of row `after` + its answer
+ "append". (In the first way of writing, with blocks of many tokens: the full blocks of that
prompt, then those that the answer names.) That row must be the latest so far of the same session
and name its answer, and no more than MOST_SESSIONS sessions and MOST_IDS ids may have come to be
remembered since; so a reader's memory is bounded. `Extendable` is that rule for both sides.
"""

from __future__ import annotations

import math
from typing import Annotated

import msgspec

from traces.rows import MOST_TOKENS, Id, Layout, PromptTokens, Row, Tokens

VERSION = 1
# Part of the format: a reader must remember as many as a writer counted on.
MOST_SESSIONS = 65_536
MOST_IDS = 1 << 21
# Times further from zero than this (30,000 years) are in another unit.
LATEST_MS = 10**15

Pieces = list[tuple[Id, Tokens]]


class Header(msgspec.Struct, forbid_unknown_fields=True, omit_defaults=True):
    """The first line."""

    hicache_trace: int
    block_tokens: Tokens
    has_ids: bool = True
    # Whether every row has a timestamp; a file that does not say so may have rows without.
    timed: bool = False
    hints: dict[str, bool | int | float | str] = {}


class Line(msgspec.Struct, forbid_unknown_fields=True, omit_defaults=True):
    """Every further line."""

    input_length: PromptTokens
    output_length: Tokens
    timestamp: int | float | None = None
    session: str = ""
    after: Annotated[int, msgspec.Meta(ge=-1)] = -1
    delay: int | float = 0
    ids: list[Id] | None = None
    pieces: Pieces | None = None
    append_ids: list[Id] | None = None
    append: Pieces | None = None
    answer_ids: list[Id] | None = None
    answer: Pieces | None = None
    cached_tokens: Annotated[int, msgspec.Meta(ge=-1, le=MOST_TOKENS)] = -1


class Extendable:
    """The rows whose prompt and answer a later row may extend: of each session the latest."""

    def __init__(self, layout: Layout) -> None:
        self._layout = layout
        # Number of the row and the row, by session, the session seen longest ago first.
        self._latest: dict[str, tuple[int, Row]] = {}
        self._ids = 0

    def keep(self, number: int, row: Row) -> None:
        """Remember row `number` if it can be extended; its session's row before no longer."""
        if not row.session:
            return
        before = self._latest.pop(row.session, None)
        if before is not None:
            self._ids -= _num_ids(before[1])
        if row.output_ids is None or (row.lengths is None) != (row.output_lengths is None):
            return
        self._latest[row.session] = (number, row)
        self._ids += _num_ids(row)
        while len(self._latest) > MOST_SESSIONS or self._ids > MOST_IDS:
            _, dropped = self._latest.pop(next(iter(self._latest)))
            self._ids -= _num_ids(dropped)

    def prompt_and_answer(
        self, session: str, number: int
    ) -> tuple[list[int], list[int] | None] | None:
        """Ids and lengths (None: as the layout says) that extend row `number`; None if it cannot
        be extended."""
        found = self._latest.get(session)
        if found is None or found[0] != number:
            return None
        row = found[1]
        answer = row.output_ids or []
        if row.lengths is not None:
            return row.hash_ids + answer, row.lengths + (row.output_lengths or [])
        full = row.input_length // max(1, self._layout.block_tokens)
        return row.hash_ids[:full] + answer, None


def _num_ids(row: Row) -> int:
    return len(row.hash_ids) + len(row.output_ids or ())


def header_of(layout: Layout, hints: dict[str, int | float | str]) -> bytes:
    """The first line of a trace, with its end."""
    header = Header(VERSION, layout.block_tokens, layout.has_ids, layout.timed, {**hints})
    return msgspec.json.encode(header) + b"\n"


def line_of(row: Row, number: int, extendable: Extendable) -> Line:
    """The line that stands for row `number`, in delta form where that is possible."""
    line = Line(
        row.input_length,
        row.output_length,
        row.timestamp,
        row.session,
        row.after,
        row.delay,
        cached_tokens=row.cached_tokens,
    )
    ids, lengths = row.hash_ids, row.lengths
    base = extendable.prompt_and_answer(row.session, row.after) if row.after >= 0 else None
    if base is not None and _extends(row, *base):
        start = len(base[0])
        if lengths is None:
            line.append_ids = ids[start:]
        else:
            line.append = list(zip(ids[start:], lengths[start:], strict=True))
    elif lengths is not None:
        line.pieces = list(zip(ids, lengths, strict=True))
    elif ids:
        line.ids = ids
    if row.output_lengths is not None:
        line.answer = list(zip(row.output_ids or (), row.output_lengths, strict=True))
    elif row.output_ids is not None:
        line.answer_ids = row.output_ids
    extendable.keep(number, row)
    return line


def _extends(row: Row, ids: list[int], lengths: list[int] | None) -> bool:
    if (row.lengths is None) != (lengths is None) or row.hash_ids[: len(ids)] != ids:
        return False
    return row.lengths is None or row.lengths[: len(ids)] == lengths


def row_of(line: Line, base: tuple[list[int], list[int] | None] | None) -> Row:
    """The row that a line stands for. `base` is what an appending line extends."""
    ids: list[int] = []
    lengths: list[int] | None = None
    if base is not None:
        ids, lengths = base
        if lengths is None:
            ids = ids + (line.append_ids or [])
        else:
            ids = ids + [each for each, _ in line.append or ()]
            lengths = lengths + [tokens for _, tokens in line.append or ()]
    elif line.pieces is not None:
        ids = [each for each, _ in line.pieces]
        lengths = [tokens for _, tokens in line.pieces]
    elif line.ids is not None:
        ids = line.ids
    row = Row(
        line.input_length,
        line.output_length,
        line.timestamp,
        ids,
        lengths,
        session=line.session,
        after=line.after,
        delay=line.delay,
        cached_tokens=line.cached_tokens,
    )
    if line.answer is not None:
        row.output_ids = [each for each, _ in line.answer]
        row.output_lengths = [tokens for _, tokens in line.answer]
    elif line.answer_ids is not None:
        row.output_ids = line.answer_ids
    return row


def misfit(row: Row, layout: Layout) -> tuple[str, str] | None:
    """Field and reason where ids do not match the lengths, or a time is none; None if all is well.

    What a row says alone; its place among the others is not looked at.
    """
    if row.timestamp is not None and not abs(row.timestamp) <= LATEST_MS:
        return "timestamp", f"{row.timestamp} is no time in milliseconds"
    if not (math.isfinite(row.delay) and 0 <= row.delay <= LATEST_MS):
        return "delay", f"{row.delay} is no time in milliseconds from 0 on"
    if row.timestamp is None and row.after < 0:
        return "timestamp", "is missing: a row that waits for no other (`after`) needs one"
    if row.timestamp is None and layout.timed:
        return "timestamp", "is missing: the header says that every row has one"
    return _prompt_misfit(row, layout) or _answer_misfit(row, layout)


def _prompt_misfit(row: Row, layout: Layout) -> tuple[str, str] | None:
    tokens, block_tokens, num_ids = row.input_length, layout.block_tokens, len(row.hash_ids)
    if row.lengths is not None:
        named = sum(row.lengths)
        if len(row.lengths) != num_ids:
            return "pieces", f"{num_ids} ids have {len(row.lengths)} lengths"
        if block_tokens:
            return "pieces", f"there are lengths, but the header says {block_tokens} tokens an id"
        if named > tokens:
            return "pieces", f"they have {named} tokens together, more than input_length {tokens}"
        if num_ids and not layout.has_ids:
            return "pieces", "there are ids, but the header says that no row has any"
    elif not layout.has_ids or not block_tokens:
        if num_ids:
            return "ids", "there are ids whose tokens neither the header nor the row says"
    elif num_ids not in (-(-tokens // block_tokens), tokens // block_tokens):
        return "ids", (
            f"{num_ids} ids do not match input_length {tokens}, which is "
            f"{-(-tokens // block_tokens)} blocks of {block_tokens} tokens"
        )
    return None


def _answer_misfit(row: Row, layout: Layout) -> tuple[str, str] | None:
    if row.output_ids is None:
        return ("answer", "there are lengths without ids") if row.output_lengths else None
    num_ids, tokens = len(row.output_ids), row.output_length
    if row.output_lengths is not None:
        named = sum(row.output_lengths)
        if len(row.output_lengths) != num_ids:
            return "answer", f"{num_ids} ids have {len(row.output_lengths)} lengths"
        if layout.block_tokens:
            what = f"the header says {layout.block_tokens} tokens an id"
            return "answer", f"there are lengths, but {what}"
        if named > tokens:
            return "answer", f"it has {named} tokens, more than output_length {tokens}"
        if num_ids and not layout.has_ids:
            return "answer", "there are ids, but the header says that no row has any"
        return None
    if not layout.has_ids or not layout.block_tokens:
        if num_ids:
            return "answer_ids", "there are ids whose tokens neither the header nor the row says"
        return None
    start = row.input_length // layout.block_tokens
    room = (row.input_length + tokens) // layout.block_tokens - start
    if num_ids > room:
        return "answer_ids", (
            f"{num_ids} ids do not match output_length {tokens}: prompt and answer have {room} "
            f"full blocks of {layout.block_tokens} tokens from block {start} on"
        )
    return None
