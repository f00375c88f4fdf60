"""Texts become tokens so that a turn's prompt starts with the prompt and the answer before it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from recorded_helpers import NO_OPTIONS, opened, read, refusal, rows_of, write
from text_helpers import read_leaving_out, text_of, tokenizer_options

from hicache.errors import InputError
from traces.loogle import LooGLEReader
from traces.openai_log import OpenAILogReader
from traces.recorded import THINK_TIME_NOTE
from traces.rows import BadRows, ReadOptions, Row
from traces.sharegpt import ShareGPTReader
from traces.source import Source
from traces.texts import Tokenizer

SHAREGPT, OPENAI, LOOGLE = ShareGPTReader(), OpenAILogReader(), LooGLEReader()

# A start that merges with the end of what goes before it.
TURNS = [
    ("human", "how long is the cache"),
    ("gpt", "keeps what the server"),
    ("human", " has seen the page"),
    ("gpt", ""),
    ("human", "the answer"),
    ("gpt", "of the server\n"),
]


@pytest.fixture
def options(tmp_path: Path) -> ReadOptions:
    return tokenizer_options(tmp_path)


def conversation(*turns: tuple[str, str], name: str = "c") -> dict[str, Any]:
    return {"id": name, "conversations": [{"from": who, "value": text} for who, text in turns]}


def check_chain(rows: list[Row]) -> None:
    """Each row's prompt starts with the prompt and the answer of the row it waits for."""
    for row in rows:
        assert len(row.hash_ids) == row.input_length
        assert len(row.output_ids or []) in (0, row.output_length)
        if row.after >= 0:
            before = rows[row.after]
            start = [*before.hash_ids, *(before.output_ids or [])]
            assert row.hash_ids[: len(start)] == start
            assert row.session == before.session


# --- ShareGPT


def test_every_question_is_a_request_behind_the_answer_before_it(
    tmp_path: Path, options: ReadOptions
) -> None:
    path = write(tmp_path / "a", json.dumps([conversation(*TURNS), conversation(*TURNS, name="d")]))
    rows = read(SHAREGPT, path, options)
    assert [row.after for row in rows] == [-1, 0, 1, -1, 3, 4]
    assert [row.session for row in rows] == ["c"] * 3 + ["d"] * 3
    assert {row.timestamp for row in rows} == {None}
    check_chain(rows)
    assert text_of(tmp_path, rows[0].hash_ids) == (
        "<|user|>\nhow long is the cache\n<|assistant|>\n"
    )
    assert text_of(tmp_path, rows[0].output_ids or []) == "keeps what the server"
    assert rows[1].output_length == 0  # an empty answer
    assert rows[2].hash_ids == rows[5].hash_ids


def test_truncation_and_padding_of_the_tokenizer_file_are_off(
    tmp_path: Path, options: ReadOptions
) -> None:
    ids = Tokenizer(options.tokenizer).ids("the cache keeps " * 50)
    assert text_of(tmp_path, list(ids)) == "the cache keeps " * 50
    assert len(Tokenizer(options.tokenizer).ids("the")) < 8


def test_lines_hold_conversations_too_and_role_and_content_will_do(
    tmp_path: Path, options: ReadOptions
) -> None:
    chat = [
        {"role": "system", "content": "the server"},
        {"role": "user", "content": "how"},
        {"role": "assistant", "content": "the page"},
    ]
    lines = [json.dumps({"conversations": chat}), json.dumps(conversation(*TURNS))]
    rows = read(SHAREGPT, write(tmp_path / "a", "\n".join(lines)), options)
    assert [row.session for row in rows] == ["0", "c", "c", "c"]
    assert text_of(tmp_path, rows[0].hash_ids) == (
        "<|system|>\nthe server\n<|user|>\nhow\n<|assistant|>\n"
    )


def test_answers_nobody_asked_for_are_context_and_open_questions_have_no_answer(
    tmp_path: Path, options: ReadOptions
) -> None:
    unasked = conversation(("gpt", "the page"), ("human", "how"), ("gpt", "a"), ("gpt", "b"))
    asked = conversation(("human", "how"), ("human", "long"))
    empty = conversation()
    stream = opened(SHAREGPT, write(tmp_path / "a", json.dumps([unasked, asked, empty])), options)
    first, second = rows_of(stream)
    assert text_of(tmp_path, first.hash_ids).startswith("<|assistant|>\nthe page\n<|user|>\nhow")
    assert (text_of(tmp_path, first.output_ids or []), first.after) == ("a", -1)
    assert (second.output_length, second.output_ids, second.after) == (0, None, -1)
    assert stream.notes == ["1 conversations hold no question and give no request"]


