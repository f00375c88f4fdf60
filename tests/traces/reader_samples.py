"""Small sound traces of every format that is read, each as records that can be put together.

A record gives one row, so that it is known which rows there are around a bad one. Records are of
real traces where those are at hand, and made otherwise.
"""

from __future__ import annotations

import json
import pickle
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cache
from itertools import islice
from pathlib import Path
from typing import Any

from recorded_helpers import REAL_TRACES
from text_helpers import tokenizer_json
from trace_helpers import CONVERSATION

from traces.reader import OnError, Trace, open_trace
from traces.rows import Row

Place = tuple[str | int, ...]


@dataclass(frozen=True)
class Sample:
    """A sound trace: `head`, the records with `between` between them, `tail`."""

    format: str
    records: tuple[bytes, ...]
    head: bytes = b""
    between: bytes = b"\n"
    tail: bytes = b"\n"
    # Files that belong beside it, by name.
    beside: dict[str, bytes] = field(default_factory=dict)
    takes_tokenizer: bool = False
    # Places in a record of JSON: a whole number from 0 (or 1) on that must be there, a number that
    # is a time, ids that must match the length, fields that must be there.
    count: Place = ()
    time: Place = ()
    ids: Place = ()
    needed: tuple[Place, ...] = ()
    # Whether a record is read alike whatever stands around it.
    independent: bool = True

    @property
    def is_lines(self) -> bool:
        """Whether a line is a record: a broken one is left out, and the next one read."""
        return self.between == b"\n"

    @property
    def is_json(self) -> bool:
        return bool(self.records) and self.records[0].startswith(b"{")

    def text(self, records: Sequence[bytes] | None = None) -> bytes:
        records = self.records if records is None else records
        return self.head + self.between.join(records) + self.tail

    def line_of(self, record: int) -> int:
        """The line of the file that record number `record` is on."""
        return self.head.count(b"\n") + record * self.between.count(b"\n") + 1

    def write(self, folder: Path, data: bytes | None = None, name: str = "trace") -> Path:
        """The trace (or `data` in its place) in a file, with what belongs beside it."""
        for beside, content in self.beside.items():
            (folder / beside).write_bytes(content)
        path = folder / name
        path.write_bytes(self.text() if data is None else data)
        return path

    def open(self, path: Path | str, on_error: OnError = "stop") -> Trace:
        return open_trace(path, tokenizer=_tokenizer(self, path), on_error=on_error)

    def rows(self, path: Path | str, on_error: OnError = "stop") -> tuple[list[Row], Trace]:
        trace = self.open(path, on_error)
        return rows_of(trace), trace


def _tokenizer(sample: Sample, path: Path | str) -> str:
    if not sample.takes_tokenizer:
        return ""
    file = Path(path).parent / "tokenizer.json"
    if not file.exists():
        file.write_text(tokenizer_json())
    return str(file)


def rows_of(trace: Trace) -> list[Row]:
    rows: list[Row] = []
    for batch in trace.stream().batches():
        assert len(batch.rows) == len(batch.lines) > 0
        rows += batch.rows
    return rows


# --- The samples


def _lines(values: Sequence[Any]) -> tuple[bytes, ...]:
    return tuple(json.dumps(each).encode() for each in values)


def _first_lines(path: Path, count: int) -> tuple[bytes, ...]:
    with open(path, "rb") as file:
        return tuple(each.rstrip(b"\r\n") for each in islice(file, count))


def _mooncake() -> Sample:
    if CONVERSATION.exists():
        records = _first_lines(CONVERSATION, 8)
    else:
        records = _lines(
            [
                {
                    "timestamp": 3000 * n,
                    "input_length": 1100,
                    "output_length": 5 + n,
                    "hash_ids": [0, n, n + 9],
                }
                for n in range(8)
            ]
        )
    return Sample(
        "mooncake",
        records,
        count=("input_length",),
        time=("timestamp",),
        ids=("hash_ids",),
        needed=(("timestamp",), ("input_length",), ("output_length",), ("hash_ids",)),
    )


