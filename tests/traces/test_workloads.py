"""Every workload: published defaults, what its options promise, closed loops that stay closed."""

from __future__ import annotations

import hashlib
import os
import statistics
import subprocess
import sys
from collections import Counter
from dataclasses import fields
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from row_traces import opened, rows_of
from trace_helpers import REPOSITORY, keys_of

from hicache.errors import InputError
from traces.convert import write
from traces.cut import cutter_for
from traces.generator import AgentOptions
from traces.made import hints_of
from traces.rows import Row
from traces.workloads import WORKLOADS
from traces.workloads.long_context import LongContextOptions
from traces.workloads.mix import MixOptions
from traces.workloads.multi_turn import MultiTurnOptions
from traces.workloads.prefixes import AlternatingOptions, RotatingOptions
from traces.workloads.shared_prefix import SharedPrefixOptions

SMALL: dict[str, Any] = {
    "multi-turn": MultiTurnOptions(clients=6, parallel=3),
    "shared-prefix": SharedPrefixOptions(groups=4, requests_per_group=5),
    "long-context": LongContextOptions(documents=3),
    "mix": MixOptions(clients=5, duration_s=60),
    "alternating-prefixes": AlternatingOptions(),
    "rotating-prefixes": RotatingOptions(),
    "agents": AgentOptions(hours=0.1),
}
CLOSED = ("multi-turn", "mix", "agents")


def generated(options: Any) -> list[Row]:
    (workload,) = (each for each in WORKLOADS.values() if each.options is type(options))
    return rows_of(workload.generate(options))


def test_the_small_ones_are_all() -> None:
    assert list(SMALL) == list(WORKLOADS)
    for workload in WORKLOADS.values():
        assert list(workload.ranges) == [each.name for each in fields(workload.options)]
        assert workload.options() == workload.options()


@pytest.mark.parametrize("name", WORKLOADS)
def test_written_and_read_back_it_is_the_same(tmp_path: Path, name: str) -> None:
    options = SMALL[name]
    stream = WORKLOADS[name].generate(options)
    rows = rows_of(stream)
    assert rows == rows_of(stream), "each pass starts anew"
    path = tmp_path / "t.jsonl.zst"
    assert write(stream, path).lost == ()
    assert rows_of(opened(path)) == rows
    assert hints_of(opened(path)) == hints_of(stream)
    assert hints_of(stream)["workload"] == name
    assert any(row.after >= 0 for row in rows) == (name in CLOSED)
    times = [row.timestamp for row in rows if row.timestamp is not None]
    assert len(times) == len(rows)
    assert times == sorted(times)


@pytest.mark.parametrize("name", CLOSED)
def test_a_prompt_is_the_last_one_its_answer_and_a_question(tmp_path: Path, name: str) -> None:
    path = tmp_path / "t"
    write(WORKLOADS[name].generate(SMALL[name]), path)
    rows = rows_of(opened(path))
    later = 0
    for row in rows:
        assert row.lengths is not None
        assert sum(row.lengths) == row.input_length
        if row.after < 0:
            continue
        before = rows[row.after]
        assert before.output_ids is not None
        assert row.session == before.session
        said = before.hash_ids + before.output_ids
        assert row.hash_ids[:-1] == said
        # So of `before.input_length + before.output_length` tokens all but the last can be hit.
        assert sum(row.lengths[:-1]) == before.input_length + before.output_length
        later += 1
    assert later == len(rows) - len({row.session for row in rows})
    assert later > 10
    text = path.read_text()
    assert text.count('"append"') == later, "and each later turn is written as what it adds"


@pytest.mark.parametrize("name", CLOSED)
@pytest.mark.parametrize("page", [1, 16, 64, 100])
def test_a_later_turn_finds_all_pages_that_were_written(
    tmp_path: Path, name: str, page: int
) -> None:
    """floor((prompt + output - 1) / page) of them, at every page size: nothing is rounded away."""
    write(WORKLOADS[name].generate(SMALL[name]), tmp_path / "t")
    stream = opened(tmp_path / "t")
    cutter = cutter_for(stream.layout, page, "full")
    written: list[list[int]] = []
    rows = rows_of(stream)
    for row in rows:
        prompt, _, _, answer = cutter.cut_row(row)
        keys = keys_of(prompt)
        assert answer is not None
        written.append(keys + keys_of(answer))
        if row.after >= 0:
            before = rows[row.after]
            pages = (before.input_length + before.output_length - 1) // page
            assert keys[:pages] == written[row.after][:pages]
            assert len(keys) >= pages