BAD_CONVERSATIONS = {
    '{"conversations": [{"from": "human"}]}': "conversations[0].value: is missing",
    '{"conversations": [{"value": "a"}]}': "conversations[0].from: is missing",
    '{"conversations": [{"from": "human", "value": 3}]}': "conversations[0].value: expected str",
    '{"conversations": null}': "conversations: expected array, got null",
    '{"id": "x"}': "conversations: is missing",
    '{"conversations": [{"from": "human", "value": "\\ud800"}]}': "",
    "7": "expected object, got int",
    "[1}": "",
}


@pytest.mark.parametrize("text", BAD_CONVERSATIONS)
def test_a_malformed_conversation_is_one_error_or_is_left_out(
    tmp_path: Path, options: ReadOptions, text: str
) -> None:
    good = json.dumps(conversation(("human", "how"), ("gpt", "long")))
    path = write(tmp_path / "a", f"[{good},\n{text},\n{good}]")
    message = refusal(SHAREGPT, path, options)
    assert message.startswith("FILE, line 2")
    assert BAD_CONVERSATIONS[text] in message
    rows, bad = read_leaving_out(SHAREGPT, path, options)
    assert [row.after for row in rows] == [-1, -1]
    assert bad.count == 1


def test_an_array_that_is_cut_off_is_an_error_even_where_rows_are_skipped(
    tmp_path: Path, options: ReadOptions
) -> None:
    path = write(tmp_path / "a", json.dumps([conversation(*TURNS)] * 2)[:-30])
    with pytest.raises(InputError, match="line 1: the JSON is cut off"):
        read_leaving_out(SHAREGPT, path, options)


@settings(deadline=None, max_examples=60)
@given(
    st.lists(
        st.tuples(
            st.sampled_from(["human", "gpt", "system"]),
            st.text(st.characters(exclude_categories=["Cs"]), max_size=20),
        ),
        max_size=8,
    )
)
def test_any_conversation_is_a_chain(
    tmp_path_factory: pytest.TempPathFactory, turns: list[tuple[str, str]]
) -> None:
    folder = tmp_path_factory.getbasetemp()
    path = write(folder / "any-conversation", json.dumps([conversation(*turns)]))
    rows = rows_of(SHAREGPT.open(Source(path), tokenizer_options(folder), BadRows("F")))
    check_chain(rows)
    asked = [who for who, _ in turns if who != "system"]
    before = ["gpt", *asked]
    assert len(rows) == sum(
        who == "human" and last == "gpt" for last, who in zip(before, asked, strict=False)
    )
    if rows:
        check_chain(rows)


# --- OpenAI


def call(*messages: tuple[str, Any], **more: Any) -> dict[str, Any]:
    return {"messages": [{"role": who, "content": text} for who, text in messages], **more}


def answered(request: dict[str, Any], text: str | None, created: Any, **usage: Any) -> dict:
    message = {"role": "assistant", "content": text}
    return {
        "request": request,
        "response": {"created": created, "choices": [{"message": message}], "usage": usage},
    }


def lines(*rows: dict[str, Any]) -> str:
    return "".join(json.dumps(row) + "\n" for row in rows)


def test_conversations_are_told_by_their_prefix(tmp_path: Path, options: ReadOptions) -> None:
    system = ("system", "the server")
    one = [system, ("user", "how")]
    two = [*one, ("assistant", "the page"), ("user", "long")]
    three = [*two, ("assistant", "the answer"), ("user", "is it")]
    other = [system, ("user", "what")]
    path = write(
        tmp_path / "a",
        lines(
            answered(call(*one), "the page", 100),
            answered(call(*other), "the cache", 101),
            answered(call(*two), "the answer", 102),
            answered(call(*one), "again", 103),
            answered(call(*three), "the end", 104),
        ),
    )
    rows = read(OPENAI, path, options)
    assert [row.after for row in rows] == [-1, -1, 0, -1, 2]
    assert [row.session for row in rows] == [f"conversation {n}" for n in (0, 1, 0, 3, 0)]
    assert [row.timestamp for row in rows] == [100_000, 101_000, 102_000, 103_000, 104_000]
    check_chain(rows)
    assert text_of(tmp_path, rows[4].output_ids or []) == "the end"


def test_requests_that_share_only_their_start_are_no_conversation(
    tmp_path: Path, options: ReadOptions
) -> None:
    path = write(tmp_path / "a", lines(call(("user", "a")), call(("user", "a"), ("user", "b"))))
    assert [row.after for row in read(OPENAI, path, options)] == [-1, -1]


