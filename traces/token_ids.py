"""Prompts as token ids, one JSON object a line.

    {"arrival_time_ns": 46926808, "input_toks": 3, "output_toks": 2, "input_tok_ids": [5, 7, 9],
     "output_tok_ids": [4, 4]}
    {"session_id": "s0", "arrival_time_ns": 0, "sub_requests": [
        {"input_toks": 3, "output_toks": 2, "tool_duration_ns": 900, "input_tok_ids": [...]}, ...]}
    {"prompt": [5, 7, 9], "prompt_len": 3, "output_len": 2, "timestamp": 46.9}

The first two are LLMServingSim's (casys-kaist/LLMServingSim, docs/docs/workloads/jsonl-format.md):
a flat request, and a session, where each call starts `tool_duration_ns` after the answer before it.
A file may hold both, in any order of time. Ids may be left out, in the first row and then in all:
only lengths are known then, and nothing is shared.

The third is what benchmarks keep of a tokenized data set. Its time is optional: `arrival_time_ns`,
`arrival_time` in seconds, or `timestamp` in milliseconds. Answers' ids: `output_tok_ids` or
`output_ids`. Ids must be as many as their length says.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated

import msgspec

from traces.jsonstream import first_object
from traces.records import (
    Record,
    Time,
    TimeOrder,
    batches_of,
    decode_record,
    ms_of_nanoseconds,
    ms_of_seconds,
    records_of,
)
from traces.rows import BadRows, Batch, Id, Layout, PromptTokens, ReadOptions, Row, Tokens
from traces.source import Source

Nanoseconds = Annotated[int, msgspec.Meta(ge=0)]


class _Call(msgspec.Struct, gc=False):
    """One request of LLMServingSim: a flat one, or one of a session."""

    input_toks: PromptTokens
    output_toks: Tokens
    input_tok_ids: list[Id] | None = None
    output_tok_ids: list[Id] | None = None
    tool_duration_ns: Nanoseconds = 0


class _Flat(_Call, gc=False):
    session_id: str | int = ""


class _Session(msgspec.Struct):
    session_id: str | int
    sub_requests: Annotated[list[_Call], msgspec.Meta(min_length=1)]


class _Prompt(msgspec.Struct, gc=False):
    prompt: list[Id]
    prompt_len: PromptTokens
    output_len: Tokens
    output_tok_ids: list[Id] | None = None
    output_ids: list[Id] | None = None


class _Head(msgspec.Struct, gc=False):
    """What is needed to put a line in order, and to know which of the three it is."""

    arrival_time_ns: int | float | None = None
    arrival_time: int | float | None = None
    timestamp: int | float | None = None
    sub_requests: msgspec.Raw = msgspec.Raw()
    prompt: msgspec.Raw = msgspec.Raw()
    prompt_len: msgspec.Raw = msgspec.Raw()


_HEAD = msgspec.json.Decoder(_Head)
_FLAT = msgspec.json.Decoder(_Flat)
_SESSION = msgspec.json.Decoder(_Session)
_PROMPT = msgspec.json.Decoder(_Prompt)


class TokenIdsReader:
    """Reads JSON lines with prompts as token ids."""

    name = "token-ids"
    describes = (
        "token-id JSON lines (input_tok_ids, input_toks, output_toks, arrival_time_ns; "
        "or prompt, prompt_len, output_len)"
    )

    def recognises(self, head: bytes) -> bool:
        """Whether the first row has token ids, or LLMServingSim's lengths."""
        if not head.lstrip().startswith(b"{"):
            return False
        row = first_object(head)
        if "input_tok_ids" in row or "input_toks" in row:
            return True
        if "sub_requests" in row:
            return b'"input_toks"' in row["sub_requests"] or "arrival_time_ns" in row
        # Where the ids go on beyond the head, so do the keys behind them.
        is_cut_off = len(row) == 1 and not row.get("prompt", b"]").rstrip().endswith(b"]")
        is_ids = row.get("prompt", b"").strip(b"[ \t\r\n")[:1].isdigit()
        has_length = "prompt_len" in row or "output_len" in row
        is_list = row.get("prompt", b"").startswith(b"[")
        return is_list and (has_length or (is_ids and is_cut_off))

    def open(self, source: Source, options: ReadOptions, bad: BadRows) -> TokenIdRows:
        """One pass over `source`; no option concerns this format."""
        del options
        return TokenIdRows(source, bad)


