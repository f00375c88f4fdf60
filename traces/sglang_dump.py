"""Requests that an SGLang server kept: its request dumps and crash dumps, and its JSON request log.

**Dumps** (`--dump-requests-folder`, `--crash-dump-folder`) are pickles: a list, or a dict with the
list under "requests", of (request, answer, start, finish), times in seconds. Unpickling would run
whatever code the file names. Nothing is unpickled here: `traces.pickles` reads the data and keeps
every object as an inert record, and nothing of the file is imported or called. A dump is held in
memory as a whole (a server writes 1,000 requests to one), and refused above 1 GiB; a folder is read
dump by dump.

**Logs** (`--log-requests --log-requests-format json`, level 3) are JSON lines; their
"request.finished" events count, whose time less `e2e_latency` is the start:

    {"timestamp": "2026-06-30T09:15:50.2", "event": "request.finished", "rid": "ff61",
     "obj": {"input_ids": [...]}, "out": {"output_ids": [...], "meta_info": {...}}}

Both come in the order in which requests finished, and leave in that of their arrival. The prompt is
`input_ids`, else `text`, which takes a tokenizer. From `meta_info`: `completion_tokens`, and
`cached_tokens`, what the server found in its cache. The answer's ids are known where `output_ids`
(or the text, given a tokenizer) has as many as `completion_tokens`, but for a stop token: servers
may keep only what they streamed last. Source: sgl-project/sglang, srt/managers/tokenizer_manager.py
and srt/utils/request_logger.py. "Line" in messages on a dump is the number of the request.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from datetime import UTC, datetime
from heapq import heappop, heappush
from typing import Any, NamedTuple

import msgspec

from traces.jsonstream import first_object
from traces.records import (
    LATEST_MS,
    Record,
    Time,
    TimeOrder,
    batches_of,
    decode_record,
    ms_of_seconds,
    records_of,
)
from traces.rows import LARGEST_ID, MOST_TOKENS, BadRows, Batch, Layout, ReadOptions, Row
from traces.source import Source
from traces.texts import NO_TOKENS, open_tokenizer

FINISHED = "request.finished"
WAITING_REQUESTS = 4000
# A dump is held in memory as a whole: a thousand prompts of 128k tokens fit.
LARGEST_DUMP_BYTES = 1 << 30


class _Event(msgspec.Struct):
    event: str
    timestamp: str = ""
    obj: dict[str, Any] = {}
    out: dict[str, Any] = {}


class _Request(NamedTuple):
    """One request of either: attributes of the request, of the answer, and the start."""

    file: str
    line: int
    obj: dict[str, Any]
    out: dict[str, Any]
    time_ms: int | float


_EVENT = msgspec.json.Decoder(_Event)


class SGLangDumpReader:
    """Reads SGLang's request dumps and crash dumps."""

    name = "sglang-dump"
    describes = "SGLang request dumps (pickle files; nothing in them is run)"

    def recognises(self, head: bytes) -> bool:
        """Whether it is a pickle of protocol 2 or later; SGLang writes 4 or later."""
        return head[:1] == b"\x80" and head[1:2] in (b"\2", b"\3", b"\4", b"\5")

    def open(self, source: Source, options: ReadOptions, bad: BadRows) -> SGLangRows:
        """One pass over `source`. A tokenizer is needed only where prompts are texts."""
        return SGLangRows([source], options, bad, is_dump=True)

    def open_folder(self, sources: list[Source], options: ReadOptions, bad: BadRows) -> SGLangRows:
        """One pass over the dumps of a server, whose names say when they were written."""
        return SGLangRows(sources, options, bad, is_dump=True)


class SGLangLogReader:
    """Reads SGLang's JSON request log."""

    name = "sglang-log"
    describes = "SGLang JSON request logs (event, rid, obj, out)"

    def recognises(self, head: bytes) -> bool:
        """Whether the first line is an event of a request."""
        row = first_object(head)
        return row.get("event", b"").startswith(b'"request.') and head.lstrip()[:1] == b"{"

    def open(self, source: Source, options: ReadOptions, bad: BadRows) -> SGLangRows:
        """One pass over `source`. A tokenizer is needed only where prompts are texts."""
        return SGLangRows([source], options, bad, is_dump=False)