def test_usage_gives_the_cached_tokens_and_the_length_of_an_unknown_answer(
    tmp_path: Path, options: ReadOptions
) -> None:
    request = call(("user", "how long is the page"))
    details = {"prompt_tokens_details": {"cached_tokens": 5}}
    path = write(
        tmp_path / "a",
        lines(
            answered(request, None, 1, completion_tokens=9, prompt_tokens=20, **details),
            answered(request, "the page", 1, completion_tokens=90, prompt_tokens=20),
        ),
    )
    first, second = read(OPENAI, path, options)
    assert (first.output_length, first.output_ids, first.cached_tokens) == (9, None, 5)
    assert second.output_length == len(second.output_ids or []) < 9
    assert second.cached_tokens == -1


def test_batches_bodies_and_responses_in_one_object_are_read(
    tmp_path: Path, options: ReadOptions
) -> None:
    request = call(("user", "how"))
    batch = {"custom_id": "1", "url": "/v1/chat/completions", "body": request}
    both = {**request, "choices": [{"message": {"content": "long"}}]}
    wrapped = {"request": batch, "response": {"status_code": 200, "body": {"choices": []}}}
    for row, answer in ((request, ""), (batch, ""), (both, "long"), (wrapped, "")):
        stream = opened(OPENAI, write(tmp_path / "a", lines(row)), options)
        (found,) = rows_of(stream)
        assert text_of(tmp_path, found.hash_ids) == "<|user|>\nhow\n<|assistant|>\n"
        assert text_of(tmp_path, found.output_ids or []) == answer
        assert any("output length is 0" in note for note in stream.notes) == (not answer)


def test_texts_of_parts_tools_and_tool_calls_count_and_images_are_left_out(
    tmp_path: Path, options: ReadOptions
) -> None:
    parts = [{"type": "text", "text": "how"}, {"type": "image_url", "image_url": {"url": "x"}}]
    row = call(("user", parts), tools=[{"type": "function"}], session_id="s")
    row["messages"].append({"role": "assistant", "content": None, "tool_calls": [{"id": 1}]})
    stream = opened(OPENAI, write(tmp_path / "a", lines(row)), options)
    (found,) = rows_of(stream)
    assert text_of(tmp_path, found.hash_ids) == (
        '<|tools|>\n[{"type":"function"}]\n<|user|>\nhow\n<|assistant|>\n[{"id":1}]\n'
        "<|assistant|>\n"
    )
    assert found.session == "s"
    assert stream.notes[0].startswith("1 parts of messages are no text")


@pytest.mark.parametrize(
    "stamp", [1_700_000_000, 1_700_000_000_000, "2023-11-14T22:13:20Z", "2023-11-14T22:13:20"]
)
def test_times_are_seconds_milliseconds_or_iso(
    tmp_path: Path, options: ReadOptions, stamp: Any
) -> None:
    path = write(tmp_path / "a", lines(call(("user", "how"), timestamp=stamp)))
    assert read(OPENAI, path, options)[0].timestamp == 1_700_000_000_000


def test_a_log_in_the_order_of_the_answers_is_sorted(tmp_path: Path, options: ReadOptions) -> None:
    one, two = [("user", "how")], [("user", "how"), ("assistant", "a"), ("user", "long")]
    path = write(tmp_path / "a", lines(answered(call(*two), "b", 9), answered(call(*one), "a", 5)))
    stream = opened(OPENAI, path, options)
    assert [(row.timestamp, row.after) for row in rows_of(stream)] == [(5000, -1), (9000, 0)]
    assert stream.notes[0].startswith("1 request came after later ones")


def test_think_times_are_those_of_the_log_or_the_time_between_two_arrivals(
    tmp_path: Path, options: ReadOptions
) -> None:
    one, two = [("user", "how")], [("user", "how"), ("assistant", "a"), ("user", "long")]
    later = answered(call(*two), "b", 9)
    for taken, delay in (({}, 4000), ({"latency_s": 1.5}, 2500), ({"duration_ms": 9000}, 0)):
        first = answered(call(*one), "a", 5) | taken
        stream = opened(OPENAI, write(tmp_path / "a", lines(first, later)), options)
        assert [row.delay for row in rows_of(stream)] == [0, delay]
        assert (THINK_TIME_NOTE in stream.notes) == (not taken)


