"""The delta form of Mooncake's format: a later turn of a session carries only what is new in it.

    {"session_id": "a", "timestamp": 0, "input_length": 1536, "hash_ids": [0, 1, 2], ...}
    {"session_id": "a", "delay": 2450.3, "input_length": 768, "hash_ids": [1000, 1001], ...}

    prompt 1    0 1 2                1536 tokens
    prompt 2    0 1 2 A 1000 1001    1536 + tokens of the first answer, A, + 768

aiperf writes and replays it (ai-dynamo/aiperf, docs/tutorials/agentic-code-generator.md: later
turns have the ids and the number of their new tokens, `delay` is milliseconds, the whole prompt is
"previous_input + previous_output + new_tokens"; its agentic_code_gen/writer.py gives each turn
ceil(new tokens / block size) ids). So prompts are pieces with lengths: a turn's first new token
starts a block, and each answer is a piece of its own, which the next turn repeats.

The first turn of a session, and any row without one, holds a whole prompt. One without `timestamp`
starts together with the row before it. What could be meant otherwise is refused: a later turn that
has a timestamp or no delay, a delay where there is no turn before, and a later turn whose ids begin
as the session's first did, which looks like the whole prompt once more.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

import msgspec

from traces.jsonlines import decode_lines
from traces.mooncake_rules import (
    LARGEST_HASH,
    LATEST_MS,
    HashId,
    ids_against_length,
    ids_fit,
    too_large_id,
    wrong_time,
)
from traces.rows import MOST_TOKENS, BadRows, Batch, Layout, PromptTokens, Row, Tokens
from traces.source import Source


class DeltaLine(msgspec.Struct, gc=False):
    """One line: a whole prompt, or a turn's new part."""

    input_length: PromptTokens
    output_length: Tokens
    hash_ids: list[HashId]
    timestamp: int | float | None = None
    delay: int | float | None = None
    session_id: str | int = ""


_DECODER = msgspec.json.Decoder(DeltaLine)


@dataclass(slots=True)
class _Session:
    """What the next turn goes on from: the pieces of the latest prompt and its answer."""

    first_hash: int
    row: int = -1
    ids: list[int] = field(default_factory=list)
    lengths: list[int] = field(default_factory=list)
    # The answer; -1 where it has no tokens.
    answer_id: int = -1
    answer_tokens: int = 0
    # A turn was left out, so that the later ones are not known.
    broken: bool = False


