"""Claude Code sessions: nesting, waiting, answers, scopes of ids, streaming, folders."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from recorded_helpers import (
    NO_OPTIONS,
    REAL_TRACES,
    check_rows,
    ideal_hit_rate,
    mutated,
    needs_real_traces,
    opened,
    read,
    read_skipping,
    refusal,
    rows_of,
    write,
)

from hicache.errors import InputError
from traces import source as source_module
from traces.rows import BadRows, Layout, ReadOptions, Row
from traces.source import Source
from traces.weka import WekaReader

READER = WekaReader()


def ask(t: float, ids: list[int], out: int = 10, tokens: int = 0, **more: Any) -> dict[str, Any]:
    tokens = tokens or 64 * len(ids) + 5
    return {"t": t, "type": "n", "in": tokens, "out": out, "hash_ids": ids} | more


def agent(t: float, name: str, requests: list[Any]) -> dict[str, Any]:
    return {"t": t, "type": "subagent", "agent_id": name, "requests": requests}


def session(requests: list[Any], **more: Any) -> str:
    head = {"id": "s", "block_size": 64, "hash_id_scope": "local"} | more
    return json.dumps(
        {each: v for each, v in head.items() if v is not None} | {"requests": requests}
    )


def told(rows: list[Row]) -> list[tuple[Any, ...]]:
    return [(r.session, r.timestamp, r.after, r.delay) for r in rows]


def test_turns_follow_each_other_after_their_think_time(tmp_path: Path) -> None:
    requests = [
        ask(0, [1], api_time=7.27, think_time=0),
        ask(10, [1, 2], api_time=3, think_time=2.5),
        ask(20.5, [1, 2, 3]),
        ask(30, [1, 2, 3, 4]),
    ]
    stream = opened(READER, write(tmp_path / "a.json", session(requests)))
    rows = rows_of(stream)
    assert stream.layout == Layout(64)
    assert told(rows) == [("s", 0, -1, 0), ("s", 10000, 0, 2500), ("s", 20500, 1, 7500),
                          ("s", 30000, 2, 9500)]  # fmt: skip
    assert [r.hash_ids for r in rows] == [[1], [1, 2], [1, 2, 3], [1, 2, 3, 4]]
    assert rows_of(stream) == rows
    check_rows(rows, 64)


def test_answers_have_the_ids_of_the_next_prompt(tmp_path: Path) -> None:
    requests = [
        ask(0, [1, 2], out=130, tokens=140),  # 270 tokens: 4 full blocks
        ask(1, [1, 2, 3, 4, 5], out=130, tokens=325),  # the next is shorter than 455
        ask(2, [1, 2, 3, 4, 5, 6, 7], out=3, tokens=454),  # 457: no full block more
        ask(3, [1, 2, 3, 4, 5, 6, 7, 8], out=1000, tokens=520),  # the next is another prompt
        ask(4, list(range(20, 70)), out=70, tokens=3200),
    ]
    rows = read(READER, write(tmp_path / "a.json", session(requests)))
    assert [r.output_ids for r in rows] == [[3, 4], None, [], None, None]


def test_sub_agents_have_times_and_sessions_of_their_own(tmp_path: Path) -> None:
    inner = agent(1, "y", [ask(0.5, [8])])
    requests = [
        ask(0, [1], api_time=2),
        agent(4, "x", [ask(0, [7], api_time=1), ask(3, [7, 9], api_time=1, think_time=2), inner]),
        ask(6, [1, 2], api_time=1, think_time=4),
        ask(20, [1, 2, 3], api_time=1, think_time=13),
    ]
    rows = read(READER, write(tmp_path / "a.json", session(requests)))
    assert told(rows) == [
        ("s", 0, -1, 0),
        ("s/x", 4000, 0, 2000),
        ("s/x/y", 5500, 1, 500),
        ("s", 6000, 0, 4000),  # it did not wait: the sub-agent still ran
        ("s/x", 7000, 1, 2000),
        ("s", 20000, 3, 13000),
    ]
    check_rows(rows, 64)


def test_an_agent_goes_on_once_its_sub_agents_are_done(tmp_path: Path) -> None:
    requests = [
        ask(0, [1], api_time=2),
        agent(3, "x", [ask(0, [7], api_time=4)]),
        agent(3, "y", [ask(1, [8], api_time=5)]),
        ask(12, [1, 2], api_time=1, think_time=10),
        ask(14, [1, 2, 3], think_time=1),
    ]
    rows = read(READER, write(tmp_path / "a.json", session(requests)))
    assert told(rows) == [
        ("s", 0, -1, 0),
        ("s/x", 3000, 0, 1000),
        ("s/y", 4000, 0, 2000),
        ("s", 12000, 2, 3000),
        ("s", 14000, 3, 1000),
    ]


def test_requests_that_overlap_do_not_wait_for_each_other(tmp_path: Path) -> None:
    requests = [
        ask(0, [1], api_time=2),
        ask(5, [1, 2], api_time=60, think_time=3),
        ask(6, [1, 2], api_time=50, think_time=0),
        ask(70, [1, 2, 3], think_time=5),
    ]
    rows = read(READER, write(tmp_path / "a.json", session(requests)))
    assert [(r.after, r.delay) for r in rows] == [(-1, 0), (0, 3000), (0, 4000), (1, 5000)]


def test_a_step_back_in_time_is_noted(tmp_path: Path) -> None:
    stream = opened(READER, write(tmp_path / "a", session([ask(5, [1]), ask(9, [2]), ask(3, [3])])))
    rows = rows_of(stream)
    assert [(r.hash_ids, r.timestamp) for r in rows] == [([1], 5000), ([3], 5000), ([2], 9000)]
    assert any("s: 1 request (first on line 1) had an earlier" in note for note in stream.notes)
    check_rows(rows, 64)


@pytest.mark.parametrize(
    ("scope", "expected"),
    [("local", "aabb"), ("global", "aaaa"), ("per_context", "axby"), (None, "axby")],
)
def test_ids_are_the_same_only_within_their_scope(
    tmp_path: Path, scope: str | None, expected: str
) -> None:
    paths = [
        write(
            tmp_path / f"{name}.json",
            session([ask(0, [5]), agent(1, "x", [ask(0, [5])])], id=name, hash_id_scope=scope),
        )
        for name in "ab"
    ]
    stream = READER.open_folder([Source(p) for p in paths], NO_OPTIONS, BadRows("folder"))
    rows = rows_of(stream)
    assert [r.session for r in rows] == ["a", "b", "a/x", "b/x"]
    ids = [r.hash_ids[0] for r in sorted(rows, key=lambda row: row.session)]
    letters = {each: letter for letter, each in zip(expected, ids, strict=True)}
    assert len(letters) == len(set(expected))
    assert [letters[each] for each in ids] == list(expected)
    assert any("the sessions of all 2 files start at time 0" in note for note in stream.notes)
    local = any("ids are local to a file" in note for note in stream.notes)
    assert local == (scope != "global")
    check_rows(rows, 64)


def test_sessions_of_one_name_stay_apart(tmp_path: Path) -> None:
    paths = [write(tmp_path / name, session([ask(0, [5])])) for name in ("a", "b")]
    nameless = write(tmp_path / "trace_7.json", session([ask(0, [5])], id=None))
    sources = [Source(p) for p in (*paths, nameless)]
    rows = rows_of(READER.open_folder(sources, NO_OPTIONS, BadRows("folder")))
    assert [r.session for r in rows] == ["s", f"s ({tmp_path}/b)", "trace_7"]


def test_the_block_size_is_the_files(tmp_path: Path) -> None:
    small = write(tmp_path / "a", session([ask(0, [1, 2], tokens=40)], block_size=16))
    large = write(tmp_path / "b", session([ask(0, [1])]))
    none = write(tmp_path / "c", session([ask(0, [1, 2], tokens=70)], block_size=None))
    assert opened(READER, small).layout == Layout(16)
    assert opened(READER, none).layout == Layout(64)
    assert len(read(READER, none, ReadOptions(block_tokens=35))) == 1
    with pytest.raises(InputError, match="block_size is 64, but the one given is 16"):
        opened(READER, large, ReadOptions(block_tokens=16))
    with pytest.raises(InputError, match=r"b: block_size is 64, but that of .*a is 16"):
        READER.open_folder([Source(small), Source(large)], NO_OPTIONS, BadRows("folder"))
    late = session([ask(0, [1])], block_size=None)[:-1] + ', "block_size": 16}'
    assert "line 1, block_size: 16 is not 64" in refusal(READER, write(tmp_path / "d", late))


BAD = {
    "no ids": ({"t": 1, "in": 5, "out": 1}, "hash_ids: is missing"),
    "no length": ({"t": 1, "out": 1, "hash_ids": []}, "in: is missing"),
    "no answer": ({"t": 1, "in": 5, "hash_ids": []}, "out: is missing"),
    "no time": ({"in": 5, "out": 1, "hash_ids": []}, "t: is missing"),
    "negative": (ask(-1, [1]), "t: expected int >= 0"),
    "a large id": (ask(1, [1 << 63]), "hash_ids[0]: expected int <"),
    "a text id": (ask(1, [1, "2"]), "hash_ids[1]: expected int, got str"),
    "too few ids": (ask(1, [1], tokens=200), "hash_ids: 1 ids do not match the length 200"),
    "an empty prompt": (ask(1, []) | {"in": 0}, "in: expected int >= 1"),
    "a number": (7, "expected object, got int"),
    "a sub-agent without requests": ({"t": 1, "type": "subagent"}, "requests: is missing"),
    "requests that are none": (agent(1, "x", 7), "requests: expected array, got int"),  # type: ignore
}


@pytest.mark.parametrize("kind", BAD)
def test_a_bad_entry_is_named_or_skipped(tmp_path: Path, kind: str) -> None:
    entry, reason = BAD[kind]
    path = write(tmp_path / "t", session([ask(0, [1]), entry, ask(9, [1, 2])]))
    message = refusal(READER, path)
    assert message.startswith("FILE, line 1, requests[1]")
    assert reason in message
    rows, bad = read_skipping(READER, path)
    assert [r.timestamp for r in rows] == [0, 9000]
    assert (bad.count, bad.listed[0].line) == (1, 1)


def test_a_bad_entry_of_a_sub_agent_leaves_the_others(tmp_path: Path) -> None:
    nested = agent(3, "x", [ask(0, [7]), ask(1, [8], tokens=900), ask(2, [9])])
    path = write(
        tmp_path / "t", session([ask(0, [1]), nested]).replace('"requests"', '\n"requests"')
    )
    message = refusal(READER, path)
    assert message.startswith("FILE, line 2, requests[1].requests[1].hash_ids: 1 ids do not match")
    rows, bad = read_skipping(READER, path)
    assert [r.timestamp for r in rows] == [0, 3000, 5000]
    assert bad.count == 1
    whole = BadRows("folder", skip=True)
    assert len(rows_of(READER.open_folder([Source(path)], NO_OPTIONS, whole))) == 3
    assert (whole.count, whole.listed[0].file) == (1, str(path))


def test_endless_nesting_is_refused(tmp_path: Path) -> None:
    entry: dict[str, Any] = ask(0, [1])
    for depth in range(40):
        entry = agent(0, f"a{depth}", [entry])
    assert "nested more than 16 deep" in refusal(READER, write(tmp_path / "t", session([entry])))
    text = '{"id": "s", "requests": [' + '{"requests": [' * 100_000
    assert "cut off" in refusal(READER, write(tmp_path / "u", text))


BROKEN = {
    "cut off": (session([ask(0, [1, 2]), ask(1, [1])])[:-30], "cut off"),
    "cut off before": ('{"id": "s", "block_size": 64, "tool_tokens": 5', "cut off"),
    "an id that is none": (session([ask(0, [1])], id=7), "line 1, id: expected"),
    "another scope": (session([ask(0, [1])], hash_id_scope="x"), "hash_id_scope: 'x' is not local"),
    "no requests": ('{"id": "s", "tool_tokens": 5}', "requests: is missing"),
    "no list": ('{"id": "s", "tool_tokens": 5, "requests": {}}', "requests: expected an array"),
    "more text": (session([ask(0, [1])]) + "{}", "text follows the end"),
    "no UTF-8": (session([ask(0, [1])], id="\udcff"), ""),
}


@pytest.mark.parametrize("kind", BROKEN)
def test_a_broken_document_is_refused(tmp_path: Path, kind: str) -> None:
    text, reason = BROKEN[kind]
    path = write(tmp_path / "t", text.encode("utf-8", "surrogateescape"))
    if kind == "no UTF-8":
        path = write(path, session([ask(0, [1])], id="QQ").encode().replace(b"QQ", b"\xff\xfe"))
    assert reason in refusal(READER, path)


def test_other_json_is_not_claimed() -> None:
    for other in (
        b'{"timestamp": 0, "input_length": 5, "output_length": 1, "hash_ids": [0]}',
        b'{"requests": [{"messages": []}]}',
        b'[{"t": 0, "requests": [',
        b'{"hash_ids": {"requests": [], "tool_tokens": 5}}',
        b"",
    ):
        assert not READER.recognises(other)
    assert READER.recognises(b'\n {"requests" : [{"t": 0.5, "in": "x"')
    assert READER.recognises(b'{"id": 7, "tool_tokens": null')


def test_a_document_is_streamed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first rows are there long before the end of the file was read."""
    monkeypatch.setattr(source_module, "PIECE_BYTES", 1000)
    requests = [ask(n, list(range(50))) for n in range(2000)]
    path = write(tmp_path / "t", session(requests))
    source = Source(path)
    read_bytes = 0

    def counted() -> Iterator[bytes]:
        nonlocal read_bytes
        for chunk in Source(path).chunks():
            read_bytes += len(chunk)
            yield chunk

    monkeypatch.setattr(source, "chunks", counted)
    batches = READER.open(source, NO_OPTIONS, BadRows("t")).batches()
    assert len(next(batches).rows) == 256
    assert read_bytes < path.stat().st_size / 5
    assert sum(len(batch.rows) for batch in batches) == 2000 - 256


