"""The Parquet writer: same bytes with and without a child, and no child is ever left behind."""

from __future__ import annotations

import math
import os
import signal
import subprocess
import sys
import time
from array import array
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scenario.columns import Columns, _bits, encode_columns, write_payload
from scenario.parquet import ParquetError, ParquetWriter

COLUMNS: Columns = {
    "number": [3, 1, 2],
    "maybe": [None, 5, None],
    "ms": [0.5, None, 1.5],
    "nan": [math.nan, 1.0, 2.0],
    "reason": ["late", "late", "early"],
    "note": [None, "a", None],
    "hit": [True, False, True],
    "perhaps": [True, None, False],
    "empty": [None, None, None],
    "stamps": array("q", [1, 2, 3]),
    "seconds": array("d", [1.0, math.nan, 3.0]),
    "numpy": np.array([7, 8, 9]),
    "small": np.array([7, 8, 9], dtype=np.int32),
    "flags": np.array([True, True, False]),
}


def wait_for(condition: object, seconds: float = 10.0) -> None:
    assert callable(condition)
    until = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < until
        time.sleep(0.01)


def is_gone(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    return False


def test_what_is_written_is_what_is_read(tmp_path: Path) -> None:
    ParquetWriter().write(COLUMNS, tmp_path / "t.parquet")
    table = pq.read_table(tmp_path / "t.parquet")
    assert table.to_pydict() == {
        "number": [3, 1, 2],
        "maybe": [None, 5, None],
        "ms": [0.5, None, 1.5],
        "nan": [None, 1.0, 2.0],
        "reason": ["late", "late", "early"],
        "note": [None, "a", None],
        "hit": [True, False, True],
        "perhaps": [True, None, False],
        "empty": [None, None, None],
        "stamps": [1, 2, 3],
        "seconds": [1.0, None, 3.0],
        "numpy": [7, 8, 9],
        "small": [7, 8, 9],
        "flags": [True, True, False],
    }
    assert table.schema.field("number").type == pa.int64()
    assert table.schema.field("empty").type == pa.float64()
    assert table.schema.field("reason").type == pa.dictionary(pa.int32(), pa.string())


def test_a_child_writes_the_same_bytes(tmp_path: Path) -> None:
    with ParquetWriter.start() as writer:
        assert writer.has_child
        writer.write(COLUMNS, tmp_path / "child.parquet")
        assert not writer.has_child
    ParquetWriter().write(COLUMNS, tmp_path / "here.parquet")
    assert (tmp_path / "child.parquet").read_bytes() == (tmp_path / "here.parquet").read_bytes()


@pytest.mark.parametrize("columns", [{}, {"a": []}, {"a": array("q"), "b": []}])
def test_tables_without_rows(tmp_path: Path, columns: Columns) -> None:
    with ParquetWriter.start() as writer:
        writer.write(columns, tmp_path / "child.parquet")
    ParquetWriter().write(columns, tmp_path / "here.parquet")
    assert (tmp_path / "child.parquet").read_bytes() == (tmp_path / "here.parquet").read_bytes()
    assert pq.read_table(tmp_path / "here.parquet").num_rows == 0


def test_more_than_a_pipe_holds(tmp_path: Path) -> None:
    columns = {f"c{k}": array("q", range(50_000)) for k in range(4)}
    with ParquetWriter.start() as writer:
        writer.write(columns, tmp_path / "t.parquet")
    assert pq.read_table(tmp_path / "t.parquet")["c3"].to_pylist() == list(range(50_000))


rows = st.integers(0, 40).flatmap(
    lambda n: st.fixed_dictionaries(
        {
            "int": st.lists(st.none() | st.integers(-(2**63), 2**63 - 1), min_size=n, max_size=n),
            "float": st.lists(st.none() | st.floats(allow_nan=False), min_size=n, max_size=n),
            "bool": st.lists(st.none() | st.booleans(), min_size=n, max_size=n),
            "text": st.lists(st.none() | st.sampled_from(["", "a", "ä€"]), min_size=n, max_size=n),
        }
    )
)


@settings(max_examples=40)
@given(rows)
def test_any_rows_come_back(tmp_path_factory: pytest.TempPathFactory, columns: Columns) -> None:
    path = str(tmp_path_factory.getbasetemp() / "any.parquet")
    write_payload(encode_columns(columns), path)
    assert pq.read_table(path).to_pydict() == columns


@given(st.lists(st.booleans()))
def test_bits_are_arrow_s(flags: list[bool]) -> None:
    packed = np.packbits(np.array(flags, dtype=bool), bitorder="little").tobytes()
    assert _bits(bytes(flags)).tobytes() == packed


@pytest.mark.parametrize(
    ("columns", "says"),
    [
        ({"a": [1, 2], "b": [1]}, "column 'b' has 1 rows, the ones before it 2"),
        ({"a": [1, 0.5]}, "column 'a' of int: 'float' object cannot be"),
        ({"a": [0.5, "x"]}, "column 'a' of float: must be real number"),
        ({"a": ["x", 1]}, "column 'a' of str: not every value is a text"),
        ({"a": [True, 2]}, "column 'a' of bool: 2 is no truth value"),
        ({"a": [2**63]}, "column 'a' of int: "),
        ({"a": [[1]]}, "column 'a' holds a list"),
    ],
)
def test_columns_that_cannot_be_written(tmp_path: Path, columns: Columns, says: str) -> None:
    for writer in (ParquetWriter(), ParquetWriter.start()):
        with pytest.raises((TypeError, ValueError)) as caught:
            writer.write(columns, tmp_path / "t.parquet")
        assert says in str(caught.value)
        assert not writer.has_child
    assert not (tmp_path / "t.parquet").exists()


def test_an_error_of_the_child_reaches_the_parent(tmp_path: Path) -> None:
    path = tmp_path / "missing" / "t.parquet"
    for writer in (ParquetWriter(), ParquetWriter.start()):
        with pytest.raises(ParquetError) as caught:
            writer.write(COLUMNS, path)
        assert str(caught.value).startswith(f"cannot write {path}: FileNotFoundError: ")


def test_the_parent_does_the_work_of_a_child_that_died(tmp_path: Path) -> None:
    writer = ParquetWriter.start()
    os.kill(writer._pid, signal.SIGKILL)
    writer.write(COLUMNS, tmp_path / "t.parquet")
    ParquetWriter().write(COLUMNS, tmp_path / "here.parquet")
    assert (tmp_path / "t.parquet").read_bytes() == (tmp_path / "here.parquet").read_bytes()


def test_a_child_that_fails_at_its_start_is_no_harm(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("scenario.parquet._child_code", lambda: "raise SystemError('old pyarrow')")
    with ParquetWriter.start() as writer:
        writer.write({"a": array("q", range(100_000))}, tmp_path / "t.parquet")
    assert pq.read_table(tmp_path / "t.parquet").num_rows == 100_000
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize("executable", ["", "/nowhere/python", "/usr/bin/uwsgi"])
def test_without_an_interpreter_to_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, executable: str
) -> None:
    monkeypatch.setattr(sys, "executable", executable)
    with ParquetWriter.start() as writer:
        writer.write({"a": [1]}, tmp_path / "t.parquet")
    assert pq.read_table(tmp_path / "t.parquet").num_rows == 1


def test_an_unused_child_is_ended_and_collected() -> None:
    writer = ParquetWriter.start()
    pid = writer._pid
    writer.close()
    writer.close()
    assert is_gone(pid)
    forgotten = ParquetWriter.start()
    pid = forgotten._pid
    del forgotten
    assert is_gone(pid)


def test_no_descriptor_is_left_open(tmp_path: Path) -> None:
    before = len(os.listdir("/dev/fd"))
    for number in range(3):
        with ParquetWriter.start() as writer:
            if number:
                writer.write({"a": [1]}, tmp_path / "t.parquet")
    assert len(os.listdir("/dev/fd")) == before


def test_a_child_ends_when_its_parent_is_killed() -> None:
    code = (
        "import os, sys, time; from scenario.parquet import ParquetWriter\n"
        "writer = ParquetWriter.start(); print(writer._pid, flush=True); time.sleep(60)"
    )
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, env=env) as parent:
        assert parent.stdout is not None
        child = int(parent.stdout.readline())
        assert not is_gone(child)
        parent.kill()
    # Whoever inherits it may be slow to collect it: it counts as ended when it is a zombie, too.
    wait_for(lambda: is_gone(child) or is_zombie(child))