def _mooncake_delta() -> Sample:
    firsts = [
        {
            "session_id": f"s{n}",
            "timestamp": n * 100.5,
            "input_length": 700,
            "output_length": 9,
            "hash_ids": [0, n + 1],
        }
        for n in range(5)
    ]
    turn = {
        "session_id": "s0",
        "delay": 20.5,
        "input_length": 90,
        "output_length": 2,
        "hash_ids": [99],
    }
    return Sample(
        "mooncake",
        _lines([*firsts, turn]),
        count=("output_length",),
        ids=("hash_ids",),
        needed=(("input_length",), ("output_length",), ("hash_ids",)),
    )


def _native(*, in_pieces: bool) -> Sample:
    records: list[dict[str, Any]] = []
    for n in range(6):
        record: dict[str, Any] = {"input_length": 20, "output_length": 12, "timestamp": n * 10}
        if in_pieces:
            record |= {
                "session": f"s{n}",
                "pieces": [[1, 12], [n + 5, 8]],
                "answer": [[n + 90, 12]],
            }
        else:
            record |= {"ids": [1, n + 7], "answer_ids": [n + 50]}
        records.append(record)
    return Sample(
        "hicache",
        _lines(records),
        head=b'{"hicache_trace": 1, "block_tokens": %d}\n' % (0 if in_pieces else 16),
        count=("input_length",),
        time=("timestamp",),
        ids=("pieces",) if in_pieces else ("ids",),
        needed=(("input_length",), ("output_length",), ("timestamp",)),
    )


RAGPULSE_FILES = {
    "1_sys_prompt.jsonl": "sys_prompt_id",
    "2_passages.jsonl": "passage_id",
    "3_history.jsonl": "history_id",
    "4_user_input.jsonl": "user_input_id",
    "5_web_search.jsonl": "web_search_id",
}


def _lengths_for(records: Sequence[bytes], path: Path) -> list[bytes]:
    """The lines of a file of lengths that are about ids in these records."""
    ids = {each for record in records for each in re.findall(rb"[0-9]+", record)}
    with open(path, "rb") as file:
        return [each for each in file if ids & set(re.findall(rb'_id": ([0-9]+)', each))]


def _ragpulse() -> Sample:
    folder = REAL_TRACES / "ragpulse"
    if folder.exists():
        records = _first_lines(folder / "0_trace.jsonl", 6)
        beside = {name: b"".join(_lengths_for(records, folder / name)) for name in RAGPULSE_FILES}
    else:
        records = _lines(
            [
                {
                    "timestamp": str(5 + n),
                    "input_length": 530,
                    "output_length": 7,
                    "hash_ids": {
                        "sys_prompt": [1],
                        "passages_ids": [2],
                        "history": [],
                        "web_search": [],
                        "user_input": [10 + n],
                    },
                    "session_id": f"s{n}",
                }
                for n in range(6)
            ]
        )
        beside = {
            name: "".join(
                f'{{"{key}": {each}, "token_length": {500 if each == 1 else 12}}}\n'
                for each in range(1, 20)
            ).encode()
            for name, key in RAGPULSE_FILES.items()
        }
    return Sample(
        "ragpulse",
        records,
        beside=beside,
        count=("input_length",),
        time=("timestamp",),
        ids=("hash_ids", "passages_ids"),
        needed=(("timestamp",), ("input_length",), ("hash_ids",), ("hash_ids", "history")),
    )


def _weka() -> Sample:
    real = REAL_TRACES / "weka_claude_code" / "trace_0002.json"
    if real.exists():
        requests = json.loads(real.read_bytes())["requests"]
        requests = [each for each in requests if each.get("type") != "subagent"][:6]
    else:
        requests = [
            {
                "t": 10 * n,
                "type": "n",
                "in": 200 + 64 * n,
                "out": 30,
                "hash_ids": list(range(3 + n)),
                "api_time": 4,
                "think_time": 2,
            }
            for n in range(6)
        ]
    return Sample(
        "weka",
        _lines(requests),
        head=b'{"id": "a", "block_size": 64, "hash_id_scope": "local", "requests": [\n',
        between=b",\n",
        tail=b"]}",
        count=("in",),
        time=("t",),
        ids=("hash_ids",),
        needed=(("t",), ("in",), ("out",), ("hash_ids",)),
        independent=False,
    )


