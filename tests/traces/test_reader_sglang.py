"""SGLang's dumps and logs: tokens, answers, cached tokens; and nothing of a dump is run."""

from __future__ import annotations

import json
import os
import pickle
from collections import deque
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from recorded_helpers import NO_OPTIONS, check_rows, opened, read, refusal, rows_of, write
from text_helpers import read_leaving_out, text_of, tokenizer_options

from hicache.errors import InputError
from traces import sglang_dump
from traces.rows import BadRows, Row
from traces.sglang_dump import SGLangDumpReader, SGLangLogReader
from traces.source import Source

DUMP, LOG = SGLangDumpReader(), SGLangLogReader()


@dataclass
class GenerateReqInput:
    """As in the server, with the fields that matter and one of its other kinds."""

    rid: str = "a"
    text: str | None = None
    input_ids: Any = None
    sampling_params: dict[str, Any] = field(default_factory=dict)
    session_params: dict[str, Any] | None = None


@dataclass
class ServerArgs:
    model_path: str = "m"


def entry(ids: Any, start_s: float, out: dict[str, Any] | None = None, **more: Any) -> Any:
    answer = {"text": "x", "meta_info": {"prompt_tokens": len(ids or []), "completion_tokens": 2}}
    return GenerateReqInput(input_ids=ids, **more), out or answer, start_s, start_s + 1


def dump(path: Path, value: Any, protocol: int = 4) -> Path:
    path.write_bytes(pickle.dumps(value, protocol))
    return path


@pytest.mark.parametrize("protocol", [2, 3, 4, 5])
def test_requests_of_a_dump_leave_in_the_order_of_their_start(
    tmp_path: Path, protocol: int
) -> None:
    requests = [entry([1, 2, 70000], 1000.5), entry([5], 1000.25), entry([6, 7], 1002)]
    for number, value in enumerate(
        (requests, {"server_args": ServerArgs(), "requests": requests, "launch_command": "x"})
    ):
        rows = read(DUMP, dump(tmp_path / f"{number}.pkl", value, protocol))
        check_rows(rows, 1)
        assert [row.timestamp for row in rows] == [1_000_250, 1_000_500, 1_002_000]
        assert [row.hash_ids for row in rows] == [[5], [1, 2, 70000], [6, 7]]
        assert [row.output_length for row in rows] == [2, 2, 2]
        assert [row.cached_tokens for row in rows] == [-1, -1, -1]


def test_the_answer_says_what_was_cached_and_which_tokens_were_given_back(tmp_path: Path) -> None:
    meta = {"prompt_tokens": 3, "completion_tokens": 3, "cached_tokens": 2}
    outs = [
        {"output_ids": [7, 8, 9], "meta_info": meta},
        {"output_ids": [7, 8], "meta_info": meta},  # without the stop token
        {"output_ids": [9], "meta_info": meta},  # what was streamed last
    ]
    value = [entry([1, 2, 3], n, out) for n, out in enumerate(outs)]
    value.append(entry([1, 2, 3], 3, session_params={"id": "s"}))
    rows = read(DUMP, dump(tmp_path / "a.pkl", value))
    assert [row.cached_tokens for row in rows] == [2, 2, 2, -1]
    assert [row.output_ids for row in rows] == [[7, 8, 9], [7, 8], None, None]
    assert [row.output_length for row in rows] == [3, 2, 3, 2]
    assert rows[3].session == "s"


def test_unfinished_requests_of_a_crash_have_no_answer_and_are_counted(tmp_path: Path) -> None:
    request = (GenerateReqInput(input_ids=[1]), {}, 5.0, 6.0)
    stream = opened(DUMP, dump(tmp_path / "a.pkl", {"requests": [request, entry([1], 4)]}))
    assert [row.output_length for row in rows_of(stream)] == [2, 0]
    assert stream.notes[0].startswith("1 requests were not answered")


def test_texts_take_a_tokenizer(tmp_path: Path) -> None:
    out = {"text": "the page", "meta_info": {"prompt_tokens": 99, "cached_tokens": 80}}
    value = [(GenerateReqInput(text="the cache keeps"), out, 1.0, 2.0)]
    path = dump(tmp_path / "a.pkl", value)
    assert (
        "line 1, input_ids: only the text is there: give --tokenizer, the "
        "model's tokenizer.json" in refusal(DUMP, path)
    )
    options = tokenizer_options(tmp_path)
    stream = opened(DUMP, path, options)
    (row,) = rows_of(stream)
    assert text_of(tmp_path, row.hash_ids) == "the cache keeps"
    assert text_of(tmp_path, row.output_ids or []) == "the page"
    assert row.cached_tokens == row.input_length == len(row.hash_ids)
    assert stream.notes[0].startswith("1 prompts have another number of tokens than the server")