class SGLangRows:
    """One pass over a dump or a log."""

    def __init__(
        self, sources: list[Source], options: ReadOptions, bad: BadRows, *, is_dump: bool
    ) -> None:
        self._sources = sources
        self._tokenizer = open_tokenizer(options, bad.name) if options.tokenizer else None
        self._bad = bad
        self._is_dump = is_dump
        self.layout = Layout(1)
        self.notes: list[str] = []
        self._unanswered = 0
        self._other_length = 0
        self._others = 0

    def batches(self) -> Iterator[Batch]:
        """The rows in order of arrival."""
        yield from batches_of(self._rows(self._dumped() if self._is_dump else self._logged()))
        if self._unanswered:
            self.notes.append(
                f"{self._unanswered:,} requests were not answered (aborted, or cut off by a "
                "crash); their output length is 0"
            )
        if self._others:
            self.notes.append(
                f"{self._others:,} events of other kinds than {FINISHED} (requests that came in, "
                "say) are no requests and were passed over"
            )
        if self._other_length:
            self.notes.append(
                f"{self._other_length:,} prompts have another number of tokens than the server "
                "counted; is this the tokenizer of its model?"
            )

    def _dumped(self) -> Iterator[_Request]:
        """The requests of all dumps by their start. All of a file wait, and some of those before.

        A request that started before one already given out is refused: it ran longer than it took
        the server to finish the 4,000 that wait.
        """
        waiting: list[tuple[int | float, int, _Request]] = []
        last_ms: int | float = 0
        number = 0
        for source in self._sources:
            for request in self._in_dump(source):
                if request.time_ms < last_ms:
                    reason = "is earlier than that of a request many files before"
                    self._bad.refuse(request.line, "start", reason)
                    continue
                heappush(waiting, (request.time_ms, number, request))
                number += 1
            is_last = source is self._sources[-1]
            while len(waiting) > (0 if is_last else WAITING_REQUESTS):
                last_ms, _, request = heappop(waiting)
                self._bad.name = request.file
                yield request

    def _in_dump(self, source: Source) -> Iterator[_Request]:
        from traces.pickles import Pairs, read_pickle

        self._bad.name = source.name
        data = bytearray()
        for chunk in source.chunks():
            data += chunk
            if len(data) > LARGEST_DUMP_BYTES:
                self._bad.fatal(1, "", f"a dump of more than {LARGEST_DUMP_BYTES >> 20} MiB")
        try:
            value = read_pickle(bytes(data))
        except ValueError as error:
            self._bad.fatal(1, "", f"the pickle {error}")
        if isinstance(value, Pairs):
            value = value.get("requests")
        if not isinstance(value, list) or isinstance(value, Pairs):
            self._bad.fatal(1, "", "the pickle is no SGLang dump: it holds no list of requests")
        for line, entry in enumerate(value, 1):
            if not isinstance(entry, tuple) or len(entry) < 3:
                reason = "is no request: expected (request, answer, start, finish)"
                self._bad.refuse(line, "", reason)
            elif (start_s := _seconds(entry[2])) is None:
                self._bad.refuse(line, "start", "is no time in seconds")
            else:
                obj, out = _attributes(entry[0]), _attributes(entry[1])
                yield _Request(source.name, line, obj, out, start_s * 1000)

    def _logged(self) -> Iterator[_Request]:
        (source,) = self._sources
        order = TimeOrder(self._time_of, self._bad, self.notes)
        for record in order.sort(records_of(source, self._bad)):
            event = decode_record(_EVENT, record, self._bad)
            if event is not None:
                time_ms = record.time_ms or 0
                yield _Request(source.name, record.line, event.obj, event.out, time_ms)

    def _time_of(self, record: Record) -> Time | None:
        event = decode_record(_EVENT, record, self._bad)
        if event is None:
            return None
        if event.event != FINISHED:
            self._others += 1
            return None
        try:
            time = datetime.fromisoformat(event.timestamp)
            time_s = (time if time.tzinfo else time.replace(tzinfo=UTC)).timestamp()
        except (ValueError, OverflowError):
            self._bad.refuse(record.line, "timestamp", "is no time in ISO 8601")
            return None
        latency_s = _seconds(_attributes(event.out.get("meta_info")).get("e2e_latency"))
        if latency_s is None:
            self._bad.refuse(record.line, "out.meta_info.e2e_latency", "is no number of seconds")
            return None
        return Time("timestamp", ms_of_seconds(time_s - latency_s))

    def _rows(self, requests: Iterator[_Request]) -> Iterator[tuple[int, Row]]:
        for request in requests:
            try:
                yield request.line, self._row(request)
            except _MalformedError as error:
                self._bad.refuse(request.line, error.field, error.reason)

    def _row(self, request: _Request) -> Row:
        meta_info = _attributes(request.out.get("meta_info"))
        prompt_tokens = _count(meta_info, "prompt_tokens")
        cached_tokens = _count(meta_info, "cached_tokens")
        prompt = self._prompt(request.obj)
        if prompt_tokens is not None and prompt_tokens != len(prompt):
            if request.obj.get("input_ids") is not None:
                raise _MalformedError(
                    "input_ids", f"{len(prompt)} ids do not match prompt_tokens {prompt_tokens}"
                )
            self._other_length += 1
        row = Row(len(prompt), 0, request.time_ms, prompt)
        if cached_tokens is not None:
            if cached_tokens > (prompt_tokens or len(prompt)):
                reason = f"{cached_tokens} tokens are more than the prompt has"
                raise _MalformedError("cached_tokens", reason)
            row.cached_tokens = min(cached_tokens, len(prompt))
        session = _attributes(request.obj.get("session_params")).get("id")
        row.session = session if isinstance(session, str) else ""
        self._answer(row, request.out, _count(meta_info, "completion_tokens"))
        return row

    def _prompt(self, obj: dict[str, Any]) -> list[int]:
        ids, text = obj.get("input_ids"), obj.get("text")
        if ids is not None:
            return _ids_of(ids, "input_ids")
        if not isinstance(text, str):
            raise _MalformedError("input_ids", "is missing, and so is text")
        if self._tokenizer is None:
            reason = "only the text is there: give --tokenizer, the model's tokenizer.json"
            raise _MalformedError("input_ids", reason)
        prompt = self._tokenizer.prompt_ids(_sound(text))
        if not prompt:
            raise _MalformedError("text", NO_TOKENS)
        return prompt

    def _answer(self, row: Row, out: dict[str, Any], completion_tokens: int | None) -> None:
        ids, text = out.get("output_ids"), out.get("text")
        output_ids: list[int] = []
        if isinstance(ids, list) and ids:
            output_ids = _ids_of(ids, "output_ids")
        elif isinstance(text, str) and text and self._tokenizer is not None:
            output_ids = list(self._tokenizer.ids(_sound(text)))
        if completion_tokens is None:
            completion_tokens = len(output_ids)
            self._unanswered += not output_ids
        row.output_length = completion_tokens
        if output_ids and completion_tokens - len(output_ids) in (0, 1):
            row.output_ids = output_ids
            row.output_length = len(output_ids)


