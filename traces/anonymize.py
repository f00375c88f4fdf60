"""What a trace shares is kept, what it says is not: so that people can give their traces away.

Prompts (and answers) are cut into blocks of one size. A block's id is a keyed BLAKE2 hash, cut to
62 bits, of the id before it and its content; the key is a random salt that is thrown away unless it
is given. Names of sessions become numbers in order of appearance; times start at 0. Lengths,
pauses, order and what a request waits for are kept; what the recorded server found in its cache is
left out unless asked for.

    pieces or token ids   [ block 0 ][ block 1 ][ tail ]
    ids                   h(salt; -, 0)  h(salt; id 0, 1)  h(salt; id 1, tail)

**What whoever has the file learns**: when requests came, how long prompts and answers are, which
prompts have how many leading blocks in common, to the block, which requests are of one session,
which answer a request waits for and how long after it comes, and hints for a replay that are
numbers. Nothing else: without the salt ids are random numbers, so a guessed text cannot be tested
against them. (With long prompts that everyone knows, as a published system prompt, a length may
suffice to guess which it is.)
**Whoever has the salt** can test a guess, but only of a whole prompt from its start to the end of a
block, because each id stands for all before it. Larger blocks make that harder and files smaller,
and know less of what is shared: the default of 64 tokens is the page size that servers with such
caches commonly run. A partly filled last block has an id of its own, shared only with equal content
of equal length.

Memory: the names of the sessions. Nothing is kept of the blocks, so two different ones have the
same id with a probability of (number of blocks)**2 / 2**63: 0.1 % in a trace of 10**8.
"""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Iterator

from msgspec.structs import replace

from hicache.errors import InputError
from traces.features import Features
from traces.made import Hints, hints_of
from traces.recut import Content, Recutter
from traces.rows import Batch, Layout, Row, RowStream

BLOCK_TOKENS = 64
ID_BITS = 62
LONGEST_SALT_BYTES = 64
NUMBER_HINTS = ("clients", "parallel", "rate_per_s", "duration_s")


def anonymize(
    stream: RowStream,
    *,
    salt: bytes | None = None,
    block_tokens: int | None = None,
    start: str = "zero",
    recorded: str = "left out",
) -> RowStream:
    """The rows of `stream` with ids that say nothing, in blocks of `block_tokens`.

    None: as large as the trace's own blocks of one size, or else 64. The same `salt` (1 to 64
    bytes) gives the same ids, so that several files keep what they share; None takes a random one.
    `start` "zero" counts times from the first request, "kept" leaves them. `recorded` "kept" keeps
    what the recorded server found in its cache. A trace without ids stays without.
    """
    if salt is None:
        salt = secrets.token_bytes(32)
    if not 1 <= len(salt) <= LONGEST_SALT_BYTES:
        raise InputError(f"the salt has {len(salt)} bytes: it must have 1 to {LONGEST_SALT_BYTES}")
    if start not in ("zero", "kept"):
        raise InputError(f"start is {start!r}: it must be zero or kept")
    if recorded not in ("left out", "kept"):
        raise InputError(f"recorded is {recorded!r}: it must be left out or kept")
    if block_tokens is None:
        own = stream.layout.block_tokens
        block_tokens = own if own > 1 else BLOCK_TOKENS
    return _Anonymous(stream, salt, block_tokens, start, recorded)


def what_remains(stream: RowStream, features: Features) -> str:
    """What can still be seen in an anonymous `stream` whose rows have `features`."""
    layout = stream.layout
    seen = ["when requests came", "how long prompts and answers are"]
    if layout.has_ids:
        answers = " and named answers" if features.answers else ""
        seen.append(
            f"which prompts{answers} start with the same blocks of {layout.block_tokens} tokens"
        )
    if features.sessions:
        seen.append("which requests are of one session")
    if features.waits:
        seen.append("which answer a request waits for and how long after it comes")
    if features.cached:
        seen.append("how many tokens the recorded server found in its cache")
    if hints := hints_of(stream):
        seen.append(f"hints for a replay ({', '.join(hints)})")
    return f"{', '.join(seen[:-1])} and {seen[-1]}"


class _Anonymous:
    def __init__(
        self, stream: RowStream, salt: bytes, block_tokens: int, start: str, recorded: str
    ) -> None:
        Recutter(stream.layout, block_tokens)  # refuses a bad size at once
        self._stream = stream
        self._salt = salt
        self._start = start
        self._recorded = recorded
        own = stream.layout
        self.layout = Layout(block_tokens, timed=own.timed) if own.has_ids else own

    @property
    def notes(self) -> list[str]:
        return self._stream.notes

    @property
    def hints(self) -> Hints:
        """None that could hold text: known ones, if they are numbers."""
        hints = hints_of(self._stream).items()
        return {
            k: v
            for k, v in hints
            if (k in NUMBER_HINTS and not isinstance(v, str)) or (k, v) == ("loop", "closed")
        }

    def batches(self) -> Iterator[Batch]:
        """The rows, one for each of the stream's."""
        hidden = _Hidden(self._stream.layout, self.layout, self._salt, self._recorded)
        start_ms: int | float | None = 0 if self._start == "kept" else None
        for rows, lines in self._stream.batches():
            anonymous = []
            for row in rows:
                if start_ms is None:
                    start_ms = row.timestamp
                timestamp = row.timestamp
                if timestamp is not None and start_ms:
                    timestamp -= start_ms
                    if isinstance(timestamp, float):
                        timestamp = round(timestamp, _sure_digits(start_ms))
                anonymous.append(hidden.row(row, timestamp))
            yield Batch(anonymous, lines)


def _sure_digits(start_ms: int | float) -> int:
    """Decimals that a difference to `start_ms` has: further ones would tell how large that was."""
    return max(0, min(6, 15 - len(str(abs(int(start_ms))))))


class _Hidden:
    """Makes the ids and numbers of one pass."""

    def __init__(self, layout: Layout, target: Layout, salt: bytes, recorded: str) -> None:
        self._has_ids = target.has_ids
        self._block_tokens = target.block_tokens
        self._recutter = Recutter(layout, target.block_tokens) if target.has_ids else None
        self._hash = hashlib.blake2b(key=salt, digest_size=8)
        self._recorded = recorded
        self._sessions: dict[str, str] = {}

    def row(self, row: Row, timestamp: int | float | None) -> Row:
        """The same request, saying nothing."""
        session = row.session
        if session:
            session = self._sessions.setdefault(session, str(len(self._sessions) + 1))
        ids: list[int] = []
        answer: list[int] | None = None
        if self._recutter is not None:
            ids = self._ids(self._recutter.prompt(row))
            if row.output_ids is not None:
                start = row.input_length // self._block_tokens
                answer = self._ids(self._recutter.with_answer(row))[start:]
        return replace(
            row,
            timestamp=timestamp,
            hash_ids=ids,
            lengths=None,
            output_ids=answer,
            output_lengths=None,
            session=session,
            cached_tokens=row.cached_tokens if self._recorded == "kept" else -1,
        )

    def _ids(self, contents: list[Content]) -> list[int]:
        ids: list[int] = []
        before = bytes(8)
        for content in contents:
            digest = self._hash.copy()
            digest.update(before + content)
            # The whole digest goes on, its first 62 bits are the id.
            before = digest.digest()
            ids.append(int.from_bytes(before, "big") >> (64 - ID_BITS))
        return ids