def _bailian() -> Sample:
    return Sample(
        "bailian",
        _lines(
            [
                {
                    "chat_id": n,
                    "parent_chat_id": -1,
                    "timestamp": n * 1.5,
                    "input_length": 40,
                    "output_length": 7,
                    "type": "text",
                    "turn": 1,
                    "hash_ids": [5, 6, 100 + n],
                }
                for n in range(6)
            ]
        ),
        count=("input_length",),
        time=("timestamp",),
        ids=("hash_ids",),
        needed=tuple(
            (each,)
            for each in ("chat_id", "timestamp", "input_length", "output_length", "hash_ids")
        ),
    )


def _lmcache() -> Sample:
    return Sample(
        "lmcache",
        _lines(
            [
                {
                    "timestamp": 1711929600.25 + n,
                    "request_id": f"r{n}",
                    "model_name": "m",
                    "chunk_size": 256,
                    "seq_len": 600,
                    "chunk_hashes": ["0xab", hex(n)],
                }
                for n in range(6)
            ]
        ),
        count=("seq_len",),
        time=("timestamp",),
        ids=("chunk_hashes",),
        needed=(("timestamp",), ("seq_len",), ("chunk_hashes",)),
    )


def _azure() -> Sample:
    real = REAL_TRACES / "azure2023" / "AzureLLMInferenceTrace_code.csv"
    made = [b"2023-11-16 18:17:%02d.9799600,%d,10" % (n, 100 + n) for n in range(6)]
    records = _first_lines(real, 7)[1:] if real.exists() else tuple(made)
    return Sample("azure", records, head=b"TIMESTAMP,ContextTokens,GeneratedTokens\n")


def _burstgpt() -> Sample:
    return Sample(
        "burstgpt",
        tuple(b"%d,s%d,1.5,GPT-4,%d,18,490,Conversation log" % (5 * n, n, 70) for n in range(6)),
        head=b"Timestamp,Session ID,Elapsed time,Model,Request tokens,Response tokens,"
        b"Total tokens,Log Type\n",
    )


def _hisim() -> Sample:
    return Sample(
        "hisim",
        _lines(
            [
                {
                    "rid": f"r{n}",
                    "timestamp": 732.5 + n,
                    "input_length": 4,
                    "output_length": 2,
                    "final_prefix_cache_len": 1,
                    "input_ids": [1, 2, 3, n],
                    "output_ids": [7, n],
                }
                for n in range(6)
            ]
        ),
        count=("input_length",),
        time=("timestamp",),
        ids=("input_ids",),
        needed=(("timestamp",), ("input_length",), ("output_length",), ("input_ids",)),
    )


def _sglang_log() -> Sample:
    return Sample(
        "sglang-log",
        _lines(
            [
                {
                    "timestamp": f"2026-06-30T09:15:5{n}.25",
                    "event": "request.finished",
                    "rid": f"r{n}",
                    "obj": {"input_ids": [1, 2, 3, n]},
                    "out": {
                        "output_ids": [7, n],
                        "meta_info": {
                            "prompt_tokens": 4,
                            "completion_tokens": 2,
                            "cached_tokens": 1,
                            "e2e_latency": 0.5,
                        },
                    },
                }
                for n in range(6)
            ]
        ),
        count=("out", "meta_info", "prompt_tokens"),
        time=("out", "meta_info", "e2e_latency"),
        ids=("obj", "input_ids"),
        needed=(("timestamp",), ("obj", "input_ids"), ("out", "meta_info", "e2e_latency")),
    )


def _llmservingsim() -> Sample:
    real = REAL_TRACES / "sharegpt_tokens" / "sharegpt-llama-3.1-8b-300-sps10.jsonl"
    if real.exists():
        records = _first_lines(real, 5)
    else:
        records = _lines(
            [
                {
                    "input_toks": 3,
                    "output_toks": 2,
                    "arrival_time_ns": 5 * 10**6 * n,
                    "input_tok_ids": [1, 2, n],
                    "output_tok_ids": [8, n],
                }
                for n in range(6)
            ]
        )
    return Sample(
        "token-ids",
        records,
        count=("input_toks",),
        time=("arrival_time_ns",),
        ids=("input_tok_ids",),
        needed=(("input_toks",), ("output_toks",), ("arrival_time_ns",), ("input_tok_ids",)),
    )


