"""Claude Code sessions of kv-cache-tester: one JSON document a session, sub-agents nested in it.

    {"id": "trace_0001", "block_size": 64, "hash_id_scope": "local", "requests": [
      {"t": 0.0, "type": "n", "in": 71175, "out": 169, "hash_ids": [1, 2, ...],
       "api_time": 7.27, "think_time": 0.0, ...},
      {"t": 134.2, "type": "subagent", "agent_id": "agent_001", "requests": [...], ...}, ...]}

`t` is in seconds from the start of the session; inside a sub-agent, from the sub-agent's own `t`.
Ids stand for full blocks. Their scope is the file, all files ("global"), or each agent of a file
("per_context", also where none is said). Source: docs/trace_replay_tester.md and `normalize_trace`
of trace_replay_tester.py in callanjfox/kv-cache-tester.

A document is streamed: at any time one request of it is held, and its sub-agents that still run.
What waits for what: traces/weka_turns.py. A folder of sessions is one trace, merged by time. All of
them start at 0: the files do not say when they did.

Refused: what does not decode, ids that do not match the length, another block size than the first.
"""

from __future__ import annotations

import heapq
import os
import re
from collections.abc import Iterator, Sequence
from operator import attrgetter

import msgspec

from hicache.errors import InputError
from traces.jsonlines import TWICE, UNDECODABLE, is_utf8, what_is_wrong
from traces.jsonstream import array_elements
from traces.recorded import Arrivals, ids_mismatch
from traces.repeated_keys import repeated_key
from traces.rows import BadRows, Batch, Layout, ReadOptions, Row
from traces.source import Source
from traces.weka_turns import Agent, Entry, Turn

BLOCK_TOKENS = 64
# A batch ends at either: prompts of a million tokens have 16,000 ids each.
BATCH_ROWS = 256
BATCH_IDS = 1 << 17
# All sessions of a folder run at once. Of more than this, files are open only while they are read.
MOST_OPEN_FILES = 64
# Sub-agents of sub-agents of ...
DEEPEST_AGENT = 16
# Ids of a file are below 1 << SCOPE_SHIFT; above it is the number of what they are local to.
SCOPE_SHIFT = 40

_ENTRY_DECODER = msgspec.json.Decoder(Entry)
_BLOCK_SIZE = re.compile(rb'"block_size"\s*:\s*([0-9]{1,7})\b')
_REQUESTS = re.compile(rb'"requests"\s*:\s*\[')
_OF_THE_SESSION = (b'"hash_id_scope"', b'"tool_tokens"', b'"system_tokens"')
_OF_A_REQUEST = (b'"t"', b'"in"', b'"block_size"')


class WekaReader:
    """Reads the sessions of kv-cache-tester, one file or a folder of them."""

    name = "weka"
    describes = "Claude Code sessions of kv-cache-tester (requests with t, in, out, hash_ids)"

    def recognises(self, head: bytes) -> bool:
        """Whether an object starts that has what these sessions have before the first ids."""
        start = head.lstrip().split(b'"hash_ids"', 1)[0]
        if not start.startswith(b"{"):
            return False
        if any(each in start for each in _OF_THE_SESSION):
            return True
        return bool(_REQUESTS.search(start)) and any(each in start for each in _OF_A_REQUEST)

    def open(self, source: Source, options: ReadOptions, bad: BadRows) -> WekaStream:
        """`InputError` for a block size that contradicts the file."""
        return WekaStream([source], _block_tokens([source], options), [bad])

    def open_folder(
        self, sources: Sequence[Source], options: ReadOptions, bad: BadRows
    ) -> WekaStream:
        """All sessions as one trace. `InputError` where block sizes differ or contradict."""
        for source in sources:
            source.stays_open = len(sources) <= MOST_OPEN_FILES
        return WekaStream(
            sources,
            _block_tokens(sources, options),
            [_BadInFolder(source.name, bad) for source in sources],
        )