def test_same_bytes_under_any_hash_seed() -> None:
    program = (
        "import hashlib, sys\n"
        "from traces.workloads import WORKLOADS\n"
        "from traces.writers import writer_of\n"
        "for each in WORKLOADS.values():\n"
        "    for name in ('hicache', 'mooncake'):\n"
        "        stream = each.generate(each.options())\n"
        "        text = b''.join(writer_of(name).lines(stream))\n"
        "        print(each.name, name, hashlib.sha256(text).hexdigest())\n"
    )
    outputs = set()
    for seed in ("1", "2"):
        done = subprocess.run(
            [sys.executable, "-c", program],
            capture_output=True,
            text=True,
            check=True,
            cwd=REPOSITORY,
            env={**os.environ, "PYTHONHASHSEED": seed, "PYTHONPATH": str(REPOSITORY)},
        )
        outputs.add(done.stdout)
    (text,) = outputs
    lines = text.split()
    assert len(set(lines[2::3])) == 2 * len(WORKLOADS)
    agents = lines[lines.index("agents") + 2]
    assert len(agents) == len(hashlib.sha256().hexdigest())


def test_multi_turn() -> None:
    options = MultiTurnOptions()
    rows = generated(options)
    assert len(rows) == 256 * 5
    turns = Counter(row.session for row in rows)
    assert set(turns.values()) == {5}
    lengths = [row.input_length for row in rows if row.session == "17"]
    assert lengths == [512 + 576 * turn for turn in range(5)]
    assert {row.output_length for row in rows} == {64}
    times = [float(row.timestamp or 0) for row in rows]
    pauses = [b - a for a, b in pairwise(times)]
    # 16 a second at most: a sender waits now and then when nobody is ready.
    assert statistics.mean(pauses) == pytest.approx(1000 / 16, rel=0.1)
    # No client is asked again before its answer has ended.
    for row in rows:
        if row.after >= 0:
            assert times[rows.index(row)] >= times[row.after] + 500 + 64 * 20 - 1
    assert generated(MultiTurnOptions(seed=2))[1].timestamp != rows[1].timestamp


