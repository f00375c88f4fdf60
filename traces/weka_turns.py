"""The turns of a coding agent: what each waited for, and which ids its answer has.

Both are read out of the recorded times and ids; a session does not state them.

**Waiting.** A turn follows the answer that ended last before it came, out of the eight latest
turns of its agent and, right after sub-agents ran, their last ones. So an agent goes on once its
sub-agents are done if it did so in the recording; where they still ran it did not wait for them,
nor for a turn of its own that overlaps. A sub-agent's first turn follows the turn that spawned it.
Times are often whole seconds: an answer may end up to one second after what follows it. The think
time is the one stated where the turn before is what was waited for, else the time in between.

(In the published files `t - duration_ms` of a sub-agent is within a second of the answer that
spawned it, so `t` may be when it *ended*. The tester that these files are for adds the times of its
requests to `t` all the same, and so does this.)

**Answers.** An answer ends in the next prompt where that has all blocks of this prompt and is
longer by at least the answer. Then the blocks that the two cover have the ids of the next prompt.
This is an assumption: that prompt could have left a part out and added as much (thinking is left
out of later turns, and such turns are mostly too short).
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import Annotated

import msgspec

from traces.recorded import Seconds, milliseconds
from traces.rows import PromptTokens, Row, Tokens

# Of this many turns of an agent it is known when their answer ended.
REMEMBERED_TURNS = 8
# How far an answer may end behind what follows it: half a second of rounding for each time.
SLACK_MS = 1000

_FileId = Annotated[int, msgspec.Meta(ge=0, lt=1 << 40)]


class Entry(
    msgspec.Struct, rename={"tokens": "in", "output_tokens": "out", "time_s": "t"}, gc=False
):
    """An entry of `requests`: a request, or a sub-agent with requests of its own."""

    time_s: Seconds
    type: str = ""
    tokens: PromptTokens | msgspec.UnsetType = msgspec.UNSET
    output_tokens: Tokens | msgspec.UnsetType = msgspec.UNSET
    hash_ids: list[_FileId] | msgspec.UnsetType = msgspec.UNSET
    api_time: Seconds | None = None
    think_time: Seconds | None = None
    agent_id: str | int = ""
    requests: list[msgspec.Raw] | msgspec.UnsetType = msgspec.UNSET

    def missing(self) -> str:
        """The name of a field that an entry of this type must have and has not; "" if none."""
        if self.type == "subagent":
            return "requests" if self.requests is msgspec.UNSET else ""
        for name, value in (
            ("in", self.tokens),
            ("out", self.output_tokens),
            ("hash_ids", self.hash_ids),
        ):
            if value is msgspec.UNSET:
                return name
        return ""


@dataclass(slots=True, eq=False)
class Turn:
    """One request of an agent. The row is there until it is given out."""

    time_ms: int | float
    end_ms: int | float
    line: int
    row: Row | None
    follows: Turn | None
    number: int = -1

    def give_out(self, number: int) -> Row:
        """The row, as number `number` of the trace. All it waits for must have been given out."""
        row = self.row
        assert row is not None, "a turn is given out once"
        row.timestamp = self.time_ms
        if self.follows is not None:
            row.after = self.follows.number
            assert row.after >= 0, "a turn is not earlier than what it follows"
        self.number = number
        # What came before is no longer needed: turns must not become one long chain.
        self.row = self.follows = None
        return row


class Agent:
    """An agent's turns as they come."""

    def __init__(
        self,
        session: str,
        block_tokens: int,
        id_offset: int,
        start_ms: int | float = 0,
        recent: tuple[Turn, ...] = (),
    ) -> None:
        self.session = session
        # The latest turn; its row lacks the ids of its answer until the next one is taken.
        self.last: Turn | None = None
        # The last turn of each sub-agent that came since.
        self.spawned: list[Turn] = []
        self._block_tokens = block_tokens
        self._id_offset = id_offset
        self._start_ms = start_ms
        self._recent: deque[Turn] = deque(recent, maxlen=REMEMBERED_TURNS)
        self._agents = 0

    def spawn(self, entry: Entry, id_offset: int | None) -> Agent:
        """A sub-agent; `id_offset` None: its ids are of the same scope."""
        self._agents += 1
        name = str(entry.agent_id) or f"agent {self._agents}"
        return Agent(
            f"{self.session}/{name}",
            self._block_tokens,
            self._id_offset if id_offset is None else id_offset,
            self._start_ms + milliseconds(entry.time_s),
            tuple(self._recent),
        )

    def take(self, entry: Entry, line: int) -> Turn:
        """Add the next request, and complete the one before."""
        tokens, output_tokens, ids = entry.tokens, entry.output_tokens, entry.hash_ids
        assert tokens is not msgspec.UNSET
        assert output_tokens is not msgspec.UNSET
        assert ids is not msgspec.UNSET
        if self._id_offset:
            ids = [each + self._id_offset for each in ids]
        time_ms = round(self._start_ms + milliseconds(entry.time_s), 3)
        follows = self._followed(time_ms)
        delay = 0
        if follows is not None:
            if follows is self.last and entry.think_time is not None:
                delay = milliseconds(entry.think_time)
            else:
                delay = max(0, round(time_ms - follows.end_ms, 3))
        row = Row(tokens, output_tokens, time_ms, ids, session=self.session, delay=delay)
        if self.last is not None and self.last.row is not None:
            self.last.row.output_ids = self._answer_ids(self.last.row, row)
        end_ms = time_ms + milliseconds(entry.api_time or 0)
        turn = Turn(time_ms, end_ms, line, row, follows)
        self.last = turn
        self.spawned = []
        self._recent.append(turn)
        return turn

    def _followed(self, time_ms: int | float) -> Turn | None:
        """The turn whose answer ended last before `time_ms`; None: none that is remembered."""
        best = None
        for turn in (*self._recent, *self.spawned):
            if turn.time_ms > time_ms or turn.end_ms > time_ms + SLACK_MS:
                continue
            if best is None or turn.end_ms >= best.end_ms:
                best = turn
        return best

    def _answer_ids(self, row: Row, following: Row) -> list[int] | None:
        end = row.input_length + row.output_length
        if following.input_length < end:
            return None
        full_before = row.input_length // self._block_tokens
        ids = following.hash_ids
        if ids[:full_before] != row.hash_ids[:full_before]:
            return None
        return ids[full_before : end // self._block_tokens]
