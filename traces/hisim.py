"""Collections of Tair HiSim: requests as token ids, with the prefix that the server really hit.

    {"rid": "21e5", "timestamp": 732.31, "queue_end": 732.39, "input_length": 1024,
     "output_length": 512, "final_prefix_cache_len": 679, "input_ids": [92, ...],
     "output_ids": [24, ...]}

Times are in seconds (`created_time` goes before `timestamp`); `final_prefix_cache_len` counts the
prompt's tokens that were in the cache when its prefill started, `final_device_hit_len` in older
files. `output_length` is the limit that the request asked for: where `output_ids` are given, their
number is the answer's length. Source: alibaba/tair-kvcache, hisim/benchmark/collection, which
writes requests in the order in which the scheduler got them, and such as were not finished yet
with an `input_length` of 0. Those are refused, like anything malformed.
"""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from traces.jsonstream import first_object
from traces.records import (
    Record,
    Time,
    TimeOrder,
    batches_of,
    decode_record,
    ms_of_seconds,
    records_of,
)
from traces.rows import BadRows, Batch, Id, Layout, PromptTokens, ReadOptions, Row, Tokens
from traces.source import Source


class _Request(msgspec.Struct, gc=False):
    input_length: PromptTokens
    output_length: Tokens
    input_ids: list[Id]
    output_ids: list[Id] | None = None
    final_prefix_cache_len: Tokens | None = None
    final_device_hit_len: Tokens | None = None


class _Head(msgspec.Struct, gc=False):
    timestamp: int | float | None = None
    created_time: int | float | None = None


_HEAD = msgspec.json.Decoder(_Head)
_REQUEST = msgspec.json.Decoder(_Request)


class HiSimReader:
    """Reads HiSim's collections."""

    name = "hisim"
    describes = "HiSim collections (input_ids, input_length, output_length, final_prefix_cache_len)"

    def recognises(self, head: bytes) -> bool:
        """Whether the first row is a HiSim request."""
        if not head.lstrip().startswith(b"{"):
            return False
        row = first_object(head)
        return "final_prefix_cache_len" in row or (
            "input_ids" in row and ("input_length" in row or "queue_end" in row)
        )

    def open(self, source: Source, options: ReadOptions, bad: BadRows) -> HiSimRows:
        """One pass over `source`; no option concerns this format."""
        del options
        return HiSimRows(source, bad)


class HiSimRows:
    """One pass over a HiSim collection."""

    def __init__(self, source: Source, bad: BadRows) -> None:
        self._source = source
        self._bad = bad
        self.layout = Layout(1, timed=False)  # a collection may have no times
        self.notes: list[str] = []

    def batches(self) -> Iterator[Batch]:
        """The rows in order of arrival."""
        order = TimeOrder(self._time_of, self._bad, self.notes)
        yield from batches_of(self._rows(order.sort(records_of(self._source, self._bad))))

    def _time_of(self, record: Record) -> Time | None:
        head = decode_record(_HEAD, record, self._bad)
        if head is None:
            return None
        field = "timestamp" if head.created_time is None else "created_time"
        time_s = head.timestamp if head.created_time is None else head.created_time
        return Time(field, None if time_s is None else ms_of_seconds(time_s))

    def _rows(self, records: Iterator[Record]) -> Iterator[tuple[int, Row]]:
        shorter = 0
        for record in records:
            request = decode_record(_REQUEST, record, self._bad)
            if request is None:
                continue
            tokens, ids = request.input_length, request.input_ids
            if len(ids) != tokens:
                reason = f"{len(ids)} ids do not match input_length {tokens}"
                self._bad.refuse(record.line, "input_ids", reason)
                continue
            field, cached = "final_prefix_cache_len", request.final_prefix_cache_len
            if cached is None:
                field, cached = "final_device_hit_len", request.final_device_hit_len
            if cached is not None and cached > tokens:
                reason = f"{cached} tokens are more than input_length {tokens}"
                self._bad.refuse(record.line, field, reason)
                continue
            output_ids = request.output_ids or None
            output_length = len(output_ids) if output_ids else request.output_length
            shorter += output_length != request.output_length
            yield (
                record.line,
                Row(
                    tokens,
                    output_length,
                    record.time_ms,
                    ids,
                    output_ids=output_ids,
                    cached_tokens=-1 if cached is None else cached,
                ),
            )
        if shorter:
            self.notes.append(
                f"{shorter:,} answers have another number of output_ids than output_length, "
                "which is the limit that was asked for; output_ids count"
            )