@pytest.mark.parametrize("seed", range(60))
def test_a_mutated_document_is_read_or_refused(tmp_path: Path, seed: int) -> None:
    requests = [
        ask(0, [1], api_time=2),
        agent(3, "x", [ask(0, [7], api_time=4), agent(1, "z", [ask(0, [3])])]),
        ask(12, [1, 2], api_time=1, think_time=10),
    ]
    text = mutated(session(requests).encode(), seed)
    path = write(tmp_path / "t", text)
    source = Source(path)
    try:
        stream = READER.open(source, NO_OPTIONS, BadRows(source.name, skip=True))
        rows = rows_of(stream)
    except InputError as error:
        message = str(error)
    else:
        message = str(path)
        assert len(rows) <= 4
        check_rows(rows, stream.layout.block_tokens)
    assert str(path) in message


REQUESTS = {
    "0001": 41, "0002": 33, "0003": 409, "0007": 12, "0008": 52, "0009": 283, "0011": 53,
    "0015": 48, "0020": 317, "0023": 52, "0030": 22,
}  # fmt: skip


@needs_real_traces
@pytest.mark.parametrize("name", REQUESTS)
def test_the_real_sessions(name: str) -> None:
    path = REAL_TRACES / "weka_claude_code" / f"trace_{name}.json"
    rows = read(READER, path)
    assert len(rows) == REQUESTS[name]
    check_rows(rows, 64)
    document = json.loads(path.read_bytes())
    totals = document["totals"]["combined_tokens"]
    assert sum(r.input_length for r in rows) == totals["input"]
    assert sum(r.output_length for r in rows) == totals["output"]
    expected = [
        (round(each["t"] * 1000 + inner["t"] * 1000), inner["hash_ids"])
        for each in document["requests"]
        for inner in each.get("requests", [each | {"t": 0}])
    ]
    assert sorted(expected) == sorted((round(r.timestamp or 0), r.hash_ids) for r in rows)
    assert sum(r.after < 0 for r in rows) == 1


@needs_real_traces
def test_the_real_folder() -> None:
    paths = sorted((REAL_TRACES / "weka_claude_code").glob("*.json"))
    stream = READER.open_folder([Source(p) for p in paths], NO_OPTIONS, BadRows("folder"))
    rows = rows_of(stream)
    assert len(rows) == 1322
    assert len({r.session for r in rows}) == 11 + 3
    assert f"{ideal_hit_rate(rows):.4f}" == "0.9525"
    for row in rows:
        if row.after >= 0:
            assert rows[row.after].session.split("/")[0] == row.session.split("/")[0]
    check_rows(rows, 64)