def test_a_time_under_another_name_is_not_passed_over_in_silence(
    tmp_path: Path, options: ReadOptions
) -> None:
    row = call(("user", "how"), start_time="2023-11-14T22:13:20Z")
    stream = opened(OPENAI, write(tmp_path / "a", lines(row, row)), options)
    assert [row.timestamp for row in rows_of(stream)] == [None, None]
    assert stream.notes[0] == (
        "the rows have no timestamp or created; start_time is not read as a time"
    )


BAD_CALLS = {
    '{"messages": []}': "messages: no message is there",
    '{"messages": "how"}': "messages: expected array | null, got str",
    '{"messages": [{"role": "user", "content": 3}]}': "messages[0].content: expected str",
    '{"messages": [{"role": 3, "content": "a"}]}': "messages[0].role: expected str, got int",
    '{"messages": [{"role": "user", "content": "a"}': "content: the JSON is cut off",
    '{"prompt": "how"}': "messages: no message is there",
    '{"messages": [{"content": "a"}], "timestamp": "soon"}': "timestamp: 'soon' is no time",
    '{"messages": [{"content": "a"}], "timestamp": -1}': "timestamp: is not in the rows before",
    '{"messages": [{"content": "a"}], "usage": {"completion_tokens": -1}}': (
        "usage.completion_tokens: expected int >= 0"
    ),
}


@pytest.mark.parametrize("text", BAD_CALLS)
def test_a_malformed_call_is_one_error_or_is_left_out(
    tmp_path: Path, options: ReadOptions, text: str
) -> None:
    good = json.dumps(call(("user", "how")))
    path = write(tmp_path / "a", f"{good}\n{text}\n{good}\n")
    message = refusal(OPENAI, path, options)
    assert message.startswith("FILE, line 2")
    assert BAD_CALLS[text] in message
    rows, bad = read_leaving_out(OPENAI, path, options)
    assert (len(rows), bad.count) == (2, 1)


# --- LooGLE

PAIRS = [
    {"Q": "how long?", "A": "a page", "S": ["x"]},
    {"Q": "What's seen?", "A": "the server"},
]


@pytest.mark.parametrize(
    "pairs", [PAIRS, json.dumps(PAIRS), repr(PAIRS), r"[{'Q': 'a\d', 'A': 1}]"]
)
def test_every_question_of_a_document_starts_with_the_document(
    tmp_path: Path, options: ReadOptions, pairs: Any
) -> None:
    row = {"input": "the cache keeps it", "title": "T", "qa_pairs": pairs, "output": ""}
    rows = read(LOOGLE, write(tmp_path / "a", lines(row)), options)
    texts = [text_of(tmp_path, row.hash_ids) for row in rows]
    assert texts == [
        f"Input: the cache keeps it Question: {question}"
        for question in (["a\\d"] if "\\d" in pairs else ["how long?", "What's seen?"])
    ]
    assert {row.session for row in rows} == {"T"}
    assert {row.after for row in rows} == {-1}
    answers = [text_of(tmp_path, row.output_ids or []) for row in rows]
    assert answers == (["1"] if "\\d" in pairs else ["a page", "the server"])
    shared = Tokenizer(options.tokenizer).ids("Input: the cache keeps it")
    assert all(row.hash_ids[: len(shared)] == shared for row in rows)


def test_a_document_without_questions_is_to_be_summarized(
    tmp_path: Path, options: ReadOptions
) -> None:
    row = {"input": "the cache", "qa_pairs": "none", "output": "the page"}
    (found,) = read(LOOGLE, write(tmp_path / "a", json.dumps([row])), options)
    assert text_of(tmp_path, found.hash_ids).endswith(" Question: Please summarize the input")
    assert text_of(tmp_path, found.output_ids or []) == "the page"


def test_a_question_beside_its_context_is_one_request(tmp_path: Path, options: ReadOptions) -> None:
    row = {"input": " how long", "context": "the cache", "answers": ["a page", "two"]}
    path = write(tmp_path / "a", lines(row, {**row, "question": " what"}))
    first, second = read(LOOGLE, path, options)
    assert text_of(tmp_path, first.hash_ids) == "the cache how long"
    assert text_of(tmp_path, second.hash_ids) == "the cache what"
    assert first.session == second.session != ""