BAD_ENTRIES: dict[str, tuple[Any, str]] = {
    "no request": (7, ": is no request: expected (request, answer, start, finish)"),
    "too short": ((1, 2), ": is no request"),
    "no time": ((GenerateReqInput(input_ids=[1]), {}, None, 1), ", start: is no time in seconds"),
    "NaN": (entry([1], float("nan")), ", start: is no time in seconds"),
    "infinity": (entry([1], float("inf")), ", start: is no time in seconds"),
    "negative": (entry([1], -1), ", start: is no time in seconds"),
    "huge": (entry([1], 10**400), ", start: is no time in seconds"),
    "no prompt": (entry(None, 1), ", input_ids: is missing, and so is text"),
    "no ids": (entry([], 1), ", input_ids: expected a list of token ids"),
    "a text id": (entry([1, "2"], 1), ", input_ids[1]: expected an id of 0 to"),
    "negative id": (entry([-1], 1), ", input_ids[0]: expected an id of 0 to"),
    "64 bits": (entry([1 << 64], 1), ", input_ids[0]: expected an id of 0 to"),
    "length": (
        entry([1], 1, {"meta_info": {"prompt_tokens": 2}}),
        ", input_ids: 1 ids do not match prompt_tokens 2",
    ),
    "cached": (
        entry([1], 1, {"meta_info": {"cached_tokens": 2}}),
        ", cached_tokens: 2 tokens are more than the prompt has",
    ),
    "count": (
        entry([1], 1, {"meta_info": {"completion_tokens": -2}}),
        ", completion_tokens: expected a number of tokens",
    ),
}


@pytest.mark.parametrize("name", BAD_ENTRIES)
def test_a_malformed_request_is_one_error_or_is_left_out(tmp_path: Path, name: str) -> None:
    bad_entry, expected = BAD_ENTRIES[name]
    path = dump(tmp_path / "a.pkl", [entry([1], 1), bad_entry, entry([2], 2)])
    assert refusal(DUMP, path).startswith(f"FILE, line 2{expected}")
    rows, bad = read_leaving_out(DUMP, path, NO_OPTIONS)
    assert [row.hash_ids for row in rows] == [[1], [2]]
    assert (bad.count, bad.listed[0].line) == (1, 2)


def test_half_a_surrogate_pair_is_refused(tmp_path: Path) -> None:
    options = tokenizer_options(tmp_path)
    path = dump(tmp_path / "a.pkl", [(GenerateReqInput(text="\ud800"), {}, 1, 2)])
    assert "line 1, text: holds half of a surrogate pair" in refusal(DUMP, path, options)


class Runs:
    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> Any:
        return os.system, (f"touch {self.path}",)


def test_nothing_of_a_hostile_dump_is_run(tmp_path: Path) -> None:
    evidence = tmp_path / "evidence"
    runs = Runs(evidence)
    for value, expected in (
        (runs, "line 1: the pickle is no SGLang dump: it holds no list of requests"),
        ({"requests": runs}, "line 1: the pickle is no SGLang dump"),
        ([runs], "line 1: is no request"),
        ([(runs, {}, 1.0, 2.0)], "line 1, input_ids: is missing, and so is text"),
        ([(GenerateReqInput(input_ids=runs), {}, 1.0, 2.0)], "line 1, input_ids: expected a list"),
        ([entry([1], 1.0, {"meta_info": {"cached_tokens": runs}})], "line 1, cached_tokens: exp"),
        ([(GenerateReqInput(input_ids=[1]), {}, runs, 2.0)], "line 1, start: is no time"),
        (deque([entry([1], 1)]), "line 1: the pickle is no SGLang dump"),
    ):
        assert expected in refusal(DUMP, dump(tmp_path / "a.pkl", value))
    # Where it is in a field that is of no use here, the rest is read.
    value = {"server_args": runs, "requests": [entry([1, 2], 1, sampling_params={"x": runs})]}
    (row,) = read(DUMP, dump(tmp_path / "a.pkl", value))
    assert row.hash_ids == [1, 2]
    assert not evidence.exists()