class _MalformedError(Exception):
    def __init__(self, field: str, reason: str) -> None:
        super().__init__(field, reason)
        self.field = field
        self.reason = reason


def _attributes(value: Any) -> dict[str, Any]:
    """Fields of an object, or entries of a dict, from a pickle or from JSON."""
    if isinstance(value, dict):
        return value
    if isinstance(value, list):
        return {each[0]: each[1] for each in value if _is_entry(each)}
    fields = getattr(value, "fields", None)  # of an object in a pickle
    return fields() if fields is not None else {}


def _is_entry(each: Any) -> bool:
    return isinstance(each, tuple) and len(each) == 2 and isinstance(each[0], str)


def _ids_of(value: Any, field: str) -> list[int]:
    if isinstance(value, list) and len(value) == 1 and isinstance(value[0], list):
        value = value[0]
    if not isinstance(value, list) or not value:
        raise _MalformedError(field, "expected a list of token ids")
    for index, each in enumerate(value):
        if type(each) is not int or not 0 <= each <= LARGEST_ID:
            reason = f"expected an id of 0 to {LARGEST_ID}"
            if each == "...":
                reason = "the log was cut short: log requests at level 3"
            raise _MalformedError(f"{field}[{index}]", reason)
    return value


def _count(meta_info: dict[str, Any], field: str) -> int | None:
    value = meta_info.get(field)
    if value is None or (type(value) is int and 0 <= value <= MOST_TOKENS):
        return value
    raise _MalformedError(field, "expected a number of tokens")


def _seconds(value: Any) -> int | float | None:
    """`value`, if it is a number of seconds that can be; else None."""
    if type(value) is not int and not (type(value) is float and math.isfinite(value)):
        return None
    return value if 0 <= value <= LATEST_MS // 1000 else None


def _sound(text: str) -> str:
    """`text`, unless it holds half of a surrogate pair, which tokenizers do not take."""
    try:
        text.encode()
    except UnicodeEncodeError:
        raise _MalformedError("text", "holds half of a surrogate pair") from None
    return text
