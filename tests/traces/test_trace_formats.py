"""Formats are told apart by content: one reader for each file, no two for a damaged one."""

from __future__ import annotations

import random
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from reader_samples import MAKERS, rows_of, sample
from recorded_helpers import REAL_TRACES, mutated, needs_real_traces
from trace_helpers import REPOSITORY

from hicache.errors import InputError
from traces.made import MadeRows
from traces.ragpulse import LENGTH_FILES, RAGPulseReader
from traces.reader import FORMATS, open_trace, readers
from traces.source import HEAD_BYTES
from traces.workloads import WORKLOADS

NAMES = tuple(MAKERS)


def claimed(head: bytes) -> list[str]:
    return [each.name for each in readers() if each.recognises(head[:HEAD_BYTES])]


def damaged(text: bytes, seed: int) -> Iterator[bytes]:
    """The text with its first line cut off, changed, left out, or followed by others."""
    first, end, rest = text.partition(b"\n")
    draw = random.Random(seed)
    for _ in range(40):
        yield first[: draw.randrange(len(first) + 1)] + end + rest
        yield mutated(first, draw.randrange(1 << 30)) + end + rest
        at = draw.randrange(len(first) + 1)
        yield first[:at] + b"\n" + first[at:] + end + rest
        start = draw.randrange(len(first))
        yield first[:start] + first[start + draw.randrange(1, 60) :] + end + rest
    yield rest
    yield first
    yield b"\n \n" + text


def test_every_reader_has_a_sample_and_a_name_of_its_own() -> None:
    names = [each.name for each in readers()]
    assert len(set(names)) == len(names) == len(FORMATS)
    assert {sample(name).format for name in NAMES} == set(names)


@pytest.mark.parametrize("name", NAMES)
def test_one_reader_claims_a_sound_file(name: str) -> None:
    each = sample(name)
    assert claimed(each.text()) == [each.format]


@pytest.mark.parametrize("name", NAMES)
def test_no_two_readers_claim_a_damaged_file(name: str) -> None:
    text = sample(name).text()
    recognised = total = 0
    for number, broken in enumerate(damaged(text, len(name))):
        found = claimed(broken)
        assert len(found) <= 1, (number, broken[:300])
        recognised += found == [sample(name).format]
        total += 1
    # Most are still known as what they were meant to be, and then their error says where.
    assert recognised > total / 3


@needs_real_traces
@pytest.mark.parametrize(
    ("path", "name"),
    [
        ("mooncake_conversation.jsonl", "mooncake"),
        ("ragpulse/0_trace.jsonl", "ragpulse"),
        ("azure2023/AzureLLMInferenceTrace_code.csv", "azure"),
        ("sharegpt_tokens/sharegpt-llama-3.1-8b-300-sps10.jsonl", "token-ids"),
        ("weka_claude_code/trace_0001.json", "weka"),
    ],
)
def test_the_real_files_are_claimed_by_one(path: str, name: str) -> None:
    with (REAL_TRACES / path).open("rb") as file:
        head = file.read(HEAD_BYTES)
    assert claimed(head) == [name]
    for broken in damaged(head, 1):
        assert claimed(broken) in ([], [name]), broken[:200]


@pytest.mark.parametrize("name", NAMES)
def test_a_layout_that_is_timed_has_a_time_in_every_row(name: str, tmp_path: Path) -> None:
    each = sample(name)
    trace = each.open(each.write(tmp_path))
    rows = rows_of(trace)
    assert rows
    if trace.layout.timed:
        assert all(row.timestamp is not None for row in rows)
    # Those whose rows may have none say so, whether or not this file's have one.
    untimed = ("mooncake delta", "hisim", "token ids", "prompts", "sharegpt", "openai", "loogle")
    assert trace.layout.timed == (not name.startswith(untimed) and not name.startswith("hicache"))


def test_workloads_have_a_time_in_every_row() -> None:
    for workload in WORKLOADS.values():
        stream = workload.generate(workload.options())
        assert isinstance(stream, MadeRows)
        assert stream.layout.timed
        rows = next(iter(stream.batches())).rows
        assert all(row.timestamp is not None for row in rows)


def test_a_row_without_a_time_is_malformed_where_the_header_says_that_all_have_one(
    tmp_path: Path,
) -> None:
    path = tmp_path / "t"
    row = '{"input_length":5,"output_length":1,"session":"a","timestamp":0,"pieces":[[0,5]]}\n'
    later = row.replace('"timestamp":0', '"after":0')
    path.write_text('{"hicache_trace":1,"block_tokens":0}\n' + row + later)
    trace = open_trace(path)
    assert not trace.layout.timed
    assert [each.timestamp for each in rows_of(trace)] == [0, None]
    path.write_text('{"hicache_trace":1,"block_tokens":0,"timed":true}\n' + row + later)
    trace = open_trace(path)
    assert trace.layout.timed
    with pytest.raises(InputError, match="line 3, timestamp: is missing: the header says"):
        rows_of(trace)


def test_reading_one_format_loads_no_other_and_nothing_heavy() -> None:
    code = (
        "import sys; from traces.reader import open_trace\n"
        "for _ in open_trace('data/agents.jsonl').stream().batches(): pass\n"
        "print(*sorted(sys.modules))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=REPOSITORY, capture_output=True, text=True, check=True
    )
    loaded = set(done.stdout.split())
    assert "traces.mooncake" in loaded
    others = {module for module, _ in FORMATS} - {"traces.mooncake"}
    assert not loaded & (others | {"traces.mooncake_delta", "numpy", "pyarrow", "rich", "pandas"})


# --- RAGPulse's folder


def test_a_folder_of_ragpulse_is_the_trace(tmp_path: Path) -> None:
    each = sample("ragpulse")
    path = each.write(tmp_path, name="0_trace.jsonl")
    (tmp_path / "LICENSE").write_text("may be there")
    file, folder = open_trace(path), open_trace(tmp_path)
    assert rows_of(folder) == rows_of(file) != []
    assert (folder.format, folder.layout) == (file.format, file.layout)
    # It is also its lengths.
    assert folder.sha256 != file.sha256
    shutil.copy(path, tmp_path / "6_other.jsonl")
    with pytest.raises(InputError, match=r"6_other.jsonl: is no file of a RAGPulse trace"):
        open_trace(tmp_path)


@needs_real_traces
def test_the_real_folder_of_ragpulse_is_the_real_trace() -> None:
    folder = open_trace(REAL_TRACES / "ragpulse")
    assert folder.format == RAGPulseReader.name
    assert sorted(LENGTH_FILES.values())[0] == "1_sys_prompt.jsonl"
    rows = rows_of(folder)
    assert len(rows) == 7106
    assert rows == rows_of(open_trace(REAL_TRACES / "ragpulse" / "0_trace.jsonl"))
