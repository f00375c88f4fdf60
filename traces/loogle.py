"""Documents with questions: every question is a request that starts with its document.

    {"input": "<document>", "title": "...", "qa_pairs": "[{'Q': ..., 'A': ...}, ...]", "output": ""}
    {"context": "<document>", "question" or "input": "...", "answers": ["..."]}
    {"contexts": {"<id>": "<document>"}, "queries": [{"context": "<id>", "question": "...",
     "reference_answer": "..."}]}

The first is LooGLE's (bigai-nlco/LooGLE), one object a line; its pairs are a list, or one written
as text in JSON or Python, which is only parsed, never evaluated. Without questions ("none") the
request is for a summary, and `output` is the answer. The second is LongBench's. The third, a single
object, is what SGLang's benchmark/hicache/bench_long_context.py reads. Prompts are as that and
data_processing.py beside it build them: "Input: " document " Question: " question for the first,
document and question for the others, each tokenized for itself (`traces.texts`).

A document is a session, but its questions do not wait for each other. There are no times.
"""

from __future__ import annotations

import ast
import warnings
from collections.abc import Iterator
from contextlib import closing
from hashlib import blake2b
from typing import Any

import msgspec

from traces.jsonlines import UNDECODABLE, plain
from traces.jsonstream import array_elements, first_object
from traces.records import Record, batches_of, decode_record, records_of
from traces.rows import BadRows, Batch, Layout, ReadOptions, Row
from traces.source import Source
from traces.texts import NO_TOKENS, Tokenizer, open_tokenizer

SUMMARIZE = "Please summarize the input"
LONGEST_PAIRS = 1 << 20


class _Pair(msgspec.Struct):
    question: str = msgspec.field(name="Q")
    answer: str | int | float | list[Any] | None = msgspec.field(default="", name="A")


class _Document(msgspec.Struct):
    input: str = ""
    context: str | None = None
    question: str | None = None
    title: str | None = None
    qa_pairs: str | list[_Pair] | None = None
    output: str | None = None
    answer: str | None = None
    answers: list[str] | None = None


class _Query(msgspec.Struct):
    context: str | int
    question: str
    reference_answer: str = ""


_DOCUMENT = msgspec.json.Decoder(_Document)
_QUERY = msgspec.json.Decoder(_Query)
_CONTEXTS = msgspec.json.Decoder(dict[str, str] | list[str])


class LooGLEReader:
    """Reads documents with questions, given a tokenizer."""

    name = "loogle"
    describes = "LooGLE-style documents with questions (input, qa_pairs; with a tokenizer)"

    def recognises(self, head: bytes) -> bool:
        """Whether the first object is a document with questions, or a set of them."""
        row = first_object(head)
        if "qa_pairs" in row or ("contexts" in row and "queries" in row):
            return True
        is_text = {key for key in row if row[key].startswith(b'"')}
        if "context" in is_text and ("question" in is_text or "input" in is_text):
            return True
        # A long document fills the head, and its questions stand behind it.
        only = next(iter(row), "") if len(row) == 1 else ""
        is_cut_off = only in is_text and not row[only].endswith(b'"')
        return only in ("contexts", "queries") or (is_cut_off and only in ("input", "context"))

    def open(self, source: Source, options: ReadOptions, bad: BadRows) -> LooGLERows:
        """One pass over `source`. `InputError` without a tokenizer."""
        return LooGLERows(source, open_tokenizer(options, source.name), bad)