@pytest.mark.parametrize("queries_first", [False, True])
@pytest.mark.parametrize("contexts", [{"0": "the cache", "1": "a page"}, ["the cache", "a page"]])
def test_queries_name_their_contexts(
    tmp_path: Path, options: ReadOptions, contexts: Any, queries_first: bool
) -> None:
    queries = [{"context": n, "question": " how", "reference_answer": "long"} for n in (1, 0, 1)]
    document = {"contexts": contexts, "queries": queries}
    if queries_first:
        document = dict(reversed(document.items()))
    rows = read(LOOGLE, write(tmp_path / "a", json.dumps(document, indent=1)), options)
    assert [text_of(tmp_path, row.hash_ids) for row in rows] == [
        "a page how",
        "the cache how",
        "a page how",
    ]
    assert [row.session for row in rows] == ["context 1", "context 0", "context 1"]


BAD_DOCUMENTS = {
    '{"input": "", "qa_pairs": "none"}': "input: no document is there",
    '{"input": 3, "qa_pairs": "none"}': "input: expected str, got int",
    '{"input": "a", "qa_pairs": "__import__(\'os\').abort()"}': "qa_pairs: the text is no list",
    '{"input": "a", "qa_pairs": "[{\'A\': 1}]"}': "qa_pairs: ",
    '{"input": "a", "qa_pairs": [{"Q": 3}]}': "qa_pairs[0].Q: expected str, got int",
    '{"context": "a"}': "question: is missing",
    '{"input": "a", "qa_pairs": "' + "(" * 1000 + '"}': "qa_pairs: the text is no list",
}


@pytest.mark.parametrize("text", BAD_DOCUMENTS)
def test_a_malformed_document_is_one_error_or_is_left_out(
    tmp_path: Path, options: ReadOptions, text: str
) -> None:
    good = json.dumps({"input": "the cache", "qa_pairs": PAIRS})
    path = write(tmp_path / "a", f"{good}\n{text}\n{good}\n")
    message = refusal(LOOGLE, path, options)
    assert message.startswith("FILE, line 2, ")
    assert BAD_DOCUMENTS[text] in message
    rows, bad = read_leaving_out(LOOGLE, path, options)
    assert (len(rows), bad.count) == (4, 1)


def test_a_query_of_no_context_is_refused(tmp_path: Path, options: ReadOptions) -> None:
    document = {"contexts": ["a"], "queries": [{"context": 1, "question": "b"}]}
    path = write(tmp_path / "a", json.dumps(document))
    assert "line 1, context: there is no context '1'" in refusal(LOOGLE, path, options)
    path = write(tmp_path / "b", json.dumps({"queries": document["queries"]}))
    assert "contexts: is missing" in refusal(LOOGLE, path, options)


# --- all of them

FILES = {
    SHAREGPT: json.dumps([conversation(*TURNS)]),
    OPENAI: lines(call(("user", "how"))),
    LOOGLE: lines({"input": "the cache", "qa_pairs": PAIRS}),
}


@pytest.mark.parametrize("reader", FILES, ids=lambda reader: reader.name)
def test_without_a_tokenizer_the_error_says_what_to_give(tmp_path: Path, reader: Any) -> None:
    source = Source(write(tmp_path / "a", FILES[reader]))
    with pytest.raises(InputError, match=r"give the model's tokenizer file \(--tokenizer"):
        reader.open(source, NO_OPTIONS, BadRows(source.name))


@pytest.mark.parametrize("content", [b"", b"{}", b"\xff\xfe", None])
def test_a_file_that_is_no_tokenizer_is_one_error(tmp_path: Path, content: bytes | None) -> None:
    pytest.importorskip("tokenizers", reason="the extra `text` is not installed")
    path = tmp_path / "other.json"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(InputError, match=r"other.json: cannot be read as a Hugging Face tokenizer"):
        Tokenizer(str(path))


def test_without_the_package_the_error_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(__import__("sys").modules, "tokenizers", None)
    with pytest.raises(InputError, match=r"pip install 'hicache-lab\[text\]'"):
        Tokenizer(str(tmp_path / "tokenizer.json"))


OTHERS = [
    b'{"timestamp": 0, "input_length": 1, "output_length": 1, "hash_ids": [0]}',
    b'{"input_toks": 3, "input_tok_ids": [1, 2, 3]}',
    b'{"rid": "a", "input_ids": [1], "input_length": 1}',
    b'{"event": "request.finished", "obj": {"messages": []}}',
    b"",
    b"\x80\x04\x95",
]


@pytest.mark.parametrize("reader", FILES, ids=lambda reader: reader.name)
def test_each_reader_claims_its_own_format_alone(reader: Any) -> None:
    for each, text in FILES.items():
        assert reader.recognises(text.encode()) == (each is reader)
    assert not any(reader.recognises(head) for head in OTHERS)