def _prompts() -> Sample:
    return Sample(
        "token-ids",
        _lines(
            [
                {"prompt": [5, 7, n], "prompt_len": 3, "output_len": 2, "timestamp": 46.5 * n}
                for n in range(6)
            ]
        ),
        count=("prompt_len",),
        time=("timestamp",),
        ids=("prompt",),
        needed=(("prompt",), ("prompt_len",), ("output_len",), ("timestamp",)),
    )


def _conversations() -> list[dict[str, Any]]:
    return [
        {
            "id": f"c{n}",
            "conversations": [
                {"from": "human", "value": f"the cache {n}"},
                {"from": "gpt", "value": f"the page {n}"},
            ],
        }
        for n in range(5)
    ]


def _sharegpt() -> Sample:
    return Sample(
        "sharegpt",
        _lines(_conversations()),
        takes_tokenizer=True,
        needed=(("conversations",), ("conversations", 0, "value")),
    )


def _sharegpt_array() -> Sample:
    return Sample(
        "sharegpt",
        _lines(_conversations()),
        head=b"[\n",
        between=b",\n",
        tail=b"\n]\n",
        takes_tokenizer=True,
        needed=(("conversations",), ("conversations", 0, "value")),
    )


def _openai() -> Sample:
    return Sample(
        "openai-log",
        _lines(
            [
                {
                    "timestamp": 1700000000.5 + n,
                    "request": {"messages": [{"role": "user", "content": f"the cache {n}"}]},
                    "response": {
                        "choices": [{"message": {"role": "assistant", "content": f"page {n}"}}],
                        "usage": {"prompt_tokens": 9, "completion_tokens": 4},
                    },
                }
                for n in range(5)
            ]
        ),
        takes_tokenizer=True,
        count=("response", "usage", "completion_tokens"),
        time=("timestamp",),
        needed=(("timestamp",), ("request", "messages")),
    )


def _loogle() -> Sample:
    return Sample(
        "loogle",
        _lines(
            [
                {
                    "input": f"the server has seen {n}",
                    "title": f"t{n}",
                    "qa_pairs": "[{'Q': 'how long is the page?', 'A': 'the answer'}]",
                    "output": "",
                }
                for n in range(5)
            ]
        ),
        takes_tokenizer=True,
        needed=(("input",),),
    )


def _queries() -> Sample:
    contexts = {"a": "the cache keeps", "b": "the page"}
    return Sample(
        "loogle",
        _lines(
            [
                {"context": "ab"[n % 2], "question": f"how {n}", "reference_answer": "the page"}
                for n in range(5)
            ]
        ),
        head=b'{"contexts": %s, "queries": [\n' % json.dumps(contexts).encode(),
        between=b",\n",
        tail=b"]}\n",
        takes_tokenizer=True,
        needed=(("context",), ("question",)),
    )


def dump_of(entries: Sequence[Any], protocol: int = 4) -> bytes:
    return pickle.dumps(list(entries), protocol)


DUMPED: list[Any] = [
    (
        {"input_ids": [1, 2, 3, n], "text": None},
        {"output_ids": [7, n], "meta_info": {"prompt_tokens": 4, "completion_tokens": 2}},
        1000.5 + n,
        1001.5 + n,
    )
    for n in range(6)
]


def _sglang_dump() -> Sample:
    return Sample("sglang-dump", (), head=dump_of(DUMPED), tail=b"")


MAKERS: dict[str, Callable[[], Sample]] = {
    "mooncake": _mooncake,
    "mooncake delta": _mooncake_delta,
    "hicache blocks": lambda: _native(in_pieces=False),
    "hicache pieces": lambda: _native(in_pieces=True),
    "ragpulse": _ragpulse,
    "weka": _weka,
    "bailian": _bailian,
    "lmcache": _lmcache,
    "azure": _azure,
    "burstgpt": _burstgpt,
    "hisim": _hisim,
    "sglang log": _sglang_log,
    "sglang dump": _sglang_dump,
    "token ids": _llmservingsim,
    "prompts": _prompts,
    "sharegpt": _sharegpt,
    "sharegpt array": _sharegpt_array,
    "openai": _openai,
    "loogle": _loogle,
    "loogle queries": _queries,
}


@cache
def sample(name: str) -> Sample:
    return MAKERS[name]()