class WekaStream:
    """One pass over the sessions of one or more files."""

    def __init__(
        self, sources: Sequence[Source], block_tokens: int, bad: Sequence[BadRows]
    ) -> None:
        self.layout = Layout(block_tokens)
        self._sources = sources
        self._bad = bad
        self._sessions: list[_Session] = []

    @property
    def notes(self) -> list[str]:
        """What was assumed and what was changed."""
        notes = [
            "the ids of an answer are taken from the next prompt of the same agent where that "
            "goes on from the whole answer, and so is that of the block in which the prompt ends; "
            "the trace does not name them"
        ]
        if len(self._sources) > 1:
            notes.append(
                f"the sessions of all {len(self._sources)} files start at time 0: the files do not "
                "say when each started; their sub-agents are sessions of their own, which start "
                "later"
            )
        if self._sessions and all(session.is_local for session in self._sessions):
            notes.append(
                "ids are local to a file: what sessions of different files share (system prompts, "
                "say) is not in the trace, so that their first turns miss"
            )
        for session in self._sessions:
            notes += [f"{session.name}: {note}" for note in session.arrivals.notes()]
        return notes

    def batches(self) -> Iterator[Batch]:
        """Yield the rows of all sessions by time, some hundreds at a time."""
        scopes = _Scopes(alone=1 if len(self._sources) > 1 else 0)
        names: set[str] = set()
        self._sessions = [
            _Session(source, self.layout.block_tokens, bad, scopes, names)
            for source, bad in zip(self._sources, self._bad, strict=True)
        ]
        turns = heapq.merge(
            *(session.turns() for session in self._sessions), key=attrgetter("time_ms")
        )
        rows: list[Row] = []
        lines: list[int] = []
        num_ids = 0
        for number, turn in enumerate(turns):
            row = turn.give_out(number)
            rows.append(row)
            lines.append(turn.line)
            num_ids += len(row.hash_ids)
            if len(rows) == BATCH_ROWS or num_ids > BATCH_IDS:
                yield Batch(rows, lines)
                rows, lines, num_ids = [], [], 0
        if rows:
            yield Batch(rows, lines)


class _Scopes:
    """Numbers what ids are local to, so that no two of them share ids. "global" is number 0."""

    def __init__(self, *, alone: int) -> None:
        self._next = alone

    def new(self) -> int:
        self._next += 1
        return (self._next - 1) << SCOPE_SHIFT