class LooGLERows:
    """One pass over documents with questions."""

    def __init__(self, source: Source, tokenizer: Tokenizer, bad: BadRows) -> None:
        self._source = source
        self._tokenizer = tokenizer
        self._bad = bad
        self.layout = Layout(1, timed=False)
        self.notes: list[str] = []

    def batches(self) -> Iterator[Batch]:
        """The rows in the order of the file."""
        row = first_object(self._source.head())
        is_set = "contexts" in row or "queries" in row
        yield from batches_of(self._of_set() if is_set else self._of_documents())

    def _of_documents(self) -> Iterator[tuple[int, Row]]:
        for record in records_of(self._source, self._bad):
            document = decode_record(_DOCUMENT, record, self._bad)
            if document is None:
                continue
            if document.context is not None:
                start, text, question_start = "", document.context, ""
                pairs = self._single_pair(record, document)
            else:
                start, text, question_start = "Input: ", document.input, " Question: "
                pairs = self._pairs(record, document)
            session = document.title or blake2b(text.encode(), digest_size=8).hexdigest()
            prefix = self._tokenizer.ids(start + text)
            for question, answer in pairs:
                yield from self._row(
                    record.line, prefix, question_start + question, answer, session
                )

    def _of_set(self) -> Iterator[tuple[int, Row]]:
        """The queries wait in memory where they stand in front of their contexts."""
        fields: dict[str, bytes] = {}
        contexts: dict[str, str] | list[str] | None = None
        early: list[Record] = []
        with closing(self._source.chunks()) as chunks:
            for line, raw in array_elements(chunks, "queries", self._bad, fields):
                if contexts is None and "contexts" in fields:
                    contexts = self._contexts(fields)
                if contexts is None:
                    early.append(Record(line, raw))
                else:
                    yield from self._query(Record(line, raw), contexts)
        if early:
            contexts = self._contexts(fields)
            for record in early:
                yield from self._query(record, contexts)

    def _contexts(self, fields: dict[str, bytes]) -> dict[str, str] | list[str]:
        if "contexts" not in fields:
            self._bad.fatal(1, "contexts", "is missing")
        try:
            return _CONTEXTS.decode(fields["contexts"])
        except UNDECODABLE:
            self._bad.fatal(1, "contexts", "expected texts, by id or in a list")

    def _query(
        self, record: Record, contexts: dict[str, str] | list[str]
    ) -> Iterator[tuple[int, Row]]:
        query = decode_record(_QUERY, record, self._bad)
        if query is None:
            return
        key = query.context
        text = None
        if isinstance(contexts, dict):
            text = contexts.get(str(key))
        elif isinstance(key, int) and 0 <= key < len(contexts):
            text = contexts[key]
        if text is None:
            self._bad.refuse(record.line, "context", f"there is no context {str(key)[:40]!r}")
            return
        prefix = self._tokenizer.ids(text)
        yield from self._row(
            record.line, prefix, query.question, query.reference_answer, f"context {key}"
        )

    def _row(
        self, line: int, prefix: Any, question: str, answer: str, session: str
    ) -> Iterator[tuple[int, Row]]:
        prompt = [*prefix, *self._tokenizer.ids(question)]
        if not prompt:
            self._bad.refuse(line, "question", NO_TOKENS)
            return
        output = list(self._tokenizer.ids(answer))
        yield (
            line,
            Row(len(prompt), len(output), None, prompt, output_ids=output, session=session),
        )

    def _single_pair(self, record: Record, document: _Document) -> list[tuple[str, str]]:
        question = document.input if document.question is None else document.question
        if not question:
            self._bad.refuse(record.line, "question", "is missing")
            return []
        answers = document.answers or [document.answer or document.output or ""]
        return [(question, answers[0])]

    def _pairs(self, record: Record, document: _Document) -> list[tuple[str, str]]:
        """The questions and answers; none if they were refused."""
        pairs = document.qa_pairs
        if not document.input:
            self._bad.refuse(record.line, "input", "no document is there")
            return []
        if document.question is not None:
            return self._single_pair(record, document)
        if isinstance(pairs, str) and pairs.strip() not in ("", "none"):
            try:
                pairs = _parsed(pairs)
            except ValueError as error:
                self._bad.refuse(record.line, "qa_pairs", str(error))
                return []
        if not pairs or isinstance(pairs, str):
            return [(SUMMARIZE, document.output or "")]
        return [(pair.question, _answer(pair)) for pair in pairs]


def _answer(pair: _Pair) -> str:
    if isinstance(pair.answer, str):
        return pair.answer
    return "" if pair.answer is None else msgspec.json.encode(pair.answer).decode()


def _parsed(text: str) -> list[_Pair]:
    """Pairs written as JSON, or as a Python literal. `ValueError` for anything else."""
    if len(text) > LONGEST_PAIRS:
        raise ValueError("the text is longer than 1 MiB")
    try:
        value = msgspec.json.decode(text)
    except UNDECODABLE:
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # of escapes, such as "\d"
                value = ast.literal_eval(text)
        except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError):
            raise ValueError("the text is no list of questions and answers") from None
    try:
        pairs = msgspec.convert(value, list[_Pair])
        # A literal may hold what JSON cannot: complex numbers, halves of surrogate pairs.
        msgspec.json.encode(pairs)
    except (TypeError, UnicodeEncodeError, OverflowError):
        raise ValueError("the text holds what JSON could not") from None
    except (msgspec.ValidationError, RecursionError) as error:
        raise ValueError(plain(str(error))) from None
    return pairs