class DeltaStream:
    """One pass. Ids are renumbered in order of appearance, so that answers can have their own."""

    def __init__(self, source: Source, block_tokens: int, bad: BadRows) -> None:
        self.layout = Layout(0, timed=False)
        self.notes: list[str] = []
        self._source = source
        self._block_tokens = block_tokens
        self._bad = bad
        self._sessions: dict[str, _Session] = {}
        self._id_of: dict[int, int] = {}
        self._next_id = 0
        self._num_rows = 0
        self._last_ms: float | None = None
        self._untimed_starts = 0

    def batches(self) -> Iterator[Batch]:
        """The rows in file order. `InputError` for a bad one."""
        unreadable = 0
        for first_line, piece in self._source.pieces():
            before = self._bad.count
            decoded = decode_lines(_DECODER, first_line, piece, self._bad)
            unreadable += self._bad.count - before
            rows, lines = [], []
            for each, line in zip(*decoded, strict=True):
                row = self._row(each, line)
                if row is not None:
                    rows.append(row)
                    lines.append(line)
            if rows:
                yield Batch(rows, lines)
        if self._untimed_starts:
            self.notes.append(
                f"{self._untimed_starts} sessions state no timestamp; each starts together with "
                "the request before it"
            )
        if unreadable:
            self.notes.append(
                f"{unreadable} lines could not be read at all, so that their session is unknown; "
                "later turns of it go on without them"
            )

    def _row(self, line: DeltaLine, number: int) -> Row | None:
        """The row of a line; None if it was refused, and then its session ends here."""
        name = str(line.session_id)
        session = self._sessions.get(name) if name else None
        trouble = self._trouble(line, session)
        if trouble is None:
            row = self._first(line, name) if session is None else self._next(line, name, session)
            if row.input_length <= MOST_TOKENS:
                self._num_rows += 1
                return row
            trouble = "input_length", f"makes a prompt of {row.input_length} tokens: too many"
        self._bad.refuse(number, *trouble)
        if name:
            self._sessions.setdefault(name, _Session(-1)).broken = True
        return None

    def _trouble(self, line: DeltaLine, session: _Session | None) -> tuple[str, str] | None:
        """Field and reason of what the decoder cannot see."""
        ids, tokens, timestamp, delay = line.hash_ids, line.input_length, line.timestamp, line.delay
        if timestamp is not None:
            last_ms = -LATEST_MS if self._last_ms is None else self._last_ms
            if not last_ms <= timestamp <= LATEST_MS:
                return "timestamp", wrong_time(timestamp, last_ms)
        if delay is not None and not 0 <= delay <= LATEST_MS:
            return "delay", f"{delay} is no time in milliseconds"
        if not ids_fit(len(ids), tokens, self._block_tokens):
            return "hash_ids", ids_against_length(len(ids), tokens, self._block_tokens)
        if ids and max(ids) > LARGEST_HASH:
            return too_large_id(ids)
        if session is None:
            if delay:
                return "delay", "is there, but no earlier turn of this session to wait for"
            return None
        if session.broken:
            return "session_id", f"an earlier turn of {line.session_id!r} was left out"
        if timestamp is not None:
            return (
                "timestamp",
                f"is there, but {line.session_id!r} has begun: "
                "in this file a later turn has a delay and only what is new",
            )
        if delay is None:
            return "delay", f"is missing in a later turn of {line.session_id!r}"
        if ids and ids[0] == session.first_hash:
            return (
                "hash_ids",
                f"begin as those of the first turn of {line.session_id!r} did: "
                "a turn with a delay has only its new blocks",
            )
        return None

    def _first(self, line: DeltaLine, name: str) -> Row:
        if line.timestamp is None:
            self._untimed_starts += 1
            self._last_ms = self._last_ms or 0
        else:
            self._last_ms = line.timestamp
        session = _Session(line.hash_ids[0] if line.hash_ids else -1)
        if name:
            self._sessions[name] = session
        return self._turn(line, name, session, -1)

    def _next(self, line: DeltaLine, name: str, session: _Session) -> Row:
        if session.answer_tokens:
            session.ids.append(session.answer_id)
            session.lengths.append(session.answer_tokens)
        return self._turn(line, name, session, session.row)

    def _turn(self, line: DeltaLine, name: str, session: _Session, after: int) -> Row:
        """Add a line's pieces and its answer to its session."""
        block_tokens, tokens, id_of = self._block_tokens, line.input_length, self._id_of
        for each in line.hash_ids:
            if each not in id_of:
                id_of[each] = self._fresh_id()
            session.ids.append(id_of[each])
        full, rest = divmod(tokens, block_tokens)
        session.lengths += [block_tokens] * full
        if rest:
            session.lengths.append(rest)
            if len(line.hash_ids) == full:
                session.ids.append(self._fresh_id())
        session.row = self._num_rows
        session.answer_tokens = line.output_length
        if session.answer_tokens:
            session.answer_id = self._fresh_id()
        return Row(
            sum(session.lengths),
            line.output_length,
            self._last_ms if after < 0 else None,
            session.ids.copy(),
            session.lengths.copy(),
            [session.answer_id] if session.answer_tokens else [],
            [session.answer_tokens] if session.answer_tokens else [],
            name,
            after,
            line.delay or 0,
        )

    def _fresh_id(self) -> int:
        self._next_id += 1
        return self._next_id - 1