class _Session:
    """One document, as turns by time."""

    def __init__(
        self, source: Source, block_tokens: int, bad: BadRows, scopes: _Scopes, names: set[str]
    ) -> None:
        self.arrivals = Arrivals()
        self.name = source.name
        self._source = source
        self._block_tokens = block_tokens
        self._bad = bad
        self._scopes = scopes
        self._names = names
        self._per_agent = False
        self.is_local = False
        self._turns = 0
        # Turns that were not given out, by time; those of one time in the order of the file.
        self._ready: list[tuple[int | float, int, Turn]] = []

    def turns(self) -> Iterator[Turn]:
        """Yield the turns of all agents by time. `InputError` for a document that is broken."""
        fields: dict[str, bytes] = {}
        main: Agent | None = None
        elements = array_elements(self._source.chunks(), "requests", self._bad, fields)
        for index, (line, raw) in enumerate(elements):
            if main is None:
                main = self._main_agent(fields)
            place = f"requests[{index}]"
            entry = self._decode(raw, line, place)
            if entry is None:
                continue
            if entry.type == "subagent":
                self._take_agent(entry, main, line, place)
                continue
            turn = main.take(entry, line)
            self._put(turn)
            # The new one is not complete before the next is there.
            while self._ready[0][2] is not turn:
                yield self._next()
        self._check_block_size(fields)
        while self._ready:
            yield self._next()

    def _put(self, turn: Turn) -> None:
        self._turns += 1
        heapq.heappush(self._ready, (turn.time_ms, self._turns, turn))

    def _next(self) -> Turn:
        turn = heapq.heappop(self._ready)[2]
        turn.time_ms = self.arrivals.take(turn.time_ms, turn.line)
        return turn

    def _take_agent(self, entry: Entry, parent: Agent, line: int, place: str) -> None:
        """Take all turns of a sub-agent, and of those in it."""
        if place.count(".") >= DEEPEST_AGENT:
            self._bad.refuse(line, place, f"sub-agents are nested more than {DEEPEST_AGENT} deep")
            return
        agent = parent.spawn(entry, self._scopes.new() if self._per_agent else None)
        for index, raw in enumerate(entry.requests or ()):
            inner = f"{place}.requests[{index}]"
            nested = self._decode(bytes(raw), line, inner)
            if nested is None:
                continue
            if nested.type == "subagent":
                self._take_agent(nested, agent, line, inner)
                continue
            self._put(agent.take(nested, line))
        if agent.last is not None:
            parent.spawned.append(agent.last)

    def _decode(self, raw: bytes, line: int, place: str) -> Entry | None:
        """The entry, checked; None where it was refused."""
        try:
            if not is_utf8(raw):
                raw.decode()
            entry = _ENTRY_DECODER.decode(raw)
        except UNDECODABLE as error:
            field, reason = what_is_wrong(raw, error)
            place += f".{field}" if field else ""
            self._bad.refuse(line, place, reason.replace("of the line", "of the entry"))
            return None
        if twice := repeated_key(Entry, raw):
            self._bad.refuse(line, f"{place}.{twice}", TWICE)
            return None
        if missing := entry.missing():
            self._bad.refuse(line, f"{place}.{missing}", "is missing")
            return None
        if entry.tokens is not msgspec.UNSET and entry.hash_ids is not msgspec.UNSET:
            reason = ids_mismatch(entry.tokens, len(entry.hash_ids), self._block_tokens)
            if reason:
                self._bad.refuse(line, f"{place}.hash_ids", reason)
                return None
        return entry

    def _main_agent(self, fields: dict[str, bytes]) -> Agent:
        self._check_block_size(fields)
        name = self._text(fields, "id") or os.path.basename(self._source.path).split(".")[0]
        if name in self._names:
            name = f"{name} ({self._source.name})"
        self._names.add(name)
        self.name = name
        scope = self._text(fields, "hash_id_scope") or "per_context"
        if scope not in ("local", "global", "per_context"):
            self._bad.fatal(1, "hash_id_scope", f"{scope[:40]!r} is not local, global, per_context")
        self._per_agent = scope == "per_context"
        self.is_local = scope != "global"
        offset = 0 if scope == "global" else self._scopes.new()
        return Agent(name, self._block_tokens, offset)

    def _text(self, fields: dict[str, bytes], field: str) -> str:
        try:
            return msgspec.json.decode(fields.get(field, b'""'), type=str | None) or ""
        except UNDECODABLE as error:
            self._bad.fatal(1, field, what_is_wrong(fields[field], error)[1])

    def _check_block_size(self, fields: dict[str, bytes]) -> None:
        stated = fields.get("block_size", b"null").strip()
        if stated not in (b"null", str(self._block_tokens).encode()):
            shown = stated[:40].decode("utf-8", "replace")
            self._bad.fatal(1, "block_size", f"{shown} is not {self._block_tokens} as expected")


class _BadInFolder(BadRows):
    """The malformed rows of one file of a folder, counted with those of the others."""

    def __init__(self, name: str, whole: BadRows) -> None:
        super().__init__(name, skip=whole.skip)
        self._whole = whole

    def refuse(self, line: int, field: str, reason: str) -> None:
        self._whole.name = self.name
        self._whole.refuse(line, field, reason)


def _block_tokens(sources: Sequence[Source], options: ReadOptions) -> int:
    """The block size that the files state; else that of `options`, else the usual one."""
    given, stated_by = options.block_tokens, ""
    tokens = given
    for source in sources:
        stated = _BLOCK_SIZE.search(source.head().split(b'"hash_ids"', 1)[0])
        if not stated:
            continue
        size = int(stated[1])
        if size < 1:
            raise InputError(f"{source.name}: block_size is {size}: it must be at least 1 token")
        if tokens not in (None, size):
            other = f"that of {stated_by}" if stated_by else "the one given"
            raise InputError(f"{source.name}: block_size is {size}, but {other} is {tokens}")
        tokens, stated_by = size, source.name
    return tokens or BLOCK_TOKENS
