"""One JSON record after the other, in the order of the requests' arrival. Knows no format.

Records stand one a line, or as the elements of one array; both are streamed. A log is often written
in another order than requests arrived in (when they finished, say). A record waits until 1,000
later ones (or 64 MiB) have been read, still as the bytes it was written in, and those waiting leave
in the order of their times. What comes later than that is refused: it would have to go before a
request that was given out already.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import closing
from heapq import heappop, heappush
from typing import NamedTuple, TypeVar

import msgspec

from traces.jsonlines import decode_object
from traces.jsonstream import array_elements
from traces.rows import BadRows, Batch, Row
from traces.source import Source

# Times further from zero than this (30,000 years) are in another unit.
LATEST_MS = 10**15
WAITING_RECORDS = 1000
WAITING_BYTES = 64 << 20
BATCH_ROWS = 256
BATCH_IDS = 1 << 18

Decoded = TypeVar("Decoded")


class Record(NamedTuple):
    """The bytes of one record, the line it starts on, and, once known, its time and its kind."""

    line: int
    raw: bytes
    time_ms: int | float | None = None
    # For formats with records of several kinds.
    kind: str = ""


class Time(NamedTuple):
    """What `TimeOrder` asks of a record: where its time stands, and the time, if it has one."""

    field: str
    time_ms: int | float | None
    kind: str = ""


def records_of(source: Source, bad: BadRows) -> Iterator[Record]:
    """The records of a text that is JSON lines or one JSON array; blank lines are none."""
    if source.head().lstrip()[:1] == b"[":
        with closing(source.chunks()) as chunks:
            for line, raw in array_elements(chunks, None, bad):
                yield Record(line, raw)
        return
    for first_line, piece in source.pieces():
        for line, raw in enumerate(piece.split(b"\n"), first_line):
            if raw and not raw.isspace():
                yield Record(line, raw)


def decode_record(
    decoder: msgspec.json.Decoder[Decoded], record: Record, bad: BadRows
) -> Decoded | None:
    """The value of one record; None if it was malformed and is left out."""
    return decode_object(decoder, record.raw, record.line, bad)


class TimeOrder:
    """Puts records in the order of their times. `moved` counts those that were not in it.

    Either all records of a trace have a time or none has: the first one decides. Without times they
    keep their order. `time_of` may leave a record out by returning None.
    """

    def __init__(
        self,
        time_of: Callable[[Record], Time | None],
        bad: BadRows,
        notes: list[str],
    ) -> None:
        self._time_of = time_of
        self._bad = bad
        self._notes = notes
        self.moved = 0

    def sort(self, records: Iterable[Record]) -> Iterator[Record]:
        """The records with their times, in order."""
        waiting: list[tuple[int | float, int, Record]] = []
        waiting_bytes = 0
        has_time: bool | None = None
        latest = last_out = -LATEST_MS
        for number, record in enumerate(records):
            found = self._time_of(record)
            if found is None:
                continue
            field, time_ms, kind = found
            if has_time is None:
                has_time = time_ms is not None
            if not self._suits(record.line, field, time_ms, has_time, last_out):
                continue
            record = record._replace(time_ms=time_ms, kind=kind)
            if time_ms is None:
                yield record
                continue
            if time_ms < latest:
                self.moved += 1
            latest = max(latest, time_ms)
            heappush(waiting, (time_ms, number, record))
            waiting_bytes += len(record.raw)
            while len(waiting) > WAITING_RECORDS or waiting_bytes > WAITING_BYTES:
                last_out, _, record = heappop(waiting)
                waiting_bytes -= len(record.raw)
                yield record
        while waiting:
            yield heappop(waiting)[2]
        if self.moved:
            self._notes.append(
                f"{self.moved:,} request{'s' if self.moved > 1 else ''} came after later ones in "
                "the file and went back to the order of arrival"
            )

    def _suits(
        self,
        line: int,
        field: str,
        time_ms: int | float | None,
        has_time: bool,
        last_out: int | float,
    ) -> bool:
        reason = ""
        if time_ms is None:
            if has_time:
                reason = "is missing; the rows before have it"
        elif not has_time:
            reason = "is not in the rows before; all must have it, or none"
        elif time_ms < 0:
            reason = "is negative"
        elif time_ms > LATEST_MS:
            reason = f"{time_ms} is no time of a request; is it in another unit?"
        elif time_ms < last_out:
            reason = (
                f"{time_ms} ms is earlier than {last_out} ms of a request that more than "
                f"{WAITING_RECORDS:,} rows lie between; sort the file by it"
            )
        if reason:
            self._bad.refuse(line, field, reason)
        return not reason


def ms_of_seconds(time_s: int | float) -> int | float:
    """Milliseconds; a number too large for a time stays, and `TimeOrder` refuses it."""
    return time_s * 1000 if abs(time_s) <= LATEST_MS else time_s


def ms_of_nanoseconds(time_ns: int | float) -> int | float:
    """Milliseconds; a number too large for a time stays, and `TimeOrder` refuses it."""
    return time_ns / 10**6 if abs(time_ns) <= LATEST_MS * 10**6 else time_ns


def batches_of(rows: Iterable[tuple[int, Row]]) -> Iterator[Batch]:
    """Batches of the rows, each of which comes with its line: 256, or fewer of many ids."""
    batch, lines, num_ids = [], [], 0
    for line, row in rows:
        batch.append(row)
        lines.append(line)
        num_ids += len(row.hash_ids)
        if len(batch) >= BATCH_ROWS or num_ids >= BATCH_IDS:
            yield Batch(batch, lines)
            batch, lines, num_ids = [], [], 0
    if batch:
        yield Batch(batch, lines)
