"""Conversations as ShareGPT has them: each question is a request, after the answer before it.

    [{"id": "QWJhYvA_0", "conversations": [
        {"from": "human", "value": "..."}, {"from": "gpt", "value": "..."}, ...]}, ...]

One array, or one conversation a line; `role` and `content` may stand for `from` and `value`. The
prompt of a request is everything said so far (`traces.texts` says how it becomes tokens), its
answer what "gpt" says next. There are no times: a conversation's requests come one after the other,
and when conversations start is up to the replay.

What "gpt" says without having been asked only lengthens later prompts. A question that nobody
answers is a request with no output tokens. Both occur in ShareGPT's own file
(ShareGPT_V3_unfiltered_cleaned_split.json), as do conversations with nothing in them, which are
counted and give no request.
"""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from traces.jsonstream import first_object
from traces.records import Record, batches_of, decode_record, records_of
from traces.rows import BadRows, Batch, Layout, ReadOptions, Row
from traces.source import Source
from traces.texts import NO_TOKENS, ROLES, Tokenizer, open_tokenizer


class _Turn(msgspec.Struct):
    speaker: str = msgspec.field(default="", name="from")
    value: str | None = None
    role: str = ""
    content: str | None = None


class _Conversation(msgspec.Struct):
    conversations: list[_Turn]
    id: str | int | None = None


_CONVERSATION = msgspec.json.Decoder(_Conversation)


class ShareGPTReader:
    """Reads ShareGPT conversations, given a tokenizer."""

    name = "sharegpt"
    describes = "ShareGPT conversations (id, conversations of from and value; with a tokenizer)"

    def recognises(self, head: bytes) -> bool:
        """Whether the first object is a conversation."""
        return first_object(head).get("conversations", b"").startswith(b"[")

    def open(self, source: Source, options: ReadOptions, bad: BadRows) -> ShareGPTRows:
        """One pass over `source`. `InputError` without a tokenizer."""
        return ShareGPTRows(source, open_tokenizer(options, source.name), bad)


class ShareGPTRows:
    """One pass over a file of conversations."""

    def __init__(self, source: Source, tokenizer: Tokenizer, bad: BadRows) -> None:
        self._source = source
        self._tokenizer = tokenizer
        self._bad = bad
        self.layout = Layout(1, timed=False)
        self.notes: list[str] = []

    def batches(self) -> Iterator[Batch]:
        """The rows, conversation by conversation."""
        yield from batches_of(self._rows())

    def _rows(self) -> Iterator[tuple[int, Row]]:
        number = unasked = 0
        for index, record in enumerate(records_of(self._source, self._bad)):
            conversation = decode_record(_CONVERSATION, record, self._bad)
            if conversation is None:
                continue
            turns = self._turns(record, conversation)
            if turns is None:
                continue
            session = str(index if conversation.id is None else conversation.id)
            first = number
            for row in self._requests(turns, session):
                if not row.hash_ids:
                    self._bad.refuse(record.line, "conversations", NO_TOKENS)
                    break
                row.after = number - 1 if number > first else -1
                yield record.line, row
                number += 1
            unasked += number == first
        if unasked:
            self.notes.append(f"{unasked:,} conversations hold no question and give no request")

    def _turns(self, record: Record, conversation: _Conversation) -> list[tuple[str, str]] | None:
        """(role, text) of each turn; None if one is malformed, and then of the whole."""
        turns: list[tuple[str, str]] = []
        for index, turn in enumerate(conversation.conversations):
            role = turn.speaker or turn.role
            text = turn.content if turn.value is None else turn.value
            if not role or text is None:
                field = "from" if not role else "value"
                self._bad.refuse(record.line, f"conversations[{index}].{field}", "is missing")
                return None
            turns.append((ROLES.get(role, role), text))
        return turns

    def _requests(self, turns: list[tuple[str, str]], session: str) -> Iterator[Row]:
        tokenizer = self._tokenizer
        said: list[int] = []
        is_asked = False
        for role, text in turns:
            if role == "assistant" and is_asked:
                prompt = [*said, *tokenizer.header_ids(role)]
                answer = list(tokenizer.ids(text))
                yield Row(
                    len(prompt), len(answer), None, prompt, output_ids=answer, session=session
                )
                is_asked = False
            is_asked = is_asked or role == "user"
            said += tokenizer.message_ids(role, text)
        if is_asked:
            said += tokenizer.header_ids("assistant")
            yield Row(len(said), 0, None, said, session=session)