@pytest.mark.parametrize("size", [3, 20, -1])
def test_a_dump_that_is_cut_off_is_one_error(tmp_path: Path, size: int) -> None:
    data = pickle.dumps([entry([1], 1)])
    message = refusal(DUMP, write(tmp_path / "a.pkl", data[:size]))
    assert message.startswith("FILE, line 1: the pickle ")


def read_folder(files: list[Path]) -> list[Row]:
    bad = BadRows("folder")
    sources = [Source(file) for file in files]
    return rows_of(DUMP.open_folder(sources, NO_OPTIONS, bad))


def test_dumps_of_a_folder_are_one_trace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files = [
        dump(tmp_path / "1.pkl", [entry([1], 1), entry([3], 3)]),
        dump(tmp_path / "2.pkl", [entry([5], 5), entry([2], 2)]),
        dump(tmp_path / "3.pkl", [entry([6], 6)]),
    ]
    assert [row.hash_ids for row in read_folder(files)] == [[1], [2], [3], [5], [6]]
    monkeypatch.setattr(sglang_dump, "WAITING_REQUESTS", 0)
    with pytest.raises(InputError, match=r"2.pkl, line 2, start: is earlier than that of a"):
        read_folder(files)
    files[2] = dump(tmp_path / "3.pkl", [entry([6, -1], 6)])
    monkeypatch.undo()
    with pytest.raises(InputError, match=r"3.pkl, line 1, input_ids\[1\]: expected an id"):
        read_folder(files)


# --- the JSON log


def event(ids: Any, second: int, name: str = "request.finished", **meta: Any) -> str:
    meta_info = {"e2e_latency": 1.5, "completion_tokens": 2, **meta}
    return json.dumps(
        {
            "timestamp": f"2026-06-30T09:15:{second:02}.500000",
            "event": name,
            "rid": "a",
            "obj": {"rid": "a", "input_ids": ids, "text": None},
            "out": {"text": "x", "output_ids": [8, 9], "meta_info": meta_info},
        }
    )


def test_finished_requests_of_a_log_leave_in_the_order_of_their_start(tmp_path: Path) -> None:
    lines = [
        event([1], 10, "request.received"),
        event([1, 2], 20, cached_tokens=1),
        event([3], 30, e2e_latency=25.5),
        event([4], 31),
    ]
    stream = opened(LOG, write(tmp_path / "a", "\n".join(lines)))
    rows = rows_of(stream)
    check_rows(rows, 1)
    assert [row.hash_ids for row in rows] == [[3], [1, 2], [4]]
    first = rows[0].timestamp or 0
    assert [round((row.timestamp or 0) - first) for row in rows] == [0, 14_000, 25_000]
    assert [row.cached_tokens for row in rows] == [-1, 1, -1]
    assert [row.output_ids for row in rows] == [[8, 9]] * 3
    assert stream.notes[0].startswith("1 request came after later ones")


BAD_EVENTS = {
    event([1, "...", 2], 20): "input_ids[1]: the log was cut short: log requests at level 3",
    event(None, 20): "input_ids: is missing, and so is text",
    event([1], 20, e2e_latency=None): "out.meta_info.e2e_latency: is no number of seconds",
    event([1], 20, e2e_latency=10**400): "out.meta_info.e2e_latency: is no number of seconds",
    event([1], 20).replace("2026-06", "2026-66"): "timestamp: is no time in ISO 8601",
    event([1], 20)[:-9]: "e2e_latency: the JSON is cut off",
    '{"event": 3}': "event: expected str, got int",
    '{"rid": "a"}': "event: is missing",
}


@pytest.mark.parametrize("line", BAD_EVENTS, ids=range(len(BAD_EVENTS)))
def test_a_malformed_event_is_one_error_or_is_left_out(tmp_path: Path, line: str) -> None:
    path = write(tmp_path / "a", "\n".join([event([1], 1), line, event([1], 3)]))
    message = refusal(LOG, path)
    assert message.startswith("FILE, line 2, ")
    assert BAD_EVENTS[line] in message
    rows, bad = read_leaving_out(LOG, path, NO_OPTIONS)
    assert (len(rows), bad.count) == (2, 1)


def test_each_of_the_two_claims_its_own_format_alone() -> None:
    data, line = pickle.dumps([]), event([1], 1).encode()
    assert DUMP.recognises(data)
    assert LOG.recognises(line)
    for head in (b"", b'{"event": "x"}', b'{"timestamp": 0, "hash_ids": []}', b"[1]"):
        assert not DUMP.recognises(head)
        assert not LOG.recognises(head)
    assert not DUMP.recognises(line)
    assert not LOG.recognises(data)
