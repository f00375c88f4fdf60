"""A part of a trace is a trace: by place, by time, whole sessions, or a sample of them. Streams.

Rows keep their ids, times and lengths; `after` is renumbered. A row whose predecessor is cut off
starts on its own, which is told in `notes`. A row without a timestamp has no place in time: it goes
where the row it waits for goes.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections.abc import Iterator
from dataclasses import dataclass

from msgspec.structs import replace

from hicache.errors import InputError
from traces.made import Hints, hints_of
from traces.rows import Batch, Layout, Row, RowStream


@dataclass(frozen=True, slots=True)
class Cut:
    """What to keep. All that is given must hold. A bad value is an `InputError`."""

    # Rows start .. end - 1 of the trace, counted from 0; an end of None is the trace's.
    requests: tuple[int, int | None] | None = None
    # Seconds since the first request, by the trace's clock: from `from_s`, and before `to_s`.
    from_s: float | None = None
    to_s: float | None = None
    # The first so many sessions, in order of appearance; a row of no session counts as one.
    sessions: int | None = None
    # One in so many sessions: the first, then every `every`-th. Sharing within a session stays.
    every: int | None = None
    # The first so many rows of those that all the above keeps.
    first: int | None = None
    # "rows": each row by itself. "sessions": a session whose first row is kept is kept to its end,
    # and no other; `first` then counts until no more sessions are begun.
    whole: str = "rows"

    def __post_init__(self) -> None:
        for name in ("sessions", "every", "first"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise InputError(f"{name} is {value}: it must be at least 1")
        if self.requests is not None:
            start, end = self.requests
            if start < 0 or (end is not None and end <= start):
                raise InputError(f"requests is {start}:{end}: the end must come after the start")
        if self.from_s is not None and self.to_s is not None and not self.from_s < self.to_s:
            raise InputError(f"from_s is {self.from_s}, but to_s {self.to_s}: nothing is between")
        if self.whole not in ("rows", "sessions"):
            raise InputError(f"whole is {self.whole!r}: it must be rows or sessions")


def slice_rows(
    stream: RowStream,
    *,
    requests: tuple[int, int | None] | None = None,
    from_s: float | None = None,
    to_s: float | None = None,
    sessions: int | None = None,
    every: int | None = None,
    first: int | None = None,
    whole: str = "rows",
) -> RowStream:
    """The rows of `stream` that a `Cut` of these values keeps, as a stream of one pass."""
    return _Sliced(stream, Cut(requests, from_s, to_s, sessions, every, first, whole))


class _Sliced:
    def __init__(self, stream: RowStream, cut: Cut) -> None:
        self._stream = stream
        self._cut = cut
        self._own_notes: list[str] = []

    @property
    def layout(self) -> Layout:
        return self._stream.layout

    @property
    def notes(self) -> list[str]:
        return self._stream.notes + self._own_notes

    @property
    def hints(self) -> Hints:
        return hints_of(self._stream)

    def batches(self) -> Iterator[Batch]:
        """The rows that are kept. Reads no further than the last one that can be."""
        knife = _Knife(self._cut)
        self._own_notes = []
        for rows, lines in self._stream.batches():
            kept: list[Row] = []
            kept_lines: list[int] = []
            for row, line in zip(rows, lines, strict=True):
                row = knife.take(row)
                if row is not None:
                    kept.append(row)
                    kept_lines.append(line)
                if knife.done:
                    break
            if kept:
                yield Batch(kept, kept_lines)
            if knife.done:
                break
        if knife.orphans:
            self._own_notes.append(
                f"{knife.orphans:,} of {len(knife.kept):,} requests wait for no other any more: "
                "the one they waited for was cut off"
            )


class _Knife:
    """Decides row by row. Memory: 8 bytes a row kept, and the names of sessions if they matter."""

    def __init__(self, cut: Cut) -> None:
        self._cut = cut
        self._number = -1
        self._start_ms: int | float | None = None
        self._now_ms: int | float = 0
        # Old numbers of the rows that are kept, and what the current row waits for among them.
        self.kept = array("q")
        self.orphans = 0
        self._num_sessions = 0
        # Whether a session so far is one of those that `sessions` and `every` ask for.
        self._wanted: dict[str, bool] = {}
        # With whole sessions: whether a session so far is kept.
        self._begun: dict[str, bool] = {}
        self._open = True
        self.done = False

    def take(self, row: Row) -> Row | None:
        """The next row as it is kept; None if it is not. Then `done`: nothing more will be."""
        self._number += 1
        if row.timestamp is not None:
            if self._start_ms is None:
                self._start_ms = row.timestamp
            self._now_ms = row.timestamp
        before = bisect_left(self.kept, row.after) if row.after >= 0 else -1
        parent = before if 0 <= before < len(self.kept) and self.kept[before] == row.after else -1
        if not self._keeps(row, parent):
            return None
        self.kept.append(self._number)
        first = self._cut.first
        if first is not None and len(self.kept) >= first:
            self._open = False
            self.done = self._cut.whole == "rows"
        if parent == row.after:
            return row
        if parent >= 0:
            return replace(row, after=parent)
        self.orphans += 1
        timestamp = self._now_ms if row.timestamp is None else row.timestamp
        return replace(row, after=-1, delay=0, timestamp=timestamp)

    def _keeps(self, row: Row, parent: int) -> bool:
        whole = self._cut.whole == "sessions" and row.session
        if whole and row.session in self._begun:
            return self._begun[row.session]
        keeps = self._wants(row) and self._open and self._inside(row, parent)
        if whole:
            self._begun[row.session] = keeps
        return keeps

    def _wants(self, row: Row) -> bool:
        """Whether the row's session is among those asked for."""
        sessions, every = self._cut.sessions, self._cut.every
        if sessions is None and every is None:
            return True
        wanted = self._wanted.get(row.session) if row.session else None
        if wanted is None:
            number = self._num_sessions
            self._num_sessions += 1
            wanted = (sessions is None or number < sessions) and number % (every or 1) == 0
            if row.session:
                self._wanted[row.session] = wanted
        return wanted

    def _inside(self, row: Row, parent: int) -> bool:
        """Whether the row itself lies within the places and times asked for."""
        cut = self._cut
        rows_only = cut.whole == "rows"
        if cut.requests is not None:
            start, end = cut.requests
            if end is not None and self._number >= end:
                self.done = self.done or rows_only
                return False
            if self._number < start:
                return False
        if cut.from_s is None and cut.to_s is None:
            return True
        if row.timestamp is None or self._start_ms is None:
            return parent >= 0
        at_s = (row.timestamp - self._start_ms) / 1000
        return (cut.from_s is None or at_s >= cut.from_s) and (cut.to_s is None or at_s < cut.to_s)
