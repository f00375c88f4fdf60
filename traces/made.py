"""Rows that a program makes are a stream like those of a file: so generators need no file.

It checks nothing: whoever makes rows keeps what `Row` promises.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Any

from traces.rows import Batch, Layout, Row, RowStream

ROWS_IN_BATCH = 256

# What a trace says of how it is meant to be replayed; a replay takes "loop" ("closed": a turn waits
# for the answer before it), "parallel" and "barrier" from it unless told otherwise. There are
# "clients" (sessions at a time), "parallel" (requests in flight at most), "barrier" ("rounds": a
# round starts when all of the one before have ended), "arrival", "rate_per_s", "duration_s",
# "workload", "seed". "first_day" says on which day (UTC, as "2023-11-16") times are counted from 0.
Hints = Mapping[str, int | float | str]


class MadeRows:
    """A stream of rows made by `rows()`, from the start for each pass. Lines count the rows."""

    def __init__(
        self, layout: Layout, rows: Callable[[], Iterable[Row]], hints: Hints | None = None
    ) -> None:
        self.layout = layout
        self.notes: list[str] = []
        self.hints: Hints = hints or {}
        self._rows = rows

    def batches(self) -> Iterator[Batch]:
        """The rows, some hundred at a time."""
        rows = iter(self._rows())
        line = 1
        while batch := list(islice(rows, ROWS_IN_BATCH)):
            yield Batch(batch, range(line, line + len(batch)))
            line += len(batch)


class Noted:
    """A stream with more to say."""

    def __init__(self, stream: RowStream, notes: Sequence[str]) -> None:
        self._stream = stream
        self._notes = notes

    @property
    def layout(self) -> Layout:
        return self._stream.layout

    @property
    def notes(self) -> list[str]:
        return [*self._notes, *self._stream.notes]

    @property
    def hints(self) -> Hints:
        return hints_of(self._stream)

    def batches(self) -> Iterator[Batch]:
        """The stream's rows."""
        return self._stream.batches()


def hints_of(stream: Any) -> Hints:
    """The hints of a stream; none if it is of a kind that has none."""
    return getattr(stream, "hints", {})