def test_multi_turn_limits() -> None:
    fast = MultiTurnOptions(clients=20, parallel=4, rate_per_s=1e5, order="fifo")
    rows = generated(fast)
    times = [float(row.timestamp or 0) for row in rows]
    answer_ms = 500 + 64 * 20
    for number, at in enumerate(times):
        in_flight = [each for each in times[:number] if each + answer_ms > at + 1]
        assert len(in_flight) < 4
    assert [row.session for row in rows[:20]] == [str(client) for client in range(20)]
    barrier = generated(MultiTurnOptions(clients=20, barrier="rounds"))
    assert [len(row.hash_ids) // 2 for row in barrier] == [n // 20 for n in range(100)]
    free = generated(MultiTurnOptions(clients=20, rate_per_s=4))
    assert [len(row.hash_ids) for row in free] != sorted(len(row.hash_ids) for row in free)
    uniform = generated(MultiTurnOptions(arrival="uniform", rounds=1, rate_per_s=1))
    first = [float(row.timestamp or 0) for row in uniform]
    assert max(b - a for a, b in pairwise(first)) <= 2001
    thinking = generated(MultiTurnOptions(clients=2, think_s=30))
    assert {row.delay for row in thinking if row.after >= 0} == {30_000}
    assert float(thinking[-1].timestamp or 0) > 4 * 30_000


def test_mix() -> None:
    rows = generated(MixOptions())
    times = [float(row.timestamp or 0) for row in rows]
    assert times.count(0) == 60
    assert times[-1] <= 600_000
    first = [row for row in rows if row.after < 0]
    assert 800 <= min(row.input_length for row in first) < 820
    assert 1180 < max(row.input_length for row in first) <= 1200
    # Answers are around 100 tokens; a draw that is not positive counts as 100.
    outputs = Counter(row.output_length for row in rows)
    assert outputs.most_common(1)[0][0] == 100
    assert outputs[100] / len(rows) == pytest.approx(0.163, abs=0.02)
    pauses = Counter(row.delay for row in rows if row.after >= 0)
    assert pauses[30_000] / sum(pauses.values()) > 0.25
    # Always 60 in flight.
    ends = sorted(at + 500 + 20 * row.output_length for at, row in zip(times, rows, strict=True))
    middle = 300_000
    begun = sum(at <= middle for at in times)
    assert begun - sum(end <= middle for end in ends) == pytest.approx(60, abs=1)
    turns = Counter(Counter(row.session for row in rows).values())
    assert turns[1] > turns[2] > turns[6]
    assert max(turns) <= 10
    by_round = [
        statistics.mean(row.lengths[-1] for row in rows if row.lengths and len(row.lengths) == n)
        for n in (1, 3, 5)
    ]
    assert by_round == pytest.approx([1000, 400, 350], rel=0.03)


def test_mix_rounds_are_drawn_by_their_ratios() -> None:
    options = MixOptions(
        clients=20, duration_s=20_000, interval_s=0.001, interval_sigma_s=0, output_sigma_tokens=0,
        round_ratios=(3, 0, 2), new_tokens=(10, 10, 10),
    )  # fmt: skip
    rows = generated(options)
    turns = Counter(Counter(row.session for row in rows).values())
    # One of 3, and 2 + 1 of 3 + 0 + 2 + 1 (the last has one more chance).
    assert turns[1] / turns[3] == pytest.approx(1, rel=0.05)
    assert turns[2] < 100, "only those whose last round would come too late"


def test_shared_prefix() -> None:
    rows = generated(SharedPrefixOptions())
    assert len(rows) == 64 * 16
    assert set(Counter(row.hash_ids[0] for row in rows).values()) == {16}
    assert {(row.input_length, row.output_length) for row in rows} == {(2048 + 128, 256)}
    assert len({row.hash_ids[1] for row in rows}) == len(rows)
    assert [row.hash_ids[0] for row in rows[:64]] != list(range(64)), "in random order"
    zipf = generated(SharedPrefixOptions(popularity="zipf", groups=20, requests_per_group=500))
    counts = Counter(row.hash_ids[0] for row in zipf)
    assert counts[0] / counts[1] == pytest.approx(2, rel=0.1)
    assert counts[0] / counts[9] == pytest.approx(10, rel=0.2)
    span_s = float(zipf[-1].timestamp or 0) / 1000
    assert len(zipf) / span_s == pytest.approx(16, rel=0.05)


def test_long_context() -> None:
    rows = generated(LongContextOptions())
    assert len(rows) == 256
    documents = {row.hash_ids[0]: row.lengths[0] for row in rows if row.lengths}
    assert len(documents) == 32
    assert statistics.median(documents.values()) == pytest.approx(24_000, rel=0.15)
    assert all(row.lengths and row.lengths[0] == documents[row.hash_ids[0]] for row in rows)
    ordered = generated(LongContextOptions(order="documents", document_sigma=0))
    assert [row.hash_ids[0] for row in ordered] == [n // 8 for n in range(256)]
    assert {row.lengths[0] for row in ordered if row.lengths} == {24_000}
    assert float(rows[-1].timestamp or 0) / 1000 == pytest.approx(256 / 24, rel=0.25)


def test_the_two_benchmarks_are_the_traces_of_the_published_runs(tmp_path: Path) -> None:
    folder = REPOSITORY / "scenarios" / "traces"
    path = tmp_path / "t"
    write(WORKLOADS["rotating-prefixes"].generate(RotatingOptions()), path, "mooncake",
          block_tokens=50)  # fmt: skip
    assert path.read_bytes() == (folder / "rotating-350.jsonl").read_bytes()
    for tokens in (350, 1000, 2000, 3500):
        stream = WORKLOADS["alternating-prefixes"].generate(AlternatingOptions(tokens))
        write(stream, path, "mooncake", block_tokens=50)
        assert path.read_bytes() == (folder / f"alternating-{tokens}.jsonl").read_bytes()


def test_agents_are_those_of_the_shipped_trace(tmp_path: Path) -> None:
    """Its rows name their sessions and answers, too; without them they are the shipped bytes."""
    rows = generated(AgentOptions())
    shipped = (REPOSITORY / "data" / "agents.jsonl").read_bytes()
    assert len(rows) == shipped.count(b"\n")
    path = tmp_path / "t"
    done = write(WORKLOADS["agents"].generate(AgentOptions()), path, "mooncake")
    assert any("which answer a request waits for" in each for each in done.lost)
    lines = path.read_bytes().splitlines()
    assert all(b', "session_id": "' in line for line in lines)
    bare = [line[: line.index(b', "session_id"')] + b"}" for line in lines]
    assert bare == shipped.splitlines()
    for row in rows:
        if row.after >= 0:
            before = rows[row.after]
            came = float(before.timestamp or 0) + 500 + 20 * before.output_length + row.delay
            assert float(row.timestamp or 0) == pytest.approx(came, abs=2)


@pytest.mark.parametrize(
    ("options", "values", "message"),
    [
        (MultiTurnOptions, {"clients": 0}, "clients is 0: it must lie between 1 and 1000000"),
        (MultiTurnOptions, {"clients": True}, "clients is True: it must be a whole number"),
        (MultiTurnOptions, {"rounds": 1.5}, "rounds is 1.5: it must be a whole number"),
        (MultiTurnOptions, {"rate_per_s": float("nan")}, "rate_per_s is nan: it must be a number"),
        (MultiTurnOptions, {"arrival": "often"}, "arrival is 'often': it must be poisson or uni"),
        (MixOptions, {"round_ratios": (1, 2)}, "round_ratios has 2 numbers, but new_tokens 10"),
        (MixOptions, {"round_ratios": ()}, "round_ratios is (): it must be one or more whole"),
        (MixOptions, {"new_tokens": (1, -2)}, "new_tokens is -2: it must lie between 1"),
        (MixOptions, {"round_ratios": (0,) * 10}, "round_ratios are all 0"),
        (MixOptions, {"first_token_ms": 0, "output_token_ms": 0}, "are both 0"),
        (SharedPrefixOptions, {"zipf": -1}, "zipf is -1: it must lie between 0 and 10"),
        (LongContextOptions, {"order": "any"}, "order is 'any': it must be random or documents"),
        (RotatingOptions, {"prefixes": 0}, "prefixes is 0"),
        (AlternatingOptions, {"interval_ms": -1}, "interval_ms is -1"),
    ],
)
def test_bad_options(options: Any, values: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError) as caught:
        options(**values)
    assert message in str(caught.value)
