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
milliseconds where it is above 10^11. All lines have one, or none.

**Conversations**: a request whose messages start with all those of an earlier one, an assistant's
message next, follows its answer (the longest such); the text of that message may have been edited.
`session_id` or `conversation_id`, where given, names the session.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from hashlib import blake2b
from typing import Any

import msgspec

from traces.jsonstream import first_object
from traces.records import Record, Time, TimeOrder, batches_of, decode_record, records_of
from traces.rows import BadRows, Batch, Layout, ReadOptions, Row, Tokens
from traces.source import Source
from traces.texts import NO_TOKENS, Tokenizer, open_tokenizer

# A number above this counts milliseconds: as seconds it would be the year 5138.
LATEST_S = 10**11


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


class _Created(msgspec.Struct):
    created: int | float | None = None
    body: _Created | None = None


class _Times(_Created):
    timestamp: int | float | str | None = None
    response: _Created | None = None


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
        try:
            return Time(field, _ms_of(stamp))
        except ValueError as error:
            self._bad.refuse(record.line, field, str(error))
            return None

    def _rows(self, records: Iterator[Record]) -> Iterator[tuple[int, Row]]:
        # Row number and first row's number of the conversation, by the digest of all its messages.
        asked: dict[bytes, tuple[int, int]] = {}
        number = 0
        for record in records:
            call = decode_record(_CALL, record, self._bad)
            row = None if call is None else self._row(record, call, asked, number)
            if row is not None:
                yield record.line, row
                number += 1

    def _row(
        self, record: Record, call: _Call, asked: dict[bytes, tuple[int, int]], number: int
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
        before, first = -1, number
        for index, message in enumerate(request.messages):
            if index and message.role == "assistant" and digest in asked:
                before, first = asked[digest]
            text = self._text_of(message)
            prompt += tokenizer.message_ids(message.role, text)
            digest = _digest(digest, message.role, text)
        prompt += tokenizer.header_ids("assistant")
        if not prompt:
            self._bad.refuse(record.line, "messages", NO_TOKENS)
            return None
        asked[digest] = number, first
        session = call.session_id if call.session_id is not None else call.conversation_id
        row = Row(len(prompt), 0, record.time_ms, prompt, after=before)
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
