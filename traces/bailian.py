"""Qwen Bailian's usage traces: chats of a cloud service, each turn naming the one it goes on from.

    {"chat_id": 159, "parent_chat_id": 55, "timestamp": 61.114, "input_length": 521,
     "output_length": 132, "type": "text", "turn": 2, "hash_ids": [1089, 1090, ...]}

`timestamp` is in seconds from the start, `hash_ids` has an id for each block of 16 tokens, the
partly filled last one included (or left out), and `parent_chat_id` is -1 at the first turn. Source:
the README of alibaba-edu/qwen-bailian-usagetraces-anon.

A turn waits for its parent's answer, where the parent was in the file before it. When that answer
ended is not recorded: the think time is taken as the time between the two arrivals, an upper
bound, and said in a note. A session is all turns of one first chat. Memory grows with the rows, by
about 150 bytes each: the children of any of them may still come.

Refused: what does not decode, ids that do not match the length. Other keys are ignored.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator
from typing import Annotated

import msgspec

from traces.jsonlines import decode_lines
from traces.recorded import THINK_TIME_NOTE, Arrivals, Seconds, ids_mismatch, milliseconds
from traces.rows import BadRows, Batch, Id, Layout, PromptTokens, ReadOptions, Row, Tokens
from traces.source import Source

BLOCK_TOKENS = 16
NO_PARENT = -1

_ChatId = Annotated[int, msgspec.Meta(ge=NO_PARENT, le=(1 << 63) - 1)]


class _Turn(msgspec.Struct, gc=False):
    chat_id: _ChatId
    timestamp: Seconds
    input_length: PromptTokens
    output_length: Tokens
    hash_ids: list[Id]
    parent_chat_id: _ChatId = NO_PARENT


_DECODER = msgspec.json.Decoder(_Turn)


class BailianReader:
    """Reads the JSON lines of qwen-bailian-usagetraces-anon."""

    name = "bailian"
    describes = "Qwen Bailian JSON lines (chat_id, parent_chat_id, timestamp in s, hash_ids)"

    def recognises(self, head: bytes) -> bool:
        """Whether the first line that is not blank names a chat or a parent chat."""
        line = head.lstrip().split(b"\n", 1)[0]
        if not line.startswith(b"{"):
            return False
        return b'"parent_chat_id"' in line or (b'"chat_id"' in line and b'"hash_ids"' in line)

    def open(self, source: Source, options: ReadOptions, bad: BadRows) -> BailianStream:
        """Blocks have 16 tokens unless `options` says otherwise: the file does not."""
        return BailianStream(source, options.block_tokens or BLOCK_TOKENS, bad)


class BailianStream:
    """One pass over a Bailian trace."""

    def __init__(self, source: Source, block_tokens: int, bad: BadRows) -> None:
        self.layout = Layout(block_tokens)
        self._source = source
        self._bad = bad
        self._arrivals = Arrivals()
        self._followers = 0
        self._orphans = 0

    @property
    def notes(self) -> list[str]:
        """What was changed, assumed, or not found."""
        notes = self._arrivals.notes()
        if self._followers:
            notes.append(THINK_TIME_NOTE)
        if self._orphans:
            notes.append(
                f"{self._orphans} later turns name a parent that is not in the trace before them; "
                "they wait for nothing"
            )
        return notes

    def batches(self) -> Iterator[Batch]:
        """Yield the rows in file order, a piece of the file at a time."""
        arrivals = self._arrivals = Arrivals()
        self._followers = self._orphans = 0
        number_of: dict[int, int] = {}
        # By row number: the arrival, and the first chat of its session.
        arrived_ms, roots = array("d"), array("q")
        bad, block_tokens = self._bad, self.layout.block_tokens
        for first_line, piece in self._source.pieces():
            rows: list[Row] = []
            row_lines: list[int] = []
            for turn, line in zip(*decode_lines(_DECODER, first_line, piece, bad), strict=True):
                reason = ids_mismatch(turn.input_length, len(turn.hash_ids), block_tokens)
                if reason:
                    bad.refuse(line, "hash_ids", reason)
                    continue
                now_ms = arrivals.take(milliseconds(turn.timestamp), line)
                root, parent, delay = turn.chat_id, NO_PARENT, 0
                if turn.parent_chat_id != NO_PARENT:
                    root = turn.parent_chat_id
                    parent = number_of.get(root, NO_PARENT)
                    if parent == NO_PARENT:
                        self._orphans += 1
                    else:
                        self._followers += 1
                        root, delay = roots[parent], round(now_ms - arrived_ms[parent], 3)
                number_of[turn.chat_id] = len(roots)
                arrived_ms.append(now_ms)
                roots.append(root)
                rows.append(
                    Row(
                        turn.input_length,
                        turn.output_length,
                        now_ms,
                        turn.hash_ids,
                        session=str(root),
                        after=parent,
                        delay=delay,
                    )
                )
                row_lines.append(line)
            if rows:
                yield Batch(rows, row_lines)