class TokenIdRows:
    """One pass over a file of token ids."""

    def __init__(self, source: Source, bad: BadRows) -> None:
        row = first_object(source.head())
        first = row.get("sub_requests", source.head().lstrip().partition(b"\n")[0])
        self._has_ids = b'"input_tok_ids"' in first or "prompt" in row
        self._source = source
        self._bad = bad
        # Later calls of a session have none, and `prompt` lines need none.
        self.layout = Layout(int(self._has_ids), has_ids=self._has_ids, timed=False)
        self.notes: list[str] = []
        if not self._has_ids:
            self.notes.append("rows have no token ids: no prompt shares anything with another")

    def batches(self) -> Iterator[Batch]:
        """The rows in order of arrival."""
        order = TimeOrder(self._time_of, self._bad, self.notes)
        yield from batches_of(self._rows(order.sort(records_of(self._source, self._bad))))

    def _time_of(self, record: Record) -> Time | None:
        head = decode_record(_HEAD, record, self._bad)
        if head is None:
            return None
        is_prompt = head.prompt or head.prompt_len
        kind = "session" if head.sub_requests else "prompt" if is_prompt else "flat"
        if kind == "prompt" and head.arrival_time_ns is None:
            if head.arrival_time is not None:
                return Time("arrival_time", ms_of_seconds(head.arrival_time), kind)
            return Time("timestamp", head.timestamp, kind)
        if head.arrival_time_ns is None:
            self._bad.refuse(record.line, "arrival_time_ns", "is missing")
            return None
        return Time("arrival_time_ns", ms_of_nanoseconds(head.arrival_time_ns), kind)

    def _rows(self, records: Iterator[Record]) -> Iterator[tuple[int, Row]]:
        number = 0
        for record in records:
            if record.kind == "session":
                rows = self._session(record, number)
            else:
                rows = self._prompt(record) if record.kind == "prompt" else self._flat(record)
            for row in rows:
                yield record.line, row
            number += len(rows)

    def _flat(self, record: Record) -> list[Row]:
        call = decode_record(_FLAT, record, self._bad)
        if call is None or not self._fits(record.line, "", call):
            return []
        return [_row_of(call, record.time_ms, str(call.session_id))]

    def _session(self, record: Record, number: int) -> list[Row]:
        """The calls of a session, the first of which becomes row `number`; all of them, or none."""
        session = decode_record(_SESSION, record, self._bad)
        rows: list[Row] = []
        if session is None:
            return rows
        for index, call in enumerate(session.sub_requests):
            if not self._fits(record.line, f"sub_requests[{index}].", call):
                return []
            row = _row_of(call, None, str(session.session_id))
            if index:
                row.after = number + index - 1
                row.delay = session.sub_requests[index - 1].tool_duration_ns / 10**6
            else:
                row.timestamp = record.time_ms
            rows.append(row)
        return rows

    def _prompt(self, record: Record) -> list[Row]:
        row = decode_record(_PROMPT, record, self._bad)
        if row is None or not self._counts(
            record.line, "prompt", row.prompt, "prompt_len", row.prompt_len
        ):
            return []
        field = "output_tok_ids" if row.output_tok_ids is not None else "output_ids"
        output_ids = row.output_ids if row.output_tok_ids is None else row.output_tok_ids
        if not self._counts(record.line, field, output_ids, "output_len", row.output_len):
            return []
        return [
            Row(row.prompt_len, row.output_len, record.time_ms, row.prompt, output_ids=output_ids)
        ]

    def _fits(self, line: int, path: str, call: _Call) -> bool:
        ids = call.input_tok_ids
        if (ids is not None) != self._has_ids:
            reason = "is missing; the first row has it" if ids is None else "the first row has none"
            self._bad.refuse(line, f"{path}input_tok_ids", reason)
            return False
        return self._counts(
            line, f"{path}input_tok_ids", ids, "input_toks", call.input_toks
        ) and self._counts(
            line, f"{path}output_tok_ids", call.output_tok_ids, "output_toks", call.output_toks
        )

    def _counts(
        self, line: int, field: str, ids: list[int] | None, length_field: str, length: int
    ) -> bool:
        """Whether there are as many ids as the length says."""
        if ids is None or len(ids) == length:
            return True
        self._bad.refuse(line, field, f"{len(ids)} ids do not match {length_field} {length}")
        return False


def _row_of(call: _Call, time_ms: int | float | None, session: str) -> Row:
    has_ids = call.input_tok_ids is not None
    return Row(
        call.input_toks,
        call.output_toks,
        time_ms,
        call.input_tok_ids or [],
        output_ids=call.output_tok_ids if has_ids else None,
        session=session,
    )
