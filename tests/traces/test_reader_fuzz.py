"""Whatever a file holds, reading it gives sound rows or one `InputError`, and loses no line."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from reader_contract import check_contract
from reader_samples import MAKERS, Sample, sample

from hicache.errors import InputError


def _turns_of_agents() -> Sample:
    def ask(time_s: float, blocks: int, **more: Any) -> dict[str, Any]:
        ids = list(range(blocks))
        return {"t": time_s, "in": 64 * blocks, "out": 70, "hash_ids": ids, "api_time": 2, **more}

    inner = {"t": 1, "type": "subagent", "requests": [ask(0, 2), ask(3, 4)]}
    agent = {"t": 4, "type": "subagent", "agent_id": "a", "requests": [ask(0, 3), inner]}
    records = [ask(0, 3), ask(3, 5, think_time=1.5), agent, ask(5, 7), ask(30, 9)]
    weka = sample("weka")
    return Sample(
        "weka", lines(records), weka.head.replace(b"local", b"per_context"), b",\n", b"]}"
    )


def lines(values: list[dict[str, Any]]) -> tuple[bytes, ...]:
    return tuple(json.dumps(each).encode() for each in values)


# Records that refer to each other, or give several rows.
MORE: dict[str, Sample] = {
    "sub-agents": _turns_of_agents(),
    "appended turns": Sample(
        "hicache",
        lines(
            [{"input_length": 5, "output_length": 2, "timestamp": 0, "session": "a"}]
            + [
                {
                    "input_length": 12,
                    "output_length": 4,
                    "timestamp": 10 * n,
                    "session": f"s{n % 2}",
                    "pieces": [[1, 7], [n, 5]],
                    "answer": [[n + 50, 4]],
                }
                for n in (0, 1)
            ]
            + [
                {
                    "input_length": 12 + 9 * (n // 2),
                    "output_length": 4,
                    "session": f"s{n % 2}",
                    "after": n - 1,
                    "delay": 2.5,
                    "append": [[n, 5]],
                    "answer": [[n + 50, 4]],
                    "cached_tokens": 3,
                }
                for n in (2, 3, 4, 5)
            ]
        ),
        head=b'{"hicache_trace": 1, "block_tokens": 0, "hints": {"clients": 2}}\n',
    ),
    "chats": Sample(
        "bailian",
        lines(
            [
                {
                    "chat_id": n,
                    "parent_chat_id": max(n - 2, -1),
                    "timestamp": n * 1.5,
                    "input_length": 16 * (n + 1),
                    "output_length": 7,
                    "hash_ids": list(range(n + 1)),
                }
                for n in range(6)
            ]
        ),
    ),
    "sessions of calls": Sample(
        "token-ids",
        lines(
            [
                {
                    "session_id": f"s{n}",
                    "arrival_time_ns": n * 10**9,
                    "sub_requests": [
                        {
                            "input_toks": 3,
                            "output_toks": 2,
                            "tool_duration_ns": 900,
                            "input_tok_ids": [n, call, 3],
                        }
                        for call in range(2)
                    ],
                }
                for n in range(3)
            ]
        ),
    ),
    "conversations": Sample(
        "sharegpt",
        lines(
            [
                {
                    "conversations": [
                        {"from": who, "value": f"the page {n}"}
                        for who in ("human", "gpt", "human", "gpt", "gpt", "human")
                    ]
                }
                for n in range(3)
            ]
        ),
        takes_tokenizer=True,
    ),
    "calls": Sample(
        "openai-log",
        lines(
            [
                {
                    "timestamp": f"2026-06-30T09:15:5{n}",
                    "messages": [
                        {"role": "user", "content": [{"type": "text", "text": "the cache"}]},
                        {"role": "assistant", "tool_calls": [{"id": 7}], "content": None},
                        {"role": "user", "content": "how long"},
                    ][: 1 + n % 2 * 2],
                    "tools": [{"name": "x"}],
                    "choices": [{"message": {"content": "the page"}}],
                    "usage": {"prompt_tokens_details": {"cached_tokens": 2}},
                }
                for n in range(4)
            ]
        ),
        takes_tokenizer=True,
    ),
}
SEVERAL = [MORE["sessions of calls"], MORE["conversations"]]
SAMPLES = {name: sample(name) for name in MAKERS} | MORE
JSON_NAMES = [name for name in SAMPLES if SAMPLES[name].is_json]

PUT = [
    *(b"-", b"null", b"NaN", b"1e999", b"1e308", b"0.1", b"true", b'""', b"[]", b"{}", b"[[1]]"),
    *(b"\n", b"\r", b'"', b"\\", b"\0", b"\xff", b"\xc3", b",", b":", b"}", b"]", b"\xe2\x80\xa8"),
    *(b'"\\ud83d"', b"[" * 3000, b"9" * 5000, b"2147483648", b"9223372036854775808"),
    # Opcodes of pickles: calls, marks, memos, ends.
    *(b"(", b"t", b"R", b"b", b"h\0", b".", b"a", b"e", b"s", b"u", b"K\5", b"cos\nsystem\n"),
]
VALUES: list[Any] = [
    *(None, True, 0, -1, 1, 1.5, -0.0, 1e308, 10**15, 10**30, 2**31, 2**62, 2**63, 2**64),
    *("", "x", "\0", "a" * 50, "none", [], [0], [[]], [None], [1] * 5, {}, {"a": 1}),
    *("[{'Q': '\\ud800', 'A': [1j]}]", "[{'Q': 'a', 'A': [{(1, 2): 3}]}]", [{"type": "image"}]),
    *("0001-01-01T00:00:00+23:59", "9999-12-31T23:59:59-23:59"),
]

edits = st.lists(
    st.tuples(
        st.integers(0, 10**6),
        st.integers(0, 4),
        st.one_of(st.binary(max_size=3), st.sampled_from(PUT)),
    ),
    min_size=1,
    max_size=3,
)
fuzzed = settings(
    max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)


def check(made: Sample, folder: Path, data: bytes) -> None:
    """Read the file in both ways, its rows and its requests."""
    path = made.write(folder, data)
    with contextlib.suppress(InputError):
        rows, trace = made.rows(path)
        check_contract(rows, trace.layout)
    message = ""
    try:
        rows, trace = made.rows(path, "skip")
    except InputError as error:
        message = str(error)
    if message:
        assert str(path) in message
        assert "\n" not in message
        return
    check_contract(rows, trace.layout)
    for page_size_tokens in (16, 512):
        with contextlib.suppress(InputError):
            requests = list(trace.requests(page_size_tokens, "partial"))
            assert len(requests) == len(rows)
    if made.is_lines and made.records and trace.format == made.format and made not in SEVERAL:
        lines = data.removeprefix(b"\xef\xbb\xbf").split(b"\n")
        there = sum(1 for each in lines if each.strip()) - bool(made.head)
        assert len(rows) + trace.bad.count == there or _is_said(trace)


def _is_said(trace: Any) -> bool:
    """Whether a note says that lines were no requests."""
    stream = trace.stream()
    list(stream.batches())
    said = ("without prompt tokens", "no question", "events of other kinds")
    return any(each in note for note in stream.notes for each in said)


@pytest.mark.parametrize("name", SAMPLES)
@fuzzed
@given(edits=edits)
def test_changed_bytes(tmp_path: Path, name: str, edits: list[tuple[int, int, bytes]]) -> None:
    made = SAMPLES[name]
    text = bytearray(made.text())
    first = len(made.head) if made.records else 0  # the header tells how many lines are rows
    for at, count, put in edits:
        at = first + at % (len(text) - first)
        text[at : at + count] = put
    check(made, tmp_path, bytes(text))


@pytest.mark.parametrize("name", SAMPLES)
@fuzzed
@given(at=st.integers(0, 10**6), noise=st.binary(max_size=200))
def test_noise_behind_a_sound_start(tmp_path: Path, name: str, at: int, noise: bytes) -> None:
    made = SAMPLES[name]
    text = made.text()
    first = len(made.head) if made.records else 0
    check(made, tmp_path, text[: first + at % (len(text) - first)] + noise)


@pytest.mark.parametrize("name", JSON_NAMES)
@fuzzed
@given(data=st.data())
def test_changed_values(tmp_path: Path, name: str, data: st.DataObject) -> None:
    """Values of other types, fields left out, values swapped, records in another order."""
    made = SAMPLES[name]
    records = list(made.records)
    for _ in range(data.draw(st.integers(1, 3))):
        index = data.draw(st.integers(0, len(records) - 1))
        value = json.loads(records[index])
        place = data.draw(st.sampled_from(list(_places(value))))
        inner = value
        for each in place[:-1]:
            inner = inner[each]
        act = data.draw(st.sampled_from(["put", "put", "delete", "swap"]))
        if act == "put":
            inner[place[-1]] = deepcopy(data.draw(st.sampled_from(VALUES)))
        elif act == "delete":
            del inner[place[-1]]
        else:
            keys = list(inner) if isinstance(inner, dict) else range(len(inner))
            other = data.draw(st.sampled_from(keys))
            inner[place[-1]], inner[other] = inner[other], inner[place[-1]]
        if value:
            records[index] = json.dumps(value).encode()
    if data.draw(st.booleans()):
        records = data.draw(st.permutations(records))
    check(made, tmp_path, made.text(records))


def _places(value: Any, place: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Where something stands in a value of JSON; of long lists, the first few."""
    if place:
        yield place
    keys: Any = ()
    if isinstance(value, dict):
        keys = value
    elif isinstance(value, list):
        keys = range(min(3, len(value)))
    for key in keys:
        yield from _places(value[key], (*place, key))