def is_zombie(pid: int) -> bool:
    stat = Path(f"/proc/{pid}/stat")
    return stat.exists() and stat.read_text().rpartition(")")[2].split()[0] == "Z"


def test_an_interrupt_from_the_terminal_does_not_reach_the_child(tmp_path: Path) -> None:
    with ParquetWriter.start() as writer:
        assert os.getpgid(writer._pid) == writer._pid
        assert os.getpgid(writer._pid) != os.getpgrp()
        writer.write({"a": [1]}, tmp_path / "t.parquet")


def test_importing_the_package_imports_nothing_heavy() -> None:
    code = (
        "import sys, scenario.records, scenario.load, scenario.resolve, scenario.results\n"
        "import scenario.geometry, scenario.model_config, scenario.parquet, scenario.presets\n"
        "from scenario.records import dump_toml\n"
        "dump_toml(scenario.load.load_scenario(None, {'model.name': 'qwen3-8b'}))\n"
        "scenario.parquet.ParquetWriter.start().close()\n"
        "heavy = {'numpy', 'pyarrow', 'pandas', 'simpy', 'subprocess', 'tempfile', 'difflib'}\n"
        "print(sorted(heavy & set(sys.modules)))"
    )
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    done = subprocess.run(
        [sys.executable, "-c", code], check=True, capture_output=True, text=True, env=env
    )
    assert done.stdout == "[]\n"
    assert done.stderr == ""
