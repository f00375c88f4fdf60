"""Logs of chat-completions calls of the OpenAI API, one JSON object a line.

    {"messages": [...], ...}                                            a request body
    {"custom_id": "1", "url": "/v1/chat/completions", "body": {"messages": [...]}}       a batch
    {"timestamp": 1700000000.5, "request": {"messages": [...]}, "response": {"created": 1700000000,
     "choices": [{"message": {...}}], "usage": {"prompt_tokens": 30, "completion_tokens": 9,
     "prompt_tokens_details": {"cached_tokens": 16}}}}                  both, also in one object

Fields: the API's reference (openai/openai-openapi). Prompt: tools, then messages; `traces.texts`
says how they become tokens. Of a content's parts the texts count; images are left out, and counted.
Answer: the first choice. Lengths are those of the texts under the given tokenizer; `usage` gives
the output length where there is no text, and `cached_tokens`.

**Time**: `timestamp`, else `created`: an ISO 8601 string, or a number of seconds, or of
milliseconds where it is above 10^11. All lines have one, or none. `latency_s`, `latency_ms` or
`duration_ms`, where a line has one, says when its answer ended; else the think time of a later turn
is the time between the two arrivals, an upper bound, and a note says so.

**Conversations**: a request whose messages start with all those of an earlier one, an assistant's
message next, follows its answer (the longest such); the text of that message may have been edited.
`session_id` or `conversation_id`, where given, names the session.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from hashlib import blake2b
from typing import Annotated, Any, NamedTuple

import msgspec

from traces.jsonstream import first_object
from traces.recorded import THINK_TIME_NOTE
from traces.records import Record, Time, TimeOrder, batches_of, decode_record, records_of
from traces.rows import BadRows, Batch, Layout, ReadOptions, Row, Tokens
from traces.source import Source
from traces.texts import NO_TOKENS, Tokenizer, open_tokenizer

# A number above this counts milliseconds: as seconds it would be the year 5138.
LATEST_S = 10**11
# What a line's key is called that may hold a time.
TIME_WORDS = ("time", "date", "created", "start")

_Latency = Annotated[int, msgspec.Meta(ge=0)] | Annotated[float, msgspec.Meta(ge=0)]


class _Part(msgspec.Struct):
    text: str | None = None


class _Message(msgspec.Struct):
    role: str = "assistant"
    content: str | list[_Part] | None = None
    tool_calls: list[Any] | None = None


class _Choice(msgspec.Struct):
    message: _Message


class _CachedTokens(msgspec.Struct):
    cached_tokens: Tokens | None = None


class _Usage(msgspec.Struct):
    completion_tokens: Tokens | None = None
    prompt_tokens_details: _CachedTokens | None = None


class _Body(msgspec.Struct):
    """A request or a response, or both."""

    messages: list[_Message] | None = None
    tools: list[Any] | None = None
    choices: list[_Choice] | None = None
    usage: _Usage | None = None
    # Where a batch has the body itself.
    body: _Body | None = None


class _Call(_Body):
    request: _Body | None = None
    response: _Body | None = None
    session_id: str | int | None = None
    conversation_id: str | int | None = None
    latency_s: _Latency | None = None
    latency_ms: _Latency | None = None
    duration_ms: _Latency | None = None

    @property
    def taken_ms(self) -> int | float | None:
        """How long the call took, if the line says it."""
        if self.latency_s is not None:
            return self.latency_s * 1000
        return self.duration_ms if self.latency_ms is None else self.latency_ms


class _Created(msgspec.Struct):
    created: int | float | None = None
    body: _Created | None = None


class _Times(_Created):
    timestamp: int | float | str | None = None
    response: _Created | None = None


class _Asked(NamedTuple):
    """A row whose messages a later one may start with."""

    number: int
    # Number of the conversation's first row.
    first: int
    # When its answer ended; where that is not known, when it arrived.
    end_ms: int | float | None
    knows_end: bool


_CALL = msgspec.json.Decoder(_Call)
_TIMES = msgspec.json.Decoder(_Times)


class OpenAILogReader:
    """Reads logs of chat completions, given a tokenizer."""

    name = "openai-log"
    describes = "OpenAI chat-completions logs (messages; or request and response; with a tokenizer)"

    def recognises(self, head: bytes) -> bool:
        """Whether the first object has messages, or holds a request that has."""
        call = first_object(head)
        if call.get("messages", b"").startswith(b"["):
            return True
        inner = (call.get("request", b""), call.get("body", b""))
        return any(b'"messages"' in each for each in inner)

    def open(self, source: Source, options: ReadOptions, bad: BadRows) -> OpenAILogRows:
        """One pass over `source`. `InputError` without a tokenizer."""
        return OpenAILogRows(source, open_tokenizer(options, source.name), bad)


class OpenAILogRows:
    """One pass over a log of chat completions."""

    def __init__(self, source: Source, tokenizer: Tokenizer, bad: BadRows) -> None:
        self._source = source
        self._tokenizer = tokenizer
        self._bad = bad
        self.layout = Layout(1, timed=False)  # a log may have no times
        self.notes: list[str] = []
        self._parts_left_out = 0
        self._unanswered = 0
        # Later turns whose parent does not say when its answer ended.
        self._think_unknown = 0
        self._looked_for_time = False

    def batches(self) -> Iterator[Batch]:
        """The rows in order of arrival."""
        order = TimeOrder(self._time_of, self._bad, self.notes)
        yield from batches_of(self._rows(order.sort(records_of(self._source, self._bad))))
        if self._parts_left_out:
            self.notes.append(
                f"{self._parts_left_out:,} parts of messages are no text (images, say) "
                "and are left out of the prompts"
            )
        if self._unanswered:
            self.notes.append(
                f"{self._unanswered:,} requests have neither an answer nor usage in the log; "
                "their output length is 0"
            )
        if self._think_unknown:
            self.notes.append(THINK_TIME_NOTE)

    def _time_of(self, record: Record) -> Time | None:
        times = decode_record(_TIMES, record, self._bad)
        if times is None:
            return None
        stamp = times.timestamp
        field = "timestamp"
        if stamp is None:
            response = times.response or times
            response = response.body or response
            stamp = times.created if times.created is not None else response.created
            field = "timestamp" if stamp is None else "created"
        if stamp is None and not self._looked_for_time:
            self._note_other_times(record)
        self._looked_for_time = True
        try:
            return Time(field, _ms_of(stamp))
        except ValueError as error:
            self._bad.refuse(record.line, field, str(error))
            return None

    def _note_other_times(self, record: Record) -> None:
        """A note on the first row's keys that look like times, where it has none that is read."""
        keys = [key for key in first_object(record.raw) if any(word in key for word in TIME_WORDS)]
        if keys:
            self.notes.append(
                f"the rows have no timestamp or created; {', '.join(keys[:3])} "
                f"{'is' if len(keys) == 1 else 'are'} not read as a time"
            )

    def _rows(self, records: Iterator[Record]) -> Iterator[tuple[int, Row]]:
        # By the digest of all messages of the row.
        asked: dict[bytes, _Asked] = {}
        number = 0
        for record in records:
            call = decode_record(_CALL, record, self._bad)
            row = None if call is None else self._row(record, call, asked, number)
            if row is not None:
                yield record.line, row
                number += 1

    def _row(
        self, record: Record, call: _Call, asked: dict[bytes, _Asked], number: int
    ) -> Row | None:
        """Row `number`, which is entered in `asked`; None if it was refused."""
        request = call.request or call
        request = request.body or request
        if not request.messages:
            self._bad.refuse(record.line, "messages", "no message is there")
            return None
        tokenizer = self._tokenizer
        prompt: list[int] = []
        tools = _json(request.tools)
        if tools:
            prompt += tokenizer.message_ids("tools", tools)
        digest = _digest(b"", "tools", tools)
        parent: _Asked | None = None
        for index, message in enumerate(request.messages):
            if index and message.role == "assistant":
                parent = asked.get(digest, parent)
            text = self._text_of(message)
            prompt += tokenizer.message_ids(message.role, text)
            digest = _digest(digest, message.role, text)
        prompt += tokenizer.header_ids("assistant")
        if not prompt:
            self._bad.refuse(record.line, "messages", NO_TOKENS)
            return None
        now_ms, taken_ms = record.time_ms, call.taken_ms
        first = number if parent is None else parent.first
        end_ms = now_ms if now_ms is None or taken_ms is None else now_ms + taken_ms
        asked[digest] = _Asked(number, first, end_ms, taken_ms is not None)
        session = call.session_id if call.session_id is not None else call.conversation_id
        row = Row(len(prompt), 0, now_ms, prompt)
        if parent is not None:
            row.after = parent.number
            if now_ms is not None and parent.end_ms is not None:
                row.delay = max(0, round(now_ms - parent.end_ms, 3))
                self._think_unknown += not parent.knows_end
        row.session = f"conversation {first}" if session is None else str(session)
        self._answer(row, call)
        return row

    def _answer(self, row: Row, call: _Call) -> None:
        """What the response says: the answer, or its length, and the cached tokens."""
        response = call.response or call
        response = response.body or response
        usage = response.usage or call.usage
        details = usage.prompt_tokens_details if usage is not None else None
        if details is not None and details.cached_tokens is not None:
            # Counted by the server, with its template.
            row.cached_tokens = min(details.cached_tokens, row.input_length)
        text = self._text_of(response.choices[0].message) if response.choices else ""
        if text:
            row.output_ids = list(self._tokenizer.ids(text))
            row.output_length = len(row.output_ids)
        elif usage is not None and usage.completion_tokens is not None:
            row.output_length = usage.completion_tokens
        else:
            self._unanswered += 1

    def _text_of(self, message: _Message) -> str:
        content = message.content
        if isinstance(content, list):
            texts = [part.text for part in content if part.text is not None]
            self._parts_left_out += len(content) - len(texts)
            content = "".join(texts)
        return (content or "") + _json(message.tool_calls)


def _digest(before: bytes, role: str, text: str) -> bytes:
    """Stands for all messages up to this one."""
    content = f"{len(role)} {role}{text}".encode()
    return blake2b(before + content, digest_size=16).digest()


def _json(value: list[Any] | None) -> str:
    return msgspec.json.encode(value).decode() if value else ""


def _ms_of(stamp: int | float | str | None) -> int | float | None:
    if isinstance(stamp, str):
        try:
            time = datetime.fromisoformat(stamp)
            if time.tzinfo is None:
                time = time.replace(tzinfo=UTC)
            return time.timestamp() * 1000
        except (ValueError, OverflowError):
            raise ValueError(f"{stamp[:40]!r} is no time in ISO 8601") from None
    if stamp is None or abs(stamp) > LATEST_S:
        return stamp
    return stamp * 1000
